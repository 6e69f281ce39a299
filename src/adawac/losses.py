"""Per-sample losses: pure functions that return one value a sample, in float32 or better."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from adawac.config.objective_options import Denominator, Rho
from adawac.kernels.pixels import can_sum, class_sums


class PixelSums(NamedTuple):
    """All that cross-entropy and Dice need to know of the pixels, from one log-softmax."""

    ell_ce: Float[Tensor, " B"]
    overlap: Float[Tensor, "B K"]
    mass: Float[Tensor, "B K"]
    labelled: Float[Tensor, "B K"]


def at_least_float32(x: Tensor) -> Tensor:
    """Return `x` in float32, or in float64 if it is that already."""
    return x if x.dtype == torch.float64 else x.float()


def pixel_sums(
    logits: Float[Tensor, "B K *S"],
    labels: Integer[Tensor, "B *S"],
    *,
    denominator: Denominator = "l1",
    ignore_index: int | None = None,
) -> PixelSums:
    """Return each sample's mean cross-entropy (Eq. 2) and the sums that its Dice loss (Appendix C) consists of.

    With p the probabilities and q the one-hot labels of a class: overlap = Σ pq, labelled = Σ q, and mass = Σ p, or
    Σ p² for `denominator="squared"`. Pixels labelled `ignore_index` count nowhere; a sample of no others has CE 0.
    """
    logits, labels = logits.flatten(2), labels.flatten(1)
    if can_sum(logits, labels):
        sums = class_sums(logits, labels, squared=denominator == "squared", ignore_index=ignore_index)
        log_p_sums, overlap, mass, labelled = sums.unbind(1)
        pixels = labels.shape[1] if ignore_index is None else labelled.sum(1).clamp_min(1)
        return PixelSums(ell_ce=-log_p_sums.sum(1) / pixels, overlap=overlap, mass=mass, labelled=labelled.detach())
    return _pixel_sums_by_torch(logits, labels, denominator, ignore_index)


def _pixel_sums_by_torch(
    logits: Tensor, labels: Tensor, denominator: Denominator, ignore_index: int | None
) -> PixelSums:
    labels = labels.long()
    log_p = at_least_float32(logits).log_softmax(1)
    pixels: Tensor | int = labels.shape[1]
    valid = None
    if ignore_index is not None:
        valid = labels != ignore_index
        labels = labels.where(valid, 0)
        pixels = valid.sum(1).clamp_min(1)
    # Gather, not nll_loss, which has no deterministic CUDA version for images.
    log_p_true = log_p.gather(1, labels.unsqueeze(1)).squeeze(1)
    p_true, ones = log_p_true.exp(), torch.ones_like(log_p_true)
    p = (log_p if denominator == "l1" else 2 * log_p).exp()
    if valid is not None:
        log_p_true, p_true, ones = (x.masked_fill(~valid, 0) for x in (log_p_true, p_true, ones))
        p = p.masked_fill(~valid.unsqueeze(1), 0)
    return PixelSums(
        ell_ce=-log_p_true.sum(1) / pixels,
        overlap=_sums_by_class(p_true, labels, logits.shape[1]),
        mass=p.sum(2),
        labelled=_sums_by_class(ones, labels, logits.shape[1]),
    )


def _sums_by_class(values: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return for each sample the sum of its pixels' values, class by class: (B, N) -> (B, K)."""
    if not values.is_cpu:  # a GPU's threads would all queue for the few sums; comparing is five times faster there
        members = labels.unsqueeze(1) == torch.arange(classes, device=labels.device).unsqueeze(1)
        return torch.where(members, values.unsqueeze(1), 0).sum(2)
    return values.new_zeros(len(values), classes).scatter_add(1, labels, values)


def dice_of(
    overlap: Float[Tensor, "*any K"],
    mass: Float[Tensor, "*any K"],
    labelled: Float[Tensor, "*any K"],
    smooth: float,
) -> Float[Tensor, "*any"]:
    """Return 1 − mean over classes of (2·overlap + smooth) / (mass + labelled + smooth) (Appendix C).

    Where every pixel is ignored there is no loss.
    """
    total = mass + labelled
    score = (2 * overlap + smooth) / (total + smooth).clamp_min(torch.finfo(total.dtype).tiny)
    return (1 - score.mean(-1)).where(total.sum(-1) > 0, 0)


def cross_entropy(
    logits: Float[Tensor, "B K *S"], labels: Integer[Tensor, "B *S"], ignore_index: int | None = None
) -> Float[Tensor, " B"]:
    """Return each sample's cross-entropy, averaged over its pixels (Eq. 2).

    Examples:
        >>> cross_entropy(torch.zeros(2, 4, 8, 8), torch.zeros(2, 8, 8, dtype=torch.int64))  # log 4
        tensor([1.3863, 1.3863])
    """
    return pixel_sums(logits, labels, ignore_index=ignore_index).ell_ce


def dice_loss(
    logits: Float[Tensor, "B K *S"],
    labels: Integer[Tensor, "B *S"],
    *,
    denominator: Denominator = "l1",
    smooth: float = 0.0,
    ignore_index: int | None = None,
) -> Float[Tensor, " B"]:
    """Return each sample's Dice loss over all K classes, background included (Appendix C).

    Examples:
        >>> labels = torch.tensor([[[0, 1], [1, 0]]])
        >>> sure = 100.0 * torch.nn.functional.one_hot(labels).movedim(-1, 1)
        >>> dice_loss(sure, labels), dice_loss(-sure, labels)
        (tensor([0.]), tensor([1.]))
    """
    _, overlap, mass, labelled = pixel_sums(logits, labels, denominator=denominator, ignore_index=ignore_index)
    return dice_of(overlap, mass, labelled, smooth)


def consistency(
    first: Float[Tensor, "B *L"],
    second: Float[Tensor, "B *L"],
    rho: Rho = "rms",
    visible: Bool[Tensor, "B 1 *S"] | None = None,
) -> Float[Tensor, " B"]:
    """Return ρ(z₁, z₂) for the latents of each sample's two views (Eq. 3, without λ).

    Args:
        first: latents of the first views: maps (B, C, h, w), volumes, token sequences (B, N, C), or vectors.
        second: latents of the second views.
        rho: `euclidean` is ‖z₁ − z₂‖₂; `rms` the same over √(entries of z), which is a metric too and does not grow
            with the latent (the paper's Example has 1/√d, for d pixels); `mse` its square, as in the released code;
            `cosine` is 1 − cos(z₁, z₂); `local-cosine` its mean over the locations of the latent, at each of which the
            channels are one vector, so that neither bright locations nor large features count more.
        visible: positions to compare; the others count nowhere.

    Examples:
        >>> consistency(torch.ones(2, 8, 4, 4), torch.tensor([1.0, 3.0]).view(2, 1, 1, 1).expand(2, 8, 4, 4))
        tensor([0., 2.])
    """
    first, second = at_least_float32(first), at_least_float32(second)
    entries: Tensor | float = math.prod(first.shape[1:])
    if visible is not None:
        first, second = first * visible, second * visible
        entries = (visible.flatten(1).sum(1) * first.shape[1]).clamp_min(1)
    if rho == "cosine":
        return 1 - F.cosine_similarity(first.flatten(1), second.flatten(1), dim=1)
    if rho == "local-cosine":
        channels = -1 if first.dim() == 3 else 1  # token sequences have theirs last
        distances = 1 - F.cosine_similarity(first, second, dim=channels).flatten(1)
        if visible is None:
            return distances.mean(1)
        seen = visible.flatten(1)
        return (distances * seen).sum(1) / seen.sum(1).clamp_min(1)
    difference, axes = first - second, tuple(range(1, first.dim()))  # not flattened: it may be channels-last
    if rho == "mse":
        return difference.square().sum(axes) / entries
    # Its gradient is 0, not NaN, where the views agree.
    distance: Tensor = torch.linalg.vector_norm(difference, dim=axes)
    return distance / entries**0.5 if rho == "rms" else distance


def undo_view(
    latent: Float[Tensor, "B C *S"], view: Float[Tensor, "B d e"]
) -> tuple[Float[Tensor, "B C *S"], Bool[Tensor, "B 1 *S"]]:
    """Return the latent of a view, warped back to where the unaugmented image has it, and where it is known.

    `view` is the view's affine map in the convention of `torch.nn.functional.affine_grid` (`align_corners=False`): the
    view shows at u what the image has at `view @ [u, 1]`.
    """
    bottom = torch.eye(view.shape[2], dtype=view.dtype, device=view.device)[-1:].expand(len(view), 1, -1)
    inverse = torch.linalg.inv_ex(torch.cat([view, bottom], 1)).inverse[:, :-1]  # inv_ex does not synchronise
    latent = at_least_float32(latent)
    grid = F.affine_grid(inverse.to(latent.dtype), list(latent.shape), align_corners=False)
    visible = (grid.abs() <= 1).all(-1).unsqueeze(1)
    if latent.is_cuda and torch.are_deterministic_algorithms_enabled():
        return _read_in_order(latent, grid), visible
    return F.grid_sample(latent, grid, align_corners=False), visible


def _read_in_order(latent: Float[Tensor, "B C *S"], grid: Float[Tensor, "B *S d"]) -> Float[Tensor, "B C *S"]:
    """Return what `grid_sample` does, whose gradient on a GPU adds up in any order; that of `gather` need not."""
    sides = latent.shape[2:]
    position = [((at + 1) * side - 1) / 2 for at, side in zip(grid.flip(-1).unbind(-1), sides, strict=True)]
    flat, read = latent.flatten(2), torch.zeros_like(latent)
    for corner in itertools.product((0, 1), repeat=len(sides)):
        index, weight = torch.zeros_like(position[0], dtype=torch.int64), torch.ones_like(position[0])
        for at, step, side in zip(position, corner, sides, strict=True):
            neighbour = at.floor() + step
            weight = weight * (1 - (at - neighbour).abs()) * ((neighbour >= 0) & (neighbour < side))
            index = index * side + neighbour.clamp(0, side - 1).long()
        values = flat.gather(2, index.flatten(1).unsqueeze(1).expand(-1, flat.shape[1], -1)).view_as(latent)
        read = read + values * weight.unsqueeze(1)
    return read


def label_dense(
    labels: Integer[Tensor, "B *S"], threshold: float = 0.0, ignore_index: int | None = None
) -> Bool[Tensor, " B"]:
    """Tell which samples are label-dense: more than `threshold` of their pixels are foreground (not class 0).

    This is the definition for torch, and `adawac.data.cases.is_label_sparse` is the same one for NumPy; nothing else
    decides it. Ignored pixels are not foreground, but count in the share's denominator.

    Examples:
        >>> label_dense(torch.tensor([[[0, 0], [0, 0]], [[0, 2], [0, 0]]]))
        tensor([False,  True])
    """
    labels = labels.flatten(1)
    foreground = labels != 0
    if ignore_index is not None:
        foreground = foreground & (labels != ignore_index)
    return foreground.sum(1) > threshold * labels.shape[1]


def resized_labels(labels: Integer[Tensor, "B *S"], size: Sequence[int]) -> Integer[Tensor, "B *s"]:
    """Return the labels at another resolution, by nearest neighbour (deep supervision)."""
    if tuple(size) == tuple(labels.shape[1:]):
        return labels
    return F.interpolate(labels.unsqueeze(1).double(), tuple(size), mode="nearest-exact").squeeze(1).to(labels.dtype)
