"""Trained networks at work: `adawac.predict("runs/adawac", "scans", "labels")`, and exported for use elsewhere."""

from typing import TYPE_CHECKING

from adawac.lazy import lazy_names

__all__ = [
    "Ensemble",
    "Exported",
    "Prediction",
    "Predictor",
    "Scan",
    "Trained",
    "export_model",
    "export_onnx",
    "find_cases",
    "find_scans",
    "keep_largest_components",
    "load_trained",
    "predict",
    "save_model",
]

if TYPE_CHECKING:
    from adawac.inference.label_files import keep_largest_components
    from adawac.inference.model_export import Exported, export_model, export_onnx, save_model
    from adawac.inference.prediction import predict
    from adawac.inference.predictor import Ensemble, Predictor
    from adawac.inference.scan_search import Scan, find_cases, find_scans
    from adawac.inference.scan_segmentation import Prediction
    from adawac.inference.trained import load_trained
from adawac.inference.trained_network import Trained

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "label_files": "keep_largest_components",
        "model_export": "Exported export_model export_onnx save_model",
        "prediction": "predict",
        "predictor": "Ensemble Predictor",
        "scan_search": "Scan find_cases find_scans",
        "scan_segmentation": "Prediction",
        "trained": "load_trained",
        "trained_network": "Trained",
    },
)
