"""CE, beta and ACR of the whole training: one column per sample, one row per epoch."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from adawac.data.cases import SampleTable
from adawac.figures.display_names import numbered, plain, progress, run_labels
from adawac.figures.picture import (
    DPI,
    Picture,
    count_whole,
    legend_below,
    new_figure,
    set_title,
    why_empty,
    write_reason,
)
from adawac.figures.style import UNSEEN, Array, Style, gradient
from adawac.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

_PANELS = {
    "ell_ce": ("cross-entropy", "CE"),
    "beta": ("weight of cross-entropy", "β"),
    "reg_ac": ("augmentation consistency", "ACR"),
}
_CASE, _LIMIT, _LIGHT = "#000000", "#A000C8", "#D0D0D0"
_WIDTH = 0.72  # of the figure's width is a panel's
_LEAST_ROOM = 5.0  # points that a case needs for lines across the map


class Arrangement(NamedTuple):
    """The order of the samples, and where the lines between them are.

    Attributes:
        order: (n,) rows of the table, by case and slice.
        cases: The cases, in that order.
        starts: Where each case begins.
        limits: Where, inside a case, slices with foreground begin or end.
    """

    order: npt.NDArray[np.int64]
    cases: tuple[str, ...]
    starts: npt.NDArray[np.int64]
    limits: npt.NDArray[np.int64]


def arrange(table: SampleTable) -> Arrangement:
    """Order samples by case, as the table has them, and by slice."""
    number_of = {case: number for number, case in enumerate(table.cases)}
    numbers = np.array([number_of[case] for case in table.case.tolist()], dtype=np.int64)
    order = np.lexsort((table.slice, numbers))
    numbers, sparse = numbers[order], table.label_sparse[order]
    changes = numbers[1:] != numbers[:-1]
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1]).astype(np.int64)
    limits = np.flatnonzero((sparse[1:] != sparse[:-1]) & ~changes) + 1
    return Arrangement(order, table.cases, starts, limits)


def weights(run: Run, style: Style) -> Picture:
    """Draw cross-entropy, weights and consistency of all samples and epochs as three stacked heat maps."""
    run.require("samples.csv", "history.bin")
    table = run.samples
    assert table is not None  # it was required
    order = arrange(table)
    epochs, values = _read(run, order.order)
    n = len(order.order)
    most = int(_WIDTH * style.inches * DPI), DPI  # pixels of a panel
    empty = {name: why_empty(field, _PANELS[name][1]) for name, field in values.items()}
    norm = _log_norm(*(values[name] for name in ("ell_ce", "reg_ac") if empty[name] is None))

    figure = new_figure(style, 4.6 if style.wide else 4.2)
    crowded = _room(style, order) < _LEAST_ROOM  # lines across the maps would hide them
    panels = _axes(figure, ruler=crowded)
    ruled = panels[3:]
    steps = (1, 1)
    for axes, (name, (title, short)) in zip(panels, _PANELS.items(), strict=False):
        axes.set(title=f"{title} ({short})", ylabel="epoch", ylim=(epochs[0] - 0.5, epochs[-1] + 0.5))
        count_whole(axes.yaxis, 4)
        if (reason := empty[name]) is not None:
            write_reason(axes, style, reason)
            continue
        means, steps = block_means(values[name], most)
        _heat_map(axes, means, steps, epochs, None if name == "beta" else norm)
        ruled += [] if crowded else [axes]
    for axes in ruled:
        _lines(axes, style, order, 0.5 if crowded else 0.0)
    for axes in panels[:-1]:
        axes.tick_params(axis="x", length=0, labelbottom=False)
    panels[-1].set_xlim(0, n)
    _label_samples(panels[-1], style, order, n, steps[1])
    _legend(figure, ruled, style, bool(np.isnan(values["ell_ce"]).any()))

    title = f"{run_labels([run])[0]}: {n} samples × {len(epochs)} epochs"
    set_title(figure, style, title, progress(run))
    return Picture(figure=figure, title=title, alt=_describe(table, order, values), style=style)


def _axes(figure: "Figure", ruler: bool) -> "list[Axes]":
    """Return the three panels, and below them a low one for lines if `ruler`."""
    rows = 4 if ruler else 3
    panels: list[Axes] = list(figure.subplots(rows, 1, sharex=True, height_ratios=[1, 1, 1, 0.1][:rows]))
    for axes in panels:
        axes.grid(visible=False)
    for axes in panels[3:]:
        axes.set(yticks=[], facecolor=_LIGHT)
        axes.spines[:].set_visible(False)
    return panels


def _read(run: Run, order: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], dict[str, Array]]:
    """Return every epoch from the first to the last, and the fields on that grid; NaN where nothing was seen."""
    known = run.history.epochs
    epochs = np.arange(known[0], known[-1] + 1)
    values = {}
    for name in _PANELS:
        values[name] = np.full((len(epochs), len(order)), np.nan, dtype=np.float32)
        values[name][known - known[0]] = run.history.read(name, rows=order)
    return epochs, values


def block_means(values: Array, most: tuple[int, int]) -> tuple[Array, tuple[int, int]]:
    """Return the means of blocks of neighbours, so that no more than `most` (columns, rows) are left, and their size.

    NaN is ignored. Blocks are (epochs, samples); the last ones may be smaller.
    """
    steps = tuple(-(-length // limit) for length, limit in zip(values.shape, most[::-1], strict=True))
    if steps == (1, 1):
        return values, (1, 1)
    sums, counts = np.nan_to_num(values, nan=0.0).astype(np.float64), np.isfinite(values).astype(np.float64)
    for axis, step in enumerate(steps):
        starts = np.arange(0, values.shape[axis], step)
        sums, counts = (np.add.reduceat(array, starts, axis=axis) for array in (sums, counts))
    means = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    return means.astype(np.float32), (steps[0], steps[1])


def _log_norm(*fields: Array) -> "Normalize":
    """Return one logarithmic scale for CE and ACR, so that they can be compared; the outermost percent is cut off."""
    from matplotlib.colors import LogNorm

    seen = np.concatenate(
        [field[np.isfinite(field) & (field > 0)] for field in fields] or [np.ones(1, dtype=np.float32)]
    )
    low, high = np.percentile(seen, [1, 99]) if seen.size else (0.1, 1.0)
    return LogNorm(low, high if high > low else low * 1.01, clip=True)


def _heat_map(axes: "Axes", means: Array, steps: tuple[int, int], epochs: Array, norm: Any) -> None:
    from matplotlib.colors import Normalize
    from matplotlib.ticker import FuncFormatter, LogLocator

    rows, columns = means.shape
    bottom = epochs[0] - 0.5
    image = axes.imshow(
        np.ma.masked_invalid(means),
        cmap=gradient("sequential" if norm else "diverging"),
        norm=norm or Normalize(0, 1),
        extent=(0, columns * steps[1], bottom, bottom + rows * steps[0]),
        origin="lower",
        aspect="auto",
        interpolation="none",
    )
    axes.set_ylim(bottom, epochs[-1] + 0.5)  # the last block may reach beyond
    bar = axes.figure.colorbar(image, ax=axes, pad=0.015, aspect=11, fraction=0.1, extend="both" if norm else "neither")
    bar.outline.set_linewidth(0.4)
    bar.ax.tick_params(which="minor", length=0)
    if norm is None:
        bar.set_ticks([0, 0.5, 1], labels=["0", "½", "1"])
    else:
        subs = (1.0,) if norm.vmax / norm.vmin >= 100 else (1.0, 2.0, 5.0)
        bar.ax.yaxis.set_major_locator(LogLocator(subs=subs, numticks=8))
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


def _lines(axes: "Axes", style: Style, order: Arrangement, lowest: float) -> None:
    """Draw the lines between cases and, from `lowest` up, at the limits of foreground; thinner where there are many."""
    width = min(0.9, 0.1 * _room(style, order))
    high: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "linewidths": max(0.35, width)}
    if len(order.limits):
        axes.vlines(order.limits, lowest, 1, colors=_LIMIT, label="limit of foreground", **high)
    if len(order.starts) > 1:
        axes.vlines(order.starts[1:], 0, 1, colors=_CASE, label="case boundary", **high)


def _room(style: Style, order: Arrangement) -> float:
    """Return how many points of a panel's width a case has."""
    return _WIDTH * style.inches * 72 / len(order.starts)


def _label_samples(axes: "Axes", style: Style, order: Arrangement, n: int, step: int) -> None:
    """Name the cases below the last panel where there is room for it, otherwise count the samples."""
    ends = np.append(order.starts[1:], n)
    names = numbered([plain(case, 14) for case in order.cases])
    room = _WIDTH * style.inches * 72 * (ends - order.starts) / n
    if all(4.4 * len(name) <= width for name, width in zip(names, room, strict=True)):
        axes.set_xticks((order.starts + ends) / 2, names)
        axes.tick_params(axis="x", length=0)
    else:
        count_whole(axes.xaxis, 6)
    mean = "" if step == 1 else f"\n(a column is the mean of {step} samples)"
    axes.set_xlabel(f"training samples of {len(names)} cases, by case and slice{mean}")


def _legend(figure: "Figure", ruled: "list[Axes]", style: Style, unseen: bool) -> None:
    """Explain the lines once, on a light background: they are black in both themes."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    drawn = {label for axes in ruled for label in axes.get_legend_handles_labels()[1]}
    handles: dict[str, Any] = {
        "case boundary": Line2D([], [], color=_CASE, linewidth=1.2),
        "limit of foreground": Line2D([], [], color=_LIMIT, linewidth=1.2),
    }
    handles = {label: handle for label, handle in handles.items() if label in drawn}
    if unseen:
        handles["not seen"] = Patch(facecolor=UNSEEN)
    if handles:
        legend_below(figure, list(handles.values()), list(handles), 3)
        if style.theme == "dark":
            box = figure.legends[0]
            box.set_frame_on(True)
            box.get_frame().set(facecolor=_LIGHT, edgecolor="none")
            for text in box.get_texts():
                text.set_color(_CASE)


def _describe(table: SampleTable, order: Arrangement, values: dict[str, Array]) -> str:
    sparse, dense = table.label_sparse[order.order], table.label_dense[order.order]
    parts = [f"{len(order.cases)} cases, {int(sparse.sum())} of {len(sparse)} samples without foreground"]
    for name, (_, short) in _PANELS.items():
        last = values[name][-1]
        for group, members in (("label-sparse", sparse), ("label-dense", dense)):
            seen = last[members & np.isfinite(last)]
            if seen.size:
                parts.append(f"median {short} of {group} samples at the end {np.median(seen):.3g}")
    return f"Heat maps of cross-entropy, weight and consistency by sample and epoch: {'; '.join(parts)}."
