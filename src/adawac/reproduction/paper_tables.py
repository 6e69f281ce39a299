"""Our numbers beside the paper's, cell by cell, and whether they order the methods alike."""

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adawac.errors import AdawacError
from adawac.evaluation.statistics import HIGHER_IS_BETTER
from adawac.reproduction.grids import Column, Grid, Number, Row
from adawac.reproduction.jobs import Job
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
        tau: Kendall's τ-b of the two; NaN where either has no order.
        left_out: Names that lack a number.
        partial: Names whose number is the mean of some seeds only.
    """

    labels: tuple[str, ...]
    column: str
    paper: tuple[tuple[str, ...], ...]
    ours: tuple[tuple[str, ...], ...]
    tau: float
    left_out: tuple[str, ...]
    partial: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool | None:
        """Whether both rank alike; None where there is nothing to compare."""
        return None if sum(map(len, self.paper)) < 2 else self.paper == self.ours


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A whole table: what the paper has, what we have, the order of the methods, and notes on our numbers.

    `mark` must stand above all of it, where our numbers are not to be held against the paper's. `unit` is what
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
        several = [axis for axis in self.grid.axes if len({line.labels[axis] for line in self.lines}) > 1]
        return tuple(several) or (self.grid.compared,)


def compare(
    name: str, grid: Grid, planned: Sequence[tuple[Row, Sequence[Job]]], notes: Sequence[str] = (), mark: str = ""
) -> Comparison:
    """Read the scores of all runs and set them beside the paper's numbers; `notes` go below these, `mark` above."""
    lines, units = [], set()
    for row, jobs in planned:
        printed = grid.printed(row)
        scores = [_scores(job) for job in jobs]
        units |= {score.unit for one in scores for score in one} - {""}
        cells = tuple(_cell(column, printed.get(column.name), scores) for column in grid.named_columns)
        lines.append(Line(labels=row.labels, cells=cells, jobs=tuple(jobs)))
    seeds = tuple(job.config.seed for job in planned[0][1])
    orderings = _orderings(grid, planned, lines)
    return Comparison(
        name=name,
        grid=grid,
        seeds=seeds,
        lines=tuple(lines),
        orderings=orderings,
        notes=tuple(notes),
        mark=mark,
        unit=" or ".join(sorted(units)),
    )


def _cell(column: Column, paper: Number | None, runs: Sequence[Sequence[Score]]) -> Cell:
    mean, std, count = seed_spread([run_value(scores, column) for scores in runs])
    return Cell(column=column.name, paper=paper, mean=mean, std=std, count=count, seeds=len(runs))


def run_value(scores: Sequence[Score], column: Column) -> float:
    """Return one run's number: the mean over cases, then over classes; NaN is passed over."""
    values: dict[int, list[float]] = {}
    for one in scores:
        if one.metric == column.metric and column.class_name in (None, one.class_name) and not math.isnan(one.value):
            values.setdefault(one.label, []).append(one.value)
    if not values:
        return math.nan
    mean = float(np.mean([np.mean(own) for own in values.values()]))
    return 100 * mean if column.metric in _SHARES else mean


def seed_spread(values: Sequence[float]) -> tuple[float, float, int]:
    """Return the mean over seeds, the sample's standard deviation (n - 1), and how many seeds have a number."""
    there = np.array([value for value in values if not math.isnan(value)])
    if not len(there):
        return math.nan, math.nan, 0
    return float(there.mean()), float(there.std(ddof=1)) if len(there) > 1 else math.nan, len(there)


def _scores(job: Job) -> list[Score]:
    if job.state != "done":
        return []
    try:
        return Run(job.folder).scores(job.evaluation)
    except AdawacError as error:  # damaged: a missing cell, which the table shows
        log.warning("%s To do so, remove that file and give the same command.", error)
        return []


def _orderings(grid: Grid, planned: Sequence[tuple[Row, Sequence[Job]]], lines: Sequence[Line]) -> tuple[Ordering, ...]:
    """Rank the names of the compared axis by each column that is a mean over classes."""
    groups: dict[tuple[str, ...], list[Line]] = {}
    for (row, _), line in zip(planned, lines, strict=True):
        groups.setdefault(row.without(grid.compared), []).append(line)
    found = []
    for place, column in enumerate(grid.named_columns):
        if column.class_name is None:
            for labels, group in groups.items():
                cells = {line.labels[grid.compared]: line.cells[place] for line in group}
                found.append(_ordering(labels, column, cells, alone=not grid.paper))
    return tuple(found)


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
        tau=_tau(list(paper.values()), list(ours.values())) if paper else math.nan,
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

    found: Any = kendalltau(first, second)
    return float(found.statistic)
