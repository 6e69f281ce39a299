"""Scan, ground truth and predictions side by side, with the classes in colour."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from adawac.data.task import class_colour
from adawac.errors import ConfigError, RunError, check_known
from adawac.figures.display_names import class_name, lines, run_labels, slice_name
from adawac.figures.picture import Picture, legend_below, new_figure, set_title, with_results, write_reason
from adawac.figures.style import Array, Style
from adawac.metrics import dice
from adawac.runs import Gallery, Run, Slice

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Pick = Literal["worst", "best", "median"]

_FILL = 0.5  # how opaque a class is inside; at its edge it is fully so
_LETTER = 0.065  # inches that a letter of a label takes


def overlays(
    runs: Sequence[Run],
    style: Style,
    *,
    pick: Pick | None = None,
    ids: Sequence[str] | None = None,
    count: int | None = None,
    gallery: str | None = None,
) -> Picture:
    """Draw slices of the runs' galleries, one row each: scan, ground truth, one prediction per run.

    Args:
        runs: The runs; slices are chosen by the first one's scores.
        style: How it looks.
        pick: Which slices, by their Dice: `worst` (the default), `best` or `median`.
        ids: Sample ids, instead of a choice by score.
        count: How many slices `pick` chooses; 3 by default.
        gallery: Which gallery; by default one that the runs have in common.
    """
    if ids and (pick or count):
        raise ConfigError("Expected either ids or a choice by score, but got both. Leave out pick and count.")
    if count is not None and count < 1:
        raise ConfigError(f"Expected at least one slice, but got a count of {count}. Give 1 or more.")
    name, runs = with_results(runs, "gallery", gallery)
    galleries = [run.gallery(name) for run in runs]
    labels = run_labels(runs, 18)
    if ids:
        chosen, how = _known(galleries, ids, runs), "Slices"
    else:
        chosen, how = _choose(galleries, pick or "worst", count or 3, runs[0])
        how += f" ({labels[0]})" if len(runs) > 1 else ""

    rows = [[gallery.get(sample) for gallery in galleries] for sample in chosen]
    figure, classes = _grid(style, rows, labels, [slice_name(runs[0], sample, 60) for sample in chosen])
    from matplotlib.patches import Patch

    names = {number: class_name(runs, number) for number in classes}
    if classes:
        handles = [Patch(facecolor=class_colour(number)) for number in classes]
        legend_below(figure, handles, list(names.values()), 8 if style.wide else 3)
    title = f"{how}, gallery {name}"
    set_title(figure, style, title)
    return Picture(figure=figure, title=title, alt=_describe(chosen, rows, labels, runs[0], names), style=style)


def draw_doubt(shown: Slice, doubt: Array, names: Sequence[str], title: str, style: Style) -> Picture:
    """Draw a slice whose label is in doubt: the label, what a network sees, and where they contradict each other.

    Args:
        shown: The slice, with label and prediction.
        doubt: (H, W) how far the network contradicts each pixel's label, from 0 to 1.
        names: Name of each class.
        title: Which slice it is, and why it is shown.
        style: How it looks.
    """
    from matplotlib.patches import Patch

    figure = new_figure(style, (style.inches - 0.2) / 3 * min(_height(shown), 2.0) + 0.95, "compressed")
    panels = figure.subplots(1, 3)
    maps = {"label": shown.label, "network that never saw the patient": shown.prediction}
    present = [np.unique(labels).tolist() for labels in maps.values() if labels is not None]
    classes = sorted({number for numbers in present for number in numbers} - {0})
    colours = {number: class_colour(number) for number in classes}
    for axes, (name, labels) in zip(panels, maps.items(), strict=False):
        _show(axes, shown, labels, colours)
        axes.set_title(name, loc="center")
    _show(panels[2], shown, None, colours)
    aspect = shown.spacing[0] / shown.spacing[1]
    seen = np.ma.masked_less_equal(doubt, 0)
    panels[2].imshow(seen, cmap="autumn_r", vmin=0, vmax=1, alpha=0.85, aspect=aspect, interpolation="none")
    panels[2].set_title("suspicious pixels", loc="center")
    for axes in panels:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    handles = [Patch(facecolor=colour) for colour in colours.values()]
    if handles:
        legend_below(figure, handles, [names[number] for number in classes], 8 if style.wide else 3)
    set_title(figure, style, title)
    alt = f"{title} Beside the label stand what the network sees, and the {int((doubt > 0).sum())} suspicious pixels."
    return Picture(figure=figure, title=title, alt=alt, style=style)


def slice_dice(shown: Slice) -> float:
    """Return the mean Dice of the classes that are in label or prediction; NaN where there are none."""
    if shown.label is None or shown.prediction is None:
        return float("nan")
    present = sorted({*np.unique(shown.label).tolist(), *np.unique(shown.prediction).tolist()} - {0})
    scores = [dice(shown.prediction == k, shown.label == k) for k in present]
    return float(np.mean(scores)) if scores else float("nan")


def painted(classes: Array, colours: Mapping[int, str]) -> npt.NDArray[np.float64]:
    """Return (H, W, 4): each class in its colour, opaque at its edge, clear where there is background."""
    from matplotlib.colors import to_rgb

    rgba = np.zeros((*classes.shape, 4))
    for label, colour in colours.items():
        rgba[classes == label, :3] = to_rgb(colour)
    rgba[..., 3] = np.where(classes == 0, 0.0, np.where(edges(classes), 1.0, _FILL))
    return rgba


def edges(classes: Array) -> npt.NDArray[np.bool_]:
    """Return (H, W): whether a pixel is next to one of another class."""
    around = np.pad(classes, 1, mode="edge")
    neighbours = (around[:-2, 1:-1], around[2:, 1:-1], around[1:-1, :-2], around[1:-1, 2:])
    edge: npt.NDArray[np.bool_] = np.any([neighbour != classes for neighbour in neighbours], axis=0)
    return edge


def _known(galleries: Sequence[Gallery], ids: Sequence[str], runs: Sequence[Run]) -> list[str]:
    known = {sample for gallery in galleries for sample in gallery}
    for name in ids:
        check_known(name, known, f"slices of the gallery of {runs[0].folder}", RunError)
    return list(dict.fromkeys(ids))


def _choose(galleries: Sequence[Gallery], pick: Pick, count: int, run: Run) -> tuple[list[str], str]:
    """Return ids chosen by the first gallery's scores, of slices that all galleries have if any, and a description."""
    if pick not in ("worst", "best", "median"):
        raise ConfigError(f"Expected worst, best or median, but got {pick!r}. Choose one.")
    first = galleries[0]
    shared = [sample for sample in first if all(sample in gallery for gallery in galleries)]
    scored = {sample: slice_dice(first[sample]) for sample in shared or first}
    ranked = sorted((score, sample) for sample, score in scored.items() if not np.isnan(score))
    if not ranked:
        raise RunError(
            f"Expected slices with a label and a prediction in the gallery of {run.folder}, but got none of "
            f"{len(scored)}. Choose slices by their id."
        )
    count = min(count, len(ranked))
    start = {"worst": 0, "best": len(ranked) - count, "median": (len(ranked) - count) // 2}[pick]
    taken = [sample for _, sample in ranked[start : start + count]]
    if pick == "best":
        taken.reverse()
    if count == len(ranked):
        return taken, f"All {count} slices, {'best' if pick == 'best' else 'worst'} slice DSC first"
    which = {"worst": "Worst", "best": "Best", "median": "Middle"}[pick]
    return taken, f"{which} {count} of {len(ranked)} slices by slice DSC"


def _grid(
    style: Style, rows: list[list[Slice | None]], labels: list[str], names: list[tuple[str, str]]
) -> tuple[Any, list[int]]:
    """Draw the panels, and return the figure and the classes in it."""
    columns = 2 + len(labels)
    scans = [next(shown for shown in row if shown is not None) for row in rows]
    sides = [(scan.image.shape[-2:], scan.spacing) for scan in scans]
    tallest = max(high * tall / (wide * broad) for (high, wide), (tall, broad) in sides)  # over the width, in mm
    height = min((style.inches - 0.35) / columns * tallest, 3.0)
    letters = max(8, int(height / _LETTER))
    figure = new_figure(style, len(rows) * height + 0.75, "compressed")
    grid = figure.subplots(len(rows), columns, squeeze=False)
    maps = [labels for row in rows for shown in row if shown for labels in (shown.label, shown.prediction)]
    classes = sorted({label for labels in maps if labels is not None for label in np.unique(labels).tolist()} - {0})
    colours = {label: class_colour(label) for label in classes}
    for panels, row, scan, name in zip(grid, rows, scans, names, strict=True):
        _show(panels[0], scan, None, colours)
        panels[0].set_ylabel("\n".join(line for part in name if part for line in lines(part, letters)))
        if scan.label is None:
            write_reason(panels[1], style, "no ground truth", 0.2)
        else:
            _show(panels[1], scan, scan.label, colours)
        for axes, shown in zip(panels[2:], row, strict=True):
            if shown is None or shown.prediction is None:
                write_reason(axes, style, "no prediction in this run's gallery", 0.2)
            else:
                _show(axes, scan, shown.prediction, colours)
            if shown is not None and not np.isnan(score := slice_dice(shown)):
                _write_score(axes, score)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    shown_first = "scan" if any(scan.colours is None for scan in scans) else "picture"
    for axes, label in zip(grid[0], [shown_first, "ground truth", *labels], strict=True):
        axes.set_title(label, loc="center")
    return figure, classes


def _height(scan: Slice) -> float:
    """Return the height of a slice over its width, in millimetres."""
    height, width = scan.image.shape[-2:]
    return float(height * scan.spacing[0] / (width * scan.spacing[1]))


def _show(axes: "Axes", scan: Slice, classes: Array | None, colours: Mapping[int, str]) -> None:
    aspect = scan.spacing[0] / scan.spacing[1]
    if scan.colours is not None:
        axes.imshow(scan.colours, aspect=aspect, interpolation="none")
    else:
        image = (scan.image if scan.image.ndim == 2 else scan.image[0]).astype(np.float64)
        seen = image[np.isfinite(image)]
        low, high = np.percentile(seen, [0.5, 99.5]) if seen.size else (0.0, 1.0)
        axes.imshow(image, cmap="gray", vmin=low, vmax=max(high, low + 1e-9), aspect=aspect, interpolation="none")
    if classes is not None:
        axes.imshow(painted(classes, colours), aspect=aspect, interpolation="none")
    axes.grid(visible=False)


def _write_score(axes: "Axes", score: float) -> None:
    from matplotlib.patheffects import withStroke

    around = [withStroke(linewidth=1.5, foreground="black")]
    where: dict[str, Any] = {"transform": axes.transAxes, "ha": "left", "va": "bottom", "size": 7}
    axes.text(0.04, 0.03, f"DSC {score:.2f}", color="white", path_effects=around, **where)


def _describe(
    chosen: list[str], rows: list[list[Slice | None]], labels: list[str], run: Run, names: Mapping[int, str]
) -> str:
    parts = []
    for sample, row in zip(chosen, rows, strict=True):
        pairs = zip(labels, row, strict=True)
        scores = [f"{label} DSC {slice_dice(shown):.2f}" for label, shown in pairs if shown is not None]
        parts.append(f"{' '.join(slice_name(run, sample))}: {', '.join(scores)}")
    return f"Scan, ground truth and predictions with the classes {', '.join(names.values())}. {'; '.join(parts)}."
