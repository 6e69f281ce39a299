"""Samples worth a second look: where beta or CE contradict the label, or beta jumped.

A suspect is a question, not a verdict. A label-dense sample that beta sent to consistency is one that the network
finds easy although it carries labels, an empty one with a high CE is one where the network sees something.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.report.atlas import late_epochs, late_mean

__all__ = ["KINDS", "Suspect", "find_suspects"]

KINDS = {
    "dense-to-consistency": "label-dense, but β sent it to consistency",
    "empty-high-ce": "empty, but with a high cross-entropy",
    "beta-jump": "a sudden jump of β",
}

_PLAIN = 0.05  # of the score of a label-dense sample: β just below 1/2, or hardly any foreground, is no news
_BUSIER = 0.25  # an empty sample is a suspect from where its CE is above this share of the label-dense ones
_JUMP = 0.3  # of beta, between two epochs, beyond what the other samples do
_SETTLING = 0.2  # of the epochs, in which beta leaves 1/2: jumps are natural

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A sample to check.

    Attributes:
        row: Its row in the table.
        kind: One of `KINDS`.
        score: From 0 (hardly) to 1 (plainly).
        epoch: Where to look, by position in the history.
        reason: Why, in words.
    """

    row: int
    kind: str
    score: float
    epoch: int
    reason: str


def find_suspects(share: Array, epochs: Array, beta: Array, ell_ce: Array) -> list[Suspect]:
    """Return the suspects of a run, the plainest first.

    Args:
        share: (n,) foreground share of each sample; NaN where there is no label.
        epochs: (E,) the epochs' numbers.
        beta: (E, n); NaN where a sample was not seen.
        ell_ce: (E, n).
    """
    if not len(epochs):
        return []
    found = _empty_with_high_ce(share, ell_ce)
    seen = beta[np.isfinite(beta)]
    if seen.size and np.ptp(seen) > 1e-6:  # a method that leaves beta alone says nothing by it
        found += _dense_to_consistency(share, beta) + _jumps(epochs, beta)
    return sorted(found, key=lambda one: (-one.score, one.row, one.kind))


def _dense_to_consistency(share: Array, beta: Array) -> list[Suspect]:
    late, when = late_mean(beta), _when(len(beta))
    dense = np.sort(share[share > 0])
    found = []
    for row in np.flatnonzero((share > 0) & (late < 0.5)):
        at_most = float(np.searchsorted(dense, share[row], "right") / len(dense))  # share of those with no more
        score = float((1 - 2 * late[row]) * at_most)
        if score >= _PLAIN:
            found.append(
                Suspect(
                    row=int(row),
                    kind="dense-to-consistency",
                    score=score,
                    epoch=len(beta) - 1,
                    reason=f"{_percent(share[row], 2)} of it is foreground ({_percent(1 - at_most)} of the label-dense "
                    f"samples have more), yet β was {late[row]:.2f} {when}: the network finds it easy. "
                    "Is the label right?",
                )
            )
    return found


def _empty_with_high_ce(share: Array, ell_ce: Array) -> list[Suspect]:
    late, when = late_mean(ell_ce), _when(len(ell_ce))
    dense = np.sort(late[(share > 0) & np.isfinite(late)])
    if not len(dense):
        return []
    found = []
    for row in np.flatnonzero((share == 0) & np.isfinite(late)):
        above = float(np.searchsorted(dense, late[row], "left") / len(dense))
        if above >= _BUSIER:
            found.append(
                Suspect(
                    row=int(row),
                    kind="empty-high-ce",
                    score=above,
                    epoch=len(ell_ce) - 1,
                    reason=f"No foreground, yet its CE was {late[row]:.3g} {when}, above that of {_percent(above)} of "
                    "the label-dense samples: the network sees something. Was it left unlabelled?",
                )
            )
    return found


def _jumps(epochs: Array, beta: Array) -> list[Suspect]:
    """Find, for each sample, its largest step of beta after settling, less the usual step of that epoch."""
    first = max(int(len(epochs) * _SETTLING), 1)
    if len(epochs) - first < 1:
        return []
    steps = np.abs(np.diff(beta.astype(np.float64), axis=0))[first - 1 :]
    known = np.isfinite(steps)
    steps = np.where(known, steps, 0)
    usual = np.array([np.median(row[seen]) if seen.any() else 0 for row, seen in zip(steps, known, strict=True)])
    excess = steps - usual[:, None]
    found = []
    for row in np.flatnonzero(excess.max(axis=0) >= _JUMP):
        place = int(excess[:, row].argmax())
        now = place + first
        before, after = float(beta[now - 1, row]), float(beta[now, row])
        found.append(
            Suspect(
                row=int(row),
                kind="beta-jump",
                score=float(excess[place, row]),
                epoch=now,
                reason=f"β {'rose' if after > before else 'fell'} from {before:.2f} to {after:.2f} between epochs "
                f"{int(epochs[now - 1])} and {int(epochs[now])}, while {usual[place]:.2f} was usual.",
            )
        )
    return found


def _percent(part: float, digits: int = 0) -> str:
    return f"{100 * part:.{digits}f} %"


def _when(count: int) -> str:
    late = late_epochs(count)
    return "in the last epoch" if late == 1 else f"over the last {late} epochs"
