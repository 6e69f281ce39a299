"""Cases and samples: names that are safe, ids that are stable, beta found by id."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adawac.data.cases import (
    Case,
    SampleTable,
    carry_over,
    check_case,
    check_name,
    class_pixels,
    is_label_dense,
    is_label_sparse,
    match_rows,
    rows_by_value,
    sample_id,
)
from adawac.errors import DataError


def table(cases=("a", "b"), slices=3, **columns):
    rows = [(case, k) for case in cases for k in range(slices)]
    n = len(rows)
    fraction = np.tile([0.9, 0.1], (n, 1))
    fraction[::slices] = [1.0, 0.0]
    defaults = {
        "id": np.array([sample_id("set", f"p-{case}", case, "2", k) for case, k in rows]),
        "patient": np.array([f"p-{case}" for case, _ in rows]),
        "case": np.array([case for case, _ in rows]),
        "slice": np.array([k for _, k in rows]),
        "axis": np.full(n, "2"),
        "unit": np.full(n, "slice"),
        "split": np.full(n, "train"),
        "group": np.full(n, ""),
        "position": np.array([k for _, k in rows]),
        "shape": np.tile([4, 5], (n, 1)),
        "fraction": fraction,
        "class_names": ("background", "organ"),
    }
    return SampleTable(**{**defaults, **columns})


@pytest.mark.parametrize("name", ["../up", "a/b", "a\\b", "..", ".hidden", "", "C:x", "a\x00b", "x" * 200, " a", 'q"'])
def test_names_that_could_leave_the_folder_are_refused(name):
    with pytest.raises(DataError, match="plain name"):
        check_name(name)


def test_plain_names_pass():
    assert check_name("patient001_frame01 é (2).v3") == "patient001_frame01 é (2).v3"


@given(st.integers(1, 5), st.integers(2, 6), st.data())
def test_class_pixels_counts_like_a_loop(slices, classes, data):
    label = np.array(data.draw(st.lists(st.integers(0, classes - 1), min_size=6 * slices, max_size=6 * slices)))
    label = label.reshape(slices, 2, 3).astype(np.uint8)
    counted = class_pixels(label, classes)
    assert counted.tolist() == [[int((entry == k).sum()) for k in range(classes)] for entry in label]


def test_label_sparse_is_no_foreground_unless_a_threshold_is_given():
    fraction = np.array([[1.0, 0.0, 0.0], [0.99, 0.01, 0.0], [0.5, 0.2, 0.3], [np.nan] * 3])
    samples = table(["a"], slices=4, fraction=fraction, class_names=("background", "a", "b"))
    np.testing.assert_array_equal(samples.foreground, [0.0, 0.01, 0.5, np.nan])
    assert is_label_sparse(samples.foreground).tolist() == [True, False, False, False]
    assert is_label_sparse(samples.foreground, threshold=0.01).tolist() == [True, True, False, False]
    assert is_label_dense(samples.foreground).tolist() == [False, True, True, False]
    assert is_label_dense(samples.foreground, threshold=0.01).tolist() == [False, False, True, False]
    assert samples.label_sparse.tolist() == [True, False, False, False]


@pytest.mark.parametrize("at_once", [2, 4, 100])
def test_table_survives_csv_exactly(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr("adawac.data.cases._CELLS_AT_ONCE", at_once * 12)
    fraction = np.random.default_rng(0).random((6, 2))
    fraction[2] = np.nan
    written = table(fraction=fraction, group=np.array(["a, b"] * 6))
    written.write_csv(tmp_path / "table.csv")
    read = SampleTable.read_csv(tmp_path / "table.csv")
    assert read.class_names == written.class_names
    for name in SampleTable.columns():
        np.testing.assert_array_equal(getattr(read, name), getattr(written, name))


def test_many_classes_take_no_more_memory_at_once(tmp_path):
    shares = np.random.default_rng(0).random((2000, 200))
    written = table(["a"], slices=2000, fraction=shares, class_names=tuple(f"class {k}" for k in range(200)))
    tracemalloc.start()
    written.write_csv(tmp_path / "table.csv")
    assert tracemalloc.get_traced_memory()[1] < 3 * shares.nbytes
    tracemalloc.reset_peak()
    SampleTable.read_csv(tmp_path / "table.csv")
    assert tracemalloc.get_traced_memory()[1] < 8 * shares.nbytes
    tracemalloc.stop()


@pytest.mark.parametrize("odd", ["a\rb", "a\nb", "a\r\nb", 'a"b', "a,b", "<b>"])
def test_table_survives_odd_names(tmp_path, odd):
    table(group=np.array([odd] * 6), class_names=("background", odd)).write_csv(tmp_path / "table.csv")
    read = SampleTable.read_csv(tmp_path / "table.csv")
    assert read.group.tolist() == [odd] * 6
    assert read.class_names == ("background", odd)


def test_the_first_rows_are_those_of_each_case_once():
    scattered = table(case=np.array(["b", "a", "a", "b", "c", "a"]))
    assert scattered.first_rows == {"b": 0, "a": 1, "c": 4}
    assert scattered.cases == ("b", "a", "c")
    assert scattered.take([]).cases == ()


def test_rows_by_value_are_those_that_a_comparison_finds():
    column = np.array(["b", "a", "", "b", "aa", "a"])
    rows = rows_by_value(column)
    assert {value: rows[value].tolist() for value in rows} == {"": [2], "a": [1, 5], "aa": [4], "b": [0, 3]}
    assert rows_by_value(column[:0]) == {}


def test_table_of_something_else_is_refused(tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"table\.csv"):
        SampleTable.read_csv(tmp_path / "table.csv")


def test_table_with_an_id_twice_is_refused():
    with pytest.raises(DataError, match="occur twice"):
        table(cases=("a", "a"))


def test_taking_rows_keeps_their_ids():
    whole = table()
    assert whole.take([4, 1]).id.tolist() == [whole.id[4], whole.id[1]]
    assert whole.take(whole.label_sparse).slice.tolist() == [0, 0]


def test_beta_follows_its_sample_to_a_grown_and_shuffled_data_set():
    old = table(cases=("b", "d"))
    beta = np.linspace(0.1, 0.9, len(old))
    grown = table(cases=("a", "b", "c", "d"))
    grown = grown.take(np.random.default_rng(0).permutation(len(grown)))
    carried = dict(zip(grown.id.tolist(), carry_over(beta, old.id, grown.id).tolist(), strict=True))
    before = dict(zip(old.id.tolist(), beta.tolist(), strict=True))
    assert carried == {name: before.get(name, 0.5) for name in grown.id.tolist()}


def test_beta_of_a_subset_is_found_and_log_odds_start_at_zero():
    old, new = table(cases=("a", "b")), table(cases=("b", "c"))
    assert match_rows(old.id, new.id).tolist() == [3, 4, 5, -1, -1, -1]
    values = carry_over(np.arange(6, dtype=np.float32), old.id, new.id, new=0.0)
    assert values.tolist() == [3, 4, 5, 0, 0, 0]
    assert values.dtype == np.float32


def test_beta_of_another_data_set_is_refused():
    with pytest.raises(DataError, match="none of 3 ids"):
        carry_over(np.zeros(3), table(cases=("a",)).id, table(cases=("z",)).id)
    with pytest.raises(DataError, match="4 values for 3 ids"):
        carry_over(np.zeros(4), table(cases=("a",)).id, table(cases=("a",)).id)
    with pytest.raises(DataError, match="occur twice"):
        match_rows(["x", "x"], ["x"])


def case(**changes):
    values = {
        "dataset": "set", "patient": "p", "id": "c", "image": np.zeros((1, 2, 3, 4), np.float32),
        "label": np.zeros((2, 3, 4), np.uint8), "spacing": (1.0, 1.0, 1.0), "class_names": ("background", "organ"),
    }  # fmt: skip
    return Case(**{**values, **changes})


def test_a_good_case_passes():
    check_case(case())
    check_case(case(label=None))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": np.zeros((2, 3, 4), np.float32)}, "channels, 3 spatial axes"),
        ({"image": np.full((1, 2, 3, 4), np.inf, np.float32)}, "24 NaN or infinite"),
        ({"label": np.zeros((2, 3, 5), np.uint8)}, "image's shape"),
        ({"label": np.zeros((2, 3, 4), np.float32)}, "integer"),
        ({"label": np.full((2, 3, 4), 2)}, "0 to 1, but got 2 to 2"),
        ({"label": np.full((2, 3, 4), -1)}, "got -1 to -1"),
        ({"spacing": (1.0, 0.0, 1.0)}, "positive voxel sizes"),
        ({"spacing": (1.0, np.inf, 1.0)}, "positive voxel sizes"),
        ({"image": np.zeros((1, 0, 3, 4), np.float32)}, "with voxels"),
    ],
)
def test_a_bad_case_is_named(changes, message):
    with pytest.raises(DataError, match=message) as caught:
        check_case(case(**changes))
    assert "case c" in str(caught.value)
