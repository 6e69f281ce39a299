"""NIfTI files and arrays in memory, as the page's viewer reads them without mistakes."""

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.errors import DataError, MissingFileError

__all__ = ["ENDINGS", "Affine", "encode", "is_plain", "load", "readable"]

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
