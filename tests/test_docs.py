"""The documentation quotes the measured numbers, and rendering works on any."""

import json

import pytest

import reliability.render
from benchmarks import render
from benchmarks.pages import fill, table
from benchmarks.result_files import write_result
from reliability.trials import Row, save_rows


@pytest.mark.parametrize("path", render.PAGES, ids=lambda path: path.name)
def test_the_pages_are_what_the_results_render_to(path):
    page = path.read_text()
    assert render.rendered(page) == page, "run `python -m benchmarks.render`"
    assert page.count("<!-- end -->") == page.count("<!--") / 2 >= 1


def test_a_block_names_the_commit_at_which_it_was_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHMARK_COMMIT", "abc1234")
    monkeypatch.setattr(render, "RESULTS", tmp_path)
    page = "Before\n<!-- criterion-cpu -->\nold\n<!-- end -->\n<!-- other -->\nkept\n<!-- end -->\n"
    assert "*Not measured yet.*" in render.rendered(page)
    times = {"milliseconds": {"ours": 1.5}, "against_plain": {"ours": 0.5}}
    write_result(tmp_path / "criterion-cpu.json", {"device": "A machine", "torch": "2", "rounds": 3, **times})
    assert json.loads((tmp_path / "criterion-cpu.json").read_text())["commit"] == "abc1234"
    text = render.rendered(page)
    assert "| ours | 1.5 | 0.50× |" in text
    assert "Measured at commit abc1234." in text
    assert text.startswith("Before\n")
    assert text.endswith("<!-- other -->\nkept\n<!-- end -->\n")


def test_blocks_are_filled_and_tables_are_markdown():
    assert fill("<!-- a -->\n<!-- end -->", {"a": lambda: "new"}) == "<!-- a -->\nnew\n<!-- end -->"
    assert table(["x", "y"], [[1, "a"]]) == "| x | y |\n| --- | --- |\n| 1 | a |"


def test_the_reliability_page_is_what_its_results_render_to():
    page = reliability.render.PAGE.read_text()
    assert reliability.render.rendered(page) == page, "run `python -m reliability.render`"


def test_a_fault_that_was_not_survived_is_on_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(reliability.render, "RESULTS", tmp_path)
    row = Row("train: struck by lightning")
    row.note(None, [])
    row.note("it hangs", ["a log"])
    save_rows(tmp_path / "faults.json", {"train-struck": row}, "abc1234")
    save_rows(tmp_path / "faults.json", {"predict-struck": Row("predict: not tried")}, "abc1235")
    text = reliability.render.rendered("<!-- faults -->\n<!-- end -->\n")
    assert "2 trials of 2 faults; 1 survived" in text
    assert "| train: struck by lightning | 2 | 1 (it hangs) | `abc1234` |" in text
