"""A trained network with all that it takes to use it: its input, its classes, and how scans are prepared for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from adawac.config import ModelConfig
from adawac.data.preprocessing import Preprocessing
from adawac.errors import RunError
from adawac.inference import Resize
from adawac.models import build

__all__ = ["Trained", "build_network", "load_tensors"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A network as a run left it.

    Attributes:
        network: The network, in evaluation mode, on the device that was asked for.
        model: How it is built.
        faithful: Whether it is a TransUNet that keeps the original's border; None for other networks.
        image_size: Size of its input.
        resize: How slices are resized to it, as in training.
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
    resize: Resize
    class_names: tuple[str, ...]
    channels: tuple[str, ...]
    label_values: tuple[tuple[int, ...], ...]
    preprocessing: Preprocessing
    dataset: str
    source: Path
    checkpoint: str


def build_network(
    model: ModelConfig,
    faithful: bool | None,
    image_size: tuple[int, int],
    class_names: Sequence[str],
    channels: Sequence[str],
) -> nn.Module:
    """Build a network without weights: its own are yet to come, by `load_tensors`."""
    # A configuration may name the border, too: what was trained counts.
    options = {**model.options, "faithful": faithful}
    with _Unfilled():
        network, _ = build(model.name, len(class_names), len(channels), image_size, tap=model.tap, **options)
    return network


class _Unfilled(TorchFunctionMode):
    """Leaves out the random numbers of weights that are replaced, which take most of a network's building.

    Only whole functions of `torch.nn.init` are left out: some that others write draw until they like the numbers.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: Any = (), options: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(function, "__module__", None) == nn.init.__name__:
            return arguments[0] if arguments else (options or {})["tensor"]
        return function(*arguments, **(options or {}))


def load_tensors(network: nn.Module, tensors: Mapping[str, torch.Tensor], where: str) -> None:
    """Load weights that must fit exactly."""
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise RunError(
            f"Expected weights of this network in {where}, but got: {error}. Use the version of adawac, and of the "
            "libraries that its environment.json names, that trained it."
        ) from error
