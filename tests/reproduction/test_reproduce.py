"""Grids that run: skipped, resumed, failed, killed and interrupted runs, on this machine's processes."""

import json
import logging
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from adawac.cli import run as command
from adawac.data.store import Store
from adawac.errors import ConfigError, RunError
from adawac.reproduction import engines, reproduce
from adawac.reproduction.collected_results import decisive_settings, fits
from adawac.runs import Run, list_runs
from tests.reproduction.grid_files import SMALL, write_grid

LONG = {**SMALL["settings"], "epochs": 2000}


class Told:
    """A watch that notes what it is told, and may do something when a job has trained and saved an epoch."""

    def __init__(self, action=None):
        self.names, self.outcomes, self.done, self.action, self.running = [], {}, None, action, []

    def planned(self, jobs, done):
        self.jobs, self.done = jobs, done

    def started(self, job):
        self.names.append(job.name)
        self.running.append(job)

    def ended(self, job, outcome):
        self.outcomes[job.name] = outcome

    def tick(self):
        # An epoch is noted before it is saved: a job that is killed in between has nothing to go on from.
        saved = [job for job in self.running if (job.folder / "checkpoints" / "last.safetensors").exists()]
        if self.action and any(job.progress[0] for job in saved):
            action, self.action = self.action, None
            action(self.running)


def pid_of(job) -> int:
    """The process that writes to a run."""
    return int((job.folder / ".lock").read_text())


def test_a_grid_is_run_and_run_again_without_work(tmp_path, small_store):
    path = write_grid(tmp_path / "grid.yaml")
    first = Told()
    found = reproduce(path, tmp_path / "out", data=small_store, jobs=2, watch=first)
    assert not found.failures
    assert len(first.names) == 2
    assert found.comparison.missing == 0
    assert {file.name for file in found.files} == {f"grid.{ending}" for ending in ("md", "tex", "html", "json")}
    runs = list_runs(tmp_path / "out" / "runs")
    assert [run.status for run in runs] == ["finished", "finished"]
    assert [run.evaluations for run in runs] == [["test-adawac-last"]] * 2
    assert all(job.log.read_text().count("epoch 1/1") == 1 for job in first.jobs)
    # Again: nothing is done, and nothing changes.
    before = {file.name: file.read_bytes() for file in found.files}
    second = Told()
    again = reproduce(path, tmp_path / "out", data=small_store, watch=second)
    assert (second.names, again.skipped) == ([], 2)
    assert {file.name: file.read_bytes() for file in again.files} == before
    # A grid that has these runs among others does the others only; another convention only scores.
    third = Told()
    write_grid(path, axes={"method": ["baseline", "pair", "adawac"]})
    reproduce(path, tmp_path / "out", data=small_store, watch=third)
    assert len(third.names) == 1
    assert "-pair-" in third.names[0]
    fourth = Told()
    write_grid(path, convention="transunet")
    reproduce(path, tmp_path / "out", data=small_store, watch=fourth)
    assert len(fourth.names) == 2
    assert all(job.log.read_text().count("epoch 1/1") == 1 for job in first.jobs)


def test_a_failure_is_reported_and_the_others_finish(tmp_path, small_store, capsys):
    axes = {"method": {"bad": {"method.name": "adawac", "model.options": {"wings": 2}}, "baseline": "baseline"}}
    path = write_grid(tmp_path / "grid.yaml", axes=axes, paper={"bad": [1, 2, 3], "baseline": [1, 2, 3]})
    words = ["reproduce", str(path), "--data", str(small_store), "--out", str(tmp_path / "out")]
    assert command(words) == 1
    out, err = capsys.readouterr()
    assert "1 run failed. The same command tries again." in out
    assert "Expected 'tests.networks.small_network:small' to take wings=2" in out
    (log,) = [line.strip() for line in out.splitlines() if line.endswith(".log")]
    assert "wings" in Path(log).read_text()
    assert "2 runs, 0 of them done before" in err
    assert "failed tests-networks-small-network" in err
    told = json.loads((tmp_path / "out" / "grid.json").read_text())
    assert told["failures"][0]["log"] == log
    assert told["rows"][0]["cells"][0]["ours"] is None
    assert told["rows"][1]["cells"][0]["ours"] is not None


def test_damaged_scores_are_named_and_made_again_once_they_are_removed(tmp_path, small_store, caplog):
    path = write_grid(tmp_path / "grid.yaml", axes={"method": ["baseline"]}, paper={})
    assert reproduce(path, tmp_path / "out", data=small_store).comparison.missing == 0
    (scores,) = (tmp_path / "out").glob("runs/*/scores/*.csv")
    scores.write_bytes(scores.read_bytes()[:1000])
    assert reproduce(path, tmp_path / "out", data=small_store).comparison.missing > 0
    assert str(scores) in caplog.text
    assert "remove that file" in caplog.text
    scores.unlink()
    assert reproduce(path, tmp_path / "out", data=small_store).comparison.missing == 0


def test_every_run_has_a_process_of_its_own_and_does_not_depend_on_the_others(tmp_path, small_store, monkeypatch):
    path = write_grid(tmp_path / "grid.yaml", axes={"method": ["pair", "adawac"]}, paper={})
    both, alone = Told(), Told()
    reproduce(path, tmp_path / "both", data=small_store, watch=both)
    write_grid(path, axes={"method": ["adawac"]}, paper={})
    monkeypatch.setattr(engines, "multiprocessing", multiprocessing)  # this one starts as everybody's do, not as a fork
    reproduce(path, tmp_path / "alone", data=small_store, watch=alone)
    assert len({pid_of(both.jobs[0]), pid_of(both.jobs[1]), pid_of(alone.jobs[0])}) == 3
    for file in ("checkpoints/last.safetensors", "scores/test-adawac-last.csv"):
        assert (both.jobs[1].folder / file).read_bytes() == (alone.jobs[0].folder / file).read_bytes()


def test_logs_and_tables_that_cannot_be_written_are_said_and_cost_no_run(tmp_path, small_store, capfd):
    path = write_grid(tmp_path / "grid.yaml", axes={"method": ["baseline"]}, paper={})
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "logs").write_text("no folder")
    found = reproduce(path, tmp_path / "out", data=small_store)
    ((job, outcome),) = found.failures.items()
    assert outcome.reason.startswith(f"Expected to write to {job.log}, but got: it is a file.")
    assert "Traceback" not in capfd.readouterr().err
    # Nor can a table: the runs are there all the same.
    (tmp_path / "out" / "logs").unlink()
    (tmp_path / "out" / "grid.md").unlink()
    (tmp_path / "out" / "grid.md").mkdir()
    with pytest.raises(RunError, match=r"write the results to .*out, but got: Is a directory.*the same command"):
        reproduce(path, tmp_path / "out", data=small_store)
    (tmp_path / "out" / "grid.md").rmdir()
    assert reproduce(path, tmp_path / "out", data=small_store).skipped == 1


def test_a_killed_job_fails_alone_and_is_resumed(tmp_path, small_store):
    axes = {"method": {"long": {"method.name": "adawac", "epochs": 2000}, "short": "baseline"}}
    path = write_grid(tmp_path / "grid.yaml", axes=axes, paper={})

    def kill(jobs):
        os.kill(pid_of(next(job for job in jobs if job.config.epochs == 2000)), signal.SIGKILL)

    told = Told(kill)
    found = reproduce(path, tmp_path / "out", data=small_store, watch=told)
    ((job, outcome),) = found.failures.items()
    assert "killed (SIGKILL)" in outcome.reason
    assert found.comparison.lines[1].cells[0].count == 1  # the other one came after it, and is there
    assert job.state == "started"
    epoch = Run(job.folder).epoch
    assert epoch > 0

    # Interrupted this time: it goes on from where it was, and saves.
    class StopOnceResumed(Told):
        def tick(self):
            if any("from epoch" in job.log.read_text() for job in self.running):
                raise KeyboardInterrupt

    again = StopOnceResumed()
    with pytest.raises(KeyboardInterrupt):
        reproduce(path, tmp_path / "out", data=small_store, watch=again)
    run = Run(job.folder)
    assert run.status == "interrupted"
    assert run.epoch >= epoch
    assert "from epoch" in job.log.read_text()
    assert "interrupted" in job.log.read_text()
    state = run.checkpoint("last").state
    assert (state["epoch"], state["step"]) != (0, 0)


def test_time_that_is_up_saves_what_runs_and_begins_nothing_else(tmp_path, small_store, capsys, monkeypatch):
    runs = {"second": {"priority": 1, "set": {"epochs": 1}}, "long": {"set": {"epochs": 5000}}}
    path = write_grid(tmp_path / "grid.yaml", axes={}, runs=runs, paper={})
    now = [0.0]
    monkeypatch.setattr(engines, "time", SimpleNamespace(monotonic=lambda: now[0]))
    told = Told(lambda jobs: now.insert(0, math.inf))
    found = reproduce(path, tmp_path / "out", data=small_store, seconds=3600, watch=told)
    (name,) = told.names  # the first by priority; there was no time for the other one
    (run,) = list_runs(tmp_path / "out")
    assert (run.folder.name, run.status) == (name, "interrupted")
    assert (found.left, found.failures, told.outcomes[name].status) == (2, {}, "interrupted")
    assert run.checkpoint("last").state["epoch"] > 0
    words = ["reproduce", str(path), "--data", str(small_store), "--out", str(tmp_path / "out"), "--seconds", "0"]
    assert command(words) == 0
    assert "Time is up with 2 runs to go. The same command goes on with them." in capsys.readouterr().out


def test_rows_have_seeds_and_are_chosen_by_name_and_scored_on_their_part(tmp_path, small_store):
    runs = {
        "base": {"seeds": [3, 4], "set": {"method.name": "baseline"}},
        "candidate": {"score": "val", "tta": True, "set": {"method.name": "adawac", "data.split": "lists"}},
        "candidate-2": {"set": {"epochs": 5000}},
    }
    patients = sorted(set(Store(small_store).table.patient.tolist()))
    (tmp_path / "lists").mkdir()
    for part, names in {"train": patients[2:], "val": patients[:1], "test": patients[1:2]}.items():
        (tmp_path / "lists" / f"{part}.txt").write_text("\n".join(names))
    path = write_grid(tmp_path / "grid.yaml", axes={}, runs=runs, paper={}, more_conventions=["strict"])
    found = reproduce(path, tmp_path / "out", data=small_store, only=["base", "candidate"])
    assert (found.failures, found.comparison.missing) == ({}, 0)
    base, candidate = found.comparison.lines
    assert [job.config.seed for job in base.jobs] == [3, 4]
    assert [cell.count for cell in base.cells] == [2, 2, 2]
    assert Run(base.jobs[0].folder).evaluations == ["test-adawac-last", "test-strict-last"]
    run = Run(candidate.jobs[0].folder)
    assert run.evaluations == ["val-adawac-last-tta", "val-strict-last-tta"]
    assert {score.patient for score in run.scores("val-adawac-last-tta")} == set(patients[:1])
    with pytest.raises(ConfigError, match=r"none matches candidat-3\. They are called base, candidate, candidate-2"):
        reproduce(path, tmp_path / "out", data=small_store, only=["candidat-3"])


def test_results_are_collected_from_elsewhere_and_not_run_again(tmp_path, small_store, capsys):
    runs = {"base": {"seeds": [1, 2], "set": {"method.name": "baseline"}}, "ada": {"set": {"method.name": "adawac"}}}
    path = write_grid(tmp_path / "grid.yaml", axes={}, runs=runs, paper={}, results="results.json")
    first = reproduce(path, tmp_path / "elsewhere", data=small_store, only=["base"])
    shutil.move(tmp_path / "elsewhere", tmp_path / "copied")
    words = ["reproduce", str(path), "--collect", str(tmp_path / "copied")]
    assert command(words) == 0
    assert capsys.readouterr().out == f"2 runs into {tmp_path / 'results.json'}: base-seed1, base-seed2\n"
    entries = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert [(entry["name"], entry["row"], entry["seed"], entry["views"]) for entry in entries] == [
        ("base-seed1", "base", 1, 1),
        ("base-seed2", "base", 2, 1),
    ]
    assert entries[0]["train_seconds"] > 0
    # What was collected is not run again, and its numbers are in the table; the others are added.
    told = Told()
    found = reproduce(path, tmp_path / "out", data=small_store, watch=told)
    assert len(told.names) == 1
    assert "-adawac-" in told.names[0]
    assert found.comparison.missing == 0
    for ours, theirs in zip(found.comparison.lines[0].cells, first.comparison.lines[0].cells, strict=True):
        assert (ours.mean, ours.count) == (pytest.approx(theirs.mean, rel=1e-3), 2)
    assert command(["reproduce", str(path), "--collect", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["collected"] == ["ada-seed1"]
    assert len(json.loads((tmp_path / "results.json").read_text())["runs"]) == 3
    # Other settings than those that were collected: it is another run.
    write_grid(path, axes={}, runs={**runs, "base": {"set": {"epochs": 2}}}, paper={}, results="results.json")
    again = Told()
    reproduce(path, tmp_path / "out", data=small_store, watch=again, only=["base"])
    assert len(again.names) == 1


@pytest.mark.parametrize(("split", "kept"), [("fold:1/5", "fold:1/5"), ("/home/me/lists", "lists")])
def test_another_fold_is_another_run_and_a_folder_of_lists_may_have_moved(split, kept):
    assert decisive_settings({"data": {"split": split}})["data.split"] == kept


@pytest.mark.parametrize(
    ("planned", "made", "same"),
    [
        ({}, {"hardware.precision": "bf16"}, True),  # the machine's own choice
        ({"hardware.precision": "fp16"}, {"hardware.precision": "bf16"}, False),
        ({}, {"optim.ema_decay": 0.99}, False),
        ({}, {"model.pretrained": "imagenet"}, False),
        ({}, {"optim.clip_norm": 1.0}, False),
        ({"optim.ema_decay": 0.99}, {}, False),
        ({"method.name": "mean-teacher"}, {"method.name": "mean-teacher", "optim.ema_decay": 0.99}, True),
        (
            {"method.name": "mean-teacher", "optim.ema_decay": 0.9},
            {"method.name": "mean-teacher", "optim.ema_decay": 0.99},
            False,
        ),
    ],
)
def test_a_run_belongs_to_a_row_if_all_settings_are_the_rows_but_those_that_training_chose(planned, made, same):
    assert fits(planned, made) == same


def test_a_grid_without_a_results_file_cannot_collect(tmp_path, capsys):
    path = write_grid(tmp_path / "grid.yaml")
    assert command(["reproduce", str(path), "--collect", str(tmp_path)]) == 2
    assert "Add results: FILE.json to it" in capsys.readouterr().err


def test_an_interruption_reaches_all_ranks_of_a_run(tmp_path, small_store):
    settings = {**SMALL["settings"], "epochs": 500, "hardware.devices": 2}
    path = write_grid(tmp_path / "grid.yaml", settings=settings, axes={"method": ["adawac"]}, paper={})

    def stop(jobs):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(path, tmp_path / "out", data=small_store, watch=Told(stop))
    (run,) = list_runs(tmp_path / "out")
    assert run.status == "interrupted"
    assert 0 < run.epoch < 500
    assert "last" in run.checkpoints


def start(path, store, out, *more) -> "subprocess.Popen[str]":
    words = [sys.executable, "-m", "adawac", "reproduce", str(path), "--data", str(store), "--out", str(out), *more]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if out.exists() and any(run.epoch for run in list_runs(out)):
            return process
        time.sleep(0.2)
    raise AssertionError(process.communicate())


def until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path, small_store, devices):
    settings = {**LONG, "hardware.devices": devices}
    path = write_grid(tmp_path / "grid.yaml", settings=settings, axes={"method": ["adawac"]}, paper={})
    process = start(path, small_store, tmp_path / "out")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "The same command goes on with them." in out
    assert "Traceback" not in err
    (run,) = list_runs(tmp_path / "out")
    assert run.status == "interrupted"
    # With --json nothing is printed but numbers, of which there are none.
    process = start(path, small_store, tmp_path / "out", "--json")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == ""
    # The one who started it is killed: the run notices, saves and stops.
    process = start(path, small_store, tmp_path / "out")
    (run,) = list_runs(tmp_path / "out")
    process.kill()
    process.communicate()
    until(lambda: list_runs(tmp_path / "out")[0].info["status"] == "interrupted")
    assert list_runs(tmp_path / "out")[0].epoch >= run.epoch


def test_two_at_once_in_one_folder_are_refused(tmp_path, small_store, capsys):
    from adawac.files import FolderLock

    (tmp_path / "out").mkdir()
    lock = FolderLock(tmp_path / "out")
    try:
        words = ["reproduce", "table-1", "--quick", "--out", str(tmp_path / "out")]
        assert command(words) == 2
    finally:
        lock.release()
    assert "is in use by process" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tabel-1", "--quick", "--out", "OUT"], "Expected a table or figure of the paper"),
        (["absent.yaml", "--quick", "--out", "OUT"], "absent.yaml does not exist"),
        (["table-1", "--out", "OUT"], "Give --data, or --quick"),
        (["table-1", "--data", "OUT/absent", "--out", "OUT"], "Expected a prepared store"),
        (["table-3", "--data", "STORE", "--out", "OUT"], "has no 'RV'"),
        (["figure-4", "--data", "STORE", "--out", "OUT"], "has no 'RV'"),
        (["table-2", "--data", "STORE", "--out", "OUT"], "says that it is phantom-ct"),
        (["figure-1", "--data", "STORE", "--out", "OUT"], "says that it is phantom-ct"),
        (
            ["table-1", "--data", "STORE", "--out", "OUT", "--phantom", "--set", "model.pretrained=absent.npz"],
            "absent.npz does not exist",
        ),
        (["table-1", "--quick", "--out", "OUT", "--set", "method.options.eta_betta=1"], "Near names: 'eta_beta'"),
        (["table-1", "--quick", "--out", "OUT", "--set", "method.name=pair"], "method.name, which the axis method"),
        (["table-1", "--quick", "--out", "OUT", "--set", "method={name: pair}"], "method.name, which the axis method"),
        (["table-1", "--quick", "--out", "OUT", "--set", "data.subset=full"], "data.subset, which the axis subset"),
        (["table-2", "--quick", "--out", "OUT", "--set", "method.preset=official"], "or choose with --preset"),
        (["table-4", "--quick", "--out", "OUT", "--set", "method.options.eta_beta=2"], "eta_beta, which an exception"),
        (["figure-1", "--quick", "--out", "OUT", "--set", "seed=3"], "seed, which the list of seeds in the grid's"),
        (["figure-1", "--quick", "--out", "OUT", "--set", "data.store=x"], "data.store, which the option --data"),
        (["table-1", "--quick"], "Give --out"),
        ([], "See `adawac reproduce --list`"),
        (["table-1", "--quick", "--out", "OUT", "--jobs", "0"], "at least 1 job at a time"),
        (["table-1", "--quick", "--out", "OUT", "--address", "auto"], "Add --engine ray"),
        (["table-1", "--quick", "--out", "OUT", "--set", "epochs=0"], "epochs: expected a whole number"),
        (["table-1", "--quick", "--out", "OUT", "--engine", "slurm"], 'Choose from: "local", "ray"'),
        (["table-1", "--quick", "--out", "/dev/null/x"], "Give another --out"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(tmp_path, small_store, capsys, words, message):
    given = [word.replace("OUT", str(tmp_path / "out")).replace("STORE", str(small_store)) for word in words]
    assert command(["reproduce", *given]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err


def test_weights_that_cannot_be_had_are_one_message_before_any_run(tmp_path, small_store, capsys, monkeypatch):

    def refused(*_, **__):
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s [Retry 1/5].")
        raise OSError("no network")

    monkeypatch.setenv("ADAWAC_WEIGHTS", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", refused)
    attempts, handler = [], logging.Handler()
    monkeypatch.setattr(handler, "emit", attempts.append)
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "handlers", [handler])
    words = ["reproduce", "table-5", "--data", str(small_store), "--out", str(tmp_path / "out"), "--phantom"]
    assert command(words) == 2
    told = capsys.readouterr().err
    assert told.count("Expected to download") == 1
    assert "--set model.pretrained=null trains from scratch" in told
    assert not attempts, "of several attempts, one message"
    assert "started" not in told
    assert not (tmp_path / "out" / "logs").exists()


def test_a_method_that_is_not_there_is_one_message_before_any_run(tmp_path, small_store, capsys):
    path = write_grid(tmp_path / "grid.yaml", axes={"method": ["baseline", "adawak"]}, paper={})
    assert command(["reproduce", str(path), "--data", str(small_store), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert "'adawak'" in told
    assert "Near names: 'adawac'" in told
    assert "runs, 0 of them done" not in told
    assert not (tmp_path / "out" / "logs").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"figures": [{"draw": "weigths"}]}, "Near names: 'weights'"),
        ({"figures": [{"draw": "weights"}]}, "Expected one run for the figure 'weights', but got 2"),
        ({"figures": [{"draw": "scores", "options": {"wings": 2}}]}, "but got wings"),
        ({"figures": [{"draw": "scores", "width": "huge"}]}, "but got 'huge'"),
        ({"axes": {"model": ["tests.networks.small_network:small", "unett"]}}, "Near names: 'unet'"),
    ],
)
def test_what_could_not_be_built_or_drawn_is_one_message_before_any_run(
    tmp_path, small_store, capsys, changes, message
):
    path = write_grid(tmp_path / "grid.yaml", **{"paper": {}, **changes})
    assert command(["reproduce", str(path), "--data", str(small_store), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert "runs, 0 of them done" not in told
    assert not (tmp_path / "out" / "logs").exists()


def test_what_was_changed_stands_below_the_numbers(tmp_path, small_store):
    path = write_grid(tmp_path / "grid.yaml", axes={"method": ["baseline"]}, paper={})
    found = reproduce(path, tmp_path / "out", data=small_store, changes={"optim.lr": 0.02, "data.batch_size": 10})
    (data, changed) = found.comparison.notes
    assert data.startswith("Data: ")
    assert changed == "Changed in all of our runs: optim.lr=0.02, data.batch_size=10."
    for ending in ("md", "tex", "html", "json"):
        text = (tmp_path / "out" / f"grid.{ending}").read_text(encoding="utf-8").replace("\\_", "_")
        assert "optim.lr=0.02, data.batch_size=10" in text
        assert "training slices of" in text


def test_the_phantom_in_the_papers_place_is_marked_before_and_above(tmp_path, small_store, caplog):
    class Planned(Told):
        def planned(self, jobs, done):
            super().planned(jobs, done)
            self.said_before = caplog.text

    path = write_grid(
        tmp_path / "grid.yaml", axes={"method": ["baseline"]}, dataset="synapse", source="Table 0", paper={}
    )
    told = Planned()
    found = reproduce(path, tmp_path / "out", data=small_store, phantom=True, watch=told)
    mark = (
        "PHANTOM: drawn scans (phantom-ct) in the place of synapse. These are not the paper's numbers, nor comparable"
    )
    assert f"{mark} to them. Data: " in told.said_before
    assert "The paper had 2211 training slices" in told.said_before
    assert found.comparison.mark.startswith(mark)
    tops = {ending: (tmp_path / "out" / f"grid.{ending}").read_text() for ending in ("md", "tex", "html", "json")}
    assert tops["md"].startswith(f"> **{mark}")
    assert tops["tex"].startswith(f"% {mark}")
    assert f'<p class="mark">{mark}' in tops["html"].replace("&#x27;", "'")
    assert json.loads(tops["json"])["warning"].startswith(mark)


def test_the_list(capsys):
    assert command(["reproduce", "--list"]) == 0
    assert capsys.readouterr().out.startswith("table-1   AdaWAC with TransUNet")
    assert command(["reproduce", "--list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 13


def test_slots(monkeypatch, tmp_path, small_store):
    import torch

    from adawac.reproduction import load_grid
    from adawac.reproduction.engines import Slot, find_slots
    from adawac.reproduction.jobs import make_jobs

    def jobs(**last):
        _, grid = load_grid("table-2")
        rows = grid.rows(last={name.replace("__", "."): value for name, value in last.items()})
        return [job for _, own in make_jobs(rows, small_store, tmp_path, ["adawac"]) for job in own]

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert [slot.devices for slot in find_slots(jobs())] == ["0", "1", "2", "3"]
    assert [slot.devices for slot in find_slots(jobs(), 2)] == ["0", "1"]
    assert [slot.devices for slot in find_slots(jobs(), 6)] == ["0", "1", "2", "3", "0", "1"]
    assert [slot.devices for slot in find_slots(jobs(hardware__devices=2))] == ["0,1", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [slot.devices for slot in find_slots(jobs())] == ["5", "7"]
    assert find_slots(jobs(hardware__accelerator="cpu")) == [Slot()]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert find_slots(jobs()) == [Slot()]
    assert find_slots(jobs(), 4) == [Slot(threads=2)] * 4


@pytest.mark.slow
def test_the_papers_own_recipe_is_trained_and_scored(tmp_path, small_store):
    """All of the recipe of Table 1 but its size, its weights and its epochs."""
    settings = {
        "epochs": 1,
        "data.image_size": [32, 32],
        "model.name": "transunet-small",
        "model.pretrained": None,
        "hardware.accelerator": "cpu",
    }
    recipes = {"paper": "synapse-transunet", "official": "synapse-transunet-official"}
    axes = {"preset": ["paper", "official"], "method": ["adawac"]}
    path = write_grid(tmp_path / "grid.yaml", recipe=recipes, settings=settings, axes=axes, paper={})
    found = reproduce(path, tmp_path / "out", data=small_store)
    assert {outcome.reason for outcome in found.failures.values()} == set()
    assert found.comparison.missing == 0
