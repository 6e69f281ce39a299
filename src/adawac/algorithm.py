"""Algorithm 1 of the paper: the samples' weights ascend while the network descends."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from adawac import checks
from adawac.distributed import gather_rows, global_loss
from adawac.objective import Batch, resolve

__all__ = ["AdaWAC", "Batch", "Criterion", "SampleWeights", "Step", "Weighting"]


class SampleWeights(nn.Module):
    """The weights beta in [0, 1]^n, kept as log-odds.

    Lines 5-8 read  b <- [beta_i, 1 - beta_i] * exp(eta_beta [ell_ce, reg_ac]),  beta_i <- b_1 / |b|_1.
    In log-odds that is one addition, logit beta_i <- logit beta_i + eta_beta (ell_ce - reg_ac), which neither
    overflows nor sticks at 0 or 1.
    """

    log_odds: Tensor
    skipped: Tensor

    def __init__(self, num_samples: int):
        super().__init__()
        self.register_buffer("log_odds", torch.zeros(checks.positive("num_samples", num_samples)))
        self.register_buffer("skipped", torch.zeros((), dtype=torch.int64))  # increments that were not finite

    @property
    def beta(self) -> Float[Tensor, " n"]:
        """The weight of each sample's cross-entropy."""
        return self.log_odds.sigmoid()

    def ascend(
        self, index: Int[Tensor, " B"], ell_ce: Float[Tensor, " B"], reg_ac: Float[Tensor, " B"], eta_beta: float
    ) -> None:
        """Move the weights of all ranks' samples (Algorithm 1, lines 5-8); a sample that stands twice moves twice."""
        (index, ell_ce, reg_ac), _ = gather_rows([index, ell_ce, reg_ac])
        self.add(index, eta_beta * (ell_ce - reg_ac))

    @torch.no_grad()
    def add(self, index: Int[Tensor, " B"], increment: Float[Tensor, " B"]) -> None:
        """Add to the log-odds of `index`, which is the same on every rank; pass over what is not finite."""
        finite = increment.isfinite()
        self.skipped += (~finite).sum()
        self.log_odds.index_add_(0, index, increment.where(finite, 0).to(self.log_odds.dtype))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "SampleWeights":
        exact = self.log_odds
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if torch.finfo(self.log_odds.dtype).bits < 32:  # .half() and its kin are for the network
            self.log_odds = exact.to(self.log_odds.device)
        return self

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        checks.same_samples(state_dict.get(f"{prefix}log_odds"), self.log_odds)
        super()._load_from_state_dict(state_dict, prefix, *args)


class Weighting(NamedTuple):
    """What a method answers: the weights of CE and ACR, and what their sums over the batch are divided by."""

    ce: Float[Tensor, " B"]
    ac: Float[Tensor, " B"]
    divisor: Tensor | int
    """Of Dice and ACR, and of CE unless that has its own."""
    ce_divisor: Tensor | int | None = None

    def total(self, batch: Batch) -> Float[Tensor, ""]:
        """Return Dice + weighted CE + weighted ACR of the batch (Eq. 5 and Appendix C)."""
        ce, rest = (self.ce * batch.ell_ce).sum(), (batch.ell_dice + self.ac * batch.reg_ac).sum()
        return rest / self.divisor + ce / (self.divisor if self.ce_divisor is None else self.ce_divisor)


class Step(NamedTuple):
    """The loss of a batch, and the values of this rank's samples, detached; beta is what multiplied ell_ce."""

    loss: Float[Tensor, ""]
    ell_ce: Float[Tensor, " B"]
    ell_dice: Float[Tensor, " B"]
    reg_ac: Float[Tensor, " B"]
    beta: Float[Tensor, " B"]


class Criterion(nn.Module, ABC):
    """The loss of a batch: Dice, CE and ACR, of which a method weighs the last two, sample by sample."""

    uses_latents: bool = True
    """Whether the method compares latents at all."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Options that the method sets where the user does not."""
    fixed: ClassVar[Mapping[str, Any]] = {}
    """Options that make the method what it is, whatever the preset and the user say."""
    held: bool = False
    """While True, the weights do not move, though the module is in training mode."""

    def __init__(self, num_samples: int, *, preset: str = "paper", **options: Any):
        super().__init__()
        self.objective = resolve(preset, {**self.defaults, **options, **self.fixed})
        self.weights = SampleWeights(num_samples)
        self._checked = False

    @abstractmethod
    def weigh(self, batch: Batch) -> Weighting:
        """Weigh CE against ACR for every sample of the batch; in training mode, move the weights first."""

    def forward(
        self,
        logits: Tensor | Sequence[Tensor],
        labels: Tensor | Sequence[Tensor],
        features: Tensor | Sequence[tuple[float, Tensor]] | None,
        index: Tensor,
        views: Tensor | None = None,
    ) -> Step:
        """Return the loss of a batch; in training mode this also moves the weights.

        Args:
            logits: (2B, K, *S), all first views, then all second ones; or (B, K, *S), one supervised view; or a list
                of such at falling resolutions (deep supervision).
            labels: a label map for each row of the logits; or a list of such, as the logits are.
            features: the latents of both views, (2B, ...), as `EncoderTap.pop` gives them; None if none are compared.
            index: the row of the weights that each sample owns.
            views: the views' affine maps (2B, d, d + 1), where latents are `aligned`.
        """
        checks.batch(self, logits, labels, features, index, views, values=self.objective.validate or not self._checked)
        self._checked = True
        mine = self.objective.terms(logits, labels, features if self.uses_latents else None, index, views)
        columns, rows = gather_rows(list(vars(mine).values()))
        everyone = Batch(*columns)
        weighting = self.weigh(everyone)
        own = weighting._replace(ce=weighting.ce[rows], ac=weighting.ac[rows])
        loss = self.objective.scale * global_loss(own.total(mine), weighting.total(everyone))
        return Step(loss, mine.ell_ce.detach(), mine.ell_dice.detach(), mine.reg_ac.detach(), own.ce)


class AdaWAC(Criterion):
    """Adaptively weighted augmentation consistency (Algorithm 1)."""

    def weigh(self, batch: Batch) -> Weighting:
        """Ascend, then give CE the weight beta and ACR the rest (Algorithm 1, lines 5-9)."""
        if self.training and not self.held:
            self.weights.add(batch.index, self.objective.eta_beta * (batch.ell_ce - batch.reg_ac))
        beta = self.weights.beta[batch.index].to(batch.ell_ce.dtype)
        return Weighting(beta, 1 - beta, len(beta))
