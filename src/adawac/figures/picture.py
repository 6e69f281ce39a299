"""A drawn figure, its title and its description, and how they become a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from adawac.errors import ConfigError
from adawac.figures.style import Style
from adawac.files import beside, explained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DPI", "Picture", "check_ending"]

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
        """Write the figure in the format of the path's ending, with title and description; no time of day is in it."""
        path = Path(path)
        ending = check_ending(path)
        with (
            explained(ConfigError, str(path), "Make room, or give another --out."),
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
