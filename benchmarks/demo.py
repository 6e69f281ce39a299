"""`adawac demo` for ten seeds: the scores, how β separates, and how long it takes.

    python -m benchmarks.demo OUT [--seeds 1 2 3 …] [--pictures]

Runs that are finished in OUT are not done again, so seeds may first run side by side (`OUT --seeds 3`, one thread
each); the last call has all seeds. The time of a seed is noted only where all of it was done here. Writes
benchmarks/results/demo.json and docs/assets/demo-separation.png, or with `--pictures`
benchmarks/results/demo-pictures.json; the pages are made by benchmarks/render.py.
"""

import argparse
import os
import platform
import statistics
import time
from pathlib import Path

from adawac.data.preparation import prepare
from adawac.evaluation import by_patient, evaluate
from adawac.figures import draw
from adawac.reproduction.demo import DEMO, DEMO_METHODS, PICTURES_DEMO, DemoSettings, demonstrate
from adawac.runs import Run
from benchmarks.result_files import RESULTS, write_result

ROOT = Path(__file__).parents[1]
FRESH = 77
"""The phantom's seed for other test patients than those that were looked at while settings were chosen."""
NUMBERS = ("beta_sparse", "beta_dense", "beta_auc", "separated_sparse", "separated_dense", "spread_ce", "spread_ac")


def one_seed(out: Path, seed: int, demo: DemoSettings) -> dict:
    started, fresh = time.perf_counter(), not list(out.glob(f"*-seed{seed}-*"))
    found = demonstrate(out, seed=seed, demo=demo, note=lambda text, start, stop: print(text, flush=True))
    last = Run(found["runs"]["adawac"]).metrics[-1]
    return {
        "seed": seed,
        "samples": found["samples"],
        "label_sparse": found["label_sparse"],
        "epochs": found["epochs"],
        "dice": found["dice"],
        "classes": found["classes"],
        "detections": found["detections"],
        "seconds": round(time.perf_counter() - started) if fresh else None,
        "adawac": {name: last[name] for name in NUMBERS},
        "run": found["runs"]["adawac"],
    } | ({} if demo is PICTURES_DEMO else {"fresh": fresh_scores(out, found["runs"], demo)})


def fresh_scores(out: Path, runs: dict[str, Path], demo: DemoSettings) -> dict[str, float]:
    """Score the runs on other test patients of the same phantom."""
    store = prepare(demo.source(**demo.phantom, seed=FRESH), None, out / "fresh-store", progress=False)
    evaluations = evaluate(list(runs.values()), data=store.path, part="test", gallery=0, progress=False)
    scores = (by_patient(evaluation.scores, "dice").values() for evaluation in evaluations)
    return dict(zip(runs, map(statistics.mean, scores), strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(1, 11)))
    parser.add_argument("--pictures", action="store_true")
    args = parser.parse_args()
    seeds = [one_seed(args.out, seed, PICTURES_DEMO if args.pictures else DEMO) for seed in args.seeds]
    if not args.pictures:
        draw("separation", [seeds[0]["run"]], ROOT / "docs" / "assets" / "demo-separation.png", width="text")
    result = {
        "cases": "pictures with a defect" if args.pictures else "patients",
        "samples": "pictures" if args.pictures else "slices",
        "methods": list(DEMO_METHODS),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "seeds": [{key: value for key, value in run.items() if key != "run"} for run in seeds],
    }
    write_result(RESULTS / ("demo-pictures.json" if args.pictures else "demo.json"), result)


if __name__ == "__main__":
    main()
