"""The options of all methods, each with what it may be: `adawac.Objective` computes with them. Not a line of torch."""

# ruff: noqa: RUF009  (`setting` is `dataclasses.field` with a help text)

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypedDict

from adawac.config.schema import Config, setting

Rho = Literal["rms", "mse", "euclidean", "cosine", "local-cosine"]
Denominator = Literal["l1", "squared"]
Preset = Literal["paper", "official", "robust"]


@dataclass(frozen=True, kw_only=True)
class ObjectiveOptions(Config):
    """The options of all methods; the defaults are the paper's text. A method ignores those that it does not use."""

    eta_beta: float = setting(
        1.0, "Step size of the weights (Algorithm 1); 1.0 is the paper's AdaWAC-1.0.", least=0, aliases="eta step_size"
    )
    lambda_ac: float = setting(1.0, "λ, the factor of the consistency (Eq. 3).", least=0, aliases="lambda lam weight")
    rho: Rho = setting("rms", "The distance of two latents (see `losses.consistency`).")
    relative: bool = setting(
        False,
        "Measure λ and η_β in running means: R_AC = λ·ρ·(mean CE / mean ρ), and a step of the log-odds is "
        "η_β (CE − R_AC) / mean CE. The same numbers then serve latents and losses of any size.",
    )
    bound: float | None = setting(
        None, "The log-odds stay within ± this, so that β can come back; null: no bound.", least=0
    )
    aligned: bool = setting(False, "Warp each latent back by the inverse of its view's affine map before comparing.")
    views: Literal["first", "both"] = setting("first", "Supervise the first view, as x itself, or both views' mean.")
    dice: Literal["sample", "batch"] = setting("sample", "One Dice for each sample, or one for the whole batch.")
    denominator: Denominator = setting("l1", "Dice's denominator: Σp + Σq, or Σp² + Σq².")
    smooth: float = setting(0.0, "Added to Dice's numerator and denominator.", least=0)
    scale: float = setting(
        1.0, "Factor of the whole loss; the released code halves Dice and the weighted pair alike.", least=0
    )
    addition: Literal["sum", "mean"] = setting(
        "sum", "What CE plus ACR without weights means: their sum (Eq. 4) or their mean."
    )
    trim_ratio: float | None = setting(
        None,
        "Fraction that trim-ratio drops; null: the training set's share of slices without foreground.",
        least=0,
        below=1,
    )
    trim_rule: Literal["count", "quantile"] = setting(
        "count", "Drop the ⌊ratio·B⌋ lowest CEs, or all that are not above the batch's quantile."
    )
    trim_dice: bool = setting(
        False, "Divide Dice and ACR by the number of samples kept, too, and keep no ACR of dropped ones."
    )
    reweighting: Literal["log-odds", "batch"] = setting(
        "log-odds",
        "reweight-only: the weights of Algorithm 1 with λ = 0, or weights that are normalised over the batch.",
    )
    entropy_max: float = setting(0.01, "ε of pm-dro, which draws the weights towards uniform.", least=0)
    ramp_epochs: float = setting(
        10.0,
        "Epochs in which mean-teacher's consistency rises to λ; `adawac train` takes a quarter of the run.",
        least=0,
    )
    sparse_threshold: float = setting(0.0, "A sample is label-sparse up to this share of foreground pixels.", least=0)
    ignore_index: int | None = setting(
        None,
        "Label of pixels that count nowhere. A sample of no others is unlabelled: it has no CE and no Dice, its weight "
        "stays where it is, and its ACR counts in full.",
    )
    supervision: tuple[float, ...] | None = setting(
        None,
        "Weights of a list of logits (deep supervision), from fine to coarse, normalised to sum 1; null halves from "
        "one to the next.",
        least=0,
    )
    validate: bool = setting(
        False, "Check label and index values in every step, not only in the first; each check synchronises the device."
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Yield what no weights of resolutions are."""
        if self.supervision is not None and not sum(self.supervision) > 0:
            yield "supervision", f"expected at least one weight above 0, but got {self.supervision}."


class MethodOptions(TypedDict, total=False):
    """The same options as keyword arguments, for type checkers; None keeps the preset's value."""

    eta_beta: float | None
    lambda_ac: float | None
    rho: Rho | None
    relative: bool | None
    bound: float | None
    aligned: bool | None
    views: Literal["first", "both"] | None
    dice: Literal["sample", "batch"] | None
    denominator: Denominator | None
    smooth: float | None
    scale: float | None
    addition: Literal["sum", "mean"] | None
    trim_ratio: float | None
    trim_rule: Literal["count", "quantile"] | None
    trim_dice: bool | None
    reweighting: Literal["log-odds", "batch"] | None
    entropy_max: float | None
    ramp_epochs: float | None
    sparse_threshold: float | None
    ignore_index: int | None
    supervision: tuple[float, ...] | None
    validate: bool | None
