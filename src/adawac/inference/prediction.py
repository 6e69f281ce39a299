"""Scans in, label maps out: `predict`."""

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
from adawac.data.parallel import check_engine, check_workers, processors, run_jobs, share_of
from adawac.data.preprocessing import READY, Preprocessing
from adawac.data.sources.label_maps import COMPANIONS
from adawac.data.task import Task
from adawac.errors import AdawacError, ConfigError, DataError
from adawac.files import make_folder
from adawac.inference import label_files
from adawac.inference.confidence import Uncertainty, UncertaintyMeter, count_votes, find_temperature, write_review
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
from adawac.inference.predictor import Precision, Predictor, Shares, find_device
from adawac.inference.scan_search import Scan, find_cases, find_scans
from adawac.inference.trained import find_members, load_trained, source_name
from adawac.inference.trained_network import Trained
from adawac.inference.volumes import PreparedScan, Spool, Volume, open_scan
from adawac.runs import Run

log = logging.getLogger(__name__)

_SCALED_MARGIN = 0.01  # how far off [0, 1] intensities may be that were scaled to it

Format = Literal["nifti", "seg", "png"]
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
class _Request:
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
class _Options:
    """A request with its networks on their device."""

    request: _Request
    members: Sequence[Trained]
    predictor: Predictor
    preprocessing: Preprocessing
    values: Sequence[int]
    shared: Mapping[str, Any]

    @classmethod
    def of(cls, request: _Request, members: Sequence[Trained]) -> "_Options":
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
        return self.members[0]


class _Segmenter:
    """Segments scans, in this process or in others, which load the networks themselves with their first scan."""

    def __init__(self, request: _Request, options: _Options, watch: SliceProgress | None):
        self._request, self._watch = request, watch
        self._options: _Options | None = options

    def __getstate__(self) -> dict[str, Any]:
        return {"_request": self._request, "_options": None, "_watch": None}

    def __call__(self, scan: Scan) -> Prediction:
        if self._options is None:
            if self._request.threads is not None:
                torch.set_num_threads(self._request.threads)
            self._options = _Options.of(self._request, self._request.load())
        return _attempt(self._options, scan, self._watch or (lambda scan, done, slices: None))


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
    _check_folder(out, [_paths(out, scan, format, extras) for scan in to_do], to_do)
    request = _Request(
        sources=[source.folder if isinstance(source, Run) else source for source in sources],
        checkpoint=checkpoint,
        trust_code=trust_code,
        device=str(device if on_ray else here),
        threads=None if on_ray or workers is None else max(1, processors() // workers),
        temperature=find_temperature(members, tta),
        weights=[_weights_digest(member) for member in members],
        shared=shared,
        out=out,
        format=format,
        dataset_values=values == "dataset",
        extras=extras,
        largest_component=largest_component,
        overwrite=overwrite,
        resume=resume or on_ray,  # there a scan whose machine is lost is done again
    )
    options = _Options.of(replace(request, device=str(here)), members)
    refused = [] if resume or overwrite or not on_ray else [scan for scan in to_do[part] if _existing(options, scan)]
    outcomes = {scan.name: Prediction(scan=scan, error=_refusal(_existing(options, scan))) for scan in refused}
    jobs = run_jobs(
        _Segmenter(request, options, watch),
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
        _write_review(options, to_do)
    return [outcomes[scan.name] for scan in to_do[part]]


def _weights_digest(member: Trained) -> str:
    """Return what tells weights apart that bear the same name."""
    digest = sha256()
    for name, tensor in member.network.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def _write_review(options: _Options, scans: Sequence[Scan]) -> None:
    """Write the list of scans to review: of all that were meant, whoever segmented them."""
    listed = -1
    while True:  # another shard may have ended, with fewer scans on its list than there are now
        kept = [_kept(options, scan) for scan in scans]
        known = {entry.scan.name: entry.uncertainty for entry in kept if entry and entry.uncertainty}
        if len(known) == listed:
            return
        write_review(options.request.out, known)
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


def _paths(out: Path, scan: Scan, format: Format, extras: Sequence[str]) -> dict[str, Path]:
    """Return where what is written for a scan goes, the label map first."""
    ending = mask_ending(scan.path) if format == "png" else {"nifti": ".nii.gz", "seg": ".dcm"}[format]
    endings = {format: ending, "sidecar": ".json"}
    maps = {"overlay": ".jpg"} | ({"probabilities": ".tif"} if format == "png" else {})
    other = ending if format == "png" else ".nii.gz"
    endings |= {name: COMPANIONS[name] + maps.get(name, other) for name in extras}
    return {what: out / f"{scan.name}{ending}" for what, ending in endings.items()}


# -- a scan -----------------------------------------------------------------------------------------------------------


def _attempt(options: _Options, scan: Scan, watch: SliceProgress) -> Prediction:
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


def _predict(options: _Options, scan: Scan, watch: SliceProgress) -> Prediction:
    request = options.request
    if request.resume and not request.overwrite and (kept := _kept(options, scan, strict=True)):
        return kept
    if not (request.resume or request.overwrite) and (existing := _existing(options, scan)):
        raise DataError(_refusal(existing))
    paths = _paths(request.out, scan, request.format, request.extras)
    return (_predict_picture if request.format == "png" else _predict_scan)(options, scan, paths, watch)


def _existing(options: _Options, scan: Scan) -> Path | None:
    request = options.request
    paths = _paths(request.out, scan, request.format, request.extras)
    return next((path for path in paths.values() if path.exists()), None)


def _refusal(existing: Path | None) -> str:
    return f"Expected no label map of it yet, but {existing} exists. Give `overwrite=True`, or another `out`."


def _kept(options: _Options, scan: Scan, *, strict: bool = False) -> Prediction | None:
    """Return what was finished of a scan, which its sidecar says, as that is written last; None where nothing was.

    What was made with other networks or options does not count; with `strict` it is an error.
    """
    request = options.request
    paths = _paths(request.out, scan, request.format, request.extras)
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


def _predict_picture(options: _Options, scan: Scan, paths: dict[str, Path], watch: SliceProgress) -> Prediction:
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
    options: _Options, picture: PictureInput, paths: Mapping[str, Path], watch: Callable[[int, int], None]
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


def _predict_scan(options: _Options, scan: Scan, paths: dict[str, Path], watch: SliceProgress) -> Prediction:
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


def _measure(options: _Options, prepared: PreparedScan, labels: Labels, meter: UncertaintyMeter) -> Uncertainty:
    several = len(options.members) > 1
    votes = count_votes(options.members, partial(_blocks, prepared), labels, options.shared) if several else None
    return meter.result(labels, options.trained.class_names, votes)


def _scan_meter(prepared: PreparedScan, num_classes: int) -> UncertaintyMeter:
    shape = (prepared.slices, *prepared.plane)
    return UncertaintyMeter(shape, num_classes, prepared.voxel_volume / 1000, "ml")


def _blocks(prepared: PreparedScan, predictor: Predictor) -> Iterator[Labels]:
    """Yield the classes of a scan's slices, block by block."""
    return predictor.predict(prepared.read(*ends) for ends in prepared.blocks())


def _write_uncertainty(options: _Options, uncertainty: Uncertainty, paths: Mapping[str, Path], volume: Volume) -> None:
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
    options: _Options,
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


def _native(options: _Options, samples: npt.NDArray[Any], volume: Volume) -> npt.NDArray[Any]:
    """Bring prepared slices (S, H, W) back to the file's own grid."""
    preprocessing = options.preprocessing
    return preprocessing.undo(preprocessing.join(samples), volume.shape, volume.spacing, volume.affine)


def _by_class(
    options: _Options, scratch: IO[bytes], shape: tuple[int, ...], volume: Volume
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


def _class_rows(options: _Options) -> list[dict[str, Any]]:
    """Return what each class is called in the label maps, and what stands for it."""
    trained = options.trained
    if options.request.format == "png":
        return mask_classes(trained.task, options.values)
    values = range(len(options.values)) if options.request.format == "seg" else options.values
    return label_files.class_table(trained.class_names, values)


def _settings(options: _Options) -> dict[str, Any]:
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
    options: _Options,
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
