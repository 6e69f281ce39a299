"""`model.json`: what a model folder says about its weights. Plain data, checked field by field and by two digests."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import adawac
from adawac.config import Config, ModelConfig, from_dict, to_dict
from adawac.data.task import Task, find_faults
from adawac.errors import MissingFileError, RunError
from adawac.inference.trained_network import Resize, Trained
from adawac.runs.layout import read_json

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
