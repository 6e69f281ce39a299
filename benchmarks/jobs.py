"""Overhead of the job layer on a grid of 30 short runs, and the time to list ten thousand finished runs.

    python benchmarks/jobs.py [--epochs 20] [--out benchmarks/results/jobs.json]

The 30 runs are trained and scored twice on one core: one after the other in this process, which knows nothing of jobs,
and as a grid of `adawac reproduce`, one job at a time, each in a process of its own. Their difference is the overhead.
The finished runs are drawn, not trained. Results are written as JSON and printed; `docs/how-to/reproduce.md` quotes
them.
"""

import argparse
import json
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from adawac.config import override
from adawac.data.phantom import phantom_source
from adawac.data.prepare import prepare
from adawac.evaluation import evaluate
from adawac.reproduction import load_grid, reproduce
from adawac.reproduction.jobs import Job, make_jobs
from adawac.runs import RunWriter, list_runs, write_scores
from adawac.train import fit

METHODS = ["baseline", "pair", "adawac"]
SEEDS = list(range(10))
ROUNDS = 5
LISTED = 10_000


def write_grid(path: Path, epochs: int, seeds: list[int]) -> Path:
    settings = {
        "epochs": epochs,
        "data.image_size": [32, 32],
        "data.batch_size": 16,
        "model.name": "smp:Unet/resnet18",
        "model.options": {"encoder_depth": 3, "decoder_channels": [32, 16, 8]},
        "hardware.accelerator": "cpu",
    }
    grid = {
        "title": "30 short runs",
        "seeds": seeds,
        "settings": settings,
        "axes": {"method": METHODS},
        "columns": {"DSC": {"metric": "dice"}},
    }
    path.write_text(yaml.safe_dump(grid))
    return path


def jobs_of(path: Path, store: Path, root: Path) -> list[Job]:
    _, grid = load_grid(path)
    return [job for _, jobs in make_jobs(grid.rows(), grid.seeds, store, root, grid.convention) for job in jobs]


def measure_overhead(folder: Path, epochs: int) -> dict[str, Any]:
    store = folder / "store"
    prepare(phantom_source(8, 0, size=32, slices=(12, 16)), None, store, workers=1, progress=False)
    path = write_grid(folder / "grid.yaml", epochs, SEEDS)
    plain, grid = [], []
    # In turns, so that what else the machine does slows both.
    for first in range(0, len(SEEDS), len(SEEDS) // ROUNDS):
        write_grid(path, epochs, SEEDS[first : first + len(SEEDS) // ROUNDS])
        jobs = jobs_of(path, store, folder / "plain")
        if not first:
            fit(override(jobs[0].config, {"epochs": 1}), folder / "warm-up")  # imports, and memory that torch keeps
        started = time.perf_counter()
        for job in jobs:
            fit(job.config, job.folder)
            evaluate(job.folder, convention=job.convention, progress=False)
        plain.append(time.perf_counter() - started)
        started = time.perf_counter()
        found = reproduce(path, folder / "grid", data=store, jobs=1)
        grid.append(time.perf_counter() - started)
        assert not found.failures
        assert found.comparison.missing == 0
    write_grid(path, epochs, SEEDS)
    started = time.perf_counter()
    again = reproduce(path, folder / "grid", data=store, jobs=1)
    runs = len(METHODS) * len(SEEDS)
    assert again.skipped == runs
    return {
        "runs": runs,
        "epochs": epochs,
        "plain_s": [round(one, 2) for one in plain],
        "grid_s": [round(one, 2) for one in grid],
        "overhead_percent": round(100 * (sum(grid) / sum(plain) - 1), 2),
        "overhead_s_per_run": round((sum(grid) - sum(plain)) / runs, 3),
        "again_s": round(time.perf_counter() - started, 2),
    }


def measure_listing(folder: Path) -> dict[str, Any]:
    store = folder / "store"
    path = write_grid(folder / "many.yaml", 1, list(range(-(-LISTED // len(METHODS)))))
    jobs = jobs_of(path, store, folder / "many")[:LISTED]
    first = jobs[0]
    with RunWriter(first.folder, first.config, epochs=1, summary=first.config.summary):
        pass
    write_scores(first.folder, first.evaluation, [])
    for job in jobs[1:]:
        shutil.copytree(first.folder, job.folder, copy_function=os.link)  # quick to make, and read alike
    started = time.perf_counter()
    runs = list_runs(folder / "many" / "runs")
    listed = sum(run.status == "finished" for run in runs)
    listing = time.perf_counter() - started
    started = time.perf_counter()
    planned = jobs_of(path, store, folder / "many")[:LISTED]
    planning = time.perf_counter() - started
    started = time.perf_counter()
    done = sum(job.state == "done" for job in planned)
    states = time.perf_counter() - started
    assert listed == done == LISTED
    return {
        "runs": LISTED,
        "list_runs_s": round(listing, 2),
        "plan_jobs_s": round(planning, 2),
        "job_states_s": round(states, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "jobs.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # the same for the processes of the grid
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result = {
            "machine": {
                "processor": platform.processor() or platform.machine(),
                "cores": os.cpu_count(),
                "python": platform.python_version(),
                "torch": torch.__version__,
            },
            "overhead": measure_overhead(folder, arguments.epochs),
            "listing": measure_listing(folder),
        }
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
