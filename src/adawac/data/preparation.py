"""Cases → store on disk: in parallel, restartable, the same bytes from the same input."""

import hashlib
import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from adawac.data.cases import CaseRef, SampleTable, Unit
from adawac.data.parallel import check_engine, check_workers, run_jobs, share_of
from adawac.data.preprocessing import Normalisation, Preprocessing, find_orientation, nearest_orientation, unnamed_ct
from adawac.data.sources import Source, build_source
from adawac.data.sources.scan_files import read_json
from adawac.data.sources.source import alike, check_refs, missing_labels
from adawac.data.splits import check_leaks
from adawac.data.store import (
    FORMAT_VERSION,
    FORMAT_WITH_IGNORED,
    FORMAT_WITH_PICTURES,
    FORMATS,
    CaseInfo,
    Store,
    is_store,
)
from adawac.data.store_writer import WriteError, prepare_case, sample_table, write_json, writing
from adawac.data.task import Task
from adawac.errors import AdawacError, ConfigError, DataError
from adawac.files import LOCK, FolderLock, beside, is_temporary

log = logging.getLogger(__name__)

_FINISHING = 60.0  # seconds that another shard may take to write the table


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
    tile: int | None = None,
    overlap: int | None = None,
    workers: int | None = None,
    progress: bool | None = None,
    engine: str = "local",
    address: str | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Store:
    """Prepare scans for training: read, check, normalise and cut every case, and write a store.

    Run it again after an interruption, or when scans were added: finished cases are not redone. Options left at None
    take the source's default, which is the paper's for the data set.

    Args:
        source: `acdc`, `synapse`, `nifti`, `dicom` or `pictures`, another registered name, or a `Source`.
        src: The folder with the scans; leave it out where `source` is a `Source`.
        dest: The store's folder: new, empty, or a store prepared with the same options.
        axis: The voxel axis along which volumes are cut into slices.
        orientation: Turn the voxel axes to this orientation first, such as "RAS"; the file's own by default.
        spacing: Resample to this voxel size in mm (0 keeps an axis); the native grid by default.
        window: Clip intensities to this range. It replaces the source's default quantile.
        clip_quantile: Clip each volume where its cumulative histogram reaches this share. It replaces a default window.
        normalisation: `min-max`, `z-score` or `none`, for each volume and channel separately; or `range`, the window
            to [0, 1] for all alike.
        size: Keep copies of this height and width beside the native slices.
        unit: What one sample is: `slice` or `volume`.
        tile: Cut pictures into tiles of this height and width, each of which is a sample; whole by default.
        overlap: Pixels that neighbouring tiles share; an eighth of a tile by default.
        workers: Processes; all processors by default, those of the cluster with `ray`. 1 stays in this process.
        progress: Show a progress bar; by default where there is a terminal.
        engine: `local`, or `ray`: cases are tasks of a cluster, whose machines see all files under the same paths.
        address: Of the Ray cluster; None starts one on this machine.
        overwrite: Prepare again with other options over an existing store.
        **options: Options of the source, for example `classes` or `patient` of `nifti`.

    Returns:
        The store, opened.

    Examples:
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
    asked = {
        "axis": axis,
        "orientation": orientation,
        "spacing": spacing,
        "window": window,
        "clip_quantile": clip_quantile,
        "normalisation": normalisation,
        "size": size,
        "unit": unit,
        "tile": tile,
        "overlap": overlap,
    }
    work = _Preparation.plan(source, src, dest, asked, options, overwrite)
    run = _runner(work, workers=workers, progress=progress, engine=engine, address=address)
    made = not work.dest.exists()
    with writing(work.dest.parent, work.dest.name):
        work.dest.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(work.dest)
    try:
        _open_destination(work.dest, replace=work.check())  # another process may have prepared it since
        infos = _check_all(work.source, work.refs, {ref.id: result for ref, result in run(work.refs)})
        _remove_half_written(work.dest)  # by a machine of a cluster that was lost
        work.write_table(infos)
    except BaseException:
        lock.release()  # Windows removes nothing that is open
        _remove_if_bare(work.dest, made)
        raise
    finally:
        lock.release()
    work.warn(infos)
    return Store(work.dest)


def prepare_share(
    shard: str,
    source: str | Source,
    src: Path | str | None = None,
    dest: Path | str | None = None,
    *,
    overwrite: bool = False,
    **options: Any,
) -> Store | int:
    """Prepare the share of one of several machines, such as a job of a SLURM array.

    Args:
        shard: `K/N`: every Nth case from the Kth on. N such calls, with the same options, prepare all cases.
        source: As for `prepare`, as are all further arguments.
        src: The folder with the scans.
        dest: The store's folder.
        overwrite: Prepare again with other options over an existing store.
        **options: All further ones of `prepare`.

    Returns:
        The store, if all cases are prepared now, or how many are not.

    Examples:
        >>> import tempfile
        >>> from adawac.data.phantom import phantom_source
        >>> scans, folder = phantom_source(8, size=16, slices=(6, 6)), tempfile.mkdtemp()
        >>> prepare_share("1/2", scans, dest=folder, workers=1)
        4
        >>> len(prepare_share("2/2", scans, dest=folder, workers=1).cases)
        8
    """
    part = share_of(shard)
    asked = {field.name: options.pop(field.name, None) for field in fields(Preprocessing)}
    usual = {"workers": None, "progress": None, "engine": "local", "address": None}
    how = {name: options.pop(name, default) for name, default in usual.items()}
    work = _Preparation.plan(source, src, dest, asked, options, overwrite)
    run = _runner(work, **how)
    share = work.refs[part]
    with writing(work.dest.parent, work.dest.name):
        (work.dest / "cases").mkdir(parents=True, exist_ok=True)
    if work.check():  # of other shards, the first one has removed it
        (work.dest / "store.json").unlink(missing_ok=True)
    _check_all(work.source, share, {ref.id: result for ref, result in run(share)})
    infos = work.finished()
    if len(infos) < len(work.refs):
        return len(work.refs) - len(infos)
    with writing(work.dest.parent, work.dest.name):
        lock = FolderLock(work.dest, patience=_FINISHING)
    try:
        work.write_table(infos)
    finally:
        lock.release()
    work.warn(infos)
    return Store(work.dest)


@dataclass(frozen=True, kw_only=True)
class _Preparation:
    """What is to be prepared, how, and where to; everything is checked before the first case.

    Attributes:
        record: What `store.json` holds.
        clips: Whether the source decides how intensities are clipped.
    """

    source: Source
    refs: Sequence[CaseRef]
    dest: Path
    preprocessing: Preprocessing
    record: Mapping[str, Any]
    overwrite: bool
    clips: bool

    @classmethod
    def plan(
        cls,
        source: str | Source,
        src: Path | str | None,
        dest: Path | str | None,
        asked: Mapping[str, Any],
        options: Mapping[str, Any],
        overwrite: bool,
    ) -> "_Preparation":
        source = _open_source(source, src, options)
        if dest is None:
            raise ConfigError("Expected a folder for the store, but got none. Give it: prepare(source, scans, store).")
        tile, overlap = asked["tile"], asked["overlap"]
        overlap = tile // 8 if tile and overlap is None else overlap
        preprocessing = source.preprocessing.override(**{**asked, "overlap": overlap})
        refs = check_refs(source.cases(), source.root or "the source")
        if missing := missing_labels(source):
            raise DataError(missing)
        check_leaks(np.array([ref.patient for ref in refs]), np.array([ref.split for ref in refs]))
        return cls(
            source=source,
            refs=refs,
            dest=Path(dest),
            preprocessing=preprocessing,
            record=_describe(source, preprocessing),
            overwrite=overwrite,
            clips=asked["clip_quantile"] is None and options.get("modality") is None,
        )

    def check(self) -> bool:
        """Check that the folder can take this store, and say whether another one there has to go; change nothing."""
        return _check_destination(self.dest, self.source, self.refs, self.record, self.overwrite)

    def finished(self) -> dict[str, CaseInfo]:
        """Return the records of all cases that were prepared with these options, whoever did it."""
        infos = {}
        for ref in self.refs:
            with suppress(OSError, ValueError, TypeError, LookupError):
                info = CaseInfo.read(self.dest / "cases" / ref.id / "case.json")
                if info.recipe == self.record["recipe"]:
                    infos[ref.id] = info
        return infos

    def write_table(self, infos: Mapping[str, CaseInfo]) -> None:
        """Complete the store: the table of all samples, and what it holds."""
        with writing(self.dest, "the table"):
            with beside(self.dest / "table.csv") as temporary:
                sample_table(self.source, self.refs, infos, self.preprocessing).write_csv(temporary)
            version = FORMAT_WITH_IGNORED if any(info.ignored for info in infos.values()) else FORMAT_VERSION
            if self.preprocessing.normalisation == "range" or self.preprocessing.tile:
                version = FORMAT_WITH_PICTURES
            modality = self.source.modality and self.source.modality.upper()
            facts = {"orientation": _common_orientation(infos), "modality": modality}
            known = {name: fact for name, fact in facts.items() if fact is not None}
            write_json(self.dest / "store.json", {**self.record, **known, "format_version": version})

    def warn(self, infos: Mapping[str, CaseInfo]) -> None:
        """Log what a user should look at."""
        _warn_of_orientations(infos, self.preprocessing)
        unnamed = ""
        if self.clips and self.preprocessing.clip_quantile is not None:
            # A store does not keep the intensities as they were, so one scan is read again.
            unnamed = unnamed_ct(self.preprocessing, float(self.source.load(self.refs[0]).image.min()))
        for hint in filter(None, (unnamed, *self.source.hints(self.preprocessing))):
            log.warning("%s", hint)


def _runner(
    work: _Preparation, *, workers: int | None, **options: Any
) -> Callable[[Sequence[CaseRef]], Iterator[tuple[CaseRef, CaseInfo | AdawacError]]]:
    """Return what prepares cases, after a look at how and where to: a call that is refused writes nothing."""
    check_workers(workers)
    check_engine(options["engine"], options["address"])
    work.check()
    attempt = partial(_attempt, work.source, work.preprocessing, work.record["recipe"], work.dest)
    return partial(run_jobs, attempt, title=f"Preparing {work.source.dataset}", workers=workers, **options)


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
    dest: Path, source: Source, refs: Sequence[CaseRef], record: Mapping[str, Any], overwrite: bool
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
    known = old.get("format_version") in (None, *FORMATS)
    if damaged and known:  # it is rewritten from the cases' records
        return _other_recipe(dest, new["recipe"])
    options = old.get("preprocessing") or {}
    changes = [
        f"{name} ({options.get(name)} before, {value} now)"
        for name, value in new["preprocessing"].items()
        if options.get(name) != value
    ]
    compared = set(new) - {"recipe", "preprocessing", *(["format_version"] if known else [])}
    return changes + sorted(name for name in compared if old.get(name) != new[name])


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
    _remove_half_written(dest)


def _remove_half_written(dest: Path) -> None:
    with writing(dest.parent, dest.name):
        for path in (dest / "cases").iterdir():
            if is_temporary(path):
                shutil.rmtree(path)


def _remove_if_bare(dest: Path, made: bool) -> None:
    """Leave no trace where not one case was finished."""
    cases = dest / "cases"
    if made and not (cases.is_dir() and any(cases.iterdir())):
        shutil.rmtree(dest)


def _check_all(
    source: Source, refs: Sequence[CaseRef], results: Mapping[str, CaseInfo | AdawacError]
) -> dict[str, CaseInfo]:
    """Return the records of all cases; bad ones are reported together, after the good ones are done."""
    infos = {case: result for case, result in results.items() if isinstance(result, CaseInfo)}
    bad = [(ref, str(results[ref.id])) for ref in refs if ref.id not in infos]
    if bad:
        lines = alike(source, bad)
        if len(bad) > 1:
            lines = [f"{len(bad)} of {len(refs)} cases cannot be used:", *(f"- {line}" for line in lines)]
        if infos:
            lines.append(
                f"{len(infos)} of {len(refs)} cases are done and kept: prepare again when the other files are fixed or "
                "moved away."
            )
        raise DataError("\n".join(lines))
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


def _common_orientation(infos: Mapping[str, CaseInfo]) -> str | None:
    """Return the orientation of all prepared scans; None where it is unknown, or where they differ."""
    orientations = {find_orientation(info.affine) for info in infos.values()}
    return orientations.pop() if len(orientations) == 1 else None


def _warn_of_orientations(infos: Mapping[str, CaseInfo], preprocessing: Preprocessing) -> None:
    codes = Counter(nearest_orientation(info.affine) for info in infos.values() if info.affine is not None)
    if len(codes) > 1 and preprocessing.orientation is None:
        log.warning(
            "The scans have different orientations (%s), so axis %d is not the same direction in all of them; "
            'give an orientation such as "RAS" to turn them alike.',
            ", ".join(f"{count} {code}" for code, count in codes.most_common()),
            preprocessing.axis,
        )
