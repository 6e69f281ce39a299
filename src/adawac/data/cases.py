"""What a case is, what a sample is, and the table that ties a sample's stable id to its row of beta."""

import csv
import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from adawac.errors import DataError

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]
Unit = Literal["slice", "volume", "patch"]

#: The class index of a pixel that nobody has annotated: it counts nowhere. A sample of no others is unlabelled.
IGNORED = 255

# Cells of a table that are read or written at once: as Python's objects, they take ten times the memory.
_CELLS_AT_ONCE = 1 << 17

# Characters that separate paths somewhere, or that some file system refuses.
_BAD_CHARACTERS = re.compile(r'[/\\:*?"<>|\x00-\x1f]')


@dataclass(frozen=True, kw_only=True)
class CaseRef:
    """A case that is listed but not read: cheap to send to another process and to hash.

    Attributes:
        dataset: Name of the data set, the first part of every sample id.
        patient: Who was scanned. Splits, folds and leak checks go by it.
        id: Name of the scan, unique in the data set.
        group: Pathology or another stratum, if known.
        split: `train`, `val`, `test`, or `""` where the source does not say.
        images: Image files, in the order in which the source's `load` wants them.
        labels: Label files; empty for a case without a label.
    """

    dataset: str
    patient: str
    id: str
    group: str | None = None
    split: str = ""
    images: tuple[Path, ...] = ()
    labels: tuple[Path, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file of the case, images first."""
        return self.images + self.labels

    def with_voxels(
        self, image: Array, label: Array | None, affine: npt.NDArray[np.float64] | None, class_names: tuple[str, ...]
    ) -> "Case":
        """Return the case as it was read; without an affine the spacing is lost, too."""
        sizes = np.ones(3) if affine is None else np.linalg.norm(affine[:3, :3], axis=0)
        return Case(
            dataset=self.dataset,
            patient=self.patient,
            id=self.id,
            group=self.group,
            image=image.astype(np.float32, copy=False),
            label=label,
            spacing=tuple(float(size) for size in sizes),
            affine=affine,
            class_names=class_names,
            files=self.files,
        )


@dataclass(frozen=True, kw_only=True)
class Case:
    """One scan with its label map and geometry, in the voxel order of its file.

    Attributes:
        dataset, patient, id, group: As in `CaseRef`.
        image: (C, *spatial) float32.
        label: (*spatial) class indices, 0 = background, `IGNORED` where nobody has annotated; None without a label.
        spacing: Voxel size along each spatial axis, in mm; ones where the format has lost it.
        affine: (4, 4) float64, voxel index → world in mm (RAS+, as in NIfTI); None where the format has lost it.
        class_names: Name of each class; index 0 is the background.
        files: The files it was read from.
    """

    dataset: str
    patient: str
    id: str
    group: str | None = None
    image: npt.NDArray[np.float32]
    label: Array | None = None
    spacing: tuple[float, ...]
    affine: npt.NDArray[np.float64] | None = None
    class_names: tuple[str, ...]
    files: tuple[Path, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The spatial shape."""
        return tuple(self.image.shape[1:])

    @property
    def num_classes(self) -> int:
        """K, the background included."""
        return len(self.class_names)


def name_file(case: CaseRef | Case) -> str:
    """Return the words that name a case in an error message."""
    return f"{case.files[0]} (case {case.id})" if case.files else f"case {case.id}"


def check_case(case: Case) -> None:
    """Raise a `DataError` that names the file and the fix if `case` cannot be trained or tested on."""
    if fault := _find_fault(case):
        expected, got, advice = fault
        raise DataError(f"Expected {expected}, but got {got} in {name_file(case)}. {advice}")


def _find_fault(case: Case) -> tuple[str, str, str] | None:
    """Return what was expected, what came instead and what to do; None for a case that can be used."""
    image, label, shape = case.image, case.label, case.shape
    if image.ndim != 4:
        return "an image of shape (channels, 3 spatial axes)", str(image.shape), "Give one 3D file per channel."
    if not image.size:
        return "an image with voxels", f"shape {image.shape}", "Export it again."
    if len(case.spacing) != len(shape) or not all(np.isfinite(size) and size > 0 for size in case.spacing):
        return f"{len(shape)} positive voxel sizes", str(case.spacing), "Fix its header."
    if bad := int(np.count_nonzero(~np.isfinite(image))):
        advice = "Export the image again, or replace them (for CT by -1024, otherwise by the background's intensity)."
        return "finite intensities", f"{bad} NaN or infinite voxels", advice
    if label is None:
        return None
    if label.shape != shape:
        advice = "Resample the label map onto the image's grid."
        return f"a label map of the image's shape {shape}", str(tuple(label.shape)), advice
    if label.dtype.kind not in "iu":
        return "integer class indices", f"labels of type {label.dtype}", "Save the label map with an integer type."
    low, high = int(label.min()), int(label.max())
    if high == IGNORED >= case.num_classes:
        high = int(label.max(initial=0, where=label != IGNORED))
    if low < 0 or high >= case.num_classes:
        advice = "Name every label value in `classes`, those to be dropped under background."
        return f"class indices 0 to {case.num_classes - 1}", f"{low} to {high}", advice
    return None


def check_name(name: str, what: str = "case id") -> str:
    """Return `name` if it can be one part of a sample id and of a path, or raise a `DataError`."""
    if not name or len(name) > 150 or name.startswith(".") or name != name.strip() or _BAD_CHARACTERS.search(name):
        raise DataError(
            f"Expected a {what} that is a plain name, but got {name!r}. "
            'Rename it: no slashes, none of : * ? " < > |, no leading dot, no space at either end, '
            "at most 150 characters."
        )
    return name


def sample_id(dataset: str, patient: str, case: str, axis: str, number: int) -> str:
    """Return the id `dataset/patient/case/axis/slice`, which survives re-preparing, subsetting and growing."""
    return f"{dataset}/{patient}/{case}/{axis}/{number}"


def class_pixels(label: Array, num_classes: int) -> npt.NDArray[np.int64]:
    """Return (S, K): how many pixels of each class stand in each of the S leading entries of `label`.

    Ignored pixels are of no class.
    """
    # Slice by slice: counting casts to 64 bits, which for a whole CT would take gigabytes.
    counts = [np.bincount(entry.ravel(), minlength=num_classes)[:num_classes] for entry in label]
    return np.stack(counts).astype(np.int64)


def class_shares(pixels: Array, size: int | Array) -> npt.NDArray[np.float64]:
    """Return (S, K): the share of each class in samples of `size` pixels, (S, 1); NaN where every pixel is ignored.

    An unlabelled sample has no class, not even background, and so is never taken for an empty one.
    """
    return np.where(pixels.sum(axis=1, keepdims=True) > 0, pixels / size, np.nan)


def with_ignored(label: Array, ignored: Array) -> Array:
    """Return a label map with `IGNORED` where `ignored` is true, in an integer type that can hold it."""
    return np.where(ignored, np.array(IGNORED, dtype=np.uint8), label).astype(np.promote_types(label.dtype, np.uint8))


def hide_slices(label: Array, slices: Sequence[int], axis: int, where: str) -> Array:
    """Return a label map that is ignored in all slices along `axis` but these."""
    count = label.shape[axis]
    check_slices(slices, count, axis, where)
    hidden = np.ones(count, dtype=bool)
    hidden[list(slices)] = False
    return with_ignored(label, np.expand_dims(hidden, [other for other in range(label.ndim) if other != axis]))


def check_slices(slices: Sequence[int], count: int, axis: int, where: str) -> None:
    """Raise a `DataError` unless a file has all of these slices."""
    if beyond := [number for number in slices if number >= count]:
        raise DataError(
            f"Expected annotated slices from 0 to {count - 1}, but got {beyond[0]} for {where}. They are counted from "
            f"0 along voxel axis {axis} of the file."
        )


def leave_out_ignored(pred: Array, truth: Array, num_classes: int) -> tuple[Array, Array]:
    """Return a prediction and its truth with background in both where nobody has annotated: that counts nowhere."""
    if num_classes > IGNORED or not (ignored := truth == IGNORED).any():
        return pred, truth
    return np.where(ignored, 0, pred).astype(pred.dtype), np.where(ignored, 0, truth).astype(truth.dtype)


def is_label_sparse(foreground: npt.ArrayLike, threshold: float = 0.0) -> npt.NDArray[np.bool_]:
    """Say which samples are label-sparse: no foreground pixel, or a foreground share of at most `threshold`.

    This is the definition for NumPy, and `adawac.losses.label_dense` the same one for torch; nothing else decides it.

    Args:
        foreground: (...) share of foreground in each sample, as in `SampleTable.foreground`.
        threshold: The largest foreground share that still counts as label-sparse.

    Returns:
        (...) True for label-sparse, False for label-dense and for samples without a label (NaN).
    """
    return np.asarray(np.asarray(foreground) <= threshold)


def is_label_dense(foreground: npt.ArrayLike, threshold: float = 0.0) -> npt.NDArray[np.bool_]:
    """Say which samples are labelled and not label-sparse; see `is_label_sparse`."""
    return np.asarray(np.asarray(foreground) > threshold)


@dataclass(frozen=True, kw_only=True, eq=False)
class SampleTable:
    """One row per sample; row i of a training table is row i of beta.

    Attributes:
        id: Stable ids, `dataset/patient/case/axis/slice`.
        patient: Who was scanned.
        case: The case's id.
        slice: Slice number in the case (0 for a whole volume).
        axis: What was sliced: the voxel axis, with orientation and spacing where those were changed (`Preprocessing`).
        unit: `slice`, `volume` or `patch`.
        split: `train`, `val`, `test` or `""`.
        group: Pathology or another stratum; `""` where unknown.
        position: Where the sample lies in its case's array, along the first axis.
        shape: (n, d) native shape of each sample, without channels.
        fraction: (n, K) share of each class, background first; NaN where there is no label. What is missing to 1 is
            ignored.
        class_names: Name of each class.
    """

    id: Array
    patient: Array
    case: Array
    slice: Array
    axis: Array
    unit: Array
    split: Array
    group: Array
    position: Array
    shape: Array
    fraction: Array
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in self.columns()}
        if len(set(lengths.values())) != 1:
            raise DataError(f"Expected columns of one length, but got {lengths}. Prepare the data again.")
        _check_unique(self.id)

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(field.name for field in fields(cls) if field.name != "class_names")

    def __len__(self) -> int:
        return len(self.id)

    @property
    def label_sparse(self) -> npt.NDArray[np.bool_]:
        """(n,) True where a sample has no foreground pixel."""
        return is_label_sparse(self.foreground)

    @property
    def foreground(self) -> npt.NDArray[np.float64]:
        """(n,) share of foreground in each sample; NaN where there is no label."""
        return np.asarray(self.fraction[:, 1:].sum(axis=1), dtype=np.float64)

    @property
    def occurring(self) -> npt.NDArray[np.bool_]:
        """(K,) True for the classes that some sample has."""
        return np.asarray((self.fraction > 0).any(axis=0))

    @property
    def label_dense(self) -> npt.NDArray[np.bool_]:
        """(n,) True where a sample has foreground."""
        return is_label_dense(self.foreground)

    @property
    def unlabelled(self) -> npt.NDArray[np.bool_]:
        """(n,) True where a sample has no label: no label map, or one whose pixels are all ignored."""
        return np.asarray(np.isnan(self.fraction).any(axis=1))

    @property
    def partly_ignored(self) -> npt.NDArray[np.bool_]:
        """(n,) True where some pixels of a sample are ignored, but not all."""
        missing = 1 - self.fraction.sum(axis=1)
        return np.asarray(missing > np.maximum(0.5 / self.shape.prod(axis=1), 1e-6))  # half a pixel, beyond rounding

    @property
    def state(self) -> Array:
        """(n,) The state of each sample's label: `labelled` (it may be empty), `unlabelled` or `partly ignored`."""
        return np.select([self.unlabelled, self.partly_ignored], ["unlabelled", "partly ignored"], "labelled")

    @property
    def first_rows(self) -> dict[str, int]:
        """The first row of each case, in the table's order."""
        begins = np.flatnonzero(np.append(True, self.case[1:] != self.case[:-1])[: len(self)]).tolist()
        first: dict[str, int] = {}
        for case, row in zip(self.case[begins].tolist(), begins, strict=True):
            first.setdefault(case, row)
        return first

    @property
    def cases(self) -> tuple[str, ...]:
        """The cases, each once, in the table's order."""
        return tuple(self.first_rows)

    def take(self, rows: npt.ArrayLike) -> "SampleTable":
        """Return the rows chosen by indices or by a boolean mask; their ids stay what they are."""
        return replace(self, **{name: getattr(self, name)[rows] for name in self.columns()})

    def with_split(self, split: npt.ArrayLike) -> "SampleTable":
        """Return the same samples with another split column; a patient on two sides is an error."""
        from adawac.data.splits import check_leaks

        column = np.asarray(split, dtype=str)
        check_leaks(self.patient, column)
        return replace(self, split=column)

    def write_csv(self, path: Path) -> None:
        """Write the table as CSV, one column per class for `fraction`; equal tables give equal bytes."""
        plain = [name for name in self.columns() if name not in ("shape", "fraction")]
        header = [*plain, "shape", *(f"fraction:{name}" for name in self.class_names)]
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)  # its line ends are \r\n, so that a name with either of these is quoted
            writer.writerow(header)
            rows = _rows_at_once(header)
            for start in range(0, len(self), rows):
                part = self.take(np.arange(start, min(start + rows, len(self))))
                columns = [getattr(part, name).tolist() for name in plain]
                shapes = ["x".join(str(side) for side in shape) for shape in part.shape.tolist()]
                for row in zip(*columns, shapes, part.fraction.tolist(), strict=True):
                    writer.writerow([*row[:-1], *("" if np.isnan(share) else repr(share) for share in row[-1])])

    @classmethod
    def read_csv(cls, path: Path) -> "SampleTable":
        """Read what `write_csv` wrote."""
        names = [name for name in cls.columns() if name != "fraction"]
        parts: list[dict[str, Array]] = []
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            try:
                if not (header := next(reader, [])):
                    raise ValueError("it is empty")
                if header[: len(names)] != names:
                    raise DataError(
                        f"Expected the table of a store in {path}, but got the columns {header}. "
                        "Prepare the data again."
                    )
                while rows := list(islice(reader, _rows_at_once(header))):
                    parts.append(_parsed(names, rows))
            except csv.Error as error:  # which is an error of no other kind
                raise ValueError(str(error)) from error
        columns = {name: np.concatenate([part[name] for part in parts]) for name in (*names, "fraction")}
        return cls(**columns, class_names=tuple(name.removeprefix("fraction:") for name in header[len(names) :]))


def _rows_at_once(header: Sequence[str]) -> int:
    return -(-_CELLS_AT_ONCE // len(header))


def _parsed(names: Sequence[str], rows: list[list[str]]) -> dict[str, Array]:
    """Return rows of a table's CSV as columns."""
    columns: dict[str, Array] = {}
    for number, name in enumerate(names):
        column: list[Any] = [row[number] for row in rows]
        column = [shape.split("x") for shape in column] if name == "shape" else column
        columns[name] = np.array(column, dtype=np.int64 if name in ("slice", "position", "shape") else str)
    columns["fraction"] = np.array([[float(share or "nan") for share in row[len(names) :]] for row in rows])
    return columns


def _check_unique(ids: Sequence[str] | Array) -> None:
    if len(set(np.asarray(ids).tolist())) == len(ids):
        return
    if twice := [name for name, count in Counter(np.asarray(ids).tolist()).items() if count > 1]:
        raise DataError(
            f"Expected ids that differ, but {twice[0]!r} and {len(twice) - 1} others occur twice. "
            "Rename one of the scans, or remove the copy."
        )


def rows_by_value(column: Array) -> dict[str, npt.NDArray[np.int64]]:
    """Return the rows of each value of a column, rising; `column == value` for each would be quadratic."""
    order = np.argsort(column, kind="stable")
    ends = np.flatnonzero(column[order[1:]] != column[order[:-1]]) + 1
    return {str(column[rows[0]]): rows for rows in np.split(order, ends) if len(rows)}


def match_rows(old_ids: Sequence[str] | Array, new_ids: Sequence[str] | Array) -> npt.NDArray[np.int64]:
    """Return, for each new id, its row among the old ids, or -1 where the sample is new."""
    _check_unique(old_ids)
    _check_unique(new_ids)
    row_of = {name: row for row, name in enumerate(np.asarray(old_ids).tolist())}
    return np.array([row_of.get(name, -1) for name in np.asarray(new_ids).tolist()], dtype=np.int64)


def carry_over(
    values: npt.ArrayLike, old_ids: Sequence[str] | Array, new_ids: Sequence[str] | Array, new: float = 0.5
) -> Array:
    """Return `values` (beta, by default) for `new_ids`: found by id where the sample is known, `new` elsewhere.

    Pass `new=0.0` for log-odds. Nothing in common is an error: such values belong to another data set.
    """
    values = np.asarray(values)
    if len(values) != len(old_ids):
        raise DataError(
            f"Expected one value per sample, but got {len(values)} values for {len(old_ids)} ids. "
            "Load the ids that were saved with them."
        )
    rows = match_rows(old_ids, new_ids)
    known = rows >= 0
    if not known.any():
        raise DataError(
            f"Expected samples in common with the earlier run, but none of {len(rows)} ids is known (the first is "
            f"{new_ids[0] if len(rows) else 'none'!r}). Continue on the same data set, or start a new run."
        )
    log.info(
        "%d samples keep their values, %d are new, %d are gone", known.sum(), (~known).sum(), len(values) - known.sum()
    )
    result = np.full((len(rows), *values.shape[1:]), new, dtype=values.dtype)
    result[known] = values[rows[known]]
    return result
