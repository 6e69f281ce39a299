"""What an epoch was like, from the history of its samples: means, and how well beta separates."""

import logging
from typing import Any

import numpy as np
import numpy.typing as npt

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]

OFF = 0.05
"""A weight below this has switched the cross-entropy of its sample off."""

_TOO_MANY = 0.75  # of the weights, for one epoch


def summarise(fields: dict[str, Floats], sparse: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Return the means of an epoch, all samples together and label-sparse and label-dense ones apart."""
    numbers: dict[str, Any] = {name: _mean(values) for name, values in fields.items()}
    for group, members in (("sparse", sparse), ("dense", ~sparse)):
        numbers |= {f"{name}_{group}": _mean(values[members]) for name, values in fields.items()}
    return numbers | separation(fields["ell_ce"], fields["reg_ac"], fields["beta"], sparse)


def separation(ell_ce: Floats, reg_ac: Floats, beta: Floats, sparse: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Return how far the epoch is from the paper's n-separation (Assumption 1), and how well beta tells the groups.

    Returns:
        separated_sparse: share of label-sparse samples with CE < ACR (Assumption 1, i).
        separated_dense: share of label-dense samples with CE > ACR (Assumption 1, ii).
        beta_auc: the probability that a label-dense sample has the larger beta of a random pair; ties count half.
        spread_ce, spread_ac: standard deviation over mean, of all samples; the paper's observation is that
            consistency is the more uniform of the two.
    """
    return {
        "separated_sparse": _mean(ell_ce[sparse] < reg_ac[sparse]),
        "separated_dense": _mean(ell_ce[~sparse] > reg_ac[~sparse]),
        "beta_auc": _auc(beta[~sparse], beta[sparse]),
        "spread_ce": _spread(ell_ce),
        "spread_ac": _spread(reg_ac),
    }


def warn_of_rush(
    fields: dict[str, Floats], epoch: int, hold: str = "method.hold_epochs=3", eta: str = "method.options.eta_beta"
) -> None:
    """Warn if the first epoch in which weights move has sent nearly all of them to consistency.

    A network's features are large and unsettled in its first steps, whatever the samples. Weights add up what they
    see, so that a few hundred of such steps may outweigh the rest of the run. `hold` says how to let the network settle
    first, where the training is set up, and `eta` what the step size of the weights is called there.
    """
    off = float(np.mean(fields["beta"] < OFF))
    if off > _TOO_MANY:
        ce, ac = (float(np.median(fields[name])) for name in ("ell_ce", "reg_ac"))
        log.warning(
            "Weights of %.0f %% of the samples fell below %g in epoch %d, in which the median consistency was %.2g and "
            "the median cross-entropy %.2g. That may switch their labels off for good: lower %s or lambda_ac, or let "
            "the network settle first (%s).",
            100 * off,
            OFF,
            epoch,
            ac,
            ce,
            eta,
            hold,
        )


def _auc(high: Floats, low: Floats) -> float | None:
    """Return the share of pairs in the right order (Mann and Whitney), in n log n."""
    if not len(high) or not len(low):
        return None
    ordered = np.sort(low)
    below = np.searchsorted(ordered, high, "left")
    upto = np.searchsorted(ordered, high, "right")
    return float((below + upto).mean() / 2 / len(low))


def _mean(values: npt.NDArray[Any]) -> float | None:
    return float(np.mean(values, dtype=np.float64)) if len(values) else None


def _spread(values: Floats) -> float | None:
    mean = _mean(values)
    return float(np.std(values, dtype=np.float64)) / mean if mean else None
