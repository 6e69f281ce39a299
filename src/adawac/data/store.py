"""The prepared store: slices, volumes with geometry, and the table of samples.

A store is a folder::

    store.json                  what it is and how it was prepared; written last, so that it says "complete"
    table.csv                   one row per sample (see `adawac.data.cases.SampleTable`)
    cases/<case>/case.json      geometry, hashes of the source files, pixels per class and slice
    cases/<case>/image.npy      (positions, C, ...) float32: position p is one sample, contiguous in the file;
                                uint8 or uint16 of pictures are shares of the largest value of that type
    cases/<case>/label.npy      (positions, ...) uint8 or uint16 class indices, 255 = ignored; absent without a label
    cases/<case>/image_224x224.npy, label_224x224.npy   the same, resized, where `size` was given
    cases/<case>/native_label.npy                       the label as it came, where `spacing` changed the grid
"""

import gzip
import json
import math
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.data.cases import IGNORED, Array, Case, SampleTable
from adawac.data.preprocessing import as_shares
from adawac.data.task import HasTask, Task
from adawac.data.tiles import Tiling
from adawac.errors import DataError, MissingFileError, check_known, reading
from adawac.files import beside

FORMAT_VERSION, FORMAT_WITH_IGNORED, FORMAT_WITH_PICTURES = 1, 2, 3
"""Of a store whose label maps are whole; of one that has ignored pixels, which readers of format 1 do not know; and of
one of pictures, which has images of integers, and perhaps tiles."""
FORMATS = (FORMAT_VERSION, FORMAT_WITH_IGNORED, FORMAT_WITH_PICTURES)

_BUFFERED = 1 << 20
"""Bytes from which a read may need several calls of the system; below that, a buffer costs more than the read."""


@dataclass(frozen=True, kw_only=True)
class CaseInfo:
    """What `case.json` holds: everything of a case but its voxels.

    Attributes:
        id: The case's id.
        shape: Spatial shape of the stored volume, in the order of its voxel axes.
        spacing: Voxel size of the stored volume.
        affine: (4, 4) voxel index → world of the stored volume, or None where the source had lost it.
        native_shape, native_spacing, native_affine: The same of the source's grid; they differ from the above where
            `orientation` or `spacing` was given.
        label_dtype: The label's type in the source; None without a label.
        sources: Hash (SHA-256) of each source file, by its name.
        pixels: (positions, K) pixels of each class, ignored ones not counted; None without a label.
        recipe: Hash of the options that this case was prepared with.
    """

    id: str
    shape: tuple[int, ...]
    spacing: tuple[float, ...]
    affine: list[list[float]] | None
    native_shape: tuple[int, ...]
    native_spacing: tuple[float, ...]
    native_affine: list[list[float]] | None
    label_dtype: str | None
    sources: dict[str, str]
    pixels: list[list[int]] | None
    recipe: str

    @property
    def ignored(self) -> int:
        """How many voxels of its label map are ignored."""
        return 0 if self.pixels is None else int(np.prod(self.shape) - np.sum(self.pixels))

    @classmethod
    def read(cls, path: Path) -> "CaseInfo":
        """Read a `case.json`."""
        data = json.loads(path.read_text(encoding="utf-8"))
        for name in ("shape", "native_shape"):
            data[name] = tuple(operator.index(side) for side in data[name])
        for name in ("spacing", "native_spacing"):
            data[name] = tuple(float(size) for size in data[name])
        info = cls(**data)
        sizes = [len(sides) for sides in (info.shape, info.native_shape, info.spacing, info.native_spacing)]
        affines = [
            np.array(affine, dtype=np.float64) for affine in (info.affine, info.native_affine) if affine is not None
        ]
        pixels = None if info.pixels is None else np.array(info.pixels)
        if (
            sizes != [3] * 4
            or min(*info.shape, *info.native_shape, *info.spacing, *info.native_spacing) <= 0
            or any(affine.shape != (4, 4) or not np.isfinite(affine).all() for affine in affines)
            or (pixels is not None and (pixels.ndim != 2 or pixels.dtype.kind != "i"))
            or np.dtype(info.label_dtype or "u1").kind not in "iu"
        ):
            raise ValueError("shape, spacing, affine, pixels or label_dtype are not those of a volume")
        return info


@dataclass(frozen=True, kw_only=True)
class StoredArray:
    """A `.npy` file whose rows are read one at a time.

    It is read, not mapped: where a disk vanishes, a read raises an error with a message, but a page of a map ends the
    process. And no file stays open, however many cases a store has.

    Attributes:
        path: The file.
        shape: Shape of the array; its first axis is read by row.
        dtype: Its type.
        start: Where its first value lies in the file.
        fortran: Whether the last axis is the slowest; such a file is read as a whole.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int
    fortran: bool

    @classmethod
    def open(cls, path: Path) -> "StoredArray":
        """Read the head of a file."""
        with path.open("rb") as file:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("it is no array of a store")
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
            return cls(path=path, shape=shape, dtype=dtype, start=file.tell(), fortran=fortran)

    def read(self, row: int | None = None) -> Array:
        """Return a row, or the whole array, as a read-only copy."""
        if self.fortran and row is not None:
            return np.asarray(self.read()[row])
        shape, first = (self.shape, 0) if row is None else (self.shape[1:], range(self.shape[0])[row])
        size = math.prod(shape) * self.dtype.itemsize
        with _whole(self.path), self.path.open("rb", buffering=0 if size < _BUFFERED else -1) as file:
            file.seek(self.start + first * size)
            content = file.read(size)
            if len(content) < size:
                raise EOFError("it ends early")
        return np.frombuffer(content, self.dtype).reshape(shape, order="F" if self.fortran else "C")


#: The types of images that are kept as integers, which are shares of the largest value of their type.
LEVELS = (np.dtype(np.uint8), np.dtype(np.uint16))


def from_levels(image: Array) -> Array:
    """Return an image as floating-point numbers; integers are shares of the largest value of their type."""
    return image if image.dtype.kind == "f" else as_shares(image, np.iinfo(image.dtype).max)


def is_store(path: Path | str) -> bool:
    """Say whether `path` is a complete store."""
    return (Path(path) / "store.json").is_file()


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Turn what a file of a store that is gone, cut short or unreadable raises into a `DataError`."""
    with reading(
        lambda reason: DataError(
            f"Expected a whole store, but {path} cannot be read ({reason}). Copy the store again, check its "
            "permissions, or run `adawac prepare` again: finished cases are not redone."
        )
    ):
        yield


class Store(HasTask):
    """A prepared data set on disk, opened for reading.

    Args:
        path: The folder that `adawac.prepare` wrote.

    Attributes:
        path: The folder.
        info: What `store.json` holds.
        task: Name of the data set, classes, channels, label values and preprocessing; each is an attribute, too.

    Examples:
        >>> import tempfile
        >>> import adawac
        >>> from adawac.data.phantom import phantom_source
        >>> folder = tempfile.mkdtemp()
        >>> made = adawac.prepare(phantom_source(8, size=16, slices=(6, 6)), dest=folder, workers=1)
        >>> store = adawac.Store(folder)
        >>> store.num_classes, store.channels, store.cases[0]
        (9, ('image',), '0000-000')
        >>> store.volume("0000-000").image.shape
        (1, 6, 16, 16)
        >>> train = store.samples("train")
        >>> len(train), int(train.table.label_sparse.sum()), train.ids[2]
        (30, 13, 'phantom-ct/0000-000/0000-000/0/2')
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        if not is_store(self.path):
            if not self.path.exists():
                raise MissingFileError(
                    f"Expected a prepared store, but {self.path} is not there. Correct the path, or make it: adawac "
                    "prepare. If it was moved, a run goes on with adawac train STORE --out RUN --resume."
                )
            raise MissingFileError(
                f"Expected a prepared store, but {self.path} has no store.json. "
                "Run `adawac prepare` (again, if it was interrupted: finished cases are not redone)."
            )
        with _whole(self.path / "store.json"):
            self.info: dict[str, Any] = dict(json.loads((self.path / "store.json").read_text(encoding="utf-8")))
            version = self.info["format_version"]
        if version not in FORMATS:
            raise DataError(
                f"Expected a store of format version {FORMATS[-1]} or older, but got {version} in {self.path}. "
                "Prepare the data again with this version of adawac, or install the one that wrote it."
            )
        self.task = Task.from_dict(
            self.info, self.path / "store.json", "Copy the store again, or run `adawac prepare` again."
        )
        self._arrays: dict[tuple[str, str], StoredArray] = {}
        self._infos: dict[str, CaseInfo] = {}
        first = self.table.take(list(self.table.first_rows.values()))
        whose = zip(first.patient.tolist(), first.group.tolist(), strict=True)
        self._whose = dict(zip(first.case.tolist(), whose, strict=True))

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}: {self.dataset}, {len(self.cases)} cases, {len(self.table)} samples)"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the table, which is large; another process reads it again if it needs it."""
        return {name: value for name, value in self.__dict__.items() if name != "table"}

    @cached_property
    def table(self) -> SampleTable:
        """Every sample of every split."""
        with _whole(self.path / "table.csv"):
            return SampleTable.read_csv(self.path / "table.csv")

    @property
    def cases(self) -> tuple[str, ...]:
        """Ids of all cases, in the table's order."""
        return tuple(self._whose)

    # -- samples ------------------------------------------------------------------------------------------------------

    def read(self, case: str, position: int, size: tuple[int, int] | None = None) -> tuple[Array, Array | None]:
        """Return one sample as (image (C, H, W) float32, label (H, W) or None), both read-only.

        Args:
            case: The case's id.
            position: The table's `position`.
            size: Read the resized copy of this size instead of the native slice; it must have been prepared.
        """
        return self._read(case, size, position)

    def stack(self, case: str, size: tuple[int, int] | None = None) -> tuple[Array, Array | None]:
        """Return all samples of a case as (images (P, C, H, W), labels (P, H, W) or None); see `read`."""
        return self._read(case, size)

    def _read(
        self, case: str, size: tuple[int, int] | None = None, position: int | None = None
    ) -> tuple[Array, Array | None]:
        suffix = "" if size is None else f"_{size[0]}x{size[1]}"
        image = self.array(case, f"image{suffix}.npy", position)
        if image is None and size is not None:
            raise MissingFileError(
                f"Expected case {case} at size {size} in {self.path}, but got none. Prepare it with `size`."
            )
        if image is None:
            raise MissingFileError(
                f"Expected image.npy of case {case} in {self.path}, but it is gone. Prepare the data again."
            )
        return from_levels(image), self.array(case, f"label{suffix}.npy", position)

    def samples(
        self,
        split: str | None = "train",
        subset: str = "full",
        seed: int = 0,
        table: SampleTable | None = None,
        size: tuple[int, int] | None = None,
    ) -> "Samples":
        """Return the samples of a split and subset as a sequence; row i of it is row i of beta.

        Args:
            split: `train`, `val`, `test`, or None for all.
            subset: `full`, `half-slice`, `half-vol` or `half-sparse` (of the split's samples).
            seed: Decides which patients are in `half-vol` where the paper does not say.
            table: The store's table with another split column (`adawac.data.splits.resolve_split`).
            size: Read resized copies of this size.
        """
        from adawac.data.splits import labelled, subset_mask, suggest_split

        table = self.table if table is None else table
        if split is not None:
            table = table.take(table.split == split)
        if not len(table):
            known = ", ".join(sorted(set(self.table.split.tolist()) - {""}))
            why = f" (it has {known})" if known else ", because its source has no split"
            whole = self.table.take(labelled(self.table))
            works = suggest_split(whole.patient, whole.group, np.full(len(whole), "")) or "stratified"
            raise DataError(
                f"Expected samples in split {split!r} of {self.path}, but got none{why}. "
                f"Give another split: {works}, or a folder with train.txt (--split)."
            )
        return Samples(self, table.take(subset_mask(table, subset, seed=seed)), size)

    def array(self, case: str, name: str, position: int | None = None) -> Array | None:
        """Return what a file of a case holds, all of it or at one position; None where there is no such file."""
        array = self._arrays.get((case, name))
        if array is None:
            info = self.case_info(case)
            path = self.path / "cases" / case / name
            if not path.is_file():
                return None
            with _whole(path):
                array = StoredArray.open(path)
                if not self._suits(array, name, info):
                    raise ValueError(f"{array.dtype} of shape {array.shape} does not suit case.json")
                self._arrays[case, name] = array
        if position is not None and not 0 <= position < array.shape[0]:
            raise DataError(
                f"Expected a position below {array.shape[0]} in case {case} of {self.path}, but got {position}. Copy "
                "the store again, or run `adawac prepare` again."
            )
        return array.read(position)

    def _suits(self, array: StoredArray, name: str, info: CaseInfo) -> bool:
        """Say whether an array is of the type and shape that the store's other files promise."""
        if name == "native_label.npy":
            return array.dtype.kind in "iu" and array.shape == info.native_shape
        channels = (len(self.channels),) if name.startswith("image") else ()
        count, *plane = self.preprocessing.cut_shape(info.shape)
        if name not in ("image.npy", "label.npy"):  # a resized copy
            plane = list(array.shape[-2:])
        fine = array.dtype.kind == "f" or array.dtype in LEVELS if channels else array.dtype.kind in "iu"
        return fine and array.shape == (count, *channels, *plane)

    # -- volumes ------------------------------------------------------------------------------------------------------

    def case_info(self, case: str) -> CaseInfo:
        """Return what is known of a case without reading its voxels."""
        if case not in self._infos:
            path = self.path / "cases" / case / "case.json"
            check_known(case, self._whose, f"a case of {self.path}", DataError)
            with _whole(path):
                info = CaseInfo.read(path)
                if self.preprocessing.tile and info.shape != self.preprocessing.tiled_shape(info.native_shape):
                    raise ValueError("its tiles are not those of its picture")
                self._infos[case] = info
        return self._infos[case]

    def volume(self, case: str) -> Case:
        """Return a case as a volume, in its file's voxel order (or the orientation and spacing asked for).

        That of a picture in tiles is a stack of these; `tiling` says where they lie.
        """
        info = self.case_info(case)
        image, label = self.stack(case)
        patient, group = self._whose[case]
        return Case(
            dataset=self.dataset,
            patient=patient,
            id=info.id,
            group=group or None,
            image=self.preprocessing.join(image, channels=True),
            label=None if label is None else self.preprocessing.join(label),
            spacing=info.spacing,
            affine=None if info.affine is None else np.array(info.affine),
            class_names=self.class_names,
            files=(self.path / "cases" / case,),
        )

    def volumes(self, split: str, table: SampleTable | None = None) -> Iterator[Case]:
        """Yield the cases of a split as volumes."""
        table = self.table if table is None else table
        for case in table.take(table.split == split).cases:
            yield self.volume(case)

    def tiling(self, case: str) -> Tiling:
        """Return where the tiles of a case lie: of its first page, then of the others. A whole picture is one tile."""
        return self.preprocessing.tiling(self.case_info(case).native_shape)

    def native_indices(self, case: str) -> Array | None:
        """Return the class indices on the source's grid that are kept where `spacing` changed it; None elsewhere."""
        return self.array(case, "native_label.npy")

    def native_label(self, case: str, label: Array | None = None) -> Array:
        """Return a label map on the source's grid, in the source's values and type.

        Ignored pixels get the source's own value for them, or 255 where it has none.

        Args:
            case: The case's id.
            label: Class indices on the stored grid, for example a prediction; the case's label by default.
        """
        info = self.case_info(case)
        native = self.native_indices(case) if label is None else None
        if native is None:
            label = self.volume(case).label if label is None else label
            if label is None:
                raise DataError(f"Expected a labelled case, but {case} of {self.path} has no label. Choose another.")
            affine = None if info.native_affine is None else np.array(info.native_affine)
            native = self.preprocessing.undo(label, info.native_shape, info.native_spacing, affine)
        values = np.array([first for first, *_ in self.label_values])
        if (wrong := int(native.max(initial=0))) >= self.num_classes and wrong != IGNORED:
            raise DataError(
                f"Expected labels below {self.num_classes} in case {case} of {self.path}, but got {wrong}. Copy the "
                "store again, or run `adawac prepare` again."
            )
        if self.num_classes <= IGNORED and native.max(initial=0) == IGNORED:
            ignore = self.info.get("source_options", {}).get("ignore", IGNORED)
            values = np.pad(values, (0, IGNORED + 1 - len(values)), constant_values=ignore)
            return values[native].astype(np.promote_types(info.label_dtype or np.uint8, np.min_scalar_type(ignore)))
        return values[native].astype(info.label_dtype or np.uint8)

    def export_nifti(self, case: str, path: Path | str, label: Array | None = None) -> None:
        """Write a case's label (or a prediction for it) as NIfTI with the source's grid, affine and label values.

        Args:
            case: The case's id.
            path: The file to write; `.nii.gz` compresses.
            label: Class indices on the stored grid; the case's label by default.
        """
        import nibabel as nib

        info = self.case_info(case)
        affine = np.diag([*info.native_spacing, 1.0]) if info.native_affine is None else np.array(info.native_affine)
        label = self.native_label(case, label)
        image = nib.Nifti1Image(label, affine, dtype=label.dtype)
        image.header.set_xyzt_units("mm")
        data = image.to_bytes()
        with beside(Path(path)) as temporary:
            temporary.write_bytes(gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)


class Samples(Sequence[tuple[Array, Array | None]]):
    """The samples of a table, read from a store when indexed: a map-style dataset of (image, label).

    Attributes:
        store: Where they are read from.
        table: One row per sample, in this order.
        size: The size of the resized copies that are read, or None for native slices.
    """

    def __init__(self, store: Store, table: SampleTable, size: tuple[int, int] | None = None):
        self.store, self.table, self.size = store, table, size

    def __repr__(self) -> str:
        return f"Samples({len(self)} of {self.store.dataset}, {int(self.table.label_sparse.sum())} label-sparse)"

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: Any) -> Any:
        """Return (image (C, H, W), label (H, W) or None) of one row, both read-only; copy before writing."""
        if isinstance(row, slice):
            return [self[number] for number in range(*row.indices(len(self)))]
        return self.store.read(str(self.table.case[row]), int(self.table.position[row]), self.size)

    @property
    def shapes(self) -> npt.NDArray[np.int64]:
        """(n, d) size of each sample as it is read: height and width of a slice."""
        if self.size is None:
            return np.asarray(self.table.shape)
        return np.tile(np.array(self.size, dtype=np.int64), (len(self), 1))

    @property
    def ids(self) -> list[str]:
        """Stable id of each row; saved beside beta."""
        return list(self.table.id.tolist())
