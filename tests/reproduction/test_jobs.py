"""Run folders as jobs: names that follow from the configuration, and what a folder says of its state."""

import json
import shutil

import pytest

from adawac.reproduction import load_grid
from adawac.reproduction.jobs import in_order, make_jobs, read_epoch_times
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


def test_rows_run_by_priority_then_seed_by_seed(tmp_path, small_store):
    runs = {
        "last": {"priority": 2, "set": {"epochs": 2}},
        "first": {"seeds": [5, 6], "set": {"epochs": 3}},
        "second": {"set": {"epochs": 4}},
        "same": {"priority": 1, "set": {"epochs": 4}},
    }
    _, grid = load_grid(write_grid(tmp_path / "grid.yaml", axes={}, runs=runs, paper={}, seeds=[5]))
    jobs = in_order(make_jobs(grid.rows(), small_store, tmp_path, ["adawac"]))
    assert [(job.config.epochs, job.config.seed) for job in jobs] == [(3, 5), (4, 5), (3, 6), (2, 5)]


def test_lists_of_a_split_decide_and_not_where_they_lie(plan, tmp_path):
    names = []
    for folder, patients in (("a", "one\n"), ("b", "one\n"), ("c", "two\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.txt").write_text(patients)
        names.append(plan(last={"data.split": str(tmp_path / folder)})[0].name)
    assert names[0] == names[1] != names[2]


def test_an_epoch_done_again_counts_once(tmp_path):
    rates = [(1, 9.0, 1.0), (2, 5.0, 10.0), (3, 5.0, 30.0), (2, 1.0, 20.0), (3, 2.0, 40.0), (4, 3.0, 50.0)]
    lines = [json.dumps({"epoch": e, "seconds": s, "slices_per_second": r}) for e, s, r in rates]
    (tmp_path / "timing.jsonl").write_text("\n".join([*lines, '{"epoch": 5, "seco']))
    assert [epoch["seconds"] for epoch in read_epoch_times(tmp_path)] == [9.0, 1.0, 2.0, 3.0]
