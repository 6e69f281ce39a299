"""What is kept of a run: numbers, history and checkpoints, written by the first rank on behalf of all."""

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from adawac.algorithm import AdaWAC
from adawac.config import to_dict
from adawac.errors import AdawacError, RunError
from adawac.runs import Run, RunWriter, read_state
from adawac.runs.epoch_statistics import summarise, warn_of_rush
from adawac.runs.layout import checkpoint_path
from adawac.train.checkpointing import batches_of, check_batches
from adawac.train.record import EpochRecord
from adawac.train.setup import Trainer
from adawac.train.step import TrainStep
from adawac.train.trackers import Trackers

__all__ = ["Keeper"]

log = logging.getLogger(__name__)


class Keeper:
    """Keeps a run in its folder. Every rank calls it, the first one writes.

    Args:
        trainer: What is trained.
        folder: The run folder; all ranks read it when they resume.
        resume: Go on with what is there.
    """

    def __init__(self, trainer: Trainer, folder: Path, resume: bool):
        self.trainer, self.folder, self.fabric = trainer, folder, trainer.fabric
        self._metric = f"val_{trainer.config.validation.metric}"
        self._batches = batches_of(trainer.config, len(trainer.loader))
        self.writer: RunWriter | None = None
        problem: AdawacError | None = None
        if self.fabric.global_rank == 0:
            try:
                self._open(resume)
            except AdawacError as error:
                problem = error
        problem = self.fabric.broadcast(problem) if self.fabric.world_size > 1 else problem
        if problem is not None:
            raise problem

    def _open(self, resume: bool) -> None:
        config = self.trainer.config
        self.writer = RunWriter(self.folder, config, epochs=config.epochs, summary=config.summary, resume=resume)
        self.writer.write_data(_describe(self.trainer))
        self._rows = self.writer.write_samples(self.trainer.samples.table)
        self._trackers = Trackers(config.track, self.folder, to_dict(config), session=self.writer.session)

    def __enter__(self) -> "Keeper":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if self.writer is not None:
            self._trackers.close(finished=error is None)
            self.writer.__exit__(kind, error, trace)

    def restore(self, record: EpochRecord) -> tuple[int, int, float | None]:
        """Go back to the last checkpoint; return the epochs and steps done, and the score of the checkpoint `best`."""
        opened = Run(self.folder)
        done, step = self._restore(opened, record)
        scores = self._scores(opened, done)
        found, stale = self._best(opened, scores), "best" in opened.checkpoints
        self._together()  # others may still read what is cut off here
        if self.writer is not None:
            self.writer.rewind(done)
            old = dict.fromkeys(name for name in opened.summary if name.startswith("val_"))
            self.writer.note({**old, self._metric: found})
        if found is None and stale:
            found = self._replace_best(done, None if step else scores.get(done))
        return done, step, found

    def _scores(self, opened: Run, done: int) -> dict[int, float]:
        """Return what the epochs that are kept scored."""
        kept = (one for one in opened.metrics if one["epoch"] <= done)
        return {one["epoch"]: one[self._metric] for one in kept if one.get(self._metric) is not None}

    def _best(self, opened: Run, scores: dict[int, float]) -> float | None:
        """Return the score of `best`, or None unless that is of an epoch that is kept: after a kill it may be later."""
        if "best" not in opened.checkpoints:
            return None
        try:
            state = read_state(checkpoint_path(self.folder, "best"))
        except RunError:  # a damaged one is of no use to anybody
            return None
        score = scores.get(state["epoch"])
        return score if score == state["best"] else None

    def _replace_best(self, done: int, score: float | None) -> float | None:
        """Put the weights of the last epoch in the place of `best` if they were scored; those of others are gone."""
        if self.writer is not None:
            instead = "there is none until the next validation" if score is None else f"it is that of epoch {done} now"
            log.warning(
                "The checkpoint best of %s is not of its first %d epochs, from where it goes on, or not by %s: %s.",
                self.folder,
                done,
                self._metric,
                instead,
            )
            self.writer.remove_checkpoint("best")
        if score is not None:
            self.save("best", (done, 0), score)
        return score

    def _restore(self, opened: Run, record: EpochRecord) -> tuple[int, int]:
        if "last" not in opened.checkpoints:
            return 0, 0
        saved = opened.checkpoint("last", framework="torch")
        self.trainer.state.restore(saved.tensors, saved.state)
        if saved.state["step"]:
            if saved.state["ids"] != self.trainer.samples.ids:
                raise RunError(
                    f"Expected the samples that {self.folder} was interrupted with, but they changed within epoch "
                    f"{saved.state['epoch'] + 1}. Go on with the same data first; it may grow between epochs."
                )
            check_batches(self.folder, saved.state, self._batches)
            record.restore(saved.tensors)
        return saved.state["epoch"], saved.state["step"]

    def save(self, name: str, at: tuple[int, int], best: float | None, record: EpochRecord | None = None) -> None:
        """Write a checkpoint after `at` = (epochs, steps); within an epoch it holds what that epoch recorded, too."""
        state = self.trainer.state
        tensors = state.tensors() | (record.gathered(self.fabric).tensors() if record is not None else {})
        for rank, random in enumerate(self._random_states()[1:], 1):
            tensors |= {f"{key}.{rank}": value for key, value in random.items()}
        if self.writer is not None:
            plain = {**state.plain(), "epoch": at[0], "step": at[1], "best": best, "batches": self._batches}
            self.writer.save_checkpoint(name, tensors, plain)
            if name == "best":
                self.writer.note({self._metric: best})

    def _random_states(self) -> list[dict[str, torch.Tensor]]:
        """Return every rank's generators: what dropout draws is each rank's own."""
        if self.fabric.world_size == 1:
            return [{}]
        states: list[Any] = [None] * self.fabric.world_size
        dist.all_gather_object(states, self.trainer.state.random())
        return states

    def log(self, step: TrainStep, epoch: int, steps: int, started: float) -> dict[str, Any]:
        """Write the epoch's history and numbers; the samples' values come off the device here, and nowhere else."""
        record = step.record.gathered(self.fabric)
        seen, fields = record.seen()
        seconds = time.perf_counter() - started
        metrics = {
            "loss": float(record.loss) / step.steps,
            "lr": step.rate(epoch, step.steps - 1),
            **summarise(fields, self.trainer.samples.table.label_sparse[seen]),
            "skipped": int(self.trainer.criterion.weights.skipped),
        }
        if self.writer is not None:
            if epoch == self.trainer.config.method.hold_epochs + 1 and isinstance(self.trainer.criterion, AdaWAC):
                warn_of_rush(fields, epoch)
            self.writer.log_history(epoch, self._rows[seen], **fields)
            self.writer.log_metrics(epoch, metrics)
        rate = steps / step.steps * len(seen) / seconds
        return {**metrics, "seconds": seconds, "slices_per_second": rate}

    def score(self, epoch: int, scores: dict[str, Any]) -> None:
        """Write the numbers of a validation."""
        if self.writer is not None:
            self.writer.log_metrics(epoch, scores)

    def track(self, epoch: int, metrics: dict[str, Any]) -> None:
        """Tell the trackers all numbers of an epoch."""
        if self.writer is not None:
            self._trackers.log(epoch, metrics)

    def check_finite(self, record: EpochRecord, epoch: int) -> None:
        """Stop a run whose loss is not finite, naming the step, its samples and what is safe."""
        bad = int(record.bad_step)
        if bad < 0:
            return
        rows = self.trainer.loader.rows(epoch, bad)
        ids = ", ".join(self.trainer.samples.ids[row] for row in rows[:24])
        saved = [path.stem for path in sorted((self.folder / "checkpoints").glob("*.safetensors"))]
        raise RunError(
            f"Expected finite losses, but that of epoch {epoch}, step {bad + 1}, is not. Its samples: {ids}. "
            "Look at them (`adawac diagnose`), lower optim.lr, or set optim.clip_norm. "
            f"The last good checkpoint: {', '.join(saved) or 'none'}."
        )

    def finish(self, summary: dict[str, Any]) -> None:
        """Note that the run is complete, once every rank has come this far."""
        self._together()
        if self.writer is not None:
            self.writer.close("finished", summary)

    def _together(self) -> None:
        if self.fabric.world_size > 1:
            self.fabric.barrier()


def _describe(trainer: Trainer) -> dict[str, Any]:
    """Return what a run must know of its data to be read, and to prepare new scans in the same way."""
    store = trainer.store
    return {
        **store.task.to_dict(),
        "unit": store.preprocessing.unit,
        "num_samples": len(trainer.samples),
        "label_sparse": int(np.sum(trainer.samples.table.label_sparse)),
        "validation": trainer.validation,
        "network": {"faithful": getattr(trainer.network, "faithful", None)},
    }
