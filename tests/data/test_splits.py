"""Subsets and splits: by patient, stratified, never on both sides."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adawac.data.splits import (
    check_leaks,
    fold_split,
    list_split,
    resolve_split,
    stratified_folds,
    stratified_split,
    subset_mask,
    suggest_split,
)
from adawac.errors import ConfigError, DataError, MissingFileError
from tests.data.test_cases import table

PATIENTS = [f"p{k:02d}" for k in range(20)]


def cohort(groups=4, frames=2, slices=2, split="train"):
    """Twenty patients in equal groups, several cases each."""
    cases = [f"{patient}_{frame}" for patient in PATIENTS for frame in range(frames)]
    whole = table(cases=cases, slices=slices)
    patient = np.array([case.split("_")[0] for case in whole.case])
    group = np.array([f"g{PATIENTS.index(name) % groups}" for name in patient])
    return table(cases=cases, slices=slices, patient=patient, group=group, split=np.full(len(whole), split))


def test_a_patient_on_two_sides_is_an_error():
    patient = np.array(["a", "a", "b"])
    check_leaks(patient, np.array(["train", "train", "test"]))
    check_leaks(patient, np.array(["train", "", "test"]))
    with pytest.raises(DataError, match="'a' is in test and train"):
        check_leaks(patient, np.array(["train", "test", "test"]))


def test_subsets_by_their_rules():
    whole = table(cases=("a", "b"), slices=5)
    assert whole.take(subset_mask(whole, "half-slice")).slice.tolist() == [0, 2, 4] * 2
    assert whole.take(subset_mask(whole, "half-sparse")).slice.tolist() == [0, 1, 2] * 2
    assert subset_mask(whole, "full").all()
    with pytest.raises(ConfigError, match="half-slice"):
        subset_mask(whole, "half-slices")


def test_half_vol_is_a_seeded_half_of_the_patients():
    whole = cohort()
    first = whole.take(subset_mask(whole, "half-vol", seed=1))
    assert len(set(first.patient)) == 10
    assert len(first) == len(whole) / 2
    np.testing.assert_array_equal(first.id, whole.take(subset_mask(whole, "half-vol", seed=1)).id)
    assert set(first.patient) != set(whole.take(subset_mask(whole, "half-vol", seed=2)).patient)
    for patients, kept in ((1, 1), (5, 2)):
        few = table(cases=[f"case{k:04d}" for k in range(patients)])
        assert len(few.take(subset_mask(few, "half-vol")).cases) == kept


def test_slices_of_volumes_cannot_be_halved():
    whole = table(unit=np.full(6, "volume"))
    with pytest.raises(ConfigError, match="whole volumes"):
        subset_mask(whole, "half-sparse")


@given(st.integers(2, 10), st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(0, 5))
def test_folds_are_even_in_total_and_in_each_group(count, sizes, seed):
    group = np.array([f"g{k}" for k, size in enumerate(sizes) for _ in range(size)])
    patient = np.array([f"p{k}" for k in range(len(group))])
    if count > len(patient):
        with pytest.raises(ConfigError, match="folds"):
            stratified_folds(patient, group, count, seed)
        return
    folds = stratified_folds(patient, group, count, seed)
    fold = np.array([folds[name] for name in patient])
    for members in [np.ones(len(group), bool), *(group == name for name in set(group.tolist()))]:
        sizes_of_folds = np.bincount(fold[members], minlength=count)
        assert np.ptp(sizes_of_folds) <= 1


def test_folds_cover_every_patient_once_and_leave_the_test_set_alone():
    whole = cohort()
    test = np.isin(whole.patient, PATIENTS[:5])
    whole = whole.with_split(np.where(test, "test", "train"))
    held_out = []
    for fold in range(5):
        split = resolve_split(whole, f"fold:{fold}/5", seed=3).split
        assert (split[test] == "test").all()
        held_out += sorted(set(whole.patient[split == "val"]))
    assert sorted(held_out) == PATIENTS[5:]
    with pytest.raises(ConfigError, match="0 to 4"):
        fold_split(whole, 5, 5)


def test_folds_may_hold_the_test_patients_too():
    whole = cohort()
    test = np.isin(whole.patient, PATIENTS[:5])
    held_out = []
    for fold in range(5):
        split = resolve_split(whole.with_split(np.where(test, "test", "train")), f"fold:{fold}/5/all", seed=3).split
        assert set(split.tolist()) == {"train", "val"}
        # Who is in which fold does not depend on what the source said.
        np.testing.assert_array_equal(split, resolve_split(whole, f"fold:{fold}/5", seed=3).split)
        held_out += sorted(set(whole.patient[split == "val"]))
    assert sorted(held_out) == PATIENTS


def test_one_fold_is_none():
    with pytest.raises(ConfigError, match="2 to 20 folds"):
        resolve_split(cohort(), "fold:0/1")


def test_what_a_seed_draws_stays_what_it_is():
    """A run that is resumed or evaluated by a later version must find its own split again."""
    whole = table(cases=[f"case{k}" for k in range(5)], slices=1)
    drawn = {
        ("stratified", 0): ["val", "test", "train", "train", "train"],
        ("stratified", 1): ["train", "train", "val", "test", "train"],
        ("fold:0/3", 0): ["val", "train", "val", "train", "train"],
        ("fold:0/3", 1): ["train", "train", "val", "train", "val"],
    }
    for (spec, seed), expected in drawn.items():
        assert resolve_split(whole, spec, seed=seed).split.tolist() == expected


def test_a_patient_in_two_groups_cannot_be_dealt():
    with pytest.raises(DataError, match="one group per patient"):
        stratified_folds(np.array(["a", "a"]), np.array(["x", "y"]), 2)


def test_the_stratified_split_has_every_group_everywhere():
    whole = resolve_split(cohort(groups=2), "stratified", seed=7)
    for group in ("g0", "g1"):
        of_group = whole.take(whole.group == group)
        counts = {side: len(set(of_group.patient[of_group.split == side])) for side in ("train", "val", "test")}
        assert counts == {"train": 7, "val": 1, "test": 2}
    with pytest.raises(DataError, match=r"20 groups leave none for val.*or no groups"):
        stratified_split(cohort(groups=20))
    with pytest.raises(ConfigError, match="sum to 1"):
        stratified_split(cohort(), shares={"train": 0.5})


@pytest.mark.parametrize("count", range(3, 12))
def test_three_patients_are_enough_for_the_stratified_split(count):
    whole = table(cases=[f"case{k:04d}" for k in range(count)], slices=2)
    split = stratified_split(whole)
    counts = {side: len(set(whole.patient[split == side])) for side in ("train", "val", "test")}
    assert min(counts.values()) >= 1
    assert sum(counts.values()) == count
    assert counts["train"] == max(counts.values())
    with pytest.raises(DataError, match=r"2 labelled ones leave none for test\. Use folds \(fold:0/2\)"):
        stratified_split(table(cases=("case0001", "case0002"), slices=2))


@pytest.mark.parametrize(
    ("patients", "groups", "spec"),
    [(1, 1, ""), (2, 1, "fold:0/2"), (3, 1, "stratified"), (3, 3, "fold:0/3"), (9, 5, "fold:0/5")],
)
def test_the_split_that_is_suggested_works(patients, groups, spec):
    names = [f"case{k:04d}" for k in range(patients)]
    group = np.repeat([f"g{k % groups}" for k in range(patients)], 2)
    whole = table(cases=names, slices=2, group=group, split=np.full(2 * patients, ""))
    assert suggest_split(whole.patient, whole.group, whole.split) == spec
    if spec:
        sides = set(resolve_split(whole, spec).split)
        assert sides == ({"train", "val", "test"} if spec == "stratified" else {"train", "val"})
    assert suggest_split(whole.patient, whole.group, np.resize(["train", "test"], 2 * patients)) == ""


def test_samples_without_a_label_are_in_no_drawn_split():
    whole = table(cases=[f"case{k:04d}" for k in range(10)], slices=2)
    blind = np.isin(whole.case, ("case0003", "case0008"))
    mixed = replace(whole, fraction=np.where(blind[:, None], np.nan, whole.fraction))
    for spec in ("stratified", "fold:1/4"):
        split = resolve_split(mixed, spec).split
        assert set(split[blind]) == {""}
        # The others are drawn as if the unlabelled ones were not there.
        assert split[~blind].tolist() == resolve_split(whole.take(~blind), spec).split.tolist()
        # Nor does a patient who has a labelled scan, too, bring the others in.
        patient = np.where(whole.case == "case0003", "p-case0004", whole.patient)
        assert set(resolve_split(replace(mixed, patient=patient), spec).split[blind]) == {""}
    tested = mixed.with_split(np.where(whole.case == "case0003", "test", ""))
    assert set(resolve_split(tested, "fold:1/4").split[whole.case == "case0003"]) == {"test"}


def test_lists_of_patients_cases_ids_and_slice_names(tmp_path):
    whole = table(cases=("case0001", "case0002", "case0003", "case0004"), slices=3)
    (tmp_path / "train.txt").write_text("p-case0001\ncase0002_slice001  # one slice\ncase0002_slice_2.h5\n\n")
    (tmp_path / "val.txt").write_text("set/p-case0003/case0003/2/0\n")
    (tmp_path / "test_vol.txt").write_text("case0004.npy.h5\n")
    split = resolve_split(whole, str(tmp_path)).split
    assert split.tolist() == ["train"] * 3 + ["", "train", "train"] + ["val", "", ""] + ["test"] * 3


def test_bad_lists_are_named(tmp_path):
    whole = cohort()
    with pytest.raises(DataError, match=r"but got 'p99'. Near names: .*'p09'"):
        list_split(whole, {"train": ["p99"]})
    with pytest.raises(DataError, match="in one list"):
        list_split(whole, {"train": ["p01"], "test": ["p01_0"]})
    with pytest.raises(DataError, match="each patient in one split"):
        list_split(whole, {"train": ["p01_0"], "test": ["p01_1"]})
    with pytest.raises(ConfigError, match="training"):
        list_split(whole, {"training": ["p01"]})
    with pytest.raises(MissingFileError, match="nowhere"):
        list_split(whole, {"train": tmp_path / "nowhere.txt"})
    with pytest.raises(ConfigError, match="fold:K/N"):
        resolve_split(whole, "folds")


def test_changing_the_split_column_checks_patients():
    whole = cohort()
    with pytest.raises(DataError, match="each patient in one split"):
        whole.with_split(["train"] + ["test"] * (len(whole) - 1))
