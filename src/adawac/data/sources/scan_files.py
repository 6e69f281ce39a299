"""Files to arrays, with errors that name the file and the fix."""

import gzip
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.data.cases import Array, with_ignored
from adawac.data.preprocessing import Affine
from adawac.data.sources.file_search import is_nifti
from adawac.data.sources.source import Classes
from adawac.errors import DataError, MissingFileError, reading

# Grids whose corners lie within this share of a voxel are the same.
_TOLERANCE = 0.1
# So many bytes are read at a time of what stands behind the voxels.
_CHUNK = 1 << 20
# Zeros in HDF5: so many bytes may never have been written, and gzip makes them shorter by this factor at best.
_UNWRITTEN, _BEST_RATIO = 1 << 26, 1032


def check_file(path: Path, kind: str) -> None:
    """Raise an error that says so where a file is missing or may not be read."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "leads nowhere" if path.is_symlink() else "is not there"
        raise MissingFileError(f"Expected {kind}, but {path} {what}. Correct the path, or add the file.")
    if not os.access(path, os.R_OK):
        raise DataError(f"Expected {kind}, but {path} may not be read. Change its permissions.")


@contextmanager
def _readable(path: Path, kind: str) -> Iterator[None]:
    """Turn what a library raises on a broken file into a `DataError`."""
    from nibabel.filebasedimages import ImageFileError

    check_file(path, kind)
    with reading(
        lambda reason: DataError(
            f"Expected {kind}, but {path} cannot be read ({reason}). It may be truncated: copy or download it again."
        )
    ):
        try:
            yield
        except ImageFileError as error:
            if is_nifti(path):
                raise
            raise DataError(
                f"Expected {kind} (.nii, .nii.gz), but got {path}. Convert it to .nii.gz, or change the pattern."
            ) from error


def open_nifti(path: Path) -> Any:
    """Open a NIfTI file; a compressed one is decompressed once, while its voxels are read from front to back.

    Call `check_rest` behind the last voxel: only there a damaged file is told from a good one.
    """
    import nibabel as nib

    image: Any = nib.load(path)
    if path.suffix.lower() != ".gz" or not hasattr(type(image), "from_stream"):
        return image
    return type(image).from_stream(gzip.open(path))


def check_rest(image: Any) -> None:
    """Read a compressed file to its end, where its checksum stands; a wrong one is an `OSError`."""
    file = image.file_map["image"].fileobj
    if file is not None:
        with file:
            while file.read(_CHUNK):
                pass


def load_nifti(path: Path) -> tuple[Any, Array, Affine]:
    """Read a NIfTI file: nibabel's image, its voxels as the file has them, and its affine."""
    with _readable(path, "a NIfTI file"):
        image = open_nifti(path)
        data = np.asanyarray(image.dataobj)
        check_rest(image)
        affine = np.asarray(image.affine, dtype=np.float64)
    if data.dtype.kind not in "iufb":
        raise DataError(
            f"Expected numbers, but got voxels of type {data.dtype} in {path}. Export it as a grey-value image."
        )
    check_affine(affine, f" in {path}")
    while data.ndim > 3 and data.shape[-1] == 1:  # many programs write a volume as a series of one
        data = data[..., 0]
    return image, data, affine


def check_affine(affine: Affine, where: str) -> None:
    """Raise a `DataError` unless each voxel axis has a direction of its own in space."""
    from nibabel.orientations import io_orientation

    with np.errstate(all="ignore"):
        squares = affine[:3, :3] @ affine[:3, :3].T
        fine = np.isfinite(affine).all() and np.isfinite(squares).all()
        fine = fine and abs(np.linalg.det(affine[:3, :3])) >= 1e-12 and np.isfinite(io_orientation(affine)).all()
    if not fine:
        raise DataError(f"Expected an invertible affine, but got {affine.tolist()}{where}. Fix its header.")


def read_nifti_image(paths: Sequence[Path], channels: int) -> tuple[npt.NDArray[np.float32], Affine]:
    """Read one 3D file per channel, or one 4D file with the channels last, as (C, *spatial) float32 and an affine."""
    parts: list[Array] = []
    affines: list[Affine] = []
    several = f", or a 4D one with {channels} channels last" if channels > 1 else ""
    for path in paths:
        _, data, affine = load_nifti(path)
        if data.ndim == 4 and len(paths) == 1 and data.shape[3] == channels:
            data = np.moveaxis(data, 3, 0)
        elif data.ndim == 3:
            data = data[None]
        else:
            advice = (
                "Split the volumes of a time series; where they are channels, name each in `channels`."
                if data.ndim > 3
                else f"Save a single slice as a volume of {(*data.shape, 1)}, its label map too."
            )
            raise DataError(f"Expected a 3D image{several}, but got {data.shape} in {path}. {advice}")
        parts.append(data.astype(np.float32))
        affines.append(affine)
        check_same_grid(paths[0], parts[0].shape[1:], affines[0], path, data.shape[1:], affine)
    count = sum(len(part) for part in parts)
    if count != channels or not parts:
        raise DataError(
            f"Expected {channels} channels, but got {count} from {list(map(str, paths))}. Add the missing channel "
            "files, or correct `channels`."
        )
    return np.concatenate(parts), affines[0]


def read_nifti_map(path: Path) -> tuple[Array, Affine]:
    """Read a 3D file of label values, and its affine."""
    _, data, affine = load_nifti(path)
    if data.ndim != 3:
        raise DataError(
            f"Expected a 3D label map, but got shape {data.shape} in {path}. Write one 3D volume of class values."
        )
    return data, affine


def read_nifti_label(
    path: Path, classes: Classes, image: Path, shape: tuple[int, ...], affine: Affine, ignore: int | None = None
) -> npt.NDArray[np.integer[Any]]:
    """Read a label map that must lie on the image's grid, as class indices in the file's own integer type.

    Voxels of the value `ignore` become `IGNORED`.
    """
    data, its_affine = read_nifti_map(path)
    check_same_grid(image, shape, affine, path, data.shape, its_affine)
    return to_class_indices(data, classes, path, ignore)


def read_nifti_turned(path: Path, affine: Affine) -> tuple[Array, Affine]:
    """Read a 3D file with its voxel axes turned and flipped to those of `affine`, and its affine after that."""
    from nibabel.orientations import apply_orientation, inv_ornt_aff, io_orientation, ornt_transform

    data, its_affine = read_nifti_map(path)
    turn = ornt_transform(io_orientation(its_affine), io_orientation(affine))
    return apply_orientation(data, turn), its_affine @ inv_ornt_aff(turn, data.shape)


def read_nifti_values(path: Path) -> set[int]:
    """Return the label values that occur in a file."""
    _, data, _ = load_nifti(path)
    return label_values(data, path)


def label_values(label: Array, path: Path) -> set[int]:
    """Return the label values that occur in a label map; fractions are a `DataError`."""
    return set(np.unique(_whole_numbers(label, path)).tolist())


def check_same_grid(
    image: Path, shape: tuple[int, ...], affine: Affine, other: Path, other_shape: tuple[int, ...], other_affine: Affine
) -> None:
    """Raise a `DataError` unless both files have one shape and their corners coincide."""
    if tuple(shape) != tuple(other_shape):
        raise DataError(
            f"Expected the shape {tuple(shape)} of {image}, but got {tuple(other_shape)} in {other}. "
            "Resample it onto that grid (a label map by nearest neighbour)."
        )
    corners = np.array(np.meshgrid(*[(0, side - 1) for side in shape], 1, indexing="ij")).reshape(4, -1)
    shift = float(np.abs((affine - other_affine) @ corners)[:3].max())
    voxel = float(np.linalg.norm(affine[:3, :3], axis=0).min())
    if shift > _TOLERANCE * voxel:
        raise DataError(
            f"Expected the affine of {image}, but that of {other} moves its corners by up to {shift:.3g} mm. "
            "Resample it onto the image's grid, or copy the image's header if only the header is wrong."
        )


def _whole_numbers(label: Array, path: Path) -> Array:
    """Return the label in a native integer type; whole numbers stored as floats are taken, fractions are not."""
    if label.dtype.kind == "b":
        label = label.astype(np.uint8)
    if label.dtype.kind == "f":
        if not np.isfinite(label).all() or (label != np.round(label)).any():
            raise DataError(
                f"Expected whole-numbered labels, but got fractions or NaN in {path} ({label.dtype}). "
                "Save the label map with an integer type; resample labels by nearest neighbour."
            )
        small = label.size and label.min() >= 0 and label.max() <= 255
        label = label.astype(np.uint8 if small else np.int32)
    return label.astype(label.dtype.newbyteorder("="), copy=False)


def to_class_indices(
    label: Array, classes: Classes, path: Path, ignore: int | None = None
) -> npt.NDArray[np.integer[Any]]:
    """Map the label values of a file to class indices, and the value `ignore` to `IGNORED`."""
    label = _whole_numbers(label, path)
    if ignore is not None and (ignored := label == ignore).any():
        background = next(iter(classes.values()))[0]
        return with_ignored(to_class_indices(np.where(ignored, background, label), classes, path), ignored)
    values = np.array([value for of_class in classes.values() for value in of_class], dtype=np.int64)
    index = np.array([k for k, of_class in enumerate(classes.values()) for _ in of_class], dtype=np.int64)
    low, high = (int(label.min()), int(label.max())) if label.size else (0, 0)
    if low >= 0 and high < len(values) and (values == index).all() and (values == np.arange(len(values))).all():
        return label
    known = (values >= low) & (values <= high)
    if high - low < 1 << 20:
        table = np.full(high - low + 1, -1, dtype=np.int32)
        table[values[known] - low] = index[known]
        result = table[label.astype(np.int64) - low]
    else:
        order = np.argsort(values)
        nearest = order[np.searchsorted(values[order], label).clip(max=len(values) - 1)]
        result = np.where(values[nearest] == label, index[nearest], -1)
    if result.size and result.min() < 0:
        unknown = np.unique(label[result < 0])
        raise DataError(
            f"Expected the label values {sorted(values.tolist())}, but got {unknown[:8].tolist()} in {path}. "
            "Name every value in `classes`; list those to be dropped under background."
        )
    fits = len(classes) - 1 <= np.iinfo(label.dtype).max
    return result.astype(label.dtype if fits else np.int32)


def read_arrays(path: Path, names: tuple[str, ...] = ("image", "label")) -> dict[str, Array]:
    """Read named arrays from an HDF5 or an npz file (never pickled ones)."""
    if path.suffix == ".npz":
        with _readable(path, "an npz file"), np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in names if name in file}
    else:
        import h5py

        with _readable(path, "an HDF5 file"), h5py.File(path, "r") as file:
            arrays = {name: _hdf5_array(file[name]) for name in names if name in file}
    if lacking := [name for name in names if name not in arrays]:
        raise DataError(
            f"Expected the arrays {', '.join(names)}, but {path} has no {lacking[0]!r}. Export it again with both."
        )
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "iufb":
            raise DataError(
                f"Expected numbers as {name} in {path}, but got {getattr(array, 'dtype', 'text')}. Export it again."
            )
    return arrays


def _hdf5_array(dataset: Any) -> Array:
    """Read an array whose size the file can hold: one that was never written is as large as its header says."""
    import h5py

    if not isinstance(dataset, h5py.Dataset):
        raise ValueError(f"{dataset.name} is a group")
    if dataset.nbytes > max(_UNWRITTEN, _BEST_RATIO * dataset.id.get_storage_size()):
        raise ValueError(f"{dataset.name} promises {dataset.nbytes} bytes, more than the file can hold")
    return np.asarray(dataset)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    with reading(lambda reason: DataError(f"Expected JSON in {path}, but it cannot be read ({reason}). Fix the file.")):
        data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise DataError(f"Expected a JSON object in {path}, but got {type(data).__name__}. Fix the file.")
    return data
