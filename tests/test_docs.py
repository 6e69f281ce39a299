"""The documentation quotes the measured numbers, and rendering works on any."""

import json

import pytest

from benchmarks import render
from benchmarks.pages import fill, table
from benchmarks.result_files import write_result


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
