"""Runs that are killed at any moment and resumed until they are done equal the run that was never killed."""

import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from adawac.errors import AdawacError
from adawac.runs import Run
from adawac.train import TrainingProgress, fit

FORK = multiprocessing.get_context("fork")

# Python 3.12 warns of forking a process that has threads; these have nothing to do.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def train(config, folder: Path, kill_before_rename: int | None) -> None:
    """Train in a process group of its own; with a number, die between writing a file and renaming it into place."""
    os.setpgid(0, 0)
    torch.set_num_threads(1)
    if kill_before_rename is not None:
        renames = iter(range(kill_before_rename, -1, -1))
        replace = Path.replace

        def dying(self, target):
            if next(renames, 1) == 0:
                os.killpg(0, signal.SIGKILL)
            return replace(self, target)

        Path.replace = dying
    fit(config, folder, resume=(folder / "run.json").is_file())
    os._exit(0)


def until_done(config, folder: Path, kills) -> int:
    """Start the run again and again, killing it each time as `kills` says; return how often it was killed."""
    for count, (seconds, rename) in enumerate([*kills, (None, None)]):
        process = FORK.Process(target=train, args=(config, folder, rename))
        process.start()
        process.join(seconds)
        if process.is_alive():
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        if process.exitcode == 0:
            return count
        assert process.exitcode == -signal.SIGKILL
    raise AssertionError("the last start was not to be killed")


def contents(run: Run):
    return run.checkpoint("last", framework="torch").tensors, run.history, run.metrics


def check(config, tmp_path, cases) -> None:
    """Compare each killed run with one that was not; every one of them is really killed at least once."""
    whole_tensors, whole_history, whole_metrics = contents(fit(config, tmp_path / "whole"))
    for number, kills in enumerate(cases):
        folder = tmp_path / f"run{number}"
        while not until_done(config, folder, kills):  # it was done before its time: try again, sooner
            shutil.rmtree(folder)
            kills = [(seconds / 2, None) for seconds, _ in kills]
        run = Run(folder)
        assert run.status == "finished"
        tensors, history, metrics = contents(run)
        assert tensors.keys() == whole_tensors.keys()
        assert all(torch.equal(tensors[name], whole_tensors[name]) for name in tensors), kills
        for field in ("ell_ce", "ell_dice", "reg_ac", "beta"):
            np.testing.assert_array_equal(history[field], whole_history[field])
        assert metrics == whole_metrics


@pytest.mark.parametrize("rename", [0, 3, 7, 10])
def test_a_kill_between_writing_and_renaming(change, tmp_path, rename):
    check(change(epochs=3), tmp_path, [[(None, rename)]])


class KillsAWorker(TrainingProgress):
    """Kills a process that reads samples."""

    def step(self, epoch, step):
        for worker in multiprocessing.active_children():
            worker.kill()


def train_until_a_worker_dies(config, folder, sender) -> None:
    torch.set_num_threads(1)
    try:
        fit(config, folder, watch=KillsAWorker())
    except AdawacError as error:
        sender.send(str(error))
    os._exit(0)


def test_a_killed_worker_ends_a_training_with_a_message(change, tmp_path):
    config = change(epochs=3, data__residence="stream", data__workers=1)
    receiver, sender = FORK.Pipe()
    process = FORK.Process(target=train_until_a_worker_dies, args=(config, tmp_path / "run", sender))
    process.start()
    assert receiver.poll(60)
    message = receiver.recv()
    process.join(60)
    assert "one was lost" in message
    assert "data.workers" in message


@pytest.mark.slow
def test_25_runs_killed_at_random_moments(change, tmp_path):
    """Twenty are killed after a random time, up to three times each; five between a write and its rename."""
    config = change(epochs=12, optim__ema_decay=0.9)
    start = time.monotonic()
    until_done(config, tmp_path / "unharmed", [])
    takes = time.monotonic() - start
    rng = np.random.default_rng(0)
    timed = [[(takes * share, None) for share in rng.uniform(0.05, 0.95, rng.integers(1, 4))] for _ in range(20)]
    renames = [[(None, int(number))] for number in rng.choice(np.arange(1, 25), 5, replace=False)]
    check(config, tmp_path, [*timed, *renames])
