"""Writing a run folder: one writer at a time, nothing lost by a kill or a full disk."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

import adawac
from adawac.config import Config, dumps
from adawac.data.cases import SampleTable, match_rows
from adawac.errors import AdawacError, RunError
from adawac.files import LOCK, AppendFile, FolderLock, beside, is_temporary, make_folder, write_text
from adawac.runs import layout
from adawac.runs.checkpoints import save_checkpoint
from adawac.runs.environment import describe_environment
from adawac.runs.history import BLOCK_MARK, FIELDS, encode, scan
from adawac.runs.layout import check_rest, encode_line, now, read_lines, write_json
from adawac.runs.reader import Run
from adawac.runs.results import Score, Slice, write_gallery, write_scores


class RunWriter:
    """A run folder opened for writing; as a context manager it notes how the run ended.

    Leaving the block well makes the run `finished`, leaving it through an error or Ctrl-C `interrupted`. Readers notice
    a run whose process was killed: it says `running`, but nobody holds its lock.

    A resumed run's configuration, data and samples are not written until the run is sure to go on, which is when
    `rewind` or anything that adds to it is called: an error before that leaves the folder as it was.

    Attributes:
        folder: The run folder.
        samples: The table written so far; row i of it is column i of the history.
        session: How often the run was started, this time included.
    """

    def __init__(
        self,
        folder: Path | str,
        config: Config | None = None,
        *,
        epochs: int | None = None,
        summary: Mapping[str, Any] | None = None,
        resume: bool = False,
    ):
        """Open a run folder.

        Args:
            folder: A new or empty folder, or with `resume` that of an earlier run.
            config: What the run does; saved as `config.yaml`. To be given unless the run is resumed.
            epochs: How many epochs there will be, for those who list runs.
            summary: What a list of runs shows of this one.
            resume: Go on with the run that is there. Call `rewind` before writing.
        """
        self.folder = Path(folder)
        self._opened = False
        with self._explained():
            make_folder(self.folder)
            check_folder(self.folder, resume)
            self._lock = FolderLock(self.folder)
        try:
            with self._explained():
                self._open(config, epochs, summary or {}, resume)
        except BaseException:
            self._lock.release()
            raise
        self._opened = True

    def _open(self, config: Config | None, epochs: int | None, summary: Mapping[str, Any], resume: bool) -> None:
        check_folder(self.folder, resume)  # again: the last holder of the lock may have filled it
        for parent in (self.folder, self.folder / layout.CHECKPOINTS):
            for leftover in filter(is_temporary, parent.glob(".*")):  # of a killed writer
                leftover.unlink(missing_ok=True)
        earlier = Run(self.folder) if resume else None
        metrics, blocks = read_lines(self.folder / layout.METRICS_FILE), scan(self.folder / layout.HISTORY)
        self.samples: SampleTable | None = earlier.samples if earlier else None
        if blocks and self.samples is None:
            raise RunError(
                f"Expected the table of the history's samples, but {self.folder / layout.SAMPLES} cannot be read. "
                "Restore it from a copy, or start a new run."
            )
        ends = {layout.METRICS_FILE: metrics[-1].end if metrics else 0, layout.HISTORY: blocks[-1].end if blocks else 0}
        for (name, end), mark in zip(ends.items(), (b"\n", BLOCK_MARK), strict=True):
            check_rest(self.folder / name, end, mark)
        old = dict(earlier.info) if earlier else {}
        self._earlier = old if resume else None
        self._held: list[Callable[[], None]] = []
        self._info = {
            "format_version": layout.FORMAT_VERSION,
            "adawac": adawac.__version__,
            "status": "running",
            "created": old.get("created", now()),
            "updated": now(),
            "epoch": old.get("epoch", 0),
            "epochs": epochs if epochs is not None else old.get("epochs"),
            "summary": {**old.get("summary", {}), **summary},
            "saved": list(old.get("saved", [])),
        }
        write_json(self.folder / layout.INFO, {**old, "status": "running"} if resume else self._info)
        if config is not None:
            self._write(partial(write_text, self.folder / layout.CONFIG, dumps(config)))
        sessions = [*(earlier.environments if earlier else []), describe_environment()]
        self.session = len(sessions)
        self._write(partial(write_json, self.folder / layout.ENVIRONMENT, {"sessions": sessions}))
        self._metrics, self._history = (AppendFile(self.folder / name, end) for name, end in ends.items())
        self._last_block = blocks[-1].epoch if blocks else -1

    def write_data(self, description: Mapping[str, Any]) -> None:
        """Write what is known of the data: class names, unit, and how scans were prepared (`data.json`)."""
        self._write(partial(write_json, self.folder / layout.DATA, description))

    def write_samples(self, table: SampleTable) -> npt.NDArray[np.int64]:
        """Write the table of samples, or let it grow: samples that are there keep their row, new ones come after.

        Returns:
            For each row of `table`, its row in the run.
        """
        try:
            merged = table if self.samples is None else _grow(self.samples, table)
        except RunError:
            self.close("interrupted")  # the caller may not have entered its block yet
            raise
        self._write(partial(_write_table, self.folder / layout.SAMPLES, merged))
        self.samples = merged
        return match_rows(merged.id, table.id)

    def log_metrics(self, epoch: int, values: Mapping[str, Any]) -> None:
        """Append numbers of an epoch; several calls for one epoch add up."""
        if epoch < self._info["epoch"]:
            raise _not_rising(epoch, self._info["epoch"])
        self._settle()
        with self._explained():
            self._metrics.append(encode_line(epoch, values))
            if epoch > self._info["epoch"]:
                self._info["epoch"] = epoch
                self._write_info()

    def log_history(self, epoch: int, rows: npt.ArrayLike, **fields: Any) -> None:
        """Append what the samples of an epoch went through.

        Args:
            epoch: Later than the last one.
            rows: Rows of the table that were seen; the others of this epoch become NaN.
            fields: `ell_ce`, `ell_dice`, `reg_ac`, `beta`: a value for each of `rows`, as array or tensor.
        """
        if epoch <= self._last_block:
            raise _not_rising(epoch, self._last_block)
        where = np.asarray(_array(rows), dtype=np.int64)
        count = 0 if self.samples is None else len(self.samples)
        if where.ndim != 1 or (where.size and not 0 <= where.min() <= where.max() < count):
            raise RunError(
                f"Expected rows of the table, a list of 0 to {count - 1}, but got {where.min()} to {where.max()} "
                f"(shape {where.shape}). Write the samples first, and use the rows that `write_samples` returns."
            )
        columns = {}
        for name in (*FIELDS, *(name for name in fields if name not in FIELDS)):
            columns[name] = np.full(count, np.nan, dtype=np.float32)
            if fields.get(name) is not None:
                columns[name][where] = _array(fields[name])
        self._settle()
        with self._explained():
            self._history.append(encode(epoch, columns))
        self._last_block = epoch

    def save_checkpoint(self, name: str, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> Path:
        """Write a checkpoint (see `adawac.runs.save_checkpoint`); an earlier one stays until it is whole."""
        path = layout.checkpoint_path(self.folder, name)
        self._settle()
        with self._explained():
            save_checkpoint(path, tensors, state)
            if name not in self._info["saved"]:
                self._info["saved"].append(name)
                self._write_info()
        return path

    def remove_checkpoint(self, name: str) -> None:
        """Remove a checkpoint if it exists, such as one of an epoch that was rewound."""
        path = layout.checkpoint_path(self.folder, name)
        self._settle()
        with self._explained():
            path.unlink(missing_ok=True)

    def note(self, summary: Mapping[str, Any]) -> None:
        """Change what a list of runs shows of this one; None takes a value away."""
        self._settle()
        shown = {**self._info["summary"], **summary}
        self._info["summary"] = {name: value for name, value in shown.items() if value is not None}
        with self._explained():
            self._write_info()

    def write_scores(self, name: str, scores: list[Score]) -> Path:
        """Write the scores of one evaluation."""
        with self._explained():
            return write_scores(self.folder, name, scores)

    def write_gallery(self, name: str, slices: list[Slice]) -> Path:
        """Write slices to look at."""
        with self._explained():
            return write_gallery(self.folder, name, slices)

    def rewind(self, epoch: int) -> None:
        """Drop metrics and history after `epoch`, the one that a checkpoint ends with, to go on from there.

        Checkpoints stay: the caller removes those that are of no use any more (see `remove_checkpoint`).
        """
        metrics, blocks = read_lines(self.folder / layout.METRICS_FILE), scan(self.folder / layout.HISTORY)
        kept = [block for block in blocks if block.epoch <= epoch]
        self._settle()
        with self._explained():
            self._metrics.cut(max((line.end for line in metrics if line.values["epoch"] <= epoch), default=0))
            self._history.cut(kept[-1].end if kept else 0)
            self._last_block = kept[-1].epoch if kept else -1
            self._info["epoch"] = min(epoch, self._info["epoch"])
            self._write_info()

    def close(self, status: Literal["finished", "interrupted"], summary: Mapping[str, Any] | None = None) -> None:
        """Note how the run ended, with what is worth listing, and let go of the folder; the first call counts."""
        if self._info["status"] != "running":
            return
        self._info["status"] = status
        self._info["summary"].update(summary or {})
        try:
            if status == "finished":
                self._settle()
            with self._explained():
                if self._earlier is None:
                    self._write_info()
                else:
                    write_json(self.folder / layout.INFO, self._earlier)
        finally:
            self._metrics.close()
            self._history.close()
            self._lock.release()

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.close("finished")
        else:
            with suppress(RunError):  # a full disk: the first error is the one to show
                self.close("interrupted")

    def _write(self, write: Callable[[], None]) -> None:
        """Write now, or once a resumed run is sure to go on."""
        if self._earlier is None:
            with self._explained():
                write()
        else:
            self._held.append(write)

    def _settle(self) -> None:
        """Write what was held back: the run goes on from here."""
        if self._earlier is None:
            return
        with self._explained():
            for write in self._held:
                write()
            self._write_info()
        self._earlier = None

    def _write_info(self) -> None:
        self._info["updated"] = now()
        write_json(self.folder / layout.INFO, self._info)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn an error of the operating system into one that says what to do, and never write into a new folder."""
        if self._opened and not (self.folder / layout.INFO).exists():
            raise RunError(
                f"Expected {self.folder} to stay where it is while it is written, but it was moved or removed. Go on "
                "with it where it is now, or move it back: adawac train --out FOLDER --resume."
            )
        try:
            yield
        except OSError as error:
            if isinstance(error, AdawacError):
                raise
            saved = sorted(path.stem for path in (self.folder / layout.CHECKPOINTS).glob("*.safetensors"))
            kept = f" Checkpoints that are safe: {', '.join(saved)}; resume from there." if saved else ""
            raise RunError(
                f"Expected to write to {self.folder}, but got: {error.strerror or error}. "
                f"Make room, or check the folder's permissions.{kept}"
            ) from error


def check_folder(folder: Path, resume: bool) -> None:
    """Refuse a folder that a new run cannot begin in, or to `resume` where there is no run."""
    holds_run = (folder / layout.INFO).is_file()
    if resume and not holds_run:
        raise RunError(f"Expected a run to resume, but {folder} has no {layout.INFO}. Start it without resuming.")
    if holds_run and not resume:
        raise RunError(f"Expected a new run folder, but {folder} holds a run. Resume it, or choose another folder.")
    paths = folder.iterdir() if folder.is_dir() else ()
    others = [path.name for path in paths if path.name != LOCK and not is_temporary(path)]
    if others and not resume:
        raise RunError(
            f"Expected an empty folder, but {folder} holds {sorted(others)[0]!r}. Choose another folder for the run."
        )


def _write_table(path: Path, table: SampleTable) -> None:
    with beside(path) as temporary:
        table.write_csv(temporary)


def _grow(old: SampleTable, new: SampleTable) -> SampleTable:
    if old.class_names != new.class_names:
        raise RunError(
            f"Expected the classes of the run, {', '.join(old.class_names)}, but got {', '.join(new.class_names)}. "
            "Go on with the data set that the run began with, or start a new run."
        )
    added = new.take(match_rows(old.id, new.id) < 0)
    columns = {name: np.concatenate([getattr(old, name), getattr(added, name)]) for name in old.columns()}
    return replace(old, **cast("Any", columns))


def _array(values: Any) -> npt.NDArray[Any]:
    """Return an array of what may be a tensor on a device, or of a type that NumPy does not know."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() else values
    return np.asarray(values)


def _not_rising(epoch: int, last: int) -> RunError:
    return RunError(f"Expected an epoch after {last}, but got {epoch}. To go back, call rewind({epoch - 1}) first.")
