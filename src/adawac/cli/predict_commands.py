"""`adawac predict` and `adawac export`."""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from adawac.cli.shell import EVALUATE, AsJson, app, print_json, print_text, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adawac.inference.prediction import Prediction

CheckpointOption = Annotated[str | None, Parameter(help="last, best or another one; what the run selects by default.")]
TrustCode = Annotated[
    bool,
    Parameter(help="Allow a model folder to import code that it names. Know who made it."),
]


@app.command(group=EVALUATE)
def predict(
    run: Annotated[Path, Parameter(help="A run folder, one of its checkpoint files, or an exported model folder.")],
    scans: Annotated[tuple[str, ...], Parameter(help="NIfTI files, DICOM series, folders of them, or patterns.")],
    /,
    *,
    out: Annotated[Path, Parameter(help="Folder for the label maps.")],
    images: Annotated[
        tuple[str, ...], Parameter(help="Pattern of each channel's files below the folders, as for prepare.")
    ] = (),
    ensemble: Annotated[
        tuple[Path, ...], Parameter(help="Further runs: probabilities are averaged.", consume_multiple=True)
    ] = (),
    checkpoint: CheckpointOption = None,
    format: Annotated[Literal["nifti", "seg"], Parameter(help="NIfTI, or DICOM SEG for DICOM series.")] = "nifti",
    values: Annotated[
        Literal["dataset", "index"], Parameter(help="The data set's own label values, or 0, 1, 2, …")
    ] = "dataset",
    tta: Annotated[bool, Parameter(help="Average over flipped images, too: four passes instead of one.")] = False,
    probabilities: Annotated[bool, Parameter(help="Also write each class's probability.")] = False,
    largest_component: Annotated[bool, Parameter(help="Keep the largest connected part of each class only.")] = False,
    device: Annotated[str, Parameter(help="auto, cpu, cuda, cuda:1, …")] = "auto",
    precision: Annotated[
        Literal["fp32", "bf16"], Parameter(help="Of the network, as for evaluate; fp32 is without TF32's rounding.")
    ] = "fp32",
    batch_size: Annotated[int | None, Parameter(help="Slices at a time; what suits the device by default.")] = None,
    overwrite: Annotated[bool, Parameter(help="Replace label maps that are there.")] = False,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> int:
    """Segment scans; label maps lie on the grid of their scan.

    The exit code is 1 where some scans could not be segmented; the others are done.

    Example: adawac predict runs/adawac scan.nii.gz --out predictions

    Example: adawac predict runs/adawac "scans/*/ct.nii.gz" dicom/ --out predictions --tta --largest-component

    Example: adawac predict runs/adawac scans --images "*/t1.nii.gz" --images "*/t2.nii.gz" --out predictions

    Example: adawac predict runs/seed-1 scans --ensemble runs/seed-2 runs/seed-3 --out predictions
    """
    from adawac.cli.display import bar
    from adawac.inference.prediction import predict as segment

    with bar() as show, _only_errors():
        predictions = segment(
            [run, *ensemble],
            scans,
            out,
            images=images,
            checkpoint=checkpoint,
            format=format,
            values=values,
            tta=tta,
            probabilities=probabilities,
            largest_component=largest_component,
            device=device,
            precision=precision,
            batch_size=batch_size,
            overwrite=overwrite,
            trust_code=trust_code,
            watch=lambda scan, done, slices: show(scan.name, done, slices),
        )
    if as_json:
        print_json([_as_dict(prediction) for prediction in predictions])
    else:
        _show(predictions, out)
    return 1 if any(prediction.error for prediction in predictions) else 0


@contextmanager
def _only_errors() -> "Iterator[None]":
    """Keep warnings from the bar: what failed is said at the end, once."""
    import logging

    log = logging.getLogger("adawac.inference")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


@app.command(group=EVALUATE)
def export(
    run: Annotated[Path, Parameter(help="A run folder, or one of its checkpoint files.")],
    /,
    *,
    out: Annotated[Path, Parameter(help="The file model.onnx, or a folder.")],
    checkpoint: CheckpointOption = None,
    overwrite: Annotated[bool, Parameter(help="Replace what is there.")] = False,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Save a trained network as ONNX, or as a folder that `adawac predict` takes elsewhere.

    Example: adawac export runs/adawac --out model.onnx

    Example: adawac export runs/adawac --out model
    """
    import shlex

    from adawac.inference.model_export import export_model

    made = export_model(run, out, checkpoint=checkpoint, overwrite=overwrite, trust_code=trust_code)
    if as_json:
        print_json({**vars(made), "path": str(made.path)})
        return
    if not made.dynamic:
        name, trust = shlex.quote(str(made.path)), " --trust-code" if made.trust_code else ""
        print_text(printable(f"{made.path}: use it with adawac predict {name} SCAN --out FOLDER{trust}\n"))
        return
    if made.reason:
        print_text(printable(f"Height and width are fixed, as other sizes do not work: {made.reason}\n"))
    sides, gap = ", ".join(made.dynamic), f"{made.difference:.1e}"
    print_text(printable(f"{made.path}: free sides: {sides}. Its logits are torch's, within {gap}.\n"))


def _as_dict(prediction: "Prediction") -> dict[str, object]:
    return {
        "scan": str(prediction.scan.path),
        "labels": None if prediction.labels is None else str(prediction.labels),
        "files": [str(path) for path in prediction.files],
        "error": prediction.error or None,
        "doubt": prediction.doubt or None,
    }


def _show(predictions: "list[Prediction]", out: Path) -> None:
    import shlex
    import sys

    done = [prediction for prediction in predictions if not prediction.error]
    print_text(printable(f"{len(done)} of {len(predictions)} scans segmented, into {out}\n"))
    for prediction in predictions:
        path = prediction.scan.path
        if prediction.error:
            sys.stderr.write(printable(f"adawac: {path} was not segmented. {prediction.error}\n"))
        elif prediction.doubt:
            sys.stderr.write(printable(f"adawac: {path}: {prediction.doubt}\n"))
    words = next(filter(None, (_look(prediction, predictions) for prediction in done)), None)
    if words is not None:
        print_text(printable(f"Look at it: {shlex.join(words)}\n"))


def _look(prediction: "Prediction", predictions: "list[Prediction]") -> list[str]:
    """Return the command that shows a scan with its label map; the viewer takes a folder of one series, and no SEG."""
    scan = prediction.scan
    shared = sum(other.scan.path == scan.path for other in predictions) > 1
    if not str(prediction.labels).endswith(".nii.gz") or (scan.kind == "dicom" and shared):
        return []
    shown = scan.files[0] if scan.kind == "nifti" else scan.path
    return ["adawac", "view", str(shown), "--labels", str(prediction.labels)]
