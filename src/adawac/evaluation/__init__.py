"""Runs in, scores out: `adawac.evaluate("runs/adawac")`, statistics over patients, tables."""

from typing import TYPE_CHECKING

from adawac.lazy import lazy_names

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
    from adawac.evaluation.evaluation_record import Evaluation
    from adawac.evaluation.evaluator import evaluate
    from adawac.evaluation.statistics import (
        Difference,
        Summary,
        bootstrap_interval,
        by_patient,
        paired_difference,
        summarise,
    )

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Comparison": "comparison:Comparison",
        "Difference": "statistics:Difference",
        "Evaluation": "evaluation_record:Evaluation",
        "Summary": "statistics:Summary",
        "bootstrap_interval": "statistics:bootstrap_interval",
        "by_patient": "statistics:by_patient",
        "compare": "comparison:compare",
        "evaluate": "evaluator:evaluate",
        "paired_difference": "statistics:paired_difference",
        "summarise": "statistics:summarise",
    },
)
