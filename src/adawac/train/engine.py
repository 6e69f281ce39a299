"""The training engine, top to bottom: set up, fit, validate, keep the best and the last."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from adawac.config import TrainConfig
from adawac.errors import ConfigError, RunError
from adawac.runs import Run, RunWriter
from adawac.train import ahead
from adawac.train.advice import warn_of_short_end
from adawac.train.fabric import Fabric, quiet
from adawac.train.interrupt import Interrupt
from adawac.train.keeping import Keeper
from adawac.train.ranks import agree, build_fabric, launch
from adawac.train.record import EpochRecord
from adawac.train.resuming import check_resumed
from adawac.train.setup import Trainer, set_up
from adawac.train.step import TrainStep
from adawac.train.validation import is_better, validate

__all__ = ["Watch", "fit"]

log = logging.getLogger(__name__)

# Steps between two moments at which several ranks agree whether somebody wants them to stop; an epoch ends with one.
ASK_EVERY = 10


class Watch(Protocol):
    """Who wants to know how training goes."""

    def start(self, config: TrainConfig, run: RunWriter, steps: int) -> None:
        """Training starts, or goes on; `steps` make an epoch."""

    def step(self, epoch: int, step: int) -> None:
        """A step is done. Called once a step: be quick, and do not look at tensors."""

    def epoch(self, epoch: int, metrics: Mapping[str, Any]) -> None:
        """An epoch is done."""


class Silence:
    """Tells nobody: one rank's display is enough."""

    def start(self, config: TrainConfig, run: RunWriter, steps: int) -> None:
        """Say nothing."""

    def step(self, epoch: int, step: int) -> None:
        """Say nothing."""

    def epoch(self, epoch: int, metrics: Mapping[str, Any]) -> None:
        """Say nothing."""


class LogWatch:
    """Writes a line to the log after every epoch."""

    def start(self, config: TrainConfig, run: RunWriter, steps: int) -> None:
        """Say what is trained."""
        log.info("%s with %s, %d steps an epoch, into %s", config.method.name, config.model.name, steps, run.folder)
        self.epochs = config.epochs

    def step(self, epoch: int, step: int) -> None:
        """Say nothing: a log is no progress bar."""

    def epoch(self, epoch: int, metrics: Mapping[str, Any]) -> None:
        """Say how it went."""
        numbers = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items() if isinstance(value, float))
        log.info("epoch %d/%d  %s", epoch, self.epochs, numbers)


def fit(config: TrainConfig | None, out: Path | str, *, resume: bool = False, watch: Watch | None = None) -> Run:
    """Train as a configuration says and return the finished run.

    Args:
        config: What to train; None goes on with the run's own configuration.
        out: The run folder: new or empty, or with `resume` that of an interrupted run.
        resume: Go on where the last checkpoint is. The result is that of a run that was never interrupted.
        watch: Is told about steps and epochs; a line in the log after each epoch by default.
    """
    if config is None:
        config = Run(out).own_config()
    if resume:
        check_resumed(config, Run(out))
    fabric = build_fabric(config)
    launch(fabric, _train, config, Path(out), resume, watch or LogWatch())
    return Run(out)


def _train(fabric: Fabric, config: TrainConfig, out: Path, resume: bool, watch: Watch) -> None:
    """Train on one rank."""
    with _explained(), quiet():
        trainer = set_up(config, fabric)
    with Keeper(trainer, out, resume) as keeper, Interrupt() as interrupt, _explained():
        _fit(trainer, keeper, resume, watch if keeper.writer else Silence(), interrupt)
    if interrupt.asked:  # after the last step: the run is done, but whoever started it was to stop
        raise KeyboardInterrupt


@contextmanager
def _explained() -> Iterator[None]:
    """Say what to do about errors of torch that settings can help."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RunError(
            f"Expected the training to fit into the device's memory, but it did not ({str(error).splitlines()[0]}). "
            "Lower data.batch_size or data.image_size, set hardware.precision=bf16 or forward=encoder, or stream "
            "the samples with data.residence=stream."
        ) from error
    except RuntimeError as error:
        if "not used in producing loss" not in str(error):  # what DDP says
            raise
        raise ConfigError(
            "Expected a network on several devices to use all of its parameters, but some have no part in the loss, as "
            "the last stages of an encoder that a decoder leaves out (encoder_depth below 5). Train on one device "
            "(--devices 1), or take a network without them."
        ) from error
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ConfigError(
            f"Expected more than 1 value per channel for BatchNorm, but the last batch has too few ({error}). "
            "Change data.batch_size so that the last batch has more samples, or enlarge data.image_size."
        ) from error


def _fit(trainer: Trainer, keeper: Keeper, resume: bool, watch: Watch, interrupt: Interrupt) -> None:
    config, metric = trainer.config, trainer.config.validation.metric
    record = EpochRecord(len(trainer.samples), trainer.fabric.device)
    done, first, best = keeper.restore(record) if resume else (0, 0, None)
    held = config.method.hold_epochs
    trainer.criterion.train(done >= held)  # else its weights stay as they are
    step = TrainStep(trainer, record)
    if keeper.writer is not None:
        if not resume:
            size, world = config.data.batch_size, trainer.fabric.world_size
            warn_of_short_end(len(trainer.samples), size, world, config.optim.accumulate)
        watch.start(config, keeper.writer, step.steps)
    ahead.wait()
    for epoch in range(done + 1, config.epochs + 1):
        started = time.perf_counter()
        if epoch == held + 1 and not trainer.criterion.training:
            trainer.criterion.train()
            step = TrainStep(trainer, record)  # the old one was captured with weights that stay
        _pass(step, epoch, first, watch, interrupt, partial(keeper.save, "last", best=best, record=record))
        keeper.check_finite(record, epoch)
        metrics = keeper.log(step, epoch, step.steps - first, started)
        if config.validation.every and epoch % config.validation.every == 0:
            scores = validate(trainer.result, trainer.store, trainer.validation, config, trainer.fabric)
            keeper.score(epoch, scores)
            metrics |= scores
            score = scores[f"val_{metric}"]
            if not math.isnan(score) and (best is None or is_better(score, best, metric)):
                best = score
                keeper.save("best", (epoch, 0), best)
        first = 0
        record.reset()
        if epoch % config.checkpoint_every == 0 or epoch == config.epochs:
            keeper.save("last", (epoch, 0), best)
        keeper.track(epoch, metrics)
        watch.epoch(epoch, metrics)
    keeper.finish({} if best is None else {f"val_{metric}": best})


def _pass(
    step: TrainStep,
    epoch: int,
    first: int,
    watch: Watch,
    interrupt: Interrupt,
    save: Callable[[tuple[int, int]], None],
) -> None:
    """Go through the samples once, from step `first` on; Ctrl-C saves between steps."""
    done, eager, fabric = first, step.reason, step.trainer.fabric
    try:
        for given in step.inputs(epoch, first):
            step(given, epoch, done)
            done += 1
            watch.step(epoch, done)
            # Ranks must stop after the same step; to ask at each one would make a device wait for the host.
            due = fabric.world_size == 1 or done % ASK_EVERY == 0 or done == step.steps
            if due and agree(fabric, interrupt.asked):
                raise KeyboardInterrupt
            if step.reason != eager:
                eager = step.reason
                log.warning("Steps run one kernel at a time, since they cannot be captured: %s.", eager)
    except KeyboardInterrupt:
        if not interrupt.forced:  # else it came within a step, which is half done
            save((epoch - 1, done))
        raise
