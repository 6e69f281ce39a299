"""Lightning's Fabric, which is imported here alone, and without what it does not need."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

__all__ = ["Fabric", "Precision"]


@contextmanager
def _in_name_only(package: str) -> Iterator[None]:
    """Let a package that is not imported yet be found as its version alone.

    Fabric imports all of torchmetrics, and with it a thousand modules, to ask how old it is.
    """
    try:
        found = version(package)
    except PackageNotFoundError:
        found = None
    if found is None or package in sys.modules:
        yield
        return
    stand_in = ModuleType(package)
    stand_in.__version__ = found  # type: ignore[attr-defined]
    sys.modules[package] = stand_in
    try:
        yield
    finally:
        del sys.modules[package]


with _in_name_only("torchmetrics"):
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.precision import Precision
