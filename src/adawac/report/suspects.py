"""Samples worth a second look: where beta or CE contradict the label, or beta jumped.

A suspect is a question, not a verdict. A label-dense sample whose CE stays far above that of others like it is one
whose label the network does not learn, one that beta sent to consistency is one that it finds easy although it carries
labels, and an empty one with a high CE is one where it sees something. A rule that accuses a
crowd says something of the run and nothing of single labels: it gives a sentence then, and no suspects.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from adawac.data.cases import is_label_dense, is_label_sparse
from adawac.report.atlas import has_consistency, late_epochs, late_mean

__all__ = ["KINDS", "Findings", "Suspect", "examine_samples", "find_suspects"]

KINDS = {
    "dense-high-ce": "label-dense, with an unusually high cross-entropy",
    "dense-to-consistency": "label-dense, but β sent it to consistency",
    "empty-high-ce": "empty, but with a high cross-entropy",
    "beta-jump": "a sudden jump of β",
}

# Where a rule accuses a crowd: what happened, and what to do.
_CROWDS = {
    "dense-high-ce": (
        "{} label-dense samples ({}) have a cross-entropy far above that of others like them",
        "Perhaps there are two kinds of images, or the training is not over.",
    ),
    "dense-to-consistency": (
        "β sent {} label-dense samples ({}) plainly to consistency",
        "Try {}, or a smaller method.options.eta_beta or lambda_ac.",
    ),
    "empty-high-ce": ("{} samples without foreground ({}) have a cross-entropy like label-dense ones", ""),
    "beta-jump": ("β of {} samples ({}) jumped", "Try a smaller method.options.eta_beta."),
}
_CROWD = 0.1  # of the samples that a rule looks at: above this share it accuses nobody
_FEW = 3  # of whatever group are no crowd

_LIKE = (20, 200)  # samples at least and at most, else a tenth, that a label-dense one is compared with
_FAR = 4.0  # robust standard deviations of log CE above their median: one in 30 000 of a normal distribution
_TO_DEVIATION = 1.4826  # makes the MAD of a normal distribution its standard deviation
_LEAST_DEVIATION = 0.1  # of log CE: where all samples are alike, a difference of some percent is none
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


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the samples' histories give.

    Attributes:
        suspects: The plainest first.
        remark: What so many samples have in common that it says something of the run, and what to do; or nothing.
    """

    suspects: list[Suspect]
    remark: str


def find_suspects(
    share: Array, epochs: Array, beta: Array, ell_ce: Array, reg_ac: Array | None = None
) -> list[Suspect]:
    """Return the suspects of a run, the plainest first; see `examine_samples`."""
    return examine_samples(share, epochs, beta, ell_ce, reg_ac).suspects


def examine_samples(
    share: Array, epochs: Array, beta: Array, ell_ce: Array, reg_ac: Array | None = None, *, held: int = 0
) -> Findings:
    """Look for samples to check.

    Args:
        share: (n,) foreground share of each sample; NaN where there is no label.
        epochs: (E,) the epochs' numbers.
        beta: (E, n); NaN where a sample was not seen.
        ell_ce: (E, n).
        reg_ac: (E, n); where it is given and zero throughout, beta sends nothing to consistency.
        held: How many epochs the weights waited for (`method.hold_epochs`): what was done is no advice.
    """
    if not len(epochs):
        return Findings(suspects=[], remark="")
    dense, empty, moving = is_label_dense(share), is_label_sparse(share), np.asarray(np.isfinite(beta).any(axis=0))
    rules = [(_dense_with_high_ce(share, ell_ce), dense), (_empty_with_high_ce(share, ell_ce), empty)]
    seen = beta[np.isfinite(beta)]
    if seen.size and np.ptp(seen) > 1e-6:  # a method that leaves beta alone says nothing by it
        rules.append((_jumps(epochs, beta), moving))
        if reg_ac is None or has_consistency(reg_ac):
            rules.insert(0, (_dense_to_consistency(share, beta), dense))
    suspects: list[Suspect] = []
    crowds: list[tuple[str, int, int]] = []
    for found, looked_at in rules:
        of = int(looked_at.sum())
        if len(found) > max(_CROWD * of, _FEW):
            crowds.append((found[0].kind, len(found), of))
        else:
            suspects += found
    return Findings(
        suspects=sorted(suspects, key=lambda one: (-one.score, one.row, one.kind)),
        remark=_describe_crowds(crowds, held),
    )


def _describe_crowds(crowds: list[tuple[str, int, int]], held: int) -> str:
    """Return what the crowds have in common, one after the other, and then what to do, or nothing without any."""
    if not crowds:
        return ""
    whats = [_CROWDS[kind][0].format(f"{count:,} of {of:,}", _percent(count / of)) for kind, count, of in crowds]
    wait = f"more than method.hold_epochs={held}" if held else "method.hold_epochs=3"
    advice = " ".join(filter(None, (_CROWDS[kind][1].format(wait) for kind, _, _ in crowds)))
    text = (
        f"{'; '.join(whats)}. So many speak of the run rather than of single labels: none of them is listed. {advice}"
    )
    return text.rstrip()


def _dense_with_high_ce(share: Array, ell_ce: Array) -> list[Suspect]:
    """Find what lies far above the median log CE of its like, in units of a spread that outliers do not widen (MAD)."""
    late, when = late_mean(ell_ce), _when(len(ell_ce))
    rows = np.flatnonzero(is_label_dense(share) & (late > 0))  # NaN is not
    if len(rows) < 2:
        return []
    rows = rows[np.argsort(share[rows], kind="stable")]
    above, far = _compare_with_like(np.log(late[rows]))
    return [
        Suspect(
            row=int(rows[place]),
            kind="dense-high-ce",
            score=float(1 - _FAR / (2 * far[place])),
            epoch=len(ell_ce) - 1,
            reason=f"Its CE was {late[rows[place]]:.3g} {when}, {np.exp(above[place]):.2g} times the median of samples "
            f"with about as much foreground ({far[place]:.1f} robust deviations): the network does not learn its label."
            " Is it right?",
        )
        for place in np.flatnonzero(far > _FAR)
    ]


def _compare_with_like(logs: Array) -> tuple[Array, Array]:
    """Return how far each value is above the median of its neighbours, and that in robust standard deviations.

    CE grows with the foreground, so a sample is compared with those next to it in that order. The deviation is theirs
    or that of all samples, whichever is larger: twenty neighbours alone may happen to be alike.
    """
    size = min(len(logs), max(len(logs) // 10, _LIKE[0]), _LIKE[1])
    window = np.clip(np.arange(len(logs)) - size // 2, 0, len(logs) - size)
    above = logs - np.median(sliding_window_view(logs, size), axis=1)[window]
    off = np.abs(above)
    deviation = _TO_DEVIATION * np.maximum(np.median(sliding_window_view(off, size), axis=1)[window], np.median(off))
    return above, above / np.maximum(deviation, _LEAST_DEVIATION)


def _dense_to_consistency(share: Array, beta: Array) -> list[Suspect]:
    late, when = late_mean(beta), _when(len(beta))
    dense = np.sort(share[is_label_dense(share)])
    found = []
    for row in np.flatnonzero(is_label_dense(share) & (late < 0.5)):
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
    dense = np.sort(late[is_label_dense(share) & np.isfinite(late)])
    if not len(dense):
        return []
    found = []
    for row in np.flatnonzero(is_label_sparse(share) & np.isfinite(late)):
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
                score=float(excess[place, row]) / 2,  # it speaks of an epoch first, and only then of the label
                epoch=now,
                reason=f"β {'rose' if after > before else 'fell'} from {before:.2f} to {after:.2f} between epochs "
                f"{int(epochs[now - 1])} and {int(epochs[now])}, while {usual[place]:.2f} was usual.",
            )
        )
    return found


def _percent(part: float, digits: int = 0) -> str:
    return f"{100 * part:.{digits}f}\u00a0%"  # kept on one line


def _when(count: int) -> str:
    late = late_epochs(count)
    return "in the last epoch" if late == 1 else f"over the last {late} epochs"
