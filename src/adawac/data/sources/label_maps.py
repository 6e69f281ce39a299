"""Label maps of any tool: NIfTI, NRRD and MetaImage, DICOM SEG, pictures; two of them on one grid."""

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from adawac.data.cases import Array
from adawac.data.preprocessing import Affine
from adawac.data.sources.dicom_series import LPS_TO_RAS, load_highdicom
from adawac.data.sources.picture_files import open_picture
from adawac.data.sources.scan_files import check_affine, check_file, check_same_grid, read_nifti_map
from adawac.errors import DataError, reading
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
    axes, other_axes = _axes(affine), _axes(other)
    if axes != other_axes:
        raise DataError(
            f"Expected voxel axes that point to {axes}, as those of {truth.path}, but those of {prediction.path} point "
            f"to {other_axes}: it is turned or flipped. Bring it back to the grid of its scan."
        )
    check_same_grid(truth.path, truth.values.shape, affine, prediction.path, prediction.values.shape, other)


def _axes(affine: Affine) -> str:
    from nibabel.orientations import aff2axcodes

    return "".join(aff2axcodes(affine))


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
