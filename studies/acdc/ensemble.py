"""What several seeds of a row of the grid give together: their mean probabilities, as `adawac predict --ensemble` does.

    adawac reproduce studies/acdc/grid.yaml --data STORE --out OUT --only 'final-long-*'
    python -m studies.acdc.ensemble STORE OUT final-long-baseline final-long-paper

Scores the test cases with test-time augmentation, and once more with only the largest connected part of each class.
Writes results/ensemble.json; the page is made by render.py.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from adawac.data.store import Store
from adawac.inference.label_files import keep_largest_components
from adawac.inference.predictor import Predictor
from adawac.inference.trained import load_trained
from adawac.inference.trained_network import Trained
from adawac.reproduction import Grid, load_grid
from adawac.reproduction.collected_results import run_name
from studies.acdc.case_scores import Labels, add_scores, means
from studies.layout import find_runs

GRID = Path(__file__).with_name("grid.yaml")
RESULTS = Path(__file__).with_name("results")
NAME = "ensemble.json"


def score_together(members: list[Trained], store: Store, cases: list[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Return DSC in % and HD95, by class and on average, as predicted and of the largest parts alone."""
    kinds = {"as predicted": {}, "largest parts": {}}
    for case, labels in predicted(members, store, cases, tta=True):
        for name, scores in kinds.items():
            if name == "largest parts":
                keep_largest_components(labels)
            add_scores(scores, store, case, labels)
    return {name: means(scores) for name, scores in kinds.items()}


def predicted(members: list[Trained], store: Store, cases: list[str], tta: bool) -> Iterator[tuple[str, Labels]]:
    """Yield each case with what the networks find in it together."""
    stacks = (store.stack(case)[0] for case in cases)
    yield from zip(cases, Predictor.of(members, device="auto", tta=tta).predict(stacks), strict=True)


def describe(name: str, grid: Grid, store: Store, folder: Path) -> dict:
    """Return what the seeds of a row score together, as plain data."""
    [row] = [row for row in grid.rows() if row.name == name]
    runs = find_runs(grid, [folder], [run_name(row, seed) for seed in row.seeds])
    cases = list(store.table.take(store.table.split == "test").cases)
    return {
        "seeds": [run.settings["seed"] for run in runs.values()],
        "cases": len(cases),
        "scores": score_together([load_trained(run) for run in runs.values()], store, cases),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("runs", type=Path, help="where run folders lie, with their checkpoints")
    parser.add_argument("rows", nargs="+")
    parser.add_argument("--grid", type=Path, default=GRID, help="another grid")
    parser.add_argument("--out", type=Path, default=RESULTS / NAME)
    args = parser.parse_args(arguments)
    (_, grid), store = load_grid(args.grid), Store(args.store)
    result = {name: describe(name, grid, store, args.runs) for name in args.rows}
    args.out.write_text(json.dumps({"rows": result}, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
