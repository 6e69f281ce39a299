"""What the page shows: a scan, and the label maps over it, in a form that NiiVue reads correctly."""

import gzip
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from adawac.data.cases import Array
from adawac.data.preprocessing import Affine, as_shares
from adawac.data.sources.file_search import is_nifti
from adawac.data.sources.picture_files import is_picture, open_picture, picture_stem
from adawac.data.sources.pictures import mask_values, open_mask
from adawac.data.sources.scan_files import check_same_grid, load_nifti
from adawac.data.sources.source import COLOUR
from adawac.errors import DataError, MissingFileError

_MEDIA_TYPE = "application/octet-stream"  # gzip's type would make browsers unpack the file before NiiVue does
_MOST_VALUES = 1000  # in a label map
_MOST_SIDE = 4096  # of a picture: beyond it, graphics cards refuse
_RGB = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])
# Columns go to the right of the screen and rows down it, where a scan has the patient's left and back.
_AS_SHOWN = np.diag([-1.0, -1.0, 1.0, 1.0])
# NiiVue shows these as they are. (It loses the last voxel of 32 and 64-bit integers.)
_TYPES = tuple(np.dtype(name) for name in ("uint8", "int8", "uint16", "int16", "float32", "float64"))


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A file that the server has.

    Attributes:
        kind: Its media type.
        body: Its bytes, or the file that holds them.
    """

    kind: str
    body: bytes | Path

    def open(self) -> tuple[BinaryIO, int]:
        """Return its content as a stream, and how many bytes that has."""
        if isinstance(self.body, bytes):
            return BytesIO(self.body), len(self.body)
        stream = self.body.open("rb")
        return stream, os.fstat(stream.fileno()).st_size


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A volume, ready to be shown.

    Attributes:
        path: Where it came from.
        shape: Voxels along each axis of the file.
        affine: Voxel index → world in mm (RAS+).
        resource: Its bytes.
        notes: What a reader should know.
    """

    path: Path
    shape: tuple[int, ...]
    affine: Affine
    resource: Resource
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ImageLayer(Layer):
    """A scan; its resource is the file itself wherever NiiVue reads that correctly.

    Attributes:
        range: The lowest and the highest of its values.
        ending: How the resource's name must end.
        picture: Whether it is a picture, and not a scan in space.
        step: Every so many rows and columns of a large picture are shown.
    """

    range: tuple[float, float]
    ending: str
    picture: bool = False
    step: int = 1


@dataclass(frozen=True, kw_only=True)
class LabelLayer(Layer):
    """A label map over a scan.

    Attributes:
        values: The values in it, ascending; a voxel k of the resource stands for `values[k]`.
        voxels: How many voxels have each of them.
        names: Value → name, as far as they are known.
        background: The value that is not drawn.
        middle: The mean position, in voxels, of what is labelled; None where nothing is.
    """

    values: tuple[int, ...]
    voxels: tuple[int, ...]
    names: Mapping[int, str] = field(default_factory=dict)
    background: int = 0
    middle: tuple[float, ...] | None = None


# -- scans ------------------------------------------------------------------------------------------------------------


def read_image_layer(path: Path) -> ImageLayer:
    """Read a NIfTI file, a picture, or a DICOM series by its folder or one of its files."""
    if not path.exists():
        raise MissingFileError(f"Expected a scan or a picture, but {path} does not exist. Check the path.")
    if path.is_file() and is_picture(path):
        return _read_picture(path)
    if path.is_file() and is_nifti(path):
        return _read_nifti(path)

    from adawac.data.sources.dicom_series import read_series
    from adawac.inference.scan_search import find_scans

    scans = find_scans([path])
    if len(scans) != 1:
        names = ", ".join(scan.name for scan in scans[:4]) + (" …" if len(scans) > 4 else "")
        raise DataError(f"Expected one scan, but {path} has {len(scans)} ({names}). Give one of them.")
    [scan] = scans
    if scan.problem:
        raise DataError(f"{path} cannot be shown. {scan.problem}")
    return _read_nifti(scan.files[0]) if scan.kind == "nifti" else _image_layer(path, *read_series(scan.files))


def _read_nifti(path: Path) -> ImageLayer:
    image, data, affine = _load(path)
    if _is_plain(image, data):
        return _image_layer(path, data, affine, file=path)
    notes = []
    if data.ndim > 3:
        count = int(np.prod(data.shape[3:]))
        notes.append(f"{path.name} has {count} volumes (shape {data.shape}); this is the first of them.")
        data = data.reshape(*data.shape[:3], -1)[..., 0]
    return _image_layer(path, data, affine, notes)


def _image_layer(
    path: Path, data: Array, affine: Affine, notes: list[str] | None = None, file: Path | None = None
) -> ImageLayer:
    """Return a layer whose bytes are a file's, or are encoded in memory."""
    data = data if file else _as_small(data)
    return ImageLayer(
        path=path,
        shape=data.shape,
        affine=affine,
        range=(float(data.min()), float(data.max())),
        resource=Resource(kind=_MEDIA_TYPE, body=file or _encode(data, affine)),
        ending=".nii" if file and file.suffix.lower() == ".nii" else ".nii.gz",
        notes=tuple(notes or ()),
    )


def _read_picture(path: Path) -> ImageLayer:
    """Return a picture as a volume of one slice for each page, in 8 bits of red, green and blue, or in grey."""
    picture = open_picture(path)
    pages, height, width = picture.shape
    step = math.ceil(max(height, width) / _MOST_SIDE)
    channels = 3 if picture.is_colour else 1
    images = [as_shares(picture.preview(page, step, channels), picture.full_range) for page in range(pages)]
    data = (np.stack(images, axis=3).transpose(0, 2, 1, 3).clip(0, 1) * 255).round().astype(np.uint8)  # (C, W, H, P)
    notes = [f"{path.name} is large: one in {step} rows and columns is shown."] if step > 1 else []
    shown = np.stack(list(data), axis=-1).view(_RGB)[..., 0] if channels == 3 else data[0]
    return ImageLayer(
        path=path,
        shape=data.shape[1:],
        affine=_AS_SHOWN,
        range=(float(data.min()), float(data.max())),
        resource=Resource(kind=_MEDIA_TYPE, body=_encode(shown, _AS_SHOWN)),
        ending=".nii.gz",
        notes=tuple(notes),
        picture=True,
        step=step,
    )


def _is_plain(image: Any, data: Array) -> bool:
    """Return whether NiiVue shows a file as nibabel reads it, so that the page can load the file itself."""
    header = image.header
    sform, qform = int(header["sform_code"]), int(header["qform_code"])
    # Where both are set, nibabel takes the sform, and NiiVue the one with the higher code.
    same_position = sform >= qform > 0 or (sform > 0) != (qform > 0)
    return (
        len(image.shape) == 3
        and header.get_data_dtype().newbyteorder("=") in _TYPES
        and same_position
        and int(header["intent_code"]) == 0  # NiiVue treats label maps and vectors differently
        and not (data.dtype.kind == "f" and not np.isfinite(data).all())
    )


def _as_small(data: Array) -> Array:
    """Return 16-bit integers where that loses nothing, else float32; what is not finite becomes the minimum."""
    finite = np.isfinite(data)
    if not finite.all():
        data = np.where(finite, data, data[finite].min() if finite.any() else 0)
    low, high = float(data.min()), float(data.max())
    if low >= -(1 << 15) and high < 1 << 15 and bool((data == np.rint(data)).all()):
        return data.astype(np.int16)
    return data.astype(np.float32)


# -- label maps -------------------------------------------------------------------------------------------------------


def read_label_layer(path: Path, scan: ImageLayer) -> LabelLayer:
    """Read a label map; if its grid differs from the scan's, it is drawn where its affine says, with a note."""
    if is_picture(path) != scan.picture:
        kind, other = ("picture", "a PNG or TIFF mask") if scan.picture else ("scan", "a NIfTI label map")
        raise DataError(
            f"Expected {other} for a {kind}, but got {path}. Give the one that belongs to {scan.path.name}."
        )
    image, data, affine = _load_mask(path, scan) if scan.picture else _load(path)
    if data.ndim != 3:
        raise DataError(f"Expected a 3D label map, but got shape {data.shape} in {path}. Write one volume of values.")
    values = _values(data, path)
    indices = _indices(data, values)
    names = _class_names(path, image and image.header)
    background = 0 if 0 in values or 0 in names else next(iter(names), 0)
    return LabelLayer(
        path=path,
        shape=data.shape,
        affine=affine,
        values=tuple(int(value) for value in values),
        voxels=tuple(np.bincount(indices.ravel(order="K"), minlength=len(values)).tolist()),
        names=names,
        background=background,
        middle=_middle(data != background),
        resource=Resource(kind=_MEDIA_TYPE, body=_encode(indices, affine)),
        notes=_grid_notes(scan, path, data.shape, affine),
    )


def _load_mask(path: Path, scan: ImageLayer) -> tuple[Any, Array, Affine]:
    """Return a mask like the volume that its picture became; colours but black, which is 0, are values of 32 bits."""
    mask = open_mask(path)
    pages, height, _ = mask.shape
    coloured = mask.samples == 3 and mask.is_colour
    rows = [mask_values(mask, page, 0, height, coloured)[:: scan.step, :: scan.step] for page in range(pages)]
    values = np.stack(rows, axis=2).swapaxes(0, 1)
    return None, np.where(values == COLOUR, 0, values) if coloured else values, _AS_SHOWN


def _values(data: Array, path: Path) -> Array:
    """Return the values of a label map, which must be whole numbers and not too many."""
    values = np.unique(data.ravel(order="K"))
    if not np.isfinite(values).all() or (values != np.rint(values)).any():
        raise DataError(
            f"Expected whole numbers in a label map, but got fractions or NaN in {path} ({data.dtype}). "
            "Give a label map, not a scan or probabilities; resample labels by nearest neighbour."
        )
    if len(values) > _MOST_VALUES:
        raise DataError(
            f"Expected a label map of at most {_MOST_VALUES} classes, but got {len(values)} values in {path}. "
            "Give a label map, not a scan."
        )
    return values


def _indices(data: Array, values: Array) -> Array:
    """Return each voxel's index among the values, slice by slice to save memory; the type has room for one more."""
    indices = np.empty(data.shape, dtype=np.uint8 if len(values) < 256 else np.uint16, order="F")
    for k in range(data.shape[2]):
        indices[..., k] = np.searchsorted(values, data[..., k])
    return indices


def _middle(labelled: npt.NDArray[np.bool_]) -> tuple[float, ...] | None:
    counts = [labelled.sum(axis=tuple({0, 1, 2} - {axis})) for axis in range(3)]
    if not counts[0].sum():
        return None
    return tuple(float(np.average(np.arange(len(count)), weights=count)) for count in counts)


def _grid_notes(scan: ImageLayer, path: Path, shape: tuple[int, ...], affine: Affine) -> tuple[str, ...]:
    try:
        check_same_grid(scan.path, scan.shape, scan.affine, path, shape, affine)
    except DataError:
        what = "shape" if shape != scan.shape else "affine"
        return (f"{path.name} has another {what} than the scan; it is drawn where its own affine says.",)
    return ()


def _class_names(path: Path, header: Any) -> dict[int, str]:
    """Return value → name, the background first; empty where the names are unknown.

    They come from the first of these that has them: the JSON file that `adawac predict` writes beside a label map, the
    classes that it writes into the header, nnU-Net's dataset.json in the same folder or the one above.
    """
    stem = picture_stem(path.name.removesuffix(".gz").removesuffix(".nii"))
    return _from_table(_read_json(path.with_name(f"{stem}.json"))) or _from_header(header) or _from_dataset(path)


def _read_json(path: Path) -> Any:
    """Return the content of a JSON file; None where it is missing or is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _from_table(data: Any) -> dict[int, str]:
    """Read `{"classes": [{"index": 0, "value": 0, "name": "background"}, …]}`."""
    rows = data.get("classes") if isinstance(data, Mapping) else None
    try:
        ordered = sorted(rows or (), key=lambda row: int(row["index"]))
        return {int(row["value"]): str(row["name"]) for row in ordered}
    except (TypeError, KeyError, ValueError):
        return {}


def _from_header(header: Any) -> dict[int, str]:
    if header is None:  # of a picture
        return {}
    for extension in header.extensions:
        if extension.get_code() == 6:  # a comment
            try:
                return _from_table(json.loads(extension.get_content()))
            except (ValueError, TypeError, RecursionError):
                continue
    return {}


def _from_dataset(path: Path) -> dict[int, str]:
    """Read nnU-Net's `{"labels": {"background": 0, …}}`, or the Decathlon's `{"labels": {"0": "background", …}}`."""
    for folder in (path.parent, path.parent.parent):
        data = _read_json(folder / "dataset.json")
        labels = data.get("labels") if isinstance(data, Mapping) else None
        if isinstance(labels, Mapping):
            pairs = [(key, entry) if isinstance(entry, str) else (entry, key) for key, entry in labels.items()]
            try:
                return dict(sorted((int(value), str(name)) for value, name in pairs))
            except (TypeError, ValueError):
                return {}
    return {}


# -- files ------------------------------------------------------------------------------------------------------------


def _load(path: Path) -> tuple[Any, Array, Affine]:
    """Read a whole file, and return image, voxels as numbers, and affine; a trailing axis of one volume is dropped."""
    if path.exists() and not is_nifti(path):
        raise DataError(f"Expected a NIfTI file (.nii, .nii.gz), but got {path}. Convert it to .nii.gz.")
    image, data, affine = load_nifti(path)
    if 0 in data.shape or data.ndim < 2:
        raise DataError(f"Expected a volume, but got shape {data.shape} in {path}. Export it again.")
    return image, data[..., None] if data.ndim == 2 else data, affine


def _encode(data: Array, affine: Affine) -> bytes:
    """Return a volume as the bytes of a .nii.gz file."""
    import nibabel as nib

    image: Any = nib.Nifti1Image(data, affine)
    return gzip.compress(image.to_bytes(), compresslevel=1, mtime=0)
