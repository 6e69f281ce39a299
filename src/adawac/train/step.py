"""One training step: a function of tensors on the device, called eagerly or replayed as a CUDA graph."""

import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from adawac.algorithm import Step
from adawac.config import OptimConfig
from adawac.data.loader import Batch
from adawac.kernels.capture import Captured
from adawac.kernels.convolutions import CastWeights
from adawac.train.setup import Trainer

log = logging.getLogger(__name__)


class TrainStep:
    """Takes batches forward and backward, and after every `accumulate` of them a step of the optimiser.

    A recorder's hook on the criterion belongs to the step: make it before.
    """

    def __init__(self, trainer: Trainer):
        self.trainer, self.optim = trainer, trainer.config.optim
        self.steps = len(trainer.loader)
        self.eager = why_eager(trainer)
        self._captured = Captured(self._learn, self._forget) if self.eager is None else None
        hardware = trainer.config.hardware
        fused = self.eager is None and hardware.fused and not hardware.compile
        at_once = fused and hardware.precision == "bf16"
        self._weights = CastWeights(trainer.views, torch.bfloat16) if at_once else None

    @property
    def reason(self) -> str | None:
        """Why steps run eagerly; None where they are replayed, or still warm up for it."""
        return self.eager if self._captured is None else self._captured.reason

    def inputs(self, epoch: int, start: int) -> Iterator[Any]:
        """Yield what the steps of an epoch take: rows of samples that lie in the device's memory, else batches."""
        loader = self.trainer.loader
        return loader.epoch(epoch, start) if loader.resident is None else loader.indices(epoch, start)

    def __call__(self, rows: Tensor | Batch, epoch: int, number: int) -> None:
        """Take step `number` (from 0) of an epoch, with what `inputs` yields: rows of samples, or a batch."""
        if isinstance(rows, dict):
            rows = {name: value for name, value in rows.items() if name != "global_size"}  # type: ignore[assignment]
        set_learning_rate(self.trainer.optimizer, self.rate(epoch, number))
        if self._captured is None:
            self._learn(rows, epoch, number)
        else:
            device = self.trainer.fabric.device
            self._captured(rows, torch.full((), epoch, device=device))
        if self.trainer.averaged is not None and self._complete(number):
            self.trainer.averaged.update_parameters(self.trainer.network)

    def rate(self, epoch: int, number: int) -> float:
        """Return the learning rate of a step of an epoch."""
        an_epoch = -(-self.steps // self.optim.accumulate)
        at = (epoch - 1) * an_epoch + number // self.optim.accumulate
        total = self.trainer.config.epochs * an_epoch
        return learning_rate(self.optim, at, total, round(self.optim.warmup_epochs * an_epoch))

    def _learn(self, rows: Any, epoch: Tensor | int, number: int = 0) -> None:
        """Everything that happens on the device. `number` matters where a step takes several batches: not captured."""
        batch = self.batch(rows, epoch)
        out = self.criterion(batch, *self.forward(batch))
        size = self.optim.accumulate
        together = min(size, self.steps - number // size * size)  # batches of this one's step
        self.trainer.fabric.backward(out.loss / together)
        if self._complete(number):
            self.descend()

    def batch(self, rows: Any, epoch: Tensor | int) -> Mapping[str, Any]:
        """Return the batch: views of resident samples are made here, streamed ones come with them."""
        resident = self.trainer.loader.resident
        return rows if resident is None else {**resident(rows, epoch), "index": rows}

    def forward(self, batch: Mapping[str, Any]) -> Any:
        """Return logits and latents."""
        views = self.trainer.views
        if self._weights is not None:
            try:
                # Fabric knows the network by two names, of which the second would not be given back its own weights.
                return torch.func.functional_call(views, self._weights(), tuple(batch["images"]), tie_weights=False)
            except RuntimeError as error:  # of a network that switches autocast off in between
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                log.info("Weights are cast one by one: %s", str(error).splitlines()[0])
                self._forget()
                self._weights = None
        return views(*batch["images"])

    def criterion(self, batch: Mapping[str, Any], logits: Any, latents: Any) -> Step:
        """Return the loss with the samples' values; beta moves."""
        supervised = len(logits if isinstance(logits, Tensor) else logits[0]) // len(batch["index"])
        labels, views = torch.cat(batch["labels"][:supervised]), torch.cat(batch["views"])
        out: Step = self.trainer.criterion(logits, labels, latents, batch["index"], views)
        return out

    def descend(self) -> None:
        """Move the network's weights."""
        trainer = self.trainer
        if self.optim.clip_norm is not None:
            # A gradient that is not finite shows in the next loss, which names its step.
            trainer.fabric.clip_gradients(
                trainer.views, trainer.optimizer, max_norm=self.optim.clip_norm, error_if_nonfinite=False
            )
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()

    def _complete(self, number: int) -> bool:
        """Tell whether the optimiser steps after this batch."""
        return (number + 1) % self.optim.accumulate == 0 or number + 1 == self.steps

    def _forget(self) -> None:
        """Drop gradients, which a graph keeps for itself, and latents of a forward that was not finished."""
        self.trainer.optimizer.zero_grad()
        tap = self.trainer.views.module.tap
        if tap is not None:
            tap.clear()


def why_eager(trainer: Trainer) -> str | None:
    """Return why a step cannot be replayed as a CUDA graph; None where it can."""
    config = trainer.config
    reasons = {
        "the device is no GPU": trainer.fabric.device.type != "cuda",
        "hardware.capture=never": config.hardware.capture == "never",
        "fp16 scales the loss by what the host decides (bf16 needs no scaling)": config.hardware.precision == "fp16",
        "optim.accumulate adds up batches": config.optim.accumulate > 1,
        "several ranks exchange sizes through the host": trainer.fabric.world_size > 1,
        "method.options.validate looks at values": trainer.criterion.objective.validate,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def learning_rate(config: OptimConfig, step: int, steps: int, warmup: int) -> float:
    """Return the learning rate of the optimiser's step `step` (from 0): warm-up from 0, the schedule, then its end."""
    if step < warmup:
        return config.lr * (step + 1) / (warmup + 1)
    done = min(1.0, (step - warmup) / max(1, steps - warmup))  # `adawac bench` may go on after the last step
    factors: dict[str, float] = {
        "constant": 1.0,
        "poly": math.pow(1 - done, config.power),
        "cosine": (1 + math.cos(math.pi * done)) / 2,
    }
    return config.lr * factors[config.schedule]


def set_learning_rate(optimizer: Optimizer, value: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value
