"""What a study's results keep of a run besides its scores: what its weights follow, and where its epochs end."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from adawac.runs import Run
from adawac.runs.history import OFF
from studies.run_ends import ends

_LOGGED = ("beta_auc", "beta_sparse", "beta_dense", "separated_sparse", "separated_dense", "spread_ce", "spread_ac")

Floats = np.ndarray[Any, np.dtype[np.float64]]


def describe(run: Run, brightness: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return what an entry keeps of a complete run; less of one that was copied without its history, which is large.

    Args:
        run: The run.
        brightness: The mean intensity of each training case, if known: beta may follow it.
    """
    if not len(run.history):
        last = run.metrics[-1]
        return {"separation": {name: last[name] for name in _LOGGED}, "validated": validations(run)}
    return {"separation": _separation(run, brightness), "ends": ends(run), "validated": validations(run)}


def validations(run: Run) -> list[float]:
    """Return the DSC of each validation, in the order of the epochs."""
    if not any("val_dice" in epoch for epoch in run.metrics):
        return []
    values = run.curve("val_dice")[1]
    return [round(float(value), 5) for value in values[np.isfinite(values)]]


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
        "beta_by_group": {str(name): float(beta[group == name].mean()) for name in np.unique(group) if name},
        "sparse_ce": _ratio(mean_ce, table.label_sparse[seen]),
        "sparse_acr": _ratio(mean_acr, table.label_sparse[seen]),
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
    cases, position, counts = np.unique(case, return_inverse=True, return_counts=True)
    of_beta, of_acr = (np.bincount(position, values) / counts for values in (beta, reg_ac))
    numbers: dict[str, Any] = {
        "beta_by_case": {str(name): round(mean, 3) for name, mean in zip(cases, of_beta.tolist(), strict=True)}
    }
    if brightness is None:
        return numbers
    bright = np.array([brightness[str(name)] for name in cases])
    return numbers | {
        "spearman_brightness": _spearman(of_beta, bright),
        "spearman_acr_brightness": _spearman(of_acr, bright),
    }


def between_share(values: Floats, groups: np.ndarray[Any, Any]) -> float | None:
    """Return which share of the variance lies between groups, the rest within them (η², one-way analysis)."""
    _, position, counts = np.unique(groups, return_inverse=True, return_counts=True)
    total = float(((values - values.mean()) ** 2).sum())
    means = np.bincount(position, values) / counts
    return float((counts * (means - values.mean()) ** 2).sum()) / total if total else None


def _spearman(first: Floats, second: Floats) -> float | None:
    from scipy.stats import spearmanr

    return float(spearmanr(first, second).statistic) if first.std() and second.std() else None
