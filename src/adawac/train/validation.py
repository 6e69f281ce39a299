"""Validation while training: mean Dice over the classes and cases of the validation split."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from lightning_fabric import Fabric
from torch import nn

from adawac.config import TrainConfig
from adawac.data.store import Store
from adawac.inference import segment

__all__ = ["validate"]


def validate(
    network: nn.Module, store: Store, cases: Sequence[str], config: TrainConfig, fabric: Fabric
) -> dict[str, Any]:
    """Return the mean Dice of all classes, and that of each class, over `cases`."""
    from adawac.metrics import score_volume

    was_training = network.training
    network.eval()
    scores = []
    for case in cases:
        images, labels = store.stack(case)
        if labels is None:
            continue
        with fabric.autocast():
            found = segment(network, images, config.data.image_size, device=fabric.device)
        rows = score_volume(found, labels, store.num_classes, convention=config.validation.convention)
        scores.append([row.dice for row in rows])
    network.train(was_training)
    by_class = np.nanmean(np.array(scores, dtype=np.float64), axis=0)
    names = store.class_names[1:]
    return {
        "val_dice": float(np.nanmean(by_class)),
        **{f"val_dice_{name}": float(one) for name, one in zip(names, by_class, strict=True)},
    }
