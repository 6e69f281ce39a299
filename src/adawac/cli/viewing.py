"""`adawac figure`, `report`, `view` and `watch`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from adawac.cli.main import SEE, app, not_built


@app.command(group=SEE)
@not_built
def figure(
    run: Annotated[Path, Parameter(help="A run folder.")],
    name: Annotated[str, Parameter(help="curves, weights, overlays, scores or separation.")],
    /,
    *,
    out: Annotated[Path | None, Parameter(help="The file: .png, .svg or .pdf.")] = None,
) -> None:
    """Draw one of the paper's figures from a run folder.

    Example: adawac figure runs/adawac weights --out weights.png
    """


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
def view(
    scan: Annotated[Path, Parameter(help="A NIfTI file.")],
    /,
    *,
    labels: Annotated[
        tuple[Path, ...], Parameter(help="Label maps to lay over it.", consume_multiple=True, show_default=False)
    ] = (),
) -> None:
    """Look at a scan with its label maps in the browser.

    Example: adawac view scan.nii.gz --labels truth.nii.gz prediction.nii.gz
    """


@app.command(group=SEE)
@not_built
def watch(run: Annotated[Path, Parameter(help="A run folder.")], /) -> None:
    """Follow a run while it trains.

    Example: adawac watch runs/adawac
    """
