"""What is imported when it is first used: our public names (`import adawac` must not load torch), other libraries."""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any

from adawac.errors import MissingDependencyError


def lazy_names(
    package: str, names: Mapping[str, str], modules: str = "", former: Mapping[str, str] = MappingProxyType({})
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's `__getattr__` and `__dir__`.

    Args:
        package: The package's `__name__`.
        names: The public names, separated by spaces, by the module of the package that defines them.
        modules: The modules of the package that are public themselves.
        former: What older names stand for: `module`, or `module:name`.

    Returns:
        The two functions, to be assigned in the package's `__init__`.

    Examples:
        >>> get, names = lazy_names("adawac", {"methods": "METHODS build_method"}, modules="losses")
        >>> {"METHODS", "losses"} <= set(names())
        True
        >>> get("losses").__name__
        'adawac.losses'
    """
    homes = {name: f"{module}:{name}" for module, defined in names.items() for name in defined.split()}
    homes |= {module: module for module in modules.split()} | dict(former)

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = homes[name].partition(":")
        loaded = import_module(f"{package}.{module}")
        return getattr(loaded, attribute) if attribute else loaded

    return get, lambda: sorted({*homes, *vars(sys.modules[package])})


@contextmanager
def quietly() -> Iterator[None]:
    """Import or build without the warnings about what libraries use of one another: a user cannot fix them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def library(name: str, install: str) -> ModuleType:
    """Import a library, or say what to install."""
    try:
        with quietly():
            return import_module(name)
    except ImportError as error:
        raise MissingDependencyError(
            f"Expected {name!r} to be installed, but importing it failed ({error}). Run: pip install '{install}'."
        ) from error
