"""Reading a run folder, whole or not: what is there is given, what is not is named."""

import logging
import os
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from adawac.config import TrainConfig, load
from adawac.config.yaml_text import parse
from adawac.data.cases import SampleTable
from adawac.data.task import Task
from adawac.errors import AdawacError, ConfigError, MissingFileError, RunError, check_known
from adawac.files import is_locked
from adawac.runs import layout
from adawac.runs.checkpoints import Checkpoint, load_checkpoint, read_state
from adawac.runs.history import FIELDS, History
from adawac.runs.layout import MetricsLine, read_json, read_lines, strict
from adawac.runs.results import Calibration, Gallery, Score, read_calibration, read_scores

log = logging.getLogger(__name__)

T = TypeVar("T")


class Run:
    """A run folder as it is now; parts are read when they are asked for, and kept. Open it anew to see more.

    What a part gives where it is not there: nothing, an empty table, an empty history. `missing` says which parts those
    are and why, and `require` turns that into an error.

    Args:
        folder: What `adawac train` had as `--out`, and `adawac.fit` or a `RunRecorder` as `out`.

    Attributes:
        folder: The folder.
        info: What `run.json` holds.

    Examples:
        >>> run = Run("runs/adawac")
        >>> run.status, run.epoch, run.checkpoints
        ('finished', 2, ['last'])
        >>> run.history["beta"].shape  # epochs, samples
        (2, 30)
        >>> epochs, loss = run.curve("loss")
        >>> epochs
        array([1, 2])
        >>> sample = run.samples.id[0]
        >>> sorted(run.trajectory(sample))
        ['beta', 'ell_ce', 'ell_dice', 'epoch', 'reg_ac']
    """

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)
        self.info = self._read_info()

    def __repr__(self) -> str:
        what = " with ".join(str(self.summary[name]) for name in ("method", "model") if name in self.summary)
        how = f"{self.status}, epoch {self.epoch} of {self.info.get('epochs') or '?'}"
        return f"Run({str(self.folder)!r}: {what + ', ' if what else ''}{how})"

    def _read_info(self) -> dict[str, Any]:
        path = self.folder / layout.INFO
        try:
            info: dict[str, Any] = strict(read_json(path))
        except (FileNotFoundError, NotADirectoryError):
            raise MissingFileError(
                f"Expected a run folder, but {self.folder} has no {layout.INFO}. Give what `adawac train` had as --out."
            ) from None
        version = info.get("format_version", 0)
        if not isinstance(version, int) or version > layout.FORMAT_VERSION:
            raise RunError(
                f"Expected a run of format version {layout.FORMAT_VERSION} or older, but {self.folder} has {version}. "
                "Upgrade adawac: pip install --upgrade adawac."
            )
        kinds = {"epoch": int | None, "summary": dict | None, "saved": list | None}
        if odd := [name for name, kind in kinds.items() if not isinstance(info.get(name), kind)]:
            raise RunError(
                f"Expected what a run notes in {path}, but got {odd[0]}: {info[odd[0]]!r}. Restore the file from a "
                "copy."
            )
        return info

    @property
    def status(self) -> Literal["running", "finished", "interrupted"]:
        """How the run stands; one whose process is gone without a word was interrupted."""
        noted = self.info.get("status")
        if noted == "running":
            return "running" if is_locked(self.folder) else "interrupted"
        return "finished" if noted == "finished" else "interrupted"

    @property
    def epoch(self) -> int:
        """The last epoch that was logged."""
        return int(self.info.get("epoch") or 0)

    @property
    def summary(self) -> dict[str, Any]:
        """What a list of runs shows of this one."""
        return dict(self.info.get("summary") or {})

    @cached_property
    def config(self) -> TrainConfig | None:
        """The resolved configuration of `adawac train`, or None; another training loop has none."""
        return None if "loop" in self.settings else self._give(layout.CONFIG, _load_config, None)

    def own_config(self) -> TrainConfig:
        """Return the configuration to go on with, or say why there is none."""
        if self.config is None:
            why = (self._faults | self._foreign)[layout.CONFIG].removesuffix(".")
            raise RunError(
                f"Expected a configuration to go on with in {self.folder / layout.CONFIG}, but {why}. Restore it from "
                "a copy, or give the run's settings with --config."
            )
        return self.config

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration as plain data: also that of another version, or of a training loop of one's own."""
        return self._give(layout.CONFIG, lambda path: dict(parse(path.read_bytes())), {})

    @cached_property
    def environments(self) -> list[dict[str, Any]]:
        """What the run was made with, once for each time it was started or resumed."""
        return self._give(layout.ENVIRONMENT, lambda path: [dict(start) for start in read_json(path)["sessions"]], [])

    @cached_property
    def data(self) -> dict[str, Any]:
        """What is known of the data: class names, unit, how scans were prepared."""
        return self._give(layout.DATA, read_json, {})

    @cached_property
    def task(self) -> Task:
        """The classes, channels, label values and preprocessing of the data; a `DataError` where they are not noted."""
        return Task.from_dict(self.data, self.folder / layout.DATA, "Give a run of `adawac train`.")

    @cached_property
    def samples(self) -> SampleTable | None:
        """The samples that were trained on; row i is column i of the history. None if there is no table yet."""
        return self._give(layout.SAMPLES, SampleTable.read_csv, None)

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """One mapping per epoch, with `epoch` and what was logged for it."""
        epochs: dict[int, dict[str, Any]] = {}
        for line in self._give(layout.METRICS_FILE, read_lines, list[MetricsLine]()):
            epochs.setdefault(line.values["epoch"], {}).update(line.values)
        return list(epochs.values())

    def curve(self, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return the epochs and the values of one metric; NaN where it was not finite, or not logged."""
        self._known(name, {key for metrics in self.metrics for key in metrics}, "a metric")
        logged = [metrics.get(name) for metrics in self.metrics]
        if odd := [value for value in logged if not isinstance(value, int | float | None)]:
            raise RunError(f"Expected numbers as {name!r} of {self.folder}, but got {odd[0]!r}. Choose another metric.")
        values = [np.nan if value is None else float(value) for value in logged]
        epochs = [metrics["epoch"] for metrics in self.metrics]
        return np.array(epochs, dtype=np.int64), np.array(values, dtype=np.float64)

    @cached_property
    def history(self) -> History:
        """CE, Dice, ACR and beta by epoch and sample."""
        count = 0 if self.samples is None else len(self.samples)
        return History(self.folder / layout.HISTORY, count)

    def trajectory(self, sample: str) -> dict[str, npt.NDArray[Any]]:
        """Return the epochs and every field of the history for one sample, by its id."""
        ids = [] if self.samples is None else self.samples.id.tolist()
        self._known(sample, ids, "a sample")
        rows = [ids.index(sample)]
        return {"epoch": self.history.epochs} | {name: self.history.read(name, rows=rows)[:, 0] for name in FIELDS}

    @property
    def checkpoints(self) -> list[str]:
        """Names of the checkpoints."""
        return self._names(layout.CHECKPOINTS, ".safetensors")

    @property
    def selected_checkpoint(self) -> str:
        """Name of the checkpoint that is the run's result: what `validation.select` says, or `last` without that."""
        if "best" in self.checkpoints and self.config is not None:
            return self.config.validation.select
        return "last"

    def checkpoint_name(self, name: str | None = None) -> str:
        """Return the name of a checkpoint that is there: `name`, or by default the selected one."""
        name = name or self.selected_checkpoint
        self._known(name, self.checkpoints, "a checkpoint")
        return name

    def checkpoint(
        self, name: str = "last", framework: Literal["numpy", "torch"] = "numpy", device: str = "cpu"
    ) -> Checkpoint:
        """Read a checkpoint (see `adawac.runs.load_checkpoint`)."""
        return load_checkpoint(layout.checkpoint_path(self.folder, name), framework, device)

    @property
    def evaluations(self) -> list[str]:
        """Names of the evaluations that left scores."""
        return self._names(layout.SCORES, ".csv")

    def scores(self, evaluation: str) -> list[Score]:
        """Return the scores of one evaluation; those without a data set get the run's."""
        self._known(evaluation, self.evaluations, "an evaluation")
        dataset = str(self.data.get("dataset") or "")
        scores = read_scores(layout.scores_path(self.folder, evaluation))
        return [score if score.dataset or not dataset else replace(score, dataset=dataset) for score in scores]

    @property
    def galleries(self) -> list[str]:
        """Names of the galleries."""
        return self._names(layout.GALLERY, ".npz")

    def gallery(self, name: str) -> Gallery:
        """Return one gallery."""
        self._known(name, self.galleries, "a gallery")
        return Gallery(layout.gallery_path(self.folder, name))

    @property
    def calibration(self) -> Calibration | None:
        """The temperature of its probabilities; None if nobody has calibrated it."""
        path = self.folder / layout.CALIBRATION
        return read_calibration(path) if path.is_file() else None

    @property
    def outdated(self) -> dict[str, str]:
        """Scores and galleries of weights that training has left behind since, and how far each is behind.

        They are named as their files are (`scores/test-strict-last.csv`). Where an epoch is not known, nothing is said.
        """
        behind = {f"{layout.SCORES}/{name}.csv": self._behind(self._first_score, name) for name in self.evaluations}
        behind |= {f"{layout.GALLERY}/{name}.npz": self._behind(self.gallery, name) for name in self.galleries}
        return {part: why for part, why in behind.items() if why}

    def _first_score(self, name: str) -> Score:
        return self.scores(name)[0]

    def _behind(self, read: Callable[[str], Score | Gallery], name: str) -> str:
        """Return how far the weights of a result are from their checkpoint's of now; nothing where that is unknown."""
        try:
            made = read(name)
            if made.epoch is None or made.checkpoint not in self.checkpoints:
                return ""
            state = read_state(layout.checkpoint_path(self.folder, made.checkpoint))
        except (AdawacError, OSError, IndexError):
            return ""
        now = state.get("epoch", made.epoch)
        if now == made.epoch:
            return ""
        return f"of epoch {made.epoch}, but checkpoint {made.checkpoint} is of epoch {now} by now"

    @property
    def missing(self) -> dict[str, str]:
        """Parts that this folder does not give, and why."""
        for part in ("config", "environments", "data", "samples"):
            getattr(self, part)
        missing = dict(self._faults)
        lists = {layout.CHECKPOINTS: self.checkpoints, layout.SCORES: self.evaluations, layout.GALLERY: self.galleries}
        missing |= {part: "there is none" for part, names in lists.items() if not names}
        for part, epochs in self._epochs.items():
            if not epochs:
                missing[part] = self._lost(self.folder / part)
        return missing

    @property
    def damaged(self) -> dict[str, str]:
        """Parts of which only the first epochs can be read, and how many these are.

        What a kill cut off is not among them: an epoch counts once all of it was written.
        """
        last = {part: epochs[-1] for part, epochs in self._epochs.items() if epochs}
        return {
            part: f"it is damaged after epoch {epoch} of {self._epochs_due}, and what follows is lost"
            for part, epoch in last.items()
            if epoch < self._epochs_due
        }

    def _lost(self, path: Path) -> str:
        """Return why a growing file gives no epoch."""
        if not self._epochs_due:
            return "no epoch is complete"
        return "it is damaged from its beginning on" if path.is_file() else "it is not there"

    @property
    def _epochs(self) -> dict[str, list[int]]:
        """The epochs that each of the growing files gives."""
        metrics = [row["epoch"] for row in self.metrics]
        return {layout.METRICS_FILE: metrics, layout.HISTORY: self.history.epochs.tolist()}

    @property
    def _epochs_due(self) -> int:
        """The epoch that both growing files must reach; 0 while they are being written."""
        return 0 if self.status == "running" else self.epoch

    def require(self, *parts: str) -> None:
        """Raise a `RunError` unless the parts, named as their files are, can be given."""
        if lacking := {part: why for part, why in {**self.missing, **self._foreign}.items() if part in parts}:
            listed = "; ".join(f"{part}: {why}" for part, why in lacking.items())
            advice = "Resume the run, or give another"
            if self.status == "running":
                advice = "Wait for the run to write it"
            elif any("damaged" in why or "cannot be read" in why for why in lacking.values()):
                advice = "Restore it from a copy, or give another run"
            raise RunError(f"Expected {', '.join(parts)} in {self.folder}, but got {listed}. {advice}.")
        self.warn_of_damage(*parts)

    def warn_of_damage(self, *parts: str) -> None:
        """Log which of the parts are cut off by damage."""
        for part, why in self.damaged.items():
            if part in parts:
                log.warning("%s: %s. Restore it from a copy, if there is one.", self.folder / part, why)

    @property
    def _foreign(self) -> dict[str, str]:
        """Why the configuration cannot be used where it is whole, but of another training loop."""
        loop = self.settings.get("loop")
        why = f"it is of another training loop ({loop}), whose network adawac cannot build"
        return {layout.CONFIG: why} if loop else {}

    @cached_property
    def _faults(self) -> dict[str, str]:
        return {}

    def _give(self, part: str, read: Callable[[Path], T], default: T) -> T:
        """Return a part, or the default where it cannot be read, and note why."""
        path = self.folder / part
        if not path.is_file():
            self._faults[part] = "it is not there"
            return default
        try:
            return read(path)
        except Exception as error:  # a damaged file may fail in any way
            self._faults[part] = f"it cannot be read: {str(error).removesuffix('.')}"
            return default

    def _names(self, folder: str, ending: str) -> list[str]:
        paths = (self.folder / folder).glob(f"*{ending}")
        return sorted(path.name.removesuffix(ending) for path in paths if not path.name.startswith("."))

    def _known(self, name: str, names: Collection[str], what: str) -> None:
        check_known(name, names, f"{what} of {self.folder}", RunError)


def _load_config(path: Path) -> TrainConfig:
    if not path.read_bytes().strip():  # no run has all defaults, and a power cut may empty a file
        raise ConfigError("it is empty")
    return load(TrainConfig, path, libraries=False)


def list_runs(root: Path | str) -> list[Run]:
    """Return the runs below a folder, in the order of their paths; of each only `run.json` is read."""
    root = Path(root)
    if not root.is_dir():
        raise MissingFileError(f"Expected a folder of runs, but {root} does not exist. Check the path.")
    runs = []
    for folder, below, files in os.walk(root, onerror=lambda error: log.warning("%s", error)):
        below.sort()
        if layout.INFO in files:
            below.clear()  # nothing below a run is one
            try:
                runs.append(Run(folder))
            except AdawacError as error:
                log.warning("%s", error)
    return runs
