"""The prepared store: memory-mapped slices, volumes with geometry, and the table of samples.

A store is a folder::

    store.json                  what it is and how it was prepared; written last, so that it says "complete"
    table.csv                   one row per sample (see `adawac.data.cases.SampleTable`)
    cases/<case>/case.json      geometry, hashes of the source files, pixels per class and slice
    cases/<case>/image.npy      (positions, C, ...) float32: position p is one sample, contiguous in the file
    cases/<case>/label.npy      (positions, ...) uint8 or uint16 class indices; absent for a case without a label
    cases/<case>/image_224x224.npy, label_224x224.npy   the same, resized, where `size` was given
    cases/<case>/native_label.npy                       the label as it came, where `spacing` changed the grid
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.data.cases import Array, Case, SampleTable
from adawac.data.task import HasTask, Task
from adawac.errors import AdawacError, DataError, MissingFileError, near
from adawac.files import beside

FORMAT_VERSION = 1
# Linux allows a process 65,530 mappings; a case takes two.
_MAX_MAPS = 8192


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
        pixels: (positions, K) pixels of each class; None without a label.
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

    @classmethod
    def read(cls, path: Path) -> "CaseInfo":
        """Read a `case.json`."""
        data = json.loads(path.read_text(encoding="utf-8"))
        for name in ("shape", "spacing", "native_shape", "native_spacing"):
            data[name] = tuple(data[name])
        return cls(**data)


def _known(split: Array) -> str:
    """Return which splits a table has, in words."""
    names = sorted(set(split.tolist()) - {""})
    return f" (it has {', '.join(names)})" if names else ", because its source has no split"


def is_store(path: Path | str) -> bool:
    """Say whether `path` is a complete store."""
    return (Path(path) / "store.json").is_file()


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Turn what a file of a store that is gone, cut short or unreadable raises into a `DataError`."""
    try:
        yield
    except AdawacError:
        raise
    except (OSError, EOFError, ValueError, TypeError, LookupError) as error:
        missing = f"it has no {error}" if isinstance(error, KeyError) else ""
        reason = (isinstance(error, OSError) and error.strerror) or missing or str(error) or type(error).__name__
        raise DataError(
            f"Expected a whole store, but {path} cannot be read ({reason}). Copy the store again, check its "
            "permissions, or run `adawac prepare` again: finished cases are not redone."
        ) from error


class Store(HasTask):
    """A prepared data set on disk, opened for reading.

    Args:
        path: The folder that `adawac.prepare` wrote.

    Attributes:
        path: The folder.
        info: What `store.json` holds.
        table: Every sample of every split.
        task: Name of the data set, classes, channels, label values and preprocessing; each is an attribute, too.

    Example:
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
        if version != FORMAT_VERSION:
            raise DataError(
                f"Expected a store of format version {FORMAT_VERSION}, but got {version} in {self.path}. "
                "Prepare the data again with this version of adawac, or install the one that wrote it."
            )
        with _whole(self.path / "table.csv"):
            self.table = SampleTable.read_csv(self.path / "table.csv")
        self.task = Task.from_dict(
            self.info, self.path / "store.json", "Copy the store again, or run `adawac prepare` again."
        )
        self._maps: dict[tuple[str, str], Array] = {}
        self._infos: dict[str, CaseInfo] = {}
        self._first_row = {case: row for row, case in reversed(list(enumerate(self.table.case.tolist())))}

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}: {self.dataset}, {len(self.cases)} cases, {len(self.table)} samples)"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the memory maps: every process opens its own."""
        return {**self.__dict__, "_maps": {}}

    @property
    def cases(self) -> tuple[str, ...]:
        """Ids of all cases, in the table's order."""
        return self.table.cases

    # -- samples ------------------------------------------------------------------------------------------------------

    def read(self, case: str, position: int, size: tuple[int, int] | None = None) -> tuple[Array, Array | None]:
        """Return one sample as (image (C, H, W) float32, label (H, W) or None), both read-only views of the memory map.

        Args:
            case: The case's id.
            position: The table's `position`.
            size: Read the resized copy of this size instead of the native slice; it must have been prepared.
        """
        images, labels = self.stack(case, size)
        return images[position], None if labels is None else labels[position]

    def stack(self, case: str, size: tuple[int, int] | None = None) -> tuple[Array, Array | None]:
        """Return all samples of a case as (images (P, C, H, W), labels (P, H, W) or None); see `read`."""
        suffix = "" if size is None else f"_{size[0]}x{size[1]}"
        images = self._map(case, f"image{suffix}.npy")
        if images is None:
            raise MissingFileError(
                f"Expected case {case} at size {size} in {self.path}, but got none. Prepare it with `size`."
            )
        return images, self._map(case, f"label{suffix}.npy")

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
        from adawac.data.splits import subset_mask

        table = self.table if table is None else table
        if split is not None:
            table = table.take(table.split == split)
        if not len(table):
            raise DataError(
                f"Expected samples in split {split!r} of {self.path}, but got none{_known(self.table.split)}. "
                "Give another split: stratified, fold:0/5, or a folder with train.txt (--split)."
            )
        return Samples(self, table.take(subset_mask(table, subset, seed=seed)), size)

    def _map(self, case: str, name: str) -> Array | None:
        array = self._maps.get((case, name))
        if array is None:
            self.case_info(case)
            path = self.path / "cases" / case / name
            if not path.is_file():
                return None
            if len(self._maps) >= _MAX_MAPS:
                self._maps.pop(next(iter(self._maps)))
            # A plain view: indexing np.memmap itself costs several times as much.
            with _whole(path):
                array = self._maps[case, name] = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        return array

    # -- volumes ------------------------------------------------------------------------------------------------------

    def case_info(self, case: str) -> CaseInfo:
        """Return what is known of a case without reading its voxels."""
        if case not in self._infos:
            path = self.path / "cases" / case / "case.json"
            if case not in self._first_row:
                raise DataError(
                    f"Expected a case of {self.path}, but got {case!r}. Near names: {near(case, self.cases)}."
                )
            with _whole(path):
                self._infos[case] = CaseInfo.read(path)
        return self._infos[case]

    def volume(self, case: str) -> Case:
        """Return a case as a volume, in its file's voxel order (or the orientation and spacing asked for)."""
        info = self.case_info(case)
        image, label = self._map(case, "image.npy"), self._map(case, "label.npy")
        if image is None:
            raise MissingFileError(
                f"Expected image.npy of case {case} in {self.path}, but it is gone. Prepare the data again."
            )
        row = self._first_row[case]
        return Case(
            dataset=self.dataset,
            patient=str(self.table.patient[row]),
            id=info.id,
            group=str(self.table.group[row]) or None,
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

    def native_label(self, case: str, label: Array | None = None) -> Array:
        """Return a label map on the source's grid, in the source's values and type.

        Args:
            case: The case's id.
            label: Class indices on the stored grid, for example a prediction; the case's label by default.
        """
        info = self.case_info(case)
        native = self._map(case, "native_label.npy") if label is None else None
        if native is None:
            label = self.volume(case).label if label is None else label
            if label is None:
                raise DataError(f"Expected a labelled case, but {case} of {self.path} has no label. Choose another.")
            affine = None if info.native_affine is None else np.array(info.native_affine)
            native = self.preprocessing.undo(label, info.native_shape, info.native_spacing, affine)
        values = np.array([first for first, *_ in self.label_values])
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
        self._where = list(zip(table.case.tolist(), table.position.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: Any) -> Any:
        """Return (image (C, H, W), label (H, W) or None) of one row, as read-only views; copy before writing."""
        if isinstance(row, slice):
            return [self[number] for number in range(*row.indices(len(self)))]
        case, position = self._where[row]
        return self.store.read(case, position, self.size)

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
