"""Runs in, scores out: `adawac.evaluate("runs/adawac")`, statistics over patients, tables."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Where each public name lives; it is imported when it is first used.
_HOMES = {
    "Comparison": "comparison",
    "Difference": "statistics",
    "Evaluation": "records",
    "Summary": "statistics",
    "bootstrap_interval": "statistics",
    "by_patient": "statistics",
    "compare": "comparison",
    "evaluate": "evaluating",
    "paired_difference": "statistics",
    "summarise": "statistics",
}

__all__ = [
    "Comparison",
    "Difference",
    "Evaluation",
    "Summary",
    "bootstrap_interval",
    "by_patient",
    "compare",
    "evaluate",
    "paired_difference",
    "summarise",
]

if TYPE_CHECKING:
    from adawac.evaluation.comparison import Comparison, compare
    from adawac.evaluation.evaluating import evaluate
    from adawac.evaluation.records import Evaluation
    from adawac.evaluation.statistics import (
        Difference,
        Summary,
        bootstrap_interval,
        by_patient,
        paired_difference,
        summarise,
    )


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"adawac.evaluation.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'adawac.evaluation' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
