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

from adawac.evaluation.case_scores import DistanceUnit
from adawac.evaluation.statistics import Summary, summarise
from adawac.metrics.surfaces import Array
from adawac.runs import Run, Score

CASE_METRICS = ("dice", "hd95", "assd", "surface_dice", "hd95_max_directed")
"""What is measured of a class in a case."""
DISTANCES = ("hd95", "assd", "hd95_max_directed")
"""Those that have a unit."""
SLICE_METRICS = ("dense_dice", "sparse_found", "sparse_area")
"""Rows of a scores file about a case's slices; see `SliceSummary`."""

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """The scores of a run.

    Attributes:
        run: The run.
        name: The name of the scores in the run's folder.
        dataset: The data set that it was evaluated on.
        part: `test`, `val` or `train`.
        checkpoint: Which weights.
        convention: What empty masks score.
        unit: What distances are measured in.
        metrics: What summaries and tables show.
        scores: One for each case, class and metric, all of `CASE_METRICS`; also the outcomes (`missed`, …) and the
            slice metrics (`dense_dice`, …).
        slices: What was found on each slice.
    """

    run: Run
    name: str
    dataset: str
    part: str
    checkpoint: str
    convention: str
    unit: DistanceUnit
    metrics: tuple[str, ...]
    scores: list[Score]
    slices: SliceScores

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

    @property
    def label(self) -> str:
        """The run's folder, as a table names it."""
        return self.run.folder.name or str(self.run.folder)

    @property
    def num_cases(self) -> int:
        """How many cases were scored."""
        return len({score.case for score in self.scores})

    @property
    def num_patients(self) -> int:
        """How many patients were scored."""
        return len({score.patient for score in self.scores})

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers of all tables as plain values for JSON; null stands for what is not a number."""
        names = ("name", "dataset", "part", "checkpoint", "convention", "unit", "num_cases", "num_patients")
        described: Any = plain(
            {
                "run": self.run.folder,
                "summary": self.run.summary,
                **{name: getattr(self, name) for name in names},
                "metrics": {metric: [asdict(row) for row in rows] for metric, rows in self.summaries.items()},
                "groups": {
                    group: {metric: asdict(summary) for metric, summary in summaries.items()}
                    for group, summaries in self.groups.items()
                },
                "slices": [asdict(summary) for summary in self.slice_summaries],
            }
        )
        return dict(described)


def plain(value: Any) -> Any:
    """Return a value in JSON's types: paths become text, and numbers that are not finite None."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(entry) for entry in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
