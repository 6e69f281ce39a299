"""How much of a run's score is chance in the statistics of its batch norms?

    adawac reproduce studies/acdc/grid.yaml --data STORE --out OUT --only unet-baseline
    python -m studies.acdc.norm_statistics STORE OUT unet-baseline-seed1 unet-baseline-seed2

A batch norm is evaluated with a running average of the last dozens of batches, which moves on with every one. Scores
the test cases with these statistics and with those of all training samples (`torch.optim.swa_utils.update_bn`, views
as in training), the weights being the same. Writes results/norm-statistics.json, run by run; render.py
makes the page.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch
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
from adawac.reproduction import load_grid
from adawac.runs import Run
from studies.acdc.case_scores import add_scores, means
from studies.acdc.ensemble import predicted
from studies.layout import find_runs

GRID = Path(__file__).with_name("grid.yaml")
RESULTS = Path(__file__).with_name("results")
NAME = "norm-statistics.json"


def describe(name: str, run: Run, store: Store) -> dict:
    """Return what a run scores with its own statistics and with those of all training samples, as plain data."""
    trained = load_trained(run)
    table = resolve_split(store.table, run.config.data.split, run.config.seed)
    cases = list(table.take(table.split == "test").cases)
    own = score(trained, store, cases)
    before = _statistics(trained)
    with torch.autocast("cuda", torch.bfloat16, enabled=torch.cuda.is_available()):
        update_bn(_images(run, store, table), trained.network)
    return {
        "name": name,
        "own": own,
        "of all samples": score(trained, store, cases),
        "moved": _distance(before, _statistics(trained)),
    }


def score(trained: Trained, store: Store, cases: list[str]) -> dict[str, dict[str, float]]:
    """Return DSC in % and HD95, by class and on average."""
    scores = {}
    for case, labels in predicted([trained], store, cases, tta=False):
        add_scores(scores, store, case, labels)
    return means(scores)


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
    return {name: buffer.clone() for name, buffer in trained.network.named_buffers() if "running_" in name}


def _distance(before: dict[str, Tensor], after: dict[str, Tensor]) -> float:
    """Return how far the means moved, in standard deviations: the largest root mean square of any norm."""
    distances = [
        ((after[name] - mean) / after[name.replace("_mean", "_var")].sqrt().clamp_min(1e-6)).square().mean().sqrt()
        for name, mean in before.items()
        if name.endswith("_mean")
    ]
    return float(max(distances, default=torch.zeros(())))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("runs", type=Path, help="where run folders lie, with their checkpoints")
    parser.add_argument("names", nargs="+", help="which runs, as the results call them")
    parser.add_argument("--grid", type=Path, default=GRID, help="another grid")
    parser.add_argument("--out", type=Path, default=RESULTS / NAME)
    args = parser.parse_args(arguments)
    (_, grid), store, described = load_grid(args.grid), Store(args.store), []
    for name, run in find_runs(grid, [args.runs], args.names).items():
        described.append(describe(name, run, store))
        print(json.dumps(described[-1]), flush=True)
        write_text(args.out, json.dumps({"runs": described}, indent=2) + "\n")


if __name__ == "__main__":
    main()
