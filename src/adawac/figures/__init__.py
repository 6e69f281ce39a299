"""The paper's figures, from run folders alone: `adawac.figures.draw("weights", "runs/adawac", "weights.svg")`."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adawac.errors import ConfigError, check_known
from adawac.lazy import lazy_names

if TYPE_CHECKING:
    from adawac.figures.picture import Picture
    from adawac.figures.style import Style, Theme, Width
    from adawac.runs import Run

__all__ = ["FIGURES", "Picture", "Style", "compose", "draw"]

__getattr__, __dir__ = lazy_names(__name__, {"picture": "Picture", "style": "Style"})

FIGURES: Mapping[str, str] = {
    "curves": "CE against ACR over epochs, for slices of one case from label-sparse to label-dense",
    "weights": "CE, β and ACR of every sample and epoch, as three heat maps",
    "overlays": "scan, ground truth and the predictions of one or several runs",
    "scores": "DSC and HD95 of every class and patient, for one or several runs",
    "separation": "how β tells label-sparse from label-dense samples, and how far Assumption 1 holds",
}
"""What each figure shows. `adawac.figures.NAME` has the function NAME that draws it."""

_OF_ONE_RUN = ("curves", "weights")


def draw(
    name: str,
    runs: "Run | Path | str | Sequence[Run | Path | str]",
    out: Path | str | None = None,
    *,
    theme: "Theme" = "light",
    width: "Width" = "column",
    **options: Any,
) -> Path:
    """Draw a figure into a file, and return its path.

    Args:
        name: One of `FIGURES`.
        runs: A run or several, as folders or opened.
        out: The file, whose ending says what it is: .png, .svg or .pdf. By default `figures/NAME.png` in the first run.
        theme: `light` or `dark`.
        width: `column` (3.4 inches), `text` (7 inches) or a number of inches.
        options: What the figure's function takes, such as `case="case01"` for `curves`.
    """
    from adawac.figures.picture import check_ending

    opened = _open(runs)
    path = Path(out) if out is not None else opened[0].folder / "figures" / f"{name}.png"
    check_ending(path)  # before the work
    return compose(name, opened, theme=theme, width=width, **options).save(path)


def compose(
    name: str,
    runs: "Run | Path | str | Sequence[Run | Path | str]",
    *,
    theme: "Theme" = "light",
    width: "Width" = "column",
    **options: Any,
) -> "Picture":
    """Draw a figure and return it with its title and description; the arguments are those of `draw`."""
    from adawac.figures.style import Style

    check_known(name, FIGURES, "the name of a figure")
    style = Style(theme=theme, width=width)
    opened = _open(runs)
    check_figure(name, len(opened), width=width, **options)
    chosen = {key: value for key, value in options.items() if value is not None}
    with style.applied():
        picture = _function(name)(opened[0] if name in _OF_ONE_RUN else opened, style, **chosen)
        picture.figure.draw_without_rendering()  # matplotlib makes the ticks here, while the style is applied
    return picture


def check_figure(name: str, num_runs: int, *, width: "Width" = "column", **options: Any) -> None:
    """Refuse what could not be drawn of any run, before there are runs; the arguments are those of `draw`."""
    from adawac.figures.style import Style

    check_known(name, FIGURES, "the name of a figure")
    Style(width=width)  # refuses other widths
    if name in _OF_ONE_RUN and num_runs > 1:
        raise ConfigError(f"Expected one run for the figure {name!r}, but got {num_runs}. Draw one for each.")
    parameters = inspect.signature(_function(name)).parameters.items()
    known = [key for key, parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    unknown = [key for key, value in options.items() if value is not None and key not in known]
    if unknown:
        listed = ", ".join(known) or "none"
        raise ConfigError(
            f"Expected only options of the figure {name!r} ({listed}), but got {', '.join(unknown)}. Leave it out."
        )


def _function(name: str) -> "Callable[..., Picture]":
    function: Callable[..., Picture] = getattr(import_module(f"adawac.figures.{name}"), name)
    return function


def _open(runs: Any) -> "list[Run]":
    from adawac.runs import Run

    several = [runs] if isinstance(runs, Run | Path | str) else list(runs)
    if not several:
        raise ConfigError("Expected at least one run, but got none. Give a run folder.")
    return [run if isinstance(run, Run) else Run(run) for run in several]
