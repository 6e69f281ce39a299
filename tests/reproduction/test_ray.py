"""The same jobs on a Ray cluster; without Ray, one message."""

import os
import signal
import sys
from pathlib import Path

import pytest

from adawac.cli import run as command
from adawac.data.parallel import ray_session
from adawac.errors import ConfigError
from adawac.reproduction import reproduce
from adawac.reproduction.engines import RayEngine, _needs
from adawac.reproduction.jobs import Job
from adawac.runs import list_runs
from tests import ray_cluster
from tests.ray_cluster import ray_only
from tests.reproduction.grid_files import SMALL, write_grid


def test_without_ray_the_extra_is_named(tmp_path, small_store, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)  # importing it fails
    path = write_grid(tmp_path / "grid.yaml")
    words = ["reproduce", str(path), "--data", str(small_store), "--out", str(tmp_path / "out"), "--engine", "ray"]
    assert command(words) == 2
    assert "pip install 'adawac[ray]'" in capsys.readouterr().err


@ray_only
def test_an_address_where_nobody_answers(tmp_path, small_store, capsys):
    pytest.importorskip("ray")
    path = write_grid(tmp_path / "grid.yaml")
    words = ["reproduce", str(path), "--data", str(small_store), "--out", str(tmp_path / "out"), "--engine", "ray"]
    assert command([*words, "--address", "127.0.0.1:1"]) == 2
    err = capsys.readouterr().err
    assert "Expected a Ray cluster at 127.0.0.1:1, but got: [Errno 111] Connection refused. Start one" in err


@ray_only
@pytest.mark.parametrize(("asked", "seen"), [(None, "0"), ("1", "1")])
def test_ray_sends_usage_statistics_only_if_asked_to(monkeypatch, asked, seen):
    ray, variable = pytest.importorskip("ray"), "RAY_USAGE_STATS_ENABLED"
    started = []
    monkeypatch.setattr(ray, "init", lambda **_: started.append(os.environ[variable]))
    monkeypatch.setenv(variable, "1")
    if asked is None:
        monkeypatch.delenv(variable)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with ray_session(None):
        assert started == [seen]


@ray_only
def test_what_ray_prints_does_not_mix_with_results(monkeypatch, capsys):
    """Ray announces a lost worker on standard output, where `--json` has its numbers."""
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    engine = RayEngine()
    monkeypatch.setattr(engine, "_run", lambda *_: print("(raylet) A worker died"))
    engine.run([], progress=None)
    assert capsys.readouterr() == ("", "(raylet) A worker died\n")


@ray_only
def test_ray_leaves_no_handler_of_sigterm_behind(monkeypatch):
    """`ray.init` sets one that exits at once: a training after it in the same process would not save."""
    ray, former = pytest.importorskip("ray"), signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(ray, "init", lambda **_: signal.signal(signal.SIGTERM, lambda *_: sys.exit(15)))
    monkeypatch.setattr(RayEngine, "_run", lambda *_: signal.getsignal(signal.SIGTERM))
    assert RayEngine().run([], progress=None) is not former
    assert signal.getsignal(signal.SIGTERM) is former


@pytest.fixture
def cluster():
    with ray_cluster.started() as cluster:
        yield cluster


@pytest.mark.slow
@ray_only
def test_a_grid_on_ray_equals_the_same_grid_on_processes(tmp_path, small_store, cluster):
    path = write_grid(tmp_path / "grid.yaml")
    options = {"data": small_store, "engine": "ray", "address": cluster.address}
    found = reproduce(path, tmp_path / "ray", **options)
    assert not found.failures
    assert found.comparison.missing == 0
    assert [run.evaluations for run in list_runs(tmp_path / "ray")] == [["test-adawac-last"]] * 2
    assert reproduce(path, tmp_path / "ray", **options).skipped == 2
    here = reproduce(path, tmp_path / "here", data=small_store)
    for line, other in zip(found.comparison.lines, here.comparison.lines, strict=True):
        assert [cell.mean for cell in line.cells] == pytest.approx([cell.mean for cell in other.cells], abs=1e-3)


@pytest.mark.slow
@ray_only
def test_a_run_on_two_devices_equals_that_on_one_machine(tmp_path, small_store, cluster):
    """Two ranks in a task of two processors, all of one machine; the ranks talk by gloo."""
    settings = {**SMALL["settings"], "hardware.devices": 2}
    path = write_grid(tmp_path / "grid.yaml", settings=settings, axes={"method": ["adawac"]}, paper={})
    options = {"data": small_store, "engine": "ray", "address": cluster.address}
    cluster.add_node(num_cpus=1)
    with pytest.raises(ConfigError, match="a machine of the Ray cluster with 2 cpu devices, but the largest one has"):
        reproduce(path, tmp_path / "ray", **options)  # two machines with one each would wait for ever
    cluster.add_node(num_cpus=2)
    here, there = reproduce(path, tmp_path / "here", data=small_store), reproduce(path, tmp_path / "ray", **options)
    assert not here.failures
    assert not there.failures
    for root in ("here", "ray"):
        (run,) = list_runs(tmp_path / root)
        assert run.config.hardware.devices == 2
    for line, other in zip(there.comparison.lines, here.comparison.lines, strict=True):
        assert [cell.mean for cell in line.cells] == pytest.approx([cell.mean for cell in other.cells], abs=1e-3)


@pytest.mark.parametrize(
    ("hardware", "machines", "need"),
    [
        ({"devices": 2}, [{"CPU": 8, "GPU": 1}, {"CPU": 8, "GPU": 4}], {"num_gpus": 2, "num_cpus": 1}),
        ({"devices": 2, "accelerator": "cpu"}, [{"CPU": 1}, {"CPU": 4}], {"num_cpus": 2}),
        ({"devices": 2, "accelerator": "cpu"}, [{"CPU": 1}, {"CPU": 1}], None),
        ({"devices": 2}, [{"CPU": 8, "GPU": 1}, {"CPU": 8, "GPU": 1}], None),
        ({"accelerator": "cuda"}, [{"CPU": 8}], None),
    ],
)
def test_the_devices_of_a_run_are_those_of_one_machine(change, hardware, machines, need):
    config = change(**{f"hardware__{name}": value for name, value in {"accelerator": "auto", **hardware}.items()})
    job = Job(name="run", root=Path("grid"), config=config, conventions=("strict",))
    if need is not None:
        assert _needs(job, machines) == need
    else:
        with pytest.raises(ConfigError, match="Expected a machine of the Ray cluster with"):
            _needs(job, machines)


@pytest.mark.slow
@ray_only
def test_a_failure_on_ray_and_an_interruption(tmp_path, small_store, cluster):
    axes = {"method": {"bad": {"model.options": {"wings": 2}}, "long": {"epochs": 2000}}}
    path = write_grid(tmp_path / "grid.yaml", axes=axes, paper={})

    class Stop:
        def __init__(self):
            self.failed, self.jobs = {}, []

        def planned(self, jobs, done):
            self.jobs = jobs

        def started(self, job):
            pass

        def ended(self, job, outcome):
            self.failed[job.name] = outcome.reason

        def tick(self):
            if any(job.progress[0] for job in self.jobs):
                raise KeyboardInterrupt

    watch = Stop()
    with pytest.raises(KeyboardInterrupt):
        reproduce(path, tmp_path / "out", data=small_store, engine="ray", address=cluster.address, watch=watch)
    (reason,) = watch.failed.values()
    assert "wings=2" in reason
    (run,) = list_runs(tmp_path / "out")
    assert run.status == "interrupted"
    assert run.checkpoint("last").state["epoch"] > 0


@pytest.mark.slow
@ray_only
def test_a_node_is_killed_while_the_grid_runs(tmp_path, small_store, cluster):
    """The grid finishes on the node that is left, and what was finished before stays as it was."""
    second = cluster.add_node(num_cpus=1)
    settings = {**SMALL["settings"], "epochs": 60}
    path = write_grid(
        tmp_path / "grid.yaml", settings=settings, seeds=[1, 2, 3], axes={"method": ["baseline", "adawac"]}
    )
    kept: dict[str, bytes] = {}

    class KillOnce:
        def __init__(self):
            self.done = 0
            self.killed = False

        def planned(self, jobs, done):
            self.jobs = jobs

        def started(self, job):
            pass

        def ended(self, job, outcome):
            self.done += 1

        def tick(self):
            both = sum(0 < job.progress[0] < 60 for job in self.jobs) == 2
            if self.done and both and not self.killed:
                self.killed = True
                for job in self.jobs:
                    if job.state == "done":
                        kept[job.name] = (job.folder / "checkpoints" / "last.safetensors").read_bytes()
                cluster.remove_node(second, allow_graceful=False)

    watch = KillOnce()
    found = reproduce(path, tmp_path / "out", data=small_store, engine="ray", address=cluster.address, watch=watch)
    assert watch.killed
    assert kept
    assert not found.failures
    assert found.comparison.missing == 0
    runs = {run.folder.name: run for run in list_runs(tmp_path / "out")}
    assert [run.status for run in runs.values()] == ["finished"] * 6
    assert any(len(run.environments) > 1 for run in runs.values())  # one was resumed elsewhere
    for name, content in kept.items():
        assert (runs[name].folder / "checkpoints" / "last.safetensors").read_bytes() == content
