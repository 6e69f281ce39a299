"""Samples worth a second look: where beta or CE contradict the label, or beta jumped.

A suspect is a question, not a verdict. The network does not learn the label of a label-dense sample whose CE stays far
above that of similar ones. It finds a label-dense sample that beta sent to consistency easy although it carries labels,
and it sees something in an empty sample with a high CE. A rule that accuses a crowd says something about the run, not
about single labels: it then gives a sentence and no suspects.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from adawac.data.cases import is_label_dense, is_label_sparse
from adawac.figures.style import Array

KINDS = {
    "dense-high-ce": "label-dense, with an unusually high cross-entropy",
    "dense-to-consistency": "label-dense, but β sent it to consistency",
    "empty-high-ce": "empty, but with a high cross-entropy",
    "beta-jump": "a sudden jump of β",
}

# Where a rule accuses a crowd: what happened, and what to do.
_CROWDS = {
    "dense-high-ce": (
        "{} label-dense samples ({}) have a cross-entropy far above that of similar ones",
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
_FEW = 3  # of whatever group are not a crowd

_LIKE = (20, 200)  # samples at least and at most, else a tenth, that a label-dense one is compared with
_FAR = 4.0  # robust standard deviations of log CE above their median: one in 30 000 of a normal distribution
_TO_DEVIATION = 1.4826  # makes the MAD of a normal distribution its standard deviation
_LEAST_DEVIATION = 0.1  # of log CE: where all samples are alike, a difference of some percent means nothing
_PLAIN = 0.05  # of the score of a label-dense sample: β just below 1/2, or hardly any foreground, is no news
_BUSIER = 0.25  # an empty sample is a suspect if its CE is above this share of the label-dense ones
_JUMP = 0.3  # of beta, between two epochs, beyond what the other samples do
_SETTLING = 0.2  # of the epochs, in which beta leaves 1/2: jumps are natural

Accused = tuple[int, float, int, str]
"""Row, score, epoch and reason of a `Suspect`."""


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
    """What the samples' histories show.

    Attributes:
        suspects: The plainest first.
        remark: What so many samples have in common that it says something about the run, and what to do; or nothing.
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
        held: How many epochs the weights waited for (`method.hold_epochs`), so that the advice differs from it.
    """
    if not len(epochs):
        return Findings(suspects=[], remark="")
    sparse, dense = is_label_sparse(share), is_label_dense(share)
    beta, ell_ce = (
        np.where(np.isnan(share), np.nan, values) for values in (beta, ell_ce)
    )  # there is no label to doubt
    late_ce = late_mean(ell_ce)
    rules: list[tuple[str, Iterator[Accused], int]] = [
        ("dense-high-ce", _dense_with_high_ce(share, dense, late_ce, len(epochs)), int(dense.sum())),
        ("empty-high-ce", _empty_with_high_ce(sparse, dense, late_ce, len(epochs)), int(sparse.sum())),
    ]
    if varies(beta):  # beta that does not move says nothing
        rules.append(("beta-jump", _jumps(epochs, beta), int(np.isfinite(beta).any(axis=0).sum())))
        if reg_ac is None or has_consistency(reg_ac):
            sent = _dense_to_consistency(share, dense, late_mean(beta), len(epochs))
            rules.insert(0, ("dense-to-consistency", sent, int(dense.sum())))
    suspects: list[Suspect] = []
    crowds: list[tuple[str, int, int]] = []
    for kind, rule, total in rules:
        accused = list(rule)
        if len(accused) > max(_CROWD * total, _FEW):
            crowds.append((kind, len(accused), total))
        else:
            suspects += [
                Suspect(row=int(row), kind=kind, score=float(score), epoch=epoch, reason=reason)
                for row, score, epoch, reason in accused
            ]
    return Findings(
        suspects=sorted(suspects, key=lambda suspect: (-suspect.score, suspect.row, suspect.kind)),
        remark=_describe_crowds(crowds, held),
    )


def late_epochs(count: int) -> int:
    """Return how many of the last epochs show where a sample ended up: a tenth of them, from 1 to 20."""
    return min(max(count // 10, 1), 20)


def late_mean(values: Array) -> npt.NDArray[np.float64]:
    """Return (n,) the mean of (E, n) over the late epochs; NaN for a sample that none of them saw."""
    last = np.asarray(values[-late_epochs(len(values)) :], dtype=np.float64)
    seen = np.isfinite(last)
    count = seen.sum(axis=0)
    return np.where(count > 0, np.where(seen, last, 0).sum(axis=0) / np.maximum(count, 1), np.nan)


def varies(values: Array) -> bool:
    """Return whether the finite values differ."""
    seen = values[np.isfinite(values)]
    return bool(seen.size and np.ptp(seen) > 1e-6)


def has_consistency(reg_ac: Array) -> bool:
    """Return whether a run had a consistency term, which is what beta near 0 sends a sample to."""
    return bool((reg_ac > 0).any())


def _describe_crowds(crowds: list[tuple[str, int, int]], held: int) -> str:
    """Return what the crowds have in common, one after the other, and then what to do; nothing without crowds."""
    if not crowds:
        return ""
    whats = [
        _CROWDS[kind][0].format(f"{count:,} of {total:,}", percent(count / total)) for kind, count, total in crowds
    ]
    wait = f"more than method.hold_epochs={held}" if held else "method.hold_epochs=3"
    advice = " ".join(filter(None, (_CROWDS[kind][1].format(wait) for kind, _, _ in crowds)))
    text = "So many tell something about the run, not about single labels: none of them is listed."
    return f"{'; '.join(whats)}. {text} {advice}".rstrip()


def _dense_with_high_ce(share: Array, dense: Array, late: Array, epochs: int) -> Iterator[Accused]:
    """Yield what lies far above the median log CE of similar samples, in units of a robust spread (MAD)."""
    rows = np.flatnonzero(dense & (late > 0))  # False for NaN
    if len(rows) < 2:
        return
    rows = rows[np.argsort(share[rows], kind="stable")]
    above, far = _compare_with_like(np.log(late[rows]))
    for index in np.flatnonzero(far > _FAR):
        reason = (
            f"Its CE was {late[rows[index]]:.3g} {_when(epochs)}, {np.exp(above[index]):.2g} times the median "
            f"of samples with about as much foreground ({far[index]:.1f} robust deviations): the network does not "
            "learn its label. Is it right?"
        )
        yield rows[index], 1 - _FAR / (2 * far[index]), epochs - 1, reason


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


def _dense_to_consistency(share: Array, dense: Array, late: Array, epochs: int) -> Iterator[Accused]:
    shares = np.sort(share[dense])
    for row in np.flatnonzero(dense & (late < 0.5)).tolist():
        at_most = float(np.searchsorted(shares, share[row], "right") / len(shares))  # share of those with no more
        score = (1 - 2 * late[row]) * at_most
        if score >= _PLAIN:
            reason = (
                f"{percent(share[row], 2)} of it is foreground ({percent(1 - at_most)} of the label-dense samples have "
                f"more), yet β was {late[row]:.2f} {_when(epochs)}: the network finds it easy. Is the label right?"
            )
            yield row, score, epochs - 1, reason


def _empty_with_high_ce(sparse: Array, dense: Array, late: Array, epochs: int) -> Iterator[Accused]:
    losses = np.sort(late[dense & np.isfinite(late)])
    if not len(losses):
        return
    for row in np.flatnonzero(sparse & np.isfinite(late)).tolist():
        above = float(np.searchsorted(losses, late[row], "left") / len(losses))
        if above >= _BUSIER:
            reason = (
                f"No foreground, yet its CE was {late[row]:.3g} {_when(epochs)}, above that of {percent(above)} "
                "of the label-dense samples: the network sees something. Was it left unlabelled?"
            )
            yield row, above, epochs - 1, reason


def _jumps(epochs: Array, beta: Array) -> Iterator[Accused]:
    """Yield samples whose largest step of beta after settling is far above the usual step of that epoch."""
    first = max(int(len(epochs) * _SETTLING), 1)
    if len(epochs) - first < 1:
        return
    steps = np.abs(np.diff(beta.astype(np.float64), axis=0))[first - 1 :]
    known = np.isfinite(steps)
    steps = np.where(known, steps, 0)
    usual = np.array([np.median(row[seen]) if seen.any() else 0 for row, seen in zip(steps, known, strict=True)])
    excess = steps - usual[:, None]
    for row in np.flatnonzero(excess.max(axis=0) >= _JUMP).tolist():
        step = int(excess[:, row].argmax())
        now = step + first
        before, after = float(beta[now - 1, row]), float(beta[now, row])
        reason = (
            f"β {'rose' if after > before else 'fell'} from {before:.2f} to {after:.2f} between epochs "
            f"{int(epochs[now - 1])} and {int(epochs[now])}, while {usual[step]:.2f} was usual."
        )
        yield row, excess[step, row] / 2, now, reason  # half: it tells more about an epoch than about the label


def percent(part: float, digits: int = 0) -> str:
    """Return a share as a percentage that is kept on one line."""
    return f"{100 * part:.{digits}f}\u00a0%"


def _when(count: int) -> str:
    late = late_epochs(count)
    return "in the last epoch" if late == 1 else f"over the last {late} epochs"
