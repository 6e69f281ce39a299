"""What the page shows, as data: `page.yaml` with the rows of `grid.yaml`, and which run folder belongs to which row."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adawac.config.schema import parse
from adawac.methods import build_method
from adawac.reproduction import load_grid
from adawac.reproduction.collected_results import decisive_settings, fits, planned_settings, run_name
from adawac.reproduction.grids import Grid, Row
from adawac.runs import Run, list_runs

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
GRID, PAGE = FOLDER / "grid.yaml", FOLDER / "page.yaml"
RESULTS = FOLDER / "results"
ASSETS = ROOT / "docs" / "assets"


@dataclass(frozen=True, kw_only=True)
class Block:
    """Rows that are shown as one table.

    Attributes:
        title: What they have in common.
        settings: Their settings, as far as they are not those of all runs.
        rows: The block's own rows, by name.
        labels: What each row is called, by its name; rows of other blocks may stand among them.
        compare: Pairs of rows, of which the second is subtracted from the first seed by seed.
        published: For some rows, what a publication has instead: a `label`, and the DSC in % of each class and `mean`.
    """

    title: str
    settings: dict[str, Any]
    rows: dict[str, Row]
    labels: dict[str, str]
    compare: list[tuple[str, str]]
    published: dict[str, dict[str, Any]]

    @property
    def runs(self) -> list[str]:
        """The names of the block's own runs."""
        return [run_name(row, seed) for row in self.rows.values() for seed in row.seeds]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Blocks that answer one question; `text` says how, whatever the answer is."""

    name: str
    title: str
    text: str
    blocks: list[Block]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The whole page.

    Attributes:
        grid: The runs.
        groups: The sections.
        short: What the first pages show: a line's name, its row without AdaWAC and its row with it.
        weights: Tables of what became of weights, by their titles: rows, with what they are called there.
    """

    grid: Grid
    groups: list[Group]
    short: list[tuple[str, str, str]] = field(default_factory=list)
    weights: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        """What rows are called."""
        return {row: label for group in self.groups for block in group.blocks for row, label in block.labels.items()}


def read_layout(grid_path: Path = GRID, page_path: Path = PAGE) -> Layout:
    """Read the page's layout."""
    _, grid = load_grid(grid_path)
    data, rows = parse(page_path.read_bytes()), {row.name: row for row in grid.rows()}
    groups = [
        Group(
            name=name,
            title=group["title"],
            text=group["text"],
            blocks=[_block(block, rows) for block in group["blocks"]],
        )
        for name, group in data["groups"].items()
    ]
    return Layout(
        grid=grid,
        groups=groups,
        short=[(label, without, with_it) for label, without, with_it in data.get("short", [])],
        weights=data.get("weights", {}),
    )


def _block(block: dict[str, Any], rows: dict[str, Row]) -> Block:
    return Block(
        title=block["title"],
        settings=block.get("settings", {}),
        rows={name: rows[name] for name in block["rows"]},
        labels={**block.get("beside", {}), **block["rows"]},
        compare=[(first, second) for first, second in block.get("compare", [])],
        published=block.get("published", {}),
    )


def find_runs(grid: Grid, folders: Iterable[Path], names: Iterable[str] | None = None) -> dict[str, Run]:
    """Return the runs of a grid that lie below some folders, by what the results call them.

    Args:
        grid: The grid.
        folders: Where run folders lie.
        names: Which runs; all by default.
    """
    wanted = {run_name(row, seed): planned_settings(row, seed) for row in grid.rows() for seed in row.seeds}
    runs = [(run, decisive_settings(run.settings)) for folder in folders for run in list_runs(folder)]
    chosen = wanted if names is None else {name: wanted[name] for name in names}
    return {name: run for name, settings in chosen.items() for run, made in runs if fits(settings, made)}


def uses_consistency(row: Row) -> bool:
    """Tell whether the runs of a row compare the features of two views."""
    method = row.config.method
    return build_method(method.name, 1, method.preset, **{"trim_ratio": 0.0, **method.options}).uses_latents
