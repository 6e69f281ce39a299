"""Which planted label errors are found: by the suspects of single runs, by cleanlab, and by a cross-validation.

    python -m studies.label_errors.compare OUT --config studies/label_errors/phantom.yaml --seeds 201 202 203
    python -m studies.label_errors.compare OUT --config synapse-unet --store STORE --folds 5 --seeds 1 2 --name synapse

For each seed, errors are planted into the labels of the store, or of a phantom that is drawn with that seed; the store
is cross-validated; and its slices are ranked in several ways by the same networks. cleanlab (pip install cleanlab) gets
the probabilities that these networks give out of fold. Writes results/NAME.json; folds that are done are kept.
`python -m studies.label_errors.render` makes the tables of the documentation.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adawac.config import TrainConfig, load, override, recipe_path
from adawac.data.phantom import phantom_source
from adawac.data.preparation import prepare
from adawac.data.store import Store
from adawac.evaluation.out_of_fold import plan_fold, read_doubts, read_losses
from adawac.figures.overlays import edges
from adawac.inference.predictor import FULL, Predictor, find_device
from adawac.inference.trained import load_trained
from adawac.lazy import library
from adawac.report.label_errors import mean_excess, measure_ranking, score_label
from adawac.report.suspects import examine_samples, late_mean
from adawac.reproduction.crossvalidation import CrossValidation, crossval
from adawac.runs import Run
from benchmarks.result_files import write_result
from studies.label_errors.planting import KINDS, PLANTED, plant

RESULTS = Path(__file__).with_name("results")
PHANTOM = {"num_patients": 16, "size": (40, 56), "slices": (24, 30)}
TOPS = (5, 10, 20)

Scores = dict[str, float]
"""How suspicious each sample is, by its id; those that are left out are no suspects."""


def planted_store(out: Path, seed: int, store: Path | None, share: float) -> Path:
    """Return the store with errors, which is made once."""
    dest = out / "store"
    if not (dest / PLANTED).is_file():
        if store is None:
            store = prepare(phantom_source(seed=seed, **PHANTOM), None, out / "clean", workers=1, progress=False).path
        plant(store, dest, seed=seed, share=share)
    return dest


def by_old_suspects(runs: Sequence[Run]) -> Scores:
    """Rank as the report of single runs does: by what became of a sample in training, the plainest of all runs."""
    scores: Scores = {}
    for run in runs:
        fields = (run.history[name] for name in ("beta", "ell_ce", "reg_ac"))
        for suspect in examine_samples(run.samples.foreground, run.history.epochs, *fields).suspects:
            sample = str(run.samples.id[suspect.row])
            scores[sample] = max(suspect.score, scores.get(sample, 0.0))
    return scores


def by_cleanlab(runs: Sequence[Run]) -> Scores:
    """Rank by cleanlab's label quality of whole images: the soft minimum of their pixels' self-confidence."""
    rank = library("cleanlab.segmentation.rank", "cleanlab")
    scores: Scores = {}
    for run in runs:
        plan = plan_fold(run)
        predictor = Predictor.of([load_trained(run, plan.checkpoint)], device=find_device("auto"))
        stacks = (plan.store.stack(case)[0] for case in plan.cases)
        for case, (_, shares) in zip(plan.cases, predictor.run(stacks, probabilities=True), strict=True):
            _, label = plan.store.stack(case)
            quality, _ = rank.get_label_quality_scores(
                np.array(label, dtype=np.int64), shares / np.float32(FULL), method="softmin", verbose=False
            )
            scores |= dict(zip(plan.table.id[plan.rows[case]].tolist(), (-quality).tolist(), strict=True))
    return scores


def by_evidence(store: Store, runs: Sequence[Run], pooled: Run) -> dict[str, Scores]:
    """Rank by one half of our own evidence: what is said out of fold, or what became of a sample in training."""
    ended = dict(zip(pooled.samples.id.tolist(), late_mean(pooled.history["ell_ce"]).tolist(), strict=True))
    row_of = {sample: row for row, sample in enumerate(store.table.id.tolist())}
    scores: dict[str, Scores] = {"out of fold alone": {}, "training alone": {}}
    for run in runs:
        folder = run.folder / "out-of-fold"
        losses = read_losses(folder)
        doubts = {case: read_doubts(folder, case) for case in dict.fromkeys(loss.case for loss in losses)}
        for loss in losses:
            position = int(store.table.position[row_of[loss.id]])
            label = store.read(loss.case, position)[1]
            halves = mean_excess(doubts[loss.case], position), ended[loss.id]
            for evidence, half in zip(scores.values(), halves, strict=True):
                evidence[loss.id] = score_label(half, half, int(edges(label).sum()), label.size)
    return scores


def measure(ranking: Scores, planted: Mapping[str, str]) -> dict[str, Any]:
    """Return how well errors are found, all of them and those of each kind, without the others."""
    ranked = sorted(ranking, key=lambda sample: (-ranking[sample], sample))
    measured = {"all": measure_ranking(ranked, planted, TOPS)}
    for kind in KINDS:
        wrong = [sample for sample in planted if planted[sample] == kind]
        others = {sample for sample in planted if planted[sample] != kind}
        measured[kind] = measure_ranking([sample for sample in ranked if sample not in others], wrong, TOPS)
    return measured


def rankings(store: Store, outcome: CrossValidation) -> dict[str, Scores]:
    """Return every ranking, by its name."""
    runs = [Run(folder) for folder in outcome.runs]
    return {
        "suspects of single runs": by_old_suspects(runs),
        "cleanlab": by_cleanlab(runs),
        "adawac crossval": {suspect.id: suspect.score for suspect in outcome.suspects},
        **by_evidence(store, runs, Run(outcome.folder / "pooled")),
    }


def compare(out: Path, config: TrainConfig, seed: int, store: Path | None, folds: int, share: float) -> dict[str, Any]:
    """Plant errors, cross-validate, and return how well each way of ranking finds them."""
    path = planted_store(out, seed, store, share).absolute()
    outcome = crossval(override(config, {"data.store": path, "seed": seed}), out / "cv", folds=folds, test="fold")
    if outcome.failures:
        raise SystemExit(f"{out}: {[failure.reason for failure in outcome.failures.values()]}")
    planted = json.loads((path / PLANTED).read_text(encoding="utf-8"))
    ways = rankings(Store(path), outcome)
    return {
        "slices": len(Store(path).table),
        "dice": outcome.evaluation.summaries["dice"][-1].mean,
        "ways": {name: measure(ranking, planted) for name, ranking in ways.items()},
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--config", required=True, help="a recipe, or a YAML file")
    parser.add_argument("--store", type=Path, help="the phantom by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--name", default="phantom")
    options = parser.parse_args(arguments)
    config = load(TrainConfig, recipe_path(options.config))
    seeds = {
        str(seed): compare(options.out / f"seed{seed}", config, seed, options.store, options.folds, options.share)
        for seed in options.seeds
    }
    about = {"epochs": config.epochs, "model": config.model.name, "folds": options.folds, "share": options.share}
    write_result(RESULTS / f"{options.name}.json", {**about, "seeds": seeds})


if __name__ == "__main__":
    main()
