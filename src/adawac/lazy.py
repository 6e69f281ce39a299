"""Public names that are imported when they are first used: `import adawac` must not load torch."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's `__getattr__` and `__dir__`.

    Args:
        package: The package's `__name__`.
        homes: The public names, each with the module of the package that defines it; a name that is itself such a
            module has no colon, one that a module defines reads `module:name`.

    Returns:
        The two functions, to be assigned in the package's `__init__`.

    Example:
        >>> get, names = lazy_names("adawac", {"METHODS": "methods:METHODS", "losses": "losses"})
        >>> {"METHODS", "losses"} <= set(names())
        True
        >>> get("losses").__name__
        'adawac.losses'
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = homes[name].partition(":")
        loaded = import_module(f"{package}.{module}")
        return getattr(loaded, attribute) if attribute else loaded

    return get, lambda: sorted({*homes, *vars(sys.modules[package])})
