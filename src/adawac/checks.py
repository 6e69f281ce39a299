"""What is wrong with a call, said once and clearly.

Shapes are checked in every step, for that costs nothing. Values (labels, indices) are on the device, and looking at
them makes the host wait: that happens in the first step, and in every one with `validate=True`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from adawac.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from adawac.algorithm import Criterion

__all__ = ["batch", "positive", "same_samples"]


def positive(name: str, value: int) -> int:
    """Return a count that is at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"Expected {name} to be a whole number ≥ 1, but got {value!r}. Give len(train_set).")
    return value


def same_samples(saved: Tensor | None, own: Tensor) -> None:
    """Check that saved weights belong to as many samples as there are."""
    if saved is not None and saved.shape != own.shape:
        raise ShapeError(
            f"Expected the weights of {len(own)} samples, but the state dict has those of {len(saved)}. "
            "A row belongs to one sample: carry the weights over by sample id, or build the criterion with "
            f"num_samples={len(saved)}."
        )


def batch(
    criterion: "Criterion",
    logits: Tensor | Sequence[Tensor],
    labels: Tensor | Sequence[Tensor],
    features: Tensor | Sequence[tuple[float, Tensor]] | None,
    index: Tensor,
    views: Tensor | None,
    *,
    values: bool,
) -> None:
    """Check a call of the criterion; `values` looks into labels and index, too."""
    _index(index, criterion.weights.log_odds.shape[0], values)
    scales = [logits] if isinstance(logits, Tensor) else list(logits)
    targets = [labels] * len(scales) if isinstance(labels, Tensor) else list(labels)
    weights = criterion.objective.supervision
    if not scales or len(targets) != len(scales) or (weights is not None and len(weights) != len(scales)):
        raise ShapeError(
            f"Expected as many label maps and supervision weights as logits, but got {len(scales)} logits, "
            f"{len(targets)} label maps and the weights {weights}. Give one label map for all, or one for each."
        )
    for level, (one, target) in enumerate(zip(scales, targets, strict=True)):
        resized = isinstance(labels, Tensor) and level > 0
        _supervised(one, target, len(index), criterion, values and not resized, resized)
    if criterion.uses_latents:
        _latents(features, len(index), views, criterion)


def _index(index: Tensor, num_samples: int, values: bool) -> None:
    if index.dim() != 1 or index.dtype not in (torch.int64, torch.int32) or len(index) == 0:
        raise ShapeError(
            f"Expected index to be a vector of integers, one for each sample of the batch, but got {_like(index)}."
        )
    if values and (int(index.min()) < 0 or int(index.max()) >= num_samples):
        raise ShapeError(
            f"Expected every index in 0..{num_samples - 1} (num_samples={num_samples}), but got values from "
            f"{int(index.min())} to {int(index.max())}. Give each sample's row in the training set."
        )


def _supervised(logits: Tensor, labels: Tensor, size: int, criterion: "Criterion", values: bool, resized: bool) -> None:
    if logits.dim() < 3 or not logits.is_floating_point() or logits.shape[1] < 2:
        raise ShapeError(
            f"Expected logits (B or 2B, K ≥ 2, *size) of a floating type, but got {_like(logits)}. "
            "A network with one output for foreground needs two: background and foreground."
        )
    if len(logits) not in (size, 2 * size):
        raise ShapeError(
            f"Expected B or 2B rows of logits for the B = {size} samples of index, but got {len(logits)}. "
            "Concatenate the views: torch.cat([view_1, view_2])."
        )
    if criterion.objective.views == "both" and "views" in criterion.fixed and len(logits) == size:
        raise ShapeError(
            f"Expected {2 * size} rows of logits, both views of {size} samples, but got {size}. "
            "This method supervises both views; give both, or take the method baseline."
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ShapeError(f"Expected labels of an integer type, but got {_like(labels)}. Convert them with .long().")
    expected = (len(logits), *logits.shape[2:])
    given = (len(labels), *logits.shape[2:]) if resized and labels.dim() == len(expected) else tuple(labels.shape)
    if given != expected:
        raise ShapeError(
            f"Expected labels {expected} for logits {tuple(logits.shape)}, but got {_like(labels)}. Give class numbers "
            "(not one-hot), a label map for each row of the logits."
        )
    if values:
        ignored = criterion.objective.ignore_index
        wrong = (labels < 0) | (labels >= logits.shape[1])
        if ignored is not None:
            wrong &= labels != ignored
        if bool(wrong.any()):
            raise ShapeError(
                f"Expected labels in 0..{logits.shape[1] - 1} (K = {logits.shape[1]} classes), but got "
                f"{labels[wrong].unique().tolist()[:8]}. Map them to consecutive classes, give the network more "
                "outputs, or name one of them as ignore_index."
            )


def _latents(
    features: Tensor | Sequence[tuple[float, Tensor]] | None, size: int, views: Tensor | None, criterion: "Criterion"
) -> None:
    if features is None or (not isinstance(features, Tensor) and len(features) == 0):
        raise ShapeError(
            f"Expected the latents of both views, for {type(criterion).__name__} compares them, but got none. "
            "Give tap.pop() of an adawac.EncoderTap(model, ...)."
        )
    latents = [features] if isinstance(features, Tensor) else [latent for _, latent in features]
    for latent in latents:
        if not latent.is_floating_point() or latent.dim() < 2 or len(latent) != 2 * size:
            raise ShapeError(
                f"Expected latents of {2 * size} rows, both views of {size} samples, but got {_like(latent)}. "
                "Both views must pass the encoder between two calls of tap.pop()."
            )
        if criterion.objective.aligned:
            _aligned(latent, views)


def _aligned(latent: Tensor, views: Tensor | None) -> None:
    spatial = latent.dim() - 2
    if spatial not in (2, 3):
        raise ShapeError(
            f"Expected latent maps (2B, C, *size) to align, but got {_like(latent)}. Give the tap the tokens' grid: "
            "adawac.EncoderTap(model, name, grid=(14, 14))."
        )
    if views is None or views.shape != (len(latent), spatial, spatial + 1):
        raise ShapeError(
            f"Expected the affine maps of the views, ({len(latent)}, {spatial}, {spatial + 1}), to align latents, "
            f"but got {'none' if views is None else _like(views)}. Give views=, or take aligned=False."
        )


def _like(x: Any) -> str:
    return f"{tuple(x.shape)} of {str(x.dtype).removeprefix('torch.')}" if isinstance(x, Tensor) else repr(type(x))
