"""What `acdc.json` keeps of a run folder: its settings, what it took, its scores, and what its weights follow."""

import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from acdc_list import Planned, num_views, settings
from run_ends import ends

from adawac.errors import MissingFileError
from adawac.evaluation import by_patient, summarise
from adawac.runs import Run, Score
from adawac.runs.epoch_statistics import OFF
from adawac.runs.layout import read_lines

CONVENTIONS = ("adawac", "strict")
TIMING = "timing.jsonl"
_LOGGED = ("beta_auc", "beta_sparse", "beta_dense", "separated_sparse", "separated_dense", "spread_ce", "spread_ac")

Floats = np.ndarray[Any, np.dtype[np.float64]]


def is_complete(folder: Path, part: str) -> bool:
    """Tell whether a run is trained and scored."""
    try:
        run = Run(folder)
    except MissingFileError:
        return False
    return run.status == "finished" and all(_evaluation(run, part, one) for one in CONVENTIONS)


def _evaluation(run: Run, part: str, convention: str) -> str | None:
    """Return the name of the scores by a convention."""
    return next((name for name in run.evaluations if name.startswith(f"{part}-{convention}-")), None)


def read_timing(folder: Path) -> tuple[float, float]:
    """Return the seconds that all epochs took, and the median rate (slices/s) of those after the second.

    An epoch that was done again after an interruption counts once.
    """
    lines = _timing(folder)
    epochs = sorted({line["epoch"]: line for line in lines}.values(), key=lambda line: line["epoch"])
    rates = [line["slices_per_second"] for line in epochs]
    return sum(line["seconds"] for line in epochs), statistics.median(rates[2:] or rates)


def _timing(folder: Path) -> list[dict[str, Any]]:
    return [line.values for line in read_lines(folder / TIMING)]


def describe(run: Run, planned: Planned, brightness: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return the entry of a complete run, as plain data; null stands for what is not a number.

    Args:
        run: The run.
        planned: What it was meant to be.
        brightness: The mean intensity of each training case, if known: beta may follow it.
    """
    made, config = run.environments[-1], run.settings
    seconds, rate = read_timing(run.folder)
    entry = {
        "name": planned.name,
        "group": planned.group,
        "row": planned.row,
        "seed": config["seed"],
        "part": planned.part,
        "settings": settings(config),
        "views": num_views(planned.config(None)),
        "epochs": config["epochs"],
        "samples": run.data["num_samples"],
        "label_sparse": run.data["label_sparse"],
        "device": next(iter(made["gpus"]), made["cpu"]),
        "torch": made["packages"]["torch"],
        "adawac": made["adawac"],
        "commit": made["commit"],
        "train_seconds": round(seconds, 1),
        "slices_per_second": round(rate, 1),
        "shared": any(line.get("shared", False) for line in _timing(run.folder)),
        "scores": {one: _scores(run, planned.part, one) for one in CONVENTIONS},
        "patients": _patients(run, planned.part),
        "separation": _separation(run, brightness),
        "ends": ends(run),
    }
    return dict(_plain(entry))


def _scores(run: Run, part: str, convention: str) -> dict[str, Any]:
    """Return the means over cases, by class and over all, and how often a structure was missed or invented."""
    scores = run.scores(_evaluation(run, part, convention) or "")
    distances: list[Score] = [one for one in scores if one.metric == "hd95"]
    numbers: dict[str, Any] = {"unit": distances[0].unit, "cases": len({one.case for one in scores})}
    for metric in ("dice", "hd95"):
        summaries = summarise(scores, metric)
        numbers[metric] = {one.class_name: one.mean for one in summaries}
    return numbers | {"missed": summaries[-1].missed, "invented": summaries[-1].invented}


def _patients(run: Run, part: str) -> dict[str, float]:
    """Return the mean DSC of each patient, for paired comparisons."""
    return by_patient(run.scores(_evaluation(run, part, CONVENTIONS[0]) or ""), "dice")


def _separation(run: Run, brightness: Mapping[str, float] | None) -> dict[str, Any] | None:
    """Return how beta ended and what it follows; None for a method whose weights are all the same."""
    table, last = run.samples, slice(-1, None)
    assert table is not None  # it is complete
    read = {name: run.history.read(name, last)[0].astype(np.float64) for name in ("ell_ce", "reg_ac", "beta")}
    seen = np.isfinite(read["beta"])
    beta, reg_ac = read["beta"][seen], read["reg_ac"][seen]
    if not beta.std():
        return None
    mean_ce, mean_acr = (np.nanmean(run.history[name], axis=0, dtype=np.float64)[seen] for name in ("ell_ce", "reg_ac"))
    foreground, case, group = 1 - table.fraction[seen, 0], table.case[seen], table.group[seen]
    numbers: dict[str, Any] = {name: run.metrics[-1][name] for name in _LOGGED}
    return numbers | {
        "beta_median": float(np.median(beta)),
        **_since_the_start(run, seen),
        "between_cases_beta": between_share(beta, case),
        "between_cases_reg_ac": between_share(reg_ac, case),
        "beta_by_group": {str(one): float(beta[group == one].mean()) for one in np.unique(group) if one},
        "sparse_ce": _ratio(mean_ce, table.label_sparse[seen]),
        "spearman_foreground": _spearman(beta, foreground),
        "spearman_mean_ce": _spearman(beta, mean_ce),
        "spearman_mean_acr": _spearman(beta, mean_acr),
        **_of_cases(beta, mean_acr, case, brightness),
    }


def _ratio(values: np.ndarray[Any, Any], chosen: np.ndarray[Any, Any]) -> float | None:
    """Return the mean of the chosen values over that of the others; None where there are none of either."""
    return float(values[chosen].mean() / values[~chosen].mean()) if 0 < chosen.sum() < len(chosen) else None


def _since_the_start(run: Run, seen: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return what the first epoch was like, in which weights already move, and what has become of them since."""
    ce, reg_ac, early = (run.history.read(name, slice(0, 1))[0][seen] for name in ("ell_ce", "reg_ac", "beta"))
    beta = run.history.read("beta", slice(-1, None))[0][seen]
    return {
        "first_ce": float(np.median(ce)),
        "first_acr": float(np.median(reg_ac)),
        "first_beta_low": float((early < OFF).mean()),
        "beta_low": float((beta < OFF).mean()),
        "spearman_first": _spearman(early, beta),
    }


def _of_cases(
    beta: Floats, reg_ac: Floats, case: np.ndarray[Any, Any], brightness: Mapping[str, float] | None
) -> dict[str, Any]:
    """Return each case's mean beta, and how cases' beta and consistency go with their brightness."""
    cases, place, counts = np.unique(case, return_inverse=True, return_counts=True)
    of_beta, of_acr = (np.bincount(place, values) / counts for values in (beta, reg_ac))
    found: dict[str, Any] = {
        "beta_by_case": {str(name): round(one, 3) for name, one in zip(cases, of_beta.tolist(), strict=True)}
    }
    if brightness is None:
        return found
    bright = np.array([brightness[str(name)] for name in cases])
    return found | {
        "spearman_brightness": _spearman(of_beta, bright),
        "spearman_acr_brightness": _spearman(of_acr, bright),
    }


def between_share(values: Floats, groups: np.ndarray[Any, Any]) -> float | None:
    """Return which share of the variance lies between groups, the rest within them (η², one-way analysis)."""
    _, place, counts = np.unique(groups, return_inverse=True, return_counts=True)
    total = float(((values - values.mean()) ** 2).sum())
    means = np.bincount(place, values) / counts
    return float((counts * (means - values.mean()) ** 2).sum()) / total if total else None


def _spearman(first: Floats, second: Floats) -> float | None:
    from scipy.stats import spearmanr

    return float(spearmanr(first, second).statistic) if first.std() and second.std() else None


def _plain(value: Any) -> Any:
    """Return numbers of five digits: more would only pretend."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value
