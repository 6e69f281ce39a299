"""What is wrong with the arguments of a metric, said once and clearly."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.errors import DataError, ShapeError

__all__ = ["checked_labels", "checked_spacing", "checked_tolerance", "same_shape"]

Array = npt.NDArray[Any]


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
    """Return the length of a voxel along each axis; 1 where none is given."""
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
