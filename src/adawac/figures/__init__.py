"""The paper's figures, from run folders alone: `adawac.figures.draw("weights", "runs/adawac", "weights.svg")`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Where each public name lives; it is imported when it is first used.
_HOMES = {
    "FIGURES": "drawing",
    "Picture": "picture",
    "Style": "style",
    "compose": "drawing",
    "draw": "drawing",
}

__all__ = ["FIGURES", "Picture", "Style", "compose", "draw"]

if TYPE_CHECKING:
    from adawac.figures.drawing import FIGURES, compose, draw
    from adawac.figures.picture import Picture
    from adawac.figures.style import Style


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"adawac.figures.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'adawac.figures' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
