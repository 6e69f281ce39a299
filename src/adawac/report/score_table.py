"""Scores of the runs side by side: means with intervals, and differences to the first run, by patient."""

import json
import math
from collections.abc import Sequence
from typing import Any

from adawac.errors import AdawacError
from adawac.runs import Run, Score


def compare_scores(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], dict[int, list[str]]]:
    """Return a table for each evaluation, data set and metric, and for each run what could not be read.

    Evaluations that give the same numbers throughout, as two conventions often do, share a table. The first run that
    has an evaluation is the one that the others are compared with. Data sets have tables of their own: patients of
    two may have the same name, and a label may be another class. So have distances in mm and in voxels.
    """
    from adawac.evaluation.statistics import OUTCOMES

    read, faults = _read(runs)
    tables = []
    for key in dict.fromkeys(one for own in read for one in own):
        there = {place: own[key] for place, own in enumerate(read) if key in own}
        metrics = dict.fromkeys(one.metric for scores in there.values() for one in scores if one.metric not in OUTCOMES)
        for metric in metrics:
            tables += [_table(*key, metric, unit, own) for unit, own in _by_unit(metric, there).items()]
    return _merge(tables), faults


def _read(runs: Sequence[Run]) -> tuple[list[dict[tuple[str, str], list[Score]]], dict[int, list[str]]]:
    """Return the scores of each run by evaluation and data set."""
    read: list[dict[tuple[str, str], list[Score]]] = []
    faults: dict[int, list[str]] = {}
    for place, run in enumerate(runs):
        own: dict[tuple[str, str], list[Score]] = {}
        for name in run.evaluations:
            try:
                for one in run.scores(name):
                    own.setdefault((name, one.dataset), []).append(one)
            except (AdawacError, OSError) as error:
                faults.setdefault(place, []).append(str(error))
        read.append(own)
    return read, faults


def _by_unit(metric: str, there: dict[int, list[Score]]) -> dict[str, dict[int, list[Score]]]:
    """Return the runs that have a metric, by what it is measured in."""
    found: dict[str, dict[int, list[Score]]] = {}
    for place, scores in there.items():
        for unit in dict.fromkeys(one.unit for one in scores if one.metric == metric):
            found.setdefault(unit, {})[place] = scores
    return found


def _table(evaluation: str, dataset: str, metric: str, unit: str, there: dict[int, list[Score]]) -> dict[str, Any]:
    from adawac.evaluation.statistics import HIGHER_IS_BETTER

    classes: dict[tuple[int | None, str], None] = {(None, "mean of the classes"): None}
    for scores in there.values():
        classes |= {(one.label, one.class_name): None for one in scores if one.metric == metric}
    rows = list(classes)[1:] if len(classes) == 2 else list(classes)  # one class: its mean would be the same line twice
    first = next(iter(there.values()))[0]
    return {
        "evaluation": evaluation,
        "dataset": dataset,
        "metric": metric,
        "unit": unit,
        "higher_is_better": metric in HIGHER_IS_BETTER,
        "split": first.split,
        "convention": first.convention,
        "checkpoint": first.checkpoint,
        "runs": list(there),
        "rows": [{"label": label, "class_name": name, **_row(there, metric, label, name)} for label, name in rows],
    }


def _merge(tables: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each table once, with the other evaluations that it holds for under `also`."""
    merged: dict[str, dict[str, Any]] = {}
    for one in tables:
        names = {name: one[name] for name in ("evaluation", "convention", "checkpoint")}
        numbers = json.dumps({name: value for name, value in one.items() if name not in names})
        if numbers in merged:
            merged[numbers]["also"].append(names)
        else:
            merged[numbers] = {**one, "also": []}
    return list(merged.values())


def _row(there: dict[int, list[Score]], metric: str, label: int | None, name: str) -> dict[str, Any]:
    """Return the means of a class, or of all classes, and the differences; a run may have another class at a label."""
    from adawac.evaluation.statistics import bootstrap_interval, by_patient, paired_difference

    cells: list[dict[str, Any] | None] = []
    differences = []
    reference: dict[str, float] | None = None
    for scores in there.values():
        own = [one for one in scores if label is None or one.class_name == name]
        values = {who: one for who, one in by_patient(own, metric, label).items() if math.isfinite(one)}
        reference = values if reference is None else reference
        numbers = list(values.values())
        if numbers:
            low, high = bootstrap_interval(numbers)
            mean = _plain(sum(numbers) / len(numbers))
            cells.append({"mean": mean, "low": _plain(low), "high": _plain(high), "patients": len(numbers)})
        else:
            cells.append(None)
        if values is not reference:
            differences.append(_difference(reference, values, paired_difference))
    return {"cells": cells, "differences": differences}


def _difference(first: dict[str, float], second: dict[str, float], compare: Any) -> dict[str, Any] | None:
    """Return second minus first over the patients that both have, or None where there are none."""
    if not first.keys() & second.keys():
        return None
    found = compare(first, second)
    return {
        "mean": _plain(found.mean),
        "low": _plain(found.low),
        "high": _plain(found.high),
        "p_value": _plain(found.p_value),
        "patients": int(found.num_patients),
    }


def _plain(value: Any) -> float | None:
    return float(f"{float(value):.6g}") if value is not None and math.isfinite(value) else None
