"""One DICOM series to a volume: sorted along the normal, rescaled, with its affine."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.data.cases import Array
from adawac.errors import DataError, MissingDependencyError

Affine = npt.NDArray[np.float64]

#: DICOM's x runs to the left and y to the back; NIfTI's to the right and to the front.
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
# Gaps between slices may differ by this share: positions are often rounded to 0.1 mm.
_GAP_TOLERANCE = 0.1


def load_pydicom() -> Any:
    """Import pydicom, or say how to install it."""
    return _load("pydicom", "DICOM")


def load_highdicom() -> Any:
    """Import highdicom, or say how to install it."""
    return _load("highdicom", "DICOM SEG")


def _load(name: str, purpose: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingDependencyError(
            f"Expected {name} to read {purpose}, but it is not installed. Run `pip install 'adawac[dicom]'`."
        ) from error


def read_series(paths: Sequence[Path]) -> tuple[npt.NDArray[np.float32], Affine]:
    """Read one series as (column, row, slice) in rescaled units, with its affine in NIfTI's RAS convention.

    Slices are sorted by their position along the normal, whatever their names or instance numbers say.
    """
    slices = [_read_slice(path) for path in paths]
    if len(slices) == 1 and int(slices[0].get("NumberOfFrames", 1)) > 1:
        return _read_multi_frame(paths[0])
    first = slices[0]
    where = paths[0].parent
    try:
        cosines = np.array(first.ImageOrientationPatient, dtype=np.float64).reshape(2, 3)
        row_size, column_size = (float(size) for size in first.PixelSpacing)
        positions = np.array([header.ImagePositionPatient for header in slices], dtype=np.float64)
    except AttributeError as error:
        raise DataError(
            f"Expected slices with a position in space, but {where} has none ({error}). Export it again."
        ) from error
    _check_alike(slices, paths)
    order = np.argsort(positions @ np.cross(*cosines), kind="stable")
    step = _slice_step(positions[order], np.cross(*cosines), [paths[k] for k in order], first)
    # Columns run along the first cosine and are `PixelSpacing[1]` apart: DICOM gives the row distance first.
    affine = np.eye(4)
    affine[:3, :3] = np.stack([cosines[0] * column_size, cosines[1] * row_size, step], axis=1)
    affine[:3, 3] = positions[order[0]]
    image = np.stack([_pixels(slices[k], paths[k]).T for k in order], axis=-1)
    return image, LPS_TO_RAS @ affine


def _read_slice(path: Path) -> Any:
    pydicom = load_pydicom()
    try:
        return pydicom.dcmread(path)
    except (pydicom.errors.InvalidDicomError, OSError, EOFError, ValueError) as error:
        raise DataError(f"Expected a DICOM file, but {path} cannot be read ({error}). Copy it again.") from error


def _pixels(dataset: Any, path: Path) -> npt.NDArray[np.float32]:
    from pydicom.pixels.processing import apply_modality_lut

    try:
        return np.asarray(apply_modality_lut(dataset.pixel_array, dataset), dtype=np.float32)
    except Exception as error:  # pydicom's decoders raise almost anything
        raise DataError(
            f"Expected pixel data that can be decoded, but {path} cannot be ({error}). Copy it again; if it is "
            "compressed, `pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg`."
        ) from error


def _check_alike(slices: Sequence[Any], paths: Sequence[Path]) -> None:
    for name in ("Rows", "Columns", "PixelSpacing", "ImageOrientationPatient"):
        wanted = np.array(slices[0].get(name), dtype=np.float64)
        for header, path in zip(slices, paths, strict=True):
            got = header.get(name)
            if got is None or not np.allclose(np.array(got, dtype=np.float64), wanted, atol=1e-4):
                raise DataError(
                    f"Expected {name} {wanted.tolist()} in every slice of the series, but got {got} in {path}. "
                    "Move slices of another scan or a scout image out of the folder."
                )


def _slice_step(positions: Array, normal: Array, paths: Sequence[Path], first: Any) -> Array:
    """Return the vector from one slice to the next; a doubled or missing slice is a `DataError`."""
    if len(positions) == 1:
        thickness = float(first.get("SpacingBetweenSlices") or first.get("SliceThickness") or 1.0)
        return np.asarray(normal * thickness)
    gaps = np.diff(positions @ normal)
    usual = float(np.median(gaps))
    if usual <= 0 or gaps.min() < _GAP_TOLERANCE * usual:
        row = int(gaps.argmin())
        raise DataError(
            f"Expected one slice at each position, but {paths[row]} and {paths[row + 1]} lie at the same. "
            "Remove the copy, or put each phase of the series into a separate folder."
        )
    row = int(np.abs(gaps - usual).argmax())
    if abs(gaps[row] - usual) > _GAP_TOLERANCE * usual:
        raise DataError(
            f"Expected slices {usual:.3g} mm apart, but {paths[row]} and {paths[row + 1]} are {gaps[row]:.3g} mm "
            "apart: a slice is missing. Export the whole series again; it is not interpolated."
        )
    return np.asarray((positions[-1] - positions[0]) / (len(positions) - 1))


def _read_multi_frame(path: Path) -> tuple[npt.NDArray[np.float32], Affine]:
    """Read an enhanced CT or MR object, which holds all slices in one file."""
    hd = load_highdicom()
    try:
        volume = hd.imread(path).get_volume(dtype=np.float32, allow_missing_positions=False)
    except (OSError, ValueError, RuntimeError, KeyError, AttributeError, TypeError) as error:
        raise DataError(
            f"Expected a multi-frame image that is one regular volume, but {path} is not ({error}). "
            "Export it slice by slice."
        ) from error
    image = volume.array.transpose(2, 1, 0)
    affine = np.asarray(volume.affine, dtype=np.float64)[:, [2, 1, 0, 3]]
    if np.linalg.det(affine[:3, :3]) < 0:  # highdicom sorts against the normal; a series is sorted along it
        image = image[:, :, ::-1]
        affine[:3, 3] += affine[:3, 2] * (image.shape[2] - 1)
        affine[:3, 2] *= -1
    return np.ascontiguousarray(image), LPS_TO_RAS @ affine
