"""Scores of every class and patient, run beside run: a point is a patient, a line joins the same patient's points."""

import itertools
import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adawac.errors import ConfigError, RunError
from adawac.evaluation.comparison import check_units
from adawac.evaluation.statistics import by_patient
from adawac.figures.display_names import numbered, plain, run_labels
from adawac.figures.picture import Picture, legend_below, new_figure, set_title, with_results, write_reason
from adawac.figures.style import Style
from adawac.runs import Run, Score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_METRICS = {"dice": "DSC (↑ better)", "hd95": "HD95 (↓ better)"}
_ALL = "all classes"
_BAND = 0.8  # of a class's row is filled

ByClass = dict[int | None, dict[str, float]]
"""Label → patient → score; None is all classes together."""


def scores(runs: Sequence[Run], style: Style, *, evaluation: str | None = None) -> Picture:
    """Draw how Dice and HD95 are distributed over patients, class by class.

    The scores are those of an `evaluation`, by default of one that the runs have in common.
    """
    asked = len(runs)
    name, runs = with_results(runs, "scores", evaluation)
    of_runs = [run.scores(name) for run in runs]
    _check_datasets(of_runs)
    units = [(str(run.folder), score.unit) for run, scores in zip(runs, of_runs, strict=True) for score in scores]
    check_units({folder: unit for folder, unit in units if unit})
    metrics = [metric for metric in _METRICS if any(score.metric == metric for scores in of_runs for score in scores)]
    if not metrics:
        raise RunError(
            f"Expected scores of {' or '.join(_METRICS)} in the evaluation {name!r} of {runs[0].folder}, but got none. "
            f"Make them: {shlex.join(['adawac', 'evaluate', str(runs[0].folder)])}"
        )
    labels = run_labels(runs, 22)
    rows = _rows(of_runs)
    figure = new_figure(style, 0.95 + len(rows) * max(0.26, 0.13 * len(runs)))
    grid = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    tables = {metric: [_by_class(scores, metric, rows) for scores in of_runs] for metric in metrics}
    for axes, metric in zip(grid, metrics, strict=True):
        _panel(axes, style, tables[metric], rows)
        unit = next((score.unit for scores in of_runs for score in scores if score.metric == metric and score.unit), "")
        axes.set_xlabel(_METRICS[metric].replace(" (", f", {unit} (" if unit else " ("))
        if metric == "dice":
            axes.set_xlim(right=1.02)
    grid[0].set_yticks(range(len(rows)), list(rows.values()))
    grid[0].set_ylim(len(rows) - 0.5, -0.5)
    legend_below(figure, *_legend(style, labels), 4 if style.wide else 2)

    patients = {score.patient for scores in of_runs for score in scores}
    title = f"Scores of {len(patients)} patients, evaluation {name}"
    missing = asked - len(runs)
    set_title(figure, style, title, f"{missing} of {asked} runs not evaluated" if missing else "")
    return Picture(figure=figure, title=title, alt=_describe(tables, labels), style=style)


def _check_datasets(of_runs: Sequence[Sequence[Score]]) -> None:
    """Refuse scores of several data sets: classes differ, and patients with the same name are different people."""
    names = {score.dataset: None for scores in of_runs for score in scores}
    if len(names) > 1:
        listed = " and ".join(plain(name, 40) or "an unknown one" for name in names)
        raise ConfigError(f"Expected runs tested on one data set, but got {listed}. Draw a figure of each.")


def _by_class(scores: Sequence[Score], metric: str, rows: Iterable[int | None]) -> ByClass:
    """Return the score of each class and patient: the mean over the patient's cases, as far as they have a number."""
    finite = [score for score in scores if np.isfinite(score.value)]
    return {label: by_patient(finite, metric, label) for label in rows}


def _rows(of_runs: Sequence[Sequence[Score]]) -> dict[int | None, str]:
    """Return the names of the classes by label; None, which is all of them together, comes first."""
    names = {score.label: score.class_name for scores in reversed(of_runs) for score in scores}
    labels = sorted(names)
    shown = numbered([_ALL, *(plain(names[label], 16) for label in labels)])
    return dict(zip([None, *labels], shown, strict=True))


def _panel(axes: "Axes", style: Style, tables: Sequence[ByClass], rows: Iterable[int | None]) -> None:
    """Draw for each class and run the box from quartile to quartile, the median, and the patients."""
    patients = sorted({patient for table in tables for values in table.values() for patient in values})
    if not patients:
        write_reason(axes, style, "every case was left out", 0.3)
        return
    band = _BAND / len(tables)
    spread = dict(zip(patients, np.linspace(-0.28, 0.28, len(patients)) * band, strict=True))
    faint = float(np.clip(12 / len(patients), 0.3, 0.8))
    for row, label in enumerate(rows):
        heights = [row + (number + 0.5) * band - _BAND / 2 for number in range(len(tables))]
        points = [
            {patient: (value, height + spread[patient]) for patient, value in table[label].items()}
            for table, height in zip(tables, heights, strict=True)
        ]
        _join(axes, points, style.muted, 0.7 * faint)
        for number, (of_run, height) in enumerate(zip(points, heights, strict=True)):
            if not of_run:
                continue
            x, y = zip(*of_run.values(), strict=True)
            low, middle, high = np.percentile(x, [25, 50, 75])
            (colour, marker), half = style.series(number), 0.4 * band
            axes.barh(height, high - low, left=low, height=2 * half, color=colour, alpha=0.3, linewidth=0, zorder=2)
            axes.vlines(middle, height - half, height + half, colors=colour, linewidths=1.6, zorder=4)
            axes.scatter(x, y, s=5, marker=marker, color=colour, alpha=faint, linewidths=0, zorder=3)
    axes.axhline(0.5, color=style.muted, linewidth=0.6)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.04)


def _join(axes: "Axes", points: Sequence[dict[str, tuple[float, float]]], colour: str, faint: float) -> None:
    """Draw a line between the points of one patient in neighbouring runs."""
    from matplotlib.collections import LineCollection

    segments = [
        [first[patient], second[patient]]
        for first, second in itertools.pairwise(points)
        for patient in sorted(first.keys() & second.keys())
    ]
    axes.add_collection(LineCollection(segments, colors=colour, linewidths=0.35, alpha=faint, zorder=1))


def _legend(style: Style, labels: Sequence[str]) -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    looks = [style.series(number) for number in range(len(labels))]
    runs = [Line2D([], [], color=colour, marker=marker, linestyle="") for colour, marker in looks]
    return [*runs, Patch(facecolor=style.muted, alpha=0.4)], [*labels, "quartiles; line: median; point: patient"]


def _describe(tables: dict[str, list[ByClass]], labels: Sequence[str]) -> str:
    parts = []
    for metric, of_runs in tables.items():
        for label, table in zip(labels, of_runs, strict=True):
            values = list(table[None].values())
            if values:
                parts.append(f"median {metric} of {label} {np.median(values):.3g} over {len(values)} patients")
    return f"Distribution of scores over patients by class. Over all classes: {'; '.join(parts)}."
