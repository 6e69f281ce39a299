"""Networks by name, and pretrained weights: `net, tap_name = adawac.models.build("unet", num_classes=9)`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Where each public name lives; it is imported when it is first used.
_HOMES = {
    "LoadReport": "loading",
    "MODELS": "named",
    "ModelInfo": "listing",
    "TransUNet": "transunet",
    "WeightsError": "reading",
    "build": "building",
    "list_models": "listing",
    "load_weights": "loading",
    "to_transunet": "layouts",
}

__all__ = [
    "MODELS",
    "LoadReport",
    "ModelInfo",
    "TransUNet",
    "WeightsError",
    "build",
    "list_models",
    "load_weights",
    "to_transunet",
]

if TYPE_CHECKING:
    from adawac.models.building import build
    from adawac.models.layouts import to_transunet
    from adawac.models.listing import ModelInfo, list_models
    from adawac.models.loading import LoadReport, load_weights
    from adawac.models.named import MODELS
    from adawac.models.reading import WeightsError
    from adawac.models.transunet import TransUNet


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"adawac.models.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'adawac.models' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
