"""What can be built, with sizes and taps."""

import fnmatch
import importlib.util
import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from adawac.models.base import Built
from adawac.models.building import build_untrained
from adawac.models.families import MONAI_DEFAULTS, smp_architectures, smp_encoders, smp_names
from adawac.models.named import MODELS

__all__ = ["ModelInfo", "list_models"]


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """One network that can be built.

    Attributes:
        name: for `build`.
        parameters: their number, for one channel and nine classes at 224×224; None where it cannot be built here.
        tap: the submodule that gives its latent.
        note: what it is, or what is missing.
    """

    name: str
    parameters: int | None
    tap: str
    note: str

    @property
    def millions(self) -> float | None:
        """The number of parameters in millions."""
        return None if self.parameters is None else round(self.parameters / 1e6, 2)


def list_models(pattern: str | None = None) -> list[ModelInfo]:
    """Return what can be built, without allocating it.

    Args:
        pattern: names to list, as in a shell: `"smp:Unet/*"` gives all of smp's encoders, `"monai:*"` MONAI's networks.
            By default all named networks, each of smp's architectures with its default encoder, and MONAI's networks.
    """
    names = list(_names()) if pattern is None else [one for one in _all_names() if fnmatch.fnmatchcase(one, pattern)]
    return [_describe(name) for name in names]


def _names() -> Iterator[str]:
    yield from MODELS
    yield from smp_names()
    yield from (f"monai:{name}" for name in MONAI_DEFAULTS)


def _all_names() -> Iterator[str]:
    yield from _names()
    known = set(_names())
    for architecture in smp_architectures():
        combined = (f"smp:{architecture}/{encoder}" for encoder in smp_encoders())
        yield from (name for name in combined if name not in known)


def _describe(name: str) -> ModelInfo:
    if name.startswith("monai:") and importlib.util.find_spec("monai") is None:
        return ModelInfo(name=name, parameters=None, tap="", note="needs pip install 'adawac[monai]'")
    try:
        built = _on_meta(name)
    except Exception as error:  # smp does not combine every encoder with every architecture
        return ModelInfo(name=name, parameters=None, tap="", note=str(error).splitlines()[0])
    count = sum(parameter.numel() for parameter in built.network.parameters())
    return ModelInfo(name=name, parameters=count, tap=built.tap, note=_note(name))


def _on_meta(name: str) -> Built:
    """Build a network without memory for its parameters, where its constructor can do that."""
    try:
        with torch.device("meta"):
            return build_untrained(name, num_classes=9, in_channels=1, image_size=224)
    except Exception:  # some read numbers from a tensor; a real fault will come up again
        return build_untrained(name, num_classes=9, in_channels=1, image_size=224)


def _note(name: str) -> str:
    if name in MODELS:
        return (inspect.getdoc(MODELS[name]) or "").partition("\n")[0]
    return "MONAI" if name.startswith("monai:") else "segmentation_models_pytorch"
