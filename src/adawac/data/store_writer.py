"""What is written into a store: one case's folder, and the table of all samples."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from adawac.data.cases import Array, Case, CaseRef, SampleTable, check_case, class_pixels, sample_id
from adawac.data.preprocessing import Preprocessing
from adawac.data.sources import Source
from adawac.data.store import CaseInfo
from adawac.errors import AdawacError, DataError
from adawac.files import write_text


class WriteError(DataError):
    """The destination cannot be written to, so there is no point in going on."""


def prepare_case(source: Source, ref: CaseRef, preprocessing: Preprocessing, recipe: str, dest: Path) -> CaseInfo:
    """Prepare one case, unless the store has it already from the same files and options."""
    target = _inside(dest / "cases", ref.id)
    sources = {source.relative(path): _hash(path) for path in ref.files}
    if done := _finished(target, recipe, sources, preprocessing):
        return done
    case = source.load(ref)
    check_case(case)
    prepared = preprocessing.apply(case)
    pixels = None
    if prepared.label is not None:
        pixels = class_pixels(preprocessing.cut(prepared.label), case.num_classes).tolist()
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
        pixels=pixels,
        recipe=recipe,
    )
    arrays = _arrays(case, prepared, preprocessing)
    with writing(dest, f"case {ref.id}"):
        _write_case(target, info, arrays)
    return info


def _write_case(target: Path, info: CaseInfo, arrays: Mapping[str, Array]) -> None:
    """Write a case's folder beside and rename it, so that it is there as a whole or not at all."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        for name, array in arrays.items():
            np.save(temporary / name, array, allow_pickle=False)
        write_json(temporary / "case.json", asdict(info))
        if target.exists():
            # The table still describes the old case: until it is rewritten, the store is not complete.
            (target.parents[1] / "store.json").unlink(missing_ok=True)
            shutil.rmtree(target)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _inside(folder: Path, name: str) -> Path:
    """Return `folder / name`, which must not lead out of the folder."""
    path = folder / name
    if path.resolve().parent != folder.resolve():
        raise DataError(f"Expected a case below {folder}, but {name!r} leads to {path.resolve()}. Rename the case.")
    return path


def _hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(
            f"Expected to read {path}, but it failed ({error.strerror}). Fix its permissions, or copy it again."
        ) from error


def _finished(folder: Path, recipe: str, sources: dict[str, str], preprocessing: Preprocessing) -> CaseInfo | None:
    """Return what `case.json` says if the case was prepared from these files with these options and is whole."""
    try:
        info = CaseInfo.read(folder / "case.json")
        # Mapping a file that was cut short fails.
        for name in _names(preprocessing, labelled=info.pixels is not None):
            np.load(folder / name, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError, TypeError, LookupError):
        return None
    return info if (info.recipe, info.sources) == (recipe, sources) else None


def _names(preprocessing: Preprocessing, labelled: bool) -> list[str]:
    """Return the files that `_arrays` gives a case."""
    kinds = ["image", "label"] if labelled else ["image"]
    copies = ["", "_{}x{}".format(*preprocessing.size)] if preprocessing.size else [""]
    native = ["native_label.npy"] if labelled and preprocessing.spacing else []
    return [f"{kind}{copy}.npy" for kind in kinds for copy in copies] + native


def _arrays(native: Case, case: Case, preprocessing: Preprocessing) -> dict[str, Array]:
    """Return the arrays of a case's folder by file name."""
    arrays: dict[str, Array] = {"image.npy": preprocessing.cut(case.image, channels=True).astype(np.float32)}
    small = np.uint8 if case.num_classes <= 256 else np.uint16
    if case.label is not None and native.label is not None:
        arrays["label.npy"] = preprocessing.cut(case.label).astype(small)
        if preprocessing.spacing:
            arrays["native_label.npy"] = native.label.astype(small)
    if preprocessing.size:
        suffix = "{}x{}".format(*preprocessing.size)
        resized = {name: _resize(array, preprocessing.size) for name, array in arrays.items() if "native" not in name}
        arrays |= {name.replace(".npy", f"_{suffix}.npy"): array for name, array in resized.items()}
    return arrays


def _resize(samples: Array, size: tuple[int, int]) -> Array:
    """Resize as the released code does: corner-aligned, cubic for images and nearest for labels."""
    from scipy.ndimage import zoom

    factors = (1,) * (samples.ndim - 3) + (size[0] / samples.shape[-2], size[1] / samples.shape[-1])
    order = 3 if samples.dtype.kind == "f" else 0
    return np.stack([zoom(sample, factors, order=order) for sample in samples])


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
    rows: list[tuple[Any, ...]] = []
    fractions = []
    for ref in refs:
        info = infos[ref.id]
        count, sample_shape = 1, info.shape
        if preprocessing.unit == "slice":
            count = info.shape[preprocessing.axis]
            sample_shape = tuple(side for axis, side in enumerate(info.shape) if axis != preprocessing.axis)
        for position in range(count):
            name = sample_id(ref.dataset, ref.patient, ref.id, preprocessing.axis_name, position)
            rows.append((name, ref.patient, ref.id, position, ref.split, ref.group or "", sample_shape))
        pixels = np.full((count, len(source.classes)), np.nan) if info.pixels is None else np.array(info.pixels)
        fractions.append(pixels / np.prod(sample_shape))
    ids, patients, cases, positions, splits, groups, shapes = zip(*rows, strict=True)
    return SampleTable(
        id=np.array(ids),
        patient=np.array(patients),
        case=np.array(cases),
        slice=np.array(positions, dtype=np.int64),
        axis=np.full(len(rows), preprocessing.axis_name),
        unit=np.full(len(rows), preprocessing.unit),
        split=np.array(splits),
        group=np.array(groups),
        position=np.array(positions, dtype=np.int64),
        shape=np.array(shapes, dtype=np.int64),
        fraction=np.concatenate(fractions),
        class_names=source.class_names,
    )
