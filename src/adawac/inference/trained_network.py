"""A trained network with everything needed to use it, what may be built because a file says so, and that file."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import adawac
from adawac.config import Config, ModelConfig, from_dict, to_dict
from adawac.data.task import HasTask, Task, find_faults
from adawac.errors import MissingFileError, RunError, lacks_memory
from adawac.models import MODELS, build
from adawac.models.networks import MONAI_DEFAULTS
from adawac.runs.layout import read_json

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


# -- `model.json`: what a model folder says about its weights; plain data, checked by field and by two digests ---------

CARD, WEIGHTS = "model.json", "weights.safetensors"
FORMAT_VERSION = 2
"""Raised when a reader of the older version could no longer make sense of a folder."""

_DIGEST = "description_sha256"


@dataclass(frozen=True, kw_only=True)
class ModelCard(Config):
    """A network without its weights: `Trained` as plain data, with the facts of its `Task`.

    Attributes:
        format_version: Version of this format.
        adawac: Version of adawac that wrote it.
        temperature: What logits are divided by for probabilities, if the run was calibrated.
        temperature_tta: Whether that was fitted to probabilities that are averaged over flipped images.
        input: What a channel's values are before `preprocessing`, in words.
        postprocessing: What is done with the network's output, in words.
    """

    format_version: int
    adawac: str
    model: ModelConfig
    faithful: bool | None
    image_size: tuple[int, int]
    resize: Resize
    channels: tuple[str, ...]
    class_names: tuple[str, ...]
    label_values: tuple[tuple[int, ...], ...]
    preprocessing: dict[str, Any]
    postprocessing: dict[str, Any]
    dataset: str
    checkpoint: str
    orientation: str | None = None
    modality: str | None = None
    input: str | None = None
    temperature: float | None = None
    temperature_tta: bool = False

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Yield what would fail later, or give wrong labels."""
        if min(self.image_size) < 1:
            yield "image_size", f"expected a height and a width, but got {self.image_size}. Export it again."
        if not self.channels or len(self.class_names) < 2:
            yield "class_names", "expected a channel and two classes or more. Export it again."
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            yield "temperature", f"expected a number above 0, but got {self.temperature}. Export it again."
        for name, fault in find_faults(vars(self)):
            yield name, f"{fault} Export it again."

    @property
    def task(self) -> Task:
        """What the network was trained on."""
        return Task.from_dict(vars(self))


def card_of(trained: Trained) -> dict[str, Any]:
    """Return a network's description as plain data."""
    return to_dict(
        ModelCard(
            format_version=FORMAT_VERSION,
            adawac=adawac.__version__,
            model=replace(trained.model, pretrained=None),  # may be a path of the user's; the weights replace it
            faithful=trained.faithful,
            image_size=trained.image_size,
            resize=trained.resize,
            **trained.task.to_dict(),
            input=_describe_input(trained.task),
            postprocessing={
                "classes": "argmax of the logits over the classes",
                "resize": "nearest neighbour, from the network's input size to the slice's own",
                **_describe_grid(trained.task),
            },
            checkpoint=trained.checkpoint,
            temperature=trained.temperature,
            temperature_tta=trained.temperature_tta,
        )
    )


def _describe_input(task: Task) -> str | None:
    """Return what the values of pictures are; those of scans are their files'."""
    if not task.of_pictures:
        return None
    what = "red, green and blue" if task.in_colour else "grey values"
    return f"{what} of a picture as shares of the largest value of its type, 0 to 1, with EXIF's orientation applied"


def _describe_grid(task: Task) -> dict[str, str]:
    """Return how label maps come to the grid of their scan or picture."""
    if task.preprocessing.tile:
        return {"tiles": "where they overlap, the mean of the probabilities, each falling towards the tile's border"}
    return {} if task.of_pictures else {"grid": "orientation and spacing undone, by nearest neighbour"}


def seal(card: Mapping[str, Any], weights: Path) -> dict[str, Any]:
    """Return a description with the digests of the weights and of itself."""
    sealed = {**card, "weights_sha256": file_digest(weights)}
    return {**sealed, _DIGEST: _digest(sealed)}


def read_card(folder: Path) -> tuple[ModelCard, str]:
    """Return a folder's description and the digest that its weights must have."""
    path = folder / CARD
    try:
        data = read_json(path, "Copy the folder again.")
    except FileNotFoundError:
        raise MissingFileError(f"Expected a model folder, but {folder} has no {CARD}. Export it again.") from None
    except OSError as error:
        raise RunError(f"Expected JSON in {path}, but it cannot be read ({error}). Copy the folder again.") from error
    version = data.get("format_version")
    if type(version) is not int or not 0 < version <= FORMAT_VERSION:
        raise RunError(
            f"Expected a model folder of format version {FORMAT_VERSION} or older, but {path} has {version!r}. "
            "Upgrade adawac: pip install --upgrade adawac."
        )
    written, weights = data.pop(_DIGEST, None), data.get("weights_sha256")
    if written != _digest(data) or not isinstance(weights, str):
        raise RunError(
            f"Expected {path} as it was exported, but it was changed: its content does not have the SHA-256 that it "
            "carries. Copy the folder again, or export it again."
        )
    del data["weights_sha256"]
    return from_dict(ModelCard, data, source=str(path)), weights


def file_digest(path: Path) -> str:
    """Return a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode("ascii")).hexdigest()
