"""What an evaluation is: the scores of one run's weights on one part of the data, by case and by slice.

On a label-sparse slice the Dice coefficient is undefined, or 0 however little was falsely found. So these slices are
counted instead: on how many of them the network finds a class, and how large that is. On label-dense slices the Dice
coefficient is computed slice by slice.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.evaluation.case_scores import CaseResult, DistanceUnit, Rules, SliceCounts
from adawac.evaluation.statistics import (
    COUNTS,
    OUTCOMES,
    VOLUMES,
    Detection,
    Summary,
    count_detections,
    summarise,
)
from adawac.metrics import ClassScore
from adawac.metrics.surfaces import Array
from adawac.runs import Run, Score
from adawac.runs.layout import strict

CASE_METRICS = ("dice", "hd95", "assd", "surface_dice", "hd95_max_directed")
"""What is measured of a class in a case."""
DISTANCES = ("hd95", "assd", "hd95_max_directed")
"""Those that have a unit."""
SLICE_METRICS = ("dense_dice", "sparse_found", "sparse_area")
"""Rows of a scores file about a case's slices; see `SliceSummary`."""

_VOLUME_UNITS = {"mm": "ml", "voxel": "voxel"}
_COLUMNS = ("id", "case", "sparse", "pred", "truth", "both", "area")


@dataclass(frozen=True, kw_only=True, eq=False)
class SliceScores:
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

    def __repr__(self) -> str:
        return f"SliceScores({len(self.id)} slices, {int(self.sparse.sum())} of them label-sparse)"

    @property
    def dice(self) -> npt.NDArray[np.float64]:
        """(n, K) Dice coefficient of each class on each slice; NaN where the class is in neither map."""
        sizes = (self.pred + self.truth).astype(np.float64)
        dice = np.full(sizes.shape, np.nan)
        np.divide(2.0 * self.both, sizes, out=dice, where=sizes > 0)
        dice[:, 0] = np.nan
        return dice

    @property
    def mean_dice(self) -> npt.NDArray[np.float64]:
        """(n,) mean over the classes in truth or prediction; NaN on a slice that has none in either."""
        dice = self.dice
        known = ~np.isnan(dice)
        means = np.full(len(dice), np.nan)
        np.divide(np.where(known, dice, 0.0).sum(axis=1), known.sum(axis=1), out=means, where=known.any(axis=1))
        return means

    def of_case(self, case: str) -> "SliceScores":
        """Return the slices of one case."""
        rows = self.case == case
        return SliceScores(class_names=self.class_names, **{name: getattr(self, name)[rows] for name in _COLUMNS})

    def values(self, label: int) -> dict[str, float]:
        """Return the slice metrics of one class."""
        summary = self._of_class(label)
        share = summary.sparse_found / summary.sparse_slices if summary.sparse_slices else math.nan
        return dict(zip(SLICE_METRICS, (summary.dense_dice, share, summary.sparse_area), strict=True))

    def summarise(self) -> "list[SliceSummary]":
        """Return one summary for each class, and one for all."""
        pixels = self.pred[self.sparse, 1:].sum(axis=1)
        classes = [self._of_class(label) for label in range(1, len(self.class_names))]
        return [*classes, self._summary(None, "any", self.mean_dice[~self.sparse], pixels)]

    def _of_class(self, label: int) -> "SliceSummary":
        dice, pixels = self.dice[~self.sparse, label], self.pred[self.sparse, label]
        return self._summary(label, self.class_names[label], dice, pixels)

    def _summary(self, label: int | None, name: str, dice: Array, pixels: Array) -> "SliceSummary":
        """Summarise the Dice coefficients of label-dense slices and the pixels found on label-sparse ones."""
        known = dice[~np.isnan(dice)]
        return SliceSummary(
            label=label,
            class_name=name,
            dense_slices=len(known),
            dense_dice=float(known.mean()) if len(known) else math.nan,
            dense_std=float(known.std(ddof=1)) if len(known) > 1 else math.nan,
            sparse_slices=len(pixels),
            sparse_found=int((pixels > 0).sum()),
            sparse_area=float((pixels * self.area[self.sparse]).mean()) if len(pixels) else math.nan,
        )


@dataclass(frozen=True, kw_only=True)
class SliceSummary:
    """Slices of one class, or of all.

    Attributes:
        label: The class; None for all.
        class_name: Its name; `any` for all.
        dense_slices: Label-dense slices with the class in truth or prediction.
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


def join_slices(parts: Sequence[SliceScores]) -> SliceScores:
    """Put the slices of several cases together."""
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
    return SliceScores(class_names=parts[0].class_names, **columns)


@dataclass(frozen=True, kw_only=True)
class PredictionFolder:
    """A folder of label maps, which stands where a run does: every folder is a configuration of its own.

    Attributes:
        folder: The folder.
        summary: The name that stands in tables, as the method.
        settings, data: What tells it from others.
    """

    folder: Path
    summary: Mapping[str, Any]
    settings: Mapping[str, Any]
    data: Mapping[str, Any]

    @classmethod
    def of(cls, folder: Path, name: str) -> "PredictionFolder":
        """Return a folder that tables call so."""
        return cls(folder=folder, summary={"method": name}, settings={"predictions": str(folder)}, data={})


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """The scores of a run, or of a folder of predictions.

    Attributes:
        run: The run or the folder.
        name: The name of the scores in the run's folder.
        dataset: The data set that it was evaluated on.
        part: `test`, `val` or `train`; empty for a folder.
        checkpoint: Which weights; empty for a folder.
        convention: What empty masks score.
        unit: What distances are measured in.
        metrics: What summaries and tables show.
        scores: One for each case, class and metric, all of `CASE_METRICS`; also the outcomes (`missed`, …) and the
            counts and volumes of false voxels (`statistics.COUNTS`, `VOLUMES`) and the slice metrics (`dense_dice`, …).
        slices: What was found on each slice.
    """

    run: Run | PredictionFolder
    name: str
    dataset: str
    part: str
    checkpoint: str
    convention: str
    unit: DistanceUnit
    metrics: tuple[str, ...]
    scores: list[Score]
    slices: SliceScores

    def __repr__(self) -> str:
        means = ", ".join(f"mean {metric} {rows[-1].mean:.3g}" for metric, rows in self.summaries.items())
        return f"Evaluation({self.label!r}, {self.name}: {self.num_cases} cases of {self.dataset}, {means})"

    @cached_property
    def summaries(self) -> dict[str, list[Summary]]:
        """For each metric, a summary of each class and one of their mean."""
        return {metric: summarise(self.scores, metric) for metric in self.metrics}

    @cached_property
    def groups(self) -> dict[str, dict[str, Summary]]:
        """For each group (pathology) and metric, the summary of the mean over classes; empty where there is one."""
        names = sorted({score.group for score in self.scores})
        if len(names) < 2:
            return {}
        scores = {name: [score for score in self.scores if score.group == name] for name in names}
        return {name: {metric: summarise(scores[name], metric)[-1] for metric in self.metrics} for name in names}

    @cached_property
    def slice_summaries(self) -> list[SliceSummary]:
        """Label-sparse and label-dense slices apart, for each class and for all."""
        return self.slices.summarise()

    @cached_property
    def detections(self) -> list[Detection]:
        """In how many cases each class, and any of them, is seen at all."""
        return count_detections(self.scores)

    @property
    def has_empty_cases(self) -> bool:
        """Whether there are cases without any foreground: whether these raise false alarms is then a result."""
        return bool(self.detections) and self.detections[-1].false_alarms + self.detections[-1].clear > 0

    @property
    def label(self) -> str:
        """The folder, as a table names it."""
        if isinstance(self.run, PredictionFolder):
            return str(self.run.summary["method"])
        return self.run.folder.name or str(self.run.folder)

    @cached_property
    def cases(self) -> tuple[str, ...]:
        """The cases that were scored."""
        return tuple(dict.fromkeys(score.case for score in self.scores))

    @property
    def num_cases(self) -> int:
        """How many cases were scored."""
        return len(self.cases)

    @property
    def num_patients(self) -> int:
        """How many patients were scored."""
        return len({score.patient for score in self.scores})

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers of all tables as plain values for JSON; null stands for what is not a number."""
        names = ("name", "dataset", "part", "checkpoint", "convention", "unit", "num_cases", "num_patients")
        return strict(  # type: ignore[no-any-return]
            {
                "run": self.run.folder,
                "summary": self.run.summary,
                **{name: getattr(self, name) for name in names},
                "metrics": {metric: [asdict(row) for row in rows] for metric, rows in self.summaries.items()},
                "groups": {
                    group: {metric: asdict(summary) for metric, summary in summaries.items()}
                    for group, summaries in self.groups.items()
                },
                "detections": [asdict(detection) for detection in self.detections],
                "slices": [asdict(summary) for summary in self.slice_summaries],
            }
        )


@dataclass(frozen=True, kw_only=True)
class ScoredCase:
    """Who a case is.

    Attributes:
        id, patient, group: As in `Score`.
        samples: The ids of its slices.
    """

    id: str
    patient: str
    group: str
    samples: Sequence[str] | Array


def assemble(
    results: Sequence[tuple[ScoredCase, CaseResult]],
    *,
    run: "Run | PredictionFolder",
    name: str,
    dataset: str,
    part: str,
    checkpoint: str,
    epoch: int | None,
    rules: Rules,
    metrics: tuple[str, ...],
    class_names: tuple[str, ...],
) -> Evaluation:
    """Return the evaluation of cases that were scored; there is at least one."""
    slices = [slices_of(case, result, class_names) for case, result in results]
    facts: dict[str, Any] = {"convention": rules.convention, "checkpoint": checkpoint, "split": part, "epoch": epoch}
    scores = [
        Score(
            patient=case.patient,
            case=case.id,
            group=case.group,
            label=row.label,
            class_name=class_names[row.label],
            metric=metric,
            value=value,
            unit=rules.unit if metric in DISTANCES else _VOLUME_UNITS[rules.unit] if metric in VOLUMES else "",
            dataset=dataset,
            **facts,
        )
        for (case, result), of_case in zip(results, slices, strict=True)
        for row in result.rows
        for metric, value in (_values_of(row, result) | of_case.values(row.label)).items()
    ]
    return Evaluation(
        run=run,
        name=name,
        dataset=dataset,
        part=part,
        checkpoint=checkpoint,
        convention=rules.convention,
        unit=rules.unit,
        metrics=metrics,
        scores=scores,
        slices=join_slices(slices),
    )


def slices_of(case: ScoredCase, counts: SliceCounts, class_names: tuple[str, ...]) -> SliceScores:
    """Return what was found on the slices of one case."""
    return SliceScores(
        id=np.asarray(case.samples),
        case=np.full(len(counts.sparse), case.id),
        sparse=counts.sparse,
        pred=counts.pred,
        truth=counts.truth,
        both=counts.both,
        area=np.full(len(counts.sparse), counts.area),
        class_names=class_names,
    )


def _values_of(row: ClassScore, result: CaseResult) -> dict[str, float]:
    values = {name: float(getattr(row, name)) for name in CASE_METRICS}
    values |= {name: float(row.outcome == name) for name in OUTCOMES}
    wrong = row.pred_voxels - row.both_voxels, row.truth_voxels - row.both_voxels
    values |= dict(zip(COUNTS, map(float, (row.both_voxels, *wrong)), strict=True))
    return values | {name: count * result.volume for name, count in zip(VOLUMES, wrong, strict=True)}
