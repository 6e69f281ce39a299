"""`adawac demo` for three seeds: the scores, how β separates, and how long it takes.

    python -m benchmarks.demo OUT [--seeds 1 2 3]

Runs that are finished in OUT are not done again; the time of a seed is noted only where all of it was done here. Writes
benchmarks/results/demo.json and docs/assets/demo-separation.png; the pages are made by benchmarks/render.py.
"""

import argparse
import os
import platform
import time
from pathlib import Path

from adawac.figures import draw
from adawac.reproduction.demo import DEMO_METHODS, SUBSET, demonstrate
from adawac.runs import Run
from benchmarks.result_files import RESULTS, write_result

ROOT = Path(__file__).parents[1]
NUMBERS = ("beta_sparse", "beta_dense", "beta_auc", "separated_sparse", "separated_dense", "spread_ce", "spread_ac")


def one_seed(out: Path, seed: int) -> dict:
    started, fresh = time.perf_counter(), not list(out.glob(f"*-seed{seed}-*"))
    found = demonstrate(out, seed=seed, note=lambda text: print(text, flush=True))
    last = Run(found["runs"]["adawac"]).metrics[-1]
    return {
        "seed": seed,
        "samples": found["samples"],
        "epochs": found["epochs"],
        "dice": found["dice"],
        "seconds": round(time.perf_counter() - started) if fresh else None,
        "adawac": {name: last[name] for name in NUMBERS},
        "run": found["runs"]["adawac"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    args = parser.parse_args()
    seeds = [one_seed(args.out, seed) for seed in args.seeds]
    draw("separation", [seeds[0].pop("run")], ROOT / "docs" / "assets" / "demo-separation.png", width="text")
    result = {
        "subset": SUBSET,
        "methods": list(DEMO_METHODS),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "seeds": [{key: value for key, value in run.items() if key != "run"} for run in seeds],
    }
    write_result(RESULTS / "demo.json", result)


if __name__ == "__main__":
    main()
