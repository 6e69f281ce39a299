"""Imports what every job needs, for the process that forks them: else each would spend seconds on it."""

from importlib import import_module

from adawac.models.base import quietly

_NEEDED = (
    "adawac.reproduction.worker",
    "adawac.train.engine",
    "adawac.evaluation.evaluating",
    "adawac.evaluation.predicting",
    "segmentation_models_pytorch",
    "safetensors.torch",
    "scipy.ndimage",
)

with quietly():
    for _name in _NEEDED:
        import_module(_name)
