"""The paper's other methods, each as what it does to the weights of CE and ACR.

Names are those of the paper's tables; `pair` and `pm-dro` come from the released code. What the text and that code do
differently is in `objective.py`.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor

from adawac.algorithm import AdaWAC, Criterion, Weighting
from adawac.errors import ConfigError
from adawac.objective import SampleTerms
from adawac.registry import Registry


class Baseline(Criterion):
    """Empirical risk minimisation: Dice + CE on the first view."""

    uses_latents = False
    fixed: ClassVar = {"views": "first"}

    def weigh(self, batch: SampleTerms) -> Weighting:
        """Give every sample its whole cross-entropy."""
        return Weighting(torch.ones_like(batch.ell_ce), torch.zeros_like(batch.ell_ce), len(batch.ell_ce))


class Pair(Baseline):
    """The fair control: the baseline with AdaWAC's two views, both supervised, and nothing else."""

    fixed: ClassVar = {"views": "both"}


class ACROnly(Criterion):
    """Dice + CE + ACR without weights (Eq. 4)."""

    def weigh(self, batch: SampleTerms) -> Weighting:
        """Weigh CE and ACR alike."""
        weight = torch.full_like(batch.ell_ce, 1 if self.objective.addition == "sum" else 0.5)
        return Weighting(weight, weight, len(weight))


class PseudoAdaWAC(Criterion):
    """The weights of the saddle point, known instead of learned: beta = 1[label-dense] (Table 2)."""

    def weigh(self, batch: SampleTerms) -> Weighting:
        """Send label-dense samples to CE and label-sparse ones to ACR."""
        beta = batch.dense.to(batch.ell_ce.dtype)
        return Weighting(beta, 1 - beta, len(beta))


class Trim(Criterion):
    """Hard thresholding: only some samples' CE counts. Dice and, with `acr`, ACR are added for all (Table 2)."""

    def __init__(self, num_samples: int, *, acr: bool = False, preset: str = "paper", **options: Any):
        super().__init__(num_samples, preset=preset, **options)
        self.uses_latents = acr

    @abstractmethod
    def keep(self, batch: SampleTerms) -> Bool[Tensor, " B"]:
        """Return which samples' cross-entropy counts."""

    def weigh(self, batch: SampleTerms) -> Weighting:
        """Average CE over the samples kept; the released code divides everything by their number."""
        mask = self.keep(batch).to(batch.ell_ce.dtype)
        kept = mask.sum()
        if not self.objective.trim_dice:
            return Weighting(mask, torch.full_like(mask, self.uses_latents), len(mask), kept.clamp_min(1))
        if self.uses_latents and self.objective.addition == "mean":
            mask = mask / 2
        return Weighting(mask, mask * self.uses_latents, kept.where(kept > 0, torch.inf))  # nothing kept: loss 0


class TrimTrain(Trim):
    """Keep the label-dense samples."""

    def keep(self, batch: SampleTerms) -> Bool[Tensor, " B"]:
        """Keep what has foreground."""
        return batch.dense


class TrimRatio(Trim):
    """Drop a fixed fraction of every batch, that of the lowest CE."""

    def __init__(self, num_samples: int, **options: Any):
        super().__init__(num_samples, **options)
        if self.objective.trim_ratio is None:
            raise ConfigError(
                "Expected trim_ratio, the share of samples that trim-ratio drops, but got none. "
                "Give the training set's share of slices without foreground; `adawac diagnose` prints it."
            )

    def keep(self, batch: SampleTerms) -> Bool[Tensor, " B"]:
        """Keep the samples with the highest CE."""
        ratio = float(self.objective.trim_ratio or 0)
        if self.objective.trim_rule == "quantile":
            return batch.ell_ce > batch.ell_ce.quantile(ratio)
        return batch.ell_ce.argsort(stable=True).argsort() >= int(ratio * len(batch.ell_ce))


class ReweightOnly(Criterion):
    """Algorithm 1 with λ = 0: weights on CE, and no consistency (Table 4)."""

    uses_latents = False
    defaults: ClassVar = {"eta_beta": 1.0}
    fixed: ClassVar = {"views": "first"}

    def weigh(self, batch: SampleTerms) -> Weighting:
        """Let the weights grow with CE."""
        if self.moves_weights:
            self._ascend(batch)
        beta = self.weights.beta[batch.index].to(batch.ell_ce.dtype)
        return Weighting(beta, torch.zeros_like(beta), len(beta))

    def _ascend(self, batch: SampleTerms) -> None:
        if self.objective.reweighting == "log-odds":
            self.weights.ascend(batch.index, batch.ell_ce, batch.reg_ac, self.objective.eta_beta)
        else:
            self._normalise(batch, power=1.0)

    @torch.no_grad()
    def _normalise(self, batch: SampleTerms, power: float) -> None:
        """Set w <- w^power * exp(eta_beta CE), then divide by the batch's sum, in logarithms; log-odds are kept."""
        weights, index = self.weights, batch.index
        finite = batch.ell_ce.isfinite()
        weights.skipped += (~finite).sum()
        old = weights.log_odds[index]
        growth = (self.objective.eta_beta * batch.ell_ce.where(finite, 0)).to(old.dtype)
        growth = torch.where(index[:, None] == index, growth, 0).sum(1)  # a sample that occurs twice grows twice
        log_w = F.logsigmoid(old) * power + growth
        log_w = log_w - log_w.where(finite, -torch.inf).logsumexp(0)
        log_w = log_w.clamp_max(-torch.finfo(old.dtype).tiny)  # a batch of one: w = 1, and log-odds that are finite
        weights.log_odds[index] = torch.where(finite, log_w - (-log_w.expm1()).log(), old)


class PMDRO(ReweightOnly):
    """reweight-only, drawn towards uniform weights by the power 1 - eta_beta ε."""

    def _ascend(self, batch: SampleTerms) -> None:
        self._normalise(batch, power=1 - self.objective.eta_beta * self.objective.entropy_max)


_BUILT_IN: dict[str, Callable[..., Criterion]] = {
    "baseline": Baseline,
    "pair": Pair,
    "trim-train": TrimTrain,
    "trim-train+acr": partial(TrimTrain, acr=True),
    "trim-ratio": TrimRatio,
    "trim-ratio+acr": partial(TrimRatio, acr=True),
    "pseudo-adawac": PseudoAdaWAC,
    "acr-only": ACROnly,
    "reweight-only": ReweightOnly,
    "pm-dro": PMDRO,
    "adawac": AdaWAC,
}
METHODS = Registry("method", _BUILT_IN)


def build_method(name: str, num_samples: int, preset: str = "paper", **options: Any) -> Criterion:
    """Return a method's criterion by name.

    Args:
        name: one of `adawac.METHODS`.
        num_samples: the size of the training set.
        preset: `paper`, as the text says, or `official`, as the released code does.
        options: fields of `adawac.Objective`; those that the method does not use are ignored, None keeps the preset's.

    Example:
        >>> criterion = build_method("trim-ratio+acr", num_samples=100, preset="official", trim_ratio=0.3)
        >>> criterion.uses_latents, criterion.objective.lambda_ac
        (True, 2.0)
    """
    return METHODS[name](num_samples, preset=preset, **options)
