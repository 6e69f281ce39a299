"""The study of planted label errors: what is planted, how ways of ranking are measured, and the page."""

import json

import numpy as np
import pytest

from adawac.data.store import Store
from studies.label_errors import compare, render
from studies.label_errors.planting import KINDS, PLANTED, eroded, missed, plant, shifted, swapped


@pytest.fixture
def label():
    """Two organs."""
    label = np.zeros((20, 20), dtype=np.uint8)
    label[3:11, 3:11] = 1
    label[12:17, 12:17] = 2
    return label


def test_errors_are_what_they_are_called(label):
    rng = np.random.default_rng(0)
    moved = shifted(label, rng)
    assert (moved != label).any()
    assert set(np.unique(moved)) == {0, 1, 2}
    steps = [(down - 2, right - 2) for down, right in np.ndindex(5, 5)]
    assert any(np.array_equal(np.roll(label, step, (0, 1)), moved) for step in steps)
    small = eroded(label, rng)
    assert 0 < (small > 0).sum() <= (label > 0).sum() / 2
    assert np.array_equal(small[small > 0], label[small > 0])
    assert np.array_equal(swapped(label, rng), np.array([0, 2, 1])[label])
    assert len(np.unique(missed(label, rng))) == 2
    one = np.where(label == 1, 1, 0)
    assert np.array_equal(swapped(one, rng), one)
    assert np.array_equal(missed(one, rng), one)


def test_a_planted_store_differs_where_it_says_and_nowhere_else(store, tmp_path):
    planted = plant(store, tmp_path / "wrong", seed=1, share=0.2)
    assert planted == plant(store, tmp_path / "again", seed=1, share=0.2)
    assert json.loads((tmp_path / "wrong" / PLANTED).read_text()) == planted
    first, second = Store(store), Store(tmp_path / "wrong")
    np.testing.assert_array_equal(first.table.id, second.table.id)
    np.testing.assert_array_equal(first.table.split, second.table.split)
    counts = [list(planted.values()).count(kind) for kind in KINDS]
    assert max(counts) == round(0.2 * len(first.table) / len(KINDS))
    for case in first.cases:
        (image, label), (same, other) = first.stack(case), second.stack(case)
        np.testing.assert_array_equal(image, same)
        changed = np.array(_ids(first, case))[(label != other).any((1, 2))].tolist()
        assert changed == [sample for sample in _ids(first, case) if sample in planted]
    for sample, kind in planted.items():
        row = second.table.id.tolist().index(sample)
        assert second.table.label_sparse[row] == (kind == "emptied")


def _ids(store, case):
    return store.table.id[store.table.case == case].tolist()


def test_a_kind_is_measured_without_the_others():
    planted = {"a": "emptied", "b": "swapped"}
    ranking = {"a": 0.9, "b": 0.8, "c": 0.7, "d": 0.1}
    measured = compare.measure(ranking, planted)
    assert measured["all"]["average_precision"] == 1.0
    assert measured["swapped"]["average_precision"] == 1.0  # a is not counted as a mistake
    assert measured["swapped"]["wrong"] == 1
    assert compare.measure({"c": 1.0, **{name: 0.5 for name in "ab"}}, planted)["emptied"]["average_precision"] == 0.5


def test_the_page_is_what_the_results_render_to():
    page = render.PAGE.read_text(encoding="utf-8")
    assert render.rendered(page) == page, "run `python -m studies.label_errors.render`"


def test_the_page_says_whether_the_goal_was_reached(tmp_path, monkeypatch):
    monkeypatch.setattr(render, "RESULTS", tmp_path)
    assert render.block() == "*Not measured yet.*"
    first = [{"count": 5, "precision": 0.4, "recall": 0.2}]

    def way(value):
        return {kind: {"wrong": 10, "average_precision": value, "first": first} for kind in ("all", *KINDS)}

    ways = {"cleanlab": way(0.4), "adawac crossval": {**way(0.8), "swapped": way(0.6)["swapped"]}}
    about = {"commit": "abc1234", "epochs": 3, "model": "unet", "folds": 2, "share": 0.05}
    seeds = {"7": {"slices": 200, "dice": 0.5, "ways": ways}}
    (tmp_path / "phantom.json").write_text(json.dumps({**about, "seeds": seeds}))
    text = render.block()
    assert "emptied 2.0 times (reached), swapped classes 1.5 times (not reached)" in text
    assert "| cleanlab | 0.40 | 0.40 |" in text
    assert "Measured at commit abc1234." in text
