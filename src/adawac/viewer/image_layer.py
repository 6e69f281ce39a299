"""The scan that is looked at, as an array or file that the page's viewer reads without mistakes."""

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.errors import DataError, MissingFileError
from adawac.viewer.server import Resource

Affine = npt.NDArray[np.float64]

ENDINGS = (".nii", ".nii.gz")
# What NiiVue takes as it is. (Of 32 and 64-bit integers it loses the last voxel.)
_TYPES = tuple(np.dtype(name) for name in ("uint8", "int8", "uint16", "int16", "float32", "float64"))


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what nibabel raises on a missing or broken file into errors that name it."""
    from nibabel.filebasedimages import ImageFileError
    from nibabel.spatialimages import HeaderDataError

    if not path.is_file():
        raise MissingFileError(f"Expected a NIfTI file, but {path} is not there. Correct the path.")
    if not path.name.lower().endswith(ENDINGS):
        raise DataError(f"Expected a NIfTI file (.nii, .nii.gz), but got {path}. Convert it to .nii.gz.")
    try:
        yield
    except (OSError, EOFError, ValueError, zlib.error, ImageFileError, HeaderDataError) as error:
        if isinstance(error, DataError):
            raise
        if not os.access(path, os.R_OK):
            raise DataError(f"Expected a NIfTI file, but {path} may not be read. Change its permissions.") from error
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"Expected a NIfTI file, but {path} cannot be read ({reason}). It may be truncated: copy it again."
        ) from error


def load(path: Path) -> tuple[Any, npt.NDArray[Any], Affine]:
    """Read a file whole, and return image, voxels as numbers, and affine; a trailing axis of one volume is dropped."""
    import nibabel as nib

    with readable(path):
        image: Any = nib.load(path)
        kind = image.get_data_dtype()
        if kind.kind not in "iufb":
            raise DataError(f"Expected numbers, but got voxels of type {kind} in {path}. Export it as grey values.")
        data = np.asanyarray(image.dataobj)
        affine = np.asarray(image.affine, dtype=np.float64)
    if not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) < 1e-12:
        raise DataError(f"Expected an invertible affine, but got {affine.tolist()} in {path}. Mend its header.")
    if 0 in data.shape or data.ndim < 2:
        raise DataError(f"Expected a volume, but got shape {data.shape} in {path}. Export it again.")
    while data.ndim > 3 and data.shape[-1] == 1:
        data = data[..., 0]
    return image, data[..., None] if data.ndim == 2 else data, affine


def is_plain(image: Any, data: npt.NDArray[Any]) -> bool:
    """Say whether NiiVue shows a file just as nibabel reads it, so that the file itself can be given to it."""
    header = image.header
    sform, qform = int(header["sform_code"]), int(header["qform_code"])
    # Where both are set, nibabel takes the sform, and NiiVue the one with the higher code.
    same_place = sform >= qform > 0 or (sform > 0) != (qform > 0)
    return (
        len(image.shape) == 3
        and header.get_data_dtype().newbyteorder("=") in _TYPES
        and same_place
        and int(header["intent_code"]) == 0  # of label maps and vectors it makes something else
        and not (data.dtype.kind == "f" and not np.isfinite(data).all())
    )


def encode(data: npt.NDArray[Any], affine: Affine) -> bytes:
    """Return a volume as the bytes of a .nii.gz file."""
    import nibabel as nib

    image: Any = nib.Nifti1Image(data, affine)
    return gzip.compress(image.to_bytes(), compresslevel=1, mtime=0)


NIFTI = "application/octet-stream"  # not gzip's own type: no browser shall unpack it before the viewer does


@dataclass(frozen=True, kw_only=True)
class Scan:
    """A scan, ready to be shown.

    Attributes:
        path: Where it came from.
        shape: Voxels along each axis of the file.
        affine: Voxel index → world in mm (RAS+).
        range: The lowest and the highest of its values.
        resource: Its bytes; the file itself wherever the viewer reads that rightly.
        ending: How the resource's name must end.
        notes: What a reader should know.
    """

    path: Path
    shape: tuple[int, ...]
    affine: Affine
    range: tuple[float, float]
    resource: Resource
    ending: str
    notes: tuple[str, ...] = ()


def read_scan(path: Path) -> Scan:
    """Read a NIfTI file, or a DICOM series by its folder or one of its files."""
    if not path.exists():
        raise MissingFileError(f"Expected a scan, but {path} is not there. Correct the path.")
    if path.is_file() and path.name.lower().endswith(ENDINGS):
        return _read_nifti(path)
    return _read_found(path)


def _read_nifti(path: Path) -> Scan:
    image, data, affine = load(path)
    if is_plain(image, data):
        ending = ".nii.gz" if path.name.lower().endswith(".gz") else ".nii"
        return _scan(path, data, affine, Resource(kind=NIFTI, body=path), ending)
    notes = []
    if data.ndim > 3:
        count = int(np.prod(data.shape[3:]))
        notes.append(f"{path.name} has {count} volumes (shape {data.shape}); this is the first of them.")
        data = data.reshape(*data.shape[:3], -1)[..., 0]
    return _made(path, data, affine, tuple(notes))


def _read_found(path: Path) -> Scan:
    """Read the one scan that a folder or a DICOM file stands for."""
    from adawac.data.sources.dicom_series import read_series
    from adawac.inference.scan_search import find_scans

    found = find_scans([path])
    if len(found) != 1:
        names = ", ".join(scan.name for scan in found[:4]) + (" …" if len(found) > 4 else "")
        raise DataError(f"Expected one scan, but {path} has {len(found)} ({names}). Give one of them.")
    [scan] = found
    if scan.problem:
        raise DataError(f"{path} cannot be shown. {scan.problem}")
    if scan.kind == "nifti":
        return _read_nifti(scan.files[0])
    data, affine = read_series(scan.files)
    return _made(path, data, affine)


def _made(path: Path, data: npt.NDArray[Any], affine: Affine, notes: tuple[str, ...] = ()) -> Scan:
    """Return a scan whose bytes are written anew, in memory."""
    data = _as_small(data)
    return _scan(path, data, affine, Resource(kind=NIFTI, body=encode(data, affine)), ".nii.gz", notes)


def _scan(
    path: Path, data: npt.NDArray[Any], affine: Affine, resource: Resource, ending: str, notes: tuple[str, ...] = ()
) -> Scan:
    return Scan(
        path=path,
        shape=data.shape,
        affine=affine,
        range=(float(data.min()), float(data.max())),
        resource=resource,
        ending=ending,
        notes=notes,
    )


def _as_small(data: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return numbers as 16-bit integers where that loses nothing, or else as float32; what is not finite is lowest."""
    finite = np.isfinite(data)
    if not finite.all():
        data = np.where(finite, data, data[finite].min() if finite.any() else 0)
    low, high = float(data.min()), float(data.max())
    if low >= -(1 << 15) and high < 1 << 15 and bool((data == np.rint(data)).all()):
        return data.astype(np.int16)
    return data.astype(np.float32)
