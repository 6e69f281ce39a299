"""Runs that are evaluated together, or elsewhere: what counts as a seed, who is paired with whom, what is kept."""

import pytest
from drawn_cases import random_cases, training_cases
from lookup_network import DrawnCase, make_run, make_store

from adawac.cli import run
from adawac.errors import ConfigError
from adawac.evaluation import compare, evaluate
from adawac.evaluation.comparison import by_configuration, over_seeds
from adawac.evaluation.tables import Table, to_latex, to_tables
from adawac.runs import Run, RunWriter

CASES = random_cases() | training_cases()


def test_runs_of_two_data_sets_are_no_seeds_and_share_no_patients(tmp_path):
    """Patients of both are called p0, p1, p2."""
    stores = {name: make_store(tmp_path / f"{name}-store", CASES, dataset=name) for name in ("here", "there")}
    runs = [
        make_run(tmp_path / f"{name}-{method}", stores[name], size=(9, 9), method=method, seed=seed)
        for seed, (name, method) in enumerate([("here", "adawac"), ("there", "adawac"), ("there", "baseline")])
    ]
    apart = evaluate(runs[:2], workers=0, gallery=0)
    assert list(by_configuration(apart)) == ["adawac, here", "adawac, there"]
    assert all(one.num_seeds == 1 for one in over_seeds(apart))
    assert compare(apart) == []
    found = evaluate(runs, workers=0, gallery=0)
    assert {(one.first, one.second) for one in compare(found)} == {("adawac, there", "baseline, there")}
    assert {one.difference.num_patients for one in compare(found)} == {3}
    *_, seeds, last = to_tables(found)
    assert last.title == "baseline, there minus adawac, there"
    (note,) = seeds.notes
    assert note.startswith("Tested on several data sets (here, there): differences are between runs of one data set")


def test_scores_say_which_data_set_they_are_of(tmp_path):
    own = make_run(tmp_path / "run", make_store(tmp_path / "store", CASES, dataset="here"), size=(9, 9))
    other = make_store(tmp_path / "other", random_cases(4, seed=5), dataset="there")
    for store, dataset in ((None, "here"), (other.path, "there")):
        [one] = evaluate(own, data=store, workers=0, gallery=0)
        assert {score.dataset for score in Run(own.folder).scores(one.name)} == {dataset}


def test_runs_on_scans_prepared_otherwise_are_no_seeds_but_share_patients(tmp_path):
    runs = [
        make_run(tmp_path / name, make_store(tmp_path / f"{name}-store", CASES, **options), size=(9, 9))
        for name, options in (("plain", {}), ("scaled", {"normalisation": "min-max"}))
    ]
    found = evaluate(runs, workers=0, gallery=0)
    assert list(by_configuration(found)) == ["adawac [plain]", "adawac [scaled]"]
    assert {one.difference.num_patients for one in compare(found)} == {3}


def test_a_class_is_compared_with_its_like(tmp_path):
    runs = [
        make_run(tmp_path / name, make_store(tmp_path / f"{name}-store", CASES, classes=("organ", name)), size=(9, 9))
        for name in ("lesion", "vessel")
    ]
    found = evaluate(runs, metrics=["dice"], workers=0, gallery=0)
    assert [one.class_name for one in compare(found)] == ["organ", "mean"]


def test_a_run_counts_once(tmp_path, capsys):
    own = make_run(tmp_path / "run", make_store(tmp_path / "store", CASES), size=(9, 9)).folder
    assert run(["evaluate", str(own), str(own.parent / "." / "run"), "--workers", "0"]) == 2
    assert "run twice: it would count as two seeds. Leave one out." in capsys.readouterr().err
    assert Run(own).evaluations == []


def test_millimetres_and_voxels_are_not_compared(tmp_path):
    lost = {name: DrawnCase(**{**vars(one), "spacing": None}) for name, one in CASES.items()}
    runs = [
        make_run(tmp_path / name, make_store(tmp_path / f"{name}-store", cases), size=(9, 9), method=method)
        for name, cases, method in (("kept", CASES, "baseline"), ("lost", lost, "adawac"))
    ]
    with pytest.raises(ConfigError, match=r"kept are in mm and those of .*lost in voxel.*--spacing voxel"):
        evaluate(runs, workers=0, gallery=0)
    assert Run(tmp_path / "kept").evaluations == []
    assert {one.unit for one in evaluate(runs, spacing="voxel", workers=0, gallery=0)} == {"voxel"}
    with pytest.raises(ConfigError, match="one unit"):
        compare([evaluate(one, workers=0, gallery=0)[0] for one in runs])


def test_seeds_that_were_tested_on_other_cases_are_told(tmp_path):
    store = make_store(
        tmp_path / "store", {name: DrawnCase(**{**vars(one), "group": ""}) for name, one in CASES.items()}
    )

    def notes(split):
        runs = [
            make_run(tmp_path / f"{split}-{seed}", store, size=(9, 9), seed=seed, split=split) for seed in (1, 2, 3)
        ]
        (seeds,) = (one for one in to_tables(evaluate(runs, workers=0, gallery=0)) if "over seeds" in one.title)
        return seeds.notes

    assert notes("paper") == ()
    (note,) = notes("stratified")
    assert note.startswith("adawac: its runs were not tested on the same cases")


def test_what_is_not_usual_does_not_replace_the_scores_of_the_run(tmp_path):
    own = make_run(tmp_path / "run", make_store(tmp_path / "store", CASES), size=(9, 9))
    other = make_store(tmp_path / "other", random_cases(4, seed=5), dataset="Zürich_2")
    names = [
        evaluate(own, workers=0, gallery=3, **options)[0].name
        for options in ({}, {"data": other.path}, {"tolerance": 2.5}, {"data": other.path, "spacing": "voxel"})
    ]
    assert names == [
        "test-strict-last",
        "test-strict-last-Z-rich-2",
        "test-strict-last-within2.5",
        "test-strict-last-Z-rich-2-voxel",
    ]
    assert Run(own.folder).evaluations == sorted(names)
    assert {one.case for one in Run(own.folder).scores(names[0])} == {f"case-{number}" for number in range(5)}
    assert Run(own.folder).galleries == ["test-last", "test-last-Z-rich-2", "train-last"]
    with pytest.raises(Exception, match="tolerance of 0 or more"):
        evaluate(own, tolerance=-1)


def test_a_run_that_is_not_finished_is_told(tmp_path, caplog):
    own = make_run(tmp_path / "run", make_store(tmp_path / "store", CASES), size=(9, 9))
    evaluate(own, workers=0, gallery=0)
    assert caplog.text == ""
    writer = RunWriter(own.folder, own.config, epochs=1, resume=True)
    writer.rewind(1)
    writer.close("interrupted")
    evaluate(own.folder, workers=0, gallery=0)
    assert "run is not finished (epoch 0 of 1)" in caplog.text


def test_names_that_begin_like_an_option_do_not_break_a_line_of_latex():
    rows = [line for line in to_latex([Table(title="t", header=("a",), rows=[("[x]",), ("*y",)])]).splitlines()]
    assert [line.strip() for line in rows if line.endswith(r"\\")] == [r"a \\", r"{}[x] \\", r"{}*y \\"]
