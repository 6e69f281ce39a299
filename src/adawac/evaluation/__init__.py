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
        "Comparison": "comparison:Comparison",
        "Detection": "statistics:Detection",
        "Difference": "statistics:Difference",
        "Evaluation": "evaluation_record:Evaluation",
        "Fault": "folder_scores:Fault",
        "FolderScores": "folder_scores:FolderScores",
        "Summary": "statistics:Summary",
        "bootstrap_interval": "statistics:bootstrap_interval",
        "calibrate": "calibration:calibrate",
        "by_patient": "statistics:by_patient",
        "compare": "comparison:compare",
        "count_detections": "statistics:count_detections",
        "evaluate": "evaluator:evaluate",
        "paired_difference": "statistics:paired_difference",
        "score": "folder_scores:score",
        "summarise": "statistics:summarise",
    },
)
