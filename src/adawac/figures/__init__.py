"""The paper's figures, from run folders alone: `adawac.figures.draw("weights", "runs/adawac", "weights.svg")`."""

from typing import TYPE_CHECKING

from adawac.lazy import lazy_names

__all__ = ["FIGURES", "Picture", "Style", "compose", "draw"]

if TYPE_CHECKING:
    from adawac.figures.catalogue import FIGURES, compose, draw
    from adawac.figures.picture import Picture
    from adawac.figures.style import Style

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "catalogue": "FIGURES compose draw",
        "picture": "Picture",
        "style": "Style",
    },
)
