"""How much of a run's score is chance in the statistics of its batch norms?

    python benchmarks/acdc.py train STORE RUNS --seconds 550 --keep-checkpoints --only 'unet-baseline-*'
    python benchmarks/norm_statistics.py STORE RUNS/unet-baseline-seed1 RUNS/unet-baseline-seed2

A batch norm is evaluated with a running average of the last dozens of batches, which moves on with every one. Scores
the test cases with these statistics and with those of all training samples (`torch.optim.swa_utils.update_bn`, views
as in training), the weights being the same. Writes benchmarks/results/norm-statistics.json, run by run; the page is
made by benchmarks/render.py.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from case_scores import add_scores, means
from ensemble import predicted
from results_page import RESULTS
from torch import Tensor
from torch.optim.swa_utils import update_bn

from adawac.data.cases import SampleTable
from adawac.data.loader import Loader
from adawac.data.splits import resolve_split
from adawac.data.store import Store
from adawac.data.views import ViewConfig
from adawac.files import write_text
from adawac.inference.trained import load_trained
from adawac.inference.trained_network import Trained
from adawac.runs import Run

NAME = "norm-statistics.json"


def describe(run: Run, store: Store) -> dict:
    """Return what a run scores with its own statistics and with those of all training samples, as plain data."""
    trained = load_trained(run)
    table = resolve_split(store.table, run.config.data.split, run.config.seed)
    cases = list(table.take(table.split == "test").cases)
    own = score(trained, store, cases)
    before = _statistics(trained)
    with torch.autocast("cuda", torch.bfloat16, enabled=torch.cuda.is_available()):
        update_bn(_images(run, store, table), trained.network)
    return {
        "name": run.folder.name,
        "own": own,
        "of all samples": score(trained, store, cases),
        "moved": _distance(before, _statistics(trained)),
    }


def score(trained: Trained, store: Store, cases: list[str]) -> dict[str, dict[str, float]]:
    """Return DSC in % and HD95, by class and on average."""
    found = {}
    for case, labels in predicted([trained], store, cases, tta=False):
        add_scores(found, store, case, labels)
    return means(found)


def _images(run: Run, store: Store, table: SampleTable) -> Iterator[Tensor]:
    """Yield the training samples as the run saw them in an epoch, the first view of each."""
    config = run.config
    loader = Loader(
        store.samples("train", config.data.subset, config.seed, table),
        config.data.image_size,
        batch_size=config.data.batch_size,
        views=ViewConfig(**config.data.views),
        seed=config.seed,
        device="cuda" if torch.cuda.is_available() else "cpu",
        num_views=1,
    )
    for batch in loader.epoch(config.epochs):
        yield batch["images"][0]


def _statistics(trained: Trained) -> dict[str, Tensor]:
    return {name: one.clone() for name, one in trained.network.named_buffers() if "running_" in name}


def _distance(before: dict[str, Tensor], after: dict[str, Tensor]) -> float:
    """Return how far the means moved, in standard deviations: the largest root mean square of any norm."""
    found = [
        ((after[name] - one) / after[name.replace("_mean", "_var")].sqrt().clamp_min(1e-6)).square().mean().sqrt()
        for name, one in before.items()
        if name.endswith("_mean")
    ]
    return float(max(found, default=torch.zeros(())))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("runs", type=Path, nargs="+", help="run folders with their checkpoints")
    parser.add_argument("--out", type=Path, default=RESULTS.parent / NAME)
    args = parser.parse_args(arguments)
    store, found = Store(args.store), []
    for folder in args.runs:
        found.append(describe(Run(folder), store))
        print(json.dumps(found[-1]), flush=True)
        write_text(args.out, json.dumps({"runs": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
