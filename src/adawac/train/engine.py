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
from adawac.runs.recorder import RunRecorder
from adawac.train.checkpointing import Checkpoints, batches_of, check_resumed
from adawac.train.devices import agree, build_fabric, launch, quiet
from adawac.train.setup import Trainer, set_up, warn_of_short_end
from adawac.train.step import TrainStep
from adawac.train.trackers import Trackers

log = logging.getLogger(__name__)

# After so many steps, and after each epoch, several ranks agree whether to stop.
ASK_EVERY = 10


class Interrupt:
    """Notes the first signal in `asked`, to be looked at between steps; the same signal again raises at once."""

    def __init__(self) -> None:
        self.forced = False
        self._seen: set[int] = set()
        self._former: dict[signal.Signals, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether training is to stop."""
        return bool(self._seen)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # signals reach no other
            self._former[signal.SIGINT] = signal.signal(signal.SIGINT, self._note)
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # else another program handles it
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


class TrainingProgress(Protocol):
    """What `adawac.fit(watch=…)` tells how training goes. A class that derives from it may leave methods out."""

    def start(self, config: TrainConfig, run: RunWriter, steps: int) -> None:
        """Training starts, or goes on; `steps` make an epoch."""
        return

    def step(self, epoch: int, step: int) -> None:
        """A step is done. Called once a step: be quick, and do not look at tensors."""
        return

    def epoch(self, epoch: int, metrics: Mapping[str, Any]) -> None:
        """An epoch is done."""
        return


class _Silence(TrainingProgress):
    """Shows nothing: the first rank does."""


class LogLines(TrainingProgress):
    """Writes a line to the log after every epoch."""

    def start(self, config: TrainConfig, run: RunWriter, steps: int) -> None:
        """Say what is trained."""
        log.info("%s with %s, %d steps an epoch, into %s", config.method.name, config.model.name, steps, run.folder)
        self.epochs = config.epochs

    def epoch(self, epoch: int, metrics: Mapping[str, Any]) -> None:
        """Say how it went."""
        numbers = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items() if isinstance(value, float))
        log.info("epoch %d/%d  %s", epoch, self.epochs, numbers)


def fit(
    config: TrainConfig | None, out: Path | str, *, resume: bool = False, watch: TrainingProgress | None = None
) -> Run:
    """Train as a configuration says and return the finished run.

    Args:
        config: What to train; None goes on with the run's own configuration.
        out: The run folder: new or empty, or with `resume` that of an interrupted run.
        resume: Go on where the last checkpoint is. The result is that of a run that was never interrupted.
        watch: Called after steps and epochs; by default a line goes to the log after each epoch.
    """
    if config is None:
        config = Run(out).own_config()
    if resume:
        check_resumed(config, Run(out))
    fabric = build_fabric(config)
    launch(fabric, _train, config, Path(out), resume, watch or LogLines())
    return Run(out)


def _train(fabric: Fabric, config: TrainConfig, out: Path, resume: bool, progress: TrainingProgress) -> None:
    """Train on one rank."""
    with _explained(), quiet():
        trainer = set_up(config, fabric)
    config = trainer.config
    recorder = RunRecorder(
        out,
        trainer.criterion,
        samples=trainer.samples.table,
        epochs=config.epochs,
        hold_epochs=config.method.hold_epochs,
        resume=0 if resume else None,
        summary=config.summary,
        config=config,
        data=_describe(trainer),
    )
    with recorder, Trackers(recorder.writer, config) as trackers, Interrupt() as interrupt, _explained():
        _fit(trainer, recorder, trackers, out, resume, progress if recorder.writer else _Silence(), interrupt)
    if interrupt.asked:  # after the last step: the run is done, but its caller was to stop, too
        raise KeyboardInterrupt


@contextmanager
def _explained() -> Iterator[None]:
    """Explain errors of torch that a setting can fix."""
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


def _fit(
    trainer: Trainer,
    recorder: RunRecorder,
    trackers: Trackers,
    folder: Path,
    resume: bool,
    progress: TrainingProgress,
    interrupt: Interrupt,
) -> None:
    config, fabric, metric = trainer.config, trainer.fabric, f"val_{trainer.config.validation.metric}"
    batches = batches_of(config, len(trainer.loader))
    checkpoints = Checkpoints(trainer.state, recorder, fabric, folder=folder, metric=metric, batches=batches)
    done, first, best = checkpoints.restore() if resume else (0, 0, None)
    step = TrainStep(trainer)
    if recorder.writer is not None:
        if not resume:
            warn_of_short_end(len(trainer.samples), config.data.batch_size, fabric.world_size, config.optim.accumulate)
        progress.start(config, recorder.writer, step.steps)
    for epoch in range(done + 1, config.epochs + 1):
        started = time.perf_counter()
        if epoch == config.method.hold_epochs + 1 > done + 1:
            step = TrainStep(trainer)  # the old one was captured with weights that stay
        _pass(step, epoch, first, progress, interrupt, partial(checkpoints.save, "last", best=best, within=True))
        _check_finite(trainer, recorder, folder, epoch)
        seconds = time.perf_counter() - started
        rate = {"lr": step.rate(epoch, step.steps - 1)}
        metrics = recorder.end_epoch(epoch, rate) | rate | {"seconds": seconds}
        metrics["slices_per_second"] = (step.steps - first) / step.steps * len(trainer.samples) / seconds
        if config.validation.every and epoch % config.validation.every == 0:
            scores = validate(trainer.result, trainer.store, trainer.validation, config, fabric)
            if recorder.writer is not None:
                recorder.writer.log_metrics(epoch, scores)
            metrics |= scores
            score = scores[metric]
            if not math.isnan(score) and (best is None or is_better(score, best, config.validation.metric)):
                best = score
                checkpoints.save("best", (epoch, 0), best)
        first = 0
        if epoch % config.checkpoint_every == 0 or epoch == config.epochs:
            checkpoints.save("last", (epoch, 0), best)
        trackers.log(epoch, metrics)
        progress.epoch(epoch, metrics)
    fabric.barrier()  # the run is finished once every rank has come this far
    recorder.close("finished")


def _check_finite(trainer: Trainer, recorder: RunRecorder, folder: Path, epoch: int) -> None:
    """Stop a run whose loss is not finite, naming the step, its samples and what is safe."""
    bad = int(recorder.record.bad_step)
    if bad < 0:
        return
    ids = ", ".join(trainer.samples.ids[row] for row in trainer.loader.rows(epoch, bad)[:24])
    raise RunError(
        f"Expected finite losses, but that of epoch {epoch}, step {bad + 1}, is not. Its samples: {ids}. "
        "Look at them (`adawac diagnose`), lower optim.lr, or set optim.clip_norm. "
        f"The last good checkpoint: {', '.join(Run(folder).checkpoints) or 'none'}."
    )


def _pass(
    step: TrainStep,
    epoch: int,
    first: int,
    progress: TrainingProgress,
    interrupt: Interrupt,
    save: Callable[[tuple[int, int]], None],
) -> None:
    """Go through the samples once, from step `first` on; Ctrl-C saves between steps."""
    done, eager, fabric = first, step.reason, step.trainer.fabric
    try:
        for batch in step.inputs(epoch, first):
            step(batch, epoch, done)
            done += 1
            progress.step(epoch, done)
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
