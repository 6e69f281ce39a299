"""Runs that are evaluated together, or elsewhere: what counts as a seed, who is paired with whom, what is kept."""

import re
import shutil

import pytest

from adawac.cli import run
from adawac.errors import ConfigError
from adawac.evaluation import compare, evaluate
from adawac.evaluation.comparison import by_configuration, over_seeds, repeated_seeds
from adawac.evaluation.tables import Table, to_latex, to_tables
from adawac.runs import Run, RunWriter
from tests.evaluation.drawn_cases import random_cases, training_cases
from tests.networks.lookup_network import DrawnCase, make_run, make_store

CASES = random_cases() | training_cases()


def test_runs_of_two_data_sets_are_not_seeds_and_share_no_patients(tmp_path):
    """Patients of both are called p0, p1, p2."""
    stores = {name: make_store(tmp_path / f"{name}-store", CASES, dataset=name) for name in ("here", "there")}
    runs = [
        make_run(tmp_path / f"{name}-{method}", stores[name], size=(9, 9), method=method, seed=seed)
        for seed, (name, method) in enumerate([("here", "adawac"), ("there", "adawac"), ("there", "baseline")])
    ]
    apart = evaluate(runs[:2], workers=0, gallery=0)
    assert list(by_configuration(apart)) == ["adawac, here", "adawac, there"]
    assert all(seeds.num_seeds == 1 for seeds in over_seeds(apart))
    assert compare(apart) == []
    evaluations = evaluate(runs, workers=0, gallery=0)
    assert {(comparison.first, comparison.second) for comparison in compare(evaluations)} == {
        ("adawac, there", "baseline, there")
    }
    assert {comparison.difference.num_patients for comparison in compare(evaluations)} == {3}
    *_, seeds, last = to_tables(evaluations)
    assert last.title == "baseline, there minus adawac, there"
    (note,) = seeds.notes
    assert note.startswith("Tested on several data sets (here, there)")


def test_scores_say_which_data_set_they_are_of(tmp_path):
    run = make_run(tmp_path / "run", make_store(tmp_path / "store", CASES, dataset="here"), size=(9, 9))
    other = make_store(tmp_path / "other", random_cases(4, seed=5), dataset="there")
    for store, dataset in ((None, "here"), (other.path, "there")):
        [evaluation] = evaluate(run, data=store, workers=0, gallery=0)
        assert {score.dataset for score in Run(run.folder).scores(evaluation.name)} == {dataset}


def test_runs_on_differently_preprocessed_scans_are_not_seeds_but_share_patients(tmp_path):
    runs = [
        make_run(tmp_path / name, make_store(tmp_path / f"{name}-store", CASES, **options), size=(9, 9))
        for name, options in (("plain", {}), ("scaled", {"normalisation": "min-max"}))
    ]
    evaluations = evaluate(runs, workers=0, gallery=0)
    assert list(by_configuration(evaluations)) == ["adawac [plain]", "adawac [scaled]"]
    assert {comparison.difference.num_patients for comparison in compare(evaluations)} == {3}


def test_path_and_loading_of_the_store_do_not_change_the_configuration(tmp_path):
    runs = [
        make_run(tmp_path / f"{seed}", make_store(tmp_path / f"{seed}-store", CASES), size=(9, 9), seed=seed, **reading)
        for seed, reading in ((1, {}), (2, {"residence": "stream", "workers": 3}))
    ]
    config = runs[1].folder / "config.yaml"
    config.write_text(re.sub(r"checkpoint_every: \d+", "checkpoint_every: 7", config.read_text()))
    assert Run(runs[0].folder).settings["checkpoint_every"] != Run(runs[1].folder).settings["checkpoint_every"]
    evaluations = evaluate([run.folder for run in runs], workers=0, gallery=0)
    assert [len(seeds) for seeds in by_configuration(evaluations).values()] == [2]


def test_another_precision_is_another_configuration_and_other_hardware_is_not(tmp_path):
    store = make_store(tmp_path / "store", CASES)
    hardware = {"first": {}, "wide": {"devices: 1": "devices: 2"}, "half": {"precision: auto": "precision: bf16"}}
    for seed, (name, changes) in enumerate(hardware.items()):
        config = make_run(tmp_path / name, store, size=(9, 9), seed=seed).folder / "config.yaml"
        for old, new in changes.items():
            assert old in config.read_text()
            config.write_text(config.read_text().replace(old, new))
    evaluations = evaluate([tmp_path / name for name in hardware], workers=0, gallery=0)
    assert {name: len(seeds) for name, seeds in by_configuration(evaluations).items()} == {
        "adawac, auto": 2,
        "adawac, bf16": 1,
    }
    assert {(comparison.first, comparison.second) for comparison in compare(evaluations)} == {
        ("adawac, auto", "adawac, bf16")
    }


def test_a_run_that_is_tested_elsewhere_is_another_configuration(tmp_path):
    store, other = (make_store(tmp_path / f"{name}-store", CASES, dataset=name) for name in ("here", "there"))
    runs = [make_run(tmp_path / f"{seed}", store, size=(9, 9), seed=seed) for seed in (1, 2)]
    (home,), (elsewhere,) = (
        evaluate(run, data=data, workers=0, gallery=0) for run, data in zip(runs, (None, other.path), strict=True)
    )
    assert [len(group) for group in by_configuration([home, elsewhere]).values()] == [1, 1]


def test_every_comparison_has_a_table_of_its_own(tmp_path):
    store = make_store(tmp_path / "store", CASES)
    runs = [make_run(tmp_path / name, store, size=(9, 9), method=name) for name in ("baseline", "pair", "adawac")]
    *_, first, second = to_tables(evaluate(runs, metrics=["dice"], workers=0, gallery=0))
    assert (first.title, second.title) == ("pair minus baseline", "adawac minus baseline")
    assert [row[1] for row in first.rows] == [row[1] for row in second.rows] == ["organ", "lesion", "mean"]


def test_only_what_both_measured_is_compared(tmp_path):
    store = make_store(tmp_path / "store", CASES)
    evaluated = [
        evaluate(make_run(tmp_path / method, store, size=(9, 9), method=method), metrics=metrics, workers=0, gallery=0)
        for method, metrics in (("baseline", ["dice", "hd95"]), ("adawac", ["dice"]))
    ]
    assert {comparison.metric for comparison in compare([evaluation for (evaluation,) in evaluated])} == {"dice"}


def test_a_class_is_compared_with_its_like(tmp_path):
    runs = [
        make_run(tmp_path / name, make_store(tmp_path / f"{name}-store", CASES, classes=("organ", name)), size=(9, 9))
        for name in ("lesion", "vessel")
    ]
    evaluations = evaluate(runs, metrics=["dice"], workers=0, gallery=0)
    assert [comparison.class_name for comparison in compare(evaluations)] == ["organ", "mean"]


def test_a_run_counts_once(tmp_path, capsys):
    folder = make_run(tmp_path / "run", make_store(tmp_path / "store", CASES), size=(9, 9)).folder
    assert run(["evaluate", str(folder), str(folder.parent / "." / "run"), "--workers", "0"]) == 2
    assert "run twice: it would count as two seeds. Leave one out." in capsys.readouterr().err
    assert Run(folder).evaluations == []


def test_note_about_a_copied_run_that_counts_twice(tmp_path):
    store = make_store(tmp_path / "store", CASES)
    runs = [make_run(tmp_path / f"run-{seed}", store, size=(9, 9), seed=seed) for seed in (1, 2)]
    copied = shutil.copytree(runs[0].folder, tmp_path / "copy")
    assert repeated_seeds(evaluate(runs, workers=0, gallery=0)) == []
    evaluations = evaluate([*runs, copied], workers=0, gallery=0)
    assert repeated_seeds(evaluations) == ["adawac"]
    (seeds,) = (table for table in to_tables(evaluations) if "over seeds" in table.title)
    assert seeds.notes[0].startswith("adawac: several of its runs have the same seed")


def test_millimetres_and_voxels_are_not_compared(tmp_path):
    lost = {name: DrawnCase(**{**vars(case), "spacing": None}) for name, case in CASES.items()}
    runs = [
        make_run(tmp_path / name, make_store(tmp_path / f"{name}-store", cases), size=(9, 9), method=method)
        for name, cases, method in (("kept", CASES, "baseline"), ("lost", lost, "adawac"))
    ]
    with pytest.raises(ConfigError, match=r"kept are in mm and those of .*lost in voxel.*`spacing='voxel'`"):
        evaluate(runs, workers=0, gallery=0)
    assert Run(tmp_path / "kept").evaluations == []
    assert {evaluation.unit for evaluation in evaluate(runs, spacing="voxel", workers=0, gallery=0)} == {"voxel"}
    with pytest.raises(ConfigError, match="one unit"):
        compare([evaluate(run, workers=0, gallery=0)[0] for run in runs])


def test_note_about_seeds_tested_on_different_cases(tmp_path):
    store = make_store(
        tmp_path / "store", {name: DrawnCase(**{**vars(case), "group": ""}) for name, case in CASES.items()}
    )

    def tested(split):
        runs = [make_run(tmp_path / f"{split}-{seed}", store, size=(9, 9), seed=seed, split=split) for seed in (1, 2)]
        return evaluate(runs, workers=0, gallery=0)

    def notes(evaluations):
        (seeds,) = (table for table in to_tables(evaluations) if "over seeds" in table.title)
        return seeds.notes

    same, others = tested("paper"), tested("stratified")
    assert notes(same) == ()
    (note,) = notes(others)
    assert note.startswith("adawac: its runs were not tested on the same cases")
    shared = set.intersection(*({score.patient for score in evaluation.scores} for evaluation in (*same, *others)))
    assert {comparison.difference.num_patients for comparison in compare([*same, *others])} == {len(shared)}


def test_unusual_scores_get_a_name_of_their_own(tmp_path):
    run = make_run(tmp_path / "run", make_store(tmp_path / "store", CASES), size=(9, 9))
    other = make_store(tmp_path / "other", random_cases(4, seed=5), dataset="Zürich_2")
    names = [
        evaluate(run, workers=0, gallery=3, **options)[0].name
        for options in ({}, {"data": other.path}, {"tolerance": 2.5}, {"data": other.path, "spacing": "voxel"})
    ]
    assert names == [
        "test-strict-last",
        "test-strict-last-Z-rich-2",
        "test-strict-last-within2.5",
        "test-strict-last-Z-rich-2-voxel",
    ]
    assert Run(run.folder).evaluations == sorted(names)
    assert {score.case for score in Run(run.folder).scores(names[0])} == {f"case-{number}" for number in range(5)}
    assert Run(run.folder).galleries == ["test-last", "test-last-Z-rich-2", "train-last"]
    with pytest.raises(Exception, match="tolerance of 0 or more"):
        evaluate(run, tolerance=-1)


def test_warning_about_an_unfinished_run(tmp_path, caplog):
    run = make_run(tmp_path / "run", make_store(tmp_path / "store", CASES), size=(9, 9))
    evaluate(run, workers=0, gallery=0)
    assert caplog.text == ""
    writer = RunWriter(run.folder, run.config, epochs=1, resume=True)
    writer.rewind(1)
    writer.close("interrupted")
    evaluate(run.folder, workers=0, gallery=0)
    assert "run is not finished (epoch 0 of 1)" in caplog.text


def test_names_that_begin_like_an_option_do_not_break_a_line_of_latex():
    rows = [line for line in to_latex([Table(title="t", header=("a",), rows=[("[x]",), ("*y",)])]).splitlines()]
    assert [line.strip() for line in rows if line.endswith(r"\\")] == [r"a \\", r"{}[x] \\", r"{}*y \\"]


def test_differences_say_where_the_seeds_are_not_the_same(tmp_path):
    store = make_store(tmp_path / "store", CASES)
    runs = [
        make_run(tmp_path / f"{method}-{seed}", store, size=(9, 9), method=method, seed=seed)
        for method, seed in (("baseline", 1), ("baseline", 2), ("adawac", 1), ("adawac", 2))
    ]
    *_, whole = to_tables(evaluate(runs, workers=0, gallery=0))
    assert [note for note in whole.notes if "seeds" in note] == []
    *_, part = to_tables(evaluate(runs[:3], workers=0, gallery=0))
    assert part.notes[-1].startswith("Not the same seeds (baseline: 1, 2; adawac: 1)")
