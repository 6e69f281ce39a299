"""Our numbers beside the paper's, cell by cell, and whether they order the methods alike."""

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from adawac.errors import AdawacError
from adawac.evaluation.statistics import HIGHER_IS_BETTER, means_by
from adawac.reproduction.collected_results import Entry, entry_value, find_entry
from adawac.reproduction.grid_data import MARK
from adawac.reproduction.grids import Column, Grid, Number
from adawac.reproduction.jobs import Job, Planned
from adawac.runs import Run, Score

log = logging.getLogger(__name__)

_SHARES = frozenset({"dice", "surface_dice"})  # given as percentages


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a table.

    Attributes:
        column: Its column's name.
        paper: The paper's number; None where it has none.
        mean, std: Ours over seeds; NaN without a run, and the spread without a second one.
        count: How many seeds have a number.
        seeds: How many were to have one.
    """

    column: str
    paper: Number | None
    mean: float
    std: float
    count: int
    seeds: int

    @property
    def partial(self) -> bool:
        """Whether this is the mean of some seeds only: the others failed, or have not been run."""
        return 0 < self.count < self.seeds

    @property
    def difference(self) -> float:
        """Ours minus the paper's; NaN where one is missing."""
        return math.nan if self.paper is None else self.mean - self.paper.mean


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of a table: its names, its cells, and the jobs behind them."""

    labels: dict[str, str]
    cells: tuple[Cell, ...]
    jobs: tuple[Job, ...]


@dataclass(frozen=True, kw_only=True)
class Ordering:
    """How one column ranks the compared axis (the methods), in the paper and here.

    Attributes:
        labels: The names on the other axes.
        column: By what is ranked.
        paper, ours: Names from best to worst, of those that have both numbers; equal ones stand together. Without
            numbers of a paper, `paper` is empty.
        kendall_tau: Kendall's τ-b of the two; NaN where either has no order.
        left_out: Names that lack a number.
        partial: Names whose number is the mean of some seeds only.
    """

    labels: tuple[str, ...]
    column: str
    paper: tuple[tuple[str, ...], ...]
    ours: tuple[tuple[str, ...], ...]
    kendall_tau: float
    left_out: tuple[str, ...]
    partial: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool | None:
        """Whether both rank alike; None where there is nothing to compare."""
        return None if sum(map(len, self.paper)) < 2 else self.paper == self.ours


@dataclass(frozen=True, kw_only=True)
class PaperComparison:
    """A whole table: what the paper has, what we have, the order of the methods, and notes on our numbers.

    `mark` must stand above all of it, where our numbers must not be compared with the paper's. `unit` is what
    distances were measured in, `mm` or `voxel`; empty where no run says so.
    """

    name: str
    grid: Grid
    seeds: tuple[int, ...]
    lines: tuple[Line, ...]
    orderings: tuple[Ordering, ...]
    notes: tuple[str, ...] = ()
    mark: str = ""
    unit: str = ""

    @property
    def quick(self) -> bool:
        """Whether ours are numbers of a quick grid."""
        return self.mark == MARK

    @property
    def missing(self) -> int:
        """Cells without a number of ours."""
        return sum(math.isnan(cell.mean) for line in self.lines for cell in line.cells)

    @property
    def partial(self) -> int:
        """Cells that are the mean of some seeds only."""
        return sum(cell.partial for line in self.lines for cell in line.cells)

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes that tell the rows apart."""
        several = [axis for axis in self.grid.dimensions if len({line.labels[axis] for line in self.lines}) > 1]
        return tuple(several) or (self.grid.compared,)


def compare(
    name: str, grid: Grid, planned: Planned, notes: Sequence[str] = (), mark: str = "", entries: Sequence[Entry] = ()
) -> PaperComparison:
    """Read the scores of all runs and set them beside the paper's numbers.

    `notes` go below the numbers and `mark` above them; `entries` stand for runs that have no folder here.
    """
    lines, units = [], set()
    for row, jobs in planned:
        printed = grid.printed(row)
        runs = [_RunNumbers(job, find_entry(entries, row, job.config.seed)) for job in jobs]
        units |= {run.unit for run in runs} - {""}
        cells = []
        for column in grid.named_columns:
            mean, std, count = seed_spread([run.value(column) for run in runs])
            paper = printed.get(column.name)
            cells.append(Cell(column=column.name, paper=paper, mean=mean, std=std, count=count, seeds=len(runs)))
        lines.append(Line(labels=row.labels, cells=tuple(cells), jobs=tuple(jobs)))
    return PaperComparison(
        name=name,
        grid=grid,
        seeds=tuple(dict.fromkeys(job.config.seed for _, jobs in planned for job in jobs)),
        lines=tuple(lines),
        orderings=_orderings(grid, planned, lines),
        notes=tuple(notes),
        mark=mark,
        unit=" or ".join(sorted(units)),
    )


class _RunNumbers:
    """The numbers of a run: of its folder, or else of its entry among collected results."""

    def __init__(self, job: Job, entry: Entry | None):
        self._job, self._entry = job, entry
        self._scores = _scores(job)

    @property
    def unit(self) -> str:
        """What distances were measured in; empty where that is not known."""
        if self._scores or self._entry is None:
            return next((score.unit for score in self._scores if score.unit), "")
        return str(self._entry["scores"].get(self._job.conventions[0], {}).get("unit", ""))

    def value(self, column: Column) -> float:
        """Return the number of a column; NaN where there is none."""
        if self._scores or self._entry is None:
            return run_value(self._scores, column)
        value = entry_value(self._entry, column, self._job.conventions[0])
        return 100 * value if column.metric in _SHARES else value


def run_value(scores: Sequence[Score], column: Column) -> float:
    """Return one run's number: the mean over cases, then over classes; NaN is passed over."""
    of_column = [score for score in scores if column.class_name in (None, score.class_name)]
    means = list(means_by("label", of_column, column.metric).values())
    mean = float(np.mean(means)) if means else math.nan
    return 100 * mean if column.metric in _SHARES else mean


def seed_spread(values: Sequence[float]) -> tuple[float, float, int]:
    """Return the mean over seeds, the sample's standard deviation (n - 1), and how many seeds have a number."""
    known = np.array([value for value in values if not math.isnan(value)])
    if not len(known):
        return math.nan, math.nan, 0
    return float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else math.nan, len(known)


def _scores(job: Job) -> list[Score]:
    if job.state != "done":
        return []
    try:
        return Run(job.folder).scores(job.evaluation)
    except AdawacError as error:  # damaged: a missing cell, which the table shows
        log.warning("%s To do so, remove that file and give the same command.", error)
        return []


def _orderings(grid: Grid, planned: Planned, lines: Sequence[Line]) -> tuple[Ordering, ...]:
    """Rank the names of the compared axis by each column that is a mean over classes."""
    groups: dict[tuple[str, ...], list[Line]] = {}
    for (row, _), line in zip(planned, lines, strict=True):
        groups.setdefault(row.without(grid.compared), []).append(line)
    orderings = []
    for number, column in enumerate(grid.named_columns):
        if column.class_name is None:
            for labels, group in groups.items():
                cells = {line.labels[grid.compared]: line.cells[number] for line in group}
                orderings.append(_ordering(labels, column, cells, alone=not grid.paper))
    return tuple(orderings)


def _ordering(labels: tuple[str, ...], column: Column, cells: Mapping[str, Cell], alone: bool) -> Ordering:
    """Rank names by our numbers and by the paper's; `alone` where there is no paper."""
    both = {name: cell for name, cell in cells.items() if not math.isnan(cell.mean if alone else cell.difference)}
    sign = -1 if column.metric in HIGHER_IS_BETTER else 1
    paper = {name: sign * cell.paper.mean for name, cell in both.items() if cell.paper is not None}
    ours = {name: sign * cell.mean for name, cell in both.items()}
    return Ordering(
        labels=labels,
        column=column.name,
        paper=_ranked(paper),
        ours=_ranked(ours),
        kendall_tau=_tau(list(paper.values()), list(ours.values())) if paper else math.nan,
        left_out=tuple(name for name in cells if name not in both),
        partial=tuple(name for name, cell in both.items() if cell.partial),
    )


def _ranked(values: Mapping[str, float]) -> tuple[tuple[str, ...], ...]:
    """Return the names from the lowest value to the highest; those of the same value stand together."""
    ranked = itertools.groupby(sorted(values, key=lambda name: (values[name], name)), key=lambda name: values[name])
    return tuple(tuple(names) for _, names in ranked)


def _tau(first: Sequence[float], second: Sequence[float]) -> float:
    if len(first) < 2:
        return math.nan
    from scipy.stats import kendalltau

    return float(kendalltau(first, second).statistic)
