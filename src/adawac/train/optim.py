"""How the network descends: the optimiser, its learning rate over the steps, and averaged weights."""

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from adawac.config import OptimConfig

__all__ = ["average", "build_optimizer", "learning_rate", "set_learning_rate"]


def build_optimizer(
    config: OptimConfig, parameters: Iterable[nn.Parameter], device: torch.device, scaled: bool = False
) -> Optimizer:
    """Return the optimiser, in its fused form on a GPU.

    Args:
        config: What it is.
        parameters: What it moves.
        device: Where they are.
        scaled: Whether the loss is scaled (fp16): a fused optimiser unscales gradients itself, too late to clip them.
    """
    fused = device.type == "cuda" and not (scaled and config.clip_norm is not None)
    # On the device, so that a captured step sees it change.
    lr = torch.tensor(config.lr, device=device) if fused else config.lr
    if config.optimizer == "adamw":
        return AdamW(
            parameters, lr=lr, betas=config.betas, weight_decay=config.weight_decay, fused=fused, capturable=fused
        )
    return SGD(parameters, lr=lr, momentum=config.momentum, weight_decay=config.weight_decay, fused=fused)


def learning_rate(config: OptimConfig, step: int, steps: int, warmup: int) -> float:
    """Return the learning rate of a step: warm-up from 0, then the schedule over what is left.

    Args:
        config: Learning rate, schedule and power.
        step: The optimiser's step, from 0.
        steps: All steps of the run.
        warmup: Steps of the warm-up.
    """
    if step < warmup:
        return config.lr * (step + 1) / (warmup + 1)
    done = (step - warmup) / max(1, steps - warmup)
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


def average(network: nn.Module, decay: float) -> AveragedModel:
    """Return an exponential moving average of a network, its buffers included."""
    return AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
