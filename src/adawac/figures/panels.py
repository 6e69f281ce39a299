"""What the panels of all figures share: figures of a size, words in the place of what is missing, titles that fit."""

import textwrap
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from adawac.figures.style import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = ["count_whole", "legend_below", "new_figure", "say", "set_title", "why_silent"]


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
