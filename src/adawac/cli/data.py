"""`adawac diagnose` and `adawac prepare`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from adawac.cli.main import DATA, AsJson, app, not_built


@app.command(group=DATA)
@not_built
def diagnose(
    data: Annotated[Path, Parameter(help="A prepared store, or a folder of scans.")],
    /,
    *,
    as_json: AsJson = False,
) -> None:
    """Say whether slices are label-sparse or label-dense, per case and class, and which method fits.

    Example: adawac diagnose store
    """


@app.command(group=DATA)
@not_built
def prepare(
    source: Annotated[str, Parameter(help="How the scans are laid out: acdc, synapse, nifti or dicom.")],
    scans: Annotated[Path, Parameter(help="Folder of the scans.")],
    store: Annotated[Path, Parameter(help="Folder of the store to be made.")],
    /,
) -> None:
    """Turn scans and their labels into a store that training reads.

    Example: adawac prepare nifti scans store
    """
