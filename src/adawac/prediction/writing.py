"""Label maps and probabilities as NIfTI on the scan's grid, and the JSON file beside them."""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import adawac
from adawac.files import beside, write_text
from adawac.prediction.segmenting import FULL
from adawac.prediction.volumes import Volume

__all__ = ["class_table", "label_dtype", "write_labels", "write_probabilities", "write_sidecar"]

Array = npt.NDArray[Any]

# What places a volume in space, as it stands in a header.
_GEOMETRY = (
    "dim_info",
    "xyzt_units",
    "qform_code",
    "sform_code",
    "quatern_b",
    "quatern_c",
    "quatern_d",
    "qoffset_x",
    "qoffset_y",
    "qoffset_z",
    "srow_x",
    "srow_y",
    "srow_z",
)


def class_table(class_names: Sequence[str], values: Sequence[int]) -> list[dict[str, Any]]:
    """Return index, value in the label map, and name of each class."""
    return [{"index": k, "value": int(v), "name": n} for k, (n, v) in enumerate(zip(class_names, values, strict=True))]


def label_dtype(values: Sequence[int]) -> np.dtype[Any]:
    """Return the smallest type that NIfTI readers know and that holds these label values."""
    kinds = (np.uint8, np.int16, np.int32)
    return np.dtype(next(one for one in kinds if np.iinfo(one).min <= min(values) and max(values) <= np.iinfo(one).max))


def write_labels(path: Path, labels: Array, volume: Volume, classes: Sequence[Mapping[str, Any]]) -> None:
    """Write a label map on the scan's grid; the classes stand in an extension of the header, too."""
    header = _header(volume, labels.shape, labels.dtype, classes)
    header.set_intent("label", name="adawac")
    with _compressed(path) as stream:
        header.write_to(stream)
        _write_array(stream, labels)


def write_probabilities(
    path: Path, volumes: Iterable[Array], volume: Volume, classes: Sequence[Mapping[str, Any]]
) -> None:
    """Write one volume of 16-bit shares for each class, along the fourth axis; readers get numbers from 0 to 1."""
    header = _header(volume, (*volume.shape, len(classes)), np.dtype(np.uint16), classes)
    header.set_slope_inter(1 / FULL, 0)
    header.set_intent("estimate", name="probability")
    with _compressed(path) as stream:
        header.write_to(stream)
        for one in volumes:
            _write_array(stream, one)


def write_sidecar(path: Path, data: Mapping[str, Any]) -> None:
    """Write what a label map means, and how it was made."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def _header(volume: Volume, shape: Sequence[int], dtype: "np.dtype[Any]", classes: Sequence[Mapping[str, Any]]) -> Any:
    """Return a header with the scan's geometry, bit for bit, and nothing else of it: descriptions may name people."""
    import nibabel as nib

    own = volume.header
    header: Any = nib.Nifti1Header() if own is None else type(own)()
    header.set_data_dtype(dtype)
    header.set_data_shape(shape)
    if own is None:
        header.set_xyzt_units("mm")
        header.set_sform(volume.affine, code="scanner")
        gram = volume.affine[:3, :3].T @ volume.affine[:3, :3]
        sheared = not np.allclose(gram, np.diag(np.diag(gram)), atol=1e-4)  # a tilted gantry: no quaternion says that
        header.set_qform(volume.affine, code="unknown" if sheared else "scanner")
    else:
        header["pixdim"][:4] = own["pixdim"][:4]
        for name in _GEOMETRY:
            header[name] = own[name]
    names = ", ".join(f"{one['value']} {one['name']}" for one in classes[1:])
    header["descrip"] = f"adawac {adawac.__version__}: {names}".encode("ascii", "replace")[:79]
    header.extensions.append(nib.nifti1.Nifti1Extension("comment", json.dumps({"classes": list(classes)}).encode()))
    return header


@contextmanager
def _compressed(path: Path) -> Iterator[gzip.GzipFile]:
    """Yield a stream into a file that appears when it is whole; the same label map gives the same bytes."""
    with (
        beside(path) as temporary,
        temporary.open("wb") as file,
        gzip.GzipFile("", "wb", compresslevel=4, fileobj=file, mtime=0) as stream,
    ):
        yield stream


def _write_array(stream: gzip.GzipFile, array: Array) -> None:
    """Write a volume in NIfTI's order, the first axis fastest, slice by slice."""
    for part in array.transpose(2, 1, 0):
        stream.write(np.ascontiguousarray(part).data)
