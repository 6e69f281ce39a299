"""Metrics of two boolean masks of the same shape, 2D or 3D.

Distances are in voxels, or in the unit of `spacing` (millimetres). What a definition leaves open is NaN: a distance to
an empty mask, the overlap of two. What such a case scores is a convention; `adawac.metrics.score_volume` takes one.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.errors import ShapeError
from adawac.metrics.checks import checked_spacing, checked_tolerance, same_shape
from adawac.metrics.surfaces import crop, surface_distances

__all__ = ["assd", "dice", "hd95", "hd95_max_directed", "surface_dice"]

Array = npt.NDArray[Any]


def dice(pred: npt.ArrayLike, truth: npt.ArrayLike) -> float:
    """Return the Dice similarity coefficient, 2|P ∩ T| / (|P| + |T|); NaN for two empty masks."""
    one, other = _masks(pred, truth)
    total = np.count_nonzero(one) + np.count_nonzero(other)
    return float(2 * np.count_nonzero(one & other) / total) if total else math.nan


def hd95(pred: npt.ArrayLike, truth: npt.ArrayLike, spacing: Sequence[float] | None = None) -> float:
    """Return the 95 % Hausdorff distance as medpy defines it: one percentile of the distances of both directions.

    Args:
        pred: Boolean mask.
        truth: Boolean mask of the same shape.
        spacing: Length of a voxel along each axis; None measures in voxels.

    Returns:
        The distance, NaN if a mask is empty.
    """
    return pooled_percentile(*_both_directions(pred, truth, spacing))


def hd95_max_directed(pred: npt.ArrayLike, truth: npt.ArrayLike, spacing: Sequence[float] | None = None) -> float:
    """Return the larger of the two directed 95th percentiles, which MONAI calls HD95; arguments as in `hd95`."""
    return largest_percentile(*_both_directions(pred, truth, spacing))


def assd(pred: npt.ArrayLike, truth: npt.ArrayLike, spacing: Sequence[float] | None = None) -> float:
    """Return the average symmetric surface distance, the mean over both directions; arguments as in `hd95`."""
    return pooled_mean(*_both_directions(pred, truth, spacing))


def surface_dice(
    pred: npt.ArrayLike, truth: npt.ArrayLike, tolerance: float, spacing: Sequence[float] | None = None
) -> float:
    """Return the normalised surface Dice: the share of both surfaces within `tolerance` of the other.

    Surfaces are counted in voxels, as in MONAI. Other arguments as in `hd95`; NaN for two empty masks, 0 for one.
    """
    return share_within(*_both_directions(pred, truth, spacing), checked_tolerance(tolerance))


def pooled_percentile(there: Array, back: Array) -> float:
    """Return medpy's HD95 from the distances of both directions."""
    return float(np.percentile(np.concatenate([there, back]), 95)) if len(there) and len(back) else math.nan


def largest_percentile(there: Array, back: Array) -> float:
    """Return MONAI's HD95 from the distances of both directions."""
    return float(max(np.percentile(there, 95), np.percentile(back, 95))) if len(there) and len(back) else math.nan


def pooled_mean(there: Array, back: Array) -> float:
    """Return the ASSD from the distances of both directions."""
    return float((there.sum() + back.sum()) / (len(there) + len(back))) if len(there) and len(back) else math.nan


def share_within(there: Array, back: Array, tolerance: float) -> float:
    """Return the surface Dice from the distances of both directions."""
    limit = tolerance * (1 + 1e-9)  # 3 · 0.1 mm is within 0.3 mm, whatever the rounding
    total = len(there) + len(back)
    within = np.count_nonzero(there <= limit) + np.count_nonzero(back <= limit)
    return float(within / total) if total else math.nan


def _both_directions(pred: npt.ArrayLike, truth: npt.ArrayLike, spacing: Sequence[float] | None) -> tuple[Array, Array]:
    one, other = _masks(pred, truth)
    one, other, lengths = crop(one, other, 2, checked_spacing(spacing, one.ndim))
    return next(surface_distances(one, other, 2, lengths))


def _masks(pred: npt.ArrayLike, truth: npt.ArrayLike) -> tuple[Array, Array]:
    one, other = np.asarray(pred), np.asarray(truth)
    for name, mask in (("prediction", one), ("truth", other)):
        if mask.dtype != np.bool_:
            raise ShapeError(
                f"Expected a boolean mask as {name}, but got {mask.dtype} of shape {mask.shape}. Give one class of a "
                "label map, (labels == 1), or score all of them with adawac.metrics.score_volume."
            )
    return same_shape(one, other)
