"""`adawac predict`, `calibrate` and `export`."""

from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from adawac.cli.shell import EVALUATE, HERE, AsJson, Machines, app, as_typed, print_json, print_text, printable
from adawac.errors import ConfigError, MissingFileError
from adawac.files import is_hub_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adawac.inference.confidence import Uncertainty
    from adawac.inference.model_export import Exported, ExportFormat
    from adawac.inference.scan_segmentation import Prediction

CheckpointOption = Annotated[str | None, Parameter(help="last, best or another one; what the run selects by default.")]
TrustCode = Annotated[bool, Parameter(help="Allow a model folder to import code that it names. Know who made it.")]


@app.command(group=EVALUATE)
def predict(
    run: Annotated[
        Path, Parameter(help="A run folder, one of its checkpoint files, an exported model folder, or hf://owner/name.")
    ],
    scans: Annotated[tuple[str, ...], Parameter(help="NIfTI, DICOM or picture files, folders, or patterns.")],
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
    format: Annotated[
        Literal["nifti", "seg", "png"] | None,
        Parameter(help="NIfTI, DICOM SEG for DICOM series, or PNG for pictures; by default what suits the network."),
    ] = None,
    values: Annotated[
        Literal["dataset", "index"], Parameter(help="The data set's own label values, or 0, 1, 2, …")
    ] = "dataset",
    tta: Annotated[bool, Parameter(help="Average over flipped images, too: four passes instead of one.")] = False,
    probabilities: Annotated[bool, Parameter(help="Also write each class's probability.")] = False,
    uncertainty: Annotated[
        bool, Parameter(help="Also write entropies, disagreement, volumes with intervals, and what to review first.")
    ] = False,
    largest_component: Annotated[bool, Parameter(help="Keep the largest connected part of each class only.")] = False,
    overlay: Annotated[bool, Parameter(help="Also write each picture with the classes over it, as JPEG.")] = False,
    device: Annotated[str, Parameter(help="auto, cpu, cuda, cuda:1, …")] = "auto",
    precision: Annotated[
        Literal["fp32", "bf16"], Parameter(help="Of the network, as for evaluate; fp32 is without TF32's rounding.")
    ] = "fp32",
    batch_size: Annotated[int | None, Parameter(help="Slices at a time; what suits the device by default.")] = None,
    overwrite: Annotated[bool, Parameter(help="Replace label maps that are there.")] = False,
    resume: Annotated[
        bool, Parameter(help="Keep label maps that are there, from the same networks and options; do the rest.")
    ] = False,
    workers: Annotated[
        int | None, Parameter(help="Scans at a time, each in a process of its own; one after the other by default.")
    ] = None,
    machines: Machines = HERE,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> int:
    """Segment scans, or pictures; label maps lie on the grid of their scan.

    The exit code is 1 where some scans could not be segmented; the others are done.

    Example: adawac predict runs/adawac scan.nii.gz --out predictions

    Example: adawac predict runs/adawac "scans/*/ct.nii.gz" dicom/ --out predictions --tta --largest-component

    Example: adawac predict runs/adawac scans --images "*/t1.nii.gz" --images "*/t2.nii.gz" --out predictions

    Example: adawac predict runs/surfaces photos --out masks --overlay

    Example: adawac predict runs/seed-1 scans --ensemble runs/seed-2 runs/seed-3 --out predictions

    Example: adawac predict hf://owner/name scans --out predictions

    Example: adawac predict runs/adawac scans --out predictions --resume --shard $SLURM_ARRAY_TASK_ID/8
    """
    for folder in (run, *ensemble):
        _check_exists(folder)
    from adawac.cli.display import bar
    from adawac.inference.prediction import predict as segment

    alone = machines.engine == "local" and workers in (None, 1)  # else a bar counts scans, not slices
    with bar() if alone else nullcontext() as show, _only_errors():
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
            uncertainty=uncertainty,
            largest_component=largest_component,
            overlay=overlay,
            device=device,
            precision=precision,
            batch_size=batch_size,
            overwrite=overwrite,
            trust_code=trust_code,
            resume=resume,
            workers=workers,
            **vars(machines),
            watch=show and (lambda scan, done, slices: show(scan.name, done, slices)),
        )
    if as_json:
        print_json([_as_dict(prediction) for prediction in predictions])
    else:
        _show(predictions, out)
    return 1 if any(prediction.error for prediction in predictions) else 0


def _check_exists(run: Path) -> None:
    """Refuse a run or a model that is not there, before torch is imported, which takes seconds."""
    if not is_hub_address(run) and not run.exists():
        raise MissingFileError(
            f"Expected a run or a model folder, but {run} is not there. Give what `adawac train` or `adawac export` "
            "had as --out."
        )


@contextmanager
def _only_errors() -> "Iterator[None]":
    """Keep warnings from the bar: what failed is said at the end, once."""
    import logging

    log = logging.getLogger("adawac.inference")
    if log.isEnabledFor(logging.DEBUG):  # --debug
        yield
        return
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


@app.command(group=EVALUATE)
def calibrate(
    run: Annotated[Path, Parameter(help="A run folder.")],
    /,
    *,
    data: Annotated[Path | None, Parameter(help="The prepared store, if it has moved.")] = None,
    part: Annotated[
        Literal["val", "test", "train"], Parameter(name="--split-part", help="Part of the run's split to fit to.")
    ] = "val",
    checkpoint: CheckpointOption = None,
    tta: Annotated[bool, Parameter(help="For predict --tta.")] = False,
    device: Annotated[str, Parameter(help="auto, cpu or cuda.")] = "auto",
    precision: Annotated[Literal["fp32", "bf16"], Parameter(help="Of the network.")] = "fp32",
    batch_size: Annotated[int | None, Parameter(help="Slices at a time; what suits the device by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fit the temperature of a run's probabilities to cases that it was not trained on.

    It is kept in the run folder, and predict uses it for probabilities and uncertainty; labels do not change.

    Example: adawac calibrate runs/adawac
    """
    _check_exists(run)
    from dataclasses import asdict

    from adawac.evaluation.calibration import calibrate as fit

    made = fit(
        run,
        data=data,
        part=part,
        checkpoint=checkpoint,
        tta=tta,
        device=device,
        precision=precision,
        batch_size=batch_size,
    )
    if as_json:
        print_json(asdict(made))
        return
    before, after = (100 * reliability.ece_foreground for reliability in (made.before, made.after))
    print_text(
        printable(
            f"{run}: temperature {made.temperature:.3f}, from {made.pixels} pixels of {made.cases} {made.part} cases. "
            f"Gap of confidence and accuracy in the foreground (ECE): {before:.2f} % before, {after:.2f} % after.\n"
        )
    )


@app.command(group=EVALUATE)
def export(
    run: Annotated[Path, Parameter(help="A run folder, one of its checkpoint files, or a model folder.")],
    /,
    *,
    out: Annotated[Path | None, Parameter(help="The file model.onnx, or a folder.")] = None,
    format: Annotated[
        Literal["onnx", "folder", "monai-bundle", "hub"] | None,
        Parameter(help="What to write; by default what the name of --out says, onnx or folder."),
    ] = None,
    hub: Annotated[Path | None, Parameter(help="A folder for the Hugging Face Hub: --format hub --out FOLDER.")] = None,
    license: Annotated[
        str | None, Parameter(help="What others may do with the weights: apache-2.0, cc-by-4.0, …, other.")
    ] = None,
    checkpoint: CheckpointOption = None,
    overwrite: Annotated[bool, Parameter(help="Replace what is there.")] = False,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Save a trained network for use elsewhere: ONNX, a model folder, a MONAI bundle, or a folder for the Hub.

    Example: adawac export runs/adawac --out model.onnx

    Example: adawac export runs/adawac --out model

    Example: adawac export runs/adawac --format monai-bundle --license apache-2.0 --out bundle

    Example: adawac export runs/adawac --hub folder --license cc-by-4.0
    """
    target, format = _export_target(out, hub, format)
    _check_exists(run)
    from adawac.inference.model_export import export_model

    made = export_model(
        run,
        target,
        format=format,
        license=license,
        checkpoint=checkpoint,
        overwrite=overwrite,
        trust_code=trust_code,
    )
    if as_json:
        print_json({**vars(made), "path": str(made.path)})
    else:
        print_text(printable(_describe_export(made)))


def _export_target(
    out: Path | None, hub: Path | None, format: "ExportFormat | None"
) -> "tuple[Path, ExportFormat | None]":
    """Return where to write and what, of which --hub says both."""
    target = out or hub
    if target is None or (out and hub) or (hub and format not in (None, "hub")):
        raise ConfigError(
            "Expected --out, with or without a --format, or else --hub with a folder, but got both or none."
        )
    return target, "hub" if hub else format


def _describe_export(made: "Exported") -> str:
    """Return what was written, and what to do with it next."""
    import shlex

    name = shlex.quote(str(made.path))
    if made.format == "onnx":
        fixed = f"Height and width are fixed, as other sizes do not work: {made.reason}\n" if made.reason else ""
        sides, gap = ", ".join(made.dynamic), f"{made.difference:.1e}"
        return f"{fixed}{made.path}: free sides: {sides}. Its logits are torch's, within {gap}.\n"
    if made.format == "monai-bundle":
        config = shlex.quote(str(made.path / "configs" / "inference.json"))
        return (
            f"{made.path}: run it with python -m monai.bundle run --config_file {config} --bundle_root {name} "
            "--dataset_dir SCANS --output_dir LABELS\n"
        )
    if made.format == "hub":
        readme = shlex.quote(str(made.path / "README.md"))
        return f"{made.path}: read and complete {readme}, then upload it: hf upload OWNER/NAME {name}\n"
    trust = " --trust-code" if made.trust_code else ""
    return f"{made.path}: use it with adawac predict {name} SCAN --out FOLDER{trust}\n"


def _as_dict(prediction: "Prediction") -> dict[str, object]:
    return {
        "scan": str(prediction.scan.path),
        "labels": None if prediction.labels is None else str(prediction.labels),
        "files": [str(path) for path in prediction.files],
        "error": as_typed(prediction.error, "predict") or None,
        "doubt": prediction.doubt or None,
        "kept": prediction.kept,
        "uncertainty": None if prediction.uncertainty is None else prediction.uncertainty.facts(),
    }


def _show(predictions: "list[Prediction]", out: Path) -> None:
    import shlex
    import sys

    done = [prediction for prediction in predictions if not prediction.error]
    kept = sum(prediction.kept for prediction in done)
    before = f", {kept} of them before" if kept else ""
    print_text(printable(f"{len(done)} of {len(predictions)} scans segmented{before}, into {out}\n"))
    for prediction in predictions:
        path = prediction.scan.path
        if prediction.error:
            sys.stderr.write(printable(f"adawac: {path} was not segmented. {as_typed(prediction.error, 'predict')}\n"))
        elif prediction.doubt:
            sys.stderr.write(printable(f"adawac: {path}: {prediction.doubt}\n"))
    _show_review({entry.scan.name: entry.uncertainty for entry in done if entry.uncertainty is not None}, out)
    words = next(filter(None, (_look(prediction, predictions) for prediction in done)), None)
    if words is not None:
        print_text(printable(f"Look at it: {shlex.join(words)}\n"))


_REVIEW = 5  # scans are named


def _show_review(uncertainties: "dict[str, Uncertainty]", out: Path) -> None:
    if not uncertainties:
        return
    from adawac.inference.confidence import REVIEW, review_order

    names = ", ".join(review_order(uncertainties)[:_REVIEW])
    print_text(printable(f"Review first: {names}. All with their volumes: {out / REVIEW}\n"))


def _look(prediction: "Prediction", predictions: "list[Prediction]") -> list[str]:
    """Return the command that shows a scan with its label map; the viewer takes a folder of one series, and no SEG."""
    scan = prediction.scan
    shared = sum(other.scan.path == scan.path for other in predictions) > 1
    if not str(prediction.labels).endswith((".nii.gz", ".png", ".tif")) or (scan.kind == "dicom" and shared):
        return []
    shown = scan.path if scan.kind == "dicom" else scan.files[0]
    return ["adawac", "view", str(shown), "--labels", str(prediction.labels)]
