"""Overhead of the job layer on a grid of 30 short runs, and the time to list ten thousand finished runs.

    python benchmarks/jobs.py [--epochs 10] [--rounds 5] [--at-once 1 2] [--out benchmarks/results/jobs.json]

The same 30 runs are trained and scored twice, by commands that are timed from start to end: by a script that knows
nothing of jobs (one process for each run at a time, which trains and scores its share one after the other), and by
`adawac reproduce`. Both have one thread of torch for each run, and import what they need. They take turns, so that what
else the machine does slows both. The overhead is the median of their ratios. Processor seconds are those of all
processes together: they tell what waiting hides. The finished runs are drawn, not trained. `docs/how-to/reproduce.md`
quotes the results.
"""

import argparse
import ctypes
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adawac.reproduction.jobs import Job

METHODS = ["baseline", "pair", "adawac"]
SEEDS = list(range(10))
LISTED = 10_000
_BECOME_PARENT_OF_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of Linux: so that processes without a parent are counted here


def write_grid(path: Path, epochs: int, seeds: list[int]) -> Path:
    import yaml

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


def jobs_of(path: Path, store: Path, root: Path) -> "list[Job]":
    from adawac.reproduction import load_grid
    from adawac.reproduction.jobs import make_jobs

    _, grid = load_grid(path)
    return [job for _, jobs in make_jobs(grid.rows(), grid.seeds, store, root, grid.convention) for job in jobs]


def run_plainly(path: Path, store: Path, root: Path, share: int, shares: int) -> None:
    """Train and score a share of the runs, one after the other: what a script without jobs would do."""
    from adawac.evaluation import evaluate
    from adawac.train import fit

    for job in jobs_of(path, store, root)[share::shares]:
        fit(job.config, job.folder)
        evaluate(job.folder, convention=job.convention, precision="fp32", progress=False)


def timed(commands: Sequence[Sequence[Path | str]]) -> tuple[float, float]:
    """Run commands side by side; return the seconds that they took, and the processor's of all their processes."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [subprocess.Popen([sys.executable, *map(str, words)], **quiet) for words in commands]
    codes = [process.wait() for process in processes]
    wall = time.perf_counter() - started
    assert not any(codes), commands
    try:
        while True:
            os.wait()  # those that outlive the command, such as the one that forks others
    except ChildProcessError:
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_overhead(folder: Path, store: Path, epochs: int, rounds: int, at_once: int) -> dict[str, Any]:
    path = write_grid(folder / "grid.yaml", epochs, SEEDS)
    plain, grid = [], []
    for number in range(rounds):
        outs = [folder / f"{kind}-{at_once}-{number}" for kind in ("plain", "grid")]
        shares = [(__file__, "--plain", path, store, outs[0], str(one), str(at_once)) for one in range(at_once)]
        command = ("-m", "adawac", "reproduce", path, "--data", store, "--out", outs[1], "--jobs", str(at_once))
        for kind in ("plain", "grid")[:: 1 if number % 2 else -1]:  # neither is always the first
            if kind == "plain":
                plain.append(timed(shares))
            else:
                grid.append(timed([command]))
        scores = [{file.parents[1].name: file.read_bytes() for file in out.glob("runs/*/scores/*")} for out in outs]
        assert scores[0] == scores[1]
        assert len(scores[0]) == len(METHODS) * len(SEEDS)
        again, _ = timed([command])
        for out in outs:
            shutil.rmtree(out)
    runs = len(METHODS) * len(SEEDS)
    start, _ = timed([("-c", "import adawac.reproduction.preloading")])
    ratios = [[one[which] / other[which] for one, other in zip(grid, plain, strict=True)] for which in (0, 1)]
    return {
        "runs": runs,
        "epochs": epochs,
        "at_once": at_once,
        "plain_s": [round(one, 1) for one, _ in plain],
        "grid_s": [round(one, 1) for one, _ in grid],
        "overhead_percent": round(100 * (statistics.median(ratios[0]) - 1), 1),
        "plain_cpu_s": [round(one, 1) for _, one in plain],
        "grid_cpu_s": [round(one, 1) for _, one in grid],
        "cpu_overhead_percent": round(100 * (statistics.median(ratios[1]) - 1), 1),
        "run_s": round(statistics.median(one for one, _ in plain) * at_once / runs, 1),
        "start_s": round(start, 1),
        "again_s": round(again, 2),
    }


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


def measure(epochs: int, rounds: int, at_once: Sequence[int]) -> dict[str, Any]:
    import torch

    from adawac.data.phantom.scanner import phantom_source
    from adawac.data.preparation import prepare

    os.environ["OMP_NUM_THREADS"] = "1"
    ctypes.CDLL(None).prctl(_BECOME_PARENT_OF_ORPHANS, 1, 0, 0, 0)
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
            "overhead": [measure_overhead(folder, store, epochs, rounds, one) for one in at_once],
            "listing": measure_listing(folder, store),
        }


def main() -> None:
    if sys.argv[1:2] == ["--plain"]:
        path, store, root, share, shares = sys.argv[2:]
        run_plainly(Path(path), Path(store), Path(root), int(share), int(shares))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "jobs.json")
    arguments = parser.parse_args()
    result = measure(arguments.epochs, arguments.rounds, arguments.at_once)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
