"""A run in the terminal: progress, curves as sparklines, and the atlas of beta in half blocks."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from adawac.data.cases import is_label_sparse
from adawac.figures.display_names import METRIC_NAMES
from adawac.figures.style import Array, gradient_colours
from adawac.report.suspects import varies
from adawac.runs import Run
from adawac.runs.layout import is_number

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.text import Text

_BARS = "▁▂▃▄▅▆▇█"
_SHADES = "█▓▒░ "  # without colour: the darker, the nearer to consistency
_METRICS = {name: text for name, text in METRIC_NAMES.items() if name not in ("ell_dice", "slices_per_second")}


def list_epochs(run: Run, after: int) -> Iterator[str]:
    """Yield one line of numbers for each epoch later than `after`, for output that is not a terminal."""
    total = run.info.get("epochs") or "?"
    for row in run.metrics:
        if row["epoch"] > after:
            numbers = [f"{text} {row[name]:.4g}" for name, text in _METRICS.items() if is_number(row.get(name))]
            yield f"epoch {row['epoch']}/{total}  " + "  ".join(numbers)


def draw_run(run: Run, console: "Console", title: str) -> "Group":
    """Return what a terminal shows of a run, in the size that the terminal has."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text.assemble((title, "bold"), f"  {run.status}"), _progress(run), _sparklines(run)]
    height = max(console.height - 16, 6)
    parts.append(_heat_map(run, max(console.width - 14, 10), min(height, 24), console.color_system is not None))
    return Group(*parts)


def _progress(run: Run) -> "RenderableType":
    from rich.columns import Columns
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    total = run.info.get("epochs")
    text = Text(f"epoch {run.epoch}/{total or '?'}", no_wrap=True)
    if not isinstance(total, int):
        return text
    return Columns([text, ProgressBar(total=total, completed=run.epoch, width=40)], padding=(0, 2))


def _sparklines(run: Run) -> "RenderableType":
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, text in _METRICS.items():
        values = [float(row[name]) for row in run.metrics if is_number(row.get(name))]
        if values:
            top = 1.0 if name.startswith(("beta", "val")) else max(*values, 1e-12)
            table.add_row(text, _sparkline(values, top), f"{values[0]:.3g} → {values[-1]:.3g}")
    return table if table.row_count else "No epoch is complete yet."


def _sparkline(values: list[float], top: float, width: int = 40) -> str:
    count = min(width, len(values))
    chosen = [values[round(index * (len(values) - 1) / max(1, count - 1))] for index in range(count)]
    return "".join(_BARS[min(max(int(value / top * len(_BARS)), 0), len(_BARS) - 1)] for value in chosen)


def _heat_map(run: Run, width: int, height: int, colour: bool) -> "RenderableType":
    """Return beta as a picture: label-sparse samples above, label-dense ones below, by foreground; epochs across."""
    from rich.text import Text

    if run.samples is None or not len(run.history):
        return Text("The atlas of β begins with the first epoch.", style="dim")
    share = np.nan_to_num(run.samples.foreground, nan=-1)
    unlabelled = int(run.samples.unlabelled.sum())  # above all others
    beta = run.history["beta"][:, : len(share)].T.astype(np.float64)
    if not varies(beta):
        return Text("The method of this run does not move β.", style="dim")
    order = np.argsort(share, kind="stable")
    sparse = int(is_label_sparse(share).sum())
    rows = _shrink(_shrink(beta[order], 2 * height).T, width).T
    rows = rows.repeat(max(width // rows.shape[1], 1), axis=1)  # few epochs: wide cells
    drawn = Text("β by foreground, from none (above) to most; epochs from left to right\n")
    for index in range(0, len(rows), 2):
        middle = (index + 1) / len(rows) * len(share)
        group = "unlabelled" if middle <= unlabelled else "label-sparse" if middle <= sparse else "label-dense"
        drawn.append(f"{group:<13}", style="dim")
        upper, lower = rows[index], rows[min(index + 1, len(rows) - 1)]
        _append_cells(drawn, upper, lower, colour)
        drawn.append("\n")
    legend = "blue: sent to consistency, red: kept under cross-entropy"
    drawn.append(legend if colour else "dark: sent to consistency, blank: kept under cross-entropy", style="dim")
    return drawn


def _append_cells(drawn: "Text", upper: Array, lower: Array, colour: bool) -> None:
    for above, below in zip(upper, lower, strict=True):
        if not colour:
            seen = [beta for beta in (above, below) if np.isfinite(beta)]
            shade = _SHADES[min(int(np.mean(seen) * len(_SHADES)), len(_SHADES) - 1)] if seen else "·"
            drawn.append(shade)
        else:
            drawn.append("▀", style=f"{_colour(above)} on {_colour(below)}")


def _colour(beta: float) -> str:
    if not np.isfinite(beta):
        return "#808080"
    red, green, blue = gradient_colours("diverging")[min(max(round(float(beta) * 255), 0), 255)]
    return f"#{red:02x}{green:02x}{blue:02x}"


def _shrink(values: Array, most: int) -> Array:
    """Return at most so many rows, each the mean of its neighbours that were seen."""
    if len(values) <= most:
        return values
    edges = np.linspace(0, len(values), most + 1).round().astype(int)[:-1]
    seen = np.isfinite(values)
    count = np.add.reduceat(seen, edges, axis=0, dtype=np.int64)
    total = np.add.reduceat(np.where(seen, values, 0), edges, axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
