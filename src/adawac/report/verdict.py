"""What beta did, in plain sentences: what it separates, and when that was decided; and how the runs' scores stand."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from adawac.data.cases import is_label_dense, is_label_sparse
from adawac.figures.style import Array
from adawac.report.suspects import has_consistency, late_mean, percent, varies
from adawac.runs import Run
from adawac.runs.history import OFF

_TELLS = (
    (0.35, "the wrong way round"),
    (0.5, "no better than chance"),
    (0.65, "hardly better than chance"),
    (0.8, "somewhat"),
    (0.95, "well"),
    (np.inf, "almost perfectly"),
)
_ORDERS = ((0.3, "another"), (0.6, "a roughly similar"), (0.9, "a similar"), (np.inf, "nearly the same"))

_NEAR = 0.2
#: The cases that a mean of `dense_dice` is over.
WITH_FOREGROUND = "the slices with foreground"
_MOST_RUNS = 3  # that a sentence names


def describe_outcome(runs: Mapping[str, Run], dice: Mapping[str, float], cases: str = "the scored cases") -> str:
    """Return what beta did in the runs that weigh, and how the scores stand; empty where nothing is known.

    Args:
        runs: The runs by the names that they are given.
        dice: Mean DSC, from 0 to 1, of those that have scores.
        cases: What it is the mean over.
    """
    weights = [text for name, run in runs.items() if (text := _sides(run, name if len(runs) > 1 else ""))]
    ranked = sorted(dice.items(), key=lambda entry: -entry[1])
    named = ", ".join(f"{name} {100 * mean:.1f}" for name, mean in ranked[:_MOST_RUNS])
    more = f" and {len(ranked) - _MOST_RUNS} more" if len(ranked) > _MOST_RUNS else ""
    order = ", highest first" if len(ranked) > 1 else ""
    scores = [f"Mean DSC on {cases}{order}: {named}{more}."] if ranked else []
    return " ".join([*weights[:_MOST_RUNS], *scores])


def _sides(run: Run, name: str) -> str:
    """Return on how many samples of either group beta ended near 0 and near 1; nothing where it does not weigh."""
    history, table = run.history, run.samples
    if table is None or not len(history):
        return ""
    if not varies(history["beta"]) or not has_consistency(history["reg_ac"]):
        return ""
    share = table.foreground
    beta = late_mean(history["beta"])[: len(share)]
    parts = []
    for group, members, near, count in (
        ("empty", is_label_sparse(share), f"0 (below {_NEAR:g})", beta < _NEAR),
        ("label-dense", is_label_dense(share), f"1 (above {1 - _NEAR:g})", beta > 1 - _NEAR),
    ):
        if members.any():
            parts.append(f"near {near} on {int(count[members].sum()):,} of {int(members.sum()):,} {group} slices")
    return f"{name + ': ' if name else ''}β ended {' and '.join(parts)}." if parts else ""


def describe_weights(run: Run, curves: dict[str, Any]) -> str | None:
    """Return what beta did; None where it does not weigh CE against consistency, or does not move.

    Args:
        run: The run.
        curves: Its curves, as `read_curves` returns them.
    """
    history = run.history
    if not len(history):
        return None
    beta, ell_ce, reg_ac = (history[name] for name in ("beta", "ell_ce", "reg_ac"))
    if not _is_learned(beta) or not has_consistency(reg_ac):
        return None
    sentences = (
        _tell(curves["series"].get("beta_auc", [])),
        _since_the_start(history.epochs, beta),
        _compare(late_mean(ell_ce), late_mean(reg_ac)),
    )
    return " ".join(filter(None, sentences))


def _is_learned(beta: Array) -> bool:
    """Return whether weights move from epoch to epoch, and not only between 0 and 1, as those of trimming do."""
    moves = (np.abs(np.diff(beta, axis=0)) > 1e-6).any()  # False for NaN, which is a sample that was not seen
    return bool(moves and ((beta > 0) & (beta < 1)).any())


def _tell(auc: list[float | None]) -> str:
    known = [value for value in auc if value is not None]
    if not known:
        return ""
    return f"β tells label-dense from label-sparse samples {_word(_TELLS, known[-1])} (AUC {known[-1]:.2f})."


def _compare(ell_ce: Array, reg_ac: Array) -> str:
    seen = np.isfinite(ell_ce) & np.isfinite(reg_ac)
    if not seen.any():
        return ""
    share = float((ell_ce[seen] > reg_ac[seen]).mean())
    term, part = ("cross-entropy", share) if share >= 0.5 else ("consistency", 1 - share)
    return f"By now {term} is the larger term for {percent(part)} of the samples."


def _since_the_start(epochs: Array, beta: Array) -> str:
    """Return how similar the last weights are to those after the first epoch in which they moved."""
    moved = (np.abs(np.where(np.isfinite(beta), beta, 0.5) - 0.5) > 1e-6).any(axis=1)
    start = int(moved.argmax())  # later than 0 with `method.hold_epochs`
    seen = np.isfinite(beta[start]) & np.isfinite(beta[-1])
    if start == len(beta) - 1 or seen.sum() < 2:
        return ""
    early, late = (beta[epoch][seen].astype(np.float64) for epoch in (start, -1))
    off = [float((weights < OFF).mean()) for weights in (early, late)]
    when = "the first epoch" if not start else f"epoch {int(epochs[start])}, the first in which they moved,"
    text = f"After {when} {percent(off[0])} of the weights were below {OFF:g}, after the last {percent(off[1])}"
    same = _rank_correlation(early, late)
    if same is None:
        return f"{text}."
    decided = ": most was decided at the start" if same >= 0.9 and min(off) >= 0.5 else ""
    return f"{text}, in {_word(_ORDERS, same)} order (rank correlation {same:.2f}){decided}."


def _rank_correlation(first: Array, second: Array) -> float | None:
    """Return Spearman's coefficient, ties at their mean rank; importing scipy's would take longer than the report."""
    ranks = []
    for values in (first, second):
        _, index, count = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(count) - (count + 1) / 2)[index])
    if not ranks[0].std() or not ranks[1].std():
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _word(words: tuple[tuple[float, str], ...], value: float) -> str:
    return next(word for below, word in words if value < below)
