"""Imports what every job needs, once for all jobs of a process, and for the process that forks others."""

from importlib import import_module

from adawac.lazy import quietly

_NEEDED = (
    "adawac.reproduction.worker",
    "adawac.train.engine",
    "adawac.evaluation.evaluator",
    "adawac.inference.predictor",
    "segmentation_models_pytorch",
    "safetensors.torch",
    "scipy.ndimage",
)

with quietly():
    for _name in _NEEDED:
        import_module(_name)
