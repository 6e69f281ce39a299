"""What the labels of a data set look like, and what is wrong with the data."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from adawac.data.cases import CaseRef, check_case, class_pixels, is_label_sparse
from adawac.data.diagnosis_report import CaseReport, ClassReport, Diagnosis, recommend, training_cases
from adawac.data.parallel import run_jobs
from adawac.data.preprocessing import as_shares, nearest_orientation, unnamed_ct
from adawac.data.sources import Source, build_source, detect_source
from adawac.data.sources.pictures import PictureSource
from adawac.data.sources.source import about_unused_labels, alike, missing_labels, show_value
from adawac.data.splits import check_leaks
from adawac.data.store import Store, is_store
from adawac.errors import AdawacError, ConfigError, DataError

_PERCENTS = (0, 1, 50, 99, 100)
# From so many pixels on a picture is looked at in parts, and of its intensities at one of so many rows and columns.
_LARGE, _STEP = 1 << 25, 8
# A slice whose intensities vary less than this share of the volume's shows nothing.
_BLANK = 0.02


def diagnose(
    data: Path | str | Store | Source,
    source: str | None = None,
    *,
    axis: int | None = None,
    threshold: float = 0.0,
    workers: int | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Diagnosis:
    """Look at every case of a store or of a folder of scans; unreadable ones are reported, not raised.

    Args:
        data: A prepared store or a folder of scans, by its path; or a `Store` or a `Source`.
        source: The source's name; by default it is recognised.
        axis: The slicing axis; by default the store's or the source's.
        threshold: The largest foreground share of a slice that counts as label-sparse.
        workers: Processes; all processors by default.
        progress: Show a progress bar; by default where there is a terminal.
        **options: Options of the source.

    Returns:
        One report per case and per class, faults, warnings, and the method to try first.

    Examples:
        >>> import adawac
        >>> from adawac.data.phantom import phantom_source
        >>> report = adawac.diagnose(phantom_source(8, size=16, slices=(10, 10)), workers=1)
        >>> report.summary["training_slices"], report.summary["training_label_sparse"], report.summary["xi"]
        (50, 20, 0.6)
        >>> report.faults, report.recommendation.method
        ((), 'adawac')
    """
    if axis not in (None, 0, 1, 2):
        raise ConfigError(f"Expected axis to be 0, 1 or 2, but got {axis}.")
    if not 0 <= threshold < 1:
        raise ConfigError(f"Expected the threshold to be a share in [0, 1), but got {threshold}.")
    reader = _open(data, source, options)
    refs = _refs_of(reader) if isinstance(reader, Store) else reader.cases()
    axis = reader.preprocessing.axis if axis is None else axis
    look_at = partial(_look, reader, axis, threshold)
    seen = dict(run_jobs(look_at, refs, title=f"Looking at {reader.dataset}", workers=workers, progress=progress))
    looks = [seen[ref] for ref in refs]
    readable = [look for look in looks if not isinstance(look, str)]
    reports = [report for report, _ in readable]
    digests = {report.id: digest for report, digest in readable}
    bad = [(ref, look) for ref, look in zip(refs, looks, strict=True) if isinstance(look, str)]
    faults = [fault for _, fault in bad] if isinstance(reader, Store) else alike(reader, bad)
    if not isinstance(reader, Store) and (missing := missing_labels(reader)):
        faults.append(missing)
    try:
        check_leaks(np.array([ref.patient for ref in refs]), np.array([ref.split for ref in refs]))
    except DataError as error:
        faults.append(str(error))
    faults += _duplicates(reports, digests)
    values = reader.label_values if isinstance(reader, Store) else tuple(reader.classes.values())
    classes = _class_reports(reader.class_names, values, reports)
    origin = reader.path if isinstance(reader, Store) else reader.root or reader.dataset
    return Diagnosis(
        path=str(data if isinstance(data, Path | str) else origin),
        kind="store" if isinstance(reader, Store) else type(reader).__name__,
        dataset=reader.dataset,
        class_names=reader.class_names,
        channels=reader.channels,
        cases=tuple(reports),
        classes=tuple(classes),
        faults=tuple(faults),
        warnings=(*_warnings(reader, refs, reports, classes), *_copies(reports, digests)),
        recommendation=recommend(training_cases(reports)),
    )


# -- looking ----------------------------------------------------------------------------------------------------------


def _open(data: Path | str | Store | Source, source: str | None, options: Mapping[str, Any]) -> Store | Source:
    """Return the store, finished or not, or else the source of the scans."""
    extra = sorted(name for name, value in {"source": source, **options}.items() if value is not None)
    if isinstance(data, Store | Source):
        if extra:
            raise ConfigError(
                f"Expected a folder of scans for {', '.join(extra)}, but got a {type(data).__name__}. Leave them out."
            )
        return data
    path = Path(data)
    if source is not None:
        return build_source(source, path, **options)
    if is_store(path) and extra:
        raise ConfigError(
            f"Expected a folder of scans for {', '.join(extra)}, but {path} is a store, which records them. "
            "Leave them out."
        )
    interrupted = any(path.glob("cases/*/case.json"))
    return Store(path) if is_store(path) or interrupted else detect_source(path, **options)


def _refs_of(store: Store) -> list[CaseRef]:
    table = store.table.take(list(store.table.first_rows.values()))
    columns = (column.tolist() for column in (table.patient, table.case, table.group, table.split))
    return [
        CaseRef(dataset=store.dataset, patient=patient, id=case, group=group or None, split=split)
        for patient, case, group, split in zip(*columns, strict=True)
    ]


def _look(
    reader: Store | Source, axis: int, threshold: float, ref: CaseRef
) -> tuple[CaseReport, tuple[bytes, ...]] | str:
    """Return a case's report and a digest of each of its slices, or what is wrong with it."""
    try:
        if parts := _parts(reader, ref):
            return _look_in_parts(parts, reader.class_names, ref, threshold)
        case = reader.volume(ref.id) if isinstance(reader, Store) else reader.load(ref)
        check_case(case)
        if isinstance(reader, Source):
            case = reader.annotated(case, reader.preprocessing.axis)
    except AdawacError as error:
        return str(error)
    images = np.moveaxis(case.image, axis + 1, 0)
    spread = images.reshape(len(images), -1).std(axis=1)
    blank = spread <= _BLANK * case.image.std()
    digests = tuple(
        hashlib.blake2b(np.ascontiguousarray(image).tobytes(), digest_size=16).digest()
        for image, nothing in zip(images, blank, strict=True)
        if not nothing
    )
    pixels = np.zeros((len(images), case.num_classes), dtype=np.int64)
    if case.label is not None:
        pixels = class_pixels(np.moveaxis(case.label, axis, 0), case.num_classes)
    size = int(np.prod(case.shape)) // len(images)
    report = _report(ref, case.shape, pixels, size, np.percentile(case.image, _PERCENTS).tolist(), threshold, blank)
    if case.affine is not None:
        report = replace(report, spacing=case.spacing, orientation=nearest_orientation(case.affine))
    return report, digests


# A slice that is looked at in parts: its number, a part of its image and of its label.
_Part = tuple[int, npt.NDArray[Any], npt.NDArray[Any] | None]


class _Parts(NamedTuple):
    """A case that does not lie in memory as a whole: its slices, and their parts one after another."""

    shape: tuple[int, int, int]
    parts: Iterator[_Part]


def _parts(reader: Store | Source, ref: CaseRef) -> _Parts | None:
    """Return the parts of a picture that is large, or cut into tiles; None for other cases."""
    if isinstance(reader, Store):
        if reader.preprocessing.tile is None:
            return None
        shape: Any = reader.case_info(ref.id).shape
        return _Parts(shape, ((row, *reader.read(ref.id, row)) for row in range(shape[0])))
    if not isinstance(reader, PictureSource):
        return None
    case = reader.open(ref)
    pages, height, width = case.shape
    if pages * height * width <= _LARGE:
        return None
    step = max(1, _LARGE // 16 // width)
    bands = ((page, start, min(start + step, height)) for page in range(pages) for start in range(0, height, step))
    parts = (
        (band[0], as_shares(case.raw(*band), case.full_range), case.label(*band) if case.has_label else None)
        for band in bands
    )
    return _Parts(case.shape, parts)


def _look_in_parts(
    whole: _Parts, class_names: Sequence[str], ref: CaseRef, threshold: float
) -> tuple[CaseReport, tuple[bytes, ...]]:
    """Return what `_look` does; intensities are those of every eighth row and column."""
    slices, height, width = whole.shape
    pixels = np.zeros((slices, len(class_names)), dtype=np.int64)
    spread, lowest, highest = np.zeros(slices), np.full(slices, np.inf), np.full(slices, -np.inf)
    digests = [hashlib.blake2b(digest_size=16) for _ in range(slices)]
    some = []
    for row, image, label in whole.parts:
        check_case(ref.with_voxels(image[:, None], None if label is None else label[None], None, tuple(class_names)))
        lowest[row], highest[row] = min(lowest[row], image.min()), max(highest[row], image.max())
        digests[row].update(np.ascontiguousarray(image).tobytes())
        some.append(image[:, ::_STEP, ::_STEP].ravel())
        spread[row] = max(spread[row], image.std())
        if label is not None:
            pixels[row] += class_pixels(label[None], len(class_names))[0]
    values = np.concatenate(some)
    blank = spread <= _BLANK * values.std()
    intensity = [lowest.min(), *np.percentile(values, _PERCENTS[1:-1]).tolist(), highest.max()]
    report = _report(ref, whole.shape, pixels, height * width, intensity, threshold, blank)
    return report, tuple(digest.digest() for digest, nothing in zip(digests, blank, strict=True) if not nothing)


def _report(
    ref: CaseRef,
    shape: tuple[int, ...],
    pixels: npt.NDArray[np.int64],
    size: int,
    intensity: Sequence[float],
    threshold: float,
    blank: npt.NDArray[np.bool_],
) -> CaseReport:
    """Return the report of a case whose slices of `size` pixels have these (slices, K) pixels of each class."""
    counted = pixels.sum(axis=1)
    foreground = np.where(counted > 0, pixels[:, 1:].sum(axis=1) / size, np.nan)
    labelled, sparse = counted > 0, is_label_sparse(foreground, threshold)
    pixels = pixels[labelled]
    return CaseReport(
        id=ref.id,
        patient=ref.patient,
        group=ref.group,
        split=ref.split,
        shape=tuple(shape),
        spacing=None,
        orientation=None,
        intensity=tuple(map(float, intensity)),
        slices=len(counted),
        unlabelled=int((~labelled).sum()),
        partly_ignored=int((labelled & (counted < size)).sum()),
        label_sparse=int(sparse.sum()) if labelled.any() else None,
        xi=float(1 - sparse[labelled].mean()) if labelled.any() else None,
        blank_sparse=int((sparse & blank).sum()),
        foreground=tuple(None if np.isnan(share) else share for share in foreground.tolist()) if labelled.any() else (),
        class_voxels=tuple(pixels.sum(axis=0).tolist()),
        class_slices=tuple((pixels > 0).sum(axis=0).tolist()),
    )


# -- judging ----------------------------------------------------------------------------------------------------------


def _duplicates(reports: Sequence[CaseReport], digests: Mapping[str, tuple[bytes, ...]]) -> list[str]:
    """Return a message for each pair of cases in different splits that share slices."""
    split_of = {report.id: report.split for report in reports}
    owners: dict[bytes, list[str]] = {}
    for case, of_case in digests.items():
        for digest in set(of_case):
            owners.setdefault(digest, []).append(case)
    shared: Counter[tuple[str, str]] = Counter()
    for cases in owners.values():
        shared.update((case, other) for case, other in combinations(cases, 2) if split_of[case] != split_of[other])
    return [
        f"Expected scans that differ between splits, but {case} ({split_of[case] or 'no split'}) and {other} "
        f"({split_of[other] or 'no split'}) share {count} identical slices. Remove the copy."
        for (case, other), count in shared.items()
    ]


def _copies(reports: Sequence[CaseReport], digests: Mapping[str, tuple[bytes, ...]]) -> list[str]:
    """Return what to say where cases of several patients share slices, and no split keeps them apart yet."""
    undecided = {report.id: report.patient for report in reports if not report.split}
    first_of: dict[bytes, str] = {}
    pairs: dict[str, str] = {}
    for case, patient in undecided.items():
        for digest in digests[case]:
            first = first_of.setdefault(digest, case)
            if undecided[first] != patient:
                pairs.setdefault(case, first)
    if not pairs:
        return []
    some = ", ".join(f"{case} = {first}" for case, first in list(pairs.items())[:3]) + (", …" if len(pairs) > 3 else "")
    return [
        f"Copies, which may be trained and tested on: {len(pairs)} of {len(reports)} cases share slices with others "
        f"({some}). Remove them, or make them one patient (--patient)."
    ]


def _class_reports(
    names: Sequence[str], values: Sequence[Sequence[int]], reports: Sequence[CaseReport]
) -> list[ClassReport]:
    labelled = [report for report in reports if report.xi is not None]
    voxels = np.array([report.class_voxels for report in labelled], dtype=np.float64).reshape(-1, len(names))
    slices = np.array([report.class_slices for report in labelled], dtype=np.float64).reshape(-1, len(names))
    total, per_class = voxels.sum(), voxels.sum(axis=0)
    all_slices = sum(report.slices - report.unlabelled for report in labelled)
    return [
        ClassReport(
            name=name,
            voxel_share=float(per_class[k] / max(total, 1)),
            foreground_share=float(per_class[k] / max(per_class[1:].sum(), 1)),
            slice_share=float(slices[:, k].sum() / max(all_slices, 1)),
            cases=int((voxels[:, k] > 0).sum()),
            values=tuple(map(show_value, values[k])),
        )
        for k, name in enumerate(names)
        if k
    ]


def _only_elsewhere(reports: Sequence[CaseReport], classes: Sequence[ClassReport]) -> list[str]:
    """Return what to say about classes that occur in cases to validate or test on, and in none to train on."""
    voxels = np.array([report.class_voxels for report in reports]).reshape(len(reports), -1)
    trains = np.array([report.split == "train" for report in reports], dtype=bool)
    others = np.array([report.split in ("val", "test") for report in reports], dtype=bool)
    missed = (voxels[others] > 0).any(axis=0) & ~(voxels[trains] > 0).any(axis=0)
    names = ", ".join(kind.name for kind, missing in zip(classes, missed[1:], strict=True) if missing)
    if not names or not trains.any():
        return []
    return [f"No training case has {names}, which cases to validate or test on have: a network cannot learn that."]


def _warnings(
    reader: Store | Source, refs: Sequence[CaseRef], reports: Sequence[CaseReport], classes: Sequence[ClassReport]
) -> list[str]:
    scaled = isinstance(reader, Store) or not reports  # a store's intensities are scaled already
    unnamed = "" if scaled else unnamed_ct(reader.preprocessing, max(report.intensity[0] for report in reports))
    # The cases whose missing label map is a fault already.
    known = set() if isinstance(reader, Store) else {ref.id for ref in reader.lacking_labels()}
    hints = [] if isinstance(reader, Store) else reader.hints(reader.preprocessing)
    if known and isinstance(reader, Source):  # the message about these names the label maps that belong to no case, too
        hints = [hint for hint in hints if hint != about_unused_labels(reader)]
    warnings = [hint for hint in (unnamed, *hints) if hint]
    often_empty = reader.preprocessing.normalisation == "range"  # pictures are
    for report in reports:
        if report.xi is not None and not sum(report.class_voxels[1:]) and not often_empty:
            warnings.append(
                f"Case {report.id} has a label map without any foreground. Check that it is the right file."
            )
        if report.intensity[0] == report.intensity[-1]:
            warnings.append(f"Case {report.id} has the same intensity everywhere. Check that it is the right file.")
    if unlabelled := [report.id for report in reports if report.xi is None and report.id not in known]:
        some = ", ".join(unlabelled[:3]) + (", …" if len(unlabelled) > 3 else "")
        have, they = ("case has", "It") if len(unlabelled) == 1 else ("cases have", "They")
        warnings.append(f"{len(unlabelled)} {have} no label map ({some}). {they} can only be predicted.")
    if partly := [report.id for report in reports if report.xi is not None and report.unlabelled]:
        some = ", ".join(partly[:3]) + (", …" if len(partly) > 3 else "")
        warnings.append(f"{len(partly)} of the labelled cases have slices that are unlabelled, not empty ({some}).")
    warnings += [f"Class {kind.name} occurs in no case. Check the label values." for kind in classes if not kind.cases]
    warnings += _only_elsewhere(reports, classes) if reports else []
    codes = Counter(report.orientation for report in reports if report.orientation)
    if len(codes) > 1:
        warnings.append(
            f"The scans have different orientations ({', '.join(f'{n} {code}' for code, n in codes.most_common())}). "
            'Prepare them with an orientation such as "RAS".'
        )
    return warnings
