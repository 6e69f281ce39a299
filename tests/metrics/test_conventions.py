"""What empty masks score, and what is said of masks that cannot be scored."""

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest

from adawac.errors import DataError, ShapeError, UnknownNameError
from adawac.metrics import CONVENTIONS, assd, dice, hd95, hd95_max_directed, score_volume, surface_dice

DISTANCES = ("hd95", "hd95_max_directed", "assd")

# Empty masks: class 1 is found, 2 missed, 3 invented, 4 absent.


@pytest.fixture
def four_outcomes():
    pred, truth = np.zeros((2, 4, 5, 6), dtype=np.uint8)
    truth[1, 1:3, 1:3], pred[1, 1:3, 1:4] = 1, 1
    truth[3, 3, 3], pred[0, 4, 5] = 2, 3
    return pred, truth


DIAGONAL = math.sqrt(4**2 + 5**2 + 6**2)
GOLDEN = [
    # the paper's tables: both empty is right, one empty is wrong and costs no distance
    ("adawac", "absent", 1.0, 0.0),
    ("adawac", "missed", 0.0, 0.0),
    ("adawac", "invented", 0.0, 0.0),
    # the paper's "previous metrics": an invented class is right, all else that is empty is 0
    ("transunet", "absent", 0.0, 0.0),
    ("transunet", "missed", 0.0, 0.0),
    ("transunet", "invented", 1.0, 0.0),
    ("strict", "absent", 1.0, 0.0),
    ("strict", "missed", 0.0, DIAGONAL),
    ("strict", "invented", 0.0, DIAGONAL),
    # as nnU-Net's summary.json, which leaves out what is in neither
    ("nnunet", "absent", math.nan, math.nan),
    ("nnunet", "missed", 0.0, DIAGONAL),
    ("nnunet", "invented", 0.0, DIAGONAL),
    ("nan", "absent", math.nan, math.nan),
    ("nan", "missed", math.nan, math.nan),
    ("nan", "invented", math.nan, math.nan),
]


@pytest.mark.parametrize(("convention", "outcome", "overlap", "distance"), GOLDEN)
def test_what_an_empty_mask_scores(four_outcomes, convention, outcome, overlap, distance):
    rows = score_volume(*four_outcomes, 5, convention=convention)
    (row,) = (row for row in rows if row.outcome == outcome)
    assert row.label == {"missed": 2, "invented": 3, "absent": 4}[outcome]
    assert (row.dice, row.surface_dice) == pytest.approx((overlap, overlap), nan_ok=True)
    assert [getattr(row, name) for name in DISTANCES] == pytest.approx([distance] * 3, nan_ok=True)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_what_is_found_scores_the_same_by_every_convention(four_outcomes, convention):
    row = score_volume(*four_outcomes, 5, convention=convention)[0]
    assert dataclasses.asdict(row) == {
        "label": 1,
        "outcome": "found",
        "dice": pytest.approx(2 * 4 / (4 + 6)),
        "hd95": 1.0,  # distances 0 (8 times), 1 (twice): place 0.95 · 9 lies between the two ones
        "hd95_max_directed": 1.0,
        "assd": pytest.approx(2 / 10),
        "surface_dice": 1.0,
        "pred_voxels": 6,
        "truth_voxels": 4,
        "both_voxels": 4,
    }


# Three cases with one class, as in the tables of the paper: found (DSC 0.8, HD95 1), missed, and absent.
@pytest.mark.parametrize(
    ("convention", "dsc", "distance", "skipped"),
    [
        ("adawac", (0.8 + 0 + 1) / 3, (1 + 0 + 0) / 3, 0),
        ("transunet", (0.8 + 0 + 0) / 3, (1 + 0 + 0) / 3, 0),
        ("strict", (0.8 + 0 + 1) / 3, (1 + DIAGONAL + 0) / 3, 0),
        ("nnunet", (0.8 + 0) / 2, (1 + DIAGONAL) / 2, 1),
        ("nan", 0.8, 1.0, 2),
    ],
)
def test_golden_table_of_three_cases(four_outcomes, convention, dsc, distance, skipped):
    pred, truth = four_outcomes
    cases = [(pred == 1, truth == 1), (pred == 2, truth == 2), (pred == 4, truth == 4)]
    rows = [row for case in cases for row in score_volume(*case, 2, convention=convention)]
    assert np.nanmean([row.dice for row in rows]) == pytest.approx(dsc)
    assert np.nanmean([row.hd95 for row in rows]) == pytest.approx(distance)
    assert np.isnan([row.hd95 for row in rows]).sum() == skipped
    assert Counter(row.outcome for row in rows) == {"found": 1, "missed": 1, "absent": 1}


def test_the_diagonal_is_in_the_unit_of_the_spacing():
    pred, truth = np.zeros((2, 240, 240, 155), dtype=np.uint8)
    truth[3, 3, 3] = 1
    (row,) = score_volume(pred, truth, 2)
    assert row.hd95 == pytest.approx(373.13, abs=0.005)  # what the BraTS challenge gives a missed structure
    (row,) = score_volume(pred, truth, 2, (2.0, 0.5, 10.0))
    assert row.hd95 == pytest.approx(math.sqrt(480**2 + 120**2 + 1550**2))


def test_empty_masks_alone():
    empty, full = np.zeros((3, 4), dtype=bool), np.ones((3, 4), dtype=bool)
    assert math.isnan(dice(empty, empty))
    assert dice(full, empty) == dice(empty, full) == 0
    for distance in (hd95, hd95_max_directed, assd):
        assert all(math.isnan(distance(*pair)) for pair in ((empty, empty), (full, empty), (empty, full)))
    assert surface_dice(full, empty, 1e9) == 0
    nothing = np.zeros((0, 4), dtype=bool)
    assert math.isnan(dice(nothing, nothing))
    assert [row.outcome for row in score_volume(nothing, nothing, 3)] == ["absent", "absent"]


# Bad input.

LABELS = np.zeros((4, 5, 6), dtype=np.uint8)
MASK = LABELS.astype(bool)


@pytest.mark.parametrize("metric", [dice, hd95, hd95_max_directed, assd])
def test_bad_masks_are_refused(metric):
    with pytest.raises(ShapeError, match=r"same shape, but got \(4, 5, 6\) and \(4, 5\)\. Resample"):
        metric(MASK, MASK[..., 0])
    with pytest.raises(ShapeError, match=r"boolean mask as prediction, but got uint8"):
        metric(LABELS, MASK)
    with pytest.raises(ShapeError, match=r"boolean mask as truth, but got float64"):
        metric(MASK, MASK.astype(float))
    with pytest.raises(ShapeError, match=r"slice \(H, W\) or a volume \(D, H, W\), but got .* \(1, 4, 5, 6\)"):
        metric(MASK[None], MASK[None])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"label": LABELS[0]}, ShapeError, r"same shape, but got \(4, 5, 6\) and \(5, 6\)\. Resample"),
        ({"pred": LABELS[None], "label": LABELS[None]}, ShapeError, r"volume .* \(1, 4, 5, 6\)\. Give one case"),
        ({"pred": LABELS.astype(float)}, DataError, r"whole numbers in the prediction, but got float64 .* Round"),
        ({"label": LABELS.astype(np.int8) - 1}, DataError, r"0\.\.2 .* in the truth, but got values from -1 to -1"),
        ({"pred": LABELS + 3}, DataError, r"num_classes=3, .* in the prediction, but got values from 3 to 3\. Map"),
        ({"spacing": (1.0, 1.0)}, ShapeError, r"spacing of 3 positive numbers, .* but got \(1\.0, 1\.0\)\. Give"),
        ({"spacing": (1.0, 0.0, 1.0)}, ShapeError, r"positive numbers"),
        ({"spacing": (1.0, -2.0, 1.0)}, ShapeError, r"positive numbers"),
        ({"spacing": (1.0, math.nan, 1.0)}, ShapeError, r"positive numbers"),
        ({"spacing": (1.0, math.inf, 1.0)}, ShapeError, r"positive numbers"),
        ({"spacing": 2.0}, ShapeError, r"positive numbers, .* but got 2\.0"),
        ({"spacing": "abc"}, ShapeError, r"positive numbers, .* but got 'abc'"),
        ({"num_classes": 1}, ShapeError, r"num_classes to be a whole number ≥ 2, but got 1\. Count background"),
        ({"num_classes": 3.0}, ShapeError, r"num_classes"),
        ({"convention": "strikt"}, UnknownNameError, r"convention, but got 'strikt'\. Near names: 'strict'"),
        ({"tolerance": -1}, ShapeError, r"tolerance of 0 or more, .* but got -1"),
        ({"tolerance": math.nan}, ShapeError, r"tolerance"),
        ({"tolerance": None}, ShapeError, r"tolerance"),
    ],
)
def test_volumes_that_cannot_be_scored(change, error, message):
    with pytest.raises(error, match=message):
        score_volume(**{"pred": LABELS, "label": LABELS, "num_classes": 3} | change)
