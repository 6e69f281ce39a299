"""The same jobs on a Ray cluster; without Ray, one message."""

import builtins

import pytest

from adawac.cli import run as command
from adawac.reproduction import reproduce
from adawac.runs import list_runs
from tests.reproduction.grid_files import SMALL, write_grid


def test_without_ray_the_extra_is_named(tmp_path, small_store, monkeypatch, capsys):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "ray" or name.startswith("ray."):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    path = write_grid(tmp_path / "grid.yaml")
    words = ["reproduce", str(path), "--data", str(small_store), "--out", str(tmp_path / "out"), "--engine", "ray"]
    assert command(words) == 2
    assert "pip install 'adawac[ray]'" in capsys.readouterr().err


# Ray's own code leaves sockets and files to the garbage collector, and uses what Python deprecates.
ray_only = pytest.mark.filterwarnings("ignore")


@ray_only
def test_an_address_where_nobody_answers(tmp_path, small_store, capsys):
    pytest.importorskip("ray")
    path = write_grid(tmp_path / "grid.yaml")
    words = ["reproduce", str(path), "--data", str(small_store), "--out", str(tmp_path / "out"), "--engine", "ray"]
    assert command([*words, "--address", "127.0.0.1:1"]) == 2
    err = capsys.readouterr().err
    assert "Expected a Ray cluster at 127.0.0.1:1, but got: [Errno 111] Connection refused. Start one" in err


@pytest.fixture
def cluster():
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield made
    import ray

    ray.shutdown()
    made.shutdown()


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
