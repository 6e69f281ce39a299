"""One look for all figures: sizes, fonts and colours, light and dark."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from adawac.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

Array = npt.NDArray[Any]
Theme = Literal["light", "dark"]
Width = Literal["column", "text"] | float

_WIDTHS = {"column": 3.4, "text": 7.0}
_NARROWEST, _WIDEST = 2.5, 20.0
_SMALL, _NORMAL = 7.0, 7.5  # points, on paper: a figure is drawn in its printed size

# Ink, paper, secondary ink, grid.
_THEMES = {"light": ("#1A1A1A", "#FFFFFF", "#5F5F5F", "#E3E3E3"), "dark": ("#EDEDED", "#14171A", "#A8A8A8", "#34393E")}

_SERIES = {
    "light": ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    "dark": ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00"),
}
_MARKERS = ("o", "s", "^", "D", "v", "P")
UNSEEN = "#9A9A9A"
"""What was not seen, in a heat map."""

# For names that DejaVu Sans, which comes with matplotlib, has no glyphs for; used if they are installed.
_FURTHER_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "PingFang SC",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Noto Sans",
)


@cache
def families() -> tuple[str, ...]:
    """Return the fonts of the figures, in the order in which they are tried."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return ("DejaVu Sans", *(name for name in _FURTHER_FONTS if name in installed))


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a figure looks.

    Attributes:
        theme: `light` or `dark`.
        width: `column` (3.4 inches), `text` (7 inches), or a number of inches.
    """

    theme: Theme = "light"
    width: Width = "column"

    def __post_init__(self) -> None:
        if self.theme not in _THEMES:
            raise ConfigError(f"Expected the theme light or dark, but got {self.theme!r}. Choose one.")
        known = self.width in _WIDTHS if isinstance(self.width, str) else _NARROWEST <= self.width <= _WIDEST
        if not known:
            raise ConfigError(
                f"Expected a width of column, text, or {_NARROWEST:g} to {_WIDEST:g} inches, but got {self.width!r}. "
                "Choose one."
            )

    @property
    def inches(self) -> float:
        """The figure's width."""
        return _WIDTHS[self.width] if isinstance(self.width, str) else float(self.width)

    @property
    def wide(self) -> bool:
        """Whether there is room for twice the panels side by side."""
        return self.inches >= 5

    @property
    def ink(self) -> str:
        """Lines and text."""
        return _THEMES[self.theme][0]

    @property
    def paper(self) -> str:
        """The background."""
        return _THEMES[self.theme][1]

    @property
    def muted(self) -> str:
        """Secondary lines and text."""
        return _THEMES[self.theme][2]

    @property
    def ce(self) -> str:
        """Cross-entropy."""
        return self.series(1)[0]

    @property
    def acr(self) -> str:
        """Consistency."""
        return self.series(0)[0]

    @property
    def dense(self) -> str:
        """Label-dense samples."""
        return self.series(2)[0]

    @property
    def sparse(self) -> str:
        """Label-sparse samples."""
        return self.series(3)[0]

    def series(self, number: int) -> tuple[str, str]:
        """Return colour and marker of one of several runs."""
        colours = _SERIES[self.theme]
        return colours[number % len(colours)], _MARKERS[(number + number // len(colours)) % len(_MARKERS)]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the style to whatever matplotlib makes in this block."""
        import matplotlib

        with matplotlib.rc_context(self._settings()):
            yield

    def _settings(self) -> dict[Any, Any]:
        ink, paper, muted, grid = _THEMES[self.theme]
        return {
            "font.family": list(families()),
            **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize", "figure.titlesize"), _NORMAL),
            **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), _SMALL),
            **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), ink),
            **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), muted),
            **dict.fromkeys(("axes.facecolor", "figure.facecolor", "figure.edgecolor"), paper),
            **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6),
            **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 2.5),
            **dict.fromkeys(("figure.constrained_layout.w_pad", "figure.constrained_layout.h_pad"), 0.03),
            "axes.titlelocation": "left",
            "axes.titlepad": 3.0,
            "axes.labelpad": 2.0,
            "figure.titleweight": "bold",
            "text.parse_math": False,  # a $ in a name is a $
            "text.usetex": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.unicode_minus": True,
            "axes.formatter.use_mathtext": False,
            "axes.xmargin": 0.02,
            "grid.color": grid,
            "grid.linewidth": 0.5,
            "lines.linewidth": 1.2,
            "lines.markersize": 3.0,
            "legend.frameon": False,
            "legend.handlelength": 1.4,
            "legend.columnspacing": 1.2,
            "legend.borderaxespad": 0.2,
            "savefig.facecolor": "auto",
            "savefig.bbox": None,
            "svg.fonttype": "none",  # text stays text: it can be searched, read out and edited
            "svg.hashsalt": "adawac",  # the same figure has the same bytes
            "pdf.fonttype": 42,
        }


@cache
def gradient(kind: Literal["diverging", "sequential"]) -> "Colormap":
    """Return a colour map: `diverging` for beta, palest at 1/2; `sequential` for what has no middle, dark to bright."""
    import matplotlib
    from matplotlib.colors import ListedColormap

    # Without the darkest ends, on which black lines could not be seen.
    name, start, end = ("RdBu_r", 0.08, 0.92) if kind == "diverging" else ("cividis", 0.22, 1.0)
    part = ListedColormap(matplotlib.colormaps[name](np.linspace(start, end, 256)), name=f"{name}-part")
    return part.with_extremes(bad=UNSEEN)


@cache
def gradient_colours(kind: Literal["diverging", "sequential"]) -> tuple[tuple[int, int, int], ...]:
    """Return the 256 colours of `gradient`, from 0 to 255."""
    colours = np.asarray(gradient(kind)(np.linspace(0, 1, 256)))
    red, green, blue = (colours[:, :3].T * 255).round().astype(int).tolist()
    return tuple(zip(red, green, blue, strict=True))
