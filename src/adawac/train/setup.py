"""From a configuration to everything that a run consists of, ready to train."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from adawac.algorithm import Criterion
from adawac.config import TrainConfig
from adawac.data.loading import Loader
from adawac.data.splits import resolve_split
from adawac.data.store import Samples, Store
from adawac.data.views import ViewConfig
from adawac.errors import ConfigError, near
from adawac.methods import build_method
from adawac.models import build
from adawac.models.fused import fuse
from adawac.train.fabric import Fabric
from adawac.train.forward import Views
from adawac.train.optim import average, build_optimizer
from adawac.train.ranks import build_fabric, settled
from adawac.train.state import TrainingState
from adawac.train.tracking import check_trackers

__all__ = ["Trainer", "set_up"]


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
    store = Store(_store_path(config))
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
        views=_view_config(config.data.views),
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
