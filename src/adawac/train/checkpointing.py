"""Checkpoints: all that a run needs to resume as if nothing had happened, and the checks before it does."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.precision.precision import Precision
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from adawac.algorithm import Criterion
from adawac.config import TrainConfig
from adawac.data.cases import carry_over
from adawac.data.loader import unlabelled_in_batch
from adawac.errors import ConfigError, RunError
from adawac.runs import FIELDS, Run, read_state
from adawac.runs.checkpoints import Checkpoint, check_intact
from adawac.runs.layout import checkpoint_path
from adawac.runs.recorder import RunRecorder
from adawac.train.devices import gather

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """What training changes.

    Attributes:
        ids: The sample that each row of beta belongs to.
        averaged: The averaged weights, if any.
        precision: What scales the loss of fp16 training, if anything does.
        rank: Whose random generators these are.
    """

    network: nn.Module
    criterion: Criterion
    optimizer: Optimizer
    ids: list[str]
    averaged: AveragedModel | None = None
    precision: Precision | None = None
    rank: int = 0

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        tensors |= {f"criterion.{name}": value for name, value in self.criterion.state_dict().items()}
        if self.averaged is not None:
            tensors |= {f"averaged.{name}": value for name, value in self.averaged.state_dict().items()}
        for number, values in self.optimizer.state_dict()["state"].items():
            kept = {name: value for name, value in values.items() if value is not None}
            tensors |= {f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in kept.items()}
        for name, parameter in self.network.named_parameters():
            if parameter.grad is not None:  # batches that were added up, but not yet stepped with
                tensors[f"gradient.{name}"] = parameter.grad
        return tensors | self.random()

    def random(self) -> dict[str, Tensor]:
        """Return the state of this rank's random generators."""
        states = {"random.cpu": torch.get_rng_state()}
        if torch.cuda.is_initialized():
            states["random.cuda"] = torch.cuda.get_rng_state()
        return states

    def plain(self) -> dict[str, Any]:
        """Return what is not a tensor."""
        return {"ids": self.ids, "precision": {} if self.precision is None else self.precision.state_dict()}

    def restore(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Restore what `tensors` and `plain` returned. Beta goes by sample id; new samples start at one half."""
        averaged = _below(tensors, "averaged")
        if self.averaged is not None and not averaged:
            raise RunError(
                "Expected averaged weights in the checkpoint, since optim.ema_decay is set, but it has none. Resume "
                "with optim.ema_decay=0, as the run began."
            )
        _check_same_network(self.network, _below(tensors, "network"))
        self.network.load_state_dict(_below(tensors, "network"))
        if self.averaged is not None:
            self.averaged.load_state_dict(averaged)
        weights = _below(tensors, "criterion")
        log_odds = carry_over(weights["weights.log_odds"].cpu().numpy(), plain["ids"], self.ids, new=0.0)
        self.criterion.load_state_dict(weights | {"weights.log_odds": torch.from_numpy(log_odds)})
        self._restore_optimizer(_below(tensors, "optimizer"))
        gradients = _below(tensors, "gradient")
        for name, parameter in self.network.named_parameters():
            parameter.grad = _like(gradients[name], parameter) if name in gradients else None
        if self.precision is not None and plain["precision"]:
            self.precision.load_state_dict(dict(plain["precision"]))
        rank = f".{self.rank}" if self.rank else ""  # generators of a new rank stay as they are
        if f"random.cpu{rank}" in tensors:
            torch.set_rng_state(tensors[f"random.cpu{rank}"].cpu())
        if f"random.cuda{rank}" in tensors and torch.cuda.is_initialized():
            torch.cuda.set_rng_state(tensors[f"random.cuda{rank}"].cpu())

    @torch.no_grad()
    def _restore_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            number, _, key = name.partition(".")
            state.setdefault(int(number), {})[key] = _like(value, parameters[int(number)])
        kept = "exp_avg" if "betas" in self.optimizer.defaults else "momentum_buffer"  # AdamW's, or SGD's
        if state and not any(kept in values for values in state.values()):
            raise RunError(
                f"Expected a checkpoint of the optimiser that is asked for, which keeps {kept}, but it has "
                f"{', '.join(state[min(state)])}. Resume with the optim.optimizer that the run began with."
            )
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})


def _check_same_network(network: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Refuse the weights of another network, or of the same one with other options, classes or channels."""
    here, there = ({name: tuple(value.shape) for name, value in of.items()} for of in (network.state_dict(), saved))
    differing = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    if differing:
        name = differing[0]
        was, now = (shapes.get(name, "absent") for shapes in (there, here))
        raise RunError(
            f"Expected the network of the checkpoint, but {len(differing)} of its tensors differ in the one that is "
            f"asked for, such as {name}: {was} in the checkpoint, {now} here. Resume with the run's own network and "
            "data (model.options, classes and channels decide the shapes)."
        )


def _like(value: Tensor, parameter: nn.Parameter) -> Tensor:
    """Return a value in its parameter's memory layout: files do not keep it, fused optimisers require it."""
    return torch.empty_like(parameter).copy_(value) if value.shape == parameter.shape else value


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


class Checkpoints:
    """The checkpoints of a run, `last` and `best`. Every rank calls it, the first one writes.

    Args:
        state, recorder, fabric: What training changes, what records the run, and the ranks.
        folder: The run folder; all ranks read it when they resume.
        metric: The metric that `best` goes by, as the run logs it: `val_dice`.
        batches: What decides which samples a step gets (see `batches_of`).
    """

    def __init__(
        self,
        state: TrainingState,
        recorder: RunRecorder,
        fabric: Fabric,
        *,
        folder: Path,
        metric: str,
        batches: dict[str, int],
    ):
        self.state, self.recorder, self.fabric = state, recorder, fabric
        self.folder, self.metric, self.batches = folder, metric, batches

    def save(self, name: str, at: tuple[int, int], best: float | None, within: bool = False) -> None:
        """Write a checkpoint after `at` = (epochs, steps); `within` an epoch it holds what that epoch recorded, too."""
        tensors = self.state.tensors()
        if within:
            record = self.recorder.record
            tensors |= {f"record.{field}": values for field, values in zip(FIELDS, record.gathered(), strict=True)}
            tensors["record.loss"] = record.loss
        for rank, random in enumerate(gather(self.fabric, self.state.random())[1:], 1):  # what dropout draws
            tensors |= {f"{key}.{rank}": value for key, value in random.items()}
        if self.recorder.writer is not None:
            plain = {**self.state.plain(), "epoch": at[0], "step": at[1], "best": best, "batches": self.batches}
            self.recorder.writer.save_checkpoint(name, tensors, plain)
            if name == "best":
                self.recorder.writer.note({self.metric: best})

    def restore(self) -> tuple[int, int, float | None]:
        """Go back to the last checkpoint; return the epochs and steps done, and the score of the checkpoint `best`."""
        run = Run(self.folder)
        done, step = self._restore_last(run)
        kept = (metrics for metrics in run.metrics if metrics["epoch"] <= done)
        scores = {metrics["epoch"]: metrics[self.metric] for metrics in kept if metrics.get(self.metric) is not None}
        best, stale = self._best(run, scores), "best" in run.checkpoints
        self.fabric.barrier()  # others may still read what is cut off here
        self.recorder.rewind(done)
        if self.recorder.writer is not None:
            old = dict.fromkeys(name for name in run.summary if name.startswith("val_"))
            self.recorder.writer.note({**old, self.metric: best})
        if best is None and stale:
            best = self._replace_best(done, None if step else scores.get(done))
        return done, step, best

    def _restore_last(self, run: Run) -> tuple[int, int]:
        if "last" not in run.checkpoints:
            return 0, 0
        saved = self._last_intact(run)
        self.state.restore(saved.tensors, saved.state)
        epoch, step = saved.state["epoch"], saved.state["step"]
        if step:
            if saved.state["ids"] != self.state.ids:
                raise RunError(
                    f"Expected the samples that {self.folder} was interrupted with, but they changed within epoch "
                    f"{epoch + 1}. Go on with the same data first; it may grow between epochs."
                )
            check_batches(self.folder, saved.state, self.batches)
            values = torch.stack([saved.tensors[f"record.{field}"] for field in FIELDS])
            self.recorder.record.restore(values, saved.tensors["record.loss"], step)
        return epoch, step

    def _last_intact(self, run: Run) -> Checkpoint:
        """Return the last checkpoint, or where that is damaged the best one: the epochs since then are done again."""
        try:
            return run.checkpoint("last", framework="torch")
        except RunError as error:
            if "best" not in run.checkpoints:
                raise
            saved = run.checkpoint("best", framework="torch")
            log.warning("%s Going on from best, which is of epoch %d.", error, saved.state["epoch"])
            return saved

    def _best(self, run: Run, scores: Mapping[int, float]) -> float | None:
        """Return the score of `best`, or None unless that is of an epoch that is kept: after a kill it may be later."""
        if "best" not in run.checkpoints:
            return None
        try:
            state = read_state(checkpoint_path(self.folder, "best"))
        except RunError:  # a damaged one is of no use to anybody
            return None
        score = scores.get(state["epoch"])
        return score if score == state["best"] else None

    def _replace_best(self, done: int, score: float | None) -> float | None:
        """Put the weights of the last epoch in the place of `best` if they were scored; those of others are gone."""
        if self.recorder.writer is not None:
            instead = "there is none until the next validation" if score is None else f"it is that of epoch {done} now"
            log.warning(
                "The checkpoint best of %s is not of its first %d epochs, from where it goes on, or not by %s: %s.",
                self.folder,
                done,
                self.metric,
                instead,
            )
            self.recorder.writer.remove_checkpoint("best")
        if score is not None:
            self.save("best", (done, 0), score)
        return score


def check_resumed(config: TrainConfig, run: Run) -> None:
    """Refuse to resume where the run's description would become wrong, or its record would be lost."""
    if "loop" in run.settings:
        raise RunError(
            f"Expected a run of `adawac train` to go on with, but {run.folder} is of another training loop "
            f"({run.settings['loop']}). Go on with it there, or start a new run."
        )
    _check_last(run)
    # The configuration in the folder may have been edited since; what a list of runs shows has not.
    began = (config if run.config is None else run.config).summary | run.summary
    for what in ("method", "preset", "model"):
        if began[what] != (asked := config.summary[what]):
            raise ConfigError(
                f"Expected to go on with the {what} that {run.folder} began with, {began[what]}, but got {asked}. Its "
                f"scores would count as those of {asked}: start a new run."
            )
    done = max(run.epoch, _begun(run))
    if config.epochs < done:
        raise ConfigError(
            f"Expected at least the {done} epochs that {run.folder} has done or begun, but got epochs={config.epochs}. "
            "Give more, or start a new run."
        )


def _check_last(run: Run) -> None:
    """Refuse a run whose last checkpoint was saved but is gone: it would begin again."""
    if "last" in run.checkpoints or not ("last" in run.info.get("saved", ()) or run.status == "finished"):
        return
    path = checkpoint_path(run.folder, "last")
    best = checkpoint_path(run.folder, "best")
    instead = f" copy {best.name} there to go on from the epoch that validated best," if best.is_file() else ""
    raise RunError(
        f"Expected a checkpoint to go on from, but {path} is gone, and the run would begin again and lose the record "
        f"of its {run.epoch} epochs. Restore it from a copy,{instead} or start a new run in another folder."
    )


def _begun(run: Run) -> int:
    """Return the epoch that the last checkpoint is of, or within; 0 where there is none that is intact."""
    path = checkpoint_path(run.folder, "last")
    try:
        check_intact(path)
        state = read_state(path)
    except (RunError, FileNotFoundError):
        return 0
    return int(state["epoch"]) + bool(state["step"])


def batches_of(config: TrainConfig, steps: int) -> dict[str, int]:
    """Return what decides which samples a step within an epoch gets."""
    share = config.data.unlabelled_share
    return {
        "data.batch_size": config.data.batch_size,
        "seed": config.seed,
        "optim.accumulate": config.optim.accumulate,
        "steps": steps,
        **({"unlabelled": extra} if (extra := unlabelled_in_batch(config.data.batch_size, share)) else {}),
    }


def check_batches(folder: Path, state: dict[str, Any], now: dict[str, int]) -> None:
    """Refuse to finish an epoch with different batches: samples would be skipped or repeated."""
    then = state.get("batches", now)
    if changed := [name for name in now if then.get(name) != now[name]]:
        was, asked = (", ".join(f"{name}={batches.get(name)}" for name in changed) for batches in (then, now))
        raise RunError(
            f"Expected the batches that {folder} was interrupted with, {was}, but got {asked} within epoch "
            f"{state['epoch'] + 1}. Go on with the same ones until an epoch is over; they may change between epochs."
        )
