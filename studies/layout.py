"""A study as data: its grids of runs, and how a page of the documentation shows them (`page.yaml`).

A study is a folder with `page.yaml` and one grid or several: its other YAML files. Each grid names the JSON file of its
collected results. Where there are several grids, the page calls the rows of `NAME.yaml` NAME/ROW.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adawac.config.yaml_text import parse
from adawac.methods import build_method
from adawac.reproduction import load_grid
from adawac.reproduction.collected_results import (
    Entry,
    decisive_settings,
    fits,
    planned_settings,
    read_entries,
    run_name,
)
from adawac.reproduction.grids import Grid, Row
from adawac.runs import Run, list_runs

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent
ASSETS = ROOT / "docs" / "assets"
PAGE = "page.yaml"

TABLES = ("dice", "published", "hd95", "differences")
"""What a block shows if it does not say so itself."""
_FIGURES = {
    "curves": "Cross-entropy and consistency of a case's slices over the epochs of one AdaWAC run on {title}: {label}",
    "separation": "β of label-sparse and label-dense slices, its area under the curve, the shares of Assumption 1 and "
    "the spreads of CE and ACR, over the epochs of one AdaWAC run on {title}: {label}",
    "weights": "β of every training slice of {title} over the epochs of one AdaWAC run: {label}",
}


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure of a run, with its options, and the file that it is drawn into."""

    run: str
    figure: str
    path: Path
    text: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Block:
    """Rows that are shown together.

    Attributes:
        title: What they have in common.
        tag: The same in a word or two, where several blocks stand in one table.
        settings: Their settings, as far as they are not those of all runs.
        rows: The block's own rows, by name.
        labels: What each row is called, by its name; rows of other blocks may stand among them.
        compare: Pairs of rows, of which the second is subtracted from the first seed by seed.
        tables: Which tables are shown: `summary`, `dice`, `published`, `hd95`, `differences`.
        published: For some rows, what a publication has instead: a `label`, and the DSC in % of each class and `mean`.
        paper: For some rows, the paper's numbers as it prints them, by the columns of its table.
        convention: How the summary scores empty masks; by default as the grid says first.
    """

    title: str
    tag: str
    settings: dict[str, Any]
    rows: dict[str, Row]
    labels: dict[str, str]
    compare: list[tuple[str, str]]
    tables: tuple[str, ...] = TABLES
    published: dict[str, dict[str, Any]] = field(default_factory=dict)
    paper: dict[str, dict[str, str]] = field(default_factory=dict)
    convention: str | None = None

    @property
    def runs(self) -> list[str]:
        """The names of the block's own runs."""
        return [f"{name}-seed{seed}" for name, row in self.rows.items() for seed in row.seeds]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Blocks that answer one question; `text` says how, whatever the answer is.

    With `together` they stand in one table, whose lines begin with their tags, instead of one for each.
    """

    name: str
    title: str
    text: str
    blocks: list[Block]
    together: bool = False


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Candidates against settings.

    Attributes:
        candidates: What each candidate is called, by the end of its rows' names; the others are held against the first.
        settings: What each setting is called, by the beginning of its rows' names, such as `synapse/` or `acdc/few-`.
        validations: Score a run by the mean of as many of its last validations; by default by its scored cases.
    """

    candidates: dict[str, str]
    settings: dict[str, str]
    validations: int = 0

    @property
    def cells(self) -> list[str]:
        """The rows of all cells."""
        return [setting + name for setting in self.settings for name in self.candidates]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A whole study.

    Attributes:
        name: What the blocks of its pages begin with: the folder's name.
        title: What the data set is called.
        page: Its page.
        grids: The grids, by what the names of their rows begin with: nothing, or NAME/.
        caveat: What to know of all numbers; stands beside them in every section.
        groups: The sections.
        short: What the first pages show: a line's name, its row without AdaWAC and its row with it.
        expect: The same of what the overview of all studies quotes.
        weights: Tables of what became of weights, by their titles: rows, with what they are called there.
        measures: What these tables show; everything by default.
        pictures: Figures of single runs.
        matrices: Tables of candidates against settings.
    """

    name: str
    title: str
    page: Path
    grids: dict[str, Grid]
    caveat: str = ""
    groups: list[Group] = field(default_factory=list)
    short: list[tuple[str, str, str]] = field(default_factory=list)
    expect: list[tuple[str, str, str]] = field(default_factory=list)
    weights: dict[str, dict[str, str]] = field(default_factory=dict)
    measures: list[str] | None = None
    pictures: list[Picture] = field(default_factory=list)
    matrices: dict[str, Matrix] = field(default_factory=dict)

    @property
    def rows(self) -> dict[str, Row]:
        """The rows of all grids, by what the page calls them."""
        return named_rows(self.grids)

    @property
    def labels(self) -> dict[str, str]:
        """What rows are called."""
        return {row: label for group in self.groups for block in group.blocks for row, label in block.labels.items()}

    @property
    def overview(self) -> Path:
        """Where the picture of all results is."""
        return ASSETS / f"{self.name}-overview.png"

    def entries(self) -> list[Entry]:
        """Return the collected results of all grids."""
        return [
            {**entry, "row": prefix + entry["row"], "name": prefix + entry["name"]}
            for prefix, grid in self.grids.items()
            for entry in read_entries(grid.results)
        ]


def studies() -> list[Path]:
    """Return the folders of the studies that have a page."""
    return sorted(path.parent for path in FOLDER.glob(f"*/{PAGE}"))


def read_grids(study: Path | str) -> dict[str, Grid]:
    """Return the grids of a study's folder, or the one in a YAML file, by what the page calls their rows first."""
    path = Path(study)
    paths = sorted(set(path.glob("*.yaml")) - {path / PAGE}) if path.is_dir() else [path]
    return {f"{file.stem}/" if len(paths) > 1 else "": load_grid(file)[1] for file in paths}


def read_layout(study: Path | str) -> Layout:
    """Read a study's folder."""
    folder = Path(study)
    data, grids = parse((folder / PAGE).read_bytes()), read_grids(folder)
    rows, title = named_rows(grids), data["title"]
    tables = tuple(data.get("tables", TABLES))
    return Layout(
        name=folder.name,
        title=title,
        page=ROOT / data["page"],
        grids=grids,
        caveat=data.get("caveat", ""),
        groups=[
            Group(
                name=name,
                title=group["title"],
                text=group["text"],
                blocks=[_block(block, rows, tables) for block in group["blocks"]],
                together=group.get("together", False),
            )
            for name, group in data.get("groups", {}).items()
        ],
        short=_lines(data.get("short", [])),
        expect=_lines(data.get("expect", [])),
        weights=data.get("weights", {}),
        measures=data.get("measures"),
        pictures=[_picture(title, **picture) for picture in data.get("pictures", [])],
        matrices={name: Matrix(**matrix) for name, matrix in data.get("matrices", {}).items()},
    )


def named_rows(grids: Mapping[str, Grid]) -> dict[str, Row]:
    """Return the rows of all grids, by what the page calls them."""
    return {prefix + row.name: row for prefix, grid in grids.items() for row in grid.rows()}


def _lines(lines: Iterable[list[str]]) -> list[tuple[str, str, str]]:
    return [(label, without, with_it) for label, without, with_it in lines]


def _picture(title: str, *, file: str, figure: str, label: str, **others: Any) -> Picture:
    text = _FIGURES[figure].format(title=title, label=label)
    return Picture(figure=figure, path=ASSETS / file, text=text, **others)


def _block(block: dict[str, Any], rows: dict[str, Row], tables: tuple[str, ...]) -> Block:
    own = block.get("rows", {})
    return Block(
        title=block["title"],
        tag=block.get("tag", block["title"]),
        settings=block.get("settings", {}),
        rows={name: rows[name] for name in own},
        labels={**block.get("beside", {}), **own},
        compare=[(first, second) for first, second in block.get("compare", [])],
        tables=tuple(block.get("tables", tables)),
        published=block.get("published", {}),
        paper={row: _printed(*place) for row, place in block.get("paper", {}).items()},
        convention=block.get("convention"),
    )


def _printed(table: str, *labels: str) -> dict[str, str]:
    """Return a row of one of the paper's tables as it is printed, by column."""
    _, grid = load_grid(table)
    numbers: Any = grid.paper
    for label in labels:
        numbers = numbers[label]
    return {
        column: f"{value:.2f}" if isinstance(value, float) else str(value)
        for column, value in zip(grid.columns, numbers, strict=True)
    }


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
