"""`adawac view`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from adawac.cli.main import SEE, app, not_built


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
