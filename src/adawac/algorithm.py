"""Algorithm 1 of the paper: the samples' weights ascend while the network descends."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from adawac import checks
from adawac.config.objective_options import MethodOptions, Preset
from adawac.distributed import gather_rows, global_loss
from adawac.objective import ExactBuffers, Latents, Levels, RunningMeans, SampleTerms, resolve


class SampleWeights(ExactBuffers):
    """The weights beta in [0, 1]^n, kept as log-odds.

    Lines 5-8 read  b <- [beta_i, 1 - beta_i] * exp(eta_beta [ell_ce, reg_ac]),  beta_i <- b_1 / |b|_1.
    In log-odds that is one addition, logit beta_i <- logit beta_i + eta_beta (ell_ce - reg_ac), which neither
    overflows nor sticks at 0 or 1. They are buffers, so they are in the state dict.

    Args:
        num_samples: n, the size of the training set.
        bound: The log-odds stay within ± this; None: no bound.

    Attributes:
        log_odds: (n,) log β/(1 − β), never below float32, whatever the module is cast to.
        skipped: () how many increments were left out, since they were not finite.

    Examples:
        >>> weights = SampleWeights(num_samples=3)
        >>> weights.ascend(torch.tensor([0, 2]), torch.tensor([2.0, 0.5]), torch.tensor([1.0, 1.5]), eta_beta=1.0)
        >>> weights.beta
        tensor([0.7311, 0.5000, 0.2689])
    """

    log_odds: Tensor
    skipped: Tensor

    def __init__(self, num_samples: int, bound: float | None = None):
        super().__init__()
        self.bound = bound
        self.register_buffer("log_odds", torch.zeros(checks.positive("num_samples", num_samples)))
        self.register_buffer("skipped", torch.zeros((), dtype=torch.int64))  # increments that were not finite

    def extra_repr(self) -> str:
        """Return what `repr` shows in the brackets."""
        return f"num_samples={len(self.log_odds)}" + ("" if self.bound is None else f", bound={self.bound}")

    @property
    def beta(self) -> Float[Tensor, " n"]:
        """The weight of each sample's cross-entropy, (n,) in [0, 1]."""
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

        Args:
            index: (B,) rows of the weights.
            ell_ce: (B,) cross-entropies.
            reg_ac: (B,) consistencies.
            eta_beta: The step size.
        """
        increment = eta_beta * (ell_ce - reg_ac)
        finite = increment.isfinite()
        self.skipped += (~finite).sum()
        self.log_odds.index_add_(0, index, increment.where(finite, 0).to(self.log_odds.dtype))
        if self.bound is not None:
            self.log_odds.clamp_(-self.bound, self.bound)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        checks.same_samples(state_dict.get(f"{prefix}log_odds"), self.log_odds)
        super()._load_from_state_dict(state_dict, prefix, *args)


class Weighting(NamedTuple):
    """What a method answers: the weights of CE and ACR, and what their sums over the batch are divided by.

    Attributes:
        ce: (B,) the weight of each sample's CE.
        ac: (B,) the weight of each sample's ACR.
        divisor: Of Dice and ACR, and of CE unless that has one of its own.
        ce_divisor: That of CE.

    Examples:
        >>> two, none = torch.tensor([2.0, 2.0]), torch.zeros(2)
        >>> batch = SampleTerms(index=torch.arange(2), ell_ce=two, ell_dice=none, reg_ac=two / 2, dense=two > 0)
        >>> Weighting(ce=torch.tensor([1.0, 0.0]), ac=torch.tensor([0.0, 1.0]), divisor=2).total(batch)
        tensor(1.5000)
    """

    ce: Float[Tensor, " B"]
    ac: Float[Tensor, " B"]
    divisor: Tensor | int
    ce_divisor: Tensor | int | None = None

    def total(self, batch: SampleTerms) -> Float[Tensor, ""]:
        """Return Dice + weighted CE + weighted ACR of the batch (Eq. 5 and Appendix C)."""
        ce, rest = (self.ce * batch.ell_ce).sum(), (batch.ell_dice + self.ac * batch.reg_ac).sum()
        return rest / self.divisor + ce / (self.divisor if self.ce_divisor is None else self.ce_divisor)


class Step(NamedTuple):
    """What a call of a criterion returns: the loss of a batch, and the values of this rank's samples, detached.

    Of an unlabelled sample, ell_ce, ell_dice and beta are 0.

    Attributes:
        loss: () to call `backward` on.
        ell_ce: (B,) cross-entropy of each sample.
        ell_dice: (B,) Dice loss.
        reg_ac: (B,) consistency R_AC, with λ.
        beta: (B,) what multiplied ell_ce.

    Examples:
        >>> logits = torch.zeros(4, 2, 8)  # two views of two samples
        >>> labels = torch.ones(4, 8, dtype=torch.int64)
        >>> step = AdaWAC(num_samples=9)(logits, labels, torch.ones(4, 5), torch.tensor([3, 7]))
        >>> step.loss, step.beta
        (tensor(1.1288), tensor([0.6667, 0.6667]))
    """

    loss: Float[Tensor, ""]
    ell_ce: Float[Tensor, " B"]
    ell_dice: Float[Tensor, " B"]
    reg_ac: Float[Tensor, " B"]
    beta: Float[Tensor, " B"]


class Criterion(nn.Module, ABC):
    """The loss of a batch: Dice, CE and ACR, of which a method weighs the last two, sample by sample.

    The base of all methods: derive a class and say in `weigh` how.

    Args:
        num_samples: The size of the training set: each of its samples has a weight.
        preset: `paper`, as the text says; `official`, as the released code does; or `robust`, in relative units.
        **options: Fields of `adawac.Objective` that replace the preset's; those that the method does not use are
            ignored, and None keeps the preset's.

    Attributes:
        weights: The `SampleWeights`.
        objective: The `Objective`: all options.
        held: While True, the weights stay as they are.
        warned: Whether it was said already that moves of the weights are left out, where losses are not finite.
        uses_latents: Of a class: whether the method compares latents at all.
        uses_teacher: Of a class: whether it compares predictions with those of an averaged network instead.
        defaults: Of a class: options that the method sets where the user does not.
        fixed: Of a class: options that make it what it is, whatever the preset and the user say.

    Examples:
        >>> class Halfway(Criterion):
        ...     def weigh(self, batch):
        ...         half = torch.full_like(batch.ell_ce, 0.5)
        ...         return Weighting(ce=half, ac=half, divisor=len(half))
        >>> logits, labels = torch.zeros(2, 2, 4), torch.zeros(2, 4, dtype=torch.int64)
        >>> Halfway(num_samples=3)(logits, labels, torch.ones(2, 5), torch.tensor([1])).beta
        tensor([0.5000])
    """

    held: bool = False
    """While True, the weights stay as they are, also in training mode: set it until the network has settled. It is not
    part of the state dict, and `train()` and `eval()` leave it alone."""
    warned: bool = False
    uses_latents: bool = True
    uses_teacher: bool = False
    defaults: ClassVar[Mapping[str, Any]] = {}
    fixed: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, num_samples: int, *, preset: Preset = "paper", **options: Unpack[MethodOptions]):
        super().__init__()
        self.objective = resolve(preset, {**self.defaults, **options, **self.fixed})
        self.weights = SampleWeights(num_samples, self.objective.bound)
        self.means = RunningMeans() if self.objective.relative else None
        self._checked = 0  # calls so far

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_samples={len(self.weights.log_odds)}, {self.objective.shown})"

    @property
    def moves_weights(self) -> bool:
        """Whether a call moves the weights: in training mode, unless they are `held`."""
        return self.training and not self.held

    @abstractmethod
    def weigh(self, batch: SampleTerms) -> Weighting:
        """Weigh CE against ACR for every sample of the batch; if `moves_weights`, move the weights first."""

    def forward(
        self,
        logits: Levels,
        labels: Levels,
        features: Latents | None,
        index: Tensor,
        views: Tensor | None = None,
        labelled: Tensor | None = None,
    ) -> Step:
        """Return the loss of a batch; in training mode this also moves the weights, unless they are `held`.

        Args:
            logits: (2B, K, *S), all first views, then all second ones; or (B, K, *S), one supervised view; or a list
                of such at falling resolutions (deep supervision).
            labels: a label map for each row of the logits; or a list of such, as the logits are. A sample is unlabelled
                where every pixel is the option `ignore_index`.
            features: the latents of both views, (2B, ...), as `EncoderTap.pop` gives them; None if none are compared.
            index: (B,) the row of the weights that each sample owns.
            views: the views' affine maps (2B, d, d + 1), where latents are `aligned`.
            labelled: (B,), False for the samples that have no label, whatever stands in their label maps. It needs the
                option `ignore_index`, and has to come in every call or in none. None: what `labels` say.

        Returns:
            The loss, and the terms of each sample, (B,).
        """
        checks.batch(self, logits, labels, features, index, views, values=checks.due(self.objective, self._checked))
        self._checked += not (self._checked and torch.compiler.is_compiling())  # each change would compile it again
        if labelled is not None:
            labels = self.objective.ignore_unlabelled(labels, checks.states(self, labelled, index))
        local = self.objective.terms(logits, labels, features if self.uses_latents else None, index, views)
        columns, rows = gather_rows([column for column in vars(local).values() if column is not None])
        batch = SampleTerms(*columns)
        if self.means is not None:
            self.means.update(batch.ell_ce, batch.reg_ac, batch.labelled)
            local, batch = (self.means.in_units_of_ce(terms, self.objective.lambda_ac) for terms in (local, batch))
        weighting = self.weigh(batch)
        share = weighting._replace(ce=weighting.ce[rows], ac=weighting.ac[rows])
        loss = self.objective.scale * global_loss(share.total(local), weighting.total(batch))
        return Step(loss, local.ell_ce.detach(), local.ell_dice.detach(), local.reg_ac.detach(), share.ce)

    if TYPE_CHECKING:  # torch declares that a call returns Any

        def __call__(  # noqa: D102
            self,
            logits: Levels,
            labels: Levels,
            features: Latents | None,
            index: Tensor,
            views: Tensor | None = None,
            labelled: Tensor | None = None,
        ) -> Step: ...


class AdaWAC(Criterion):
    """Adaptively weighted augmentation consistency (Algorithm 1).

    A call returns the `Step` of a batch, and in training mode it moves the weights of the batch's samples.

    Args:
        num_samples: The size of the training set: each of its samples has a weight.
        preset: `paper`, as the text says; `official`, as the released code does; or `robust`, in relative units.
        **options: Fields of `adawac.Objective` that replace the preset's, such as `eta_beta` and `lambda_ac`.

    Examples:
        >>> criterion = AdaWAC(num_samples=100, eta_beta=1.0, lambda_ac=1.0)
        >>> logits = torch.zeros(4, 2, 8, 8)  # two views of two samples
        >>> labels = torch.ones(4, 8, 8, dtype=torch.int64)
        >>> latents = torch.ones(4, 16, 2, 2)
        >>> step = criterion(logits, labels, latents, index=torch.tensor([7, 42]))
        >>> step.ell_ce, step.reg_ac
        (tensor([0.6931, 0.6931]), tensor([0., 0.]))
        >>> criterion.weights.beta[[0, 7, 42]]
        tensor([0.5000, 0.6667, 0.6667])
    """

    def weigh(self, batch: SampleTerms) -> Weighting:
        """Ascend, then give CE the weight beta and ACR the rest (Algorithm 1, lines 5-9)."""
        if self.moves_weights:
            self.weights.ascend(*batch.rivals, self.objective.step_size(self.means))
        beta = batch.of_labelled(self.weights.beta[batch.index].to(batch.ell_ce.dtype))
        return Weighting(beta, (1 - beta) * batch.share, batch.count)
