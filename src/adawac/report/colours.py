"""The report's colours, which are those of the figures: the same class, the same beta, the same colour."""

from functools import cache
from typing import Literal

import numpy as np

from adawac.figures.style import Style

__all__ = ["class_colour", "colour_map"]

_STYLE = Style()


@cache
def class_colour(label: int) -> str:
    """Return the colour of a class (1, 2, …) as `#rrggbb`."""
    return _STYLE.class_colour(label)


@cache
def colour_map(kind: Literal["diverging", "sequential"]) -> tuple[tuple[int, int, int], ...]:
    """Return 256 colours: `diverging` for beta, palest at 1/2; `sequential` for what has no middle, dark to bright."""
    colours = _STYLE.diverging() if kind == "diverging" else _STYLE.sequential()
    red, green, blue = (np.asarray(colours(np.linspace(0, 1, 256)))[:, :3].T * 255).round().astype(int).tolist()
    return tuple(zip(red, green, blue, strict=True))
