"""Run folders as jobs: names that follow from the configuration, and what a folder says of its state."""

import json
import shutil

import pytest

from adawac.reproduction import load_grid
from adawac.reproduction.jobs import make_jobs
from adawac.runs import RunWriter, write_scores
from tests.reproduction.grid_files import write_grid


@pytest.fixture
def plan(tmp_path, small_store):
    def build(store=small_store, last=None, **changes):
        _, grid = load_grid(write_grid(tmp_path / "grid.yaml", **changes))
        return [job for _, jobs in make_jobs(grid.rows(last=last), store, tmp_path, ["adawac"]) for job in jobs]

    return build


def test_names_are_readable_and_follow_from_what_decides_the_result(plan, small_store, tmp_path):
    first, second = plan()
    assert first.name.startswith("tests-networks-small-network-small-full-baseline-paper-seed1-")
    assert second.name.startswith("tests-networks-small-network-small-full-adawac-paper-seed1-")
    assert first.folder == tmp_path / "runs" / first.name
    names = [job.name for job in plan()]
    assert names == [first.name, second.name]
    free = {"data.workers": 0, "checkpoint_every": 3, "track": ["csv"], "hardware.compile": True}
    assert [job.name for job in plan(last=free)] == names
    for decisive in (
        {"epochs": 2},
        {"optim.lr": 0.5},
        {"method.options.lambda_ac": 3.0},
        {"hardware.precision": "bf16"},
        {"hardware.devices": 2},  # BatchNorm sees half of a batch
    ):
        assert set(names).isdisjoint(job.name for job in plan(last=decisive))
    synced = [[job.name for job in plan(last={"hardware.sync_batchnorm": True, "hardware.devices": n})] for n in (1, 2)]
    assert synced[0] == synced[1]
    moved = shutil.copytree(small_store, tmp_path / "moved")
    assert [job.name for job in plan(store=moved)] == names
    info = json.loads((moved / "store.json").read_text())
    (moved / "store.json").write_text(json.dumps(info | {"recipe": "another"}))
    assert set(names).isdisjoint(job.name for job in plan(store=moved))


def test_rows_of_the_same_configuration_share_a_job(plan):
    first, second = plan(axes={"name": {"a": {"epochs": 3}, "b": {"epochs": 3}}}, paper={})
    assert first.name == second.name


def test_states(plan):
    job = plan()[0]
    assert job.state == "new"
    assert job.progress == (0, 1)
    with RunWriter(job.folder, job.config, epochs=1) as run:
        assert job.state == "started"
        run.log_metrics(1, {"loss": 1.0})
        run.save_checkpoint("last", {}, {"epoch": 1})
    assert job.state == "trained"
    assert job.progress == (1, 1)
    write_scores(job.folder, "test-strict-last", [])
    assert job.state == "trained"
    write_scores(job.folder, "test-adawac-last", [])
    assert job.state == "done"
    with RunWriter(job.folder, resume=True) as run:  # somebody trained on: these scores are of older weights
        run.save_checkpoint("last", {}, {"epoch": 1})
    assert job.state == "trained"
    (job.folder / "run.json").write_text("{")
    assert job.state == "started"
