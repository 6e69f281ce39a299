"""Cross-validation: every patient scored once, nothing done twice, and what is refused."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

import adawac
from adawac.cli import run as command
from adawac.config import override
from adawac.data.store import Store
from adawac.errors import ConfigError, RunError
from adawac.evaluation.case_scores import Rules, count_slices, score_case
from adawac.evaluation.out_of_fold import read_doubts, read_losses
from adawac.files import is_locked
from adawac.report.label_errors import LIST
from adawac.reproduction import crossvalidation, jobs
from adawac.reproduction.crossvalidation import SETTINGS, crossval
from adawac.reproduction.jobs import JobOutcome
from adawac.runs import Run, list_runs

OPTIONS = ("--set", "model.name=tests.networks.small_network:small", "--set", "data.image_size=32")
OPTIONS += ("--set", "data.batch_size=12", "--set", "hardware.accelerator=cpu", "--method", "adawac")

SAME = {"folds": 3, "test": "fold", "pictures": 2}


class InProcess:
    """An engine that does its jobs right here, and may be interrupted before one of them."""

    def __init__(self, stop_before: int | None = None):
        self.stop_before, self.names = stop_before, []

    def run(self, waiting, progress, end=float("inf")):
        for number, job in enumerate(waiting):
            if number == self.stop_before:
                raise KeyboardInterrupt
            self.names.append(job.name)
            jobs._work(job)
        return {job: JobOutcome(status="done") for job in waiting}


@pytest.fixture
def engine(monkeypatch):
    """Do folds in this process."""
    used = InProcess()
    monkeypatch.setattr(crossvalidation, "build_engine", lambda *_, **__: used)
    return used


@pytest.fixture
def settings(change, small_store):
    """The small network on the small store, two epochs."""
    return change(data__store=small_store, epochs=2)


@pytest.fixture(scope="module")
def outcome(small_store, tmp_path_factory):
    """A finished cross-validation with three folds."""
    from adawac.config import DataConfig, HardwareConfig, ModelConfig, TrainConfig

    config = TrainConfig(
        epochs=2,
        seed=1,
        data=DataConfig(store=small_store, image_size=(32, 32), batch_size=12),
        model=ModelConfig(name="tests.networks.small_network:small"),
        hardware=HardwareConfig(accelerator="cpu", precision="fp32"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crossvalidation, "build_engine", lambda *_, **__: InProcess())
        return config, crossval(config, tmp_path_factory.mktemp("crossval") / "cv", **SAME)


def times(folder):
    """When each file of the folds was written."""
    return {path: path.stat().st_mtime_ns for path in sorted((folder / "runs").rglob("*")) if path.is_file()}


def read(path):
    """The rows of a labeller's list, as a spreadsheet reads it."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_every_patient_is_scored_once_by_a_network_that_never_saw_them(outcome, small_store):
    _, found = outcome
    table = Store(small_store).table
    assert found.evaluation.num_patients == len(set(table.patient.tolist()))
    assert {summary.num_patients for summary in found.evaluation.summaries["dice"]} == {found.evaluation.num_patients}
    tested = []
    for folder in found.runs:
        run = Run(folder)
        held_out = {score.patient for score in run.scores("val-strict-last")}
        assert not held_out & set(run.samples.patient.tolist())
        tested += held_out
    assert sorted(tested) == sorted(set(table.patient.tolist()))
    of_folds = [score for folder in found.runs for score in Run(folder).scores("val-strict-last")]
    assert [score.value for score in found.evaluation.scores] == pytest.approx(
        [score.value for score in of_folds], nan_ok=True
    )
    pooled = Run(found.folder / "pooled")
    assert len(pooled.scores("out-of-fold-strict")) == len(of_folds)
    written = json.loads((found.folder / "scores.json").read_text())["evaluations"][0]
    assert written["num_patients"] == found.evaluation.num_patients
    assert "95 % interval" in (found.folder / "scores.md").read_text()


def test_predictions_and_losses_of_every_sample_are_kept(outcome, small_store):
    _, found = outcome
    store = Store(small_store)
    kept = [loss for folder in found.runs for loss in read_losses(folder / "out-of-fold")]
    assert sorted(loss.id for loss in kept) == sorted(store.table.id.tolist())
    assert all(np.isfinite([loss.ell_ce, loss.ell_dice]).all() for loss in kept)
    folder = found.runs[0]
    for case in dict.fromkeys(loss.case for loss in read_losses(folder / "out-of-fold")):
        prediction = read_doubts(folder / "out-of-fold", case).prediction
        again = score_case(small_store, case, prediction, Rules(convention="strict"))
        counted = found.evaluation.slices.of_case(case)
        for name, values in vars(count_slices(store, case, prediction, Rules(convention="strict"))).items():
            np.testing.assert_array_equal(values, getattr(again, name))
            np.testing.assert_array_equal(getattr(counted, name), values)
        scores = {score.label: score.value for score in Run(folder).scores("val-strict-last") if _is(score, case)}
        assert {row.label: row.dice for row in again.rows} == pytest.approx(scores, nan_ok=True)


def _is(score, case):
    return score.case == case and score.metric == "dice"


def test_the_pooled_history_is_the_mean_of_the_runs_that_trained_on_a_sample(outcome):
    _, found = outcome
    pooled, runs = Run(found.folder / "pooled"), [Run(folder) for folder in found.runs]
    for sample in pooled.samples.id[::9].tolist():
        having = [run for run in runs if sample in set(run.samples.id.tolist())]
        assert len(having) == 2
        mean = np.mean([run.trajectory(sample)["ell_ce"] for run in having], axis=0)
        np.testing.assert_allclose(pooled.trajectory(sample)["ell_ce"], mean, rtol=1e-6)


def test_the_ensemble_is_what_predict_makes_of_all_folds(outcome, small_store, tmp_path):
    import nibabel as nib

    _, found = outcome
    store = Store(small_store)
    volume = store.volume(store.cases[0])
    nib.save(nib.Nifti1Image(volume.image[0], volume.affine), tmp_path / "scan.nii.gz")
    options = {"device": "cpu", "probabilities": True, "trust_code": True}
    scan, model = tmp_path / "scan.nii.gz", found.folder / "model"
    results = [
        adawac.predict(networks, scan, tmp_path / name, **options)
        for name, networks in (("together", model), ("apart", list(found.runs)), ("one", found.runs[0]))
    ]
    assert not any(result[0].error for result in results)
    labels, probabilities = (
        [nib.load(result[0].files[number]).get_fdata() for result in results] for number in (0, -1)
    )
    np.testing.assert_array_equal(labels[0], labels[1])
    assert (probabilities[1] != probabilities[2]).any()
    temperature = json.loads((model / "ensemble.json").read_text())["temperature"]
    fitted = [Run(run).calibration for run in found.runs]
    assert {calibration.part for calibration in fitted} == {"val"}
    assert temperature == pytest.approx(np.prod([calibration.temperature for calibration in fitted]) ** (1 / 3))
    scaled = np.maximum(probabilities[1], 1e-9) ** (1 / temperature)
    np.testing.assert_allclose(probabilities[0], scaled / scaled.sum(axis=-1, keepdims=True), atol=2e-3)
    with pytest.raises(RunError, match="is an ensemble, which only `adawac predict` takes"):
        adawac.export_model(model, tmp_path / "model.onnx")
    broken = shutil.copytree(model, tmp_path / "broken")
    (broken / "ensemble.json").write_text('{"members": ["../../elsewhere"]}')
    with pytest.raises(RunError, match="names of model folders beside it"):
        adawac.predict(broken, scan, tmp_path / "out", **options)
    members = json.loads((model / "ensemble.json").read_text())["members"]
    (broken / "ensemble.json").write_text(json.dumps({"members": members, "temperature": -1.0}))
    with pytest.raises(RunError, match=r"Expected a temperature above 0 in .*ensemble\.json, but got -1\.0"):
        adawac.predict(broken, scan, tmp_path / "out", **options)


def test_again_nothing_is_done_twice_and_verdicts_stay(outcome, engine):
    config, found = outcome
    before = times(found.folder)
    listed = found.folder / LIST
    rows = read(listed)
    assert (found.folder / rows[0]["picture"]).is_file()
    rows[0] |= {"verdict": "wrong", "note": "liver, not spleen"}
    with listed.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    again = crossval(config, found.folder, **SAME)
    assert (engine.names, again.skipped) == ([], 3)
    assert times(found.folder) == before
    assert read(listed) == rows
    assert [suspect.id for suspect in again.suspects] == [suspect.id for suspect in found.suspects]


def test_shards_together_are_the_whole(outcome, engine, tmp_path, monkeypatch):
    config, whole = outcome
    out, free = tmp_path / "cv", []
    work = jobs._work
    monkeypatch.setattr(jobs, "_work", lambda job: (free.append(not is_locked(out)), work(job)))
    first = crossval(config, out, shard="1/2", **SAME)
    assert (first.evaluation, first.waiting, first.skipped) == (None, 1, 0)
    assert crossval(config, out, shard="1/2", **SAME).skipped == 2  # as after a requeue
    last = crossval(config, out, shard="2/2", **SAME)
    assert last.waiting == 0
    assert free == [True] * 3  # other shards may work at the same time
    assert len(set(engine.names)) == len(engine.names) == 3
    assert repr(last.evaluation.scores) == repr(whole.evaluation.scores)
    assert {path.name for path in last.files} == {path.name for path in whole.files}


def test_the_report_is_over_all_folds(outcome, tmp_path):
    _, found = outcome
    page = (found.folder / "report.html").read_text(encoding="utf-8")
    for name in ("pooled", *(folder.name for folder in found.runs), "out-of-fold", f'"list":"{LIST}"'):
        assert name in page
    assert '"list":null' in adawac.write_report(found.folder / "pooled", tmp_path / "other.html").read_text("utf-8")


def test_an_interrupted_one_goes_on(settings, tmp_path, monkeypatch):
    first, second = InProcess(stop_before=1), InProcess()
    monkeypatch.setattr(crossvalidation, "build_engine", lambda *_, **__: first)
    with pytest.raises(KeyboardInterrupt):
        crossval(settings, tmp_path / "cv", folds=2, test="keep", pictures=0)
    done = times(tmp_path / "cv")
    [finished] = list_runs(tmp_path / "cv" / "runs")
    (finished.folder / "out-of-fold" / "samples.csv").unlink()  # as if the kill had come while it was predicted
    monkeypatch.setattr(crossvalidation, "build_engine", lambda *_, **__: second)
    found = crossval(settings, tmp_path / "cv", folds=2, test="keep", pictures=0)
    assert len(second.names) == 2
    weights = finished.folder / "checkpoints" / "last.safetensors"
    assert weights.stat().st_mtime_ns == done[weights]
    table = Store(settings.data.store).table
    assert found.evaluation.num_patients == len(set(table.patient[table.split != "test"].tolist()))


def test_another_cross_validation_is_refused(outcome, engine, tmp_path):
    config, found = outcome
    for changed, options in (
        (override(config, {"epochs": 3}), {"folds": 3}),
        (config, {"folds": 2}),
        (config, {"folds": 3, "convention": "adawac"}),
    ):
        with pytest.raises(RunError, match=r"was begun with other settings: got (epochs=3 instead of 2|folds|conv)"):
            crossval(changed, found.folder, test="fold", **options)
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(RunError, match=r"holds 'thesis\.tex'"):
        crossval(config, tmp_path, folds=3, test="fold")
    assert engine.names == []
    # What does not decide the result may change.
    crossval(override(config, {"checkpoint_every": 2}), found.folder, **SAME)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"folds": 9, "test": "fold"}, "got 9 folds and 8 such patients"),
        ({"folds": 1, "test": "fold"}, "at least 2 folds"),
        ({"folds": 2}, "2 patients of .* are for testing.*test='keep'"),
        ({"folds": 2, "test": "all"}, "keep or fold, but got 'all'"),
        ({"folds": 2, "test": "fold", "convention": "mine"}, "mine"),
        ({"folds": 2, "test": "fold", "engine": "cloud"}, "local or ray"),
    ],
)
def test_what_cannot_be_cross_validated_is_refused_before_anything_is_written(settings, tmp_path, options, words):
    with pytest.raises(adawac.errors.AdawacError, match=words):
        crossval(settings, tmp_path / "cv", **options)
    assert not (tmp_path / "cv").exists()


def test_weights_that_the_fold_itself_would_choose_are_refused(settings, tmp_path):
    chosen = override(settings, {"validation.every": 1, "validation.select": "best"})
    with pytest.raises(ConfigError, match="chosen by the very fold that scores it"):
        crossval(chosen, tmp_path / "cv", folds=2, test="fold")
    with pytest.raises(ConfigError, match=r"Set data\.store"):
        crossval(replace(settings, data=replace(settings.data, store=None)), tmp_path / "cv", folds=2)


def test_settings_may_be_corrected_before_a_fold_has_begun(settings, tmp_path, monkeypatch):
    stopped = InProcess(stop_before=0)
    monkeypatch.setattr(crossvalidation, "build_engine", lambda *_, **__: stopped)
    for epochs in (2, 1):
        with pytest.raises(KeyboardInterrupt):
            crossval(override(settings, {"epochs": epochs}), tmp_path / "cv", **SAME)
    assert json.loads((tmp_path / "cv" / SETTINGS).read_text())["settings"]["epochs"] == 1
    with pytest.raises(adawac.errors.UnknownNameError, match="adawak"):
        crossval(override(settings, {"method.name": "adawak"}), tmp_path / "other", **SAME)
    assert not (tmp_path / "other").exists()


def test_a_failed_fold_is_told_and_the_command_fails(settings, small_store, tmp_path, monkeypatch, capsys):
    class Failing(InProcess):
        def run(self, waiting, progress, end=float("inf")):
            return {job: JobOutcome(status="failed", reason="No room.") for job in waiting}

    monkeypatch.setattr(crossvalidation, "build_engine", lambda *_, **__: Failing())
    words = ["crossval", str(small_store), "--out", str(tmp_path / "cv"), "--folds", "2", "--test", "fold", *OPTIONS]
    assert command(words) == 1
    printed = capsys.readouterr().out
    assert "No room." in printed
    assert "2 folds failed. The same command tries them again." in printed
    assert (tmp_path / "cv" / SETTINGS).is_file()


def test_the_command_prints_the_pooled_table_and_how_many_known_errors_it_finds(outcome, engine, small_store, capsys):
    _, found = outcome
    known = found.folder.parent / "known.txt"
    known.write_text(f"{found.suspects[1].id}\n\n{found.suspects[3].id}\n")
    words = ["crossval", str(small_store), "--out", str(found.folder), "--folds", "3", "--test", "fold"]
    words += ["--pictures", "1", *OPTIONS, "--epochs", "2", "--seed", "1", "--set", "hardware.precision=fp32"]
    assert command([*words, "--known", str(known)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "95 % interval" in printed
    assert "2 labels are known to be wrong: average precision 0.50" in printed
    assert command([*words, "--known", str(known), "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["known"]["wrong"] == 2
    assert numbers["scores"]["num_patients"] == 8
    assert command([*words, "--known", str(known.with_name("none.txt"))]) == 2
    assert command([*words, "--set", "data.split=stratified"]) == 2
    assert "the folds are the split" in capsys.readouterr().err


@pytest.mark.slow
def test_killed_in_the_second_fold_it_goes_on_there(small_store, tmp_path):
    line = [sys.executable, "-m", "adawac", "crossval", str(small_store), "--out", str(tmp_path / "cv"), "--folds", "2"]
    line += ["--test", "fold", *OPTIONS, "--epochs", "30"]
    process = subprocess.Popen(line, start_new_session=True)
    second = tmp_path / "cv" / "runs"
    while not _has_begun(second, 2):
        assert process.poll() is None
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    first, _ = sorted(list_runs(second), key=lambda run: run.folder.name)
    assert first.status == "finished"
    before = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*") if path.is_file()}
    assert subprocess.run(line, check=False).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [run.status for run in list_runs(second)] == ["finished"] * 2
    assert (tmp_path / "cv" / "report.html").is_file()


def _has_begun(folder, count):
    """Tell whether the last of so many folds has saved an epoch."""
    return len(list(folder.glob("*/checkpoints/last.safetensors"))) == count
