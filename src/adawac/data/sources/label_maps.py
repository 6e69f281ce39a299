"""Label maps of any tool: NIfTI, NRRD and MetaImage, DICOM SEG, pictures; two of them on one grid; folders of them."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from adawac.data.cases import Array
from adawac.data.preprocessing import Affine, nearest_orientation
from adawac.data.sources.dicom_series import LPS_TO_RAS, load_highdicom
from adawac.data.sources.file_search import LABEL_FOLDERS, files_below
from adawac.data.sources.nifti import described_classes, described_ignore, described_regions, read_description
from adawac.data.sources.picture_files import open_picture
from adawac.data.sources.scan_files import check_affine, check_file, check_same_grid, read_nifti_map, to_class_indices
from adawac.data.sources.source import Classes, as_classes, check_ignored
from adawac.errors import ConfigError, DataError, MissingFileError, reading
from adawac.lazy import library

PICTURES = (".png", ".bmp", ".tif", ".tiff")
"""Endings of label maps that know no voxel size; JPEG changes values."""

COMPANIONS = {name: f"_{name}" for name in ("probabilities", "entropy", "disagreement", "overlay")}
"""What stands behind a case's name in the names of files that `predict` writes beside its label map."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelMap:
    """A label map as its file has it.

    Attributes:
        path: The file.
        values: (X, Y, Z), or (H, W) of a picture: the file's own label values.
        affine: Voxel index → world in mm (RAS+); None for a picture.
        segments: Label of each segment of a DICOM SEG → its numbers; None for other formats.
        volume: highdicom's volume of a SEG, which has no extent of its own: empty frames are left out.
    """

    path: Path
    values: Array
    affine: Affine | None
    segments: Mapping[str, tuple[int, ...]] | None = None
    volume: Any = None

    def placed(self, shape: tuple[int, ...], affine: Affine) -> "LabelMap":
        """Return a SEG on another grid of the same voxels: turned, flipped, and with background around it."""
        # highdicom's axes are (slice, row, column) in LPS; ours are (column, row, slice) in RAS.
        with _reading_segmentation(self.path):
            grid = load_highdicom().VolumeGeometry(
                LPS_TO_RAS @ affine[:, [2, 1, 0, 3]],
                shape[::-1],
                coordinate_system="PATIENT",
                frame_of_reference_uid=self.volume.frame_of_reference_uid,
            )
            values = np.ascontiguousarray(self.volume.match_geometry(grid).array.transpose(2, 1, 0))
        return replace(self, values=values, affine=affine)


def read_label_map(path: Path) -> LabelMap:
    """Read a label map; what is wrong with the file is a `DataError`."""
    reader = next((reader for ending, reader in _READERS.items() if path.name.lower().endswith(ending)), None)
    if reader is None:
        raise DataError(f"Expected a label map ({', '.join(_READERS)}), but got {path}. Convert it to .nii.gz.")
    return reader(path)


def is_label_map(path: Path) -> bool:
    """Say whether a file is called as label maps are."""
    return path.name.lower().endswith(tuple(_READERS))


def label_map_stem(path: Path) -> str:
    """Return a file's name without the ending of its format, and 3D Slicer's .seg before it."""
    ending = next(ending for ending in _READERS if path.name.lower().endswith(ending))
    return re.sub(r"\.seg$", "", path.name[: -len(ending)], flags=re.IGNORECASE)


def put_on_one_grid(truth: LabelMap, prediction: LabelMap) -> tuple[LabelMap, LabelMap]:
    """Return two label maps whose voxels are the same ones; another grid is a `DataError` that says how it differs.

    Only a SEG is placed, which loses nothing; nothing is resampled.
    """
    if truth.volume is not None and prediction.volume is not None:
        grid = _common_grid(truth, prediction)
        return truth.placed(*grid), prediction.placed(*grid)
    if truth.volume is not None and prediction.affine is not None:
        truth = truth.placed(prediction.values.shape, prediction.affine)
    elif prediction.volume is not None and truth.affine is not None:
        prediction = prediction.placed(truth.values.shape, truth.affine)
    _check_one_grid(truth, prediction)
    return truth, prediction


def _check_one_grid(truth: LabelMap, prediction: LabelMap) -> None:
    known = truth.affine is not None and prediction.affine is not None
    affine, other = (
        (truth.affine, prediction.affine) if known else (np.eye(4), np.eye(4))  # a picture lies nowhere
    )
    assert affine is not None
    assert other is not None
    axes, other_axes = nearest_orientation(affine), nearest_orientation(other)
    if axes != other_axes:
        raise DataError(
            f"Expected voxel axes that point to {axes}, as those of {truth.path}, but those of {prediction.path} point "
            f"to {other_axes}: it is turned or flipped. Bring it back to the grid of its scan."
        )
    check_same_grid(truth.path, truth.values.shape, affine, prediction.path, prediction.values.shape, other)


# -- DICOM SEG --------------------------------------------------------------------------------------------------------


def open_segmentation(path: Path) -> LabelMap:
    """Read a DICOM SEG on its own grid, which ends with its last frame; segments must not overlap."""
    with _reading_segmentation(path):
        seg = load_highdicom().seg.segread(path)
        volume = seg.get_volume(combine_segments=True, dtype=np.uint16)
        segments: dict[str, tuple[int, ...]] = {}
        for segment in seg.SegmentSequence:
            label = str(segment.SegmentLabel)
            segments[label] = (*segments.get(label, ()), int(segment.SegmentNumber))
        affine = LPS_TO_RAS @ np.asarray(volume.affine, dtype=np.float64)[:, [2, 1, 0, 3]]
    values = np.ascontiguousarray(volume.array.transpose(2, 1, 0))
    return LabelMap(path=path, values=values, affine=affine, segments=segments, volume=volume)


def _reading_segmentation(path: Path) -> AbstractContextManager[None]:
    return reading(
        lambda reason: DataError(
            f"Expected a DICOM SEG on the grid of its series, but {path} cannot be used ({reason}). "
            "Export it again on the series' own slices, with segments that do not overlap, or as NIfTI."
        )
    )


def _common_grid(truth: LabelMap, prediction: LabelMap) -> tuple[tuple[int, ...], Affine]:
    """Return shape and affine of the smallest grid of the truth's voxels that holds both."""
    assert truth.affine is not None  # a SEG has one
    assert prediction.affine is not None
    ends = [(0, side - 1) for side in prediction.values.shape]
    corners = np.array(np.meshgrid(*ends, 1, indexing="ij")).reshape(4, -1)
    other = np.rint((np.linalg.inv(truth.affine) @ prediction.affine @ corners)[:3]).astype(int)
    low = np.minimum(other.min(axis=1), 0)
    high = np.maximum(other.max(axis=1) + 1, truth.values.shape)
    shift = np.eye(4)
    shift[:3, 3] = low
    return tuple((high - low).tolist()), truth.affine @ shift


# -- other formats ----------------------------------------------------------------------------------------------------


def _read_nifti(path: Path) -> LabelMap:
    values, affine = read_nifti_map(path)
    return LabelMap(path=path, values=values, affine=affine)


def _read_with_simpleitk(path: Path) -> LabelMap:
    sitk = library("SimpleITK", "adawac[nrrd]")
    check_file(path, "a label map")
    with reading(
        lambda reason: DataError(
            f"Expected a label map, but {path} cannot be read ({reason}). It may be truncated: copy it again."
        )
    ):
        image = sitk.ReadImage(str(path))
        array = sitk.GetArrayFromImage(image)
    components, dimensions = image.GetNumberOfComponentsPerPixel(), image.GetDimension()
    if components > 1 or dimensions not in (2, 3):
        raise DataError(
            f"Expected one label for each voxel of a slice or a volume, but got {dimensions} dimensions of "
            f"{components} numbers in {path}. Segments that overlap are written so: export them as one label map."
        )
    if dimensions == 2:
        return LabelMap(path=path, values=array, affine=None)
    affine = np.eye(4)
    affine[:3, :3] = np.reshape(image.GetDirection(), (3, 3)) * image.GetSpacing()
    affine[:3, 3] = image.GetOrigin()
    check_affine(affine, f" in {path}")
    return LabelMap(path=path, values=array.transpose(2, 1, 0), affine=LPS_TO_RAS @ affine)


def _read_picture(path: Path) -> LabelMap:
    picture = open_picture(path)
    pages, height, _ = picture.shape
    if picture.samples > 1 or pages > 1:
        what = f"{pages} pages" if pages > 1 else "colours"
        raise DataError(
            f"Expected one label for each pixel, but got {what} in {path}. Save the label map as a grey or indexed "
            "picture of one page."
        )
    with reading(lambda reason: DataError(f"Expected a picture, but {path} cannot be read ({reason}). Copy it again.")):
        values = picture.rows(0, 0, height)[..., 0]  # of an indexed picture, the indices
    return LabelMap(path=path, values=values, affine=None)


_READERS: dict[str, Callable[[Path], LabelMap]] = {
    ".nii.gz": _read_nifti,
    ".nii": _read_nifti,
    **dict.fromkeys((".nrrd", ".mha", ".mhd"), _read_with_simpleitk),
    ".dcm": open_segmentation,
    **dict.fromkeys(PICTURES, _read_picture),
}


# -- what label values mean --------------------------------------------------------------------------------------------

_DESCRIPTION = "dataset.json"
LABELS = (*LABEL_FOLDERS, "labelstr", "labelsts")
"""What people call a folder of label maps in that of a data set."""
# What the same case may be called with, and without, by different programs.
_ROLE = re.compile(r"([_-](image|img|scan|segmentation|seg|labels?|masks?|gt|pred|prediction|0000))+$", re.IGNORECASE)
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class LabelScheme:
    """What label values mean.

    Attributes:
        classes: Class names with their label values, the background first; with regions, a class for each value.
        regions: Region → the classes that are in it, by index; they may overlap. Empty where classes are scored.
        ignore: The value of voxels in the truth that count nowhere.
    """

    classes: Classes
    regions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ignore: int | None = None

    @property
    def num_classes(self) -> int:
        """How many classes the label maps have, with background."""
        return len(self.classes)

    @property
    def names(self) -> tuple[str, ...]:
        """What is scored, the background first."""
        return ("background", *self.regions) if self.regions else tuple(self.classes)

    def read(self, label_map: LabelMap, truth: bool) -> Array:
        """Return a label map as class indices; a value without a class is a `DataError`."""
        classes, segments = self.classes, label_map.segments
        if segments is not None and segments.keys() <= self.classes.keys():  # numbers differ from file to file
            classes = {name: segments.get(name, ()) for name in classes} | {next(iter(classes)): (0,)}
        return to_class_indices(label_map.values, classes, label_map.path, self.ignore if truth else None)


def region_scheme(regions: Mapping[str, tuple[int, ...]], ignore: int | None = None) -> LabelScheme:
    """Return the scheme of regions by name, each with its label values."""
    values = sorted({value for of_region in regions.values() for value in of_region} - {0})
    members = {name: tuple(values.index(value) + 1 for value in of_region) for name, of_region in regions.items()}
    return LabelScheme(
        classes=as_classes({f"value {value}": value for value in values}), regions=members, ignore=ignore
    )


def find_scheme(
    folders: Sequence[Path], classes: Mapping[str, Any] | None, dataset_json: Path | None, ignore: int | None
) -> LabelScheme | None:
    """Return what label values mean: as `classes` say, else nnU-Net's dataset.json; None where nothing says it.

    Without `dataset_json`, the file is looked for in the folders and in that which the first, of the truth, lies in.
    """
    places = [folders[0], folders[0].absolute().parent, *folders[1:]]
    path = dataset_json or next((place / _DESCRIPTION for place in places if (place / _DESCRIPTION).is_file()), None)
    if dataset_json is not None and not dataset_json.is_file():
        raise MissingFileError(f"Expected nnU-Net's dataset.json, but {dataset_json} is not there. Correct the path.")
    if classes:
        scheme = LabelScheme(classes=as_classes(classes), ignore=ignore)
    elif path is None or not (description := read_description(path)).get("labels"):
        return None
    elif regions := described_regions(path.parent, description):
        scheme = region_scheme(regions, described_ignore(path.parent, description, {}) if ignore is None else ignore)
    else:
        known = described_classes(path.parent, description) or {}
        scheme = LabelScheme(
            classes=known, ignore=described_ignore(path.parent, description, known) if ignore is None else ignore
        )
    if scheme.ignore is not None:
        check_ignored(scheme.ignore, scheme.classes)
    return scheme


# -- folders: which file is which case ---------------------------------------------------------------------------------


def find_label_maps(folder: Path) -> dict[str, list[Path]]:
    """Return the label maps of a folder by case: its own, or else those below it. A case with several is ambiguous.

    A case is called as its file, or where files of several folders have one name, as the folders.
    """
    if not folder.is_dir():
        what = "is a file" if folder.is_file() else "is not there"
        raise MissingFileError(f"Expected a folder of label maps, but {folder} {what}. Give the folder.")
    paths = [path for path in files_below(folder) if is_label_map(path)]
    direct = [path for path in paths if path.parent == folder]
    if not direct and (
        better := sorted(path for path in folder.iterdir() if path.is_dir() and path.name.lower() in LABELS)
    ):
        raise ConfigError(f"Expected a folder of label maps, but {folder} is a data set. Give {better[0]}.")
    paths = _without_companions(direct or paths)
    if not paths:
        raise MissingFileError(
            f"Expected label maps in {folder} (.nii.gz, .nrrd, .mha, .dcm, .png, …), but there are none. Give their "
            "folder."
        )
    cases: dict[str, list[Path]] = {}
    for name, path in zip(_case_names(folder, paths), paths, strict=True):
        cases.setdefault(name, []).append(path)
    return cases


def _without_companions(paths: Sequence[Path]) -> list[Path]:
    """Leave out what `predict` writes beside label maps: probabilities and the like."""
    stems = {(path.parent, label_map_stem(path)) for path in paths}
    left = []
    for path in paths:
        name = label_map_stem(path)
        bare = next((name.removesuffix(ending) for ending in COMPANIONS.values() if name.endswith(ending)), None)
        if (path.parent, bare) not in stems:
            left.append(path)
    return left


def _case_names(folder: Path, paths: Sequence[Path]) -> list[str]:
    stems = [label_map_stem(path) for path in paths]
    parents = [path.relative_to(folder).parts[:-1] for path in paths]
    if len(set(stems)) == len(stems) or not any(parents):
        return stems
    if len(set(stems)) == 1:  # patient/seg.nii.gz
        return ["_".join(parts) for parts in parents]
    return ["_".join((*parts, name)) for parts, name in zip(parents, stems, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Matches:
    """Which predictions belong to which truth.

    Attributes:
        pairs: Case → prediction.
        missing: Cases without a prediction.
        unknown: Predictions without a truth.
        ambiguous: Case → its several predictions.
    """

    pairs: dict[str, Path]
    missing: list[str]
    unknown: list[Path]
    ambiguous: dict[str, list[Path]]


def match_cases(truth: Collection[str], predictions: Mapping[str, Sequence[Path]]) -> Matches:
    """Pair cases by name; those left over also without what the file is (_seg, _gt, _0000, …), if that is unique."""
    names = {case: case for case in truth if case in predictions}
    left = _by_bare_name(case for case in truth if case not in names)
    for bare, others in _by_bare_name(name for name in predictions if name not in names).items():
        if len(left.get(bare, ())) == len(others) == 1:
            names[left[bare][0]] = others[0]
    taken, files = set(names.values()), {case: list(predictions[name]) for case, name in names.items()}
    return Matches(
        pairs={case: files[case][0] for case in truth if len(files.get(case, ())) == 1},
        missing=[case for case in truth if case not in names],
        unknown=[path for name, paths in predictions.items() if name not in taken for path in paths],
        ambiguous={case: paths for case, paths in files.items() if paths[1:]},
    )


def _by_bare_name(names: Iterable[str]) -> dict[str, list[str]]:
    bare: dict[str, list[str]] = {}
    for name in names:
        bare.setdefault(_ROLE.sub("", name).casefold(), []).append(name)
    return bare


def some(names: Sequence[Any]) -> str:
    """Return a few names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(str(name) for name in names[:_SHOWN]) + more
