"""A drawn figure: what the panels of all figures share, and how it becomes a file with a title and a description."""

import logging
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from xml.sax.saxutils import escape

import numpy as np

from adawac.errors import ConfigError, RunError, check_known
from adawac.figures.style import Array, Style
from adawac.files import beside, explained

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from adawac.runs import Run

log = logging.getLogger(__name__)

DPI = 300
_ENDINGS = (".png", ".svg", ".pdf")


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """A figure that can be saved.

    Attributes:
        figure: Matplotlib's figure.
        title: What it shows, in a few words.
        alt: What can be seen in it, for those who cannot see it.
        style: How it looks.
    """

    figure: "Figure"
    title: str
    alt: str
    style: Style

    def save(self, path: Path | str) -> Path:
        """Write the figure in the format of the path's ending, with title and description, without a time stamp."""
        path = Path(path)
        ending = check_ending(path)
        with (
            explained(ConfigError, str(path), "Make room, or give another `out`."),
            self.style.applied(),
            beside(path) as temporary,
        ):
            self.figure.savefig(temporary, format=ending[1:], dpi=DPI, metadata=self._metadata(ending))
            if ending == ".svg":
                _describe(temporary, self.alt)
        return path

    def _metadata(self, ending: str) -> dict[str, Any]:
        if ending == ".png":
            return {"Title": self.title, "Description": self.alt, "Software": "adawac"}
        if ending == ".svg":
            return {"Title": self.title, "Description": self.alt, "Creator": "adawac", "Date": None}
        return {"Title": self.title, "Subject": self.alt, "Creator": "adawac", "CreationDate": None}


def check_ending(path: Path) -> str:
    """Return the ending of a picture's file, or raise a `ConfigError`."""
    ending = path.suffix.lower()
    if ending not in _ENDINGS:
        raise ConfigError(
            f"Expected a file that ends in {', '.join(_ENDINGS[:-1])} or {_ENDINGS[-1]}, but got {str(path)!r}. "
            "Give it one of these endings."
        )
    return ending


def _describe(svg: Path, alt: str) -> None:
    """Add the description that screen readers read; matplotlib writes a title only."""
    text = svg.read_text(encoding="utf-8")
    text = text.replace("</title>", f"</title>\n <desc>{escape(alt)}</desc>", 1).replace("<svg ", '<svg role="img" ', 1)
    svg.write_text(text, encoding="utf-8", newline="")


# -- panels -----------------------------------------------------------------------------------------------------------


def new_figure(style: Style, height: float, layout: Literal["constrained", "compressed"] = "constrained") -> "Figure":
    """Return an empty figure of the style's width."""
    from matplotlib.figure import Figure

    return Figure(figsize=(style.inches, height), layout=layout)


def set_title(figure: "Figure", style: Style, text: str, *remarks: str) -> None:
    """Put the title at the top left, in as many lines as it needs, with those remarks that are not empty."""
    added = "; ".join(filter(None, remarks))
    text = f"{text} ({added})" if added else text
    figure.suptitle(_wrapped(text, int(style.inches * 72 / 4.8)), x=0.01, ha="left")


def legend_below(figure: "Figure", handles: list[Any], labels: list[str], columns: int) -> None:
    """Put a legend below the panels, over the whole width."""
    figure.legend(handles, labels, loc="outside lower center", ncols=max(1, min(columns, len(labels))))


def count_whole(axis: "Axis", most: int) -> None:
    """Put at most so many ticks at whole numbers, such as epochs."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=most, integer=True))


def write_reason(axes: "Axes", style: Style, text: str, share: float = 0.8) -> None:
    """Write why a panel is empty into it; the text takes `share` of the figure's width."""
    axes.grid(visible=False)
    text = _wrapped(text, max(12, int(share * style.inches * 72 / 4.4)))
    centred: dict[str, Any] = {"transform": axes.transAxes, "ha": "center", "va": "center"}
    axes.text(0.5, 0.5, text, color=style.muted, in_layout=False, **centred)


def why_empty(values: Array, name: str) -> str | None:
    """Return why a field of the history has nothing to show, or None if it has."""
    seen = values[np.isfinite(values)]
    if not seen.size:
        return f"{name} was not recorded."
    low, high = float(seen.min()), float(seen.max())
    return f"{name} is {low:g} for all samples and epochs." if low == high and seen.size > 1 else None


def _wrapped(text: str, most: int) -> str:
    return "\n".join(textwrap.wrap(text, most, break_on_hyphens=False))


# -- results ----------------------------------------------------------------------------------------------------------


def with_results(
    runs: "Sequence[Run]", kind: Literal["scores", "gallery"], name: str | None
) -> "tuple[str, list[Run]]":
    """Return the name of scores or of a gallery, and the runs that have it; a warning names those that do not.

    Args:
        runs: The runs.
        kind: What is looked for.
        name: Which of them; by default one that most of the runs have, of test cases and strict scores if possible.
    """
    names_of = {id(run): run.evaluations if kind == "scores" else run.galleries for run in runs}
    known = sorted({known for names in names_of.values() for known in names})
    if not known:
        folders = shlex.join(str(run.folder) for run in runs)
        raise RunError(f"Expected {kind} in {folders}, but got none. Make them: adawac evaluate {folders}")

    def merit(name: str) -> tuple[int, bool, bool]:
        return sum(name in names for names in names_of.values()), name.startswith("test-strict"), name[:4] == "test"

    name = max(known, key=merit) if name is None else name
    check_known(name, known, f"the name of {kind}", RunError)
    having = [run for run in runs if name in names_of[id(run)]]
    for run in runs:
        if name not in names_of[id(run)]:
            log.warning("%s has no %s %r. Make them: adawac evaluate %s", run.folder, kind, name, run.folder)
    for run in having:
        for part, why in run.outdated.items():
            if Path(part).parent.name == kind and Path(part).stem == name:
                log.warning("%s/%s is %s. Make it again: adawac evaluate %s", run.folder, part, why, run.folder)
    return name, having
