"""Scores of the runs side by side: means with intervals, and differences to the first run, by patient."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from adawac.errors import AdawacError
from adawac.evaluation.statistics import (
    COUNTS,
    HIGHER_IS_BETTER,
    OUTCOMES,
    VOLUMES,
    bootstrap_interval,
    by_patient,
    paired_difference,
    presence_of_any,
)
from adawac.runs import Run, Score


def compare_scores(runs: Sequence[Run], faults: list[list[str]]) -> list[dict[str, Any]]:
    """Return a table for each evaluation, data set and metric, and add what cannot be read to the faults of its run.

    Evaluations that give the same numbers throughout, as two conventions often do, share a table. The first run that
    has an evaluation is the one that the others are compared with. Each data set has its own tables: patients of two
    may have the same name, and a label may be another class. So do distances in mm and in voxels.
    """
    read = [_read(run, unreadable) for run, unreadable in zip(runs, faults, strict=True)]
    tables = []
    for key in dict.fromkeys(key for of_run in read for key in of_run):
        by_run = {index: of_run[key] for index, of_run in enumerate(read) if key in of_run}
        metrics = dict.fromkeys(score.metric for scores in by_run.values() for score in scores)
        for metric in [metric for metric in metrics if metric not in (*OUTCOMES, *COUNTS, *VOLUMES)]:
            tables += [_table(*key, metric, unit, scores) for unit, scores in _by_unit(metric, by_run).items()]
    return _merge(tables)


def _read(run: Run, faults: list[str]) -> dict[tuple[str, str], list[Score]]:
    """Return the scores of a run by evaluation and data set."""
    scores: dict[tuple[str, str], list[Score]] = {}
    for name in run.evaluations:
        try:
            for score in run.scores(name):
                scores.setdefault((name, score.dataset), []).append(score)
        except (AdawacError, OSError) as error:
            faults.append(str(error))
    return {key: [*_detection_scores(of_key), *of_key] for key, of_key in scores.items()}


def _detection_scores(scores: Sequence[Score]) -> Iterator[Score]:
    """Yield for each case whether it was taken for what it is, empty or not, where there are empty ones."""
    presence = presence_of_any(scores)
    if all(truth for truth, _ in presence.values()):
        return
    first_of_case = {score.case: score for score in reversed(scores)}
    for case, (truth, found) in presence.items():
        metric, value = ("case_sensitivity", found) if truth else ("case_specificity", not found)
        row = first_of_case[case]
        yield replace(row, label=0, class_name="any foreground", metric=metric, value=float(value), unit="")


def _by_unit(metric: str, by_run: dict[int, list[Score]]) -> dict[str, dict[int, list[Score]]]:
    """Return the runs that have a metric, by what it is measured in."""
    units: dict[str, dict[int, list[Score]]] = {}
    for index, scores in by_run.items():
        for unit in dict.fromkeys(score.unit for score in scores if score.metric == metric):
            units.setdefault(unit, {})[index] = scores
    return units


def _table(evaluation: str, dataset: str, metric: str, unit: str, by_run: dict[int, list[Score]]) -> dict[str, Any]:
    classes: dict[tuple[int | None, str], None] = {(None, "mean of the classes"): None}
    for scores in by_run.values():
        classes |= {(score.label, score.class_name): None for score in scores if score.metric == metric}
    rows = list(classes)[1:] if len(classes) == 2 else list(classes)  # one class: its mean would be the same line twice
    first = next(iter(by_run.values()))[0]
    return {
        "evaluation": evaluation,
        "dataset": dataset,
        "metric": metric,
        "unit": unit,
        "higher_is_better": metric in HIGHER_IS_BETTER,
        "split": first.split,
        "convention": first.convention,
        "checkpoint": first.checkpoint,
        "runs": list(by_run),
        "rows": [{"label": label, "class_name": name, **_row(by_run, metric, label, name)} for label, name in rows],
    }


def _merge(tables: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each table once, with the other evaluations that it holds for under `also`."""
    merged: dict[str, dict[str, Any]] = {}
    for table in tables:
        names = {name: table[name] for name in ("evaluation", "convention", "checkpoint")}
        numbers = json.dumps({name: value for name, value in table.items() if name not in names})
        if numbers in merged:
            merged[numbers]["also"].append(names)
        else:
            merged[numbers] = {**table, "also": []}
    return list(merged.values())


def _row(by_run: dict[int, list[Score]], metric: str, label: int | None, name: str) -> dict[str, Any]:
    """Return the means of a class, or of all classes, and the differences; a run may have another class at a label."""
    cells: list[dict[str, Any] | None] = []
    differences = []
    reference: dict[str, float] | None = None
    for scores in by_run.values():
        of_class = [score for score in scores if label is None or score.class_name == name]
        means = by_patient(of_class, metric, label)
        values = {patient: mean for patient, mean in means.items() if math.isfinite(mean)}
        reference = values if reference is None else reference
        numbers = list(values.values())
        if numbers:
            low, high = bootstrap_interval(numbers)
            mean = rounded(sum(numbers) / len(numbers))
            cells.append({"mean": mean, "low": rounded(low), "high": rounded(high), "patients": len(numbers)})
        else:
            cells.append(None)
        if values is not reference:
            differences.append(_difference(reference, values))
    return {"cells": cells, "differences": differences}


def _difference(first: dict[str, float], second: dict[str, float]) -> dict[str, Any] | None:
    """Return second minus first over the patients that both have, or None where there are none."""
    if not first.keys() & second.keys():
        return None
    difference = paired_difference(first, second)
    numbers = {name: rounded(getattr(difference, name)) for name in ("mean", "low", "high", "p_value")}
    return {**numbers, "patients": difference.num_patients}


def rounded(value: Any) -> float | None:
    """Return a whole number as it is, another finite one to six digits, or None for anything else."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")
