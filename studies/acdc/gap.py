"""What separates the best results on ACDC from a perfect one: the network's grid, and the hardest patients.

    python -m studies.acdc.gap STORE

The grid: the true labels of the test cases on the network's 224×224 pixels, and back, scored as a prediction is. The
patients: the mean of the chosen networks' seeds with and without those two that score lowest, from the collected
results. Writes results/gap.json; the page is made by render.py.
"""

import argparse
import json
from pathlib import Path
from statistics import mean

import numpy as np
import torch

from adawac.data.resample import warp
from adawac.data.store import Store
from adawac.inference.predictor import Predictor
from adawac.reproduction.collected_results import Entry, read_entries
from studies.acdc.case_scores import add_scores, means

RESULTS = Path(__file__).with_name("results")
ROWS = ("final-baseline", "final-paper", "final-long-baseline", "final-long-paper")
SIZE = (224, 224)


class _Fixed(torch.nn.Module):
    """Gives the same output whatever it sees."""

    def __init__(self, output: torch.Tensor):
        super().__init__()
        self.output = output

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        return self.output


def through_the_grid(store: Store, cases: list[str]) -> dict[str, float]:
    """Return the DSC of true labels that went through the network's grid, by class and on average."""
    scores = {}
    for case in cases:
        images, labels = (torch.from_numpy(np.array(stack)) for stack in store.stack(case))
        identity = torch.eye(2, 3).expand(len(labels), 2, 3)
        _, small = warp(images, labels.long(), identity, SIZE, "bilinear")
        seen = torch.nn.functional.one_hot(small.long(), store.num_classes).movedim(-1, 1).float()
        (native,) = Predictor([_Fixed(seen)], SIZE, batch_size=len(images)).predict([images.numpy()])
        add_scores(scores, store, case, native)
    return means(scores)["dice"]


def by_patient(row: str, results: list[Entry]) -> dict:
    """Return a row's DSC over patients, each the mean of the seeds, with and without the two that score lowest."""
    entries = [entry for entry in results if entry["row"] == row]
    scores = {name: 100 * mean(run["patients"][name] for run in entries) for name in entries[0]["patients"]}
    lowest = sorted(scores, key=scores.__getitem__)[:2]
    return {
        "seeds": len(entries),
        "all": mean(scores.values()),
        "lowest": {name: scores[name] for name in lowest},
        "others": mean(score for name, score in scores.items() if name not in lowest),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    args = parser.parse_args()
    store = Store(args.store)
    results = read_entries(RESULTS / "runs.json")
    cases = list(store.table.take(store.table.split == "test").cases)
    result = {
        "size": SIZE,
        "cases": len(cases),
        "grid": through_the_grid(store, cases),
        "patients": {row: by_patient(row, results) for row in ROWS},
    }
    print(json.dumps(result, indent=2))
    (RESULTS / "gap.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
