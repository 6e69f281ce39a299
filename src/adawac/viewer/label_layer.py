"""A label map as a layer: voxels that count the classes, and the names of these classes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.data.sources.scan_files import check_same_grid
from adawac.errors import DataError
from adawac.viewer.image_layer import NIFTI, Affine, Scan, encode, load
from adawac.viewer.server import Resource


def class_names(path: Path, header: Any) -> dict[int, str]:
    """Return value → name, the background first, or nothing where nobody says.

    The first that has an answer: the JSON file which `adawac predict` writes beside a label map, the classes which it
    writes into the header, and nnU-Net's dataset.json in the same folder or the one above.
    """
    stem = path.name.removesuffix(".gz").removesuffix(".nii")
    return _from_table(_read(path.with_name(f"{stem}.json"))) or _from_header(header) or _from_dataset(path)


def _read(path: Path) -> Any:
    """Return the content of a JSON file; None where there is none, or something else has that name."""
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
        data = _read(folder / "dataset.json")
        labels = data.get("labels") if isinstance(data, Mapping) else None
        if isinstance(labels, Mapping):
            pairs = [(one, two) if isinstance(two, str) else (two, one) for one, two in labels.items()]
            try:
                return dict(sorted((int(value), str(name)) for value, name in pairs))
            except (TypeError, ValueError):
                return {}
    return {}


_MOST_VALUES = 1000


@dataclass(frozen=True, kw_only=True)
class LabelMap:
    """A label map, ready to be shown over a scan.

    Attributes:
        path: Where it came from.
        shape: Voxels along each axis of the file.
        affine: Voxel index → world in mm (RAS+).
        values: The values in it, ascending; a voxel k of the resource stands for `values[k]`.
        voxels: How many voxels have each of them.
        names: Value → name, as far as they are known.
        background: The value that is not drawn.
        middle: The mean place, in voxels, of what is labelled; None where nothing is.
        resource: Its bytes.
        notes: What a reader should know.
    """

    path: Path
    shape: tuple[int, ...]
    affine: Affine
    values: tuple[int, ...]
    voxels: tuple[int, ...]
    names: Mapping[int, str] = field(default_factory=dict)
    background: int = 0
    middle: tuple[float, ...] | None = None
    resource: Resource
    notes: tuple[str, ...] = ()


def read_label_map(path: Path, scan: Scan) -> LabelMap:
    """Read a label map; on another grid than the scan's it is drawn where its affine says, with a note."""
    image, data, affine = load(path)
    if data.ndim != 3:
        raise DataError(f"Expected a 3D label map, but got shape {data.shape} in {path}. Write one volume of values.")
    values = _values(data, path)
    places = _places(data, values)
    names = class_names(path, image.header)
    background = 0 if 0 in values or 0 in names else next(iter(names), 0)
    return LabelMap(
        path=path,
        shape=data.shape,
        affine=affine,
        values=tuple(int(value) for value in values),
        voxels=tuple(np.bincount(places.ravel(order="K"), minlength=len(values)).tolist()),
        names=names,
        background=background,
        middle=_middle(data != background),
        resource=Resource(kind=NIFTI, body=encode(places, affine)),
        notes=_compare(scan, path, data.shape, affine),
    )


def _values(data: npt.NDArray[Any], path: Path) -> npt.NDArray[Any]:
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


def _places(data: npt.NDArray[Any], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return each voxel's place among the values, slice by slice to save memory; the type has room for one more."""
    places = np.empty(data.shape, dtype=np.uint8 if len(values) < 256 else np.uint16, order="F")
    for k in range(data.shape[2]):
        places[..., k] = np.searchsorted(values, data[..., k])
    return places


def _middle(labelled: npt.NDArray[np.bool_]) -> tuple[float, ...] | None:
    counts = [labelled.sum(axis=tuple(axis for axis in range(3) if axis != own)) for own in range(3)]
    if not counts[0].sum():
        return None
    return tuple(float(np.average(np.arange(len(count)), weights=count)) for count in counts)


def _compare(scan: Scan, path: Path, shape: tuple[int, ...], affine: Affine) -> tuple[str, ...]:
    try:
        check_same_grid(scan.path, scan.shape, scan.affine, path, shape, affine)
    except DataError:
        same = "shape" if shape != scan.shape else "affine"
        return (f"{path.name} has another {same} than the scan; it is drawn where its own affine says.",)
    return ()
