"""DICOM: CT and MR series as images, DICOM SEG or NIfTI as labels.

Of a file's metadata only geometry, rescaling, modality and the series' identity are used. Nothing about the patient is
kept: the patient's name in the store is the name of the first folder below the root, the case's that of its folder.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from adawac.data.cases import Array, Case, CaseRef
from adawac.data.parallel import run_jobs
from adawac.data.preprocessing import CT, MR, Affine
from adawac.data.sources import dicom_series
from adawac.data.sources.file_search import files_below, glob_cases, is_nifti
from adawac.data.sources.label_maps import open_segmentation
from adawac.data.sources.nifti import NAME_PATTERN, found_classes, read_groups
from adawac.data.sources.scan_files import check_same_grid, read_nifti_turned, to_class_indices
from adawac.data.sources.source import (
    SOURCES,
    Classes,
    ListedSource,
    Source,
    Unlabelled,
    as_classes,
    check_refs,
    checked_way,
    drop_unlabelled,
    read_labelled_slices,
)
from adawac.errors import ConfigError, DataError, LayoutError

log = logging.getLogger(__name__)

_HEADER = ["SOPClassUID", "Modality", "SeriesInstanceUID", "ImageType", "PatientID"]
_HEADER += ["ReferencedSeriesSequence", "SegmentSequence"]

# Where label maps are looked for, and what to say where there are contours instead.
_LABELS = "a SEG that refers to the series, or one NIfTI file in its folder or beside that"
_CONTOURS = "; contours, as in the RTSTRUCT files here, are not read: convert them to SEG or NIfTI"


@SOURCES.register("dicom")
def dicom(
    root: Path,
    *,
    labels: str | None = None,
    classes: Mapping[str, int | Iterable[int]] | None = None,
    groups: Path | str | None = None,
    skip_unlabelled: bool = False,
    unlabelled: Unlabelled | None = None,
    labelled_slices: Path | str | None = None,
    ignore: int | None = None,
    dataset: str | None = None,
) -> Source:
    """Open a folder of DICOM series.

    Args:
        root: The folder; its first level names the patients, the folder of a series the case.
        labels: Glob pattern of NIfTI label maps below `root`, whose wildcards stand for the case's id, or for some of
            the folders that lead to the series. By default the label is the DICOM SEG that refers to the series, or
            the only NIfTI file in its folder or else beside that; beside several series it has the folder's name.
        classes: Class name → label value (of a SEG: segment number). By default the SEG's segment labels, or every
            value that occurs in the NIfTI files.
        groups: CSV file with the columns `patient,group`.
        skip_unlabelled: Leave series without a label map out, with a warning, instead of refusing the folder.
        unlabelled: What to do with series without a label map: `keep` them as unlabelled, `skip` or `refuse` them.
        labelled_slices: CSV file with the columns `case,slice`: the others were never annotated, and are unlabelled.
        ignore: Label value of voxels that count nowhere; of a SEG the segment's number, with `classes`.
        dataset: Name of the data set; by default the folder's.
    """
    contents = _scan(root)
    series, segmentations = list(contents.series.values()), contents.segmentations
    if not series:
        reason = next(iter(contents.bad.values()), "Give the folder that holds them.")
        raise LayoutError(f"Expected DICOM series of CT or MR, but {root} has none. {reason}")
    _add_bad_files(root, contents)
    name = dataset or NAME_PATTERN.sub("-", root.resolve().name).strip("-.") or "dicom"
    group_of = read_groups(Path(groups)) if groups else {}
    cases = _name_series(root, series)
    named = glob_cases(root, labels) if labels else None
    labels_of = _find_labels(root, cases, segmentations) if named is None else _match_labels(root, cases, named)
    found = []
    for (case, patient), scan in sorted(cases.items()):
        paths, group = labels_of[case], group_of.get(patient)
        found.append(
            CaseRef(dataset=name, patient=patient, id=case, group=group, images=tuple(scan.files), labels=paths)
        )
    refs = check_refs(found, root)
    used = {path for ref in refs for path in ref.labels}
    every_label = list(named.values()) if named else [seg.path for seg in segmentations] + contents.nifti
    known_classes = as_classes(classes) if classes else _segment_classes(root, refs, segmentations)
    if ignore is not None and not classes and known_classes:
        raise ConfigError(
            f"Expected `classes` with ignore={ignore}, since segments are known by their labels otherwise. Name the "
            "classes by the segments' numbers."
        )
    modalities = {scan.modality for scan in series}
    source = DicomSource(
        root=root,
        dataset=name,
        classes=known_classes or found_classes(refs, ignore),
        preprocessing=CT if modalities == {"CT"} else MR,
        modality=modalities.pop() if len(modalities) == 1 else None,
        refs=refs,
        by_name=not classes and known_classes is not None,
        label_place=repr(labels) if labels else _LABELS + (_CONTOURS if "RTSTRUCT" in contents.passed_over else ""),
        unused_labels=tuple(path for path in every_label if path not in used),
        unlabelled=(way := checked_way(unlabelled, skip_unlabelled)),
        ignore=ignore,
        labelled_slices=read_labelled_slices(Path(labelled_slices), refs) if labelled_slices else None,
    )
    return drop_unlabelled(source) if way == "skip" else source


def _segment_classes(root: Path, refs: Sequence[CaseRef], segmentations: Sequence["_Segmentation"]) -> Classes | None:
    """Return a class for every segment label that occurs, or None where all labels are NIfTI."""
    segments = {segmentation.path: segmentation.segments for segmentation in segmentations}
    labelled = [ref for ref in refs if ref.labels]
    used = [segments[ref.labels[0]] for ref in labelled if ref.labels[0] in segments]
    if not used:
        return None
    if len(used) < len(labelled):
        raise DataError(
            f"Expected `classes` for {root}, where SEG and NIfTI labels are mixed, but got none. Name them."
        )
    names = sorted({label for labels in used for label in labels.values()})
    return {"background": (0,), **{name: (number,) for number, name in enumerate(names, start=1)}}


@dataclass(frozen=True, kw_only=True)
class DicomSource(ListedSource):
    """DICOM series with their label maps.

    Attributes:
        by_name: Segments of a SEG are identified by their labels, not by their numbers.
    """

    by_name: bool = False

    def load(self, ref: CaseRef) -> Case:
        """Read a series and its label map."""
        image, affine = dicom_series.read_series(ref.images)
        label = self._read_label(ref, image.shape, affine) if ref.labels else None
        return ref.with_voxels(image[None], label, affine, self.class_names)

    def lacking_labels(self) -> list[CaseRef]:
        """Return the series without a label map."""
        lacking = [ref for ref in self.refs if not ref.labels]
        return [] if self.keeps(lacking) else lacking

    def _read_label(self, ref: CaseRef, shape: tuple[int, ...], affine: Affine) -> Array:
        path = ref.labels[0]
        if ".nii" not in path.name:
            return self._read_segmentation(path, shape, affine)
        label, label_affine = read_nifti_turned(path, affine)
        check_same_grid(ref.images[0], shape, affine, path, label.shape, label_affine)
        return to_class_indices(label, self.classes, path, self.ignore)

    def _read_segmentation(self, path: Path, shape: tuple[int, ...], affine: Affine) -> Array:
        """Read a DICOM SEG onto the grid of its series; frames without a segment may be left out in the file."""
        segmentation = open_segmentation(path)
        label = segmentation.placed(shape, affine).values
        classes = self.classes
        if self.by_name and segmentation.segments is not None:
            classes = {name: segmentation.segments.get(name, ()) for name in classes} | {next(iter(classes)): (0,)}
        return to_class_indices(label, classes, path, self.ignore)


@dataclass(frozen=True)
class _Series:
    uid: str
    modality: str
    files: list[Path]

    @property
    def folder(self) -> Path:
        return dicom_series.series_folder(self.files)


@dataclass(frozen=True)
class _Segmentation:
    path: Path
    series: str
    segments: Mapping[int, str]


@dataclass
class _Contents:
    """What lies below a folder; `bad` has what is wrong with each file that cannot be read."""

    series: dict[str, _Series] = field(default_factory=dict)
    segmentations: list[_Segmentation] = field(default_factory=list)
    nifti: list[Path] = field(default_factory=list)
    passed_over: Counter[str] = field(default_factory=Counter)
    bad: dict[Path, str] = field(default_factory=dict)


def _scan(root: Path) -> _Contents:
    """Read every header below `root`."""
    contents = _Contents()
    folders: dict[str, set[str]] = {}
    for path, header in run_jobs(_read_header, files_below(root), title="Reading DICOM headers", workers=1):
        if isinstance(header, DataError):
            contents.bad[path] = str(header)
        elif is_nifti(path):
            contents.nifti.append(path)
        elif header is None:
            contents.passed_over["DICOMDIR" if path.name == "DICOMDIR" else "other"] += 1
        elif header.get("Modality") == "SEG":
            try:
                contents.segmentations.append(_segmentation(path, header))
            except DataError as error:
                contents.bad[path] = str(error)
        elif dicom_series.is_scan(header):
            uid = str(header.SeriesInstanceUID)
            contents.series.setdefault(uid, _Series(uid, header.Modality, [])).files.append(path)
            parts = path.relative_to(root).parts
            first = parts[0] if len(parts) > 1 else root.resolve().name
            folders.setdefault(str(header.get("PatientID", "")), set()).add(first)
        else:
            contents.passed_over[dicom_series.object_kind(header)] += 1
    # Compared in memory only; what the identifier is appears nowhere.
    if spread := sum(len(names) > 1 for identifier, names in folders.items() if identifier):
        log.warning(
            "The identifiers of %d of %d patients occur in several folders of %s: put all series of a patient below "
            "one folder, or splits may put a patient on both sides.",
            spread,
            len(folders),
            root,
        )
    kinds = sorted(contents.passed_over.items(), key=lambda kind: (-kind[1], kind[0]))
    if set(contents.passed_over) - {"other"}:
        log.warning(
            "%d files that are no scans are passed over in %s: %s.",
            contents.passed_over.total(),
            root,
            ", ".join(f"{count} {name}" for name, count in kinds),
        )
    return contents


def _read_header(path: Path) -> Any:
    """Return the tags that are needed, None for a file that is no DICOM, or what is wrong with a broken one."""
    if not dicom_series.is_dicom(path, unreadable=True):
        return None
    try:
        return dicom_series.read_header(path, _HEADER, path)
    except DataError as error:
        return error


def _segmentation(path: Path, header: Any) -> _Segmentation:
    with dicom_series.reading_dicom(path):
        series = [str(item.SeriesInstanceUID) for item in header.get("ReferencedSeriesSequence") or ()]
        segments = {int(item.SegmentNumber): str(item.SegmentLabel) for item in header.get("SegmentSequence") or ()}
    return _Segmentation(path, series[0] if series else "", segments)


def _add_bad_files(root: Path, contents: _Contents) -> None:
    """Add files that cannot be read to the series in their folders, since they may be slices; warn of the others.

    A case with such a file fails when it is read, and no other does.
    """
    in_folder: dict[Path, list[_Series]] = {}
    for series in contents.series.values():
        for folder in {path.parent for path in series.files}:
            in_folder.setdefault(folder, []).append(series)
    for path in contents.bad:
        for series in in_folder.get(path.parent, ()):
            series.files.append(path)
    if others := [fault for path, fault in contents.bad.items() if path.parent not in in_folder]:
        log.warning("%d files below %s belong to no series and are passed over: %s", len(others), root, others[0])


def _name_series(root: Path, series: Sequence[_Series]) -> dict[tuple[str, str], _Series]:
    """Return the series by (case, patient); of several series in a folder each has a digest of its UID in its name."""
    folders = Counter(scan.folder for scan in series)
    named = {}
    for scan in series:
        parts = scan.folder.relative_to(root).parts or (root.resolve().name,)
        case = "_".join(parts)
        if folders[scan.folder] > 1:
            case += "_" + sha256(scan.uid.encode()).hexdigest()[:8]
        named[NAME_PATTERN.sub("-", case), NAME_PATTERN.sub("-", parts[0])] = scan
    return named


def _find_labels(
    root: Path, cases: Mapping[tuple[str, str], _Series], segmentations: Sequence[_Segmentation]
) -> dict[str, tuple[Path, ...]]:
    """Return the label map of each case: a SEG that refers to it, or a NIfTI file in its folder or beside that."""
    nifti = dicom_series.nifti_labels({scan.folder for scan in cases.values()}, root)
    segs: dict[str, list[Path]] = {}
    for segmentation in segmentations:
        segs.setdefault(segmentation.series, []).append(segmentation.path)
    labels = {}
    for (case, _), series in cases.items():
        paths = segs.get(series.uid) or nifti[series.folder]
        if len(paths) > 1:
            raise DataError(
                f"Expected one label map for the series in {series.folder} (case {case}), but got "
                f"{' and '.join(map(str, paths))}. Remove the others, or give the pattern `labels`."
            )
        labels[case] = tuple(paths)
    return labels


def _match_labels(
    root: Path, cases: Mapping[tuple[str, str], _Series], named: Mapping[str, Path]
) -> dict[str, tuple[Path, ...]]:
    """Return the label map of each case: what the wildcards stand for is its id, or folders that lead to it alone."""
    paths = {NAME_PATTERN.sub("-", name): path for name, path in named.items()}
    names = {case: _names(case, scan.folder.relative_to(root).parts) for (case, _), scan in cases.items()}
    count = Counter(name for of_case in names.values() for name in set(of_case))
    return {
        case: tuple(paths[name] for name in of_case if name in paths and count[name] == 1)[:1]
        for case, of_case in names.items()
    }


def _names(case: str, folders: Sequence[str]) -> list[str]:
    """Return what a pattern may call a case: its id, and parts of the path of its folder, the longest first."""
    ends = range(len(folders), 0, -1)
    parts = ["_".join(folders[end - length : end]) for length in ends for end in ends if end >= length]
    return [case, *(name for part in parts if (name := NAME_PATTERN.sub("-", part)) != case)]
