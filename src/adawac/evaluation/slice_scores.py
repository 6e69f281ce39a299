"""Label-sparse and label-dense slices apart: what a network finds where nothing is, and how well where something is.

On a label-sparse slice the Dice coefficient is undefined, or 0 however little was falsely found. So these slices are
counted instead: on how many of them the network finds a class, and how large that is. On label-dense slices the Dice
coefficient is taken slice by slice.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

SLICE_METRICS = ("dense_dice", "sparse_found", "sparse_area")
"""Rows of a scores file about a case's slices; see `SliceSummary`."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Slices:
    """What was found on each slice.

    Attributes:
        id: (n,) the samples' ids.
        case: (n,) the cases' ids.
        sparse: (n,) whether a slice is label-sparse.
        pred, truth, both: (n, K) pixels of each class in the prediction, in the truth, and in both at once.
        area: (n,) area of a pixel in mm², or 1.
        class_names: The classes, background first.
    """

    id: Array
    case: Array
    sparse: npt.NDArray[np.bool_]
    pred: Array
    truth: Array
    both: Array
    area: npt.NDArray[np.float64]
    class_names: tuple[str, ...]

    @property
    def dice(self) -> npt.NDArray[np.float64]:
        """(n, K) Dice coefficient of each class on each slice; NaN where it is neither there nor found."""
        sizes = (self.pred + self.truth).astype(np.float64)
        dice = np.full(sizes.shape, np.nan)
        np.divide(2.0 * self.both, sizes, out=dice, where=sizes > 0)
        dice[:, 0] = np.nan
        return dice

    @property
    def mean_dice(self) -> npt.NDArray[np.float64]:
        """(n,) mean over the classes that are there or were found; NaN on a slice that rightly has none."""
        return _row_means(self.dice)

    def of_case(self, case: str) -> "Slices":
        """Return the slices of one case."""
        return self._take(self.case == case)

    def values(self, label: int) -> dict[str, float]:
        """Return the slice metrics of one class."""
        summary = _of_class(self, label)
        share = summary.sparse_found / summary.sparse_slices if summary.sparse_slices else math.nan
        return dict(zip(SLICE_METRICS, (summary.dense_dice, share, summary.sparse_area), strict=True))

    def _take(self, rows: Array) -> "Slices":
        names = ("id", "case", "sparse", "pred", "truth", "both", "area")
        return Slices(class_names=self.class_names, **{name: getattr(self, name)[rows] for name in names})


@dataclass(frozen=True, kw_only=True)
class SliceSummary:
    """Slices of one class, or of all.

    Attributes:
        label: The class; None for all.
        class_name: Its name; `any` for all.
        dense_slices: Label-dense slices on which the class is there or was found.
        dense_dice: Mean of the Dice coefficient over these; for all classes, of each slice's mean over its classes.
        dense_std: Standard deviation of the same.
        sparse_slices: Label-sparse slices.
        sparse_found: How many of these the class was falsely found on.
        sparse_area: Mean falsely found area over all label-sparse slices, in mm² or pixels.
    """

    label: int | None
    class_name: str
    dense_slices: int
    dense_dice: float
    dense_std: float
    sparse_slices: int
    sparse_found: int
    sparse_area: float


def join_slices(parts: Sequence[Slices]) -> Slices:
    """Put the slices of several cases together."""
    names = ("id", "case", "sparse", "pred", "truth", "both", "area")
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Slices(class_names=parts[0].class_names, **columns)


def summarise_slices(slices: Slices) -> list[SliceSummary]:
    """Return one summary for each class, and one for all."""
    return list(_summaries(slices))


def _summaries(slices: Slices) -> Iterator[SliceSummary]:
    for label in range(1, len(slices.class_names)):
        yield _of_class(slices, label)
    found = slices.pred[slices.sparse, 1:].sum(axis=1)
    yield _summary(None, "any", slices.mean_dice[~slices.sparse], found, slices.area[slices.sparse])


def _of_class(slices: Slices, label: int) -> SliceSummary:
    found = slices.pred[slices.sparse, label]
    dice = slices.dice[~slices.sparse, label]
    return _summary(label, slices.class_names[label], dice, found, slices.area[slices.sparse])


def _summary(label: int | None, name: str, dice: Array, found: Array, area: Array) -> SliceSummary:
    known = dice[~np.isnan(dice)]
    return SliceSummary(
        label=label,
        class_name=name,
        dense_slices=len(known),
        dense_dice=float(known.mean()) if len(known) else math.nan,
        dense_std=float(known.std(ddof=1)) if len(known) > 1 else math.nan,
        sparse_slices=len(found),
        sparse_found=int((found > 0).sum()),
        sparse_area=float((found * area).mean()) if len(found) else math.nan,
    )


def _row_means(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    known = ~np.isnan(values)
    means = np.full(len(values), np.nan)
    np.divide(np.where(known, values, 0.0).sum(axis=1), known.sum(axis=1), out=means, where=known.any(axis=1))
    return means
