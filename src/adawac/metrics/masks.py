"""Dice, Hausdorff and surface distances of two masks, and of every class of two label maps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from adawac.errors import DataError, ShapeError, check_known
from adawac.metrics.surfaces import Array, count_voxels, crop, surface_distances

Outcome = Literal["found", "absent", "missed", "invented"]


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
    return _pooled_percentile(*_both_directions(pred, truth, spacing))


def hd95_max_directed(pred: npt.ArrayLike, truth: npt.ArrayLike, spacing: Sequence[float] | None = None) -> float:
    """Return the larger of the two directed 95th percentiles, which MONAI calls HD95; arguments as in `hd95`."""
    return _largest_percentile(*_both_directions(pred, truth, spacing))


def assd(pred: npt.ArrayLike, truth: npt.ArrayLike, spacing: Sequence[float] | None = None) -> float:
    """Return the average symmetric surface distance, the mean over both directions; arguments as in `hd95`."""
    return _pooled_mean(*_both_directions(pred, truth, spacing))


def surface_dice(
    pred: npt.ArrayLike, truth: npt.ArrayLike, tolerance: float, spacing: Sequence[float] | None = None
) -> float:
    """Return the normalised surface Dice: the share of both surfaces within `tolerance` of the other.

    Surfaces are counted in voxels, as in MONAI. Other arguments as in `hd95`; NaN for two empty masks, 0 for one.
    """
    return _share_within(*_both_directions(pred, truth, spacing), checked_tolerance(tolerance))


def _pooled_percentile(forward: Array, back: Array) -> float:
    """Return medpy's HD95 from the distances of both directions."""
    return float(np.percentile(np.concatenate([forward, back]), 95)) if len(forward) and len(back) else math.nan


def _largest_percentile(forward: Array, back: Array) -> float:
    """Return MONAI's HD95 from the distances of both directions."""
    return float(max(np.percentile(forward, 95), np.percentile(back, 95))) if len(forward) and len(back) else math.nan


def _pooled_mean(forward: Array, back: Array) -> float:
    """Return the ASSD from the distances of both directions."""
    total = forward.sum() + back.sum()
    return float(total / (len(forward) + len(back))) if len(forward) and len(back) else math.nan


def _share_within(forward: Array, back: Array, tolerance: float) -> float:
    """Return the surface Dice from the distances of both directions."""
    limit = tolerance * (1 + 1e-9)  # 3 · 0.1 mm is within 0.3 mm, whatever the rounding
    total = len(forward) + len(back)
    within = np.count_nonzero(forward <= limit) + np.count_nonzero(back <= limit)
    return float(within / total) if total else math.nan


def _both_directions(pred: npt.ArrayLike, truth: npt.ArrayLike, spacing: Sequence[float] | None) -> tuple[Array, Array]:
    pred, truth = _masks(pred, truth)
    pred, truth, lengths = crop(pred, truth, 2, _spacing(spacing, pred.ndim))
    return next(surface_distances(pred, truth, 2, lengths))


def _masks(pred: npt.ArrayLike, truth: npt.ArrayLike) -> tuple[Array, Array]:
    pred, truth = np.asarray(pred), np.asarray(truth)
    for name, mask in (("prediction", pred), ("truth", truth)):
        if mask.dtype != np.bool_:
            raise ShapeError(
                f"Expected a boolean mask as {name}, but got {mask.dtype} of shape {mask.shape}. Give one class of a "
                "label map, (labels == 1), or score all of them with adawac.metrics.score_volume."
            )
    return _same_shape(pred, truth)


# -- label maps --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Convention:
    """What a class scores where prediction, truth or both are empty.

    Each outcome has two numbers: what measures of overlap score (`dice`, `surface_dice`), and what distances score
    (`hd95`, `hd95_max_directed`, `assd`). An infinite distance stands for the volume's diagonal.

    Attributes:
        absent: In neither.
        missed: In the truth alone.
        invented: In the prediction alone.
    """

    absent: tuple[float, float]
    missed: tuple[float, float]
    invented: tuple[float, float]


CONVENTIONS: Mapping[str, Convention] = MappingProxyType(
    {
        "strict": Convention(absent=(1.0, 0.0), missed=(0.0, math.inf), invented=(0.0, math.inf)),
        "adawac": Convention(absent=(1.0, 0.0), missed=(0.0, 0.0), invented=(0.0, 0.0)),
        "transunet": Convention(absent=(0.0, 0.0), missed=(0.0, 0.0), invented=(1.0, 0.0)),
        # nnU-Net's summary.json leaves out what is in neither; it has no distances.
        "nnunet": Convention(absent=(math.nan,) * 2, missed=(0.0, math.inf), invented=(0.0, math.inf)),
        "nan": Convention(absent=(math.nan,) * 2, missed=(math.nan,) * 2, invented=(math.nan,) * 2),
    }
)


@dataclass(frozen=True, kw_only=True)
class ClassScore:
    """The scores of one class in one case.

    Attributes:
        label: The class.
        outcome: `found` if it is in truth and prediction, `absent` if in neither, `missed` if in the truth alone,
            `invented` if in the prediction alone. Whatever is not `found` was scored by convention.
        dice: Dice similarity coefficient.
        hd95: 95 % Hausdorff distance as in medpy.
        hd95_max_directed: 95 % Hausdorff distance as in MONAI.
        assd: Average symmetric surface distance.
        surface_dice: Normalised surface Dice at the tolerance.
        pred_voxels: Size of the class in the prediction.
        truth_voxels: Size of the class in the truth.
        both_voxels: Size of what is the class in both.
    """

    label: int
    outcome: Outcome
    dice: float
    hd95: float
    hd95_max_directed: float
    assd: float
    surface_dice: float
    pred_voxels: int
    truth_voxels: int
    both_voxels: int


def score_volume(
    pred: npt.ArrayLike,
    label: npt.ArrayLike,
    num_classes: int,
    spacing: Sequence[float] | None = None,
    convention: str = "strict",
    tolerance: float = 1.0,
) -> list[ClassScore]:
    """Score every class but background.

    Args:
        pred: Predicted label map, (H, W) or (D, H, W), whole numbers in 0..K-1.
        label: True label map of the same shape.
        num_classes: K, with background.
        spacing: Length of a voxel along each axis, in the arrays' order; None measures in voxels.
        convention: What empty masks score: a name in `CONVENTIONS`.
        tolerance: How far a surface may be off for `surface_dice`, in the unit of the spacing.

    Returns:
        One row for each of the classes 1..K-1.
    """
    rule, tolerance = checked_convention(convention), checked_tolerance(tolerance)
    if isinstance(num_classes, bool) or not isinstance(num_classes, int | np.integer) or num_classes < 2:
        raise ShapeError(
            f"Expected num_classes to be a whole number ≥ 2, but got {num_classes!r}. Count background, too: 8 organs "
            "are 9."
        )
    num_classes = int(num_classes)
    predicted, truth = _same_shape(_labels("prediction", pred, num_classes), _labels("truth", label, num_classes))
    lengths = _spacing(spacing, truth.ndim)
    diagonal = float(np.linalg.norm(truth.shape * lengths))
    predicted, truth, lengths = crop(predicted, truth, num_classes, lengths)
    in_pred, in_truth, in_both = (counts.tolist() for counts in count_voxels(predicted, truth, num_classes))
    rows = []
    for index, distances in enumerate(surface_distances(predicted, truth, num_classes, lengths), start=1):
        sizes = in_pred[index], in_truth[index]
        values = _scores(in_both[index], sizes, distances, rule, tolerance, diagonal)
        counts = {"pred_voxels": sizes[0], "truth_voxels": sizes[1], "both_voxels": in_both[index]}
        rows.append(ClassScore(label=index, **counts, **values))
    return rows


def _scores(
    overlap: int,
    sizes: tuple[int, int],
    distances: tuple[Array, Array],
    rule: Convention,
    tolerance: float,
    diagonal: float,
) -> dict[str, Any]:
    if all(sizes):
        return {
            "outcome": "found",
            "dice": 2.0 * overlap / sum(sizes),
            "hd95": _pooled_percentile(*distances),
            "hd95_max_directed": _largest_percentile(*distances),
            "assd": _pooled_mean(*distances),
            "surface_dice": _share_within(*distances, tolerance),
        }
    outcome = "invented" if sizes[0] else "missed" if sizes[1] else "absent"
    similar, far = getattr(rule, outcome)
    far = diagonal if math.isinf(far) else far
    by_distance = dict.fromkeys(("hd95", "hd95_max_directed", "assd"), far)
    return {"outcome": outcome, "dice": similar, "surface_dice": similar, **by_distance}


def checked_convention(name: str) -> Convention:
    """Return the convention of a name."""
    check_known(name, CONVENTIONS, "the name of a convention")
    return CONVENTIONS[name]


# -- arguments ---------------------------------------------------------------------------------------------------------


def _same_shape(pred: Array, truth: Array) -> tuple[Array, Array]:
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


def _labels(name: str, labels: npt.ArrayLike, num_classes: int) -> Array:
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


def _spacing(spacing: Sequence[float] | None, dimensions: int) -> Array:
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
