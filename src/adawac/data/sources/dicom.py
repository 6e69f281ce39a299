"""DICOM: CT and MR series as images, DICOM SEG or NIfTI as labels.

Of a file's metadata only geometry, rescaling, modality and the series' identity are used. Nothing about the patient is
kept: the patient's name in the store is the name of the first folder below the root, the case's that of its folder.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from adawac.data.cases import Array, Case, CaseRef
from adawac.data.parallel import run_jobs
from adawac.data.preprocessing import CT, MR
from adawac.data.sources.dicom_series import LPS_TO_RAS, Affine, load_highdicom, load_pydicom, read_series
from adawac.data.sources.file_search import files_below, glob_cases
from adawac.data.sources.nifti import NAME_PATTERN, found_classes, read_groups
from adawac.data.sources.scan_files import check_same_grid, read_nifti_turned, to_class_indices
from adawac.data.sources.source import SOURCES, Classes, Source, as_classes, check_refs, drop_unlabelled
from adawac.errors import DataError

log = logging.getLogger(__name__)

_HEADER = ["SOPClassUID", "Modality", "SeriesInstanceUID", "ImageType", "PatientID"]
_HEADER += ["ReferencedSeriesSequence", "SegmentSequence"]

# What counts as a scan; structure sets, doses, reports and screenshots in the same folders do not.
_MODALITIES = ("CT", "MR", "PT")
# Where label maps are looked for, and what to say where there are contours instead.
_LABELS = "a SEG that refers to the series, or one NIfTI file beside it"
_CONTOURS = "; contours, as in the RTSTRUCT files here, are not read: convert them to SEG or NIfTI"


@SOURCES.register("dicom")
def dicom(
    root: Path,
    *,
    labels: str | None = None,
    classes: Mapping[str, int | Iterable[int]] | None = None,
    groups: Path | str | None = None,
    skip_unlabelled: bool = False,
    dataset: str | None = None,
) -> Source:
    """Open a folder of DICOM series.

    Args:
        root: The folder; its first level names the patients, the folder of a series the case.
        labels: Glob pattern of NIfTI label maps below `root`, whose wildcards stand for the case's id. By default the
            label is the DICOM SEG that refers to the series, or the only NIfTI file in the series' folder.
        classes: Class name → label value (of a SEG: segment number). By default the SEG's segment labels, or every
            value that occurs in the NIfTI files.
        groups: CSV file with the columns `patient,group`.
        skip_unlabelled: Leave series without a label map out, with a warning, instead of refusing the folder.
        dataset: Name of the data set; by default the folder's.
    """
    series, segmentations, contours = _scan(root)
    if not series:
        raise DataError(f"Expected DICOM series of CT or MR, but {root} has none. Give the folder that holds them.")
    name = dataset or NAME_PATTERN.sub("-", root.resolve().name).strip("-.") or "dicom"
    group_of = read_groups(Path(groups)) if groups else {}
    named = glob_cases(root, labels) if labels else None
    refs = []
    for (case, patient), scan in sorted(_name_series(root, series).items()):
        paths, group = _find_labels(case, scan, named, segmentations), group_of.get(patient)
        refs.append(CaseRef(dataset=name, patient=patient, id=case, group=group, images=scan.files, labels=paths))
    refs = check_refs(refs, root)
    known_classes = as_classes(classes) if classes else _segment_classes(root, refs, segmentations)
    source = DicomSource(
        root=root,
        dataset=name,
        classes=known_classes or found_classes(refs),
        preprocessing=CT if all(scan.modality == "CT" for scan in series) else MR,
        refs=tuple(refs),
        by_name=not classes and known_classes is not None,
        label_place=repr(labels) if labels else _LABELS + (_CONTOURS if contours else ""),
    )
    return replace(source, refs=drop_unlabelled(source)) if skip_unlabelled else source


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
class DicomSource(Source):
    """Series that were listed when the source was opened.

    Attributes:
        refs: The cases.
        by_name: Segments of a SEG are identified by their labels, not by their numbers.
    """

    refs: tuple[CaseRef, ...]
    by_name: bool = False

    def cases(self) -> list[CaseRef]:
        """Return the cases."""
        return list(self.refs)

    def options(self) -> dict[str, Any]:
        """Return what decides the voxels besides the files."""
        return {"by_name": self.by_name}

    def load(self, ref: CaseRef) -> Case:
        """Read a series and its label map."""
        image, affine = read_series(ref.images)
        label = self._read_label(ref, image.shape, affine) if ref.labels else None
        return ref.with_voxels(image[None], label, affine, self.class_names)

    def lacking_labels(self) -> list[CaseRef]:
        """Return the series without a label map."""
        return [ref for ref in self.refs if not ref.labels]

    def _read_label(self, ref: CaseRef, shape: tuple[int, ...], affine: Affine) -> Array:
        path = ref.labels[0]
        if ".nii" not in path.name:
            return self._read_segmentation(path, shape, affine)
        label, label_affine = read_nifti_turned(path, affine)
        check_same_grid(ref.images[0], shape, affine, path, label.shape, label_affine)
        return to_class_indices(label, self.classes, path)

    def _read_segmentation(self, path: Path, shape: tuple[int, ...], affine: Affine) -> Array:
        """Read a DICOM SEG onto the grid of its series; frames without a segment may be left out in the file."""
        hd = load_highdicom()
        # highdicom's axes are (slice, row, column) in LPS; ours are (column, row, slice) in RAS.
        flipped = LPS_TO_RAS @ affine[:, [2, 1, 0, 3]]
        try:
            seg = hd.seg.segread(path)
            grid = hd.VolumeGeometry(
                flipped, shape[::-1], coordinate_system="PATIENT", frame_of_reference_uid=seg.FrameOfReferenceUID
            )
            volume = seg.get_volume(combine_segments=True, dtype=np.uint16).match_geometry(grid)
        except (OSError, ValueError, RuntimeError, KeyError, AttributeError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise DataError(
                f"Expected a DICOM SEG on the grid of its series, but {path} cannot be used ({reason}). "
                "Export it again on the series' own slices, with segments that do not overlap, or as NIfTI."
            ) from error
        label = np.ascontiguousarray(volume.array.transpose(2, 1, 0))
        classes = self.classes
        if self.by_name:
            numbers: dict[str, list[int]] = {name: [] for name in classes}
            for segment in seg.SegmentSequence:
                numbers[str(segment.SegmentLabel)].append(int(segment.SegmentNumber))
            classes = {name: tuple(values) for name, values in numbers.items()} | {next(iter(classes)): (0,)}
        return to_class_indices(label, classes, path)


@dataclass(frozen=True)
class _Series:
    uid: str
    modality: str
    files: tuple[Path, ...]

    @property
    def folder(self) -> Path:
        return min((path.parent for path in self.files), key=lambda folder: len(folder.parts))


@dataclass(frozen=True)
class _Segmentation:
    path: Path
    series: str
    segments: Mapping[int, str]


def _scan(root: Path) -> tuple[list[_Series], list[_Segmentation], bool]:
    """Read every header below `root`: the files by series, the segmentations, and whether there are contours."""
    files: dict[str, list[Path]] = {}
    modality: dict[str, str] = {}
    segmentations = []
    contours = False
    folders: dict[str, set[str]] = {}
    for path, header in run_jobs(_read_header, files_below(root), title="Reading DICOM headers", workers=1):
        if header is None:
            continue
        contours = contours or header.get("Modality") == "RTSTRUCT"
        if header.get("Modality") == "SEG":
            segmentations.append(_describe_segmentation(path, header))
        elif header.get("Modality") in _MODALITIES and "LOCALIZER" not in header.get("ImageType", ()):
            uid = str(header.SeriesInstanceUID)
            files.setdefault(uid, []).append(path)
            modality[uid] = str(header.get("Modality", ""))
            folders.setdefault(str(header.get("PatientID", "")), set()).add(_first_folder(root, path))
    # Compared in memory only; what the identifier is appears nowhere.
    spread = sum(len(names) > 1 for identifier, names in folders.items() if identifier)
    if spread:
        log.warning(
            "%d patient identifiers occur in several folders of %s: put all series of a patient below one folder, "
            "or splits may put a patient on both sides.",
            spread,
            root,
        )
    return [_Series(uid, modality[uid], tuple(paths)) for uid, paths in files.items()], segmentations, contours


def _read_header(path: Path) -> Any:
    """Return the tags that are needed, or None for a file that is no DICOM image; a broken .dcm is an error."""
    pydicom = load_pydicom()
    claims = path.suffix.lower() in (".dcm", ".dicom", ".ima")
    try:
        with path.open("rb") as file:
            magic = file.read(132)[128:]
        if path.name == "DICOMDIR" or (magic != b"DICM" and not claims):
            return None
        header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=_HEADER)
        header.SeriesInstanceUID  # noqa: B018  a file without it cannot be placed
    except (pydicom.errors.InvalidDicomError, OSError, EOFError, ValueError, AttributeError) as error:
        raise DataError(
            f"Expected a DICOM file, but {path} cannot be read ({error}). Copy it again, or remove it."
        ) from error
    return header


def _describe_segmentation(path: Path, header: Any) -> _Segmentation:
    series = [str(item.SeriesInstanceUID) for item in header.get("ReferencedSeriesSequence", ())]
    segments = {int(item.SegmentNumber): str(item.SegmentLabel) for item in header.get("SegmentSequence", ())}
    return _Segmentation(path, series[0] if series else "", segments)


def _first_folder(root: Path, path: Path) -> str:
    parts = path.relative_to(root).parts
    return parts[0] if len(parts) > 1 else root.resolve().name


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
    case: str, series: _Series, named: Mapping[str, Path] | None, segmentations: Sequence[_Segmentation]
) -> tuple[Path, ...]:
    if named is not None:
        return (named[case],) if case in named else ()
    paths = [segmentation.path for segmentation in segmentations if segmentation.series == series.uid]
    paths = paths or sorted(series.folder.glob("*.nii*"))
    if len(paths) > 1:
        raise DataError(
            f"Expected one label map for the series in {series.folder} (case {case}), but got "
            f"{' and '.join(map(str, paths))}. Remove the others, or give the pattern `labels`."
        )
    return tuple(paths)
