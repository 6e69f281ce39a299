"""What an evaluation is: the scores of one run's weights on one part of the data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from adawac.evaluation.case_scores import DistanceUnit
from adawac.evaluation.slice_scores import Slices, SliceSummary, summarise_slices
from adawac.evaluation.statistics import Summary, summarise
from adawac.runs import Run, Score

METRICS = ("dice", "hd95", "assd", "surface_dice", "hd95_max_directed")
"""What can be measured of a class in a case."""
DISTANCES = ("hd95", "assd", "hd95_max_directed")
"""Those that have a unit."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """The scores of a run.

    Attributes:
        run: The run.
        name: What the scores are called in the run's folder.
        dataset: The data set that it was evaluated on.
        part: `test`, `val` or `train`.
        checkpoint: Which weights.
        convention: What empty masks score.
        unit: What distances are measured in.
        metrics: What summaries and tables are about.
        scores: One for each case, class and metric, all of `METRICS`; beside them the outcomes (`missed`, …) and the
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
    slices: Slices

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
        own = {name: [score for score in self.scores if score.group == name] for name in names}
        return {name: {metric: summarise(own[name], metric)[-1] for metric in self.metrics} for name in names}

    @cached_property
    def slice_summaries(self) -> list[SliceSummary]:
        """Label-sparse and label-dense slices apart, for each class and for all."""
        return summarise_slices(self.slices)

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
        """How many patients these cases are of."""
        return len({score.patient for score in self.scores})

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers of all tables as plain values for JSON; null stands for what is not a number."""
        told = ("name", "dataset", "part", "checkpoint", "convention", "unit", "num_cases", "num_patients")
        rows = {metric: [asdict(one) for one in summaries] for metric, summaries in self.summaries.items()}
        groups = {
            name: {metric: asdict(one) for metric, one in summaries.items()} for name, summaries in self.groups.items()
        }
        described: Any = plain(
            {
                "run": self.run.folder,
                "summary": self.run.summary,
                **{name: getattr(self, name) for name in told},
                "metrics": rows,
                "groups": groups,
                "slices": [asdict(one) for one in self.slice_summaries],
            }
        )
        return dict(described)


def plain(value: Any) -> Any:
    """Return values as JSON knows them."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(one) for one in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
