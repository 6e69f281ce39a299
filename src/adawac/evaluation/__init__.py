"""Runs or label maps in, scores out: `adawac.evaluate`, `adawac.score`, statistics over patients, tables."""

from typing import TYPE_CHECKING

from adawac.lazy import lazy_names

__all__ = [
    "Comparison",
    "Detection",
    "Difference",
    "Evaluation",
    "Fault",
    "FolderScores",
    "Summary",
    "bootstrap_interval",
    "by_patient",
    "calibrate",
    "compare",
    "count_detections",
    "evaluate",
    "paired_difference",
    "score",
    "summarise",
]

if TYPE_CHECKING:
    from adawac.evaluation.calibration import calibrate
    from adawac.evaluation.comparison import Comparison, compare
    from adawac.evaluation.evaluation_record import Evaluation
    from adawac.evaluation.evaluator import evaluate
    from adawac.evaluation.folder_scores import Fault, FolderScores, score
    from adawac.evaluation.statistics import (
        Detection,
        Difference,
        Summary,
        bootstrap_interval,
        by_patient,
        count_detections,
        paired_difference,
        summarise,
    )

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "calibration": "calibrate",
        "comparison": "Comparison compare",
        "evaluation_record": "Evaluation",
        "evaluator": "evaluate",
        "folder_scores": "Fault FolderScores score",
        "statistics": (
            "Detection Difference Summary bootstrap_interval by_patient count_detections paired_difference summarise"
        ),
    },
)
