"""Scans in, label maps out: `predict`."""

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from adawac.data.parallel import check_engine, check_workers, processors, run_jobs, share_of
from adawac.data.task import Task
from adawac.errors import ConfigError
from adawac.files import make_folder
from adawac.inference.confidence import find_temperature, write_review
from adawac.inference.predictor import Precision, Predictor, find_device
from adawac.inference.scan_search import Scan, find_cases, find_scans
from adawac.inference.scan_segmentation import (
    Format,
    Prediction,
    Segmenter,
    SliceProgress,
    files_of,
    kept_prediction,
    refusal,
    weights_digest,
)
from adawac.inference.trained import find_members, load_trained
from adawac.runs import Run

log = logging.getLogger(__name__)

Values = Literal["dataset", "index"]


def predict(
    runs: Path | str | Run | Sequence[Path | str | Run],
    scans: Path | str | Sequence[Path | str],
    out: Path | str,
    *,
    images: Sequence[str] = (),
    checkpoint: str | None = None,
    format: Format | None = None,
    values: Values = "dataset",
    tta: bool = False,
    probabilities: bool = False,
    uncertainty: bool = False,
    largest_component: bool = False,
    overlay: bool = False,
    device: torch.device | str = "auto",
    precision: Precision = "fp32",
    batch_size: int | None = None,
    overwrite: bool = False,
    trust_code: bool = False,
    resume: bool = False,
    workers: int | None = None,
    engine: str = "local",
    address: str | None = None,
    shard: str | None = None,
    watch: SliceProgress | None = None,
    progress: bool | None = None,
) -> list[Prediction]:
    """Segment scans or pictures; each label map lies on the grid of its scan, voxel for voxel.

    What a network was trained on decides which of the two are looked for. The mask of a picture has its size, and a
    palette of the classes' colours.

    A scan that cannot be segmented does not stop the others: its `Prediction` says why, and so does the log.

    Args:
        runs: A run folder, one of its checkpoints (`RUN/checkpoints/best.safetensors`), an exported model folder, or
            the address of one on the Hugging Face Hub (`hf://owner/name[@revision]`); several of them, or the folder of
            an ensemble, are an ensemble, whose probabilities are averaged.
        scans: NIfTI files, DICOM series, or pictures; folders of these, or glob patterns.
        out: Folder for the label maps.
        images: Patterns of NIfTI files below folders that are given as `scans`, one for each channel and in their
            order, as `prepare` takes them; what the wildcards stand for is the scan's name.
        checkpoint: `last`, `best` or another checkpoint of the runs; by default what their configuration selects.
        format: `nifti`, `seg` for DICOM SEG, which takes DICOM series only, or `png` (TIFF where a picture has several
            pages); by default `png` for pictures and else `nifti`.
        values: What stands for a class in the label map: the data set's own label `values`, or the class `index`.
        tta: Average the probabilities over flipped images, too: four passes instead of one.
        probabilities: Also write the probability of each class, with the temperature that `calibrate` fitted.
        uncertainty: Also write the entropy of each voxel, where members of an ensemble disagree, an interval of each
            class's volume, and a list of the scans, the least sure one first. An ensemble takes twice as long.
        largest_component: Keep the largest connected part of each class only.
        overlay: Also write a JPEG of each picture with the classes over it, of 4096 pixels a side at most.
        device: `cpu`, `cuda`, `cuda:1`, …; `auto` is a GPU where there is one.
        precision: Of the network: `fp32`, on a GPU without TF32's rounding, or `bf16`; as for `evaluate`.
        batch_size: Slices at a time; by default what suits the device.
        overwrite: Replace files that exist; otherwise such scans fail.
        trust_code: Also load model folders that name code to import (see `adawac.inference.load_trained`).
        resume: Keep label maps that an earlier call finished, with the same networks and options, of scans that have
            not changed since; segment the others, also those of which a kill left files.
        workers: How many scans at a time, each in a process of its own; by default one after the other in this one, and
            on a cluster as many as there are processors or GPUs.
        engine: `local`, or `ray`: scans are tasks of a cluster, whose machines see all files under the same paths.
        address: Of the Ray cluster; None starts one on this machine.
        shard: `K/N`: segment only every Nth scan from the Kth on. N such calls, on as many machines, do all of them.
        watch: Called as slices are done, where scans are segmented one after the other.
        progress: Show a bar where they are not; by default where stderr is a terminal.

    Returns:
        What became of each scan, or of those of the shard.

    Raises:
        AdawacError: If no scan can be segmented as asked: a wrong run, option, path or output folder.

    Examples:
        >>> import adawac
        >>> for prediction in adawac.predict("runs/adawac", "scans/imagesTr", "labels"):
        ...     print(prediction.scan.name, prediction.labels.name)
        0000-000_0000 0000-000_0000.nii.gz
        0000-001_0000 0000-001_0000.nii.gz
    """
    part = share_of(shard)
    check_workers(workers)
    check_engine(engine, address)
    on_ray, alone = engine == "ray", engine == "local" and workers in (None, 1)
    here = torch.device("cpu") if on_ray else find_device(device)
    asked = [runs] if isinstance(runs, Path | str | Run) else list(runs)
    sources = [member for source in asked for member in find_members(source)]
    if not sources:
        raise ConfigError("Expected a run or a model folder, but got none. Give one.")
    _check_each_once([source.folder if isinstance(source, Run) else Path(source) for source in sources])
    members = [load_trained(source, checkpoint, here, trust_code) for source in sources]
    shared: dict[str, Any] = {"precision": precision, "tta": tta, "batch_size": batch_size}
    Predictor.of(members, device=here, **shared)  # which refuses what does not suit them
    first, out = members[0], Path(out)
    to_do = _find([scans] if isinstance(scans, Path | str) else scans, images, first.task, out)
    disagreement = uncertainty and len(members) > 1
    wanted = {"probabilities": probabilities, "entropy": uncertainty, "disagreement": disagreement, "overlay": overlay}
    extras = [name for name, is_wanted in wanted.items() if is_wanted]
    format = _checked_format(to_do, format, first.task.of_pictures, extras)
    _check_folder(out, [files_of(out, scan, format, extras) for scan in to_do], to_do)
    segmenter = Segmenter(
        loaded=members,
        sources=[source.folder if isinstance(source, Run) else source for source in sources],
        checkpoint=checkpoint,
        trust_code=trust_code,
        device=str(device if on_ray else here),
        threads=None if on_ray or workers is None else max(1, processors() // workers),
        temperature=find_temperature(members, tta),
        weights=[weights_digest(member) for member in members],
        shared=shared,
        out=out,
        format=format,
        dataset_values=values == "dataset",
        extras=extras,
        largest_component=largest_component,
        overwrite=overwrite,
        resume=resume or on_ray,  # there a scan whose machine is lost is done again
        watch=watch,
    )
    outcomes: dict[str, Prediction] = {}
    if on_ray and not (resume or overwrite):
        found = ((scan, segmenter.existing(scan)) for scan in to_do[part])
        outcomes = {scan.name: Prediction(scan=scan, error=refusal(path)) for scan, path in found if path}
    jobs = run_jobs(
        segmenter,
        [scan for scan in to_do[part] if scan.name not in outcomes],
        title="Segmenting",
        workers=1 if alone else workers,
        progress=False if alone else progress,
        engine=engine,
        address=address,
        gpu=not str(device).startswith("cpu"),
    )
    for scan, prediction in jobs:
        outcomes[scan.name] = prediction
        if prediction.error:
            log.warning("%s was not segmented: %s", scan.path, prediction.error)
        elif prediction.doubt and not prediction.kept:
            log.warning("%s: %s", scan.path, prediction.doubt)
    if uncertainty:
        _write_review(segmenter, to_do)
    return [outcomes[scan.name] for scan in to_do[part]]


def _write_review(segmenter: Segmenter, scans: Sequence[Scan]) -> None:
    """Write the list of scans to review: of all that were meant, whoever segmented them."""
    listed = -1
    while True:  # another shard may have ended, with fewer scans on its list than there are now
        kept = [kept_prediction(segmenter, scan) for scan in scans]
        known = {entry.scan.name: entry.uncertainty for entry in kept if entry and entry.uncertainty}
        if len(known) == listed:
            return
        write_review(segmenter.out, known)
        listed = len(known)


def _check_each_once(networks: Sequence[Path]) -> None:
    """Refuse a network that is given twice, as where `ensemble` names the first one again."""
    for number, path in enumerate(networks):
        if path.resolve() in (other.resolve() for other in networks[:number]):
            raise ConfigError(
                f"Expected each network once, but got {path} twice: it would have two votes. Leave one out."
            )


def _find(scans: Sequence[Path | str], images: Sequence[str], task: Task, out: Path) -> list[Scan]:
    """Return the scans, or pictures, that were meant."""
    channels, pictures = task.channels, task.of_pictures
    if not images:
        return find_scans(scans, len(channels), leave_out=out, pictures=pictures)
    if pictures and len(images) > 1:
        raise ConfigError(f"Expected one pattern of pictures, which have all channels, but got {len(images)}.")
    if not pictures and len(images) != len(channels):
        raise ConfigError(
            f"Expected a pattern for each of the {len(channels)} channels ({', '.join(channels)}), but got "
            f"{len(images)}. Give as many, in the order of the channels."
        )
    return find_cases(scans, images, leave_out=out, pictures=pictures)


def _checked_format(scans: Sequence[Scan], format: Format | None, pictures: bool, extras: Sequence[str]) -> Format:
    """Return what label maps are written as, or raise a `ConfigError` for what does not suit the scans."""
    format = format or ("png" if pictures else "nifti")
    if pictures != (format == "png"):
        raise ConfigError(
            f"Expected {'png' if pictures else 'nifti or seg'} as format, since the network was trained on "
            f"{'pictures' if pictures else 'scans'}, but got {format}. Leave it out."
        )
    if "overlay" in extras and not pictures:
        raise ConfigError("Expected pictures for overlays, but the network was trained on scans. Use adawac view.")
    if format == "seg":
        _check_seg(scans, with_maps=bool(extras))
    return format


def _check_seg(scans: Sequence[Scan], with_maps: bool) -> None:
    if with_maps:
        raise ConfigError(
            "Expected NIfTI for probabilities and uncertainty, but got the format seg. Leave one of the two out."
        )
    other = next((scan for scan in scans if scan.kind != "dicom" and not scan.problem), None)
    if other is not None:
        raise ConfigError(
            f"Expected DICOM series for the format seg, but {other.path} is NIfTI. Write NIfTI, or leave it out."
        )


def _check_folder(out: Path, paths: Sequence[dict[str, Path]], scans: Sequence[Scan]) -> None:
    """Raise a `ConfigError` if label maps could not be written, or would replace a scan or one another."""
    try:
        make_folder(out)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise ConfigError(
            f"Expected a folder for label maps that can be written to, but {out} cannot be ({error.strerror}). Give "
            "another `out`, or change its permissions."
        ) from error
    inputs = {path.resolve() for scan in scans for path in scan.files}
    outputs: set[Path] = set()
    for path in (path for files in paths for path in files.values()):
        if path.resolve() in inputs:
            raise ConfigError(
                f"Expected another folder than the scans' for label maps, but {path} is a scan itself. Give another "
                "`out`."
            )
        if path in outputs:  # a scan that is called as another one's probabilities are
            raise ConfigError(f"Expected one file of each name, but {path} would be written twice. Rename a scan.")
        outputs.add(path)
