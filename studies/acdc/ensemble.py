"""What several seeds of a row of the list give together: their mean probabilities, as `adawac predict --ensemble` does.

    python benchmarks/acdc.py train STORE RUNS --seconds 550 --keep-checkpoints --only 'final-long-*'
    python benchmarks/ensemble.py STORE RUNS final-long-baseline final-long-paper

Scores the test cases with test-time augmentation, and once more with only the largest connected part of each class.
Writes benchmarks/results/ensemble.json; the page is made by benchmarks/render.py.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from acdc_list import Listing, read_list
from case_scores import Labels, add_scores, means
from results_page import RESULTS

from adawac.data.store import Store
from adawac.inference.ensemble import Ensemble, check_agreement
from adawac.inference.label_files import keep_largest_components
from adawac.inference.predictor import segment_stacks
from adawac.inference.trained import load_trained
from adawac.inference.trained_network import Trained

NAME = "ensemble.json"


def score_together(members: list[Trained], store: Store, cases: list[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Return DSC in % and HD95, by class and on average, as predicted and of the largest parts alone."""
    check_agreement(members)
    found = {"as predicted": {}, "largest parts": {}}
    for case, labels in predicted(members, store, cases, tta=True):
        for name, scores in found.items():
            if name == "largest parts":
                keep_largest_components(labels)
            add_scores(scores, store, case, labels)
    return {name: means(scores) for name, scores in found.items()}


def predicted(members: list[Trained], store: Store, cases: list[str], tta: bool) -> Iterator[tuple[str, Labels]]:
    """Yield each case with what the networks find in it together."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    together = Ensemble([one.network.to(device) for one in members], tta=tta).eval()
    first, stacks = members[0], (store.stack(case)[0] for case in cases)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        predictions = segment_stacks(together, stacks, first.image_size, device=device, resize=first.resize)
        yield from zip(cases, predictions, strict=True)


def describe(row: str, listing: Listing, store: Store, runs: Path) -> dict:
    """Return what the seeds of a row score together, as plain data."""
    seeds = [run for run in listing.runs if run.row == row and (runs / run.name / "checkpoints").is_dir()]
    members = [load_trained(runs / run.name) for run in seeds]
    cases = list(store.table.take(store.table.split == "test").cases)
    return {
        "seeds": [run.seed for run in seeds],
        "cases": len(cases),
        "scores": score_together(members, store, cases),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("rows", nargs="+")
    parser.add_argument("--list", type=Path, help="another list of runs")
    parser.add_argument("--out", type=Path, default=RESULTS.parent / NAME)
    args = parser.parse_args(arguments)
    listing = read_list(args.list) if args.list else read_list()
    store = Store(args.store)
    result = {row: describe(row, listing, store, args.runs) for row in args.rows}
    args.out.write_text(json.dumps({"rows": result}, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
