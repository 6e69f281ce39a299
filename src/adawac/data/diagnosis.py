"""What the labels of a data set look like, and what is wrong with the data."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.data.cases import Array, Case, CaseRef, check_case, class_pixels, is_label_sparse
from adawac.data.diagnosis_report import CaseReport, ClassReport, Diagnosis, training_cases
from adawac.data.parallel import run_jobs
from adawac.data.preprocessing import unnamed_ct
from adawac.data.recommendation import recommend
from adawac.data.sources import Source, build_source, detect_source, missing_labels, shared_folders
from adawac.data.splits import check_leaks
from adawac.data.store import Store, is_store
from adawac.errors import AdawacError, ConfigError, DataError

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

    Example:
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
    faults = [look for look in looks if isinstance(look, str)]
    missing = "" if isinstance(reader, Store) else missing_labels(reader)
    faults += [missing] if missing else []
    faults += _leaks(refs) + _duplicates(reports, digests)
    classes = _class_reports(reader.class_names, reports)
    return Diagnosis(
        path=_name(data),
        kind="store" if isinstance(reader, Store) else type(reader).__name__,
        dataset=reader.dataset,
        class_names=reader.class_names,
        cases=tuple(reports),
        classes=tuple(classes),
        faults=tuple(faults),
        warnings=tuple(
            _intensity_warnings(reader, reports) + _warnings(refs, reports, classes, _known_unlabelled(reader))
        ),
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


def _name(data: Path | str | Store | Source) -> str:
    if isinstance(data, Store):
        return str(data.path)
    return str(data.root or data.dataset) if isinstance(data, Source) else str(data)


def _refs_of(store: Store) -> list[CaseRef]:
    table, refs = store.table, {}
    for patient, case, group, split in zip(table.patient, table.case, table.group, table.split, strict=True):
        refs[str(case)] = CaseRef(
            dataset=store.dataset, patient=str(patient), id=str(case), group=str(group) or None, split=str(split)
        )
    return list(refs.values())


def _look(
    reader: Store | Source, axis: int, threshold: float, ref: CaseRef
) -> tuple[CaseReport, tuple[bytes, ...]] | str:
    """Return a case's report and a digest of each of its slices, or what is wrong with it."""
    try:
        case = reader.volume(ref.id) if isinstance(reader, Store) else reader.load(ref)
        check_case(case)
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
    return _report(case, ref, axis, threshold, blank), digests


def _report(case: Case, ref: CaseRef, axis: int, threshold: float, blank: npt.NDArray[np.bool_]) -> CaseReport:
    pixels, foreground = np.zeros((0, case.num_classes), dtype=np.int64), np.full(len(blank), np.nan)
    if case.label is not None:
        pixels = class_pixels(np.moveaxis(case.label, axis, 0), case.num_classes)
        foreground = pixels[:, 1:].sum(axis=1) / pixels.sum(axis=1)
    sparse = is_label_sparse(foreground, threshold)
    return CaseReport(
        id=ref.id,
        patient=ref.patient,
        group=ref.group,
        split=ref.split,
        shape=case.shape,
        spacing=None if case.affine is None else case.spacing,
        orientation=_orientation(case.affine),
        intensity=tuple(float(value) for value in np.percentile(case.image, (0, 1, 50, 99, 100))),
        slices=case.shape[axis],
        label_sparse=None if case.label is None else int(sparse.sum()),
        xi=None if case.label is None else float(1 - sparse.mean()),
        blank_sparse=int((sparse & blank).sum()),
        foreground=() if case.label is None else tuple(foreground.tolist()),
        class_voxels=tuple(pixels.sum(axis=0).tolist()),
        class_slices=tuple((pixels > 0).sum(axis=0).tolist()),
    )


def _orientation(affine: Array | None) -> str | None:
    from nibabel.orientations import aff2axcodes

    return None if affine is None else "".join(aff2axcodes(affine))


# -- judging ----------------------------------------------------------------------------------------------------------


def _leaks(refs: Sequence[CaseRef]) -> list[str]:
    try:
        check_leaks(np.array([ref.patient for ref in refs]), np.array([ref.split for ref in refs]))
    except DataError as error:
        return [str(error)]
    return []


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


def _class_reports(names: Sequence[str], reports: Sequence[CaseReport]) -> list[ClassReport]:
    labelled = [report for report in reports if report.xi is not None]
    voxels = np.array([report.class_voxels for report in labelled], dtype=np.float64).reshape(-1, len(names))
    slices = np.array([report.class_slices for report in labelled], dtype=np.float64).reshape(-1, len(names))
    total, per_class = voxels.sum(), voxels.sum(axis=0)
    all_slices = sum(report.slices for report in labelled)
    return [
        ClassReport(
            name=name,
            voxel_share=float(per_class[k] / max(total, 1)),
            foreground_share=float(per_class[k] / max(per_class[1:].sum(), 1)),
            slice_share=float(slices[:, k].sum() / max(all_slices, 1)),
            cases=int((voxels[:, k] > 0).sum()),
        )
        for k, name in enumerate(names)
        if k
    ]


def _known_unlabelled(reader: Store | Source) -> set[str]:
    """Return the cases whose missing label map is a fault already."""
    return set() if isinstance(reader, Store) else {ref.id for ref in reader.lacking_labels()}


def _warnings(
    refs: Sequence[CaseRef], reports: Sequence[CaseReport], classes: Sequence[ClassReport], known: set[str]
) -> list[str]:
    hint = shared_folders(refs)
    warnings = [hint] if hint else []
    for report in reports:
        if report.xi is not None and not sum(report.class_voxels[1:]):
            warnings.append(
                f"Case {report.id} has a label map without any foreground. Check that it is the right file."
            )
        if report.intensity[0] == report.intensity[-1]:
            warnings.append(f"Case {report.id} has the same intensity everywhere. Check that it is the right file.")
    unlabelled = [report.id for report in reports if report.xi is None and report.id not in known]
    if unlabelled:
        some = ", ".join(unlabelled[:3]) + (", …" if len(unlabelled) > 3 else "")
        have, they = ("case has", "It") if len(unlabelled) == 1 else ("cases have", "They")
        warnings.append(f"{len(unlabelled)} {have} no label map ({some}). {they} can only be predicted.")
    warnings += [f"Class {kind.name} occurs in no case. Check the label values." for kind in classes if not kind.cases]
    codes = Counter(report.orientation for report in reports if report.orientation)
    if len(codes) > 1:
        warnings.append(
            f"The scans have different orientations ({', '.join(f'{n} {code}' for code, n in codes.most_common())}). "
            'Prepare them with an orientation such as "RAS".'
        )
    return warnings


def _intensity_warnings(reader: Store | Source, reports: Sequence[CaseReport]) -> list[str]:
    if isinstance(reader, Store) or not reports:  # a store's intensities are scaled already
        return []
    hint = unnamed_ct(reader.preprocessing, max(report.intensity[0] for report in reports))
    return [hint] if hint else []
