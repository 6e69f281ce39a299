"""One case: the prediction of its slices in, scores of the native volume out. No torch here: `scorers` runs it."""

from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from adawac.data.store import CaseInfo, Store
from adawac.metrics import ClassScore, score_volume
from adawac.metrics.surfaces import Array, count_voxels

DistanceUnit = Literal["mm", "voxel"]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How cases are scored.

    Attributes:
        convention: What empty masks score.
        unit: What distances are measured in.
        tolerance: How far a surface may be off for `surface_dice`, in that unit.
    """

    convention: str = "strict"
    unit: DistanceUnit = "mm"
    tolerance: float = 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class CaseResult:
    """The scores of one case.

    Attributes:
        rows: One for each class but background.
        pred, truth, both: (slices, K) pixels of each class; background is not counted.
    """

    rows: list[ClassScore]
    pred: Array
    truth: Array
    both: Array

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, which keeps every bit of a number."""
        counts = {name: getattr(self, name).tolist() for name in ("pred", "truth", "both")}
        return {"rows": [asdict(row) for row in self.rows], **counts}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "CaseResult":
        """Build from the values of `to_dict`."""
        counts = {name: np.array(data[name], dtype=np.int64) for name in ("pred", "truth", "both")}
        return cls(rows=[ClassScore(**row) for row in data["rows"]], **counts)


def score_case(store: Path | str, case: str, prediction: Array, rules: Rules) -> CaseResult:
    """Score the predicted label map of a case.

    Distances are measured on the native volume: on the source's grid if the store was resampled to another spacing,
    else on the stored grid, which then has the same voxels.

    Args:
        store: Folder of the store.
        case: The case's id; it must have a label.
        prediction: (positions, H, W) class indices, as the store cuts the case into slices.
        rules: How to score.
    """
    opened = _open(str(store))
    _, label = opened.stack(case)
    assert label is not None  # only labelled cases are scored
    pred, truth, spacing = _native(opened, case, prediction, label)
    rows = score_volume(
        pred, truth, opened.num_classes, spacing if rules.unit == "mm" else None, rules.convention, rules.tolerance
    )
    counts = [count_voxels(*pair, opened.num_classes) for pair in zip(prediction, label, strict=True)]
    in_pred, in_truth, in_both = (np.array(column) for column in zip(*counts, strict=True))
    return CaseResult(rows=rows, pred=in_pred, truth=in_truth, both=in_both)


def knows_spacing(info: CaseInfo) -> bool:
    """Return whether a case has a voxel size; some formats lose it."""
    return info.native_affine is not None


def pixel_size(store: Store, case: str) -> tuple[float, float]:
    """Return height and width of a pixel of a case's slices, in mm; 1 where they are unknown."""
    spacing = store.case_info(case).spacing
    height, width = (length for axis, length in enumerate(spacing) if axis != store.preprocessing.axis)
    return height, width


def _native(store: Store, case: str, prediction: Array, label: Array) -> tuple[Array, Array, tuple[float, ...]]:
    info, preprocessing = store.case_info(case), store.preprocessing
    if preprocessing.spacing is None:
        return preprocessing.join(prediction), preprocessing.join(label), info.spacing
    affine = None if info.native_affine is None else np.array(info.native_affine)
    undone = preprocessing.undo(preprocessing.join(prediction), info.native_shape, info.native_spacing, affine)
    truth = np.load(store.path / "cases" / case / "native_label.npy", mmap_mode="r", allow_pickle=False)
    return undone, truth, info.native_spacing


_open = cache(Store)  # a worker scores many cases of one store
