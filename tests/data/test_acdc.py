"""The real ACDC data, where it is at hand: the paper's numbers."""

import os
from pathlib import Path

import numpy as np
import pytest

from adawac.data.diagnosis import diagnose
from adawac.data.preparation import prepare
from adawac.data.splits import resolve_split


@pytest.fixture(scope="module")
def folder():
    path = Path(os.environ.get("ADAWAC_ACDC", ""))
    if not (path / "ACDC_training_volumes").is_dir():
        pytest.skip("ACDC is not here; set ADAWAC_ACDC to the folder that holds ACDC_training_volumes")
    return path


@pytest.fixture(scope="module")
def store(folder, tmp_path_factory):
    return prepare("acdc", folder, tmp_path_factory.mktemp("acdc") / "store")


def test_acdc_has_the_papers_counts(store):
    train = store.samples("train").table
    assert len(train) == 1324
    assert int(train.label_sparse.sum()) == 43
    assert len(list(store.volumes("val"))) == 20
    assert len(store.table.take(store.table.split == "test").cases) == 40
    assert len(set(map(tuple, store.table.shape.tolist()))) == 29
    assert set(store.table.group[store.table.split == "test"]) == {"DCM"}


def test_acdc_slices_are_the_files_slices(store, folder):
    import h5py

    samples = store.samples("train")
    for row in range(0, len(samples), 97):
        case, number = samples.table.case[row], samples.table.slice[row]
        with h5py.File(folder / "ACDC_training_slices" / f"{case}_slice_{number}.h5") as file:
            np.testing.assert_array_equal(samples[row][0][0], file["image"][:])
            np.testing.assert_array_equal(samples[row][1], file["label"][:])


def test_the_papers_lists_give_the_papers_split(store, folder):
    split = resolve_split(store.table, str(folder / "lists")).split
    np.testing.assert_array_equal(split, store.table.split)


def test_the_stratified_split_has_every_pathology_in_the_test_set(store):
    table = resolve_split(store.table, "stratified", seed=0)
    test = table.take(table.split == "test")
    assert {group: len(set(test.patient[test.group == group])) for group in sorted(set(test.group))} == {
        "DCM": 4, "HCM": 4, "MINF": 4, "NOR": 4, "RV": 4,
    }  # fmt: skip


def test_acdc_is_diagnosed(store):
    report = diagnose(store.path)
    assert report.faults == ()
    assert report.summary["training_label_sparse"] == 43
    assert report.recommendation.method == "adawac"
