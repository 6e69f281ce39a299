"""The objective: the terms of a sample's loss, and every choice in which the paper and the released code differ."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from adawac.config.objective_options import ObjectiveOptions, Preset
from adawac.config.schema import from_dict
from adawac.distributed import sum_over_ranks
from adawac.errors import UnknownNameError
from adawac.losses import consistency, dice_of, label_dense, pixel_sums, resized_labels, undo_view

Levels = Tensor | Sequence[Tensor]
"""Logits or labels: a tensor, or with deep supervision one for each resolution."""
Latents = Tensor | Sequence[tuple[float, Tensor]]
"""The latents of both views (2B, …), or several with their coefficients: what `EncoderTap.pop` returns."""


@dataclass(frozen=True)
class SampleTerms:
    """The terms of each sample of a batch. A method sees those of all ranks, without gradients.

    An unlabelled sample has neither CE nor Dice (both are 0), and its weight is not moved: only its ACR counts.
    """

    index: Int[Tensor, " B"]
    ell_ce: Float[Tensor, " B"]
    ell_dice: Float[Tensor, " B"]
    reg_ac: Float[Tensor, " B"]
    dense: Bool[Tensor, " B"]
    labelled: Bool[Tensor, " B"] | None = None
    """Which samples have a label; None: all of them, for there is no `ignore_index`."""

    @property
    def count(self) -> Tensor | int:
        """How many samples have a label, 1 at least: what CE and Dice are divided by."""
        return len(self.index) if self.labelled is None else self.labelled.sum(dtype=self.ell_ce.dtype).clamp_min(1)

    @property
    def share(self) -> Tensor | float:
        """`count` over the size of the batch: times this, ACR is a mean over all samples, also those without label."""
        return self.count / len(self.index)

    @property
    def rivals(self) -> tuple[Int[Tensor, " B"], Float[Tensor, " B"], Float[Tensor, " B"]]:
        """The rows of the weights with the CE and ACR that they ascend by; both are 0 for samples without label."""
        return self.index, self.ell_ce, self.of_labelled(self.reg_ac)

    def of_labelled(self, values: Float[Tensor, " B"], otherwise: float = 0.0) -> Float[Tensor, " B"]:
        """Return the values of labelled samples, and another one for those without label."""
        return values if self.labelled is None else values.where(self.labelled, otherwise)


class ExactBuffers(nn.Module):
    """Buffers that never drop below float32, whatever the module is cast to."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ExactBuffers":
        exact = dict(self.named_buffers())
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in self.named_buffers():
            if buffer.is_floating_point() and torch.finfo(buffer.dtype).bits < 32:  # .half() is meant for the network
                setattr(self, name, exact[name].to(buffer.device))
        return self


class RunningMeans(ExactBuffers):
    """Means of CE and ACR over the latest batches of all ranks: the units of a `relative` objective.

    The first batches count alike; from then on a batch has the weight 1 − MOMENTUM. Values that are not finite count
    nowhere.

    Examples:
        >>> means = RunningMeans()
        >>> means.update(torch.tensor([1.0, 3.0]), torch.tensor([0.5, 0.5]))
        >>> means.ce, means.ac
        (tensor(2.), tensor(0.5000))
    """

    MOMENTUM = 0.98
    ce: Tensor
    ac: Tensor
    batches: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ce", torch.ones(()))
        self.register_buffer("ac", torch.ones(()))
        self.register_buffer("batches", torch.zeros(()))

    @torch.no_grad()
    def update(
        self, ell_ce: Float[Tensor, " B"], reg_ac: Float[Tensor, " B"], labelled: Bool[Tensor, " B"] | None = None
    ) -> None:
        """Take in a batch, in training mode; of the samples that are `labelled`, where that is given."""
        finite = ell_ce.isfinite() & reg_ac.isfinite()
        if labelled is not None:
            finite &= labelled
        count = finite.sum()
        counts = (count > 0) & self.training
        past = (self.batches / (self.batches + 1)).clamp_max(self.MOMENTUM).where(counts, 1)
        for mean, values in ((self.ce, ell_ce), (self.ac, reg_ac)):
            new = values.where(finite, 0).sum() / count.clamp_min(1)
            mean.lerp_(new.clamp_min(1e-12).to(mean.dtype), 1 - past.to(mean.dtype))
        self.batches += counts

    def in_units_of_ce(self, terms: SampleTerms, lambda_ac: float) -> SampleTerms:
        """Return the terms with a consistency whose mean is λ times that of CE."""
        return replace(terms, reg_ac=lambda_ac * self.ce / self.ac * terms.reg_ac)


@dataclass(frozen=True, kw_only=True)
class Objective(ObjectiveOptions):
    """The terms of a sample's loss by the options of all methods, which are its keyword arguments.

    `criterion.objective` is one; `adawac.config.ObjectiveOptions` has the options' limits.

    Examples:
        >>> Objective(eta_beta=2.0).lambda_ac
        1.0
        >>> objective = PRESETS["official"]
        >>> objective.rho, objective.dice, objective.smooth
        ('mse', 'batch', 1e-05)
        >>> objective.consistency(torch.tensor([[1.0, 1.0], [0.0, 1.0]]))  # of both views of one sample; λ = 2
        tensor([1.])
    """

    @property
    def shown(self) -> str:
        """What `repr` of a criterion shows: the preset that comes nearest, and the options that differ from it."""
        calls = [
            {"preset": name} | {option: value for option, value in vars(self).items() if value != getattr(kept, option)}
            for name, kept in PRESETS.items()
        ]
        return ", ".join(f"{name}={value!r}" for name, value in min(calls, key=len).items())

    def step_size(self, means: RunningMeans | None) -> float | Tensor:
        """Return η_β, in units of the usual CE where the objective is `relative`."""
        return self.eta_beta if means is None else self.eta_beta / means.ce

    def terms(
        self,
        logits: Levels,
        labels: Levels,
        features: Latents | None,
        index: Int[Tensor, " B"],
        views: Tensor | None = None,
    ) -> SampleTerms:
        """Return the terms of each sample's loss; without features the consistency is 0.

        The arguments are those of `Criterion.forward`.
        """
        ell_ce, ell_dice = self.supervised(logits, labels, len(index))
        reg_ac = torch.zeros_like(ell_ce) if features is None else self.consistency(features, views)
        finest = labels if isinstance(labels, Tensor) else labels[0]
        dense = label_dense(finest[: len(index)], self.sparse_threshold, self.ignore_index)
        if self.ignore_index is None:
            return SampleTerms(index, ell_ce, ell_dice, reg_ac, dense)
        seen = finest[: len(index) if self.views == "first" else None] != self.ignore_index
        labelled = seen.flatten(1).any(1).unflatten(0, (-1, len(index))).any(0)
        return SampleTerms(index, ell_ce, ell_dice.where(labelled, 0), reg_ac, dense, labelled)

    def ignore_unlabelled(self, labels: Levels, labelled: Bool[Tensor, " B"]) -> Levels:
        """Return label maps of which those of unlabelled samples are ignored as a whole."""
        if not isinstance(labels, Tensor):
            return [self.ignore_unlabelled(level, labelled) for level in labels]  # type: ignore[misc]
        assert self.ignore_index is not None  # checked
        rows = labelled.repeat(len(labels) // len(labelled)).view(-1, *[1] * (labels.ndim - 1))
        return labels.long().where(rows, self.ignore_index)

    def supervised(self, logits: Levels, labels: Levels, size: int) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """Return CE and Dice of `size` samples, averaged over views and over resolutions."""
        scales = [logits] if isinstance(logits, Tensor) else list(logits)
        weights = self.supervision or tuple(2.0**-level for level in range(len(scales)))
        targets = [labels] * len(scales) if isinstance(labels, Tensor) else labels
        pairs = [
            torch.stack(self._supervised(scale, resized_labels(target, scale.shape[2:]), size))
            * (weight / sum(weights))
            for weight, scale, target in zip(weights, scales, targets, strict=True)
        ]
        ell_ce, ell_dice = torch.stack(pairs).sum(0)
        return ell_ce, ell_dice

    def _supervised(self, logits: Tensor, labels: Tensor, size: int) -> tuple[Tensor, Tensor]:
        if self.views == "first":
            logits, labels = logits[:size], labels[:size]
        sums = pixel_sums(logits, labels, denominator=self.denominator, ignore_index=self.ignore_index)
        parts = torch.stack(sums[1:]).unflatten(1, (-1, size))  # the three sums × views × samples × classes
        ell_ce = self._mean_of_views(sums.ell_ce.unflatten(0, (-1, size)), parts[2])
        if self.dice == "batch":
            overlap, mass, labelled = sum_over_ranks(parts.sum(2))
            ell_dice = self._mean_of_views(dice_of(overlap, mass, labelled, self.smooth), labelled)
            return ell_ce, ell_dice.expand(size)
        overlap, mass, labelled = parts
        return ell_ce, self._mean_of_views(dice_of(overlap, mass, labelled, self.smooth), labelled)

    def _mean_of_views(self, values: Float[Tensor, "V *B"], labelled: Float[Tensor, "V *B K"]) -> Float[Tensor, "*B"]:
        """Return the mean over the views; a view whose pixels are all ignored counts nowhere."""
        if self.ignore_index is None:
            return values.mean(0)
        return values.sum(0) / (labelled.sum(-1) > 0).sum(0).clamp_min(1)

    def consistency(self, features: Latents, views: Tensor | None = None) -> Float[Tensor, " B"]:
        """Return R_AC = λ·ρ (Eq. 3), summed over the latents with their coefficients."""
        latents = [(1.0, features)] if isinstance(features, Tensor) else features
        distances = [coefficient * self._distance(latent, views) for coefficient, latent in latents]
        return self.lambda_ac * torch.stack(distances).sum(0)

    def _distance(self, latent: Tensor, views: Tensor | None) -> Tensor:
        both = None
        if self.aligned and views is not None:
            latent, visible = undo_view(latent, views)
            both = visible.unflatten(0, (2, -1)).all(0)
        first, second = latent.chunk(2)
        return consistency(first, second, self.rho, both)


PRESETS: Mapping[Preset, Objective] = {
    "paper": Objective(),
    "official": Objective(
        eta_beta=2.0,
        lambda_ac=2.0,
        rho="mse",
        views="both",
        dice="batch",
        denominator="squared",
        smooth=1e-5,
        scale=0.5,
        addition="mean",
        trim_rule="quantile",
        trim_dice=True,
        reweighting="batch",
    ),
    "robust": Objective(
        rho="local-cosine",
        relative=True,
        bound=4.0,
        views="both",
        dice="batch",
        denominator="squared",
        smooth=1e-5,
        scale=0.5,
    ),
}
"""The objectives by name: `paper`, as the text says; `official`, as the code does; and `robust`, in relative units.

Examples:
    >>> list(PRESETS)
    ['paper', 'official', 'robust']
    >>> PRESETS["robust"].rho, PRESETS["robust"].bound
    ('local-cosine', 4.0)
"""


def resolve(preset: Preset, options: Mapping[str, Any]) -> Objective:
    """Return the preset with single options replaced; an option given as None keeps the preset's value.

    Examples:
        >>> resolve("official", {"lambda_ac": 1.0, "rho": None}) == replace(PRESETS["official"], lambda_ac=1.0)
        True
    """
    if preset not in PRESETS:
        raise UnknownNameError(f"Expected a preset, one of {', '.join(PRESETS)}, but got {preset!r}.")
    kept = vars(PRESETS[preset])
    values = {name: kept.get(name) if value is None else value for name, value in options.items()}
    return from_dict(Objective, {**kept, **values})
