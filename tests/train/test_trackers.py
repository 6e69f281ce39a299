"""Trackers: what they are told, that they start anew after a resume, and that none of them can stop a run."""

import csv
import logging

import pytest

from adawac.config import TrainConfig
from adawac.errors import MissingDependencyError
from adawac.runs import RunWriter
from adawac.train import fit
from adawac.train.trackers import _NEEDS, Trackers, check_trackers


def test_csv_and_tensorboard_get_the_numbers_of_every_epoch(change, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = fit(change(track=["csv", "tensorboard"], epochs=3), tmp_path / "run")
    with (run.folder / "trackers" / "csv" / "start-1" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [1, 2, 3]
    logged = [metrics["loss"] for metrics in run.metrics]
    assert [float(row["loss"]) for row in rows] == pytest.approx(logged)
    events = EventAccumulator(str(run.folder / "trackers" / "tensorboard" / "start-1")).Reload()
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(logged)
    assert [event.step for event in events.Scalars("beta_dense")] == [1, 2, 3]


def test_a_resumed_run_leaves_the_files_of_its_first_start(change, tmp_path):
    fit(change(track=["csv"], epochs=1), tmp_path / "run")
    fit(change(track=["csv"], epochs=2), tmp_path / "run", resume=True)
    found = sorted((tmp_path / "run" / "trackers" / "csv").rglob("metrics.csv"))
    assert [path.parent.name for path in found] == ["start-1", "start-2"]
    assert [len(path.read_text().splitlines()) for path in found] == [2, 2]


def test_a_tracker_that_is_not_installed_is_named_before_anything_is_written(change, tmp_path, monkeypatch):
    monkeypatch.setattr("adawac.train.trackers.find_spec", lambda module: None)
    check_trackers(["csv"])
    with pytest.raises(MissingDependencyError, match=r"'tensorboard'.*pip install tensorboard"):
        fit(change(track=["tensorboard"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_fails_is_given_up_and_the_run_goes_on(change, tmp_path, monkeypatch, caplog):
    from lightning_fabric.loggers.csv_logs import CSVLogger

    def fail(*_, **__):
        raise ConnectionError("nobody answers")

    monkeypatch.setattr(CSVLogger, "log_metrics", fail)
    with caplog.at_level(logging.WARNING, "adawac.train.trackers"):
        run = fit(change(track=["csv"], epochs=2), tmp_path / "run")
    assert run.status == "finished"
    assert caplog.text.count("nobody answers") == 1


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_the_other_trackers_take_the_numbers(tmp_path, monkeypatch, name):
    for module in _NEEDS[name]:
        pytest.importorskip(module)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = TrainConfig(track=(name,))
    with RunWriter(tmp_path / "run", config) as run, Trackers(run, config) as trackers:
        trackers.log(1, {"loss": 0.5, "note": "text is left out"})
    assert list(trackers._open) == [name]
