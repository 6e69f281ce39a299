"""AdaWAC: adaptively weighted augmentation consistency for medical image segmentation (Dong, Xie & Ward, ICML 2023)."""

from typing import TYPE_CHECKING

from adawac.lazy import lazy_names

__version__ = "0.1.0"

# Written out, since type checkers read it without running it.
__all__ = [
    "METHODS",
    "PRESETS",
    "AdaWAC",
    "Criterion",
    "EncoderTap",
    "Objective",
    "PairDataset",
    "Run",
    "RunRecorder",
    "SampleWeights",
    "Step",
    "Store",
    "Weighting",
    "__version__",
    "algorithm",
    "build_method",
    "checks",
    "config",
    "data",
    "diagnose",
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
    "prepare",
    "registry",
    "report",
    "reproduction",
    "runs",
    "theory",
    "train",
    "trained",
    "viewer",
    "write_report",
]

if TYPE_CHECKING:
    from adawac import (
        algorithm,
        checks,
        config,
        data,
        errors,
        evaluation,
        features,
        figures,
        inference,
        losses,
        methods,
        metrics,
        models,
        objective,
        registry,
        report,
        reproduction,
        runs,
        theory,
        train,
        viewer,
    )
    from adawac import inference as export
    from adawac import inference as prediction
    from adawac.algorithm import AdaWAC, Criterion, SampleWeights, Step, Weighting
    from adawac.data.diagnosis import diagnose
    from adawac.data.preparation import prepare
    from adawac.data.store import Store
    from adawac.data.views import PairDataset
    from adawac.evaluation.evaluator import evaluate
    from adawac.features import EncoderTap
    from adawac.inference import trained
    from adawac.inference.model_export import export_model
    from adawac.inference.prediction import predict
    from adawac.methods import METHODS, build_method
    from adawac.objective import PRESETS, Objective
    from adawac.report.page import write_report
    from adawac.runs.reader import Run
    from adawac.runs.recorder import RunRecorder
    from adawac.train.engine import fit

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AdaWAC": "algorithm:AdaWAC",
        "Criterion": "algorithm:Criterion",
        "EncoderTap": "features:EncoderTap",
        "METHODS": "methods:METHODS",
        "Objective": "objective:Objective",
        "PRESETS": "objective:PRESETS",
        "PairDataset": "data.views:PairDataset",
        "Run": "runs.reader:Run",
        "RunRecorder": "runs.recorder:RunRecorder",
        "SampleWeights": "algorithm:SampleWeights",
        "Step": "algorithm:Step",
        "Store": "data.store:Store",
        "Weighting": "algorithm:Weighting",
        "build_method": "methods:build_method",
        "diagnose": "data.diagnosis:diagnose",
        "evaluate": "evaluation.evaluator:evaluate",
        "export_model": "inference.model_export:export_model",
        "fit": "train.engine:fit",
        "predict": "inference.prediction:predict",
        "prepare": "data.preparation:prepare",
        "write_report": "report.page:write_report",
        # packages and modules, and the names that some had before
        "algorithm": "algorithm",
        "checks": "checks",
        "config": "config",
        "data": "data",
        "errors": "errors",
        "evaluation": "evaluation",
        "features": "features",
        "figures": "figures",
        "inference": "inference",
        "losses": "losses",
        "methods": "methods",
        "metrics": "metrics",
        "models": "models",
        "objective": "objective",
        "registry": "registry",
        "report": "report",
        "reproduction": "reproduction",
        "runs": "runs",
        "theory": "theory",
        "train": "train",
        "viewer": "viewer",
        "export": "inference",
        "prediction": "inference",
        "trained": "inference.trained",
    },
)
