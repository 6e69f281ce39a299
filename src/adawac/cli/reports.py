"""`adawac report` and `adawac watch`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from adawac.cli.main import SEE, app, not_built


@app.command(group=SEE)
@not_built
def report(
    runs: Annotated[tuple[Path, ...], Parameter(help="Run folders.")],
    /,
    *,
    out: Annotated[Path, Parameter(help="The HTML file.")] = Path("report.html"),
) -> None:
    """Write a report of one or several runs: one HTML file that works offline.

    Example: adawac report runs/baseline runs/adawac --out report.html
    """


@app.command(group=SEE)
@not_built
def watch(run: Annotated[Path, Parameter(help="A run folder.")], /) -> None:
    """Follow a run while it trains.

    Example: adawac watch runs/adawac
    """
