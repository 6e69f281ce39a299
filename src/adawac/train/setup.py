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
from adawac.data.cases import IGNORED, SampleTable
from adawac.data.loader import Loader, batch_limits
from adawac.data.phantom.phantom_files import phantom_store
from adawac.data.splits import resolve_split
from adawac.data.store import Samples, Store
from adawac.errors import ConfigError, DataError
from adawac.kernels import fuse
from adawac.methods import build_method
from adawac.models import build
from adawac.train.checkpointing import TrainingState
from adawac.train.devices import build_fabric, settled
from adawac.train.step import Views
from adawac.train.trackers import check_trackers


def build_optimizer(
    config: OptimConfig, parameters: Iterable[nn.Parameter], device: torch.device, scaled: bool = False
) -> Optimizer:
    """Return the optimiser, in its fused form on a GPU and on the CPU.

    Not where the loss is `scaled` (fp16): there torch's fused SGD begins with momentum that nobody has set if the first
    gradients overflow, and any fused optimiser unscales the gradients itself, too late to clip them.
    """
    fused = device.type in ("cuda", "cpu") and not scaled
    captured = fused and device.type == "cuda"
    # On the device, so that a captured step sees it change.
    lr = torch.tensor(config.lr, device=device) if captured else config.lr
    if config.optimizer == "adamw":
        return AdamW(
            parameters, lr=lr, betas=config.betas, weight_decay=config.weight_decay, fused=fused, capturable=captured
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
    no step after it corrects what it did. `accumulate` batches make a step.
    """
    steps, last = _end(num_samples, batch_size, world)
    alone = (steps - 1) % accumulate == 0  # in its step
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


def _labelled(samples: Samples) -> Samples:
    """Leave out the samples that nobody has annotated."""
    unlabelled = samples.table.unlabelled
    if not unlabelled.any():
        return samples
    if unlabelled.all():
        raise DataError(
            f"Expected labelled training samples in {samples.store.path}, but none of {len(samples)} has a label. "
            "Choose another split, or annotate some of them."
        )
    log.warning(
        "%d of %d training samples are unlabelled and are left out. To learn from their images, too, give their share "
        "in a batch, such as data.unlabelled_share=0.5.",
        unlabelled.sum(),
        len(samples),
    )
    return Samples(samples.store, samples.table.take(~unlabelled), samples.size)


def _check_classes(store: Store, training: SampleTable, table: SampleTable) -> None:
    """Refuse training samples without any foreground; warn of classes that only other cases of the split have."""
    trained, others = training.occurring, table.take((table.split != "train") & (table.split != "")).occurring
    if not trained[1:].any():
        raise DataError(
            f"Expected training samples with foreground, but all {len(training)} training samples of {store.path} are "
            "empty: there is nothing to learn. Choose another split or seed, or look at the labels (adawac diagnose)."
        )
    if missed := [name for name, missing in zip(store.class_names, others & ~trained, strict=True) if missing]:
        log.warning(
            "No training sample has %s, which cases to validate or test on have: the network cannot learn that. Choose "
            "another split or seed, or annotate more cases.",
            ", ".join(missed),
        )


def _method_options(config: TrainConfig, table: SampleTable) -> dict[str, Any]:
    """Return the method's options, with what the training samples decide where the configuration does not."""
    ours = {"trim_ratio": float(table.label_sparse[~table.unlabelled].mean()), "ramp_epochs": config.epochs / 4}
    options = {**ours, **config.method.options}
    if (table.unlabelled | table.partly_ignored).any():
        if options.get("ignore_index") not in (None, IGNORED):
            raise ConfigError(
                f"Expected method.options.ignore_index={IGNORED} for partly ignored or unlabelled samples, but got "
                f"{options['ignore_index']}. Leave it out, or ignore that class when you prepare the data."
            )
        options["ignore_index"] = IGNORED
    return options


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
    table = resolve_split(store.table, config.data.split, config.seed, with_unlabelled=config.data.unlabelled_share > 0)
    samples = store.samples("train", config.data.subset, config.seed, table)
    if not config.data.unlabelled_share:
        samples = _labelled(samples)
    _check_classes(store, samples.table, table)
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
        **_method_options(config, samples.table),
    ).to(fabric.device)
    if config.forward.startswith("encoder") and criterion.fixed.get("views") == "both":
        raise ConfigError(
            f"Expected forward=joint or separate, since {config.method.name} supervises both views, but got "
            f"forward={config.forward}, which takes the second one through the encoder alone."
        )
    if criterion.uses_teacher and config.optim.ema_decay is None:
        config = override(config, {"optim.ema_decay": 0.99})
    network, tap = build(
        config.model.name,
        store.num_classes,
        len(store.channels),
        config.data.image_size,
        pretrained=config.model.pretrained,
        tap=config.model.tap,
        seed=config.seed,
        colours=store.task.in_colour,
        **config.model.options,
    )
    torch.manual_seed(config.seed + fabric.global_rank)  # dropout goes on from here, however the network was built
    if config.hardware.sync_batchnorm and fabric.world_size > 1:
        network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
    network = network.to(fabric.device)
    network = network.to(memory_format=torch.channels_last)  # what tensor cores and oneDNN want
    if fabric.device.type == "cuda" and config.hardware.fused and not config.hardware.compile:
        fuse(network)
    averaged = average(network, config.optim.ema_decay) if config.optim.ema_decay else None
    teacher = averaged.module if averaged is not None and criterion.uses_teacher else None
    tapped = criterion.uses_latents and teacher is None
    views = Views(network, tap if tapped else None, config.forward, teacher)
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
        unlabelled_share=config.data.unlabelled_share,
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
