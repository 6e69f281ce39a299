"""nnU-Net's 2D configuration with its own trainer, with two views of each patch (pair), and with AdaWAC.

    python -m studies.nnunet.compare OUT --source synapse SYNAPSE --epochs 50 --seeds 1 2 --name synapse
    python -m studies.nnunet.compare OUT --device cpu --epochs 2 --iterations 5 --validations 1      # the phantom

Plans, preprocesses and trains by nnU-Net's own commands in OUT, and writes results/NAME.json with all that is finished
there: the DSC of nnU-Net's validation, the time of a step, and how well β tells label-sparse slices from label-dense
ones. `--seconds` ends it in time; the same command goes on. OUT is for one data set and one length of training.
"""

import argparse
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.stats import mannwhitneyu

from adawac.data.cases import is_label_dense, is_label_sparse
from adawac.data.phantom import phantom_source
from adawac.data.sources import build_source
from adawac.integrations.nnunet import trainer_folder
from benchmarks.result_files import ROOT, write_result
from studies.nnunet.raw_data import write_raw_data

RESULTS = Path(__file__).with_name("results")
DATASET, CONFIGURATION = "Dataset601_Study", "2d"
PLANS, DOUBLE_PLANS = "nnUNetPlans", "nnUNetPlansDouble"
#: What is compared: trainer and plans. `stock-double` has as many forwards in a step as those with two views.
ROWS = {
    "stock": ("nnUNetTrainerStudyStock", PLANS),
    "stock-double": ("nnUNetTrainerStudyStock", DOUBLE_PLANS),
    "pair": ("nnUNetTrainerStudyPair", PLANS),
    "adawac": ("nnUNetTrainerStudyAdaWAC", PLANS),
}
_PHANTOM = {"num_patients": 8, "size": 32, "slices": (8, 10)}
_PLAN = ("experiment_planning.plan_and_preprocess_entrypoints", "plan_and_preprocess_entry")
_TRAIN = ("run.run_training", "run_training_entry")


def environment(out: Path, seed: int, **settings: int) -> dict[str, str]:
    """Return the variables that nnU-Net and the study's trainers read."""
    folders = [str(trainer_folder()), str(Path(__file__).with_name("trainers"))]
    return {
        **os.environ,
        "nnUNet_raw": str(out / "raw"),
        "nnUNet_preprocessed": str(out / "preprocessed"),
        "nnUNet_results": str(out / "results" / f"seed{seed}"),
        "nnUNet_extTrainer": os.pathsep.join(folders),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "ADAWAC_STUDY": json.dumps({"seed": seed, **settings}),
    }


def call_nnunet(entry: tuple[str, str], words: list[str], env: dict[str, str], seconds: float | None = None) -> None:
    """Run a command of nnU-Net; after so many seconds it is interrupted."""
    code = f"from nnunetv2.{entry[0]} import {entry[1]}; {entry[1]}()"
    process = subprocess.Popen([sys.executable, "-c", code, *words], env=env)
    try:
        if status := process.wait(seconds):
            raise SystemExit(f"nnU-Net's {entry[1]} ended with status {status}.")
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # nnU-Net's workers end with it
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def prepare(out: Path, source: str | None, root: str | None, workers: int) -> None:
    """Write the raw data and let nnU-Net plan and preprocess it, once."""
    plans = out / "preprocessed" / DATASET / f"{DOUBLE_PLANS}.json"
    if plans.is_file():
        return
    shutil.rmtree(out / "raw", ignore_errors=True)
    scans = phantom_source(**_PHANTOM) if source is None else build_source(source, root or "")
    split = write_raw_data(scans, out / "raw" / DATASET)
    words = ["-d", "601", "-c", CONFIGURATION, "-np", str(workers), "-npfp", str(workers)]
    call_nnunet(_PLAN, words, environment(out, 0))
    if split is not None:
        (plans.parent / "splits_final.json").write_text(json.dumps([split]))
    description = json.loads((plans.parent / f"{PLANS}.json").read_text())
    description["plans_name"] = DOUBLE_PLANS
    description["configurations"][CONFIGURATION]["batch_size"] *= 2
    plans.write_text(json.dumps(description))


def run_folder(out: Path, row: str, seed: int) -> Path:
    """Return where nnU-Net puts what it trains."""
    trainer, plans = ROWS[row]
    return out / "results" / f"seed{seed}" / DATASET / f"{trainer}__{plans}__{CONFIGURATION}" / "fold_0"


def is_finished(out: Path, row: str, seed: int) -> bool:
    """Tell whether a training was validated."""
    return (run_folder(out, row, seed) / "validation" / "summary.json").is_file()


def train(out: Path, row: str, seed: int, device: str, seconds: float | None, **settings: int) -> None:
    """Train and validate, or go on with it."""
    if not is_finished(out, row, seed):
        trainer, plans = ROWS[row]
        words = ["601", CONFIGURATION, "0", "-tr", trainer, "-p", plans, "-device", device, "--c"]
        call_nnunet(_TRAIN, words, environment(out, seed, **settings), seconds)


def collect(folder: Path) -> dict[str, Any]:
    """Return what a finished training came to."""
    summary = json.loads((folder / "validation" / "summary.json").read_text())
    epochs = {line["epoch"]: line for line in map(json.loads, (folder / "seconds.jsonl").read_text().splitlines())}
    warm = [epochs[epoch] for epoch in sorted(epochs)[1:]]  # the first one compiles and tunes
    result: dict[str, Any] = {
        "dice": summary["foreground_mean"]["Dice"],
        "dice_of_cases": {
            Path(case["prediction_file"]).name.removesuffix(".nii.gz"): float(
                np.nanmean([scores["Dice"] for scores in case["metrics"].values()])
            )
            for case in summary["metric_per_case"]
        },
        "step_ms": 1000 * median(second for line in warm for second in line["steps"]),
        "epoch_s": median(line["seconds"] for line in warm),
    }
    return result | (weights(folder / "beta.csv") if "AdaWAC" in folder.parent.name else {})


def weights(path: Path) -> dict[str, float]:
    """Return how well β tells label-dense slices from label-sparse ones."""
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["foreground"]]  # those without label have none
    columns = ("foreground", "beta", "log_odds")
    foreground, beta, log_odds = (np.array([float(row[name]) for row in rows]) for name in columns)
    sparse, dense = is_label_sparse(foreground), is_label_dense(foreground)
    pairs = sparse.sum() * dense.sum()
    return {
        "beta_sparse": float(beta[sparse].mean()),
        "beta_dense": float(beta[dense].mean()),
        "auc": float(mannwhitneyu(log_odds[dense], log_odds[sparse]).statistic / pairs),
        "seen": float((log_odds != 0).mean()),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--source", nargs=2, metavar=("SOURCE", "FOLDER"), help="the phantom by default")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--iterations", type=int, default=250)
    parser.add_argument("--validations", type=int, default=50)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=4, help="processes that preprocess")
    parser.add_argument("--seconds", type=float, help="end after so many; give the command again to go on")
    parser.add_argument("--name", default="phantom")
    options = parser.parse_args(arguments)
    end = None if options.seconds is None else time.monotonic() + options.seconds
    prepare(options.out, *(options.source or (None, None)), options.workers)
    settings = {name: vars(options)[name] for name in ("epochs", "iterations", "validations")}
    about = {"configuration": CONFIGURATION, "device": device_name(options.device), **settings}
    for seed in options.seeds:
        for row in options.rows:
            left = None if end is None else max(end - time.monotonic(), 1)
            train(options.out, row, seed, options.device, left, **settings)
            if rows := collect_rows(options.out):
                write_result(RESULTS / f"{options.name}.json", {**about, "rows": rows})


def collect_rows(out: Path) -> dict[str, dict[str, Any]]:
    """Return what every finished training in a folder came to, by row and seed."""
    seeds = sorted(int(path.name.removeprefix("seed")) for path in (out / "results").glob("seed*"))
    rows = {
        row: {str(seed): collect(run_folder(out, row, seed)) for seed in seeds if is_finished(out, row, seed)}
        for row in ROWS
    }
    return {row: runs for row, runs in rows.items() if runs}


def device_name(device: str) -> str:
    """Return what the steps ran on."""
    import torch

    return torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} CPU cores"


if __name__ == "__main__":
    main()
