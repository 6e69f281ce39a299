"""The picture at the head of a study's page: the DSC of every run."""

import statistics
import textwrap
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from adawac.config import TrainConfig
from adawac.figures.picture import Picture
from adawac.figures.style import Style
from adawac.reproduction.collected_results import Entry
from studies.layout import Block, Group, Layout
from studies.page import mean_dice, overview_text

STYLE = Style(width="text")
_LEAST = 8.0  # points of DSC that an axis shows
_COLOURS = {"baseline": STYLE.muted, "pair": STYLE.acr, "adawac": STYLE.ce}  # what all others are held against
_LINE, _REST = 0.165, 0.5  # inches: a row, and what a panel has besides


class Line(NamedTuple):
    """A row of a table, or without scores the title of one."""

    label: str
    scores: dict[int, float]
    """DSC in %, by seed."""
    method: str = ""


def draw_overview(layout: Layout, entries: list[Entry], path: Path | None = None) -> None:
    """Draw what was scored on the test cases, a panel for each group; candidates, which were not, are left out."""
    panels = {group.title: list(_lines(group, entries)) for group in layout.groups}
    panels = {title: lines for title, lines in panels.items() if lines}
    if not panels:
        return
    heights = [_LINE * len(lines) for lines in panels.values()]
    with STYLE.applied():
        figure = Figure(figsize=(STYLE.inches, sum(heights) + _REST * len(panels)), layout="constrained")
        grid = figure.subplots(len(panels), height_ratios=heights, squeeze=False)
        for axes, (title, lines) in zip(grid[:, 0], panels.items(), strict=True):
            _draw(axes, lines)
            axes.set_title(title, fontweight="bold")
        axes.set_xlabel("DSC, %, mean over all classes and test cases")
        picture = Picture(figure=figure, title="DSC of every run", alt=overview_text(layout), style=STYLE)
        save_small(picture, path or layout.overview)


def save_small(picture: Picture, path: Path) -> None:
    """Write a picture for a page in few bytes."""
    picture.save(path)
    with Image.open(path) as drawn:  # a few colours, and their way into white
        drawn.convert("RGB").quantize(64).save(path, optimize=True)


def _lines(group: Group, entries: list[Entry]) -> Iterator[Line]:
    """Yield the lines of a group from top to bottom."""
    for block in group.blocks:
        if not _begun(block, entries):
            continue
        yield Line(block.title.replace("`", ""), {})
        for row, label in block.labels.items():
            runs = [entry for entry in entries if entry["row"] == row]
            if runs:
                scores = {run["seed"]: mean_dice(run) for run in runs}
                yield Line(label.replace("`", ""), scores, _method(runs[0]))


def _method(entry: Entry) -> str:
    return entry["settings"].get("method.name", TrainConfig().method.name)


def _begun(block: Block, entries: list[Entry]) -> bool:
    on_test = {name for name, row in block.rows.items() if row.score == "test"}
    return any(entry["row"] in on_test for entry in entries)


def _draw(axes: Axes, lines: list[Line]) -> None:
    for height, line in enumerate(lines):
        if line.scores:
            _draw_row(axes, height, line)
        else:
            _draw_reference(axes, height + 1, list(takewhile(lambda row: row.scores, lines[height + 1 :])))
    axes.set_yticks(range(len(lines)), [textwrap.shorten(line.label, 62, placeholder=" …") for line in lines])
    for tick, line in zip(axes.get_yticklabels(), lines, strict=True):
        tick.set_fontstyle("normal" if line.scores else "italic")
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_xlim(*_range([score for line in lines for score in line.scores.values()]))
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines[["left", "right", "top"]].set_visible(False)


def _range(scores: list[float]) -> tuple[float, float]:
    """Return what an axis shows: some room around all scores, and never so little that chance looks like a result."""
    middle, span = (max(scores) + min(scores)) / 2, max(scores) - min(scores)
    half = max(1.08 * span, _LEAST) / 2
    return middle - half, middle + half


def _draw_row(axes: Axes, height: int, line: Line) -> None:
    mean, colour = statistics.mean(line.scores.values()), _COLOURS.get(line.method, STYLE.series(2)[0])
    for seed, score in line.scores.items():
        filled = colour if seed == min(line.scores) else STYLE.paper
        axes.plot(score, height, "o", color=colour, markerfacecolor=filled, markersize=3.4, zorder=3)
    if len(line.scores) > 1:
        axes.plot([mean, mean], [height - 0.36, height + 0.36], color=colour, linewidth=1.4, zorder=2)
    axes.annotate(f"{mean:.1f}", (1.01, height), xycoords=("axes fraction", "data"), va="center", color=STYLE.muted)


def _draw_reference(axes: Axes, height: int, rows: list[Line]) -> None:
    """Draw the first row's mean, over the seeds that can be compared, through all rows of a table."""
    shared = set.intersection(*(set(row.scores) for row in rows))
    if shared:
        mean = statistics.mean(rows[0].scores[seed] for seed in shared)
        axes.plot([mean, mean], [height - 0.5, height + len(rows) - 0.5], color=STYLE.muted, linewidth=0.6, zorder=1)
