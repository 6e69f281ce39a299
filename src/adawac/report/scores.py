"""Scores of the runs side by side: means with intervals, and differences to the first run, by patient."""

import json
import math
from collections.abc import Sequence
from typing import Any

from adawac.errors import AdawacError
from adawac.runs import Run, Score

__all__ = ["compare_scores"]


def compare_scores(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], dict[int, list[str]]]:
    """Return a table for each evaluation and metric, and for each run what could not be read.

    Evaluations that give the same numbers throughout, as two conventions often do, share a table. The first run that
    has an evaluation is the one that the others are compared with.
    """
    from adawac.evaluation.statistics import OUTCOMES

    read, faults = _read(runs)
    tables = []
    for evaluation in dict.fromkeys(name for own in read for name in own):
        there = {place: own[evaluation] for place, own in enumerate(read) if own.get(evaluation)}
        metrics = dict.fromkeys(one.metric for scores in there.values() for one in scores if one.metric not in OUTCOMES)
        tables += [_table(evaluation, metric, there) for metric in metrics]
    return _merge(tables), faults


def _read(runs: Sequence[Run]) -> tuple[list[dict[str, list[Score]]], dict[int, list[str]]]:
    read: list[dict[str, list[Score]]] = []
    faults: dict[int, list[str]] = {}
    for place, run in enumerate(runs):
        own = {}
        for name in run.evaluations:
            try:
                own[name] = run.scores(name)
            except (AdawacError, OSError) as error:
                faults.setdefault(place, []).append(str(error))
        read.append(own)
    return read, faults


def _table(evaluation: str, metric: str, there: dict[int, list[Score]]) -> dict[str, Any]:
    from adawac.evaluation.statistics import HIGHER_IS_BETTER

    classes: dict[int | None, str] = {None: "mean of the classes"}
    for scores in there.values():
        classes |= {one.label: one.class_name for one in scores if one.metric == metric and one.label not in classes}
    if len(classes) == 2:  # one class: its mean would be the same line twice
        del classes[None]
    first = next(iter(there.values()))[0]
    return {
        "evaluation": evaluation,
        "metric": metric,
        "unit": next((one.unit for scores in there.values() for one in scores if one.metric == metric), ""),
        "higher_is_better": metric in HIGHER_IS_BETTER,
        "split": first.split,
        "convention": first.convention,
        "checkpoint": first.checkpoint,
        "runs": list(there),
        "rows": [{"label": label, "class_name": name, **_row(there, metric, label)} for label, name in classes.items()],
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


def _row(there: dict[int, list[Score]], metric: str, label: int | None) -> dict[str, Any]:
    from adawac.evaluation.statistics import bootstrap_interval, by_patient, paired_difference

    cells: list[dict[str, Any] | None] = []
    differences = []
    reference: dict[str, float] | None = None
    for scores in there.values():
        values = {name: one for name, one in by_patient(scores, metric, label).items() if math.isfinite(one)}
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
