"""Algorithm 1 of the paper: the samples' weights ascend while the network descends."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from adawac import checks
from adawac.distributed import gather_rows, global_loss
from adawac.objective import SampleTerms, resolve


class SampleWeights(nn.Module):
    """The weights beta in [0, 1]^n, kept as log-odds.

    Lines 5-8 read  b <- [beta_i, 1 - beta_i] * exp(eta_beta [ell_ce, reg_ac]),  beta_i <- b_1 / |b|_1.
    In log-odds that is one addition, logit beta_i <- logit beta_i + eta_beta (ell_ce - reg_ac), which neither
    overflows nor sticks at 0 or 1.

    Example:
        >>> weights = SampleWeights(num_samples=3)
        >>> weights.ascend(torch.tensor([0, 2]), torch.tensor([2.0, 0.5]), torch.tensor([1.0, 1.5]), eta_beta=1.0)
        >>> weights.beta
        tensor([0.7311, 0.5000, 0.2689])
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

    @torch.no_grad()
    def ascend(
        self,
        index: Int[Tensor, " B"],
        ell_ce: Float[Tensor, " B"],
        reg_ac: Float[Tensor, " B"],
        eta_beta: float | Tensor,
    ) -> None:
        """Move the weights of `index`, the batch of all ranks (Algorithm 1, lines 5-8).

        A sample that occurs twice moves twice. An increment that is not finite is skipped and counted.
        """
        increment = eta_beta * (ell_ce - reg_ac)
        finite = increment.isfinite()
        self.skipped += (~finite).sum()
        self.log_odds.index_add_(0, index, increment.where(finite, 0).to(self.log_odds.dtype))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "SampleWeights":
        exact = self.log_odds
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if torch.finfo(self.log_odds.dtype).bits < 32:  # .half() is meant for the network
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

    def total(self, batch: SampleTerms) -> Float[Tensor, ""]:
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
    """The loss of a batch: Dice, CE and ACR, of which a method weighs the last two, sample by sample.

    Example:
        >>> class Halfway(Criterion):
        ...     def weigh(self, batch):
        ...         half = torch.full_like(batch.ell_ce, 0.5)
        ...         return Weighting(ce=half, ac=half, divisor=len(half))
        >>> logits, labels, features = torch.zeros(2, 2, 4), torch.zeros(2, 4, dtype=torch.int64), torch.ones(2, 5)
        >>> Halfway(num_samples=3)(logits, labels, features, index=torch.tensor([1])).beta
        tensor([0.5000])
    """

    held: bool = False
    """While True, the weights stay as they are, also in training mode: set it until the network has settled. It is not
    part of the state dict, and `train()` and `eval()` leave it alone."""
    uses_latents: bool = True
    """Whether the method compares latents at all."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Options that the method sets where the user does not."""
    fixed: ClassVar[Mapping[str, Any]] = {}
    """Options that make the method what it is, whatever the preset and the user say."""

    def __init__(self, num_samples: int, *, preset: str = "paper", **options: Any):
        super().__init__()
        self.objective = resolve(preset, {**self.defaults, **options, **self.fixed})
        self.weights = SampleWeights(num_samples)
        self._checked = False

    @property
    def moves_weights(self) -> bool:
        """Whether a call moves the weights: in training mode, unless they are `held`."""
        return self.training and not self.held

    @abstractmethod
    def weigh(self, batch: SampleTerms) -> Weighting:
        """Weigh CE against ACR for every sample of the batch; if `moves_weights`, move the weights first."""

    def forward(
        self,
        logits: Tensor | Sequence[Tensor],
        labels: Tensor | Sequence[Tensor],
        features: Tensor | Sequence[tuple[float, Tensor]] | None,
        index: Tensor,
        views: Tensor | None = None,
    ) -> Step:
        """Return the loss of a batch; in training mode this also moves the weights, unless they are `held`.

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
        local = self.objective.terms(logits, labels, features if self.uses_latents else None, index, views)
        columns, rows = gather_rows(list(vars(local).values()))
        batch = SampleTerms(*columns)
        weighting = self.weigh(batch)
        share = weighting._replace(ce=weighting.ce[rows], ac=weighting.ac[rows])
        loss = self.objective.scale * global_loss(share.total(local), weighting.total(batch))
        return Step(loss, local.ell_ce.detach(), local.ell_dice.detach(), local.reg_ac.detach(), share.ce)


class AdaWAC(Criterion):
    """Adaptively weighted augmentation consistency (Algorithm 1).

    Example:
        >>> criterion = AdaWAC(num_samples=100, eta_beta=1.0, lambda_ac=1.0)
        >>> logits, labels = torch.zeros(4, 2, 8, 8), torch.ones(4, 8, 8, dtype=torch.int64)  # two views of two samples
        >>> step = criterion(logits, labels, features=torch.ones(4, 16, 2, 2), index=torch.tensor([7, 42]))
        >>> step.ell_ce, step.reg_ac
        (tensor([0.6931, 0.6931]), tensor([0., 0.]))
        >>> criterion.weights.beta[[0, 7, 42]]
        tensor([0.5000, 0.6667, 0.6667])
    """

    def weigh(self, batch: SampleTerms) -> Weighting:
        """Ascend, then give CE the weight beta and ACR the rest (Algorithm 1, lines 5-9)."""
        if self.moves_weights:
            self.weights.ascend(batch.index, batch.ell_ce, batch.reg_ac, self.objective.eta_beta)
        beta = self.weights.beta[batch.index].to(batch.ell_ce.dtype)
        return Weighting(beta, 1 - beta, len(beta))
