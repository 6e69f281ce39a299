"""What is written into a store: one case's folder, and the table of all samples."""

import errno
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np

from adawac.data.cases import (
    Array,
    Case,
    CaseRef,
    SampleTable,
    check_case,
    class_pixels,
    class_shares,
    name_file,
    sample_id,
)
from adawac.data.preprocessing import Floats, PreparedGrid, Preprocessing, as_shares
from adawac.data.sources import Source
from adawac.data.sources.scan_files import check_file
from adawac.data.sources.source import OpenCase
from adawac.data.store import LEVELS, CaseInfo, from_levels
from adawac.data.tiles import Tiling
from adawac.errors import AdawacError, DataError
from adawac.files import write_text

# So many pixels of a large picture are looked at a time.
_BAND = 1 << 22


class WriteError(DataError):
    """The destination cannot be written to, so there is no point in going on."""


def prepare_case(source: Source, ref: CaseRef, preprocessing: Preprocessing, recipe: str, dest: Path) -> CaseInfo:
    """Prepare one case, unless the store has it already from the same files and options."""
    target = dest / "cases" / ref.id
    if target.resolve().parent != target.parent.resolve():
        raise DataError(
            f"Expected a case below {target.parent}, but {ref.id!r} leads to {target.resolve()}. Rename the case."
        )
    sources = {source.relative(path): _hash(path) for path in ref.files}
    if done := _finished(target, recipe, sources, preprocessing):
        return done
    write = partial(_write_tiles, source, ref, preprocessing, recipe, sources)
    if not preprocessing.tile:
        write = partial(_write_arrays, *_prepared(source, ref, preprocessing, recipe, sources))
    with writing(dest, f"case {ref.id}"):
        return _write_case(target, write)


def _prepared(
    source: Source, ref: CaseRef, preprocessing: Preprocessing, recipe: str, sources: dict[str, str]
) -> tuple[CaseInfo, dict[str, Array]]:
    """Read and prepare a case as a whole."""
    case = source.load(ref)
    check_case(case)
    grid = PreparedGrid(preprocessing, case.shape, case.spacing, case.affine, name_file(case))
    case = source.annotated(case, grid.native_axis)
    prepared = preprocessing.apply(case)
    arrays = _arrays(case, prepared, preprocessing)
    labels = arrays.get("label.npy")
    info = CaseInfo(
        id=ref.id,
        shape=prepared.shape,
        spacing=prepared.spacing,
        affine=None if prepared.affine is None else prepared.affine.tolist(),
        native_shape=case.shape,
        native_spacing=case.spacing,
        native_affine=None if case.affine is None else case.affine.tolist(),
        label_dtype=None if case.label is None else str(case.label.dtype),
        sources=sources,
        pixels=None if labels is None else class_pixels(labels, case.num_classes).tolist(),
        recipe=recipe,
    )
    return info, arrays


def _write_arrays(info: CaseInfo, arrays: Mapping[str, Array], folder: Path) -> CaseInfo:
    for name, array in arrays.items():
        np.save(folder / name, array, allow_pickle=False)
    return info


def _write_case(target: Path, write: Callable[[Path], CaseInfo]) -> CaseInfo:
    """Write a case's folder beside and rename it, so that it is there as a whole or not at all."""
    temporary = target.with_name(f".{target.name}.{token_hex(4)}.tmp")  # another machine may have the same process id
    try:
        temporary.mkdir(parents=True)
        info = write(temporary)
        write_json(temporary / "case.json", asdict(info))
        if target.exists():
            # The table still describes the old case: until it is rewritten, the store is not complete.
            (target.parents[1] / "store.json").unlink(missing_ok=True)
            shutil.rmtree(target)
        temporary.rename(target)
        return info
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _hash(path: Path) -> str:
    check_file(path, "a scan or label map")
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(
            f"Expected to read {path}, but it failed ({error.strerror}). Copy it again, or check its disk."
        ) from error


def _finished(folder: Path, recipe: str, sources: dict[str, str], preprocessing: Preprocessing) -> CaseInfo | None:
    """Return what `case.json` says if the case was prepared from these files with these options and is whole."""
    try:
        info = CaseInfo.read(folder / "case.json")
        # Mapping a file that was cut short fails.
        for name in _names(preprocessing, labelled=info.pixels is not None):
            np.load(folder / name, mmap_mode="r", allow_pickle=False)
    except Exception:  # a damaged file may fail in any way; the case is prepared again
        return None
    return info if (info.recipe, info.sources) == (recipe, sources) else None


def _names(preprocessing: Preprocessing, labelled: bool) -> list[str]:
    """Return the files that `_arrays` gives a case."""
    kinds = ["image", "label"] if labelled else ["image"]
    copies = ["", "_{}x{}".format(*preprocessing.size)] if preprocessing.size else [""]
    native = ["native_label.npy"] if labelled and preprocessing.spacing else []
    return [f"{kind}{copy}.npy" for kind in kinds for copy in copies] + native


def _arrays(
    native: Case, case: Case, preprocessing: Preprocessing, levels: Sequence[np.dtype[Any]] = LEVELS
) -> dict[str, Array]:
    """Return the arrays of a case's folder by file name."""
    arrays: dict[str, Array] = {"image.npy": preprocessing.cut(case.image, channels=True).astype(np.float32)}
    if preprocessing.keeps_levels:
        arrays["image.npy"] = next(_levels(arrays["image.npy"], levels), arrays["image.npy"])
    small = np.uint8 if case.num_classes <= 256 else np.uint16
    if case.label is not None and native.label is not None:
        arrays["label.npy"] = preprocessing.cut(case.label).astype(small)
        if preprocessing.spacing:
            arrays["native_label.npy"] = native.label.astype(small)
    if preprocessing.size:
        ending = "_{}x{}.npy".format(*preprocessing.size)
        resized = [name for name in arrays if "native" not in name]
        arrays |= {name.replace(".npy", ending): _resize(arrays[name], preprocessing.size) for name in resized}
    return arrays


def _levels(image: Array, kinds: Sequence[np.dtype[Any]]) -> Iterator[Array]:
    """Yield an image as integers that are the same shares of the largest value of their type, if there are such."""
    for dtype in kinds:
        full = np.iinfo(dtype).max
        levels = np.rint(np.clip(image, 0, 1) * np.float32(full)).astype(dtype)
        if np.array_equal(from_levels(levels), image):
            yield levels


def _resize(samples: Array, size: tuple[int, int]) -> Array:
    """Resize as the released code does: corner-aligned, cubic for images and nearest for labels."""
    from scipy.ndimage import zoom

    factors = (1,) * (samples.ndim - 3) + (size[0] / samples.shape[-2], size[1] / samples.shape[-1])
    if samples.ndim == 4:
        return np.stack([zoom(sample, factors, order=3) for sample in from_levels(samples)])
    return np.stack([zoom(sample, factors, order=0) for sample in samples])


# -- tiles -------------------------------------------------------------------------------------------------------------


def _write_tiles(
    source: Source, ref: CaseRef, preprocessing: Preprocessing, recipe: str, sources: dict[str, str], folder: Path
) -> CaseInfo:
    """Cut a picture into tiles while it is read, a row of tiles at a time."""
    case = source.open(ref)
    pixels: list[list[int]] = []
    label_dtype = None
    with ExitStack() as files:
        written: dict[str, _GrowingArray] = {}
        for tile, arrays in _prepared_tiles(source, ref, preprocessing, case):
            for name, array in arrays.items():
                if name not in written:
                    count = preprocessing.tiled_shape(case.shape)[0]
                    written[name] = files.enter_context(_GrowingArray(folder / name, count, array))
                written[name].append(array)
            if tile.label is not None:
                label_dtype = str(tile.label.dtype)
                pixels += class_pixels(tile.label, tile.num_classes).tolist()
    if case.has_label:
        source.check_annotated(name_file(ref), bool(np.sum(pixels)))
    return CaseInfo(
        id=ref.id,
        shape=preprocessing.tiled_shape(case.shape),
        spacing=(1.0, 1.0, 1.0),
        affine=None,
        native_shape=case.shape,
        native_spacing=(1.0, 1.0, 1.0),
        native_affine=None,
        label_dtype=label_dtype,
        sources=sources,
        pixels=pixels if case.has_label else None,
        recipe=recipe,
    )


def _prepared_tiles(
    source: Source, ref: CaseRef, preprocessing: Preprocessing, case: OpenCase
) -> Iterator[tuple[Case, dict[str, Array]]]:
    """Yield each tile as it was read, and its arrays by file name; intensities are scaled as on the whole picture."""
    scalings = [preprocessing.fit_scaling(PictureBands(case, number)) for number in range(len(source.channels))]
    levels = [kind for kind in LEVELS if np.iinfo(kind).max == case.full_range]
    for image, label in picture_tiles(case, preprocessing.tiling(case.shape)):
        tile = ref.with_voxels(image, label, None, source.class_names)
        check_case(tile)
        channels = [scale(channel) for scale, channel in zip(scalings, tile.image, strict=True)]
        yield tile, _arrays(tile, replace(tile, image=np.stack(channels)), preprocessing, levels)


def picture_tiles(case: OpenCase, tiling: Tiling) -> Iterator[tuple[Array, Array | None]]:
    """Yield image (C, 1, h, w) and label (1, h, w) of each tile, page by page."""
    height, width = tiling.shape
    for page in range(case.shape[0]):
        for top in tiling.tops:
            image = case.raw(page, top, top + height)[:, None]
            label = case.label(page, top, top + height)[None] if case.has_label else None
            for left in tiling.lefts:
                part = (..., slice(left, left + width))
                yield as_shares(image[part], case.full_range), None if label is None else label[part]


class PictureBands:
    """The values of one channel of a picture in parts; each iteration reads it again."""

    def __init__(self, case: OpenCase, channel: int):
        self._case, self._channel = case, channel

    def __iter__(self) -> Iterator[Floats]:
        pages, height, width = self._case.shape
        step = max(1, _BAND // width)
        for page, start in ((page, start) for page in range(pages) for start in range(0, height, step)):
            rows = self._case.raw(page, start, min(start + step, height))
            yield as_shares(rows[self._channel], self._case.full_range)


class _GrowingArray(AbstractContextManager["_GrowingArray"]):
    """A `.npy` file of `count` rows that are written as they come; `like` is what comes first."""

    def __init__(self, path: Path, count: int, like: Array):
        self._file = path.open("wb")
        header = np.lib.format.header_data_from_array_1_0(like)
        np.lib.format.write_array_header_1_0(self._file, {**header, "shape": (count, *like.shape[1:])})

    def append(self, rows: Array) -> None:
        """Write rows behind those that are there."""
        self._file.write(np.ascontiguousarray(rows).data)

    def __exit__(self, *error: object) -> None:
        self._file.close()


@contextmanager
def writing(dest: Path, what: str) -> Iterator[None]:
    """Turn a failed write into one clear message."""
    try:
        yield
    except OSError as error:
        if isinstance(error, AdawacError):
            raise
        # NumPy says how much it could write, but not why it stopped.
        full = error.errno in (None, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        free = f"; {shutil.disk_usage(dest).free // 2**20} MiB are free there" if full and dest.is_dir() else ""
        raise WriteError(
            f"Expected to write {what} to {dest}, but it failed ({error.strerror or error}{free}). "
            f"{'Free some space' if full else 'Fix that'} or choose another folder, and run it again: finished cases "
            "are kept, nothing half-written counts."
        ) from error


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON in one step; equal data gives equal bytes."""
    write_text(path, json.dumps(data, indent=1, sort_keys=True) + "\n")


def sample_table(
    source: Source, refs: Sequence[CaseRef], infos: Mapping[str, CaseInfo], preprocessing: Preprocessing
) -> SampleTable:
    """Return one row per sample, in the order of the cases."""
    ids, counts, shapes, fractions = [], [], [], []
    for ref in refs:
        info = infos[ref.id]
        count, sample_shape = 1, info.shape
        if preprocessing.unit == "slice":
            count = info.shape[preprocessing.axis]
            sample_shape = tuple(side for axis, side in enumerate(info.shape) if axis != preprocessing.axis)
        name = preprocessing.axis_name
        ids.append(np.array([sample_id(ref.dataset, ref.patient, ref.id, name, number) for number in range(count)]))
        counts.append(count)
        shapes.append(sample_shape)
        pixels = np.zeros((count, len(source.classes))) if info.pixels is None else np.array(info.pixels)
        fractions.append(class_shares(pixels, int(np.prod(sample_shape))))
    positions = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])

    def of_case(values: Sequence[Any]) -> Array:
        """Return a value of each case for each of its samples."""
        return np.repeat(np.array(values), counts, axis=0)

    return SampleTable(
        id=np.concatenate(ids),
        patient=of_case([ref.patient for ref in refs]),
        case=of_case([ref.id for ref in refs]),
        slice=positions,
        axis=np.full(len(positions), preprocessing.axis_name),
        unit=np.full(len(positions), preprocessing.unit),
        split=of_case([ref.split for ref in refs]),
        group=of_case([ref.group or "" for ref in refs]),
        position=positions,
        shape=of_case(shapes),
        fraction=np.concatenate(fractions),
        class_names=source.class_names,
    )
