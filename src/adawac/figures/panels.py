"""What the panels of all figures share, and the results that several runs have in common."""

import logging
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from adawac.errors import RunError, near
from adawac.figures.style import Style
from adawac.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


def new_figure(style: Style, height: float, layout: Literal["constrained", "compressed"] = "constrained") -> "Figure":
    """Return an empty figure of the style's width."""
    from matplotlib.figure import Figure

    return Figure(figsize=(style.inches, height), layout=layout)


def set_title(figure: "Figure", style: Style, text: str) -> None:
    """Put the title at the top left, in as many lines as it needs."""
    figure.suptitle("\n".join(_wrapped(text, int(style.inches * 72 / 4.8))), x=0.01, ha="left")


def legend_below(figure: "Figure", handles: list[Any], labels: list[str], columns: int) -> None:
    """Put a legend below the panels, over the whole width."""
    figure.legend(handles, labels, loc="outside lower center", ncols=max(1, min(columns, len(labels))))


def _wrapped(text: str, most: int) -> list[str]:
    return textwrap.wrap(text, most, break_on_hyphens=False)


def count_whole(axis: "Axis", most: int) -> None:
    """Put ticks at whole numbers, such as epochs: at most so many."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=most, integer=True))


def say(axes: "Axes", style: Style, text: str, share: float = 0.8) -> None:
    """Put words where a panel's content would be; `share` is how much of the figure's width they have."""
    axes.grid(visible=False)
    lines = _wrapped(text, max(12, int(share * style.inches * 72 / 4.4)))
    where: dict[str, Any] = {"transform": axes.transAxes, "ha": "center", "va": "center"}
    axes.text(0.5, 0.5, "\n".join(lines), color=style.muted, in_layout=False, **where)


def why_silent(values: npt.NDArray[Any], name: str) -> str | None:
    """Return why a field of the history has nothing to show, or None if it has."""
    seen = values[np.isfinite(values)]
    if not seen.size:
        return f"{name} was not recorded."
    low, high = float(seen.min()), float(seen.max())
    if low == high and seen.size > 1:
        return f"{name} is {low:g} for all samples and epochs."
    return None


log = logging.getLogger(__name__)


def with_results(runs: Sequence[Run], kind: Literal["scores", "gallery"], name: str | None) -> tuple[str, list[Run]]:
    """Return the name of scores or of a gallery, and the runs that have it; those that do not are warned of.

    Args:
        runs: The runs.
        kind: What is looked for.
        name: Which of them; by default one that most of the runs have, of test cases and strict scores if possible.
    """
    there = {id(run): run.evaluations if kind == "scores" else run.galleries for run in runs}
    names = sorted({one for found in there.values() for one in found})
    if not names:
        folders = shlex.join(str(run.folder) for run in runs)
        raise RunError(f"Expected {kind} in {folders}, but got none. Make them: adawac evaluate {folders}")
    if name is None:
        name = max(
            names,
            key=lambda one: (
                sum(one in found for found in there.values()),
                one.startswith("test-strict"),
                one.startswith("test"),
            ),
        )
    if name not in names:
        raise RunError(f"Expected the name of {kind}, but got {name!r}. Near names: {near(name, names)}.")
    for run in runs:
        if name not in there[id(run)]:
            log.warning("%s has no %s %r. Make them: adawac evaluate %s", run.folder, kind, name, run.folder)
    found = [run for run in runs if name in there[id(run)]]
    for run in found:
        for part, why in run.outdated.items():
            if Path(part).parent.name == kind and Path(part).stem == name:
                log.warning("%s/%s is %s. Make it again: adawac evaluate %s", run.folder, part, why, run.folder)
    return name, found
