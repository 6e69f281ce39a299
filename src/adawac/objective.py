"""The objective: the terms of a sample's loss, and every choice in which the paper and the released code differ."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from adawac.distributed import sum_over_ranks
from adawac.errors import ConfigError, UnknownNameError, near
from adawac.losses import Denominator, Rho, consistency, dice_of, label_dense, pixel_sums, resized_labels, undo_view


@dataclass(frozen=True)
class SampleTerms:
    """The terms of each sample of a batch. A method sees those of all ranks, without gradients."""

    index: Int[Tensor, " B"]
    ell_ce: Float[Tensor, " B"]
    ell_dice: Float[Tensor, " B"]
    reg_ac: Float[Tensor, " B"]
    dense: Bool[Tensor, " B"]


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and 0 <= float(value) < float("inf")


def _are_weights(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_number, value)) and 0 < sum(value) < float("inf")


# What the options of each type have to be, and whether a value is that.
_KINDS: Mapping[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("True or False", lambda value: isinstance(value, bool)),
    int: ("a whole number", lambda value: not isinstance(value, bool) and isinstance(value, Integral)),
    float: ("a number ≥ 0", _is_number),
    tuple[float, ...]: (
        "weights ≥ 0 of the resolutions, from fine to coarse, at least one above 0, such as supervision=(1, 0.5, 0.25)",
        _are_weights,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The options of all methods; the defaults are the paper's text. A method ignores those that it does not use.

    Example:
        >>> Objective(eta_beta=2.0).lambda_ac
        1.0
        >>> Objective(rho="manhattan")
        Traceback (most recent call last):
        adawac.errors.ConfigError: Expected rho to be one of rms, mse, euclidean, cosine, but got 'manhattan'.
    """

    eta_beta: float = 1.0
    """Step size of the weights (Algorithm 1): 1.0 is the paper's AdaWAC-1.0."""
    lambda_ac: float = 1.0
    """λ, the factor of the consistency (Eq. 3)."""
    rho: Rho = "rms"
    """The distance of two latents: `rms`, `mse`, `euclidean` or `cosine` (see `losses.consistency`)."""
    aligned: bool = False
    """Warp each latent back by the inverse of its view's affine map before comparing."""
    views: Literal["first", "both"] = "first"
    """Supervise the first view, as x itself, or both views' mean."""
    dice: Literal["sample", "batch"] = "sample"
    """One Dice for each sample, or one for the whole batch."""
    denominator: Denominator = "l1"
    """Dice's denominator: Σp + Σq or Σp² + Σq²."""
    smooth: float = 0.0
    """Added to Dice's numerator and denominator."""
    scale: float = 1.0
    """Factor of the whole loss; the released code halves Dice and the weighted pair alike."""
    addition: Literal["sum", "mean"] = "sum"
    """What "CE plus ACR" without weights means: their sum (Eq. 4) or their mean."""
    trim_ratio: float | None = None
    """Fraction that trim-ratio drops; the training set's share of slices without foreground."""
    trim_rule: Literal["count", "quantile"] = "count"
    """Drop the ⌊ratio·B⌋ lowest CEs, or all that are not above the batch's quantile."""
    trim_dice: bool = False
    """Divide Dice and ACR by the number of samples kept, too, and keep no ACR of dropped ones."""
    reweighting: Literal["log-odds", "batch"] = "log-odds"
    """reweight-only: the weights of Algorithm 1 with λ = 0, or weights that are normalised over the batch."""
    entropy_max: float = 0.01
    """ε of pm-dro, which draws the weights towards uniform."""
    sparse_threshold: float = 0.0
    """A sample is label-sparse up to this share of foreground pixels."""
    ignore_index: int | None = None
    """Label of pixels that count nowhere."""
    supervision: tuple[float, ...] | None = None
    """Weights of a list of logits (deep supervision), normalised to sum 1; None halves from one to the next."""
    validate: bool = False
    """Check label and index values in every step, not only in the first; each check synchronises the device."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            value, options = getattr(self, name), get_args(hint)
            if value is None and type(None) in options:
                continue
            kind = options[0] if type(None) in options else hint
            if get_origin(kind) is Literal:
                expected, valid = f"one of {', '.join(options)}", value in options
            else:
                expected, valid = _KINDS[kind][0], _KINDS[kind][1](value)
            if not valid:
                raise ConfigError(f"Expected {name} to be {expected}, but got {value!r}.")
        if self.trim_ratio is not None and self.trim_ratio >= 1:
            raise ConfigError(
                f"Expected trim_ratio < 1, but got {self.trim_ratio!r}. Give the share of samples to drop."
            )

    def terms(
        self,
        logits: Tensor | Sequence[Tensor],
        labels: Tensor | Sequence[Tensor],
        features: Tensor | Sequence[tuple[float, Tensor]] | None,
        index: Int[Tensor, " B"],
        views: Tensor | None = None,
    ) -> SampleTerms:
        """Return the terms of each sample's loss; without features the consistency is 0."""
        ell_ce, ell_dice = self.supervised(logits, labels, len(index))
        reg_ac = torch.zeros_like(ell_ce) if features is None else self.consistency(features, views)
        finest = labels if isinstance(labels, Tensor) else labels[0]
        dense = label_dense(finest[: len(index)], self.sparse_threshold, self.ignore_index)
        return SampleTerms(index, ell_ce, ell_dice, reg_ac, dense)

    def supervised(
        self, logits: Tensor | Sequence[Tensor], labels: Tensor | Sequence[Tensor], size: int
    ) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
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
        ell_ce = sums.ell_ce.unflatten(0, (-1, size)).mean(0)
        parts = torch.stack(sums[1:]).unflatten(1, (-1, size))  # the three sums × views × samples × classes
        if self.dice == "batch":
            overlap, mass, labelled = sum_over_ranks(parts.sum(2))
            return ell_ce, dice_of(overlap, mass, labelled, self.smooth).mean().expand(size)
        overlap, mass, labelled = parts
        return ell_ce, dice_of(overlap, mass, labelled, self.smooth).mean(0)

    def consistency(
        self, features: Tensor | Sequence[tuple[float, Tensor]], views: Tensor | None = None
    ) -> Float[Tensor, " B"]:
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


PRESETS: Mapping[str, Objective] = {
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
}


def resolve(preset: str, options: Mapping[str, Any]) -> Objective:
    """Return the preset with single options replaced; an option given as None keeps the preset's value.

    Example:
        >>> resolve("official", {"lambda_ac": 1.0, "rho": None}) == replace(PRESETS["official"], lambda_ac=1.0)
        True
    """
    if preset not in PRESETS:
        raise UnknownNameError(f"Expected a preset, one of {', '.join(PRESETS)}, but got {preset!r}.")
    known = {field.name for field in fields(Objective)}
    for name in options:
        if name not in known:
            raise ConfigError(
                f"Expected an option of the objective, but got {name!r}. Near names: {near(name, known)}."
            )
    return replace(PRESETS[preset], **{name: value for name, value in options.items() if value is not None})
