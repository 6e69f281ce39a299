"""Runs as jobs: run folders whose name follows from the configuration, so that grids share what they have in common."""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from adawac.config import TrainConfig, override, to_dict
from adawac.config.settings import decisive
from adawac.errors import AdawacError
from adawac.reproduction.grids import Row
from adawac.runs import Run
from adawac.runs.layout import INFO, checkpoint_path, scores_path

__all__ = ["Job", "Outcome", "State", "make_jobs", "store_digest"]

State = Literal["new", "started", "trained", "done"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run: to be trained, then scored.

    Attributes:
        name: Stable and readable; the run's folder is called so.
        root: The folder of the grid.
        config: What to train, with its seed and store.
        convention: What empty masks score.
    """

    name: str
    root: Path
    config: TrainConfig
    convention: str

    def __hash__(self) -> int:
        return hash(self.name)  # a configuration holds options, which have no hash

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.root / "runs" / self.name

    @property
    def log(self) -> Path:
        """Where everything that the run says goes."""
        return self.root / "logs" / f"{self.name}.log"

    @property
    def weights(self) -> str:
        """The checkpoint that is scored: the run's result."""
        return Run(self.folder).selected_checkpoint

    @property
    def evaluation(self) -> str:
        """What `adawac.evaluate` calls the scores."""
        return f"test-{self.convention}-{self.weights}"

    @property
    def scored(self) -> bool:
        """Whether there are scores, of these weights."""
        scores, weights = scores_path(self.folder, self.evaluation), checkpoint_path(self.folder, self.weights)
        try:
            written = scores.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        return not weights.is_file() or weights.stat().st_mtime_ns <= written

    @property
    def state(self) -> State:
        """How far the job has come, as its folder tells."""
        if not (self.folder / INFO).is_file():
            return "new"
        try:
            finished = Run(self.folder).status == "finished"
        except AdawacError:  # whoever runs it will say what is wrong
            return "started"
        return "started" if not finished else "done" if self.scored else "trained"

    @property
    def progress(self) -> tuple[int, int]:
        """Epochs done, and epochs to do."""
        try:
            return Run(self.folder).epoch, self.config.epochs
        except (AdawacError, OSError):
            return 0, self.config.epochs


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a job ended.

    Attributes:
        status: `done`, `failed` or `interrupted`.
        reason: Why it did not end well.
        seconds: How long it took this time.
    """

    status: Literal["done", "failed", "interrupted"]
    reason: str = ""
    seconds: float = 0.0


def make_jobs(
    rows: Iterable[Row], seeds: Iterable[int], store: Path, root: Path, convention: str
) -> list[tuple[Row, list[Job]]]:
    """Return every row with its jobs, one for each seed; rows of the same configuration have the same jobs."""
    digest, store, root = store_digest(store), store.absolute(), root.absolute()
    seeds = tuple(seeds)
    found = []
    for row in rows:
        config = override(row.config, {"data.store": store})
        seeded = [replace(config, seed=seed) for seed in seeds]
        jobs = [Job(name=_name(one, digest), root=root, config=one, convention=convention) for one in seeded]
        found.append((row, jobs))
    return found


def store_digest(store: Path) -> str:
    """Return what identifies a prepared store, wherever it lies."""
    found = hashlib.sha256()
    for name in ("store.json", "table.csv"):
        found.update((store / name).read_bytes())
    return found.hexdigest()


def _name(config: TrainConfig, digest: str) -> str:
    """Return a name to read, with a hash of everything that decides the result."""
    settings = decisive(to_dict(config))
    ranks = config.hardware.devices * config.hardware.nodes
    if ranks > 1 and not config.hardware.sync_batchnorm:
        settings["ranks"] = ranks  # BatchNorm sees a rank's part of the batch
    text = json.dumps([digest, settings], sort_keys=True)
    told = config.summary
    words = [str(told[key]) for key in ("model", "subset", "method", "preset")]
    short = hashlib.sha256(text.encode()).hexdigest()[:8]
    return "-".join([*(_slug(word) for word in words), f"seed{config.seed}", short])


def _slug(word: str) -> str:
    """Return a word that can be part of a folder's name on any file system."""
    return re.sub(r"[^a-z0-9+]+", "-", word.lower()).strip("-")[:40]
