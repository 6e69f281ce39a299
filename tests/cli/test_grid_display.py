"""What is seen while a grid runs: a bar for each run on a terminal, a line for each elsewhere."""

import re

import pytest

from adawac.cli.display import Overview
from adawac.reproduction import load_grid
from adawac.reproduction.jobs import JobOutcome, make_jobs
from adawac.runs import RunWriter
from tests.reproduction.grid_files import SMALL, write_grid


@pytest.fixture
def jobs(tmp_path, small_store):
    path = write_grid(tmp_path / "grid.yaml", settings={**SMALL["settings"], "epochs": 4})
    _, grid = load_grid(path)
    return [job for _, own in make_jobs(grid.rows(), small_store, tmp_path, ["adawac"]) for job in own]


def watch_a_grid(jobs) -> None:
    first, second = jobs
    with Overview() as overview:
        overview.planned(jobs, 0)
        overview.started(first)
        with RunWriter(first.folder, first.config, epochs=4) as run:
            run.log_metrics(1, {"loss": 1.0})
            run.log_metrics(2, {"loss": 1.0})
            overview.tick()
        overview.ended(first, JobOutcome(status="done", seconds=2.0))
        overview.started(second)
        overview.ended(second, JobOutcome(status="failed", reason="Its process \x1b[2Jwas killed."))


def test_a_line_for_each_run(jobs, capsys):
    watch_a_grid(jobs)
    out, err = capsys.readouterr()
    first, second = (job.name for job in jobs)
    assert out == ""
    assert err.splitlines() == [
        "2 runs, 0 of them done before",
        f"started {first}",
        f"done {first} in 2.0 s (1 of 2)",
        f"started {second}",
        f"failed {second}: Its process \\x1b[2Jwas killed.",
    ]


def test_bars_on_a_terminal(jobs, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
    monkeypatch.setenv("COLUMNS", "160")
    watch_a_grid(jobs)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert re.search(rf"{jobs[0].name}.* 2/4 epochs", shown)
    assert re.search(r"all runs .* 1/2 runs", shown)
    assert re.search(r"all runs, 1 failed .* 1/2 runs", shown)


def test_a_run_that_goes_on_says_from_where(jobs, capsys):
    job = jobs[0]
    with RunWriter(job.folder, job.config, epochs=4) as run:
        run.log_metrics(1, {"loss": 1.0})
    with Overview() as overview:
        overview.planned(jobs, 0)
        overview.started(job)
    assert f"started {job.name} from epoch 1 on" in capsys.readouterr().err


@pytest.mark.parametrize("kept", ["Runs", ""])
def test_an_interruption_says_what_is_kept(kept, capsys):
    with pytest.raises(KeyboardInterrupt), Overview(kept):
        raise KeyboardInterrupt
    said = "Runs are saved as far as they came. The same command goes on with them.\n"
    assert capsys.readouterr().out == (said if kept else "")
