"""Metrics of two boolean masks of the same shape, 2D or 3D, and the checks of their arguments."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from adawac.errors import DataError, ShapeError
from adawac.metrics.surfaces import Array, crop, surface_distances


def same_shape(pred: Array, truth: Array) -> tuple[Array, Array]:
    """Return both arrays if they have the same two or three dimensions."""
    if pred.shape != truth.shape:
        raise ShapeError(
            f"Expected prediction and truth of the same shape, but got {pred.shape} and {truth.shape}. "
            "Resample the prediction to the grid of the truth first."
        )
    if truth.ndim not in (2, 3):
        raise ShapeError(
            f"Expected a slice (H, W) or a volume (D, H, W), but got an array of shape {truth.shape}. "
            "Give one case at a time, as a label map, not one-hot."
        )
    return pred, truth


def checked_labels(name: str, labels: npt.ArrayLike, num_classes: int) -> Array:
    """Return a label map whose values are whole numbers in 0..K-1."""
    array = np.asarray(labels)
    if array.dtype.kind not in "iub":
        raise DataError(
            f"Expected whole numbers in the {name}, but got {array.dtype} of shape {array.shape}. Round and convert "
            "the label map first: np.rint(labels).astype(np.uint8)."
        )
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    if low < 0 or high >= num_classes:
        raise DataError(
            f"Expected labels in 0..{num_classes - 1} (num_classes={num_classes}, with background) in the {name}, but "
            f"got values from {low} to {high}. Map the labels to consecutive classes, or give more classes."
        )
    return array


def checked_spacing(spacing: Sequence[float] | None, dimensions: int) -> Array:
    """Return the length of a voxel along each axis; 1 without a spacing."""
    if spacing is None:
        return np.ones(dimensions)
    try:
        lengths = np.asarray(spacing, dtype=np.float64)
    except (TypeError, ValueError):
        lengths = np.full(1, np.nan)
    if lengths.shape != (dimensions,) or not np.isfinite(lengths).all() or lengths.min() <= 0:
        raise ShapeError(
            f"Expected a spacing of {dimensions} positive numbers, one for each axis in the array's order, but got "
            f"{spacing!r}. Give the voxel's size in millimetres, or None to measure in voxels."
        )
    return lengths


def checked_tolerance(tolerance: float) -> float:
    """Return a tolerance of the surface Dice, a number that is not negative."""
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < math.inf:
        raise ShapeError(
            f"Expected a tolerance of 0 or more, in the unit of the spacing, but got {tolerance!r}. "
            "Give, for example, 1.0."
        )
    return float(tolerance)


def dice(pred: npt.ArrayLike, truth: npt.ArrayLike) -> float:
    """Return the Dice similarity coefficient, 2|P ∩ T| / (|P| + |T|); NaN for two empty masks."""
    pred, truth = _masks(pred, truth)
    total = np.count_nonzero(pred) + np.count_nonzero(truth)
    return float(2 * np.count_nonzero(pred & truth) / total) if total else math.nan


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


def pooled_percentile(forward: Array, back: Array) -> float:
    """Return medpy's HD95 from the distances of both directions."""
    return float(np.percentile(np.concatenate([forward, back]), 95)) if len(forward) and len(back) else math.nan


def largest_percentile(forward: Array, back: Array) -> float:
    """Return MONAI's HD95 from the distances of both directions."""
    return float(max(np.percentile(forward, 95), np.percentile(back, 95))) if len(forward) and len(back) else math.nan


def pooled_mean(forward: Array, back: Array) -> float:
    """Return the ASSD from the distances of both directions."""
    total = forward.sum() + back.sum()
    return float(total / (len(forward) + len(back))) if len(forward) and len(back) else math.nan


def share_within(forward: Array, back: Array, tolerance: float) -> float:
    """Return the surface Dice from the distances of both directions."""
    limit = tolerance * (1 + 1e-9)  # 3 · 0.1 mm is within 0.3 mm, whatever the rounding
    total = len(forward) + len(back)
    within = np.count_nonzero(forward <= limit) + np.count_nonzero(back <= limit)
    return float(within / total) if total else math.nan


def _both_directions(pred: npt.ArrayLike, truth: npt.ArrayLike, spacing: Sequence[float] | None) -> tuple[Array, Array]:
    pred, truth = _masks(pred, truth)
    pred, truth, lengths = crop(pred, truth, 2, checked_spacing(spacing, pred.ndim))
    return next(surface_distances(pred, truth, 2, lengths))


def _masks(pred: npt.ArrayLike, truth: npt.ArrayLike) -> tuple[Array, Array]:
    pred, truth = np.asarray(pred), np.asarray(truth)
    for name, mask in (("prediction", pred), ("truth", truth)):
        if mask.dtype != np.bool_:
            raise ShapeError(
                f"Expected a boolean mask as {name}, but got {mask.dtype} of shape {mask.shape}. Give one class of a "
                "label map, (labels == 1), or score all of them with adawac.metrics.score_volume."
            )
    return same_shape(pred, truth)
