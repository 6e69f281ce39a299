"""Several ranks: the same run as on one, resumed on another number of them, and a word when one is lost."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from adawac.config import override, save
from adawac.data.preparation import prepare
from adawac.errors import ConfigError, RunError
from adawac.runs import Run
from adawac.train import devices as ranks
from adawac.train import fit
from adawac.train.step import TrainStep
from tests.data.partly_labelled import partly_labelled
from tests.networks.small_network import Small


@pytest.fixture
def settings(config, monkeypatch):
    """Three epochs whose last batch is uneven (56 samples in batches of 12), without dropout; up to 3 ranks."""
    monkeypatch.setattr(ranks, "max_ranks", lambda: 3)
    return override(config, {"model.options": {"dropout": 0.0}, "data.batch_size": 12})


def assert_close(one: Run, other: Run):
    a, b = (run.checkpoint("last", framework="torch").tensors for run in (one, other))
    assert {name for name in a if "random" not in name} == {name for name in b if "random" not in name}
    for name in a:
        if "random" not in name:
            torch.testing.assert_close(a[name], b[name], rtol=2e-4, atol=2e-5, msg=name)
    for name in ("ell_ce", "ell_dice", "reg_ac", "beta"):
        np.testing.assert_allclose(one.history[name], other.history[name], rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(one.curve("loss")[1], other.curve("loss")[1], rtol=1e-4)


@pytest.mark.parametrize("preset", ["paper", "official", "robust"])
def test_the_run_does_not_depend_on_the_number_of_ranks(settings, tmp_path, preset):
    changed = override(settings, {"method.preset": preset, "validation.every": 1})
    runs = [fit(override(changed, {"hardware.devices": n}), tmp_path / str(n)) for n in (1, 2, 3)]
    assert [run.status for run in runs] == ["finished"] * 3
    for other in runs[1:]:
        assert_close(runs[0], other)
        np.testing.assert_allclose(runs[0].curve("val_dice")[1], other.curve("val_dice")[1], atol=2e-3)


@pytest.mark.parametrize("forward", ["separate", "encoder", "encoder-detached"])
def test_nor_does_it_with_any_other_way_of_the_second_view(settings, tmp_path, forward):
    changed = override(settings, {"forward": forward, "epochs": 2})
    one, two = (fit(override(changed, {"hardware.devices": n}), tmp_path / str(n)) for n in (1, 2))
    assert_close(one, two)


def test_nor_does_it_with_a_teacher(settings, tmp_path):
    changed = override(settings, {"method.name": "mean-teacher", "epochs": 2})
    one, two = (fit(override(changed, {"hardware.devices": n}), tmp_path / str(n)) for n in (1, 2))
    assert_close(one, two)


@pytest.mark.parametrize("preset", ["paper", "robust"])
def test_nor_does_it_with_unlabelled_samples(settings, tmp_path, preset):
    store = prepare(partly_labelled(), dest=tmp_path / "store", workers=1)
    data = {"data.store": store.path, "data.image_size": (16, 16), "data.batch_size": 7, "data.unlabelled_share": 0.4}
    last = {"validation.every": 0, "validation.select": "last", "method.preset": preset}
    runs = [fit(override(settings, {**data, **last, "hardware.devices": n}), tmp_path / str(n)) for n in (1, 2, 3)]
    for other in runs[1:]:
        assert_close(runs[0], other)


@pytest.mark.parametrize(
    ("on_gpu", "devices", "nodes", "expected"),
    [
        (False, 1, 1, "auto"),
        (True, 1, 1, "auto"),
        (False, 2, 1, "ddp_fork"),
        (True, 2, 1, "ddp"),
        (False, 2, 2, "ddp"),
        (True, 1, 2, "ddp"),
    ],
)
def test_a_program_that_was_called_is_started_again_for_every_gpu(on_gpu, devices, nodes, expected):
    assert ranks._strategy(on_gpu, devices, nodes) == expected


def test_more_devices_than_there_are_start_nothing(config, tmp_path, monkeypatch):
    many = override(config, {"hardware.devices": 99, "data.batch_size": 99})
    with pytest.raises(ConfigError, match=r"Expected at most \d+ devices.*but got 99. Lower --devices"):
        fit(many, tmp_path / "run")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"Expected at most 1 devices.*but got 2"):
        fit(override(config, {"hardware.accelerator": "cuda", "hardware.devices": 2}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_several_machines_without_torchrun_wait_for_nobody(config, tmp_path):
    with pytest.raises(ConfigError, match=r"started on each of 2 machines by torchrun"):
        fit(override(config, {"hardware.nodes": 2}), tmp_path / "run")


def test_a_program_is_started_again_where_nothing_forks(monkeypatch):
    monkeypatch.delattr(ranks.os, "fork")
    assert ranks._strategy(False, 2, 1) == "ddp"


def test_whatever_else_trains_on_several_gpus_spawns_its_ranks(monkeypatch, job_server):
    with ProcessPoolExecutor(1, job_server.get_context("spawn")) as grid:
        assert grid.submit(ranks._strategy, True, 2, 1).result() == "ddp_spawn"
    monkeypatch.setattr(sys, "argv", ["/site-packages/ray/_private/workers/default_worker.py", "--node-ip-address=…"])
    assert ranks._strategy(True, 2, 1) == "ddp_spawn"
    monkeypatch.setenv("RANK", "0")  # somebody has started them all
    assert ranks._strategy(True, 2, 1) == "ddp"


class Late(Small):
    """Fails on the second rank, in the third epoch of four steps."""

    passes = 0

    def forward(self, x):
        Late.passes += 1
        if Late.passes > 9 and dist.is_initialized() and dist.get_rank() == 1:
            raise ConfigError("Expected no third epoch.")
        return super().forward(x)


def late(num_classes, in_channels, dropout):
    network = Late(num_classes, in_channels)
    network.dropout.p = dropout
    return network, "encoder"


def test_spawned_ranks_train_as_one_does_and_raise_what_they_raise(settings, tmp_path, monkeypatch):
    one = fit(override(settings, {"epochs": 2}), tmp_path / "one")
    monkeypatch.setattr(ranks, "_strategy", lambda *_: "ddp_spawn")  # what a grid does where there are GPUs
    changed = override(settings, {"hardware.devices": 2, "model.name": "tests.train.test_ranks:late"})
    with pytest.raises(ConfigError, match=r"^Expected no third epoch\.$"):
        fit(changed, tmp_path / "two")
    assert_close(one, Run(tmp_path / "two"))


class Interrupted:
    """Sends Ctrl-C to its own process, a rank, in some step."""

    def __init__(self, epoch, step):
        self.at = (epoch, step)

    def start(self, *_):
        pass

    def epoch(self, *_):
        pass

    def step(self, epoch, step):
        if (epoch, step) == self.at:
            signal.raise_signal(signal.SIGINT)


def test_interrupted_on_two_ranks_resumed_on_three_finished_on_one(settings, tmp_path, monkeypatch):
    monkeypatch.setattr("adawac.train.engine.ASK_EVERY", 2)
    whole = fit(settings, tmp_path / "whole")
    for devices, at in ((2, (2, 1)), (3, (3, 3))):
        with pytest.raises(KeyboardInterrupt):
            fit(
                override(settings, {"hardware.devices": devices}),
                tmp_path / "run",
                resume=devices == 3,
                watch=Interrupted(*at),
            )
        assert Run(tmp_path / "run").checkpoint("last").state["step"] in (2, 4)
    last = fit(override(settings, {"hardware.devices": 1}), tmp_path / "run", resume=True)
    assert_close(whole, last)


def test_ranks_are_interrupted_within_epochs_of_a_few_steps_and_say_nothing_of_themselves(settings, tmp_path, capfd):
    with pytest.raises(KeyboardInterrupt):
        fit(override(settings, {"hardware.devices": 2}), tmp_path / "run", watch=Interrupted(1, 2))
    assert Run(tmp_path / "run").epoch < 2
    assert "GLOBAL_RANK" not in capfd.readouterr().err


def test_sigterm_to_the_process_that_waits_lets_all_ranks_save(settings, tmp_path):
    """A container that is stopped tells its first process alone."""
    save(override(settings, {"hardware.devices": 2, "epochs": 10_000, "checkpoint_every": 10_000}), tmp_path / "a.yaml")
    command = [sys.executable, "-m", "adawac", "train", "--config", str(tmp_path / "a.yaml"), "--out", "run"]
    paths = os.pathsep.join(sys.path)
    waiting = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        metrics = tmp_path / "run" / "metrics.jsonl"
        while waiting.poll() is None and not (metrics.is_file() and metrics.stat().st_size):
            time.sleep(0.1)
        waiting.terminate()
        _, said = waiting.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(waiting.pid, signal.SIGKILL)
    assert waiting.returncode == 130, said
    assert "Traceback" not in said
    run = Run(tmp_path / "run")
    assert run.status == "interrupted"
    assert run.checkpoint("last").state["epoch"] >= 1


class Killed(Interrupted):
    """Kills its own process, a rank."""

    def step(self, epoch, step):
        if (epoch, step) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_lost_rank_ends_the_run_with_a_message_and_resume_goes_on(settings, tmp_path):
    whole = fit(settings, tmp_path / "whole")
    changed = override(settings, {"hardware.devices": 2})
    with pytest.raises(RunError, match=r"Expected every rank to stay alive.*--resume"):
        fit(changed, tmp_path / "run", watch=Killed(2, 3))
    assert Run(tmp_path / "run").status == "interrupted"
    assert_close(whole, fit(override(settings, {"hardware.devices": 3}), tmp_path / "run", resume=True))


def test_a_rank_without_memory_is_not_called_a_lost_one(settings, tmp_path, monkeypatch):
    take = TrainStep.__call__

    def hungry(step, rows, epoch, number):
        if step.trainer.fabric.global_rank and (epoch, number) == (2, 1):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        take(step, rows, epoch, number)

    changed = override(settings, {"hardware.devices": 2})
    with monkeypatch.context() as patched:
        patched.setattr(TrainStep, "__call__", hungry)
        with pytest.raises(RunError, match=r"Tried to allocate 20.00 GiB.*Lower data.batch_size"):
            fit(changed, tmp_path / "run")
    assert Run(tmp_path / "run").status == "interrupted"
    assert fit(changed, tmp_path / "run", resume=True).status == "finished"


class Broken(Interrupted):
    """Raises what nobody expects."""

    def step(self, epoch, step):
        raise TypeError("a display of somebody's own")


def test_what_broke_a_rank_is_said(settings, tmp_path):
    with pytest.raises(RunError, match=r"one was lost \(TypeError: a display of somebody's own\)"):
        fit(override(settings, {"hardware.devices": 2}), tmp_path / "run", watch=Broken(1, 1))


def test_parameters_without_a_gradient_are_named_and_not_called_a_lost_rank(config, tmp_path):
    """All stages of an encoder are built by smp, and a decoder of depth 3 takes the first ones."""
    options = {"encoder_depth": 3, "decoder_channels": (8, 8, 8)}
    network = replace(config.model, name="smp:Unet/resnet18", options=options)
    with pytest.raises(ConfigError, match=r"use all of its parameters, but some have no part.*--devices 1"):
        fit(override(replace(config, model=network), {"hardware.devices": 2}), tmp_path / "run")


def test_what_is_wrong_is_said_once_whatever_the_number_of_ranks(settings, tmp_path):
    changed = override(settings, {"hardware.devices": 2})
    with pytest.raises(ConfigError, match="fold"):
        fit(override(changed, {"data.split": "fold:9/5"}), tmp_path / "run")
    fit(settings, tmp_path / "run")
    with pytest.raises(RunError, match="holds a run"):
        fit(changed, tmp_path / "run")


# -- two machines, played by two agents of torchrun on loopback -------------------------------------------------------


def start_node(rank: int, port: int, config: Path, out: Path, elastic: bool) -> subprocess.Popen:
    meeting = (
        ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "adawac"]
        if elastic
        else ["--master-addr", "127.0.0.1", "--master-port", str(port), "--node-rank", str(rank)]
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", *meeting]
    command += ["-m", "adawac", "train", "--config", str(config), "--out", str(out)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def wait_for_port(port: int, seconds: float = 60) -> None:
    """Wait until somebody listens: who comes first hosts the meeting of an elastic job."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as asking:
            if asking.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)


def kill_tree(pid: int) -> None:
    """Kill a process and all below it, as a machine that loses power does."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    doomed = [pid]
    for process in doomed:
        doomed += [child for child, parent in parents.items() if parent == process]
    for process in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def start_nodes(config: Path, out: Path, elastic: bool) -> list[subprocess.Popen]:
    port = free_port()
    first = start_node(0, port, config, out, elastic)
    if elastic:
        wait_for_port(port)
    return [first, start_node(1, port, config, out, elastic)]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize("elastic", [False, True])
def test_two_nodes_train_and_a_killed_one_ends_the_job_with_a_message(settings, tmp_path, elastic):
    whole = fit(settings, tmp_path / "whole")
    save(settings, tmp_path / "config.yaml")
    nodes = start_nodes(tmp_path / "config.yaml", tmp_path / "run", elastic)
    outputs = [node.communicate(timeout=240)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    assert "".join(outputs).count("Done: ") == 1
    assert_close(whole, Run(tmp_path / "run"))

    longer = override(settings, {"epochs": 4000})
    save(longer, tmp_path / "longer.yaml")
    nodes = start_nodes(tmp_path / "longer.yaml", tmp_path / "lost", elastic)
    deadline = time.monotonic() + 120
    while not (tmp_path / "lost" / "checkpoints" / "last.safetensors").is_file() and time.monotonic() < deadline:
        time.sleep(0.2)
    kill_tree(nodes[1].pid)
    nodes[1].communicate()
    output = nodes[0].communicate(timeout=240)[0]
    assert nodes[0].returncode != 0
    assert "Expected every rank to stay alive" in output
    lost = Run(tmp_path / "lost")
    assert lost.status == "interrupted"
    done = lost.checkpoint("last").state["epoch"]
    assert done > 0
    again = fit(override(longer, {"epochs": done + 1}), tmp_path / "lost", resume=True)
    assert (again.status, again.epoch) == ("finished", done + 1)
