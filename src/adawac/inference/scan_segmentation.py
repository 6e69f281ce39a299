"""One scan or picture: segmented, or kept from an earlier call; its label map and the files beside it."""

import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

import adawac
from adawac.data.preprocessing import READY, Preprocessing
from adawac.data.sources.label_maps import COMPANIONS
from adawac.errors import AdawacError, DataError
from adawac.inference import label_files
from adawac.inference.confidence import Uncertainty, UncertaintyMeter, count_votes
from adawac.inference.picture_masks import (
    BandWatch,
    PictureInput,
    band_rows,
    mask_classes,
    mask_ending,
    probability_pages,
    segment,
    write_mask,
    write_overlay,
    write_picture_shares,
)
from adawac.inference.predictor import Predictor, Shares, find_device
from adawac.inference.scan_search import Scan
from adawac.inference.trained import load_trained, source_name
from adawac.inference.trained_network import Trained
from adawac.inference.volumes import PreparedScan, Spool, Volume, open_scan

log = logging.getLogger(__name__)

_SCALED_MARGIN = 0.01  # how far off [0, 1] intensities may be that were scaled to it

Format = Literal["nifti", "seg", "png"]
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
        uncertainty: How sure it is, if that was asked for.
        kept: Whether an earlier call had made it.
    """

    scan: Scan
    labels: Path | None = None
    files: tuple[Path, ...] = ()
    error: str = ""
    doubt: str = ""
    uncertainty: Uncertainty | None = None
    kept: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Segmenter:
    """Segments scans, in this process or in others, which load the networks themselves with their first scan.

    Attributes:
        loaded: The networks, where they are loaded already.
        sources: Where they come from.
        device: Where they go; `auto` is what the machine has.
        threads: Of torch in other processes; None leaves that to torch.
        weights: A digest of each network's weights.
        shared: Further options of `Predictor`.
        resume: Keep what was finished before.
        watch: Is told how far a scan is; not in other processes.
    """

    loaded: Sequence[Trained] | None
    sources: Sequence[Path | str]
    checkpoint: str | None
    trust_code: bool
    device: str
    threads: int | None
    temperature: float
    weights: Sequence[str]
    shared: Mapping[str, Any]
    out: Path
    format: Format
    dataset_values: bool
    extras: Sequence[str]
    largest_component: bool
    overwrite: bool
    resume: bool
    watch: SliceProgress | None

    def __getstate__(self) -> dict[str, Any]:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**given, "loaded": None, "watch": None}

    def __call__(self, scan: Scan) -> Prediction:
        """Return what became of a scan, whatever goes wrong with it."""
        _ = self.predictor  # what is wrong with the networks is no fault of the scan
        try:
            return _predict(self, scan, self.watch or (lambda scan, done, slices: None))
        except Exception as error:  # whatever it is, the scans after this one are still done
            log.debug("segmenting %s", scan.path, exc_info=True)
            return Prediction(scan=scan, error=_reason(error, self.out))

    @cached_property
    def members(self) -> Sequence[Trained]:
        """The networks, on their device."""
        if self.loaded is not None:
            return self.loaded
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        device = find_device(self.device)
        return [load_trained(source, self.checkpoint, device, self.trust_code) for source in self.sources]

    @cached_property
    def machine(self) -> dict[str, Any]:
        """The device with the other options of `Predictor`."""
        return {**self.shared, "device": find_device(self.device)}

    @cached_property
    def predictor(self) -> Predictor:
        """What runs the networks."""
        return Predictor.of(self.members, temperature=self.temperature, **self.machine)

    @property
    def trained(self) -> Trained:
        """The first network, which the others agree with in all but their weights."""
        return self.members[0]

    @property
    def preprocessing(self) -> Preprocessing:
        """How scans are prepared."""
        return next((member for member in self.members if member.orientation), self.trained).task.scan_preprocessing

    @property
    def values(self) -> list[int]:
        """What stands for each class in a label map."""
        return [group[0] if self.dataset_values else k for k, group in enumerate(self.trained.label_values)]

    def files(self, scan: Scan) -> dict[str, Path]:
        """Return where what is written for a scan goes, the label map first."""
        return files_of(self.out, scan, self.format, self.extras)

    def existing(self, scan: Scan) -> Path | None:
        """Return a file that stands where one of a scan's would go."""
        return next((path for path in self.files(scan).values() if path.exists()), None)


def weights_digest(member: Trained) -> str:
    """Return what tells weights apart that bear the same name."""
    digest = sha256()
    for name, tensor in member.network.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def files_of(out: Path, scan: Scan, format: Format, extras: Sequence[str]) -> dict[str, Path]:
    """Return where what is written for a scan goes, the label map first."""
    ending = mask_ending(scan.path) if format == "png" else {"nifti": ".nii.gz", "seg": ".dcm"}[format]
    endings = {format: ending, "sidecar": ".json"}
    maps = {"overlay": ".jpg"} | ({"probabilities": ".tif"} if format == "png" else {})
    other = ending if format == "png" else ".nii.gz"
    endings |= {name: COMPANIONS[name] + maps.get(name, other) for name in extras}
    return {what: out / f"{scan.name}{ending}" for what, ending in endings.items()}


def _reason(error: Exception, out: Path) -> str:
    if isinstance(error, AdawacError):
        return str(error)
    if isinstance(error, OSError):
        what = error.strerror or error
        return f"Expected to write to {out}, but got: {what}. Make room, or check the folder's permissions."
    return f"Unexpected {type(error).__name__}: {' '.join(str(error).split())}"


def _predict(segmenter: Segmenter, scan: Scan, watch: SliceProgress) -> Prediction:
    if segmenter.resume and not segmenter.overwrite and (kept := kept_prediction(segmenter, scan, strict=True)):
        return kept
    if not (segmenter.resume or segmenter.overwrite) and (existing := segmenter.existing(scan)):
        raise DataError(refusal(existing))
    predict = _predict_picture if segmenter.format == "png" else _predict_scan
    return predict(segmenter, scan, segmenter.files(scan), watch)


def refusal(existing: Path) -> str:
    """Return why a scan is not segmented whose label map, or another file of it, exists."""
    return f"Expected no label map of it yet, but {existing} exists. Give `overwrite=True`, or another `out`."


def kept_prediction(segmenter: Segmenter, scan: Scan, *, strict: bool = False) -> Prediction | None:
    """Return what was finished of a scan, which its sidecar says, as that is written last; None where nothing was.

    What was made with other networks or options does not count; with `strict` it is an error.
    """
    paths = segmenter.files(scan)
    try:
        written = paths["sidecar"].stat().st_mtime_ns
        facts = json.loads(paths["sidecar"].read_text(encoding="utf-8"))
        whole = all(path.exists() for path in paths.values()) and not scan.problem
        whole = whole and ("entropy" not in segmenter.extras or facts.get("uncertainty") is not None)
        if not whole or any(path.stat().st_mtime_ns > written for path in scan.files):
            return None
    except (OSError, ValueError):
        return None
    settings = json.loads(json.dumps(_settings(segmenter)))
    other = [name for name, value in settings.items() if facts.get(name) != value]
    if (facts.get("largest_component") is not None) != segmenter.largest_component:
        other.append("largest_component")
    if other:
        if strict:
            raise DataError(
                f"Expected label maps of the same networks and options, but {paths['sidecar']} says something else of "
                f"its {', '.join(other)}. Give `overwrite=True`, or another `out`."
            )
        return None
    return Prediction(
        scan=scan,
        labels=paths[segmenter.format],
        files=tuple(paths.values()),
        doubt=facts.get("doubt") or "",
        uncertainty=Uncertainty.from_facts(facts["uncertainty"]) if "entropy" in segmenter.extras else None,
        kept=True,
    )


def _predict_picture(segmenter: Segmenter, scan: Scan, paths: dict[str, Path], watch: SliceProgress) -> Prediction:
    if scan.problem:
        raise DataError(scan.problem)
    picture, classes = PictureInput(scan.path, segmenter.trained.task), _class_rows(segmenter)
    labels, uncertainty = _measure_picture(segmenter, picture, paths, partial(watch, scan))
    removed = label_files.keep_largest_components(labels) if segmenter.largest_component else 0
    write_mask(paths["png"], labels, classes)
    if "overlay" in segmenter.extras:
        write_overlay(paths["overlay"], picture, labels, classes)
    label_files.write_sidecar(
        paths["sidecar"], _describe(segmenter, segmenter.preprocessing, scan, paths, removed, uncertainty)
    )
    return Prediction(scan=scan, labels=paths["png"], files=tuple(paths.values()), uncertainty=_measured(uncertainty))


def _measure_picture(
    segmenter: Segmenter, picture: PictureInput, paths: Mapping[str, Path], watch: Callable[[int, int], None]
) -> tuple[Labels, Uncertainty | None]:
    """Return the classes of a picture (pages, H, W), and how sure they are; files of both go to the disk on the way."""
    trained, (pages, height, width) = segmenter.trained, picture.shape
    meter = UncertaintyMeter((pages * height, 1, width), trained.num_classes) if "entropy" in segmenter.extras else None
    with ExitStack() as stack:
        measures: list[BandWatch] = []
        if "probabilities" in segmenter.extras:
            writer = probability_pages(paths["probabilities"], picture.shape, trained.num_classes)
            measures.append(stack.enter_context(writer))
        if meter is not None:
            measures.append(meter.add_rows)

        def measure(start: int, band: Labels, shares: Shares) -> None:
            for add in measures:
                add(start, band, shares)

        labels = segment(segmenter.predictor, picture, watch, measure if measures else None)
    if meter is None:
        return labels, None
    rows = labels.reshape(pages * height, 1, width)
    votes = None
    if len(segmenter.members) > 1:
        votes = count_votes(segmenter.members, partial(band_rows, picture=picture), rows, segmenter.machine)
    uncertainty = meter.result(rows, trained.class_names, votes)
    for name, shares in (("entropy", uncertainty.entropy), ("disagreement", uncertainty.votes)):
        if shares is not None:
            write_picture_shares(paths[name], shares.reshape(pages, height, width))
    return labels, uncertainty


def _predict_scan(segmenter: Segmenter, scan: Scan, paths: dict[str, Path], watch: SliceProgress) -> Prediction:
    trained = segmenter.trained
    volume = open_scan(scan, trained.channels)
    sources = label_files.read_seg_sources(volume) if segmenter.format == "seg" else []
    preprocessing = segmenter.preprocessing
    if fixed := volume.orientation is None and preprocessing != trained.preprocessing:
        preprocessing = trained.preprocessing
    native = partial(_native, preprocessing, volume)
    known = [value for values in trained.label_values for value in values]
    classes = _class_rows(segmenter)
    with tempfile.TemporaryFile(dir=segmenter.out) as scratch:
        with Spool(volume, segmenter.out, known) as spool:
            prepared = PreparedScan(spool, preprocessing)
            doubt = " ".join(_doubts(segmenter.members, spool, fixed))
            meter = _scan_meter(prepared, len(classes)) if "entropy" in segmenter.extras else None
            labels = _segment(segmenter, prepared, scratch, meter, lambda done: watch(scan, done, prepared.slices))
            uncertainty = None if meter is None else _measure(segmenter, prepared, labels, meter)
        if "probabilities" in segmenter.extras:
            shape = (prepared.slices, len(classes), *prepared.plane)
            label_files.write_probabilities(paths["probabilities"], _by_class(scratch, shape, native), volume, classes)
    if uncertainty is not None:
        _write_uncertainty(uncertainty, paths, volume, native)
    labels = native(labels)
    removed = label_files.keep_largest_components(labels) if segmenter.largest_component else 0
    if segmenter.format == "seg":
        label_files.write_seg(paths["seg"], labels, volume, sources, trained.class_names)
    else:
        label_files.write_labels(paths["nifti"], _with_values(labels, segmenter.values), volume, classes)
    label_files.write_sidecar(
        paths["sidecar"], _describe(segmenter, preprocessing, scan, paths, removed, uncertainty, doubt)
    )
    return Prediction(
        scan=scan,
        labels=paths[segmenter.format],
        files=tuple(paths.values()),
        doubt=doubt,
        uncertainty=_measured(uncertainty),
    )


def _measured(uncertainty: Uncertainty | None) -> Uncertainty | None:
    """Return the numbers alone: the maps are on the disk, and would fill the memory scan by scan."""
    return None if uncertainty is None else replace(uncertainty, entropy=None, votes=None)


def _measure(segmenter: Segmenter, prepared: PreparedScan, labels: Labels, meter: UncertaintyMeter) -> Uncertainty:
    several = len(segmenter.members) > 1
    votes = count_votes(segmenter.members, partial(_blocks, prepared), labels, segmenter.machine) if several else None
    return meter.result(labels, segmenter.trained.class_names, votes)


def _scan_meter(prepared: PreparedScan, num_classes: int) -> UncertaintyMeter:
    shape = (prepared.slices, *prepared.plane)
    return UncertaintyMeter(shape, num_classes, prepared.voxel_volume / 1000, "ml")


def _blocks(prepared: PreparedScan, predictor: Predictor) -> Iterator[Labels]:
    """Yield the classes of a scan's slices, block by block."""
    return predictor.predict(prepared.read(*ends) for ends in prepared.blocks())


def _write_uncertainty(
    uncertainty: Uncertainty, paths: Mapping[str, Path], volume: Volume, native: Callable[..., npt.NDArray[Any]]
) -> None:
    for name, shares in (("entropy", uncertainty.entropy), ("disagreement", uncertainty.votes)):
        if shares is not None:
            label_files.write_shares(paths[name], native(shares), volume, name)


def _doubts(members: Sequence[Trained], spool: Spool, fixed: bool) -> Iterator[str]:
    """Yield why a scan may not suit the networks; `fixed` says that it should have been turned and could not be."""
    volume, scaled = spool.volume, spool.lowest >= -_SCALED_MARGIN and spool.highest <= 1 + _SCALED_MARGIN
    if replace(members[0].preprocessing, size=None) == READY and not scaled:  # cut differently from scans, too
        yield (
            "The network takes files as they are and cuts them along their first axis, as TransUNet's files are made "
            f"for: scaled to [0, 1]. This scan has intensities from {spool.lowest:g} to {spool.highest:g}, so its "
            "label map is likely wrong. Prepare the original scans, and train on these."
        )
    trained = next((member.orientation for member in members if member.orientation), None)
    if fixed and trained != volume.axes:
        yield (
            f"The network was trained on scans whose axes point to {trained}, but the header of this one does not say "
            f"clearly where its axes point ({volume.axes} at a guess), so it was segmented as it lies. Look at it."
        )
    modalities = {member.modality for member in members} - {None, volume.modality}
    if modalities and volume.modality:
        yield (
            f"The network was trained on {', '.join(map(str, modalities))}, but this scan is {volume.modality}, so its "
            "label map is likely wrong."
        )


def _segment(
    segmenter: Segmenter,
    prepared: PreparedScan,
    scratch: IO[bytes],
    meter: UncertaintyMeter | None,
    watch: Callable[[int], None],
) -> Labels:
    """Return the classes of all prepared slices, (S, H, W); probabilities go to the disk on the way."""
    trained = segmenter.trained
    labels = np.zeros((prepared.slices, *prepared.plane), np.min_scalar_type(len(trained.class_names) - 1))
    watch(0)
    slices = (prepared.read(start, stop) for start, stop in prepared.blocks())
    start = 0
    wanted = "probabilities" in segmenter.extras or meter is not None
    for block, shares, _ in segmenter.predictor.run(slices, probabilities=wanted):
        labels[start : start + len(block)] = block
        if shares is not None and "probabilities" in segmenter.extras:
            scratch.write(shares.data)
        if shares is not None and meter is not None:
            meter.add(start, block, shares)
        start += len(block)
        watch(start)
    scratch.flush()
    return labels


def _native(preprocessing: Preprocessing, volume: Volume, samples: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Bring prepared slices (S, H, W) back to the file's own grid."""
    return preprocessing.undo(preprocessing.join(samples), volume.shape, volume.spacing, volume.affine)


def _by_class(
    scratch: IO[bytes], shape: tuple[int, ...], native: Callable[..., npt.NDArray[Any]]
) -> Iterator[npt.NDArray[np.uint16]]:
    for k in range(shape[1]):
        # A map of its own for each class: what was read does not count as the process's memory afterwards.
        stored = np.memmap(scratch, np.uint16, "r", shape=shape)
        whole = native(stored[:, k])
        del stored
        yield whole


def _with_values(labels: Labels, values: Sequence[int]) -> Labels:
    table = np.array(values, dtype=label_files.label_dtype(values))
    same = np.array_equal(table, np.arange(len(table))) and table.dtype == labels.dtype
    return labels if same else table[labels]


def _class_rows(segmenter: Segmenter) -> list[dict[str, Any]]:
    """Return what each class is called in the label maps, and what stands for it."""
    trained = segmenter.trained
    if segmenter.format == "png":
        return mask_classes(trained.task, segmenter.values)
    values = range(len(segmenter.values)) if segmenter.format == "seg" else segmenter.values
    return label_files.class_table(trained.class_names, values)


def _settings(segmenter: Segmenter) -> dict[str, Any]:
    """Return what decides a label map beside its scan."""
    trained = segmenter.trained
    return {
        "temperature": segmenter.temperature,
        "classes": _class_rows(segmenter),
        "networks": [
            {
                "from": source_name(member.source),
                "checkpoint": member.checkpoint,
                "weights": weights,
                "model": member.model.name,
                "dataset": member.dataset,
            }
            for member, weights in zip(segmenter.members, segmenter.weights, strict=True)
        ],
        "image_size": list(trained.image_size),
        "resize": trained.resize,
        "precision": segmenter.shared["precision"],
        "tta": segmenter.shared["tta"],
    }


def _describe(
    segmenter: Segmenter,
    preprocessing: Preprocessing,
    scan: Scan,
    paths: dict[str, Path],
    removed: int,
    uncertainty: Uncertainty | None,
    doubt: str = "",
) -> dict[str, Any]:
    """Return what stands beside a label map. Names of files and folders, but no paths: these may name people."""
    return {
        "scan": scan.path.name,
        "labels": paths[segmenter.format].name,
        "probabilities": paths["probabilities"].name if "probabilities" in segmenter.extras else None,
        "uncertainty": None if uncertainty is None else uncertainty.facts(),
        **_settings(segmenter),
        "preprocessing": preprocessing.to_dict(),
        "largest_component": {"removed_voxels": removed} if segmenter.largest_component else None,
        "doubt": doubt or None,
        "adawac": adawac.__version__,
    }
