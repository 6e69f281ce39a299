"""Networks by name, and pretrained weights: `net, tap_name = adawac.models.build("unet", num_classes=9)`."""

from typing import TYPE_CHECKING

from adawac.lazy import lazy_names

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
    from adawac.models.networks import MODELS, ModelInfo, build, list_models
    from adawac.models.pretrained import LoadReport, load_weights, to_transunet
    from adawac.models.transunet import TransUNet
    from adawac.models.weight_files import WeightsError

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "networks": "MODELS ModelInfo build list_models",
        "pretrained": "LoadReport load_weights to_transunet",
        "transunet": "TransUNet",
        "weight_files": "WeightsError",
    },
)
