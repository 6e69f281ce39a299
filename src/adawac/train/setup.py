"""From a configuration to everything that a run consists of, ready to train."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from adawac.algorithm import Criterion
from adawac.config import OptimConfig, TrainConfig, ViewConfig, override
from adawac.data.loader import Loader, batch_limits
from adawac.data.phantom.phantom_files import phantom_store
from adawac.data.splits import resolve_split
from adawac.data.store import Samples, Store
from adawac.errors import ConfigError
from adawac.kernels import fuse
from adawac.methods import build_method
from adawac.models import build
from adawac.train.checkpointing import TrainingState
from adawac.train.devices import build_fabric, settled
from adawac.train.forward import Views
from adawac.train.trackers import check_trackers


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


def average(network: nn.Module, decay: float) -> AveragedModel:
    """Return an exponential moving average of a network, its buffers included."""
    return AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)


log = logging.getLogger(__name__)

_ENOUGH = 8  # samples, for any size of batch
_SHARE = 3  # a batch of at least one in three of the others' samples is not much noisier than they are


def warn_of_short_end(num_samples: int, batch_size: int, world: int = 1, accumulate: int = 1) -> None:
    """Warn if the step that every epoch ends with, and so the run, has very few samples next to the others.

    The gradient of a few slices, which may all be empty, has the same learning rate as that of a whole batch, and
    no step after it corrects what it did.

    Args:
        num_samples: Samples of an epoch.
        batch_size: Samples in a global batch.
        world: Ranks that share each batch.
        accumulate: Batches that make a step; the last one counts for itself only where it is alone in its step.
    """
    steps, last = _end(num_samples, batch_size, world)
    alone = (steps - 1) % accumulate == 0
    if alone and last < _ENOUGH and last * _SHARE < batch_size:
        better = _nearest(num_samples, batch_size, world)
        log.warning(
            "The last of the %d batches of an epoch has %d of %d samples, and the run ends on it: a step on so few "
            "may throw the network off. With data.batch_size=%d the last batch has %d.",
            steps,
            last,
            batch_size,
            better,
            _end(num_samples, better, world)[1],
        )


def _end(num_samples: int, batch_size: int, world: int) -> tuple[int, int]:
    """Return the number of batches of an epoch and the size of the last."""
    limits = batch_limits(num_samples, batch_size, world)
    return len(limits) - 1, limits[-1] - limits[-2]


def _nearest(num_samples: int, batch_size: int, world: int) -> int:
    """Return the nearest batch size whose last batch is at least half as large; of two the smaller, which fits.

    There is one: a batch of one sample for each rank leaves none over.
    """
    sizes = sorted(range(world, min(2 * batch_size, num_samples) + 1), key=lambda size: abs(size - batch_size))
    return next(size for size in sizes if 2 * _end(num_samples, size, world)[1] >= size)


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """Everything that a run consists of, ready to train."""

    config: TrainConfig
    fabric: Fabric
    store: Store
    samples: Samples
    validation: list[str]
    loader: Loader
    views: Any
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
            rank=self.fabric.global_rank,
        )

    @property
    def result(self) -> nn.Module:
        """The network that is evaluated: the averaged one where there is one."""
        return self.network if self.averaged is None else self.averaged.module


def set_up(config: TrainConfig, fabric: Fabric | None = None) -> Trainer:
    """Read the data and build network, method and optimiser, each where it will run."""
    config = settled(config)
    fabric = build_fabric(config) if fabric is None else fabric
    check_trackers(config.track)
    store = Store(config.data.store or phantom_store())
    if config.data.store is None:
        config = override(config, {"data.store": store.path})  # the run folder names it
    table = resolve_split(store.table, config.data.split, config.seed)
    samples = store.samples("train", config.data.subset, config.seed, table)
    validation = list(table.take(table.split == "val").cases)
    if config.validation.every and not validation:
        raise ConfigError(
            f"Expected cases to validate on, but the split {config.data.split!r} of {store.path} has none. Choose "
            "another split, or set validation.every=0 and validation.select=last."
        )
    if config.data.batch_size > len(samples):
        raise ConfigError(
            f"Expected a batch of at most the {len(samples)} training samples, but data.batch_size is "
            f"{config.data.batch_size}. Lower it, or train on more (data.subset is {config.data.subset!r})."
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
    torch.manual_seed(config.seed + fabric.global_rank)  # dropout goes on from here, however the network was built
    if config.hardware.sync_batchnorm and fabric.world_size > 1:
        network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
    network = network.to(fabric.device)
    if fabric.device.type == "cuda":
        network = network.to(memory_format=torch.channels_last)  # what the tensor cores want
        if config.hardware.fused and not config.hardware.compile:
            fuse(network)
    averaged = average(network, config.optim.ema_decay) if config.optim.ema_decay else None
    views = Views(network, tap if criterion.uses_latents else None, config.forward)
    if config.hardware.compile:
        network.compile()  # after the tap: a compiled network does not see a hook that comes later
    scaled = config.hardware.precision == "fp16"
    optimizer = build_optimizer(config.optim, network.parameters(), fabric.device, scaled)
    wrapped, optimizer = fabric.setup(views, optimizer)
    paired = criterion.uses_latents or criterion.objective.views == "both"
    loader = Loader(
        samples,
        config.data.image_size,
        batch_size=config.data.batch_size,
        views=ViewConfig(**config.data.views),
        seed=config.seed,
        device=fabric.device,
        budget={"auto": 0.5, "device": float("inf"), "stream": 0.0}[config.data.residence],
        workers=config.data.workers,
        rank=fabric.global_rank,
        world=fabric.world_size,
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
