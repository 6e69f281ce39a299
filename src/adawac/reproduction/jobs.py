"""Runs as jobs: run folders whose name follows from the configuration, so that grids share what they have in common."""

import hashlib
import json
import logging
import os
import random
import re
import sys
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from adawac.config import TrainConfig, override, to_dict
from adawac.config.settings import decisive
from adawac.errors import AdawacError
from adawac.files import AppendFile, is_locked, make_folder
from adawac.reproduction.grids import Row
from adawac.runs import Run, RunWriter
from adawac.runs.layout import INFO, checkpoint_path, encode_line, read_lines, scores_path

log = logging.getLogger(__name__)

State = Literal["new", "started", "trained", "done"]
Planned = Sequence[tuple[Row, Sequence["Job"]]]
"""The rows of a grid, each with its jobs."""
# Seconds to wait for a run that another process still writes to: when a machine is lost, that may take a while.
_PATIENCE = 60.0
_TIMING = "timing.jsonl"
INTERRUPTED = "It was interrupted. The same command goes on with it."


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run: to be trained, then scored.

    Attributes:
        name: Stable and readable; the run's folder is called so.
        root: The folder of the grid.
        config: What to train, with its seed and store.
        conventions: What empty masks score; the first one is what tables show.
        part: The part of the split that is scored: `test` or `val`.
        tta: Score with test-time augmentation.
    """

    name: str
    root: Path
    config: TrainConfig
    conventions: tuple[str, ...]
    part: Literal["test", "val"] = "test"
    tta: bool = False

    def __hash__(self) -> int:
        return hash(self.name)  # a configuration holds options, which have no hash

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.root / "runs" / self.name

    @property
    def log(self) -> Path:
        """Where all output of the run goes."""
        return self.root / "logs" / f"{self.name}.log"

    @property
    def weights(self) -> str:
        """The checkpoint that is scored: the run's result."""
        return Run(self.folder).selected_checkpoint

    @property
    def evaluation(self) -> str:
        """What `adawac.evaluate` calls the scores that tables show."""
        return self._evaluation(self.conventions[0])

    def _evaluation(self, convention: str) -> str:
        return f"{self.part}-{convention}-{self.weights}{'-tta' if self.tta else ''}"

    @property
    def unscored(self) -> list[str]:
        """The conventions by which these weights have no scores yet."""
        return [convention for convention in self.conventions if not self._is_scored(convention)]

    def _is_scored(self, convention: str) -> bool:
        scores = scores_path(self.folder, self._evaluation(convention))
        weights = checkpoint_path(self.folder, self.weights)
        try:
            written = scores.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        return not weights.is_file() or weights.stat().st_mtime_ns <= written

    @property
    def state(self) -> State:
        """How far the job has come, as its folder says."""
        if not (self.folder / INFO).is_file():
            return "new"
        try:
            finished = Run(self.folder).status == "finished"
        except AdawacError:  # the process that runs it will say what is wrong
            return "started"
        return "started" if not finished else "trained" if self.unscored else "done"

    @property
    def progress(self) -> tuple[int, int]:
        """Epochs done, and epochs to do."""
        try:
            return Run(self.folder).epoch, self.config.epochs
        except (AdawacError, OSError):
            return 0, self.config.epochs

    def finish(self) -> None:
        """Do what is left once the run is trained and scored; nothing here."""


@dataclass(frozen=True, kw_only=True)
class JobOutcome:
    """How a job ended.

    Attributes:
        status: `done`, `failed` or `interrupted`.
        reason: Why it did not end well.
        seconds: How long it took this time.
    """

    status: Literal["done", "failed", "interrupted"]
    reason: str = ""
    seconds: float = 0.0


def make_jobs(rows: Iterable[Row], store: Path, root: Path, conventions: Sequence[str]) -> list[tuple[Row, list[Job]]]:
    """Return every row with its jobs, one for each seed; rows of the same configuration have the same jobs."""
    digest, store, root = store_digest(store), store.absolute(), root.absolute()
    planned = []
    for row in rows:
        shared: dict[str, Any] = {"root": root, "conventions": tuple(conventions), "part": row.score, "tta": row.tta}
        configs = [override(row.config, {"data.store": store, "seed": seed}) for seed in row.seeds]
        planned.append((row, [Job(name=_name(config, digest), config=config, **shared) for config in configs]))
    return planned


def in_order(planned: Planned) -> list[Job]:
    """Return each job once: by priority of the rows; within a priority all rows' first seeds, then their second."""
    ranked = [(row.priority, turn, job) for row, jobs in planned for turn, job in enumerate(jobs)]
    return list(dict.fromkeys(job for _, _, job in sorted(ranked, key=lambda ranks: ranks[:2])))


def store_digest(store: Path) -> str:
    """Return what identifies a prepared store, wherever it lies."""
    digest = hashlib.sha256()
    for name in ("store.json", "table.csv"):
        digest.update((store / name).read_bytes())
    return digest.hexdigest()


def _name(config: TrainConfig, digest: str) -> str:
    """Return a name to read, with a hash of everything that decides the result."""
    settings = decisive(to_dict(config))
    ranks = config.hardware.devices * config.hardware.nodes
    if ranks > 1 and not config.hardware.sync_batchnorm:
        settings["ranks"] = ranks  # BatchNorm sees a rank's part of the batch
    if os.sep in config.data.split and Path(config.data.split).is_dir():  # its lists decide, not where they lie
        settings["data"]["split"] = [path.read_text() for path in sorted(Path(config.data.split).glob("*.txt"))]
    text = json.dumps([digest, settings], sort_keys=True)
    words = [str(config.summary[key]) for key in ("model", "subset", "method", "preset")]
    short = hashlib.sha256(text.encode()).hexdigest()[:8]
    return "-".join([*(_slug(word) for word in words), f"seed{config.seed}", short])


def _slug(word: str) -> str:
    """Return a word that can be part of a folder's name on any file system."""
    return re.sub(r"[^a-z0-9+]+", "-", word.lower()).strip("-")[:40]


def attempt(job: Job) -> JobOutcome:
    """Train and score what is left of a job, in a process of its own, with all output in its log.

    What goes wrong becomes an outcome.
    """
    started = time.monotonic()
    try:
        _send_output_to(job.log)
    except OSError as error:
        reason = f"Expected to write to {job.log}, but got: {error.strerror or error}."
        return JobOutcome(status="failed", reason=f"{reason} Make room, or check the folder's permissions.")
    status, reason = "done", ""
    try:
        _work(job)
    except KeyboardInterrupt:
        log.warning("interrupted: %s is saved as far as it came", job.folder)
        status, reason = "interrupted", INTERRUPTED
    except AdawacError as error:
        log.error("%s", error)
        status, reason = "failed", str(error)
    except Exception as error:
        log.error("%s", traceback.format_exc())
        status, reason = "failed", f"Unexpected {type(error).__name__}: {error}"
    return JobOutcome(status=status, reason=reason, seconds=time.monotonic() - started)  # type: ignore[arg-type]


def _work(job: Job) -> None:
    import numpy as np
    import torch

    from adawac.evaluation import evaluate
    from adawac.train import fit

    # A run draws from its own generators, but other people's networks may draw from these.
    random.seed(job.config.seed)
    np.random.seed(job.config.seed % 2**32)
    torch.manual_seed(job.config.seed)
    deadline = time.monotonic() + _PATIENCE
    while is_locked(job.folder) and time.monotonic() < deadline:
        time.sleep(0.5)
    run = Run(job.folder) if (job.folder / INFO).is_file() else None
    if run is None or run.status != "finished":
        log.info("training %s%s", job.name, "" if run is None else f", from epoch {run.epoch} on")
        fit(job.config, job.folder, resume=run is not None, watch=_EpochTimes())
    for convention in job.unscored:
        log.info("scoring %s by the convention %s", job.name, convention)
        evaluate(
            job.folder,
            data=job.config.data.store,
            part=job.part,
            convention=convention,
            tta=job.tta,
            precision="fp32",  # on every device, as the paper's numbers are
            progress=False,
        )
    job.finish()


class _EpochTimes:
    """Notes how long each epoch takes, with all that belongs to it, in the run's folder; logs the epochs' numbers."""

    def start(self, config: TrainConfig, run: RunWriter, steps: int) -> None:
        from adawac.train.engine import LogLines

        self._log = LogLines()
        self._log.start(config, run, steps)
        self._path = run.folder / _TIMING
        self._length = max((line.end for line in read_lines(self._path)), default=0)
        self._last = time.monotonic()

    def step(self, epoch: int, step: int) -> None:
        pass

    def epoch(self, epoch: int, metrics: Mapping[str, Any]) -> None:
        self._log.epoch(epoch, metrics)
        now = time.monotonic()
        line = {"seconds": now - self._last, "slices_per_second": metrics["slices_per_second"]}
        self._last = now
        with AppendFile(self._path, self._length) as file:  # cuts off what a kill left half-written
            file.append(encode_line(epoch, line))
            self._length = file.length


def read_epoch_times(folder: Path) -> list[dict[str, Any]]:
    """Return the seconds and the rate (slices/s) of each epoch of a job; one that was done again counts once."""
    epochs = {line.values["epoch"]: line.values for line in read_lines(folder / _TIMING)}
    return [epochs[epoch] for epoch in sorted(epochs)]


def _send_output_to(path: Path) -> None:
    """Send all further output of this process, and its log, into a file."""
    make_folder(path.parent)
    file = path.open("a", encoding="utf-8", errors="replace")
    sys.stdout.flush()
    sys.stderr.flush()
    for number in (1, 2):
        os.dup2(file.fileno(), number)
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(stream=file, level=logging.INFO, format=form, force=True)
