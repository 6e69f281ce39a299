"""Summaries, intervals and the paired test, against NumPy, SciPy and loops."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from adawac.errors import RunError
from adawac.evaluation import bootstrap_interval, by_patient, count_detections, paired_difference, summarise
from adawac.runs import Score


def scores_of(values, metric="dice"):
    """Make scores from {(patient, case, label): value}."""
    return [
        Score(patient=patient, case=case, label=label, class_name=f"class {label}", metric=metric, value=value)
        for (patient, case, label), value in values.items()
    ]


@pytest.fixture
def drawn():
    """Two to three cases a patient, two classes, some without a value."""
    rng = np.random.default_rng(3)
    values = {}
    for patient in range(6):
        for case in range(2 + patient % 2):
            for label in (1, 2):
                value = math.nan if rng.random() < 0.15 else float(rng.random())
                values[f"p{patient}", f"c{patient}-{case}", label] = value
    return values


def test_by_patient_is_the_mean_of_what_is_there(drawn):
    means = by_patient(scores_of(drawn), "dice")
    for patient in {key[0] for key in drawn}:
        assert means[patient] == pytest.approx(np.nanmean([v for key, v in drawn.items() if key[0] == patient]))
    of_class = by_patient(scores_of(drawn), "dice", label=2)
    assert of_class["p3"] == pytest.approx(np.nanmean([v for k, v in drawn.items() if (k[0], k[2]) == ("p3", 2)]))
    assert by_patient(scores_of(drawn), "hd95") == {}
    assert by_patient(scores_of({("p", "c", 1): math.nan}), "dice") == {}


def test_bootstrap_interval_is_the_percentiles_of_resampled_means():
    values = np.random.default_rng(0).normal(2.0, 1.0, 25).tolist()
    rng = np.random.default_rng(5)
    means = sorted(np.mean([values[index] for index in row]) for row in rng.integers(25, size=(400, 25)))
    expected = np.percentile(means, [5, 95])
    assert bootstrap_interval(values, level=0.9, draws=400, seed=5) == pytest.approx(tuple(expected))
    assert bootstrap_interval([*values, math.nan], 0.9, 400, 5) == pytest.approx(tuple(expected))
    assert bootstrap_interval(values) == bootstrap_interval(values, 0.95, 2000, 0)


def test_bootstrap_interval_covers_the_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    held = [low <= 0 <= high for low, high in (bootstrap_interval(rng.normal(size=40), draws=400) for _ in range(300))]
    assert 0.88 < np.mean(held) < 0.985


def test_one_value_has_no_interval():
    assert np.isnan(bootstrap_interval([1.0])).all()
    assert np.isnan(bootstrap_interval([])).all()
    assert bootstrap_interval([1.0, 3.0]) == (1.0, 3.0)


def test_the_paired_test_is_scipys_exact_permutation_test():
    rng = np.random.default_rng(2)
    first = {f"p{k}": float(v) for k, v in enumerate(rng.random(9))}
    second = {name: value + float(rng.normal(0.1, 0.2)) for name, value in first.items()}
    alone = {"lost": 1.0, "unknown": 1.0}  # patients of one run alone, or without a number in one
    difference = paired_difference(first | alone, second | {"other": 1.0, "unknown": math.nan})
    pairs = [list(second.values()), list(first.values())]
    expected = stats.permutation_test(
        pairs, lambda a, b, axis: np.mean(a - b, axis=axis), permutation_type="samples", n_resamples=np.inf
    )
    assert difference.p_value == pytest.approx(expected.pvalue)
    assert difference.mean == pytest.approx(expected.statistic)
    assert difference.num_patients == 9
    assert difference.low < difference.mean < difference.high


def test_the_paired_test_of_many_patients_is_close_to_the_exact_one():
    rng = np.random.default_rng(4)
    differences = rng.normal(0.15, 0.4, 18)
    signs = 1 - 2 * np.array(list(itertools.product((0, 1), repeat=18)), dtype=np.int8)
    exact = np.mean(np.abs(signs @ differences) >= abs(differences.sum()) - 1e-12)
    second = {str(k): float(v) for k, v in enumerate(differences)}
    p_value = paired_difference(dict.fromkeys(second, 0.0), second).p_value
    assert p_value == pytest.approx(exact, abs=0.02)
    many = dict.fromkeys(map(str, range(40)), 0.0)  # 40 signs are never alike: the p-value is small, but not 0
    assert paired_difference(many, dict.fromkeys(many, 1.0)).p_value == 1 / 20_001


def test_rounding_does_not_change_the_paired_test():
    whole, tenths = ({str(k): v / part for k, v in enumerate((1, 2, -3, 3))} for part in (1, 10))
    zero = dict.fromkeys(whole, 0.0)
    assert paired_difference(zero, tenths).p_value == paired_difference(zero, whole).p_value


def test_equal_runs_do_not_differ():
    same = {"a": 0.5, "b": 0.7, "c": 0.1}
    difference = paired_difference(same, same)
    assert (difference.mean, difference.low, difference.high, difference.p_value) == (0.0, 0.0, 0.0, 1.0)
    assert paired_difference({"a": 1.0}, {"b": 1.0}).num_patients == 0
    assert math.isnan(paired_difference({}, {}).p_value)


@pytest.mark.parametrize("metric", ["dice", "surface_dice", "dense_dice", "hd95"])
def test_summaries_against_numpy(drawn, metric):
    first, second, mean = summarise(scores_of(drawn, metric), metric)
    assert [summary.class_name for summary in (first, second, mean)] == ["class 1", "class 2", "mean"]
    for label, summary in ((1, first), (2, second)):
        by_case = {key[1]: value for key, value in drawn.items() if key[2] == label}
        values = np.array([value for value in by_case.values() if not math.isnan(value)])
        assert summary.mean == pytest.approx(values.mean())
        assert summary.std == pytest.approx(values.std(ddof=1))
        quartiles = (summary.lower_quartile, summary.median, summary.upper_quartile)
        assert quartiles == pytest.approx(tuple(np.percentile(values, [25, 50, 75])))
        assert summary.worst == (values.max() if metric == "hd95" else values.min())
        assert by_case[summary.worst_case] == summary.worst
        assert (summary.num_cases, summary.skipped) == (len(values), len(by_case) - len(values))
        assert summary.num_patients == len({key[0] for key, v in drawn.items() if key[2] == label and v == v})
        assert summary.low < summary.mean < summary.high
        assert summary.missed is None
    cases = sorted({key[1] for key in drawn})
    both = np.array([[drawn[f"p{case[1]}", case, label] for label in (1, 2)] for case in cases])
    by_case = np.array([np.mean(row[~np.isnan(row)]) for row in both if not np.isnan(row).all()])
    assert mean.mean == pytest.approx(by_case.mean())
    assert mean.label is None
    assert mean.skipped == first.skipped + second.skipped > 0


def test_the_interval_draws_patients_with_all_their_cases(drawn):
    summary = summarise(scores_of(drawn), "dice")[0]
    patients = {}
    for (patient, _, label), value in drawn.items():
        if label == 1 and not math.isnan(value):
            patients.setdefault(patient, []).append(value)
    pools = list(patients.values())
    draws = np.random.default_rng(0).integers(len(pools), size=(2000, len(pools)))
    means = [np.mean([value for index in row for value in pools[index]]) for row in draws]
    assert (summary.low, summary.high) == pytest.approx(tuple(np.percentile(means, [2.5, 97.5])))


def test_an_unknown_metric_is_named():
    with pytest.raises(RunError, match="'dice'"):
        summarise(scores_of({("p", "c", 1): 1.0}), "dyce")


def outcomes_of(truth, pred):
    """Make the outcome scores of {case: classes in it} for classes 1 and 2."""
    for case in truth:
        for label in (1, 2):
            pair = label in truth[case], label in pred[case]
            happened = {(True, False): "missed", (False, True): "invented", (False, False): "absent"}.get(pair)
            for metric in ("missed", "invented", "absent"):
                value = float(metric == happened)
                yield Score(patient=case, case=case, label=label, class_name=f"c{label}", metric=metric, value=value)


def test_detections_count_cases_that_have_a_class_at_all():
    truth = {"a": {1}, "b": {2}, "c": {1, 2}, "d": set(), "e": set(), "f": {1}}
    pred = {"a": {1}, "b": {1}, "c": {2}, "d": {2}, "e": set(), "f": set()}
    first, second, either = count_detections(outcomes_of(truth, pred))
    assert (first.hits, first.misses, first.false_alarms, first.clear) == (1, 2, 1, 2)
    assert (second.hits, second.misses, second.false_alarms, second.clear) == (1, 1, 1, 3)
    # By presence alone: the wrong class in b is no miss for "any".
    assert (either.hits, either.misses, either.false_alarms, either.clear) == (3, 1, 1, 1)
    assert (either.label, either.class_name, either.sensitivity, either.specificity) == (None, "any", 0.75, 0.5)


@pytest.mark.parametrize("seed", range(3))
def test_detections_agree_with_a_count_of_drawn_masks(seed):
    rng = np.random.default_rng(seed)
    truth, pred = ({f"c{k}": {n for n in (1, 2) if rng.random() < 0.4} for k in range(50)} for _ in range(2))
    for label, row in zip((1, 2), count_detections(outcomes_of(truth, pred)), strict=False):
        has, found = (np.array([label in classes[case] for case in truth]) for classes in (truth, pred))
        assert row.sensitivity == pytest.approx((has & found).sum() / has.sum())
        assert row.specificity == pytest.approx((~has & ~found).sum() / (~has).sum())


def test_detections_say_nothing_without_outcomes_or_without_empty_cases(drawn):
    assert count_detections(scores_of(drawn)) == []
    full = {"a": {1, 2}, "b": {1, 2}}
    assert math.isnan(count_detections(outcomes_of(full, full))[-1].specificity)
