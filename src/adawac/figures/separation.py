"""How well beta separates label-sparse from label-dense samples, and how far the paper's Assumption 1 holds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adawac.figures.display_names import progress, run_labels
from adawac.figures.picture import Picture, count_whole, legend_below, new_figure, set_title, why_empty, write_reason
from adawac.figures.style import Array, Style
from adawac.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURES = ("beta_auc", "separated_sparse", "separated_dense", "spread_ce", "spread_ac")

_TITLES = ("β (median, quartiles)", "AUC of β", "share separated", "spread (SD / mean)")

Measures = dict[str, Array]


def separation(runs: Sequence[Run], style: Style) -> Picture:
    """Draw, over epochs: beta of both groups, its area under the curve, the share that is separated, the spreads.

    One run has four panels in two rows; several runs have a column each.
    """
    for run in runs:
        run.require("samples.csv", "history.bin")
    labels = run_labels(runs, 24)
    alone = len(runs) == 1
    rows, columns = ((1, 4) if style.wide else (2, 2)) if alone else (4, len(runs))
    figure = new_figure(style, 0.75 + (1.35 if alone else 1.15) * rows)
    grid = figure.subplots(rows, columns, sharex="col", sharey=False if alone else "row", squeeze=False)
    panels = grid.reshape(1, 4) if alone else grid.T
    of_runs = [_draw_run(of_run, style, run, 1 / columns) for run, of_run in zip(runs, panels, strict=True)]
    for of_run in panels:
        of_run[-1].set_ylim(bottom=0)  # when all of them are drawn: they may share the axis
    for axes in grid[-1]:
        axes.set_xlabel("epoch")
    if alone:
        for axes, title in zip(panels[0], _TITLES, strict=True):
            axes.set_title(title)
    else:
        for axes, label in zip(panels[:, 0], labels, strict=True):
            axes.set_title(label, weight="bold")
        for axes, title in zip(panels[0], _TITLES, strict=True):
            axes.set_ylabel(title)
    _legend(figure, style)

    title = f"β of label-sparse and label-dense samples{': ' + labels[0] if alone else ''}"
    far = [f"{label}: {progress(run)}" for run, label in zip(runs, labels, strict=True) if progress(run)]
    set_title(figure, style, title, *far)
    return Picture(figure=figure, title=title, alt=_describe(labels, of_runs), style=style)


def measures(run: Run) -> Measures:
    """Return the five numbers of every epoch, as they were logged; where they were not, from the history."""
    epochs = run.history.epochs
    logged = {row["epoch"]: row for row in run.metrics}
    if all(all(name in logged.get(int(epoch), {}) for name in MEASURES) for epoch in epochs):
        rows = [logged[int(epoch)] for epoch in epochs]
    else:
        rows = _computed(run)
    return {name: np.array([np.nan if row[name] is None else row[name] for row in rows]) for name in MEASURES}


def _computed(run: Run) -> list[dict[str, Any]]:
    from adawac.runs.history import separation as of_epoch

    assert run.samples is not None  # it was required
    sparse = run.samples.label_sparse
    fields = [run.history.read(name, rows=slice(len(sparse))) for name in ("ell_ce", "reg_ac", "beta")]
    rows = []
    for values in zip(*fields, strict=True):
        seen = np.isfinite(values[0])
        ell_ce, reg_ac, beta = (value[seen] for value in values)
        rows.append(of_epoch(ell_ce, reg_ac, beta, sparse[seen]))
    return rows


def quartiles(values: Array) -> Array:
    """Return (3, E): the quartiles of each epoch's samples, of those seen; NaN where there are none."""
    result = np.full((3, len(values)), np.nan)
    for epoch, row in enumerate(values):
        seen = row[np.isfinite(row)]
        if seen.size:
            result[:, epoch] = np.percentile(seen, [25, 50, 75])
    return result


def _draw_run(panels: Sequence["Axes"], style: Style, run: Run, share: float) -> Measures:
    assert run.samples is not None  # it was required
    sparse, dense = run.samples.label_sparse, run.samples.label_dense
    epochs = run.history.epochs
    read = {name: run.history.read(name, rows=slice(len(sparse))) for name in ("beta", "reg_ac")}
    measured = measures(run)
    no_beta, no_acr = why_empty(read["beta"], "β"), why_empty(read["reg_ac"], "ACR")
    one_sided = f"There are no label-{'sparse' if dense.any() else 'dense'} samples to tell apart."
    no_auc = no_beta or (None if sparse.any() and dense.any() else one_sided)
    margin = max(0.5, 0.02 * float(epochs[-1] - epochs[0]))
    for axes in panels:
        count_whole(axes.xaxis, 4)
        axes.set_xlim(epochs[0] - margin, epochs[-1] + margin)
    of_beta, auc, sides, spread = panels
    for axes in (of_beta, auc, sides):
        axes.set(ylim=(-0.03, 1.03), yticks=[0, 0.5, 1])
    if no_beta:
        write_reason(of_beta, style, no_beta, 0.75 * share)
    else:
        _bands(of_beta, style, epochs, read["beta"], sparse, dense)
    if no_auc:
        write_reason(auc, style, no_auc, 0.75 * share)
    else:
        auc.axhline(0.5, color=style.muted, linewidth=0.7, linestyle=":")
        _line(auc, epochs, measured["beta_auc"], style.ink, "-")
    if no_acr:
        write_reason(sides, style, no_acr, 0.75 * share)
    else:
        _line(sides, epochs, measured["separated_sparse"], style.sparse, "-")
        _line(sides, epochs, measured["separated_dense"], style.dense, "--")
        _line(spread, epochs, measured["spread_ac"], style.acr, "--")
    _line(spread, epochs, measured["spread_ce"], style.ce, "-")
    return measured


def _bands(axes: "Axes", style: Style, epochs: Array, beta: Array, sparse: Array, dense: Array) -> None:
    axes.axhline(0.5, color=style.muted, linewidth=0.7, linestyle=":")
    for members, colour, line in ((sparse, style.sparse, "-"), (dense, style.dense, "--")):
        if members.any():
            low, middle, high = quartiles(beta[:, members])
            axes.fill_between(epochs, low, high, color=colour, alpha=0.25, linewidth=0)
            _line(axes, epochs, middle, colour, line)


def _line(axes: "Axes", epochs: Array, values: Array, colour: str, style: str) -> None:
    axes.plot(epochs, values, color=colour, linestyle=style, marker="o" if len(epochs) == 1 else "")


def _legend(figure: Any, style: Style) -> None:
    from matplotlib.lines import Line2D

    entries: dict[str, tuple[str, Any]] = {
        "label-sparse; separated: CE < ACR": (style.sparse, "-"),
        "label-dense; separated: CE > ACR": (style.dense, "--"),
        "CE": (style.ce, "-"),
        "ACR": (style.acr, "--"),
    }
    handles = [Line2D([], [], color=colour, linestyle=line) for colour, line in entries.values()]
    legend_below(figure, handles, list(entries), 4 if style.wide else 2)


def _describe(labels: Sequence[str], of_runs: Sequence[Measures]) -> str:
    words = {
        "beta_auc": "an area under the curve of {:.3g}",
        "separated_sparse": "{:.0%} of the label-sparse samples with CE < ACR",
        "separated_dense": "{:.0%} of the label-dense ones with CE > ACR",
        "spread_ce": "a spread of CE of {:.3g}",
        "spread_ac": "a spread of ACR of {:.3g}",
    }
    parts = []
    for label, of_run in zip(labels, of_runs, strict=True):
        last = {name: values[-1] for name, values in of_run.items()}
        known = [text.format(last[name]) for name, text in words.items() if np.isfinite(last[name])]
        parts.append(f"{label} ends with {', '.join(known)}")
    return f"Weights of label-sparse and label-dense samples over epochs: {'; '.join(parts)}."
