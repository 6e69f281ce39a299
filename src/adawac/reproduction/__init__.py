"""The paper's tables and figures as grids of runs: `adawac.reproduction.reproduce("table-1", out, data=store)`.

`grids` reads a grid, `jobs` makes run folders of it, `engines` run them here or on a Ray cluster, `paper_tables` and
`comparison_files` set our numbers beside the paper's. The paper's numbers are in `paper/*.yaml`.
"""

from typing import TYPE_CHECKING

from adawac.lazy import lazy_names

__all__ = ["Grid", "Reproduction", "grid_names", "load_grid", "reproduce"]

if TYPE_CHECKING:
    from adawac.reproduction.grids import Grid, grid_names, load_grid
    from adawac.reproduction.reproduction import Reproduction, reproduce

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "grids": "Grid grid_names load_grid",
        "reproduction": "Reproduction reproduce",
    },
)
