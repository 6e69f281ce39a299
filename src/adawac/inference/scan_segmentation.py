"""One scan or picture: segmented, or kept from an earlier call; its label map and the files beside it."""

import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
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


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is done with each scan, as another process needs it, which loads the networks itself.

    Attributes:
        sources: The networks.
        device: Where they go; `auto` is what the machine has.
        threads: Of torch; None leaves that to torch.
        weights: A digest of each network's weights.
        shared: Further options of `Predictor`.
        resume: Keep what was finished before.
    """

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

    def load(self) -> list[Trained]:
        """Return the networks, on their device."""
        device = find_device(self.device)
        return [load_trained(source, self.checkpoint, device, self.trust_code) for source in self.sources]


@dataclass(frozen=True, kw_only=True)
class Options:
    """A request with its networks on their device."""

    request: Request
    members: Sequence[Trained]
    predictor: Predictor
    preprocessing: Preprocessing
    values: Sequence[int]
    shared: Mapping[str, Any]

    @classmethod
    def of(cls, request: Request, members: Sequence[Trained]) -> "Options":
        """Return what a request comes to with these networks."""
        shared = {**request.shared, "device": find_device(request.device)}
        first = members[0]
        values = [group[0] if request.dataset_values else k for k, group in enumerate(first.label_values)]
        return cls(
            request=request,
            members=members,
            predictor=Predictor.of(members, temperature=request.temperature, **shared),
            preprocessing=next((member for member in members if member.orientation), first).task.scan_preprocessing,
            values=values,
            shared=shared,
        )

    @property
    def trained(self) -> Trained:
        """The first network, which the others agree with in all but their weights."""
        return self.members[0]

    def files(self, scan: Scan) -> dict[str, Path]:
        """Return where what is written for a scan goes, the label map first."""
        return files_of(self.request.out, scan, self.request.format, self.request.extras)

    def existing(self, scan: Scan) -> Path | None:
        """Return a file that stands where one of a scan's would go."""
        return next((path for path in self.files(scan).values() if path.exists()), None)


class Segmenter:
    """Segments scans, in this process or in others, which load the networks themselves with their first scan."""

    def __init__(self, request: Request, options: Options, watch: SliceProgress | None):
        self._request, self._watch = request, watch
        self._options: Options | None = options

    def __getstate__(self) -> dict[str, Any]:
        return {"_request": self._request, "_options": None, "_watch": None}

    def __call__(self, scan: Scan) -> Prediction:
        """Return what became of a scan, whatever goes wrong with it."""
        if self._options is None:
            if self._request.threads is not None:
                torch.set_num_threads(self._request.threads)
            self._options = Options.of(self._request, self._request.load())
        return _attempt(self._options, scan, self._watch or (lambda scan, done, slices: None))


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


def _attempt(options: Options, scan: Scan, watch: SliceProgress) -> Prediction:
    try:
        return _predict(options, scan, watch)
    except Exception as error:  # whatever it is, the scans after this one are still done
        log.debug("segmenting %s", scan.path, exc_info=True)
        return Prediction(scan=scan, error=_reason(error, options.request.out))


def _reason(error: Exception, out: Path) -> str:
    if isinstance(error, AdawacError):
        return str(error)
    if isinstance(error, OSError):
        what = error.strerror or error
        return f"Expected to write to {out}, but got: {what}. Make room, or check the folder's permissions."
    return f"Unexpected {type(error).__name__}: {' '.join(str(error).split())}"


def _predict(options: Options, scan: Scan, watch: SliceProgress) -> Prediction:
    request = options.request
    if request.resume and not request.overwrite and (kept := kept_prediction(options, scan, strict=True)):
        return kept
    if not (request.resume or request.overwrite) and (existing := options.existing(scan)):
        raise DataError(refusal(existing))
    return (_predict_picture if request.format == "png" else _predict_scan)(options, scan, options.files(scan), watch)


def refusal(existing: Path) -> str:
    """Return why a scan is not segmented whose label map, or another file of it, exists."""
    return f"Expected no label map of it yet, but {existing} exists. Give `overwrite=True`, or another `out`."


def kept_prediction(options: Options, scan: Scan, *, strict: bool = False) -> Prediction | None:
    """Return what was finished of a scan, which its sidecar says, as that is written last; None where nothing was.

    What was made with other networks or options does not count; with `strict` it is an error.
    """
    request, paths = options.request, options.files(scan)
    try:
        written = paths["sidecar"].stat().st_mtime_ns
        facts = json.loads(paths["sidecar"].read_text(encoding="utf-8"))
        whole = all(path.exists() for path in paths.values()) and not scan.problem
        whole = whole and ("entropy" not in request.extras or facts.get("uncertainty") is not None)
        if not whole or any(path.stat().st_mtime_ns > written for path in scan.files):
            return None
    except (OSError, ValueError):
        return None
    settings = json.loads(json.dumps(_settings(options)))
    other = [name for name, value in settings.items() if facts.get(name) != value]
    if (facts.get("largest_component") is not None) != request.largest_component:
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
        labels=paths[request.format],
        files=tuple(paths.values()),
        doubt=facts.get("doubt") or "",
        uncertainty=Uncertainty.from_facts(facts["uncertainty"]) if "entropy" in request.extras else None,
        kept=True,
    )


def _predict_picture(options: Options, scan: Scan, paths: dict[str, Path], watch: SliceProgress) -> Prediction:
    if scan.problem:
        raise DataError(scan.problem)
    picture, classes = PictureInput(scan.path, options.trained.task), _class_rows(options)
    labels, uncertainty = _measure_picture(options, picture, paths, partial(watch, scan))
    removed = label_files.keep_largest_components(labels) if options.request.largest_component else 0
    write_mask(paths["png"], labels, classes)
    if "overlay" in options.request.extras:
        write_overlay(paths["overlay"], picture, labels, classes)
    label_files.write_sidecar(paths["sidecar"], _describe(options, scan, paths, removed, uncertainty))
    return Prediction(scan=scan, labels=paths["png"], files=tuple(paths.values()), uncertainty=_measured(uncertainty))


def _measure_picture(
    options: Options, picture: PictureInput, paths: Mapping[str, Path], watch: Callable[[int, int], None]
) -> tuple[Labels, Uncertainty | None]:
    """Return the classes of a picture (pages, H, W), and how sure they are; files of both go to the disk on the way."""
    trained, (pages, height, width) = options.trained, picture.shape
    meter = (
        UncertaintyMeter((pages * height, 1, width), trained.num_classes)
        if "entropy" in options.request.extras
        else None
    )
    with ExitStack() as stack:
        measures: list[BandWatch] = []
        if "probabilities" in options.request.extras:
            writer = probability_pages(paths["probabilities"], picture.shape, trained.num_classes)
            measures.append(stack.enter_context(writer))
        if meter is not None:
            measures.append(meter.add_rows)

        def measure(start: int, band: Labels, shares: Shares) -> None:
            for add in measures:
                add(start, band, shares)

        labels = segment(options.predictor, picture, watch, measure if measures else None)
    if meter is None:
        return labels, None
    rows = labels.reshape(pages * height, 1, width)
    votes = None
    if len(options.members) > 1:
        votes = count_votes(options.members, partial(band_rows, picture=picture), rows, options.shared)
    uncertainty = meter.result(rows, trained.class_names, votes)
    for name, shares in (("entropy", uncertainty.entropy), ("disagreement", uncertainty.votes)):
        if shares is not None:
            write_picture_shares(paths[name], shares.reshape(pages, height, width))
    return labels, uncertainty


def _predict_scan(options: Options, scan: Scan, paths: dict[str, Path], watch: SliceProgress) -> Prediction:
    trained = options.trained
    volume = open_scan(scan, trained.channels)
    sources = label_files.read_seg_sources(volume) if options.request.format == "seg" else []
    if fixed := volume.orientation is None and options.preprocessing != trained.preprocessing:
        options = replace(options, preprocessing=trained.preprocessing)
    known = [value for values in trained.label_values for value in values]
    classes = _class_rows(options)
    with tempfile.TemporaryFile(dir=options.request.out) as scratch:
        with Spool(volume, options.request.out, known) as spool:
            prepared = PreparedScan(spool, options.preprocessing)
            doubt = " ".join(_doubts(options.members, spool, fixed))
            meter = _scan_meter(prepared, len(classes)) if "entropy" in options.request.extras else None
            labels = _segment(options, prepared, scratch, meter, lambda done: watch(scan, done, prepared.slices))
            uncertainty = None if meter is None else _measure(options, prepared, labels, meter)
        if "probabilities" in options.request.extras:
            shape = (prepared.slices, len(classes), *prepared.plane)
            label_files.write_probabilities(
                paths["probabilities"], _by_class(options, scratch, shape, volume), volume, classes
            )
    if uncertainty is not None:
        _write_uncertainty(options, uncertainty, paths, volume)
    labels = _native(options, labels, volume)
    removed = label_files.keep_largest_components(labels) if options.request.largest_component else 0
    if options.request.format == "seg":
        label_files.write_seg(paths["seg"], labels, volume, sources, trained.class_names)
    else:
        label_files.write_labels(paths["nifti"], _with_values(labels, options.values), volume, classes)
    label_files.write_sidecar(paths["sidecar"], _describe(options, scan, paths, removed, uncertainty, doubt))
    return Prediction(
        scan=scan,
        labels=paths[options.request.format],
        files=tuple(paths.values()),
        doubt=doubt,
        uncertainty=_measured(uncertainty),
    )


def _measured(uncertainty: Uncertainty | None) -> Uncertainty | None:
    """Return the numbers alone: the maps are on the disk, and would fill the memory scan by scan."""
    return None if uncertainty is None else replace(uncertainty, entropy=None, votes=None)


def _measure(options: Options, prepared: PreparedScan, labels: Labels, meter: UncertaintyMeter) -> Uncertainty:
    several = len(options.members) > 1
    votes = count_votes(options.members, partial(_blocks, prepared), labels, options.shared) if several else None
    return meter.result(labels, options.trained.class_names, votes)


def _scan_meter(prepared: PreparedScan, num_classes: int) -> UncertaintyMeter:
    shape = (prepared.slices, *prepared.plane)
    return UncertaintyMeter(shape, num_classes, prepared.voxel_volume / 1000, "ml")


def _blocks(prepared: PreparedScan, predictor: Predictor) -> Iterator[Labels]:
    """Yield the classes of a scan's slices, block by block."""
    return predictor.predict(prepared.read(*ends) for ends in prepared.blocks())


def _write_uncertainty(options: Options, uncertainty: Uncertainty, paths: Mapping[str, Path], volume: Volume) -> None:
    for name, shares in (("entropy", uncertainty.entropy), ("disagreement", uncertainty.votes)):
        if shares is not None:
            label_files.write_shares(paths[name], _native(options, shares, volume), volume, name)


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
    options: Options,
    prepared: PreparedScan,
    scratch: IO[bytes],
    meter: UncertaintyMeter | None,
    watch: Callable[[int], None],
) -> Labels:
    """Return the classes of all prepared slices, (S, H, W); probabilities go to the disk on the way."""
    trained = options.trained
    labels = np.zeros((prepared.slices, *prepared.plane), np.min_scalar_type(len(trained.class_names) - 1))
    watch(0)
    slices = (prepared.read(start, stop) for start, stop in prepared.blocks())
    start = 0
    wanted = "probabilities" in options.request.extras or meter is not None
    for block, shares, _ in options.predictor.run(slices, probabilities=wanted):
        labels[start : start + len(block)] = block
        if shares is not None and "probabilities" in options.request.extras:
            scratch.write(shares.data)
        if shares is not None and meter is not None:
            meter.add(start, block, shares)
        start += len(block)
        watch(start)
    scratch.flush()
    return labels


def _native(options: Options, samples: npt.NDArray[Any], volume: Volume) -> npt.NDArray[Any]:
    """Bring prepared slices (S, H, W) back to the file's own grid."""
    preprocessing = options.preprocessing
    return preprocessing.undo(preprocessing.join(samples), volume.shape, volume.spacing, volume.affine)


def _by_class(
    options: Options, scratch: IO[bytes], shape: tuple[int, ...], volume: Volume
) -> Iterator[npt.NDArray[np.uint16]]:
    for k in range(shape[1]):
        # A map of its own for each class: what was read does not count as the process's memory afterwards.
        stored = np.memmap(scratch, np.uint16, "r", shape=shape)
        native = _native(options, stored[:, k], volume)
        del stored
        yield native


def _with_values(labels: Labels, values: Sequence[int]) -> Labels:
    table = np.array(values, dtype=label_files.label_dtype(values))
    same = np.array_equal(table, np.arange(len(table))) and table.dtype == labels.dtype
    return labels if same else table[labels]


def _class_rows(options: Options) -> list[dict[str, Any]]:
    """Return what each class is called in the label maps, and what stands for it."""
    trained = options.trained
    if options.request.format == "png":
        return mask_classes(trained.task, options.values)
    values = range(len(options.values)) if options.request.format == "seg" else options.values
    return label_files.class_table(trained.class_names, values)


def _settings(options: Options) -> dict[str, Any]:
    """Return what decides a label map beside its scan."""
    trained, request = options.trained, options.request
    return {
        "temperature": request.temperature,
        "classes": _class_rows(options),
        "networks": [
            {
                "from": source_name(member.source),
                "checkpoint": member.checkpoint,
                "weights": weights,
                "model": member.model.name,
                "dataset": member.dataset,
            }
            for member, weights in zip(options.members, request.weights, strict=True)
        ],
        "image_size": list(trained.image_size),
        "resize": trained.resize,
        "precision": request.shared["precision"],
        "tta": request.shared["tta"],
    }


def _describe(
    options: Options,
    scan: Scan,
    paths: dict[str, Path],
    removed: int,
    uncertainty: Uncertainty | None,
    doubt: str = "",
) -> dict[str, Any]:
    """Return what stands beside a label map. Names of files and folders, but no paths: these may name people."""
    request = options.request
    return {
        "scan": scan.path.name,
        "labels": paths[request.format].name,
        "probabilities": paths["probabilities"].name if "probabilities" in request.extras else None,
        "uncertainty": None if uncertainty is None else uncertainty.facts(),
        **_settings(options),
        "preprocessing": options.preprocessing.to_dict(),
        "largest_component": {"removed_voxels": removed} if request.largest_component else None,
        "doubt": doubt or None,
        "adawac": adawac.__version__,
    }
