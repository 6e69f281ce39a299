"""One case: the prediction of its slices in, scores of the native volume out. No torch here: `scorers` runs it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from adawac.data.cases import IGNORED, is_label_sparse, leave_out_ignored
from adawac.data.store import Store
from adawac.errors import MissingFileError
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
class SliceCounts:
    """What is on the slices of one case.

    Attributes:
        pred, truth, both: (slices, K) pixels of each class; background is not counted.
        sparse: (slices,) whether a slice is label-sparse.
        area: Of a pixel in mm², or 1.
    """

    pred: Array
    truth: Array
    both: Array
    sparse: npt.NDArray[np.bool_]
    area: float


@dataclass(frozen=True, kw_only=True, eq=False)
class CaseResult(SliceCounts):
    """The scores of one case.

    Attributes:
        rows: One for each class but background.
        volume: Of a voxel in ml, or 1.
    """

    rows: list[ClassScore]
    volume: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Maps:
    """The two label maps of a case, with ignored voxels in the truth, as volumes and as slices.

    Attributes:
        pred, truth: Volumes, on the grid on which distances are measured.
        pred_slices, truth_slices: (slices, H, W); of another grid where the store was resampled.
        spacing: Voxel size of the volumes.
        pixel: Height and width of a pixel of the slices.
        num_classes: K, with background.
        regions: Classes that are scored together, each region as one; empty where classes are scored.
    """

    pred: Array
    truth: Array
    pred_slices: Array
    truth_slices: Array
    spacing: tuple[float, ...]
    pixel: tuple[float, ...]
    num_classes: int
    regions: tuple[tuple[int, ...], ...] = ()


def score_case(store: Path | str, case: str, prediction: Array, rules: Rules) -> CaseResult:
    """Score the predicted label map of a case.

    Distances are measured on the native volume: on the source's grid if the store was resampled to another spacing,
    else on the stored grid, which then has the same voxels. Ignored ones are background in both maps.

    Args:
        store: Folder of the store.
        case: The case's id; it must have a label.
        prediction: (positions, H, W) class indices, as the store cuts the case into slices.
        rules: How to score.
    """
    record = Path(store) / "store.json"
    opened = _open(Path(store), record.stat().st_mtime_ns if record.is_file() else 0)
    _, label = opened.stack(case)
    assert label is not None  # only labelled cases are scored
    pred, truth, spacing = _native(opened, case, prediction, label)
    if opened.task.of_pictures and len(pred) == 1:  # its outline is its surface, not every pixel of a single slice
        pred, truth, spacing = pred[0], truth[0], spacing[1:]
    maps = Maps(
        pred=pred,
        truth=truth,
        pred_slices=prediction,
        truth_slices=label,
        spacing=spacing,
        pixel=pixel_size(opened, case),
        num_classes=opened.num_classes,
    )
    return score_maps(maps, rules)


def score_maps(maps: Maps, rules: Rules) -> CaseResult:
    """Score a prediction: the only place where that is done."""
    classes, label = maps.num_classes, maps.truth_slices
    volumes = leave_out_ignored(maps.pred, maps.truth, classes)
    slices = leave_out_ignored(maps.pred_slices, label, classes)
    known = rules.unit == "mm"
    measure = partial(
        score_volume,
        spacing=maps.spacing if known else None,
        convention=rules.convention,
        tolerance=rules.tolerance,
    )
    if maps.regions:
        rows, counts = _score_regions(volumes, slices, maps, measure)
    else:
        rows, counts = measure(*volumes, classes), _count(slices, classes)
    return CaseResult(
        rows=rows,
        volume=float(np.prod(maps.spacing)) / 1000 if known else 1.0,
        **vars(_slice_counts(counts, label, classes, maps.pixel, rules)),
    )


def count_slices(store: Store, case: str, prediction: Array, rules: Rules) -> SliceCounts:
    """Count the pixels on each slice of a predicted label map, as `score_case` does; nothing else is measured.

    Args:
        store: The store.
        case: The case's id; it must have a label.
        prediction: (positions, H, W) class indices, as the store cuts the case into slices.
        rules: How to score.
    """
    _, label = store.stack(case)
    assert label is not None  # only labelled cases are scored
    counts = _count(leave_out_ignored(prediction, label, store.num_classes), store.num_classes)
    return _slice_counts(counts, label, store.num_classes, pixel_size(store, case), rules)


def _slice_counts(
    counts: tuple[Array, ...], label: Array, num_classes: int, pixel: tuple[float, ...], rules: Rules
) -> SliceCounts:
    pred, truth, both = counts
    return SliceCounts(
        pred=pred,
        truth=truth,
        both=both,
        sparse=is_label_sparse(_foreground(label, num_classes)),
        area=float(np.prod(pixel)) if rules.unit == "mm" else 1.0,
    )


def _foreground(label: Array, num_classes: int) -> npt.NDArray[np.float64]:
    """Return (slices,) share of foreground; NaN where all is ignored."""
    flat = label.reshape(len(label), -1)
    if num_classes > IGNORED:
        return np.asarray(np.count_nonzero(flat, axis=1) / flat.shape[1])
    ignored = np.count_nonzero(flat == IGNORED, axis=1)
    share = (np.count_nonzero(flat, axis=1) - ignored) / flat.shape[1]
    return np.where(ignored < flat.shape[1], share, np.nan)


def _count(slices: tuple[Array, Array], num_classes: int) -> tuple[Array, ...]:
    """Return (slices, K) pixels of each class in the prediction, in the truth and in both."""
    counts = [count_voxels(*pair, num_classes) for pair in zip(*slices, strict=True)]
    return tuple(np.array(column, dtype=np.int32) for column in zip(*counts, strict=True))


def _score_regions(
    volumes: tuple[Array, Array], slices: tuple[Array, Array], maps: Maps, measure: Callable[..., list[ClassScore]]
) -> tuple[list[ClassScore], tuple[Array, ...]]:
    """Score each region as a mask: regions may overlap."""
    rows, columns = [], []
    for label, members in enumerate(maps.regions, start=1):
        inside = np.zeros(maps.num_classes, dtype=np.uint8)
        inside[list(members)] = 1
        pred, truth = (inside[labels] for labels in volumes)
        rows.append(replace(measure(pred, truth, 2)[0], label=label))
        columns.append(_count((inside[slices[0]], inside[slices[1]]), 2))
    background = np.zeros((len(slices[0]), 1), dtype=np.int32)
    return rows, tuple(
        np.concatenate([background, *(part[:, 1:] for part in parts)], axis=1) for parts in zip(*columns, strict=True)
    )


def pixel_size(store: Store, case: str) -> tuple[float, float]:
    """Return height and width of a pixel of a case's slices, in mm; 1 where they are unknown."""
    spacing = store.case_info(case).spacing
    height, width = (length for axis, length in enumerate(spacing) if axis != store.preprocessing.axis)
    return height, width


def _native(store: Store, case: str, prediction: Array, label: Array) -> tuple[Array, Array, tuple[float, ...]]:
    info, preprocessing = store.case_info(case), store.preprocessing
    if preprocessing.tile:
        pages = info.native_shape, info.native_spacing, None
        return preprocessing.undo(prediction, *pages), preprocessing.undo(label, *pages), info.native_spacing
    if preprocessing.spacing is None:
        return preprocessing.join(prediction), preprocessing.join(label), info.spacing
    affine = None if info.native_affine is None else np.array(info.native_affine)
    undone = preprocessing.undo(preprocessing.join(prediction), info.native_shape, info.native_spacing, affine)
    truth = store.native_indices(case)
    if truth is None:
        raise MissingFileError(
            f"Expected native_label.npy of case {case} in {store.path}, but it is gone. Prepare the data again."
        )
    return undone, truth, info.native_spacing


@lru_cache(maxsize=1)  # a worker scores many cases of one store
def _open(store: Path, written: int) -> Store:
    """Open a store; one that was prepared again, at another time, is another one."""
    return Store(store)
