"""CE against ACR over epochs, slice by slice: label-sparse ones are learned at once, label-dense ones stay hard."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from adawac.data.cases import SampleTable
from adawac.errors import ConfigError, RunError, check_known
from adawac.figures.display_names import plain, progress, run_labels
from adawac.figures.picture import Picture, count_whole, legend_below, new_figure, set_title, write_reason
from adawac.figures.style import Array, Style
from adawac.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANELS = 4


def curves(
    run: Run,
    style: Style,
    *,
    case: str | None = None,
    slices: Sequence[int] | None = None,
    scale: Literal["log", "linear"] = "log",
) -> Picture:
    """Draw cross-entropy and consistency of slices of one case, from the one with least foreground to the densest.

    By default the case is the one whose slices span most, from empty to dense, and four of its slices are drawn, from
    the emptiest to the densest. On a logarithmic scale of the losses, a loss of exactly 0 runs off the panel.
    """
    if scale not in ("log", "linear"):
        raise ConfigError(f"Expected a log or linear scale, but got {scale!r}. Choose one.")
    run.require("samples.csv", "history.bin")
    table = run.samples
    assert table is not None  # it was required
    foreground = 1 - np.nan_to_num(table.fraction[:, 0], nan=1.0)
    if case is not None:
        check_known(case, table.cases, f"a case of {run.folder}", RunError)
    case = _widest_case(table, foreground) if case is None else case
    rows = _rows(run, table, case, foreground, slices)

    columns = min(len(rows), 4 if style.wide else 2)
    height = math.ceil(len(rows) / columns)
    figure = new_figure(style, 0.75 + 1.2 * height)
    grid = figure.subplots(height, columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(rows) :]:
        axes.set_visible(False)
    for axes, row in zip(grid.flat, rows, strict=False):
        _panel(axes, style, run, int(row))
        axes.set_title(f"slice {table.slice[row]}: {_percent(foreground[row])} foreground")
        count_whole(axes.xaxis, 5)
    for index, axes in enumerate(grid.flat[: len(rows)]):
        if index + columns >= len(rows):
            axes.set_xlabel("epoch")
            axes.tick_params(labelbottom=True)
        if index % columns == 0:
            axes.set_ylabel("loss")
    _set_scale(list(grid.flat[: len(rows)]), scale)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    legend_below(figure, handles, labels, 4)

    title = f"{run_labels([run])[0]}: slices of {plain(case)}, sparse to dense"
    set_title(figure, style, title, progress(run))
    return Picture(figure=figure, title=title, alt=_describe(run, table, rows, foreground), style=style)


def _widest_case(table: SampleTable, foreground: Array) -> str:
    """Choose the case with both kinds of slices, if there is one, and of those the one with the densest slice."""

    def merit(case: str) -> tuple[bool, float]:
        shares = foreground[table.case == case]
        return bool((shares == 0).any() and (shares > 0).any()), float(shares.max())

    return max(table.cases, key=merit)


def _rows(run: Run, table: SampleTable, case: str, foreground: Array, slices: Sequence[int] | None) -> Array:
    """Return the rows of the slices to draw, by rising foreground."""
    rows = np.flatnonzero(table.case == case)
    if slices is not None:
        known = table.slice[rows]
        for number in slices:
            if number not in known:
                raise RunError(
                    f"Expected slices that {run.folder} was trained on, but case {case!r} has no {number}. "
                    f"It has {known.min()} to {known.max()}{'' if len(known) > np.ptp(known) else ', not all of them'}."
                )
        rows = rows[np.isin(known, np.asarray(slices))]
    rows = rows[np.lexsort((table.slice[rows], foreground[rows]))]
    if slices is not None or len(rows) <= _PANELS:
        return rows
    empty, dense = rows[foreground[rows] == 0], rows[foreground[rows] > 0]
    chosen = empty[len(empty) // 2 :][:1]  # one in the middle of the empty ones, away from the organs
    rest = dense if len(dense) >= _PANELS - len(chosen) else rows
    evenly = np.linspace(0, len(rest) - 1, _PANELS - len(chosen)).round().astype(int)
    return np.concatenate([chosen, rest[evenly]])


def _panel(axes: "Axes", style: Style, run: Run, row: int) -> None:
    epochs = run.history.epochs
    ce, acr = (run.history.read(name, rows=[row])[:, 0] for name in ("ell_ce", "reg_ac"))
    marker = "o" if len(epochs) == 1 else ""
    if np.isfinite(acr).any() and acr.any():
        filled: dict[str, Any] = {"interpolate": True, "alpha": 0.18, "linewidth": 0}
        axes.fill_between(epochs, ce, acr, where=ce >= acr, color=style.ce, **filled)
        axes.fill_between(epochs, ce, acr, where=ce < acr, color=style.acr, **filled)
        axes.plot(epochs, acr, color=style.acr, linestyle="--", marker=marker, label="augmentation consistency (ACR)")
    axes.plot(epochs, ce, color=style.ce, marker=marker, label="cross-entropy (CE)")
    if not np.isfinite(ce).any():
        write_reason(axes, style, "not seen in training yet", 0.3)


def _set_scale(panels: Sequence["Axes"], scale: str) -> None:
    """Give the losses of all panels the same scale, of four decades at most."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    losses = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for axes in panels for line in axes.lines])
    losses = losses[np.isfinite(losses) & (losses > 0)]
    if scale == "linear" or not losses.size:
        panels[0].set_ylim(bottom=0)
        return
    panels[0].set_yscale("log", nonpositive="clip")
    panels[0].set_ylim(max(losses.min() / 1.3, losses.max() / 1e4), losses.max() * 1.3)
    for axes in panels:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(which="minor", length=0)


def _percent(share: float) -> str:
    if not share:
        return "no"
    return f"{100 * share:.2g} %" if share >= 1e-4 else "<0.01 %"


def _describe(run: Run, table: SampleTable, rows: Array, foreground: Array) -> str:
    last = {name: run.history.read(name, slice(-1, None), rows.tolist())[0] for name in ("ell_ce", "reg_ac")}
    parts = [
        f"slice {table.slice[row]} ({_percent(foreground[row])} foreground) ends with CE {ce:.3g} and ACR {acr:.3g}"
        for row, ce, acr in zip(rows, last["ell_ce"], last["reg_ac"], strict=True)
    ]
    return f"Cross-entropy and augmentation consistency over {len(run.history)} epochs: {'; '.join(parts)}."
