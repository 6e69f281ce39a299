"""The training engine, top to bottom: set up, fit, validate, keep the best and the last."""

import logging
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import numpy as np
import torch.distributed as dist
from lightning_fabric import Fabric
from torch import nn

from adawac.config import TrainConfig
from adawac.data.cases import leave_out_ignored
from adawac.data.store import Store
from adawac.errors import ConfigError, RunError, lacks_memory
from adawac.inference.predictor import Predictor
from adawac.inference.trained_network import resize_of
from adawac.runs import Run, RunWriter
from adawac.runs.recorder import RunRecorder
from adawac.train.checkpointing import Checkpoints, batches_of, check_resumed
from adawac.train.devices import agree, build_fabric, gather, handling, launch, quiet
from adawac.train.setup import Trainer, set_up, warn_of_short_end
from adawac.train.step import TrainStep
from adawac.train.trackers import Trackers

log = logging.getLogger(__name__)

# After so many steps, and after each epoch, several ranks agree whether to stop.
ASK_EVERY = 10


class Interrupt:
    """Notes the first signal in `asked`, to be looked at between steps; the same signal again raises at once."""

    def __init__(self) -> None:
        self.asked = self.forced = False
        self._seen: set[int] = set()

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if number in self._seen:
            self.forced = True
            raise KeyboardInterrupt
        self._seen.add(number)
        self.asked = True


def validate(
    network: nn.Module, store: Store, cases: Sequence[str], config: TrainConfig, fabric: Fabric
) -> dict[str, Any]:
    """Return the mean of all classes, and that of each class, over `cases`: of Dice, and of HD95 where it decides.

    The network computes in the training's precision, not in `evaluate`'s: these scores select, they are not a result.
    """
    from adawac.metrics import ClassScore, score_volume

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
    scores: list[list[ClassScore]] = []
    if fabric.world_size > 1:
        for buffer in network.buffers():
            dist.broadcast(buffer, src=0)  # all ranks get the first one's running statistics, which checkpoints hold
    for case in cases[fabric.global_rank :: fabric.world_size]:
        images, labels = store.stack(case)
        if labels is None or not any(map(sum, store.case_info(case).pixels or ())):
            continue
        try:
            (prediction,) = predictor.predict([images])
        except RunError as error:
            fault = error
            break
        pair = leave_out_ignored(prediction, labels, store.num_classes)
        scores.append(score_volume(*pair, store.num_classes, convention=config.validation.convention))
    network.train(was_training)
    if agree(fabric, fault is not None):  # else the other ranks would wait for this one's scores
        raise fault or RunError("Expected to validate on all ranks, but another rank failed. See its message.")
    numbers: dict[str, Any] = {}
    volumes = [volume for of_rank in gather(fabric, scores) for volume in of_rank]
    for metric in metrics:
        values = [[getattr(score, metric) for score in volume] for volume in volumes]
        by_class = np.nanmean(np.array(values, dtype=np.float64), axis=0)
        numbers[f"val_{metric}"] = float(np.nanmean(by_class))
        named = zip(store.class_names[1:], by_class, strict=True)
        numbers |= {f"val_{metric}_{name}": float(mean) for name, mean in named}
    return numbers


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


LINE_EVERY = 60.0  # seconds


class StepLines:
    """Says within an epoch, about once a minute, how far a run is and how long it will take."""

    def __init__(self, epochs: int, steps: int):
        self.epochs, self.steps = epochs, steps
        self._begun: tuple[float, int] | None = None
        self._said = time.monotonic()

    def line(self, epoch: int, step: int) -> str | None:
        """Return the line that is due after a step; mostly there is none."""
        now, done = time.monotonic(), (epoch - 1) * self.steps + step
        if self._begun is None:  # the first step takes longer than the others
            self._begun = (now, done)
        if now < self._said + LINE_EVERY or done == self._begun[1]:
            return None
        self._said = now
        since, before = self._begun
        minutes = round((self.epochs * self.steps - done) * (now - since) / (done - before) / 60)
        left = f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{max(1, minutes)} min"
        return f"epoch {epoch}/{self.epochs}  step {step}/{self.steps}  about {left} left"


class LogLines(TrainingProgress):
    """Writes a line to the log after every epoch, and one a minute within a long one."""

    def start(self, config: TrainConfig, run: RunWriter, steps: int) -> None:
        """Say what is trained."""
        log.info("%s with %s, %d steps an epoch, into %s", config.method.name, config.model.name, steps, run.folder)
        self.epochs, self._lines = config.epochs, StepLines(config.epochs, steps)

    def step(self, epoch: int, step: int) -> None:
        """Say now and then how far it is."""
        if line := self._lines.line(epoch, step):
            log.info(line)

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
        watch: Called after steps and epochs; by default a line goes to the log after each epoch, and once a minute.

    Returns:
        The run, opened.

    Examples:
        >>> import adawac
        >>> config = adawac.config.load(adawac.config.TrainConfig, "small.yaml")
        >>> run = adawac.fit(config, "runs/small")
        >>> run.status, run.epoch
        ('finished', 2)
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
    interrupt = Interrupt()
    handlers = {signal.SIGINT: interrupt.note, signal.SIGTERM: interrupt.note}
    with _explained(begun=True), recorder, Trackers(recorder.writer, config) as trackers, handling(handlers):
        _fit(trainer, recorder, trackers, out, resume, progress if recorder.writer else _Silence(), interrupt)
    if interrupt.asked:  # after the last step: the run is done, but its caller was to stop, too
        raise KeyboardInterrupt


@contextmanager
def _explained(begun: bool = False) -> Iterator[None]:
    """Explain errors of torch that a setting can fix; a run that has `begun` can be resumed."""
    resume = " Then go on with --resume." if begun else ""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = (str(error).splitlines() or [type(error).__name__])[0]
        if lacks_memory(error):
            raise RunError(
                f"Expected the training to fit into the device's memory, but it did not ({text}). Lower "
                "data.batch_size (optim.accumulate=2 makes up for half of it) or data.image_size, set "
                "hardware.precision=bf16 or forward=encoder, or stream the samples with "
                f"data.residence=stream.{resume}"
            ) from error
        if text.startswith("DataLoader worker"):
            raise RunError(
                f"Expected the processes that read samples to stay alive, but one was lost ({text}). If memory ran "
                f"out, lower data.workers (0 reads in this process) or data.batch_size.{resume}"
            ) from error
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
        **({"unlabelled": int(np.sum(hidden))} if (hidden := trainer.samples.table.unlabelled).any() else {}),
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
            warn_of_short_end(trainer.loader.drawn, config.data.batch_size, fabric.world_size, config.optim.accumulate)
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
        metrics["slices_per_second"] = (step.steps - first) / step.steps * trainer.loader.drawn / seconds
        if config.validation.every and epoch % config.validation.every == 0:
            scores = validate(trainer.result, trainer.store, trainer.validation, config, fabric)
            if recorder.writer is not None:
                recorder.writer.log_metrics(epoch, scores)
            metrics |= scores
            score, rises = scores[metric], config.validation.metric == "dice"  # distances fall
            if not math.isnan(score) and (best is None or (score > best if rises else score < best)):
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
