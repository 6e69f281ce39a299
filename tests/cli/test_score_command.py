"""`adawac score`, as a user types it: tables, files, exit codes."""

import csv
import json
import re

import pytest

from adawac.cli import run
from tests.evaluation.label_map_folders import make_folders


@pytest.fixture
def words(tmp_path):
    return ["score", *map(str, make_folders(tmp_path / "data")), "--workers", "0"]


def test_folders_side_by_side(words, capsys):
    assert run(words) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert re.search(r"^ *good +4 +class 1 +\d\d\.\d\d +\d+\.\d\d *$", out, re.M)
    assert "worse minus good" in out
    assert "data: 4 cases of 4 patients; convention strict." in out
    assert "seeds" not in out


def test_every_format_and_the_scores_of_each_case(words, tmp_path, capsys):
    for ending in ("csv", "json", "md", "tex", "html"):
        assert run([*words, "--out", str(tmp_path / f"t.{ending}"), "--cases", str(tmp_path / "cases.csv")]) == 0
    capsys.readouterr()
    everything = json.loads((tmp_path / "t.json").read_text())
    mean = everything["evaluations"][0]["metrics"]["dice"][-1]["mean"]
    page = (tmp_path / "t.html").read_text()
    assert f"<td>{100 * mean:.2f} ± " in page
    assert "false volumes" in page
    assert "http" not in page
    rows = list(csv.DictReader((tmp_path / "cases.csv").read_text().splitlines()))
    assert len(rows) == 2 * 4 * 2
    dice = [float(row["dice"]) for row in rows if row["predictions"] == "good"]
    assert sum(dice) / len(dice) == pytest.approx(mean)
    assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == everything | {"faults": []}


def test_what_cannot_be_scored_is_said_and_the_exit_code_is_1(words, tmp_path, capsys):
    folder = tmp_path / "data" / "good"
    first, second, *_ = sorted(folder.iterdir())
    first.write_bytes(b"")
    second.unlink()
    assert run([*words, "--out", str(tmp_path / "t.md")]) == 1
    out, err = capsys.readouterr()
    assert "worse minus good" in out
    assert "Not of the same cases" in out
    lines = err.splitlines()
    assert len(lines) == 3
    assert re.match(r"adawac: good: Expected a prediction of each case .* 1 has none: patient0_frame1\.", lines[0])
    assert re.match(r"adawac: good: patient0_frame0: Expected a NIfTI file, but .* cannot be read", lines[1])
    assert lines[2] == "adawac: cases that were scored: good 2, worse 4."
    assert "### Not scored" in (tmp_path / "t.md").read_text()


def test_many_faults_are_counted(tmp_path, capsys):
    truth, good, _ = make_folders(tmp_path, cases=25, shape=(6, 5, 3))
    for path in good.iterdir():
        path.write_bytes(b"")
    assert run(["score", str(truth), str(good), "--workers", "0"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 22
    assert lines[-2:] == [
        "adawac: 5 more; --out scores.json lists all.",
        "adawac: cases that were scored: none.",
    ]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--axis", "7"], "Expected --axis to be 0, 1 or 2"),
        (["--classes", "liver"], "Expected a class with its label values"),
        (["--cases", "cases.json"], r"ends in \.csv"),
        (["--out", "t.docx"], r"ends in \.csv, \.json, \.md, \.tex, \.html"),
        (["--dataset-json", "none.json"], "none.json is not there"),
        (["--convention", "lax"], 'Choose from: "strict"'),
    ],
)
def test_bad_arguments_are_one_message_and_exit_code_2(words, more, message, capsys):
    assert run([*words, *more]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(message, err), err
    assert err.count("\n") == 1
