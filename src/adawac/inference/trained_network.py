"""A trained network with everything needed to use it, and what may be built because somebody else's file says so."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from adawac.config import ModelConfig
from adawac.data.task import HasTask, Task
from adawac.errors import RunError, lacks_memory
from adawac.models import MODELS, build
from adawac.models.networks import MONAI_DEFAULTS

Resize = Literal["bilinear", "cubic", "released"]

_FETCHES = re.compile(r"pretrain|download|hub|weights|cfg", re.IGNORECASE)
_OPENS = re.compile(r"checkpoint|file|path|url|cache|dir", re.IGNORECASE)
_PLAIN = re.compile(r"[\w.+-]{0,60}")  # a name; neither a path nor an address nor module:attribute


def check_harmless(model: ModelConfig, where: str) -> None:
    """Raise a `RunError` if building this network could run code, fetch or open files that its description names."""
    if reason := why_to_ask(model):
        raise RunError(
            f"Expected a network that adawac knows, with plain options, but {where} names {reason}. Nothing of it was "
            "imported. If you trust those who made it, allow it: `trust_code=True`."
        )


def why_to_ask(model: ModelConfig) -> str | None:
    """Return what of a network's description might run code, fetch or open files; None if nothing does."""
    return _name_reason(model.name) or next(_option_reasons("options", model.options), None)


def _name_reason(name: str) -> str | None:
    family, colon, rest = name.partition(":")
    if not colon:
        foreign = any(point.name == name for point in entry_points(group=MODELS.group))
        return f"{name!r}, a network of another package" if foreign else None
    if family in ("smp", "timm") and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", rest):
        return None
    if family == "monai":  # it offers more; some of that downloads, or reads files, when it is built
        return None if rest in MONAI_DEFAULTS else f"{name!r}, which is not one of {', '.join(MONAI_DEFAULTS)}"
    return f"{name!r}, which would be imported and run"


def _option_reasons(name: str, value: Any) -> Iterator[str]:
    """Yield what speaks against an option, or against those within it."""
    if isinstance(value, Mapping):
        for inner, option in value.items():
            yield from _option_reasons(inner, option)
    elif isinstance(value, list | tuple):
        for option in value:
            yield from _option_reasons(name, option)
    elif value and _FETCHES.search(name):
        yield f"the option {name!r}, which may fetch or load something"
    elif isinstance(value, str) and (_OPENS.search(name) or not _PLAIN.fullmatch(value)):
        yield f"the option {name!r} with {value!r}, which may be a file or an address"


def resize_of(views: Mapping[str, Any]) -> Resize:
    """Return how slices are resized for a network that was trained with these options of `data.views`."""
    return "released" if views.get("mode") == "released" else views.get("interpolation", "bilinear")


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained(HasTask):
    """A network as a run left it.

    Attributes:
        network: The network, in evaluation mode, on the device that was asked for.
        model: How it is built.
        faithful: Whether it is a TransUNet that keeps the original's border; None for other networks.
        image_size: Size of its input.
        resize: How slices are resized to it, as in training; `released` is SciPy's spline.
        task: What it was trained on: data set, classes, channels, label values, preprocessing; also its attributes.
        source: The folder that it came from.
        checkpoint: Which weights of that folder.
        temperature: What its logits are divided by for probabilities, as its model folder says; None where that says
            nothing. (That of a run is in its calibration.)
        temperature_tta: Whether that was fitted to probabilities that are averaged over flipped images.
    """

    network: nn.Module
    model: ModelConfig
    faithful: bool | None
    image_size: tuple[int, int]
    resize: Resize
    task: Task
    source: Path
    checkpoint: str
    temperature: float | None = None
    temperature_tta: bool = False


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


def to_device(network: nn.Module, device: torch.device | str) -> nn.Module:
    """Return the network, on a device whose memory it fits into."""
    try:
        return network.to(device)
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        raise RunError(
            f"Expected the network to fit into the memory of {device}, but it did not ({str(error).splitlines()[0]}). "
            "Free some, or use another device, such as `device='cpu'`."
        ) from error
