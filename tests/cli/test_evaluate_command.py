"""`adawac evaluate`, as a user types it: tables, files, comparisons, and what goes wrong."""

import csv
import json
import math
import re
import shutil

import pytest

from adawac.cli import run
from adawac.evaluation import compare, evaluate, paired_difference
from adawac.evaluation.comparison import by_configuration, over_seeds
from adawac.runs import Run, example_run
from tests.evaluation.drawn_cases import outcome_cases, random_cases, training_cases
from tests.networks.lookup_network import make_run, make_store

# Class, mean DSC in %, mean HD95 in voxels.
GOLDEN = {
    "adawac": {"organ": (36.0, 0.2), "lesion": (100.0, 0.0), "mean": (68.0, 0.1)},
    "transunet": {"organ": (56.0, 0.2), "lesion": (100.0, 0.0), "mean": (78.0, 0.1)},
}


@pytest.fixture
def several(varied, tmp_path):
    """Two seeds of AdaWAC, and a baseline that finds no lesion."""
    return [
        make_run(tmp_path / "baseline-1", varied, size=(9, 9), method="baseline", bias=[0, 0, -9]).folder,
        make_run(tmp_path / "adawac-1", varied, size=(9, 9), seed=1).folder,
        make_run(tmp_path / "adawac-2", varied, size=(9, 9), seed=2, bias=[0.1, 0, 0]).folder,
    ]


@pytest.mark.parametrize("convention", GOLDEN)
def test_golden_tables(outcome_run, convention, capsys):
    assert run(["evaluate", str(outcome_run.folder), "--convention", convention, "--workers", "0", "--full"]) == 0
    out = capsys.readouterr().out
    tables = {title: out.split(title)[1] for title in ("DSC, %", "HD95, voxels")}
    for name, expected in GOLDEN[convention].items():
        for (_, text), value in zip(tables.items(), expected, strict=True):
            row = re.search(rf"^ *{name} +([\d.]+) ± [\d.]+ +([\d.]+) to ([\d.]+)", text, re.M)
            assert float(row[1]) == pytest.approx(value, abs=0.005)
            assert float(row[2]) <= value <= float(row[3])
    assert "5 cases of 5 patients; checkpoint last; convention " + convention in out
    assert "Structures: 1 missed (organ: 1), 2 invented (organ: 2)." in out
    assert "1 of 5 (20.0 %)" in out
    assert f"scores/test-{convention}-last.csv" in out
    assert Run(outcome_run.folder).galleries == ["test-last", "train-last"]


def test_json_has_the_numbers_of_the_tables(outcome_run, capsys):
    words = ["evaluate", str(outcome_run.folder), "--convention", "adawac", "--workers", "0", "--gallery", "0"]
    assert run([*words, "--json"]) == 0
    (evaluation,) = json.loads(capsys.readouterr().out)["evaluations"]
    assert evaluation["num_cases"] == 5
    for index, name in enumerate(("organ", "lesion", "mean")):
        for metric, expected in zip(("dice", "hd95"), GOLDEN["adawac"][name], strict=True):
            summary = evaluation["metrics"][metric][index]
            assert summary["class_name"] == name
            assert summary["mean"] * (100 if metric == "dice" else 1) == pytest.approx(expected)
    assert evaluation["slices"][-1]["sparse_found"] == 1
    assert set(evaluation["groups"]) == {"ill", "well"}
    assert Run(outcome_run.folder).galleries == []


def test_every_format_reads_back(several, tmp_path, capsys):
    words = ["evaluate", *map(str, several), "--workers", "0", "--gallery", "0", "--out"]
    texts = {}
    for ending in ("csv", "json", "md", "tex"):
        path = tmp_path / "tables" / f"table.{ending}"
        assert run([*words, str(path)]) == 0
        texts[ending] = path.read_text()
    capsys.readouterr()
    everything = json.loads(texts["json"])
    means = {
        (evaluation["run"], metric, row["class_name"]): row["mean"]
        for evaluation in everything["evaluations"]
        for metric, rows in evaluation["metrics"].items()
        for row in rows
    }
    rows = list(csv.DictReader(texts["csv"].splitlines()))
    assert {(row["run"], row["metric"], row["class_name"]): float(row["mean"]) for row in rows} == means
    markdown = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in texts["md"].splitlines()
        if line.startswith("| ")
    ]
    latex = [
        [cell.strip() for cell in line.removesuffix(r"\\").split(" & ")]
        for line in texts["tex"].splitlines()
        if line.endswith(r"\\")
    ]
    assert len(markdown) == len(latex) > 30
    assert texts["tex"].count(r"\begin{tabular}") == texts["tex"].count(r"\end{tabular}") == texts["md"].count("### ")
    for mean in (means[str(folder), "dice", "organ"] for folder in several):
        assert any(row[0] == "organ" and row[1].startswith(f"{100 * mean:.2f} ± ") for row in markdown)
        assert any(row[0] == "organ" and row[1].startswith(rf"{100 * mean:.2f} $\pm$ ") for row in latex)
    widths = [len(row) for row in markdown]
    assert widths == [len(row) for row in latex]


def test_several_runs_are_grouped_and_compared(several):
    evaluations = evaluate(several, workers=0, gallery=0)
    groups = by_configuration(evaluations)
    assert {name: [evaluation.label for evaluation in group] for name, group in groups.items()} == {
        "baseline": ["baseline-1"],
        "adawac": ["adawac-1", "adawac-2"],
    }
    seeds = {(seeds.configuration, seeds.metric, seeds.class_name): seeds for seeds in over_seeds(evaluations)}
    means = [evaluation.summaries["dice"][-1].mean for evaluation in evaluations]
    adawac = seeds["adawac", "dice", "mean"]
    assert adawac.mean == pytest.approx((means[1] + means[2]) / 2)
    assert adawac.std == pytest.approx(abs(means[1] - means[2]) / math.sqrt(2))
    assert math.isnan(seeds["baseline", "dice", "mean"].std)
    comparisons = {(comparison.metric, comparison.class_name): comparison for comparison in compare(evaluations)}
    lesion = comparisons["dice", "lesion"]
    assert (lesion.first, lesion.second) == ("baseline", "adawac")
    assert lesion.difference.num_patients == 3
    assert lesion.difference.mean > 0.2
    assert lesion.difference.p_value == pytest.approx(2 / 2**3)  # all three patients gain: as extreme as can be
    by_hand = {}
    for score in (score for evaluation in evaluations[1:] for score in evaluation.scores):
        if (score.metric, score.label) == ("dice", 2):
            by_hand.setdefault(score.patient, []).append(score.value)
    zeros = {
        patient: sum(values) / len(values)
        for patient, values in (
            (p, [s.value for s in evaluations[0].scores if (s.metric, s.label, s.patient) == ("dice", 2, p)])
            for p in by_hand
        )
    }
    gained = {patient: sum(values) / len(values) for patient, values in by_hand.items()}
    assert lesion.difference.mean == pytest.approx(paired_difference(zeros, gained).mean)


def test_runs_that_differ_in_a_setting_are_not_seeds(varied, tmp_path):
    runs = [
        make_run(tmp_path / "narrow", varied, size=(9, 9), seed=1),
        make_run(tmp_path / "wide", varied, size=(12, 12), seed=2),
    ]
    evaluations = evaluate(runs, workers=0, gallery=0)
    assert list(by_configuration(evaluations)) == ["adawac [narrow]", "adawac [wide]"]


def test_a_run_is_one_table_unless_more_is_wanted(outcome_run, capsys):
    words = ["evaluate", str(outcome_run.folder), "--convention", "adawac", "--workers", "0", "--gallery", "0"]
    assert run(words) == 0
    out = capsys.readouterr().out
    assert out.count("\n") < 12
    for name, (dice, distance) in GOLDEN["adawac"].items():
        assert re.search(rf"^ *{name} +{dice:.2f} ± [\d.]+ +{distance:.2f} ± [\d.]+ *$", out, re.M), out
    assert "Structures: 1 missed (organ: 1), 2 invented (organ: 2)." in out
    assert "--full" in out


def test_several_runs_are_two_short_tables_unless_more_is_wanted(several, capsys):
    words = ["evaluate", *map(str, several), "--workers", "0", "--gallery", "0"]
    assert run(words) == 0
    out = capsys.readouterr().out
    assert out.count("\n") < 30
    assert len(re.findall(r"^ *(?:adawac +2|baseline +1) +(?:organ|lesion|mean) ", out, re.M)) == 6
    compared = out.split("adawac minus baseline")[1]
    assert re.search(r"DSC, % +mean +\+", compared)
    assert "lesion" not in compared
    assert re.search(r"^baseline-1: Structures: \d+ missed \(.*lesion: \d", out, re.M)
    assert run([*words, "--full"]) == 0
    assert capsys.readouterr().out.count("\n") > 60


def test_comparison_on_the_console(several, capsys):
    assert run(["evaluate", *map(str, several), "--workers", "1", "--gallery", "0", "--full"]) == 0
    out = capsys.readouterr().out
    assert "adawac minus baseline" in out
    assert re.search(r"DSC, % +lesion +\+\d+\.\d\d +\+\d+\.\d\d to \+\d+\.\d\d +0\.25 +3 *$", out, re.M)
    assert "sign-flip permutation test" in out
    assert len(re.findall(r"^ *adawac +2 ", out, re.M)) == 3
    assert [Run(folder).evaluations for folder in several] == 3 * [["test-strict-last"]]


# -- what goes wrong --------------------------------------------------------------------------------------------------


def refuse(words, message, capsys):
    """Check that there is one message, exit code 2 and nothing on stdout."""
    assert run(["evaluate", *map(str, words), "--workers", "0"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(message, err), err
    assert err.startswith("adawac: ")
    assert err.count("\n") == 1


def files(folder):
    return sorted(str(path) for path in folder.rglob("*"))


def test_a_store_that_is_gone(tmp_path, capsys):
    store = make_store(tmp_path / "store", outcome_cases() | training_cases())
    folder = make_run(tmp_path / "run", store).folder
    shutil.move(tmp_path / "store", tmp_path / "moved")
    before = files(folder)
    refuse([folder], r"store no longer exists\. Give its new path as --data", capsys)
    refuse([folder, "--data", tmp_path / "nowhere"], r"nowhere is not there\. Correct the path", capsys)
    assert files(folder) == before
    assert run(["evaluate", str(folder), "--data", str(tmp_path / "moved"), "--workers", "0", "--gallery", "0"]) == 0


def test_runs_that_cannot_be_evaluated(outcome_run, outcomes, tmp_path, capsys):
    refuse([tmp_path / "none"], r"has no run\.json", capsys)
    refuse([outcome_run.folder, "--checkpoint", "first"], r"but got 'first'\. Near names: 'last'", capsys)
    bare = make_run(tmp_path / "bare", outcomes, checkpoints=())
    refuse([bare.folder], r"checkpoints: there is none", capsys)
    drawn = example_run(tmp_path / "example")
    refuse([drawn.folder], r"names none\. Give it as --data", capsys)
    refuse([outcome_run.folder, "--device", "cuda:77"], r"Use auto, cpu, cuda", capsys)


@pytest.mark.parametrize(
    ("option", "count", "least"), [("batch-size", 0, 1), ("batch-size", -5, 1), ("gallery", -3, 0)]
)
def test_counts_below_the_least_are_refused(outcome_run, option, count, least, capsys):
    refuse(
        [outcome_run.folder, f"--{option}", count],
        rf"Expected --{option} to be {least} or more, but got {count}",
        capsys,
    )


def test_splits_without_cases(outcome_run, capsys):
    refuse([outcome_run.folder, "--split-part", "val"], r"Expected val cases in the split 'paper'", capsys)
    refuse([outcome_run.folder, "--split-part", "val"], r"--split-part: train or test.*--split stratified", capsys)


def test_a_store_with_other_classes(outcome_run, tmp_path, capsys):
    other = make_store(tmp_path / "other", outcome_cases() | training_cases(), classes=("organ", "vessel"))
    refuse([outcome_run.folder, "--data", other.path], r"organ, lesion, but .* organ, vessel", capsys)


def test_tables_that_cannot_be_written(outcome_run, tmp_path, capsys):
    before = files(outcome_run.folder)
    (tmp_path / "file").write_text("")
    refuse([outcome_run.folder, "--out", tmp_path / "table.docx"], r"\.csv, \.json, \.md, \.tex, \.html", capsys)
    refuse([outcome_run.folder, "--out", tmp_path / "file" / "table.md"], r"is not a writable folder", capsys)
    folder = tmp_path / "folder.md"
    folder.mkdir()
    refuse([outcome_run.folder, "--out", folder], r"is a folder", capsys)
    assert files(outcome_run.folder) == before


def test_nothing_is_written_when_the_last_run_fails(several, capsys):
    (several[-1] / "checkpoints" / "last.safetensors").write_bytes(b"damaged")
    before = [files(folder) for folder in several]
    refuse(several, r"damaged", capsys)
    assert [files(folder) for folder in several] == before


def test_a_run_folder_that_cannot_be_written(outcome_run, capsys):
    (outcome_run.folder / "scores").write_text("a file where a folder should be")
    refuse([outcome_run.folder], r"Expected to write scores into", capsys)


def test_names_from_files_cannot_steer_the_terminal(tmp_path, capsys):
    drawn = random_cases(2) | training_cases()
    store = make_store(tmp_path / "store", drawn, classes=("or\x1b[31mgan", "le|s_ion\n"))
    folder = make_run(tmp_path / "run", store).folder
    assert run(["evaluate", str(folder), "--workers", "0", "--gallery", "0", "--out", str(tmp_path / "t.md")]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert r"le\|s_ion" in (tmp_path / "t.md").read_text()
