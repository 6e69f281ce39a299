"""What AdaWAC adds to nnU-Net: samples, two views, the loss. It works without nnU-Net, unlike the trainer."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adawac.algorithm import AdaWAC, Criterion, SampleWeights, Weighting
from adawac.config.objective_options import Preset
from adawac.config.schema import setting
from adawac.data.cases import SampleTable, class_pixels, class_shares, sample_id
from adawac.distributed import sum_over_ranks
from adawac.losses import dice_of, pixel_sums
from adawac.methods import METHODS
from adawac.objective import Levels, Objective, SampleTerms
from adawac.runs import Score


def patch_name(case: str, position: int) -> str:
    """Return what the loader calls a patch: its case, and the middle of the patch along the first axis."""
    return f"{case}@{position}"


def sample_numbers(length: int, bins: int | None) -> npt.NDArray[np.int64]:
    """Return the sample of its case, from 0, that each position along the first axis belongs to.

    Args:
        length: How many positions there are.
        bins: How many samples the case is divided into; None: each position is one.

    Examples:
        >>> sample_numbers(5, 2), sample_numbers(3, None)
        (array([0, 0, 0, 1, 1]), array([0, 1, 2]))
    """
    return np.arange(length) * min(bins or length, length) // length


def patch_rows(lengths: Mapping[str, int], bins: int | None) -> dict[str, int]:
    """Return the row of β of each `patch_name`, by the cases' sorted names: the same after every restart.

    Args:
        lengths: How many positions each case has along the first axis.
        bins: How many samples a case is divided into; None: each position is one.
    """
    rows: dict[str, int] = {}
    first = 0
    for case in sorted(lengths):
        numbers = sample_numbers(lengths[case], bins).tolist()
        rows |= {patch_name(case, position): first + number for position, number in enumerate(numbers)}
        first += numbers[-1] + 1
    return rows


@dataclass(frozen=True, kw_only=True)
class PreprocessedLabel:
    """The label map of a case as nnU-Net preprocessed it.

    Attributes:
        case: The case's name.
        label: (Z, Y, X) label values; below 0 outside of the body, where nnU-Net trains on background.
        first: How many slices of the scan were cropped off before it.
        depth: How many slices of the scan it was resampled from.
    """

    case: str
    label: npt.NDArray[Any]
    first: int
    depth: int


def sample_table(
    labels: Iterable[PreprocessedLabel], bins: int | None, *, dataset: str, axis: str, class_names: Sequence[str]
) -> SampleTable:
    """Return the table of a training set, whose rows are those of `patch_rows`.

    Args:
        labels: The training cases, in any order. Values from the number of classes on are ignored.
        bins: How many samples a case is divided into; None: each slice is one, and has its number in the scan.
        dataset: The data set's name.
        axis: Which axis of the scan's file was sliced.
        class_names: Name of each class, background first.
    """
    rows: list[dict[str, Any]] = []
    for entry in sorted(labels, key=lambda entry: entry.case):
        length, *plane = entry.label.shape
        numbers = sample_numbers(length, bins)
        depths = np.bincount(numbers)
        pixels = np.zeros((len(depths), len(class_names)), dtype=np.int64)
        np.add.at(pixels, numbers, class_pixels(np.maximum(entry.label, 0), len(class_names)))
        fraction = class_shares(pixels, depths[:, None] * np.prod(plane))
        for number, (depth, shares) in enumerate(zip(depths.tolist(), fraction, strict=True)):
            slice_number = number if bins else entry.first + number * entry.depth // length
            shape = [depth, *plane] if bins else plane
            rows.append(
                {"case": entry.case, "slice": slice_number, "position": number, "fraction": shares, "shape": shape}
            )
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    case, numbers = columns["case"], columns["slice"]
    names = zip(case.tolist(), numbers.tolist(), strict=True)
    unit = "slice" if bins is None else "volume" if bins == 1 else "patch"
    constant = {"axis": axis, "unit": unit, "split": "train", "group": ""}
    return SampleTable(
        id=np.array([sample_id(dataset, name, name, axis, number) for name, number in names]),
        patient=case,
        class_names=tuple(class_names),
        **{name: np.full(len(case), value) for name, value in constant.items()},
        **columns,
    )


def beta_table(samples: SampleTable, weights: SampleWeights) -> str:
    """Return `case,slice,foreground,beta,log_odds` as CSV, a line a sample.

    Log-odds tell samples apart where β is all but 0 or 1. A whole case has no slice.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["case", "slice", "foreground", "beta", "log_odds"])
    slices = np.where(samples.unit == "volume", "", samples.slice.astype(str)).tolist()
    numbers = (samples.foreground.tolist(), weights.beta.tolist(), weights.log_odds.tolist())
    for case, number, *values in zip(samples.case.tolist(), slices, *numbers, strict=True):
        writer.writerow([case, number, *("" if value != value else f"{value:.6g}" for value in values)])
    return text.getvalue()


def validation_scores(
    summary: Mapping[str, Any], labels: Mapping[str, int | list[int]], file_ending: str, **constant: Any
) -> list[Score]:
    """Return the Dice of nnU-Net's validation as scores.

    Args:
        summary: What `validation/summary.json` has.
        labels: What `dataset.json` has: the value of each label, or the values of each region.
        file_ending: That of the scans.
        constant: What all scores have in common.
    """
    keys = {name: str(tuple(value) if isinstance(value, list) else value) for name, value in labels.items()}
    scores = []
    for entry in summary["metric_per_case"]:
        case, metrics = Path(entry["prediction_file"]).name.removesuffix(file_ending), entry["metrics"]
        known = [(name, metrics[key]["Dice"]) for name, key in keys.items() if key in metrics]
        for label, (name, value) in enumerate(known, start=1):
            kind: dict[str, Any] = {"metric": "dice", "convention": "nnunet", "split": "val", **constant}
            scores.append(Score(patient=case, case=case, label=label, class_name=name, value=value, **kind))
    return scores


class TwoViews:
    """A transform that augments a patch twice and stacks what comes out, (C, *S) → (2, C, *S).

    Args:
        transform: nnU-Net's, called with `image=` and `segmentation=`.
    """

    def __init__(self, transform: Callable[..., dict[str, Any]]):
        self.transform = transform

    def __call__(self, **patch: Tensor) -> dict[str, Any]:
        """Return both views of the patch, which stays as it is."""
        first, second = (self._view(patch) for _ in range(2))
        return {name: _stacked(first[name], second[name]) for name in first}

    def __repr__(self) -> str:
        return f"TwoViews({self.transform!r})"

    def _view(self, patch: dict[str, Tensor]) -> dict[str, Any]:
        return self.transform(**{name: value.clone() for name, value in patch.items()})  # transforms work in place


def as_list(levels: Levels) -> list[Tensor]:
    """Return the levels of deep supervision; a single one without it."""
    return [levels] if isinstance(levels, Tensor) else list(levels)


def _stacked(first: Levels, second: Levels) -> Levels:
    levels = [torch.stack(pair) for pair in zip(as_list(first), as_list(second), strict=True)]
    return levels[0] if isinstance(first, Tensor) else levels


def joined(views: Levels, device: torch.device) -> Levels:
    """Return a batch of stacked views, (B, 2, C, *S), as all first views, then all second ones, (2B, C, *S)."""
    levels = [view.to(device, non_blocking=True).transpose(0, 1).flatten(0, 1) for view in as_list(views)]
    return levels[0] if isinstance(views, Tensor) else levels


#: The label of voxels that count nowhere, where classes are regions.
IGNORED_REGION = 255


@dataclass(frozen=True, kw_only=True)
class NnUNetObjective(Objective):
    """An objective with nnU-Net's Dice: of the foreground, over all rows of the batch, both views, or for each row."""

    regions: bool = setting(
        False, "Regions that may overlap: sigmoids and binary CE, as `regions_as_classes` has them."
    )

    def _supervised(self, logits: Tensor, labels: Tensor, size: int) -> tuple[Tensor, Tensor]:
        if self.views == "first":
            logits, labels = logits[:size], labels[:size]
        rows = len(logits)
        if self.regions:
            logits, labels = logits.movedim(2, 1).flatten(0, 1), labels.flatten(0, 1)  # a row for each region
        ell_ce, *sums = pixel_sums(logits, labels, denominator=self.denominator, ignore_index=self.ignore_index)
        parts = torch.stack(sums).unflatten(1, (rows, -1))  # the three sums × rows × regions × classes
        foreground = parts[..., 1:].flatten(2)
        overlap, mass, labelled = sum_over_ranks(foreground.sum(1)) if self.dice == "batch" else foreground
        ell_dice = dice_of(overlap, mass, labelled, self.smooth)
        ell_dice = ell_dice.expand(size) if self.dice == "batch" else ell_dice.unflatten(0, (-1, size)).mean(0)
        ell_ce = ell_ce.unflatten(0, (rows, -1)).mean(1).unflatten(0, (-1, size))
        return self._mean_of_views(ell_ce, parts[2].flatten(1).unflatten(0, (-1, size))), ell_dice


def regions_as_classes(logits: Tensor, target: Tensor, ignore: bool) -> tuple[Tensor, Tensor]:
    """Return regions as two classes each, outside and inside: a softmax over 0 and x is the sigmoid of x.

    Args:
        logits: (B, R, *S), one for each region.
        target: (B, R, *S) whether a voxel is in a region; with `ignore` one more, whether it is ignored.
        ignore: Whether voxels may be ignored.

    Returns:
        Logits (B, 2, R, *S) and labels (B, R, *S).
    """
    labels = target[:, : logits.shape[1]].to(torch.uint8)
    if ignore:
        labels = labels.masked_fill(target[:, -1:].bool(), IGNORED_REGION)
    return torch.stack([torch.zeros_like(logits), logits], 1), labels


class WholeAdaWAC(AdaWAC):
    """AdaWAC whose weighted pair counts twice, 2β·CE + 2(1−β)·ACR: with β = 1/2, CE is as heavy as in nnU-Net."""

    def weigh(self, batch: SampleTerms) -> Weighting:
        """Ascend, then weigh CE against ACR."""
        weighting = super().weigh(batch)
        return weighting._replace(ac=2 * weighting.ac, ce_divisor=cast("Tensor", weighting.divisor / 2))


def build_criterion(method: str, num_samples: int, *, preset: Preset, regions: bool, **options: Any) -> Criterion:
    """Return a method's criterion with nnU-Net's Dice + CE; arguments as of `adawac.build_method`."""
    build = {"adawac": WholeAdaWAC}.get(method) or METHODS[method]
    criterion = build(num_samples, preset=preset, **options)
    criterion.objective = NnUNetObjective(regions=regions, **vars(criterion.objective))
    return criterion
