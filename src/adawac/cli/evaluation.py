"""`adawac evaluate`, `predict` and `export`."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from adawac.cli.main import EVALUATE, AsJson, app, not_built


@app.command(group=EVALUATE)
@not_built
def evaluate(
    runs: Annotated[tuple[Path, ...], Parameter(help="Run folders.")],
    /,
    *,
    convention: Annotated[
        Literal["strict", "adawac", "transunet", "nan"], Parameter(help="What empty masks score.")
    ] = "strict",
    as_json: AsJson = False,
) -> None:
    """Score runs on their test cases: Dice and HD95 per case and class, and runs against each other.

    Example: adawac evaluate runs/baseline runs/adawac --convention adawac
    """


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
