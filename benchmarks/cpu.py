"""The demo's network on two threads of a processor: slices/s of a training step and of predictions.

    python -m benchmarks.cpu --against REVISION [--rounds N]

A round measures the code of the revision, that of this checkout, and that again with an allocator that keeps what is
freed, each in a process of its own; a table cell is the median of all rounds. Writes benchmarks/results/cpu.json.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from adawac.config import override
from adawac.data import resample
from adawac.data.preparation import prepare
from adawac.data.store import Store
from adawac.inference.predictor import Predictor
from adawac.models import build
from adawac.reproduction.demo import DEMO, settings
from adawac.train.benchmark import measure
from adawac.train.setup import set_up
from adawac.train.step import TrainStep
from benchmarks.result_files import RESULTS, ROOT, write_result

THREADS = 2
TRAININGS = {
    "train baseline": ("baseline", "fp32"),
    "train AdaWAC": ("adawac", "fp32"),
    "train baseline, bf16": ("baseline", "bf16"),
    "train AdaWAC, bf16": ("adawac", "bf16"),
}
SECONDS = 1.5
KEEP = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""Makes glibc keep memory that a pass has freed for the next one."""


def rate(predictor, stacks):
    """Return the slices/s of a predictor: the median of its passes in a few seconds."""
    list(predictor.predict(stacks))
    times, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        list(predictor.predict(stacks))
        times.append(time.perf_counter() - start)
    return sum(map(len, stacks)) / statistics.median(times)


def networks(stacks):
    """Return what to predict with, and on: the demo's network, and the paper's UNet on enlarged slices."""
    size = DEMO.phantom["size"]
    small, _ = build(DEMO.model, 9, 1, size, seed=1, **DEMO.model_options)
    large, _ = build("unet", 9, 1, 224, seed=1)
    images = torch.nn.functional.interpolate(torch.from_numpy(stacks[0][:16]), (224, 224)).numpy()
    return {"": (small, size, stacks), ", UNet at 224²": (large, (224, 224), [images])}


def measure_tree(store, in_steps):
    """Return the slices/s of every row, of the code that this process imports; `in_steps` also those of each change."""
    torch.set_num_threads(THREADS)
    rates, parts = {}, {}
    for name, (method, precision) in TRAININGS.items():
        config = override(settings(store, method, 1), {"hardware.precision": precision})
        result = measure(config, steps=80, warmup=10)
        rates[name], parts[name] = result["slices_per_second"], result["parts_ms"]
    opened = Store(store)
    stacks = [opened.stack(case)[0] for case in dict.fromkeys(opened.table.cases)]
    for where, (network, size, slices) in networks(stacks).items():
        for precision in ("fp32", "bf16"):
            suffix = where + (", bf16" if precision == "bf16" else "")
            rates[f"predict{suffix}"] = rate(Predictor([network], size, precision=precision), slices)
    return {
        "rates": rates,
        "parts_ms": parts,
        "steps": prediction_steps(stacks) if in_steps else {},
        "turns": views_in_turns(store) if in_steps else {},
    }


def prediction_steps(stacks):
    """Return the slices/s of the demo's network with one change after the other."""
    network, size, _ = networks(stacks)[""]
    rates = {}
    for layout in (torch.contiguous_format, torch.channels_last):
        for batch in (358, 89, 44):
            predictor = Predictor([network], size, batch_size=batch)
            predictor.ensemble.to(memory_format=layout)
            name = "channels-last" if layout == torch.channels_last else "contiguous"
            rates[f"{name}, batches of {batch}"] = rate(predictor, stacks)
    return rates


def views_in_turns(store, steps=150):
    """Return the ms of a training step with views made 8,192 and 32,768 pixels at a time, one step each in turns."""
    torch.set_num_threads(THREADS)
    times = {}
    for method in ("baseline", "adawac"):
        trainer = set_up(settings(store, method, 1))
        step = TrainStep(trainer)
        rows = torch.arange(trainer.config.data.batch_size)
        for number in range(steps):
            for bits in (13, 15):
                resample._CACHED_PIXELS = 1 << bits
                start = time.perf_counter()
                step(rows + number % 20 * len(rows), 1, 0)
                times.setdefault(method, {}).setdefault(str(1 << bits), []).append(1000 * (time.perf_counter() - start))
    return {method: {size: statistics.median(each) for size, each in sizes.items()} for method, sizes in times.items()}


def run(source, store, **allocator):
    """Measure the code below a folder in a process of its own; that of this checkout change by change, too."""
    environment = {**os.environ, **allocator, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "benchmarks.cpu", "--measure", str(store)]
    command += ["--in-steps"] if source == ROOT / "src" and not allocator else []
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def medians(runs):
    """Return the median of each number of dictionaries alike."""
    return {
        name: medians([entry[name] for entry in runs])
        if isinstance(value, dict)
        else round(statistics.median(entry[name] for entry in runs), 2)
        for name, value in runs[0].items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", help="the revision to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--in-steps", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure_tree(args.measure, args.in_steps)))
        return
    if not args.against:
        parser.error("Expected --against REVISION.")
    with tempfile.TemporaryDirectory() as folder:
        store = prepare(DEMO.source(**DEMO.phantom), None, Path(folder) / "store", progress=False).path.absolute()
        archive = subprocess.run(
            ["git", "-C", str(ROOT), "archive", args.against, "src"], capture_output=True, check=True
        )
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        ways = {"before": (Path(folder) / "src", {}), "after": (ROOT / "src", {}), "kept": (ROOT / "src", KEEP)}
        runs = {name: [] for name in ways}
        for number in range(args.rounds):
            for name, (source, allocator) in ways.items():
                runs[name].append(run(source, store, **allocator))
                print(number + 1, name, runs[name][-1]["rates"], flush=True)
    result = {
        "machine": f"{platform.machine()}, {THREADS} threads",
        "torch": torch.__version__,
        "against": args.against,
        "rounds": args.rounds,
        **{name: medians(entries) for name, entries in runs.items()},
    }
    write_result(RESULTS / "cpu.json", result)


if __name__ == "__main__":
    main()
