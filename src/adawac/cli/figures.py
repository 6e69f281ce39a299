"""`adawac figure`."""

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
