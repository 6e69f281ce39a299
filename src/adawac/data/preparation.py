"""Cases → store on disk: in parallel, restartable, the same bytes from the same input."""

import hashlib
import json
import logging
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from adawac.data.cases import CaseRef, SampleTable, Unit
from adawac.data.parallel import check_workers, run_jobs
from adawac.data.preprocessing import Normalisation, Preprocessing, unnamed_ct
from adawac.data.sources import Source, build_source, check_refs, missing_labels, shared_folders
from adawac.data.sources.scan_files import read_json
from adawac.data.splits import check_leaks
from adawac.data.store import FORMAT_VERSION, CaseInfo, Store, is_store
from adawac.data.store_writer import WriteError, prepare_case, sample_table, write_json, writing
from adawac.data.task import Task
from adawac.errors import AdawacError, ConfigError, DataError
from adawac.files import LOCK, FolderLock, beside, is_temporary

log = logging.getLogger(__name__)


def prepare(
    source: str | Source,
    src: Path | str | None = None,
    dest: Path | str | None = None,
    *,
    axis: int | None = None,
    orientation: str | None = None,
    spacing: tuple[float, ...] | None = None,
    window: tuple[float, float] | None = None,
    clip_quantile: float | None = None,
    normalisation: Normalisation | None = None,
    size: tuple[int, int] | None = None,
    unit: Unit | None = None,
    workers: int | None = None,
    progress: bool | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Store:
    """Prepare scans for training: read, check, normalise and cut every case, and write a store.

    Run it again after an interruption, or when scans were added: finished cases are not redone. Options left at None
    take the source's default, which is the paper's for the data set.

    Args:
        source: `acdc`, `synapse`, `nifti` or `dicom`, another registered name, or a `Source`.
        src: The folder with the scans; leave it out where `source` is a `Source`.
        dest: The store's folder: new, empty, or a store prepared with the same options.
        axis: The voxel axis along which volumes are cut into slices.
        orientation: Turn the voxel axes to this orientation first, such as "RAS"; the file's own by default.
        spacing: Resample to this voxel size in mm (0 keeps an axis); the native grid by default.
        window: Clip intensities to this range. It replaces the source's default quantile.
        clip_quantile: Clip each volume where its cumulative histogram reaches this share. It replaces a default window.
        normalisation: `min-max`, `z-score` or `none`, for each volume and channel separately.
        size: Keep copies of this height and width beside the native slices.
        unit: What one sample is: `slice` or `volume`.
        workers: Processes; all processors by default. 1 stays in this process.
        progress: Show a progress bar; by default where there is a terminal.
        overwrite: Prepare again with other options over an existing store.
        **options: Options of the source, for example `classes` or `patient` of `nifti`.

    Returns:
        The store, opened.

    Example:
        >>> import tempfile
        >>> import adawac
        >>> from adawac.data.phantom import phantom_source
        >>> scans = phantom_source(8, size=16, slices=(6, 6))
        >>> store = adawac.prepare(scans, dest=tempfile.mkdtemp(), workers=1)
        >>> store.dataset, len(store.cases), len(store.table)
        ('phantom-ct', 8, 48)
        >>> image, label = store.samples("train")[0]
        >>> image.shape, label.shape
        ((1, 16, 16), (16, 16))
    """
    source = _open_source(source, src, options)
    if dest is None:
        raise ConfigError("Expected a folder for the store, but got none. Give it: prepare(source, scans, store).")
    dest = Path(dest)
    preprocessing = source.preprocessing.override(
        axis=axis,
        orientation=orientation,
        spacing=spacing,
        window=window,
        clip_quantile=clip_quantile,
        normalisation=normalisation,
        size=size,
        unit=unit,
    )
    refs = check_refs(source.cases(), source.root or "the source")
    if missing := missing_labels(source):
        raise DataError(missing)
    check_leaks(np.array([ref.patient for ref in refs]), np.array([ref.split for ref in refs]))
    check_workers(workers)
    record = _describe(source, preprocessing)
    check = partial(_check_destination, dest, source, refs, record, overwrite)
    check()  # a call that is refused writes nothing
    made = not dest.exists()
    with writing(dest.parent, dest.name):
        dest.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(dest)
    try:
        _open_destination(dest, replace=check())  # another process may have prepared it since
        infos = _prepare_all(source, refs, preprocessing, record["recipe"], dest, workers, progress)
        with writing(dest, "the table"):
            with beside(dest / "table.csv") as temporary:
                sample_table(source, refs, infos, preprocessing).write_csv(temporary)
            write_json(dest / "store.json", record)
    except BaseException:
        _remove_if_bare(dest, made)
        raise
    finally:
        lock.release()
    _warn_of_orientations(infos, preprocessing)
    if clip_quantile is None and options.get("modality") is None:
        _warn_of_unnamed_ct(source, refs[0], preprocessing)
    if hint := shared_folders(refs):
        log.warning("%s", hint)
    return Store(dest)


def _open_source(source: str | Source, src: Path | str | None, options: Mapping[str, Any]) -> Source:
    if isinstance(source, str):
        if src is None:
            raise DataError(f"Expected the folder with the scans for source {source}, but got none. Give it as src.")
        return build_source(source, src, **options)
    extra = [*(["src"] if src is not None else []), *(name for name, value in options.items() if value is not None)]
    if extra:
        raise ConfigError(
            f"Expected a source that knows its scans and options, but got {', '.join(extra)} as well. Leave "
            f"{'it' if len(extra) == 1 else 'them'} out; the store's folder is dest=FOLDER."
        )
    return source


def _describe(source: Source, preprocessing: Preprocessing) -> dict[str, Any]:
    """Return what `store.json` holds; `recipe` is a digest of all that decides the voxels besides the files."""
    task = Task(
        dataset=source.dataset,
        class_names=source.class_names,
        channels=source.channels,
        label_values=tuple(tuple(map(int, values)) for values in source.classes.values()),
        preprocessing=preprocessing,
    )
    record = {
        "format_version": FORMAT_VERSION,
        "source": type(source).__name__,
        "source_options": source.options(),
        **task.to_dict(),
    }
    record = json.loads(json.dumps(record, default=str))
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    return {**record, "recipe": digest}


def _check_destination(
    dest: Path, source: Source, refs: Sequence[CaseRef], record: dict[str, Any], overwrite: bool
) -> bool:
    """Check that `dest` can take this store, and say whether another one there has to go; change nothing."""
    if source.root and dest.resolve() == source.root.resolve():
        raise DataError(f"Expected a separate folder for the store, but got the scans' folder {dest}. Choose another.")
    if dest.exists() and not dest.is_dir():
        raise DataError(f"Expected a folder for the store, but {dest} is a file. Choose another name.")
    if is_store(dest):
        changed = _changes(dest, record) + _other_patients(dest, refs)
        if changed and not overwrite:
            raise DataError(
                f"Expected the options that {dest} was prepared with, but these differ: {', '.join(changed)}. "
                "Choose another folder, or prepare it again with --overwrite (overwrite=True)."
            )
        return bool(changed)
    if dest.exists() and any(path.name != LOCK for path in dest.iterdir()) and not (dest / "cases").is_dir():
        raise DataError(f"Expected a new or empty folder or a store, but {dest} holds other files. Choose another.")
    return False


def _changes(dest: Path, new: Mapping[str, Any]) -> list[str]:
    """Return the options that a store was prepared with and that differ now, in words."""
    try:
        old = read_json(dest / "store.json")
        damaged = not isinstance(old.get("preprocessing"), dict) or not set(new) <= set(old)
    except DataError:
        old, damaged = {}, True
    if damaged and old.get("format_version") in (None, FORMAT_VERSION):  # it is rewritten from the cases' records
        return _other_recipe(dest, new["recipe"])
    options = old.get("preprocessing") or {}
    changes = [
        f"{name} ({options.get(name)} before, {value} now)"
        for name, value in new["preprocessing"].items()
        if options.get(name) != value
    ]
    return changes + sorted(n for n in new if n not in ("recipe", "preprocessing") and old.get(n) != new[n])


def _other_recipe(dest: Path, recipe: str) -> list[str]:
    """Return the first case that was prepared with other options, as far as its record can be read."""
    for path in sorted((dest / "cases").glob("*/case.json")):
        with suppress(OSError, ValueError, TypeError, LookupError):
            if CaseInfo.read(path).recipe != recipe:
                return [f"those of case {path.parent.name}"]
    return []


def _other_patients(dest: Path, refs: Sequence[CaseRef]) -> list[str]:
    """Return the first case that was another patient's: ids and splits go by patients, so they must not change."""
    try:
        table = SampleTable.read_csv(dest / "table.csv")
    except (OSError, ValueError, LookupError):
        return []  # it is about to be rewritten
    before = dict(zip(table.case.tolist(), table.patient.tolist(), strict=True))
    other = [ref for ref in refs if before.get(ref.id, ref.patient) != ref.patient]
    return [f"the patient of {ref.id} ({before[ref.id]} before, {ref.patient} now)" for ref in other[:1]]


def _open_destination(dest: Path, replace: bool) -> None:
    """Make room for the cases: remove what is half-written, and the record of a store with other options."""
    with writing(dest.parent, dest.name):
        if replace:
            (dest / "store.json").unlink()
        (dest / "cases").mkdir(exist_ok=True)
        for path in (dest / "cases").iterdir():
            if is_temporary(path):
                shutil.rmtree(path)


def _remove_if_bare(dest: Path, made: bool) -> None:
    """Leave no trace where not one case was finished."""
    cases = dest / "cases"
    if made and not (cases.is_dir() and any(cases.iterdir())):
        shutil.rmtree(dest)


def _prepare_all(
    source: Source,
    refs: Sequence[CaseRef],
    preprocessing: Preprocessing,
    recipe: str,
    dest: Path,
    workers: int | None,
    progress: bool | None,
) -> dict[str, CaseInfo]:
    """Prepare every case and return their records; bad cases are reported together, after the good ones are done."""
    infos: dict[str, CaseInfo] = {}
    faults: dict[str, AdawacError] = {}
    attempt = partial(_attempt, source, preprocessing, recipe, dest)
    for ref, result in run_jobs(attempt, refs, title=f"Preparing {source.dataset}", workers=workers, progress=progress):
        if isinstance(result, CaseInfo):
            infos[ref.id] = result
        else:
            faults[ref.id] = result
    if faults:
        messages = [str(faults[ref.id]) for ref in refs if ref.id in faults]
        text = messages[0]
        if len(messages) > 1:
            text = "\n- ".join([f"{len(messages)} of {len(refs)} cases cannot be used:", *messages])
        if infos:
            text += f"\n{len(infos)} of {len(refs)} cases are done and kept: prepare again when the other files are "
            text += "fixed or moved away."
        raise DataError(text)
    return infos


def _attempt(
    source: Source, preprocessing: Preprocessing, recipe: str, dest: Path, ref: CaseRef
) -> CaseInfo | AdawacError:
    """Prepare a case; return the fault of a bad one, so that the others go on."""
    try:
        return prepare_case(source, ref, preprocessing, recipe, dest)
    except WriteError:
        raise
    except AdawacError as error:
        return error


def _warn_of_orientations(infos: dict[str, CaseInfo], preprocessing: Preprocessing) -> None:
    from nibabel.orientations import aff2axcodes

    codes = Counter("".join(aff2axcodes(np.array(i.affine))) for i in infos.values() if i.affine is not None)
    if len(codes) > 1 and preprocessing.orientation is None:
        log.warning(
            "The scans have different orientations (%s), so axis %d is not the same direction in all of them; "
            'give an orientation such as "RAS" to turn them alike.',
            ", ".join(f"{count} {code}" for code, count in codes.most_common()),
            preprocessing.axis,
        )


def _warn_of_unnamed_ct(source: Source, ref: CaseRef, preprocessing: Preprocessing) -> None:
    if preprocessing.clip_quantile is None:
        return
    # A store does not keep the intensities as they were, so one scan is read again.
    if hint := unnamed_ct(preprocessing, float(source.load(ref).image.min())):
        log.warning("%s", hint)
