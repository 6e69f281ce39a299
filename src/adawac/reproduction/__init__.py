"""The paper's tables and figures as grids of runs: `adawac.reproduction.reproduce("table-1", out, data=store)`.

`grids` reads a grid, `jobs` makes run folders of it, `engines` run them here or on a Ray cluster, `tables` and
`rendering` set our numbers beside the paper's, `drawing` draws its figures. The paper's numbers are in `paper/*.yaml`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Where each public name lives; it is imported when it is first used.
_HOMES = {
    "Grid": "grids",
    "Reproduction": "reproducing",
    "grid_names": "grids",
    "load_grid": "grids",
    "reproduce": "reproducing",
}

__all__ = ["Grid", "Reproduction", "grid_names", "load_grid", "reproduce"]

if TYPE_CHECKING:
    from adawac.reproduction.grids import Grid, grid_names, load_grid
    from adawac.reproduction.reproducing import Reproduction, reproduce


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"adawac.reproduction.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'adawac.reproduction' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
