"""The training engine, top to bottom: set up, fit, validate, keep the best and the last."""

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from adawac.algorithm import Criterion
from adawac.config import TrainConfig
from adawac.data.loading import Batch, Loader
from adawac.data.splits import resolve_split
from adawac.data.store import Samples, Store
from adawac.data.views import ViewConfig
from adawac.errors import ConfigError, NotBuiltError, RunError, near
from adawac.methods import build_method
from adawac.models import build
from adawac.runs import Run, RunWriter
from adawac.train.forward import Views
from adawac.train.interrupt import Interrupt
from adawac.train.optim import average, build_optimizer, learning_rate, set_learning_rate
from adawac.train.record import EpochRecord
from adawac.train.state import TrainingState
from adawac.train.summary import summarise
from adawac.train.validation import validate

__all__ = ["Watch", "fit"]

log = logging.getLogger(__name__)

_PRECISIONS: Mapping[str, Any] = {"fp32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


class Watch(Protocol):
    """Who wants to know how training goes."""

    def start(self, config: TrainConfig, run: RunWriter, steps: int) -> None:
        """Training starts, or goes on; `steps` make an epoch."""

    def step(self, epoch: int, step: int) -> None:
        """A step is done. Called once a step: be quick, and do not look at tensors."""

    def epoch(self, epoch: int, metrics: Mapping[str, Any]) -> None:
        """An epoch is done."""


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
        config = Run(out).config
        if config is None:
            raise RunError(f"Expected a configuration in {out} to go on with, but it cannot be read. Give one.")
    trainer = _set_up(config)
    writer = RunWriter(out, config, epochs=config.epochs, summary=config.summary, resume=resume)
    with writer as run, Interrupt() as interrupt:
        try:
            _fit(trainer, run, resume, watch or LogWatch(), interrupt)
        except torch.OutOfMemoryError as error:
            raise RunError(
                f"Expected a step to fit into the device's memory, but it did not ({str(error).splitlines()[0]}). "
                "Lower data.batch_size or data.image_size, set hardware.precision=bf16 or forward=encoder, or stream "
                "the samples with data.residence=stream."
            ) from error
    return Run(out)


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """Everything that a run consists of, ready to train."""

    config: TrainConfig
    fabric: Fabric
    store: Store
    samples: Samples
    validation: list[str]
    loader: Loader
    views: nn.Module
    network: nn.Module
    criterion: Criterion
    optimizer: Optimizer
    averaged: AveragedModel | None

    @property
    def state(self) -> TrainingState:
        """What checkpoints hold."""
        return TrainingState(
            network=self.network,
            criterion=self.criterion,
            optimizer=self.optimizer,
            ids=self.samples.ids,
            averaged=self.averaged,
            precision=self.fabric.strategy.precision,
        )

    @property
    def result(self) -> nn.Module:
        """The network that is evaluated: the averaged one where there is one."""
        return self.network if self.averaged is None else self.averaged.module


# -- set up -----------------------------------------------------------------------------------------------------------


def _set_up(config: TrainConfig) -> Trainer:
    fabric = _fabric(config)
    store = Store(_store_path(config))
    table = resolve_split(store.table, config.data.split, config.seed)
    samples = store.samples("train", config.data.subset, config.seed, table)
    validation = list(table.take(table.split == "val").cases)
    if config.validation.every and not validation:
        raise ConfigError(
            f"Expected cases to validate on, but the split {config.data.split!r} of {store.path} has none. Choose "
            "another split, or set validation.every=0 and validation.select=last."
        )
    criterion = build_method(
        config.method.name,
        len(samples),
        config.method.preset,
        **{"trim_ratio": float(samples.table.label_sparse.mean()), **config.method.options},
    ).to(fabric.device)
    network, tap = build(
        config.model.name,
        store.num_classes,
        len(store.channels),
        config.data.image_size,
        pretrained=config.model.pretrained,
        tap=config.model.tap,
        seed=config.seed,
        **config.model.options,
    )
    torch.manual_seed(config.seed)  # dropout goes on from here, whatever it took to build the network
    network = network.to(fabric.device)
    if fabric.device.type == "cuda":
        network = network.to(memory_format=torch.channels_last)  # what the tensor cores want
    averaged = average(network, config.optim.ema_decay) if config.optim.ema_decay else None
    views = Views(network, tap if criterion.uses_latents else None, config.forward)
    scaled = config.hardware.precision == "fp16"
    optimizer = build_optimizer(config.optim, network.parameters(), fabric.device, scaled)
    wrapped, optimizer = fabric.setup(views, optimizer)
    paired = criterion.uses_latents or criterion.objective.views == "both"
    loader = Loader(
        samples,
        config.data.image_size,
        batch_size=config.data.batch_size,
        views=_view_config(config.data.views),
        seed=config.seed,
        device=fabric.device,
        budget={"auto": 0.5, "device": float("inf"), "stream": 0.0}[config.data.residence],
        workers=config.data.workers,
        num_views=2 if paired else 1,
    )
    return Trainer(
        config=config,
        fabric=fabric,
        store=store,
        samples=samples,
        validation=validation,
        loader=loader,
        views=wrapped,
        network=network,
        criterion=criterion,
        optimizer=optimizer,
        averaged=averaged,
    )


def _fabric(config: TrainConfig) -> Fabric:
    hardware = config.hardware
    to_come = {
        "hardware.devices": hardware.devices * hardware.nodes > 1,
        "hardware.sync_batchnorm": hardware.sync_batchnorm,
        "hardware.compile": hardware.compile,
        "track": bool(config.track),
        "validation.metric": config.validation.metric != "dice",
    }
    asked = [name for name, given in to_come.items() if given]
    if asked:
        raise NotBuiltError(
            f"Expected settings that training knows, but {', '.join(asked)} is not built yet. Leave it at its default."
        )
    if hardware.accelerator == "cuda" and not torch.cuda.is_available():
        raise ConfigError("Expected a GPU for hardware.accelerator=cuda, but torch sees none. Choose cpu or auto.")
    on_gpu = hardware.accelerator != "cpu" and torch.cuda.is_available()
    if not on_gpu and hardware.precision in ("fp16", "tf32"):
        raise ConfigError(
            f"Expected a GPU for hardware.precision={hardware.precision}, but torch sees none. Choose fp32 or bf16."
        )
    torch.set_float32_matmul_precision("high" if hardware.precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = hardware.precision == "tf32"
    if hardware.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to be deterministic
    torch.use_deterministic_algorithms(hardware.deterministic)
    torch.backends.cudnn.benchmark = not hardware.deterministic
    return Fabric(accelerator="cuda" if on_gpu else "cpu", devices=1, precision=_PRECISIONS[hardware.precision])


def _view_config(options: Mapping[str, Any]) -> ViewConfig:
    known = {field.name for field in fields(ViewConfig)}
    for name in options:
        if name not in known:
            raise ConfigError(f"Expected an option of data.views, but got {name!r}. Near names: {near(name, known)}.")
    return ViewConfig(**options)


def _store_path(config: TrainConfig) -> Path:
    if config.data.store is None:
        raise ConfigError("Expected a prepared store to train on, but got none. Give the folder `adawac prepare` made.")
    return config.data.store


# -- fit --------------------------------------------------------------------------------------------------------------


def _fit(trainer: Trainer, run: RunWriter, resume: bool, watch: Watch, interrupt: Interrupt) -> None:
    config, loader = trainer.config, trainer.loader
    run.write_data(_describe_data(trainer))
    rows = run.write_samples(trainer.samples.table)
    record = EpochRecord(len(trainer.samples), trainer.fabric.device)
    done, step, best = _restore(trainer, run, record) if resume else (0, 0, None)
    watch.start(config, run, len(loader))
    for epoch in range(done + 1, config.epochs + 1):
        started = time.perf_counter()
        first_step = step
        try:
            for batch in loader.epoch(epoch, start=step):
                _step(trainer, record, batch, epoch, step)
                step += 1
                watch.step(epoch, step)
                if interrupt.asked:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            if not interrupt.forced:  # else it came within a step, which is half done
                _save(trainer, run, "last", epoch=epoch - 1, step=step, best=best, record=record)
            raise
        _check_finite(trainer, run, record, epoch)
        metrics = _log(trainer, run, record, rows, epoch, len(loader) - first_step, started)
        if config.validation.every and epoch % config.validation.every == 0:
            scores = validate(trainer.result, trainer.store, trainer.validation, config, trainer.fabric)
            run.log_metrics(epoch, scores)
            metrics |= scores
            if best is None or scores["val_dice"] > best:
                best = scores["val_dice"]
                _save(trainer, run, "best", epoch=epoch, step=0, best=best)
        record, step = EpochRecord(len(trainer.samples), trainer.fabric.device), 0
        if epoch % config.checkpoint_every == 0 or epoch == config.epochs:
            _save(trainer, run, "last", epoch=epoch, step=0, best=best)
        watch.epoch(epoch, metrics)
    run.close("finished", {} if best is None else {"val_dice": best})


def _step(trainer: Trainer, record: EpochRecord, batch: Batch, epoch: int, number: int) -> None:
    """Take one batch forward and backward, and every `accumulate` of them a step of the optimiser."""
    optim = trainer.config.optim
    last = len(trainer.loader) - 1
    together = min(optim.accumulate, last + 1 - number // optim.accumulate * optim.accumulate)
    logits, latents = trainer.views(*batch["images"])
    supervised = len(logits if isinstance(logits, torch.Tensor) else logits[0]) // len(batch["index"])
    out = trainer.criterion(
        logits, torch.cat(batch["labels"][:supervised]), latents, batch["index"], torch.cat(batch["views"])
    )
    trainer.fabric.backward(out.loss / together)
    record.add(number, batch["index"], out)
    if (number + 1) % optim.accumulate and number != last:
        return
    if optim.clip_norm is not None:
        trainer.fabric.clip_gradients(trainer.views, trainer.optimizer, max_norm=optim.clip_norm)
    set_learning_rate(trainer.optimizer, _rate(trainer, epoch, number))
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    if trainer.averaged is not None:
        trainer.averaged.update_parameters(trainer.network)


def _rate(trainer: Trainer, epoch: int, number: int) -> float:
    """Return the learning rate of a step of an epoch."""
    optim, epochs = trainer.config.optim, trainer.config.epochs
    an_epoch = -(-len(trainer.loader) // optim.accumulate)
    at = (epoch - 1) * an_epoch + number // optim.accumulate
    return learning_rate(optim, at, epochs * an_epoch, round(optim.warmup_epochs * an_epoch))


def _check_finite(trainer: Trainer, run: RunWriter, record: EpochRecord, epoch: int) -> None:
    bad = int(record.bad_step)
    if bad < 0:
        return
    rows = trainer.loader.rows(epoch, bad)
    ids = ", ".join(trainer.samples.ids[row] for row in rows[:24])
    saved = [path.stem for path in sorted((run.folder / "checkpoints").glob("*.safetensors"))]
    raise RunError(
        f"Expected finite losses, but that of epoch {epoch}, step {bad + 1}, is not. Its samples: {ids}. "
        "Look at them (`adawac diagnose`), lower optim.lr, or set optim.clip_norm. "
        f"The last good checkpoint: {', '.join(saved) or 'none'}."
    )


# -- what is kept -----------------------------------------------------------------------------------------------------


def _log(
    trainer: Trainer, run: RunWriter, record: EpochRecord, rows: Any, epoch: int, steps: int, started: float
) -> dict[str, Any]:
    """Write the epoch's history and numbers; the samples' values come off the device here, and nowhere else."""
    seen, fields = record.seen()
    seconds = time.perf_counter() - started
    run.log_history(epoch, rows[seen], **fields)
    metrics = {
        "loss": float(record.loss) / len(trainer.loader),
        "lr": _rate(trainer, epoch, len(trainer.loader) - 1),
        **summarise(fields, trainer.samples.table.label_sparse[seen]),
        "skipped": int(trainer.criterion.weights.skipped),
    }
    run.log_metrics(epoch, metrics)
    share = steps / len(trainer.loader)
    return {**metrics, "seconds": seconds, "slices_per_second": share * len(seen) / seconds}


def _save(
    trainer: Trainer,
    run: RunWriter,
    name: str,
    *,
    epoch: int,
    step: int,
    best: float | None,
    record: EpochRecord | None = None,
) -> None:
    """Write a checkpoint; within an epoch it holds what that epoch has recorded so far, too."""
    state = trainer.state
    tensors = state.tensors() | (record.tensors() if record is not None else {})
    run.save_checkpoint(name, tensors, {**state.plain(), "epoch": epoch, "step": step, "best": best})


def _restore(trainer: Trainer, run: RunWriter, record: EpochRecord) -> tuple[int, int, float | None]:
    """Go back to the last checkpoint; return the epochs and steps done, and the best score so far."""
    opened = Run(run.folder)
    if "last" not in opened.checkpoints:
        run.rewind(0)
        return 0, 0, None
    saved = opened.checkpoint("last", framework="torch")
    trainer.state.restore(saved.tensors, saved.state)
    if saved.state["step"]:
        if saved.state["ids"] != trainer.samples.ids:
            raise RunError(
                f"Expected the samples that {run.folder} was interrupted with, but they changed within epoch "
                f"{saved.state['epoch'] + 1}. Go on with the same data first; it may grow between epochs."
            )
        record.restore(saved.tensors)
    run.rewind(saved.state["epoch"])
    return saved.state["epoch"], saved.state["step"], saved.state["best"]


def _describe_data(trainer: Trainer) -> dict[str, Any]:
    """Return what a run must know of its data to be read, and to prepare new scans in the same way."""
    store = trainer.store
    return {
        "dataset": store.dataset,
        "class_names": list(store.class_names),
        "channels": list(store.channels),
        "label_values": store.info["label_values"],
        "preprocessing": store.preprocessing.to_dict(),
        "unit": store.preprocessing.unit,
        "num_samples": len(trainer.samples),
        "label_sparse": int(np.sum(trainer.samples.table.label_sparse)),
        "validation": trainer.validation,
        "network": {"faithful": getattr(trainer.network, "faithful", None)},
    }
