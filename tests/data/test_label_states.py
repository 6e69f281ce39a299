"""Labelled, unlabelled and partly ignored samples: in the table, in the store, in the diagnosis."""

import json

import nibabel as nib
import numpy as np
import pytest

from adawac.cli import run
from adawac.data.cases import IGNORED, SampleTable, check_case, class_pixels, class_shares
from adawac.data.diagnosis import diagnose
from adawac.data.diagnosis_report import draw_diagnosis
from adawac.data.preparation import prepare
from adawac.data.splits import labelled
from adawac.data.store import Store
from adawac.errors import DataError
from tests.data.partly_labelled import SHAPE, STATES, partly_labelled
from tests.data.scans import make_nnunet


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return prepare(partly_labelled(), dest=tmp_path_factory.mktemp("states") / "store", workers=1)


def test_ignored_pixels_are_of_no_class():
    label = np.array([[[0, 1], [2, 1]], [[IGNORED, 1], [0, IGNORED]], [[IGNORED] * 2] * 2], np.uint8)
    pixels = class_pixels(label, 3)
    np.testing.assert_array_equal(pixels, [[1, 2, 1], [1, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(class_shares(pixels, 4), [[0.25, 0.5, 0.25], [0.25, 0.25, 0], [np.nan] * 3])


def test_the_table_says_each_state_and_no_unlabelled_sample_is_empty(store, tmp_path):
    table = store.table
    for case, states in STATES.items():
        assert table.state[table.case == case].tolist() == states
    assert not (table.label_sparse & table.unlabelled).any()
    assert not (table.label_dense & table.unlabelled).any()
    np.testing.assert_array_equal(table.label_sparse | table.label_dense, ~table.unlabelled)
    np.testing.assert_array_equal(labelled(table), ~table.unlabelled)
    empty = table.take((table.case == "quarter") & table.label_sparse)
    assert empty.slice.tolist() == [0]  # slice 4 has foreground, the others nobody knows
    table.write_csv(tmp_path / "table.csv")
    np.testing.assert_array_equal(SampleTable.read_csv(tmp_path / "table.csv").state, table.state)


def test_a_share_that_rounding_left_below_one_is_not_ignored(store):
    table = store.table.take(store.table.case == "whole")
    thirds = np.full((8, 3), 1 / 3, np.float32).astype(float) - 1e-8
    np.testing.assert_array_equal(table.__class__(**{**vars(table), "fraction": thirds}).state, "labelled")


def test_only_a_store_with_ignored_pixels_is_of_the_new_format(store, tmp_path):
    assert store.info["format_version"] == 2
    root = make_nnunet(tmp_path / "in", cases=2)
    plain = prepare("nifti", root, tmp_path / "out", workers=1)
    assert plain.info["format_version"] == 1
    assert set(plain.table.state) == {"labelled"}
    again = prepare(partly_labelled(), dest=store.path, workers=1)  # not taken for another store
    assert again.info == store.info


def test_ignored_pixels_come_back_out_of_the_store(store, tmp_path):
    source = partly_labelled()
    native = source.load(next(ref for ref in source.cases() if ref.id == "mixed")).label
    np.testing.assert_array_equal(store.volume("mixed").label, native)
    np.testing.assert_array_equal(store.native_label("mixed"), native)
    store.export_nifti("mixed", tmp_path / "label.nii.gz")
    np.testing.assert_array_equal(np.asarray(nib.load(tmp_path / "label.nii.gz").dataobj), native)
    assert store.case_info("mixed").ignored == (native == IGNORED).sum()
    assert store.case_info("none").ignored == 0
    assert store.case_info("blank").ignored == np.prod(SHAPE)


def test_a_class_beyond_the_last_is_still_a_fault():
    case = partly_labelled().load(partly_labelled().cases()[1])
    case.label[0, 0, 0] = 3
    with pytest.raises(DataError, match="class indices 0 to 2, but got 0 to 3"):
        check_case(case)


def test_diagnosis_counts_states_by_case_and_in_all(store, capsys):
    report = diagnose(store, workers=1)
    for case in report.cases:
        states = STATES[case.id]
        assert case.unlabelled == states.count("unlabelled"), case.id
        assert case.partly_ignored == states.count("partly ignored"), case.id
    everything = [state for states in STATES.values() for state in states]
    assert report.summary["slices_by_state"] == {
        state: everything.count(state) for state in ("labelled", "partly ignored", "unlabelled")
    }
    training = [state for case, states in STATES.items() if case != "tested" for state in states]
    assert report.summary["training_slices"] == len(training) - training.count("unlabelled")
    quarter = next(case for case in report.cases if case.id == "quarter")
    assert (quarter.xi, quarter.label_sparse) == (0.5, 1)
    assert [share is None for share in quarter.foreground] == [False, True, True, True] * 2
    assert {case.id for case in report.cases if case.xi is None} == {"none", "blank"}
    assert any("unlabelled, not empty (quarter, mixed, tested)" in warning for warning in report.warnings)
    draw_diagnosis(report)
    assert run(["diagnose", str(store.path), "--workers", "1"]) == 0
    told = capsys.readouterr().out
    assert all(f"{everything.count(state)} {state}" in told for state in ("labelled", "partly ignored", "unlabelled"))
    assert run(["diagnose", str(store.path), "--workers", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cases"][1]["foreground"][1] is None


def test_the_states_survive_in_a_copy_of_the_store(store):
    np.testing.assert_array_equal(Store(store.path).table.state, store.table.state)
