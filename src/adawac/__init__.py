"""AdaWAC: adaptively weighted augmentation consistency for medical image segmentation (Dong, Xie & Ward, ICML 2023)."""

from typing import TYPE_CHECKING

from adawac.lazy import lazy_names

__version__ = "0.2.0"

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
    "ViewConfig",
    "Weighting",
    "__version__",
    "algorithm",
    "build_method",
    "calibrate",
    "checks",
    "config",
    "crossval",
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
    "load_trained",
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
    "score",
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
    from adawac.config import ViewConfig
    from adawac.data.diagnosis import diagnose
    from adawac.data.preparation import prepare
    from adawac.data.store import Store
    from adawac.data.views import PairDataset
    from adawac.evaluation.calibration import calibrate
    from adawac.evaluation.evaluator import evaluate
    from adawac.evaluation.folder_scores import score
    from adawac.features import EncoderTap
    from adawac.inference import trained
    from adawac.inference.model_export import export_model
    from adawac.inference.prediction import predict
    from adawac.inference.trained import load_trained
    from adawac.methods import METHODS, build_method
    from adawac.objective import PRESETS, Objective
    from adawac.report.page import write_report
    from adawac.reproduction.crossvalidation import crossval
    from adawac.runs.reader import Run
    from adawac.runs.recorder import RunRecorder
    from adawac.train.engine import fit

# The public names by the module that defines each.
_NAMES = {
    "algorithm": "AdaWAC Criterion SampleWeights Step Weighting",
    "features": "EncoderTap",
    "methods": "METHODS build_method",
    "objective": "Objective PRESETS",
    "config": "ViewConfig",
    "data.views": "PairDataset",
    "runs.reader": "Run",
    "runs.recorder": "RunRecorder",
    "data.store": "Store",
    "data.diagnosis": "diagnose",
    "evaluation.calibration": "calibrate",
    "evaluation.evaluator": "evaluate",
    "evaluation.folder_scores": "score",
    "inference.model_export": "export_model",
    "train.engine": "fit",
    "inference.prediction": "predict",
    "inference.trained": "load_trained",
    "data.preparation": "prepare",
    "report.page": "write_report",
    "reproduction.crossvalidation": "crossval",
}
__getattr__, __dir__ = lazy_names(
    __name__,
    _NAMES,
    modules=(
        "algorithm checks config data errors evaluation features figures inference losses methods metrics "
        "models objective registry report reproduction runs theory train viewer"
    ),
    former={"export": "inference", "prediction": "inference", "trained": "inference.trained"},
)
