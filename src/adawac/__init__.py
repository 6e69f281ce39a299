"""AdaWAC: adaptively weighted augmentation consistency for medical image segmentation (Dong, Xie & Ward, ICML 2023)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name lives; it is imported when it is first used.
_HOMES = {
    "AdaWAC": "algorithm",
    "Criterion": "algorithm",
    "EncoderTap": "features",
    "METHODS": "methods",
    "Objective": "objective",
    "PRESETS": "objective",
    "SampleWeights": "algorithm",
    "Step": "algorithm",
    "Weighting": "algorithm",
    "build_method": "methods",
    "evaluate": "evaluation",
    "export_model": "export",
    "fit": "train",
    "predict": "prediction",
}

# Written out, since type checkers read it without running it.
__all__ = [
    "METHODS",
    "PRESETS",
    "AdaWAC",
    "Criterion",
    "EncoderTap",
    "Objective",
    "SampleWeights",
    "Step",
    "Weighting",
    "__version__",
    "algorithm",
    "build_method",
    "checks",
    "config",
    "data",
    "errors",
    "evaluate",
    "evaluation",
    "export",
    "export_model",
    "features",
    "figures",
    "fit",
    "inference",
    "losses",
    "methods",
    "metrics",
    "models",
    "objective",
    "predict",
    "prediction",
    "registry",
    "report",
    "reproduction",
    "runs",
    "theory",
    "train",
    "trained",
    "viewer",
]

if TYPE_CHECKING:
    from adawac import (
        algorithm,
        checks,
        config,
        data,
        errors,
        evaluation,
        export,
        features,
        figures,
        inference,
        losses,
        methods,
        metrics,
        models,
        objective,
        prediction,
        registry,
        report,
        reproduction,
        runs,
        theory,
        train,
        trained,
        viewer,
    )
    from adawac.algorithm import AdaWAC, Criterion, SampleWeights, Step, Weighting
    from adawac.evaluation import evaluate
    from adawac.export import export_model
    from adawac.features import EncoderTap
    from adawac.methods import METHODS, build_method
    from adawac.objective import PRESETS, Objective
    from adawac.prediction import predict
    from adawac.train import fit


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"adawac.{_HOMES[name]}"), name)
    if name in __all__:  # the others are modules
        return import_module(f"adawac.{name}")
    raise AttributeError(f"module 'adawac' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
