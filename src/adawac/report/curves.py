"""Training curves as data: what was logged, and what the history gives where that was not."""

import math
from typing import Any

import numpy as np

from adawac.runs import Run

__all__ = ["read_curves"]

_FROM_HISTORY = ("beta_sparse", "beta_dense", "beta_auc", "separated_sparse", "separated_dense")


def read_curves(run: Run) -> dict[str, Any]:
    """Return `epochs`, and for each metric a value per epoch or None."""
    rows = {int(one["epoch"]): dict(one) for one in run.metrics}
    logged = {name for one in rows.values() for name in one}
    if not logged.issuperset(_FROM_HISTORY):
        for epoch, values in _separation(run).items():
            rows[epoch] = values | rows.get(epoch, {"epoch": epoch})
    ordered = [rows[epoch] for epoch in sorted(rows)]
    names = sorted({name for one in ordered for name in one} - {"epoch"})
    series = {name: [_number(one.get(name)) for one in ordered] for name in names}
    return {
        "epochs": [one["epoch"] for one in ordered],
        "series": {name: values for name, values in series.items() if any(one is not None for one in values)},
    }


def _separation(run: Run) -> dict[int, dict[str, Any]]:
    """Return by epoch how well beta separates, for runs that did not log it."""
    if run.samples is None or not np.isfinite(run.history["beta"]).any():
        return {}
    from adawac.train.summary import summarise  # it comes with torch, which most reports do without

    sparse = run.samples.label_sparse
    fields = {name: run.history[name] for name in ("ell_ce", "reg_ac", "beta")}
    found = {}
    for place, epoch in enumerate(run.history.epochs.tolist()):
        seen = np.all([np.isfinite(values[place, : len(sparse)]) for values in fields.values()], axis=0)
        if seen.any():
            own = {name: values[place, : len(sparse)][seen] for name, values in fields.items()}
            summary = summarise(own, sparse[seen])
            found[epoch] = {name: summary[name] for name in _FROM_HISTORY}
    return found


def _number(value: Any) -> float | None:
    """Return a number to six digits, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")
