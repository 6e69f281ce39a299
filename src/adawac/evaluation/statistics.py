"""Summaries of scores over cases, intervals and tests over patients.

A patient may have several cases (ACDC has two frames each), and these resemble each other. So cases are averaged within
a patient before anything is tested, and a bootstrap draws whole patients.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adawac.errors import RunError, near
from adawac.metrics.surfaces import Array
from adawac.runs import Score

HIGHER_IS_BETTER = frozenset({"dice", "surface_dice", "dense_dice"})
"""Metrics of which more is better; of all others less is."""

OUTCOMES = ("missed", "invented", "absent")
"""Rows of a scores file that are 1 where this happened to the class in the case, else 0."""

_EXACT = 16  # patients up to which every sign pattern is tried: 65,536 of them
_FLIPS = 20_000  # random sign patterns beyond that


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One metric of one class, or of the mean over classes, over all cases.

    Attributes:
        metric: `dice`, `hd95`, …
        label: The class; None for the mean over classes.
        class_name: Its name; `mean` for the mean over classes.
        mean, std: Over cases; the standard deviation is the sample's (n - 1).
        lower_quartile, median, upper_quartile: Over cases.
        worst, worst_case: The worst value and the case that has it.
        low, high: 95 % bootstrap interval of the mean; patients are drawn, with all their cases.
        num_cases, num_patients: How many have a value.
        skipped: Values that the convention leaves out (NaN).
        missed, invented, absent: Structures in the truth alone, in the prediction alone, in neither; None where the
            scores do not say.
    """

    metric: str
    label: int | None
    class_name: str
    mean: float
    std: float
    lower_quartile: float
    median: float
    upper_quartile: float
    worst: float
    worst_case: str
    low: float
    high: float
    num_cases: int
    num_patients: int
    skipped: int
    missed: int | None
    invented: int | None
    absent: int | None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How much a second run differs from a first one, over the patients that both have.

    Attributes:
        mean: Mean over patients of second − first.
        low, high: 95 % bootstrap interval over patients.
        p_value: Of the two-sided sign-flip permutation test: if the runs did not differ, either sign of a patient's
            difference would be as likely. NaN without patients.
        num_patients: How many both have.
    """

    mean: float
    low: float
    high: float
    p_value: float
    num_patients: int


def by_patient(scores: Iterable[Score], metric: str, label: int | None = None) -> dict[str, float]:
    """Return the mean of each patient's cases, and of all classes unless one is given; NaN is ignored.

    Patients without a number are left out.
    """
    values: dict[str, list[float]] = {}
    for score in scores:
        if score.metric == metric and label in (None, score.label) and not math.isnan(score.value):
            values.setdefault(score.patient, []).append(score.value)
    return {patient: float(np.mean(numbers)) for patient, numbers in values.items()}


def bootstrap_interval(
    values: Sequence[float], level: float = 0.95, draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of a mean; NaN for fewer than two values.

    Args:
        values: One number a patient; NaN is ignored.
        level: The share of resampled means within the interval.
        draws: How many times to resample.
        seed: Decides what is drawn.
    """
    array = np.asarray(values, dtype=np.float64)
    array = array[~np.isnan(array)]
    return _interval(array, np.ones_like(array), level, draws, seed)


def paired_difference(first: Mapping[str, float], second: Mapping[str, float]) -> Difference:
    """Compare two runs on the patients that both have: second − first, with an interval and a paired test.

    Args:
        first: A number for each patient, from `by_patient`.
        second: The same of the other run.
    """
    differences = np.array([second[patient] - first[patient] for patient in first if patient in second], dtype=float)
    differences = differences[~np.isnan(differences)]
    low, high = bootstrap_interval(differences.tolist())
    mean, p_value = (float(differences.mean()), _sign_flip_test(differences)) if len(differences) else (math.nan,) * 2
    return Difference(mean=mean, low=low, high=high, p_value=p_value, num_patients=len(differences))


def summarise(scores: Iterable[Score], metric: str) -> list[Summary]:
    """Return one summary for each class, in their order, and one for the mean over classes.

    The last one is about the mean over classes of each case; without NaN its mean is the mean of the classes' means.
    """
    scores = list(scores)
    measured = [score for score in scores if score.metric == metric]
    if not measured:
        known = {score.metric for score in scores}
        raise RunError(f"Expected a metric of these scores, but got {metric!r}. Near names: {near(metric, known)}.")
    classes = dict(sorted({score.label: score.class_name for score in measured}.items()))
    summaries = [
        _summary(metric, label, name, [score for score in measured if score.label == label], _outcomes(scores, label))
        for label, name in classes.items()
    ]
    return [*summaries, _summary(metric, None, "mean", measured, _outcomes(scores, None))]


def _summary(metric: str, label: int | None, name: str, rows: list[Score], outcomes: dict[str, Any]) -> Summary:
    cases: dict[str, list[float]] = {}
    for row in rows:
        cases.setdefault(row.case, []).append(row.value)
    means = {case: _mean([value for value in values if not math.isnan(value)]) for case, values in cases.items()}
    known = {case: mean for case, mean in means.items() if not math.isnan(mean)}
    patient_of = {row.case: row.patient for row in rows}
    patients: dict[str, list[float]] = {}
    for case, value in known.items():
        patients.setdefault(patient_of[case], []).append(value)
    sums = np.array([sum(values) for values in patients.values()], dtype=np.float64)
    counts = np.array([len(values) for values in patients.values()], dtype=np.float64)
    low, high = _interval(sums, counts)
    array = np.array(list(known.values()), dtype=np.float64)
    quartiles = np.percentile(array, [25, 50, 75]).tolist() if len(array) else [math.nan] * 3
    pick = min if metric in HIGHER_IS_BETTER else max
    worst = pick(known, key=lambda case: known[case]) if known else ""
    return Summary(
        metric=metric,
        label=label,
        class_name=name,
        mean=_mean(array.tolist()),
        std=float(array.std(ddof=1)) if len(array) > 1 else math.nan,
        lower_quartile=quartiles[0],
        median=quartiles[1],
        upper_quartile=quartiles[2],
        worst=known.get(worst, math.nan),
        worst_case=worst,
        low=low,
        high=high,
        num_cases=len(known),
        num_patients=len(patients),
        skipped=sum(math.isnan(row.value) for row in rows),
        **outcomes,
    )


def _outcomes(scores: list[Score], label: int | None) -> dict[str, int | None]:
    counts: dict[str, int | None] = {}
    for outcome in OUTCOMES:
        rows = [score.value for score in scores if score.metric == outcome and label in (None, score.label)]
        counts[outcome] = int(sum(rows)) if rows else None
    return counts


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _interval(sums: Array, counts: Array, level: float = 0.95, draws: int = 2000, seed: int = 0) -> tuple[float, float]:
    """Return the interval of Σ sums / Σ counts when patients, each with a sum and a count of cases, are drawn anew."""
    if len(sums) < 2:
        return math.nan, math.nan
    drawn = np.random.default_rng(seed).integers(len(sums), size=(draws, len(sums)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.percentile(means, [50 * (1 - level), 50 * (1 + level)])
    return float(low), float(high)


def _sign_flip_test(differences: Array) -> float:
    """Return the p-value: how often random signs make a mean as far from 0; all signs where there are few patients."""
    n = len(differences)
    if n <= _EXACT:
        bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    else:
        bits = np.random.default_rng(0).integers(2, size=(_FLIPS, n))
    flipped = np.abs((1 - 2 * bits) @ differences)
    # Sums in another order differ by rounding: what is equal up to that is as far.
    as_far = int((flipped >= abs(differences.sum()) - 1e-9 * np.abs(differences).sum()).sum())
    return as_far / 2**n if n <= _EXACT else (as_far + 1) / (_FLIPS + 1)
