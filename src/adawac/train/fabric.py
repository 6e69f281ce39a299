"""Lightning's Fabric, which is imported here alone, and without what it does not need."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

__all__ = ["Fabric", "Precision", "quiet"]


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
    from lightning_utilities.core import rank_zero


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Fabric from telling what its user did not ask: which ranks have joined, and which precision to take."""
    packages = ("lightning_fabric", "lightning.fabric")
    loggers = [logging.getLogger(f"{package}.utilities.distributed") for package in packages]
    loggers.append(rank_zero.log)  # that of whichever part of Lightning was imported last
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
