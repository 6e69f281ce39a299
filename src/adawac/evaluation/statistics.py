"""Summaries of scores over cases, intervals and tests over patients.

A patient may have several cases (ACDC has two frames each), and these resemble each other. So cases are averaged within
a patient before anything is tested, and a bootstrap draws whole patients.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from adawac.errors import RunError, check_known
from adawac.metrics.surfaces import Array
from adawac.runs import Score

HIGHER_IS_BETTER = frozenset({"dice", "surface_dice", "dense_dice", "case_sensitivity", "case_specificity"})
"""Metrics of which more is better; of all others less is."""

OUTCOMES = ("missed", "invented", "absent")
"""Rows of a scores file that are 1 where this happened to the class in the case, else 0."""

COUNTS = ("true_positives", "false_positives", "false_negatives")
"""Rows of a scores file: voxels of a class in a case."""
VOLUMES = ("false_positive_volume", "false_negative_volume")
"""Rows of a scores file: the last two as volumes, in ml, or again in voxels."""

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


@dataclass(frozen=True, kw_only=True)
class Detection:
    """In how many cases a class, or any of them, is seen at all: what inspection asks about each picture.

    Attributes:
        label: The class; None for any class.
        class_name: Its name; `any` for any class.
        hits: Cases that have it, in which it was found.
        misses: Cases that have it, in which it was not.
        false_alarms: Cases without it, in which it was found.
        clear: Cases without it, in which it was not.
        sensitivity: Share of hits in the cases that have it; NaN where none has.
        specificity: Share of clear ones in the cases without it; NaN where all have it.
    """

    label: int | None
    class_name: str
    hits: int
    misses: int
    false_alarms: int
    clear: int
    sensitivity: float
    specificity: float


def count_detections(scores: Iterable[Score]) -> list[Detection]:
    """Return how often each class was detected in a case, and last how often any was; nothing without outcomes.

    It is the presence that counts: a case with one class, in which another is found, is a hit for any.
    """
    scores = list(scores)
    names = {score.label: score.class_name for score in scores if score.metric in OUTCOMES}
    cases = presence_by_case(scores).values()
    rows = [
        _detection(label, names[label], [case[label] for case in cases if label in case]) for label in sorted(names)
    ]
    return [*rows, _detection(None, "any", list(presence_of_any(scores).values()))] if rows else []


Presence = tuple[bool, bool]
"""Whether a class is in the truth, and whether it is in the prediction."""


def presence_by_case(scores: Iterable[Score]) -> dict[str, dict[int, Presence]]:
    """Return by case and class what its outcome says; nothing of cases whose scores have no outcomes."""
    cases: dict[str, dict[int, Presence]] = {}
    for score in scores:
        if score.metric in OUTCOMES:
            case = cases.setdefault(score.case, {})
            case.setdefault(score.label, (True, True))
            if score.value:
                case[score.label] = (score.metric == "missed", score.metric == "invented")
    return cases


def presence_of_any(scores: Iterable[Score]) -> dict[str, Presence]:
    """Return by case whether any class is in the truth, and whether any is in the prediction."""
    return {
        case: (any(truth for truth, _ in classes.values()), any(pred for _, pred in classes.values()))
        for case, classes in presence_by_case(scores).items()
    }


def _detection(label: int | None, name: str, pairs: Sequence[Presence]) -> Detection:
    hits, misses, false_alarms, clear = (
        pairs.count((truth, pred)) for truth in (True, False) for pred in (True, False)
    )
    return Detection(
        label=label,
        class_name=name,
        hits=hits,
        misses=misses,
        false_alarms=false_alarms,
        clear=clear,
        sensitivity=hits / (hits + misses) if hits + misses else math.nan,
        specificity=clear / (clear + false_alarms) if clear + false_alarms else math.nan,
    )


def by_patient(scores: Iterable[Score], metric: str, label: int | None = None) -> dict[str, float]:
    """Return the mean of each patient's cases, and of all classes unless one is given; NaN is ignored.

    Patients without a number are left out.
    """
    return means_by("patient", scores, metric, label)


def means_by(
    field: Literal["patient", "case", "label"], scores: Iterable[Score], metric: str, label: int | None = None
) -> dict[Any, float]:
    """Return the means of a metric by patient, case or label, of all classes unless one is given; NaN is ignored."""
    values: dict[Any, list[float]] = {}
    for score in scores:
        if score.metric == metric and label in (None, score.label) and not math.isnan(score.value):
            values.setdefault(getattr(score, field), []).append(score.value)
    return {key: float(np.mean(numbers)) for key, numbers in values.items()}


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
    """Compare two runs, a number for each patient, on those that both have: second − first, interval, paired test."""
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
    check_known(metric, {score.metric for score in scores}, "a metric of these scores", RunError)
    classes = sorted({score.label: score.class_name for score in measured}.items())
    return [_summary(metric, label, name, scores) for label, name in [*classes, (None, "mean")]]


def _summary(metric: str, label: int | None, name: str, scores: list[Score]) -> Summary:
    known = means_by("case", scores, metric, label)
    patient_of = {score.case: score.patient for score in scores}
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
        mean=float(array.mean()) if len(array) else math.nan,
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
        skipped=sum(math.isnan(value) for value in _values(scores, metric, label)),
        **{outcome: _count(scores, outcome, label) for outcome in OUTCOMES},
    )


def _values(scores: list[Score], metric: str, label: int | None) -> list[float]:
    return [score.value for score in scores if score.metric == metric and label in (None, score.label)]


def _count(scores: list[Score], outcome: str, label: int | None) -> int | None:
    values = _values(scores, outcome, label)
    return int(sum(values)) if values else None


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
