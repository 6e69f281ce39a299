"""The time to plan ten thousand jobs, to list as many finished runs and to find them done.

    python -m benchmarks.jobs [--out benchmarks/results/jobs.json]

The finished runs are drawn, not trained. `docs/how-to/reproduce.md` quotes the results.
"""

import argparse
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks.result_files import RESULTS, show_result

if TYPE_CHECKING:
    from adawac.reproduction.jobs import Job

METHODS = ["baseline", "pair", "adawac"]
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
        "title": "Short runs",
        "seeds": seeds,
        "settings": settings,
        "axes": {"method": METHODS},
        "columns": {"DSC": {"metric": "dice"}},
    }
    path.write_text(yaml.safe_dump(grid))
    return path


def jobs_of(path: Path, store: Path, root: Path) -> "list[Job]":
    from adawac.reproduction import load_grid
    from adawac.reproduction.jobs import make_jobs

    _, grid = load_grid(path)
    return [job for _, jobs in make_jobs(grid.rows(), store, root, grid.conventions) for job in jobs]


def measure_listing(folder: Path, store: Path) -> dict[str, Any]:
    from adawac.runs import RunWriter, list_runs, write_scores

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


def measure() -> dict[str, Any]:
    import torch

    from adawac.data.phantom.scanner import phantom_source
    from adawac.data.preparation import prepare

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = folder / "store"
        prepare(phantom_source(8, 0, size=32, slices=(12, 16)), None, store, workers=1, progress=False)
        return {
            "machine": {
                "processor": platform.processor() or platform.machine(),
                "cores": os.cpu_count(),
                "python": platform.python_version(),
                "torch": torch.__version__,
            },
            "load": round(os.getloadavg()[1], 1),  # of the last five minutes before: others may have been at work
            "listing": measure_listing(folder, store),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "jobs.json")
    arguments = parser.parse_args()
    result = measure()
    show_result(result, arguments.out)


if __name__ == "__main__":
    main()
