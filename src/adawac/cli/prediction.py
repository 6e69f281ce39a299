"""`adawac predict` and `adawac export`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from adawac.cli.main import EVALUATE, app, not_built


@app.command(group=EVALUATE)
@not_built
def predict(
    run: Annotated[Path, Parameter(help="A run folder, or an exported model folder.")],
    scans: Annotated[tuple[Path, ...], Parameter(help="NIfTI files, DICOM series, or folders of them.")],
    /,
    *,
    out: Annotated[Path, Parameter(help="Folder for the label maps.")],
) -> None:
    """Segment scans; label maps lie on the grid of their scan.

    Example: adawac predict runs/adawac scan.nii.gz --out predictions
    """


@app.command(group=EVALUATE)
@not_built
def export(
    run: Annotated[Path, Parameter(help="A run folder.")],
    /,
    *,
    out: Annotated[Path, Parameter(help="The file model.onnx, or a folder.")],
) -> None:
    """Save a trained network as ONNX, or as a folder that `adawac predict` takes elsewhere.

    Example: adawac export runs/adawac --out model.onnx
    """
