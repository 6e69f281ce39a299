"""The scan that is looked at: a NIfTI file as it is, or the first volume of one, or a DICOM series."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.errors import DataError, MissingFileError
from adawac.viewer.nifti import ENDINGS, Affine, encode, is_plain, load
from adawac.viewer.server import Resource

__all__ = ["NIFTI", "Scan", "read_scan"]

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
    from adawac.prediction.scans import find_scans

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
