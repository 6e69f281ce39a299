"""Scans in, label maps out: `predict`."""

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

import adawac
from adawac.data.preprocessing import READY
from adawac.errors import AdawacError, ConfigError, DataError
from adawac.files import make_folder
from adawac.inference.label_files import (
    class_table,
    keep_largest_components,
    label_dtype,
    write_labels,
    write_probabilities,
    write_seg,
    write_sidecar,
)
from adawac.inference.predictor import Precision, Predictor, find_device
from adawac.inference.scan_search import Scan, find_cases, find_scans
from adawac.inference.trained import load_trained
from adawac.inference.trained_network import Trained
from adawac.inference.volumes import PreparedScan, Spool, Volume, open_scan
from adawac.runs import Run

log = logging.getLogger(__name__)

_SCALED_MARGIN = 0.01  # how far off [0, 1] intensities may be that were scaled to it

Format = Literal["nifti", "seg"]
Values = Literal["dataset", "index"]
Labels = npt.NDArray[np.integer[Any]]
#: Called with a scan, how many of its slices are done, and how many there are.
SliceProgress = Callable[[Scan, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What became of one scan.

    Attributes:
        scan: The scan.
        labels: Its label map; None if it failed.
        files: All files that were written for it.
        error: Why it failed; empty if it did not.
        doubt: Why the label map may be wrong; empty if nothing speaks for it.
    """

    scan: Scan
    labels: Path | None = None
    files: tuple[Path, ...] = field(default=())
    error: str = ""
    doubt: str = ""


@dataclass(frozen=True, kw_only=True)
class _Options:
    """What is done with each scan."""

    members: Sequence[Trained]
    predictor: Predictor
    precision: Precision
    tta: bool
    out: Path
    format: Format
    values: Sequence[int]
    probabilities: bool
    largest_component: bool
    overwrite: bool

    @property
    def trained(self) -> Trained:
        return self.members[0]


def predict(
    runs: Path | str | Run | Sequence[Path | str | Run],
    scans: Path | str | Sequence[Path | str],
    out: Path | str,
    *,
    images: Sequence[str] = (),
    checkpoint: str | None = None,
    format: Format = "nifti",
    values: Values = "dataset",
    tta: bool = False,
    probabilities: bool = False,
    largest_component: bool = False,
    device: torch.device | str = "auto",
    precision: Precision = "fp32",
    batch_size: int | None = None,
    overwrite: bool = False,
    trust_code: bool = False,
    watch: SliceProgress | None = None,
) -> list[Prediction]:
    """Segment scans; each label map lies on the grid of its scan, voxel for voxel.

    A scan that cannot be segmented does not stop the others: its `Prediction` says why, and so does the log.

    Args:
        runs: A run folder, one of its checkpoints (`RUN/checkpoints/best.safetensors`), or an exported model folder;
            several of them are an ensemble, whose probabilities are averaged.
        scans: NIfTI files, DICOM series, folders of these, or glob patterns.
        out: Folder for the label maps.
        images: Patterns of NIfTI files below folders that are given as `scans`, one for each channel and in their
            order, as `prepare` takes them; what the wildcards stand for is the scan's name.
        checkpoint: `last`, `best` or another checkpoint of the runs; by default what their configuration selects.
        format: `nifti`, or `seg` for DICOM SEG, which takes DICOM series only.
        values: What stands for a class in the label map: the data set's own label `values`, or the class `index`.
        tta: Average the probabilities over flipped images, too: four passes instead of one.
        probabilities: Also write the probability of each class.
        largest_component: Keep the largest connected part of each class only.
        device: `cpu`, `cuda`, `cuda:1`, …; `auto` is a GPU where there is one.
        precision: Of the network: `fp32`, on a GPU without TF32's rounding, or `bf16`; as for `evaluate`.
        batch_size: Slices at a time; by default what suits the device.
        overwrite: Replace files that exist; otherwise such scans fail.
        trust_code: Also load model folders that name code to import (see `adawac.inference.load_trained`).
        watch: Called as slices are done.

    Raises:
        AdawacError: If no scan can be segmented as asked: a wrong run, option, path or output folder.
    """
    device = find_device(device)
    sources = [runs] if isinstance(runs, Path | str | Run) else list(runs)
    if not sources:
        raise ConfigError("Expected a run or a model folder, but got none. Give one.")
    _check_each_once([source.folder if isinstance(source, Run) else Path(source) for source in sources])
    members = [load_trained(source, checkpoint, device, trust_code) for source in sources]
    predictor = Predictor.of(members, device=device, precision=precision, tta=tta, batch_size=batch_size)
    first, out = members[0], Path(out)
    to_do = _find([scans] if isinstance(scans, Path | str) else scans, images, first.channels, out)
    _check_format(to_do, format, probabilities)
    _check_folder(out, [_paths(out, scan, format, probabilities) for scan in to_do], to_do)
    options = _Options(
        members=members,
        predictor=predictor,
        precision=precision,
        tta=tta,
        out=out,
        format=format,
        values=[class_values[0] if values == "dataset" else k for k, class_values in enumerate(first.label_values)],
        probabilities=probabilities,
        largest_component=largest_component,
        overwrite=overwrite,
    )
    return [_attempt(options, scan, watch or (lambda scan, done, slices: None)) for scan in to_do]


def _check_each_once(networks: Sequence[Path]) -> None:
    """Refuse a network that is given twice, as where the first one is named again in --ensemble."""
    seen: set[Path] = set()
    for path in networks:
        if path.resolve() in seen:
            raise ConfigError(
                f"Expected each network once, but got {path} twice: it would have two votes. Leave one out; --ensemble "
                "names those besides the first."
            )
        seen.add(path.resolve())


def _find(scans: Sequence[Path | str], images: Sequence[str], channels: Sequence[str], out: Path) -> list[Scan]:
    """Return the scans that were meant."""
    if not images:
        return find_scans(scans, len(channels), leave_out=out)
    if len(images) != len(channels):
        raise ConfigError(
            f"Expected a pattern for each of the {len(channels)} channels ({', '.join(channels)}), but got "
            f"{len(images)}. Give as many, in the order of the channels."
        )
    return find_cases(scans, images, leave_out=out)


def _check_format(scans: Sequence[Scan], format: Format, probabilities: bool) -> None:
    if format != "seg":
        return
    if probabilities:
        raise ConfigError("Expected NIfTI for probabilities, but got the format seg. Leave one of the two out.")
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
            "another --out, or change its permissions."
        ) from error
    inputs = {path.resolve() for scan in scans for path in scan.files}
    outputs: set[Path] = set()
    for path in (path for files in paths for path in files.values()):
        if path.resolve() in inputs:
            raise ConfigError(
                f"Expected another folder than the scans' for label maps, but {path} is a scan itself. Give another "
                "--out."
            )
        if path in outputs:  # a scan that is called as another one's probabilities are
            raise ConfigError(f"Expected one file of each name, but {path} would be written twice. Rename a scan.")
        outputs.add(path)


def _paths(out: Path, scan: Scan, format: Format, probabilities: bool) -> dict[str, Path]:
    """Return where what is written for a scan goes, the label map first."""
    endings = {format: {"nifti": ".nii.gz", "seg": ".dcm"}[format], "sidecar": ".json"}
    if probabilities:
        endings["probabilities"] = "_probabilities.nii.gz"
    return {what: out / f"{scan.name}{ending}" for what, ending in endings.items()}


# -- a scan -----------------------------------------------------------------------------------------------------------


def _attempt(options: _Options, scan: Scan, watch: SliceProgress) -> Prediction:
    try:
        return _predict(options, scan, watch)
    except AdawacError as error:
        reason = str(error)
    except OSError as error:
        what = error.strerror or error
        reason = f"Expected to write to {options.out}, but got: {what}. Make room, or check the folder's permissions."
    except Exception as error:  # whatever it is, the scans after this one are still done
        log.debug("segmenting %s", scan.path, exc_info=True)
        reason = f"Unexpected {type(error).__name__}: {' '.join(str(error).split())}"
    log.warning("%s was not segmented: %s", scan.path, reason)
    return Prediction(scan=scan, error=reason)


def _predict(options: _Options, scan: Scan, watch: SliceProgress) -> Prediction:
    paths = _paths(options.out, scan, options.format, options.probabilities)
    existing = next((path for path in paths.values() if path.exists()), None)
    if existing and not options.overwrite:
        raise DataError(f"Expected no label map of it yet, but {existing} exists. Give --overwrite, or another --out.")
    trained = options.trained
    volume = open_scan(scan, trained.channels)
    known = [value for values in trained.label_values for value in values]
    classes = class_table(trained.class_names, options.values)
    with tempfile.TemporaryFile(dir=options.out) as scratch:
        with Spool(volume, options.out, known) as spool:
            prepared = PreparedScan(spool, trained.preprocessing)
            doubt = _doubt(trained, spool)
            labels = _segment(options, prepared, scratch, lambda done: watch(scan, done, prepared.slices))
        if options.probabilities:
            shape = (prepared.slices, len(classes), *prepared.plane)
            write_probabilities(paths["probabilities"], _by_class(options, scratch, shape, volume), volume, classes)
    labels = _native(trained, labels, volume)
    removed = keep_largest_components(labels) if options.largest_component else 0
    if options.format == "seg":
        write_seg(paths["seg"], labels, volume, trained.class_names)
        classes = class_table(trained.class_names, range(len(classes)))
    else:
        write_labels(paths["nifti"], _with_values(labels, options.values), volume, classes)
    write_sidecar(paths["sidecar"], _describe(options, scan, paths, classes, removed))
    if doubt:
        log.warning("%s: %s", scan.path, doubt)
    return Prediction(scan=scan, labels=paths[options.format], files=tuple(paths.values()), doubt=doubt)


def _doubt(trained: Trained, spool: Spool) -> str:
    """Return why a scan does not suit the network: TransUNet's files are scaled and cut differently from scans."""
    scaled = spool.lowest >= -_SCALED_MARGIN and spool.highest <= 1 + _SCALED_MARGIN
    if scaled or replace(trained.preprocessing, size=None) != READY:
        return ""
    return (
        "The network takes files as they are and cuts them along their first axis, as TransUNet's files are made for: "
        f"scaled to [0, 1]. This scan has intensities from {spool.lowest:g} to {spool.highest:g}, so its label map is "
        "likely wrong. Prepare the original scans, and train on these."
    )


def _segment(options: _Options, prepared: PreparedScan, scratch: IO[bytes], watch: Callable[[int], None]) -> Labels:
    """Return the classes of all prepared slices, (S, H, W); probabilities go to the disk on the way."""
    trained = options.trained
    labels = np.zeros((prepared.slices, *prepared.plane), np.min_scalar_type(len(trained.class_names) - 1))
    watch(0)
    slices = (prepared.read(start, stop) for start, stop in prepared.blocks())
    start = 0
    for block, shares in options.predictor.run(slices, options.probabilities):
        labels[start : start + len(block)] = block
        if shares is not None:
            scratch.write(shares.data)
        start += len(block)
        watch(start)
    scratch.flush()
    return labels


def _native(trained: Trained, samples: npt.NDArray[Any], volume: Volume) -> npt.NDArray[Any]:
    """Bring prepared slices (S, H, W) back to the file's own grid."""
    preprocessing = trained.preprocessing
    return preprocessing.undo(preprocessing.join(samples), volume.shape, volume.spacing, volume.affine)


def _by_class(
    options: _Options, scratch: IO[bytes], shape: tuple[int, ...], volume: Volume
) -> Iterator[npt.NDArray[np.uint16]]:
    for k in range(shape[1]):
        # A map of its own for each class: what was read does not count as the process's memory afterwards.
        stored = np.memmap(scratch, np.uint16, "r", shape=shape)
        native = _native(options.trained, stored[:, k], volume)
        del stored
        yield native


def _with_values(labels: Labels, values: Sequence[int]) -> Labels:
    table = np.array(values, dtype=label_dtype(values))
    same = np.array_equal(table, np.arange(len(table))) and table.dtype == labels.dtype
    return labels if same else table[labels]


def _describe(
    options: _Options, scan: Scan, paths: dict[str, Path], classes: list[dict[str, Any]], removed: int
) -> dict[str, Any]:
    """Return what stands beside a label map. Names of files and folders, but no paths: these may name people."""
    trained = options.trained
    return {
        "scan": scan.path.name,
        "labels": paths[options.format].name,
        "probabilities": paths["probabilities"].name if options.probabilities else None,
        "classes": classes,
        "networks": [
            {
                "from": member.source.resolve().name,
                "checkpoint": member.checkpoint,
                "model": member.model.name,
                "dataset": member.dataset,
            }
            for member in options.members
        ],
        "preprocessing": trained.preprocessing.to_dict(),
        "image_size": list(trained.image_size),
        "resize": trained.resize,
        "precision": options.precision,
        "tta": options.tta,
        "largest_component": {"removed_voxels": removed} if options.largest_component else None,
        "adawac": adawac.__version__,
    }
