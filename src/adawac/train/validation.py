"""Validation while training: mean Dice or HD95 over the classes and cases of the validation split."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import nn

from adawac.config import TrainConfig
from adawac.data.store import Store
from adawac.inference import resize_of, segment
from adawac.train.fabric import Fabric

__all__ = ["is_better", "validate"]


def validate(
    network: nn.Module, store: Store, cases: Sequence[str], config: TrainConfig, fabric: Fabric
) -> dict[str, Any]:
    """Return the mean of all classes, and that of each class, over `cases`: of Dice, and of HD95 where it decides."""
    from adawac.metrics import score_volume

    metrics = ("dice",) if config.validation.metric == "dice" else ("dice", config.validation.metric)
    was_training = network.training
    network.eval()
    resize = resize_of(config.data.views)
    scores: dict[str, list[list[float]]] = {metric: [] for metric in metrics}
    _share_buffers(network, fabric)
    for case in cases[fabric.global_rank :: fabric.world_size]:
        images, labels = store.stack(case)
        if labels is None:
            continue
        with fabric.autocast():
            found = segment(network, images, config.data.image_size, device=fabric.device, resize=resize)
        classes = score_volume(found, labels, store.num_classes, convention=config.validation.convention)
        for metric in metrics:
            scores[metric].append([getattr(one, metric) for one in classes])
    network.train(was_training)
    numbers: dict[str, Any] = {}
    for metric, rows in _everyones(scores, fabric).items():
        by_class = np.nanmean(np.array(rows, dtype=np.float64), axis=0)
        numbers[f"val_{metric}"] = float(np.nanmean(by_class))
        named = zip(store.class_names[1:], by_class, strict=True)
        numbers |= {f"val_{metric}_{name}": float(one) for name, one in named}
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
