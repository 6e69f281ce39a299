"""The paper's figures, drawn from the runs of a grid."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from adawac.reproduction.grids import Grid, Row
from adawac.reproduction.jobs import Job
from adawac.reproduction.quick import MARK

if TYPE_CHECKING:
    from adawac.figures import Picture

__all__ = ["check_figures", "draw_figures"]


def check_figures(grid: Grid, rows: Sequence[Row]) -> None:
    """Refuse figures that could not be drawn: that would show only after everything is trained."""
    if not grid.drawings:
        return
    from adawac.figures.drawing import check_figure

    most = max(Counter(row.labels.get("preset", "") for row in rows).values())
    for one in grid.drawings:
        check_figure(one.name, most, width=one.width, **one.options)


def draw_figures(
    name: str, grid: Grid, planned: Sequence[tuple[Row, Sequence[Job]]], folder: Path, *, quick: bool, mark: str = ""
) -> list[Path]:
    """Draw the figures of a grid as PNG and PDF, once for each preset; those whose runs are not all done are left out.

    Args:
        name: The grid's name; the files are called so.
        grid: The grid.
        planned: Its rows with their jobs; a figure shows the first seed of each.
        folder: Where the files go.
        quick: Mark the figures as not the paper's, and call them so.
        mark: Mark them with this for another reason.
    """
    mark, word = (MARK, "quick") if quick else (mark, mark.partition(":")[0].lower())
    presets: dict[str, list[Job]] = {}
    for row, own in planned:
        presets.setdefault(row.labels.get("preset", ""), []).append(own[0])
    paths = []
    for preset, jobs in presets.items():
        if grid.drawings and all(job.state == "done" for job in jobs):
            stem = f"{name}-quick" if quick else name
            paths += _draw(f"{stem}-{preset}" if len(presets) > 1 else stem, grid, jobs, folder, mark, word)
    return paths


def _draw(stem: str, grid: Grid, jobs: Sequence[Job], folder: Path, mark: str, word: str) -> list[Path]:
    from adawac.figures import compose

    paths = []
    for place, drawing in enumerate(grid.drawings):
        number = "" if len(grid.drawings) == 1 else f"-{place + 1}"
        picture = compose(drawing.name, [job.folder for job in jobs], width=drawing.width, **drawing.options)
        picture = _marked(picture, mark, word) if mark else picture
        paths += [picture.save(folder / f"{stem}{number}{ending}") for ending in (".png", ".pdf")]
    return paths


def _marked(picture: "Picture", mark: str, word: str) -> "Picture":
    """Return a picture that says across it, and in its description, that it is none of the paper's."""
    width, height = picture.figure.get_size_inches()
    picture.figure.text(
        0.5,
        0.5,
        f"{word.upper()}\nnot the paper's data",
        ha="center",
        va="center",
        rotation=30,
        fontsize=6 * min(width, height),
        color="#b3261e",
        alpha=0.45,
        weight="bold",
        zorder=100,
    )
    return replace(picture, title=f"{picture.title} ({word})", alt=f"{mark} {picture.alt}")
