"""Scans in, label maps out, on the scan's own grid: `adawac.predict("runs/adawac", "scans", "labels")`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Where each public name lives; it is imported when it is first used.
_HOMES = {
    "Ensemble": "segmenting",
    "Prediction": "predicting",
    "Scan": "scans",
    "find_cases": "scans",
    "find_scans": "scans",
    "keep_largest_components": "cleaning",
    "predict": "predicting",
}

__all__ = ["Ensemble", "Prediction", "Scan", "find_cases", "find_scans", "keep_largest_components", "predict"]

if TYPE_CHECKING:
    from adawac.prediction.cleaning import keep_largest_components
    from adawac.prediction.predicting import Prediction, predict
    from adawac.prediction.scans import Scan, find_cases, find_scans
    from adawac.prediction.segmenting import Ensemble


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"adawac.prediction.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'adawac.prediction' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
