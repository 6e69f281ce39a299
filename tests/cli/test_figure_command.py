"""`adawac figure`: files, messages and exit codes."""

import json
from pathlib import Path

import pytest

from adawac.cli import run as adawac
from adawac.figures import FIGURES
from adawac.runs import Run, example_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[str]:
    root = tmp_path_factory.mktemp("runs")
    options = {"epochs": 2, "slices": 6, "size": 24}
    return [str(example_run(root / name, method=name, **options).folder) for name in ("adawac", "baseline")]


def test_a_figure_goes_into_the_run_folder_unless_told_otherwise(runs, tmp_path, capsys) -> None:
    before = Run(runs[0]).missing
    assert adawac(["figure", runs[0], "curves"]) == 0
    path = Path(runs[0]) / "figures" / "curves.png"
    assert capsys.readouterr().out == f"{path}\n"
    assert path.read_bytes().startswith(b"\x89PNG")
    assert Run(runs[0]).missing == before
    out = tmp_path / "new" / "curves.svg"
    words = ["figure", runs[0], "curves", "--case", "case01", "--slices", "5", "0", "--scale", "linear", "--json"]
    assert adawac([*words, "--out", str(out), "--theme", "dark", "--width", "text"]) == 0
    assert json.loads(capsys.readouterr().out) == {"figure": "curves", "file": str(out)}
    assert "slice 5" in out.read_text()
    assert "slice 3" not in out.read_text()


@pytest.mark.parametrize("name", ["overlays", "scores", "separation"])
def test_further_runs_come_after_with(runs, tmp_path, name: str) -> None:
    out = tmp_path / "a.svg"
    assert adawac(["figure", runs[0], name, "--with", runs[1], "--out", str(out), "--width", "4.5"]) == 0
    for method in ("adawac", "baseline"):
        assert f">{method}</text>" in out.read_text()


def test_slices_are_chosen_by_score_or_id(runs, tmp_path) -> None:
    out = tmp_path / "a.svg"
    assert adawac(["figure", runs[0], "overlays", "--pick", "best", "--count", "1", "--out", str(out)]) == 0
    assert "Best 1 of 3 slices" in out.read_text()
    sample = next(iter(Run(runs[0]).gallery("test")))
    assert adawac(["figure", runs[0], "overlays", "--id", sample, "--gallery", "test", "--out", str(out)]) == 0
    assert sample.split("/")[2] in out.read_text()


def test_the_list_says_what_each_figure_shows(capsys) -> None:
    assert adawac(["figure", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(FIGURES)
    assert all(len(line) <= 100 for line in lines)
    assert adawac(["figure", "--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == FIGURES


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["figure"], "Expected a run folder and the name of a figure, but got neither. See `adawac figure --list`"),
        (["figure", "RUN"], "but got only"),
        (["figure", "RUN", "heatmap"], "Expected the name of a figure, but got 'heatmap'. Near names:"),
        (["figure", "nowhere", "curves"], "Expected a run folder, but nowhere has no run.json"),
        (["figure", "RUN", "scores", "--with", "nowhere"], "Expected a run folder, but nowhere has no run.json"),
        (["figure", "RUN", "curves", "--out", "a.gif"], "Expected a file that ends in .png, .svg or .pdf"),
        (["figure", "RUN", "curves", "--case", "x"], "Expected a case of"),
        (["figure", "RUN", "curves", "--slices", "99"], "has no 99"),
        (["figure", "RUN", "curves", "--slices", "two"], 'unable to convert "two" into int'),
        (["figure", "RUN", "curves", "--theme", "sepia"], 'Choose from: "light", "dark"'),
        (["figure", "RUN", "curves", "--width", "0.1"], "Expected a width of column, text, or 2.5 to 20 inches"),
        (["figure", "RUN", "weights", "--pick", "best"], "Expected only options of the figure 'weights'"),
        (["figure", "RUN", "overlays", "--id", "x"], "Expected slices of the gallery"),
        (["figure", "RUN", "scores", "--evaluation", "x"], "Expected the name of scores, but got 'x'"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(runs, capsys, words, message: str) -> None:
    assert adawac([runs[0] if word == "RUN" else word for word in words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("adawac: ")
    assert message in err
    assert "Traceback" not in err
