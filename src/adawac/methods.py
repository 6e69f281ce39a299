"""The paper's other methods, each as what it does to the weights of CE and ACR.

Names are those of the paper's tables; `pair` and `pm-dro` come from the released code, and `mean-teacher` is a control
from the literature. What the text and that code do differently is in `objective.py`.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Unpack

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor

from adawac.algorithm import AdaWAC, Criterion, Step, Weighting
from adawac.config.objective_options import MethodOptions, Preset
from adawac.errors import ConfigError, ShapeError
from adawac.losses import at_least_float32
from adawac.objective import Latents, Levels, SampleTerms
from adawac.registry import Registry


class Baseline(Criterion):
    """Empirical risk minimisation: Dice + CE on the first view."""

    uses_latents = False
    fixed: ClassVar = {"views": "first"}

    def weigh(self, batch: SampleTerms) -> Weighting:
        """Give every sample its whole cross-entropy."""
        return Weighting(batch.of_labelled(torch.ones_like(batch.ell_ce)), torch.zeros_like(batch.ell_ce), batch.count)


class Pair(Baseline):
    """The fair control: the baseline with AdaWAC's two views, both supervised, and nothing else."""

    fixed: ClassVar = {"views": "both"}


class ACROnly(Criterion):
    """Dice + CE + ACR without weights (Eq. 4)."""

    def weigh(self, batch: SampleTerms) -> Weighting:
        """Weigh CE and ACR alike."""
        weight = torch.full_like(batch.ell_ce, 1 if self.objective.addition == "sum" else 0.5)
        return Weighting(batch.of_labelled(weight), batch.of_labelled(weight, 1) * batch.share, batch.count)


class PseudoAdaWAC(Criterion):
    """The weights of the saddle point, known instead of learned: beta = 1[label-dense] (Table 2)."""

    def weigh(self, batch: SampleTerms) -> Weighting:
        """Send label-dense samples to CE and label-sparse ones to ACR."""
        beta = batch.dense.to(batch.ell_ce.dtype)
        return Weighting(beta, (1 - beta) * batch.share, batch.count)


class Trim(Criterion):
    """Hard thresholding: only some samples' CE counts. Dice and, with `acr`, ACR are added for all (Table 2)."""

    def __init__(
        self, num_samples: int, *, acr: bool = False, preset: Preset = "paper", **options: Unpack[MethodOptions]
    ):
        super().__init__(num_samples, preset=preset, **options)
        self.uses_latents = acr

    @abstractmethod
    def keep(self, batch: SampleTerms) -> Bool[Tensor, " B"]:
        """Return which samples' cross-entropy counts."""

    def weigh(self, batch: SampleTerms) -> Weighting:
        """Average CE over the samples kept; the released code divides everything by their number."""
        mask = batch.of_labelled(self.keep(batch).to(batch.ell_ce.dtype))
        kept = mask.sum()
        if not self.objective.trim_dice:
            ac = batch.of_labelled(torch.full_like(mask, self.uses_latents))
            return Weighting(mask, ac, batch.count, kept.clamp_min(1))
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

    def __init__(
        self, num_samples: int, *, acr: bool = False, preset: Preset = "paper", **options: Unpack[MethodOptions]
    ):
        super().__init__(num_samples, acr=acr, preset=preset, **options)
        if self.objective.trim_ratio is None:
            raise ConfigError(
                "Expected trim_ratio, the share of samples that trim-ratio drops, but got none. "
                "Give the training set's share of slices without foreground; `adawac diagnose` prints it."
            )

    def keep(self, batch: SampleTerms) -> Bool[Tensor, " B"]:
        """Keep the samples with the highest CE."""
        ratio = float(self.objective.trim_ratio or 0)
        if self.objective.trim_rule == "quantile":
            if batch.labelled is None:
                return batch.ell_ce > batch.ell_ce.quantile(ratio)
            return batch.ell_ce > batch.of_labelled(batch.ell_ce, torch.nan).nanquantile(ratio)
        dropped: Tensor | int = int(ratio * len(batch.ell_ce))
        if isinstance(batch.count, Tensor):  # first those without label, then the lowest of the others
            dropped = len(batch.ell_ce) - batch.count + (ratio * batch.count.double()).floor()
        return batch.of_labelled(batch.ell_ce, -torch.inf).argsort(stable=True).argsort() >= dropped


class ReweightOnly(Criterion):
    """Algorithm 1 with λ = 0: weights on CE, and no consistency (Table 4)."""

    uses_latents = False
    defaults: ClassVar = {"eta_beta": 1.0}
    fixed: ClassVar = {"views": "first"}

    def weigh(self, batch: SampleTerms) -> Weighting:
        """Let the weights grow with CE."""
        if self.moves_weights:
            self._ascend(batch)
        beta = batch.of_labelled(self.weights.beta[batch.index].to(batch.ell_ce.dtype))
        return Weighting(beta, torch.zeros_like(beta), batch.count)

    def _ascend(self, batch: SampleTerms) -> None:
        if self.objective.reweighting == "log-odds":
            self.weights.ascend(*batch.rivals, self.objective.step_size(self.means))
        else:
            self._normalise(batch, power=1.0)

    @torch.no_grad()
    def _normalise(self, batch: SampleTerms, power: float) -> None:
        """Set w <- w^power * exp(eta_beta CE), then divide by the batch's sum, in logarithms; log-odds are kept."""
        weights, index = self.weights, batch.index
        finite = batch.ell_ce.isfinite()
        weights.skipped += (~finite).sum()
        if batch.labelled is not None:
            finite &= batch.labelled
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


class MeanTeacher(Criterion):
    """Mean teacher (Tarvainen and Valpola, 2017): Dice + CE, and consistency with the predictions of a second network.

    That network, the teacher, is an exponential moving average of the one that is trained. Give the logits of both as
    `features`: the network's for the first views, then the teacher's for the second ones; they are compared as
    probabilities, by their mean squared difference where both views show the same tissue. The weight of the consistency
    rises as λ·exp(−5 (1 − t)²), with t going from 0 to 1 over the first `ramp_epochs`.
    """

    uses_teacher = True
    defaults: ClassVar = {"rho": "mse", "aligned": True}
    fixed: ClassVar = {"views": "first"}
    seen: Tensor

    def __init__(self, num_samples: int, *, preset: Preset = "paper", **options: Unpack[MethodOptions]):
        super().__init__(num_samples, preset=preset, **options)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))  # samples, in training mode

    def forward(
        self,
        logits: Levels,
        labels: Levels,
        features: Latents | None,
        index: Tensor,
        views: Tensor | None = None,
        labelled: Tensor | None = None,
    ) -> Step:
        """Return the loss of a batch, of which `features` are the logits of both networks, (2B, K, *S)."""
        finest = logits if isinstance(logits, Tensor) else logits[0]
        shape = (2 * len(index), *finest.shape[1:])
        if not isinstance(features, Tensor) or features.shape != shape:
            came = tuple(features.shape) if isinstance(features, Tensor) else type(features)
            raise ShapeError(
                f"Expected the logits of the network and of its teacher, {shape}, as features of mean-teacher, but got "
                f"{came}. Give torch.cat([logits, teacher(x2)]), the teacher's under torch.no_grad()."
            )
        ours, taught = at_least_float32(features).softmax(1).chunk(2)
        return super().forward(logits, labels, torch.cat([ours, taught.detach()]), index, views, labelled)

    def weigh(self, batch: SampleTerms) -> Weighting:
        """Give every sample its whole cross-entropy, and consistency the weight that it has reached."""
        whole = torch.ones_like(batch.ell_ce)
        return Weighting(batch.of_labelled(whole), whole * self._ramp(batch) * batch.share, batch.count)

    @torch.no_grad()
    def _ramp(self, batch: SampleTerms) -> Tensor | float:
        """Return the share of λ that consistency has reached before this batch."""
        steps = self.objective.ramp_epochs * len(self.weights.log_odds)
        seen = self.seen.to(batch.ell_ce.dtype)
        if self.training:
            self.seen += len(batch.index)
        return (-5 * (1 - (seen / steps).clamp_max(1)) ** 2).exp() if steps else 1.0


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
    "mean-teacher": MeanTeacher,
}
METHODS = Registry("method", _BUILT_IN)
"""The criteria by name: `METHODS[name](num_samples, preset="paper", **options)` builds one.

Other packages add theirs, which may have further options, through the entry points `adawac.methods`.

Examples:
    >>> list(METHODS)[:3]
    ['baseline', 'pair', 'trim-train']
    >>> METHODS["acr-only"](num_samples=100, lambda_ac=0.5)
    ACROnly(num_samples=100, preset='paper', lambda_ac=0.5)
"""


def build_method(name: str, num_samples: int, preset: Preset = "paper", **options: Unpack[MethodOptions]) -> Criterion:
    """Return a method's criterion by name.

    Args:
        name: One of `adawac.METHODS`.
        num_samples: The size of the training set.
        preset: `paper`, as the text says; `official`, as the released code does; or `robust`, in relative units.
        **options: Fields of `adawac.Objective` that replace the preset's; those that the method does not use are
            ignored, and None keeps the preset's. A method of another package may have more: `METHODS[name](…)`.

    Returns:
        The criterion, whose weights are all at one half.

    Examples:
        >>> build_method("baseline", num_samples=100)
        Baseline(num_samples=100, preset='paper')
        >>> criterion = build_method("trim-ratio+acr", num_samples=100, preset="official", trim_ratio=0.3)
        >>> criterion.uses_latents, criterion.objective.lambda_ac
        (True, 2.0)
    """
    return METHODS[name](num_samples, preset=preset, **options)
