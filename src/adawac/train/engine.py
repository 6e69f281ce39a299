"""The training engine, top to bottom: set up, fit, validate, keep the best and the last."""

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

import numpy as np
import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from torch import nn

from adawac.config import TrainConfig
from adawac.data.store import Store
from adawac.errors import ConfigError, RunError
from adawac.inference.predictor import Predictor
from adawac.inference.trained_network import resize_of
from adawac.runs import Run, RunWriter
from adawac.train import ahead
from adawac.train.checkpointing import check_resumed
from adawac.train.devices import agree, build_fabric, launch, quiet
from adawac.train.keeping import Keeper
from adawac.train.record import EpochRecord
from adawac.train.setup import Trainer, set_up, warn_of_short_end
from adawac.train.step import TrainStep


class Interrupt:
    """Notes the first signal, for whoever looks at `asked` at a good moment; the same one again raises at once."""

    def __init__(self) -> None:
        self.forced = False
        self._seen: set[int] = set()
        self._former: dict[signal.Signals, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether somebody wants the training to stop."""
        return bool(self._seen)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # signals reach no other
            self._former[signal.SIGINT] = signal.signal(signal.SIGINT, self._note)
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # else it is somebody's already
                self._former[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number in self._seen:
            self.forced = True
            raise KeyboardInterrupt
        self._seen.add(number)


def validate(
    network: nn.Module, store: Store, cases: Sequence[str], config: TrainConfig, fabric: Fabric
) -> dict[str, Any]:
    """Return the mean of all classes, and that of each class, over `cases`: of Dice, and of HD95 where it decides.

    The network computes in the training's precision, not in `evaluate`'s: these scores select, they are not a result.
    """
    from adawac.metrics import score_volume

    metrics = ("dice",) if config.validation.metric == "dice" else ("dice", config.validation.metric)
    was_training = network.training
    predictor = Predictor(
        [network],
        config.data.image_size,
        resize_of(config.data.views),
        name="this training",
        device=fabric.device,
        autocast=fabric.autocast,
        batch_size=config.data.batch_size,
    )
    fault: RunError | None = None
    scores: dict[str, list[list[float]]] = {metric: [] for metric in metrics}
    _share_buffers(network, fabric)
    for case in cases[fabric.global_rank :: fabric.world_size]:
        images, labels = store.stack(case)
        if labels is None:
            continue
        try:
            (prediction,) = predictor.predict([images])
        except RunError as error:
            fault = error
            break
        classes = score_volume(prediction, labels, store.num_classes, convention=config.validation.convention)
        for metric in metrics:
            scores[metric].append([getattr(row, metric) for row in classes])
    network.train(was_training)
    if agree(fabric, fault is not None):  # else the other ranks would wait for this one's scores
        raise fault or RunError("Expected to validate on all ranks, but another rank failed. See its message.")
    numbers: dict[str, Any] = {}
    for metric, rows in _everyones(scores, fabric).items():
        by_class = np.nanmean(np.array(rows, dtype=np.float64), axis=0)
        numbers[f"val_{metric}"] = float(np.nanmean(by_class))
        named = zip(store.class_names[1:], by_class, strict=True)
        numbers |= {f"val_{metric}_{name}": float(mean) for name, mean in named}
    return numbers


def is_better(score: float, best: float, metric: str) -> bool:
    """Tell whether a score beats the best so far: Dice rises, distances fall."""
    return score > best if metric == "dice" else score < best


def _share_buffers(network: nn.Module, fabric: Fabric) -> None:
    """Give all ranks the first one's running statistics, which checkpoints hold."""
    if fabric.world_size > 1:
        for buffer in network.buffers():
            dist.broadcast(buffer, src=0)


def _everyones(scores: dict[str, list[list[float]]], fabric: Fabric) -> dict[str, list[list[float]]]:
    """Return the scores of all ranks' cases."""
    if fabric.world_size == 1:
        return scores
    parts: list[Any] = [None] * fabric.world_size
    dist.all_gather_object(parts, scores)
    return {metric: [row for part in parts for row in part[metric]] for metric in scores}


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
