"""DSC and HD95 of label maps, case by case, and their means."""

from statistics import mean
from typing import Any

import numpy as np

from adawac.data.store import Store
from adawac.evaluation.case_scores import Rules, score_case

Labels = np.ndarray[Any, Any]
Scores = dict[str, list[tuple[float, float]]]
"""DSC in % and HD95 of each case, by class."""


def add_scores(scores: Scores, store: Store, case: str, labels: Labels) -> None:
    """Add the scores of a case."""
    for row in score_case(store.path, case, labels, Rules(convention="strict", unit="voxel")).rows:
        scores.setdefault(store.class_names[row.label], []).append((100 * row.dice, row.hd95))


def means(classes: Scores) -> dict[str, dict[str, float]]:
    """Return the means over cases, then over classes."""
    averages = {}
    for column, metric in enumerate(("dice", "hd95")):
        by_class = {name: mean(pair[column] for pair in pairs) for name, pairs in classes.items()}
        averages[metric] = {"mean": mean(by_class.values()), **by_class}
    return averages
