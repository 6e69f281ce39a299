"""Scores of every class of a label map, and what an empty mask scores."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from adawac.errors import ShapeError, UnknownNameError, near
from adawac.metrics import masks
from adawac.metrics.masks import checked_labels, checked_spacing, checked_tolerance, same_shape
from adawac.metrics.surfaces import Array, count_voxels, crop, surface_distances

Outcome = Literal["found", "absent", "missed", "invented"]


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
    rule, tolerance = _convention(convention), checked_tolerance(tolerance)
    num_classes = _num_classes(num_classes)
    predicted, truth = same_shape(
        checked_labels("prediction", pred, num_classes), checked_labels("truth", label, num_classes)
    )
    lengths = checked_spacing(spacing, truth.ndim)
    diagonal = float(np.linalg.norm(truth.shape * lengths))
    predicted, truth, lengths = crop(predicted, truth, num_classes, lengths)
    in_pred, in_truth, in_both = (counts.tolist() for counts in count_voxels(predicted, truth, num_classes))
    rows = []
    for index, distances in enumerate(surface_distances(predicted, truth, num_classes, lengths), start=1):
        sizes = in_pred[index], in_truth[index]
        values = _scores(in_both[index], sizes, distances, rule, tolerance, diagonal)
        rows.append(ClassScore(label=index, pred_voxels=sizes[0], truth_voxels=sizes[1], **values))
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
            "hd95": masks.pooled_percentile(*distances),
            "hd95_max_directed": masks.largest_percentile(*distances),
            "assd": masks.pooled_mean(*distances),
            "surface_dice": masks.share_within(*distances, tolerance),
        }
    outcome = "invented" if sizes[0] else "missed" if sizes[1] else "absent"
    similar, far = getattr(rule, outcome)
    far = diagonal if math.isinf(far) else far
    by_distance = dict.fromkeys(("hd95", "hd95_max_directed", "assd"), far)
    return {"outcome": outcome, "dice": similar, "surface_dice": similar, **by_distance}


def _convention(name: str) -> Convention:
    if name not in CONVENTIONS:
        raise UnknownNameError(
            f"Expected the name of a convention, but got {name!r}. Near names: {near(name, CONVENTIONS)}."
        )
    return CONVENTIONS[name]


def _num_classes(number: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 2:
        raise ShapeError(
            f"Expected num_classes to be a whole number ≥ 2, but got {number!r}. Count background, too: 8 organs are 9."
        )
    return int(number)
