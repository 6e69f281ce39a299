"""A trained network with all that it takes to use it: its input, its classes, and how scans are prepared for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adawac.config import ModelConfig
from adawac.data.preprocessing import Preprocessing
from adawac.errors import RunError, near
from adawac.models import build
from adawac.runs import Run

__all__ = ["Trained", "load_trained"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A network as a run left it.

    Attributes:
        network: The network, in evaluation mode, on the device that was asked for.
        model: How it is built.
        faithful: Whether it is a TransUNet that keeps the original's border; None for other networks.
        image_size: Size of its input.
        class_names: Its classes, background first.
        channels: Names of the input's channels.
        label_values: The values that stand for each class in the data set's own files.
        preprocessing: How a scan becomes its input.
        dataset: What it was trained on.
        source: The folder that it came from.
        checkpoint: Which weights of that folder.
    """

    network: nn.Module
    model: ModelConfig
    faithful: bool | None
    image_size: tuple[int, int]
    class_names: tuple[str, ...]
    channels: tuple[str, ...]
    label_values: tuple[tuple[int, ...], ...]
    preprocessing: Preprocessing
    dataset: str
    source: Path
    checkpoint: str


def load_trained(
    folder: Path | str | Run, checkpoint: str | None = None, device: torch.device | str = "cpu"
) -> Trained:
    """Return the network of a run.

    Args:
        folder: The run.
        checkpoint: `last`, `best` or another checkpoint of the run; by default what its configuration selects.
        device: Where the network goes.
    """
    run = folder if isinstance(folder, Run) else Run(folder)
    run.require("config.yaml", "data.json", "checkpoints")
    config, data = run.config, run.data
    assert config is not None  # it was required
    name = checkpoint or (config.validation.select if config.validation.select in run.checkpoints else "last")
    if name not in run.checkpoints:
        raise RunError(
            f"Expected a checkpoint of {run.folder}, but got {name!r}. Near names: {near(name, run.checkpoints)}."
        )
    faithful = data.get("network", {}).get("faithful")
    network = _build(config.model, faithful, config.data.image_size, data)
    _load(network, run.checkpoint(name, "torch").tensors, f"{run.folder}, checkpoint {name}")
    return Trained(
        network=network.to(device).eval(),
        model=config.model,
        faithful=faithful,
        image_size=config.data.image_size,
        class_names=tuple(data["class_names"]),
        channels=tuple(data["channels"]),
        label_values=tuple(tuple(values) for values in data["label_values"]),
        preprocessing=Preprocessing.from_dict(data["preprocessing"]),
        dataset=data["dataset"],
        source=run.folder,
        checkpoint=name,
    )


def _build(
    model: ModelConfig, faithful: bool | None, image_size: tuple[int, int], data: Mapping[str, Any]
) -> nn.Module:
    """Build the network without pretrained weights: its own replace them."""
    network, _ = build(
        model.name,
        len(data["class_names"]),
        len(data["channels"]),
        image_size,
        tap=model.tap,
        faithful=faithful,
        **model.options,
    )
    return network


def _load(network: nn.Module, tensors: Mapping[str, torch.Tensor], where: str) -> None:
    """Load the averaged weights where there are some, else those that training moved."""
    for prefix in ("averaged.module.", "network."):
        found = {name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)}
        if found:
            break
    try:
        network.load_state_dict(found)
    except RuntimeError as error:
        raise RunError(
            f"Expected weights of this network in {where}, but got: {error}. Use the version of adawac, and of the "
            "libraries that its environment.json names, that trained it."
        ) from error
