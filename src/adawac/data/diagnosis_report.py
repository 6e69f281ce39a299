"""What a look at a data set's labels found: plain records, for the command line, for JSON and for the figure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class CaseReport:
    """One case.

    Attributes:
        id, patient, group, split: As in the source or the store.
        shape: Spatial shape.
        spacing: Voxel size in mm; None where the format has lost it.
        orientation: Directions of the voxel axes, such as RAS; None where the format has lost them.
        intensity: Minimum, 1 %, median, 99 % and maximum of all channels.
        slices: Number of slices.
        label_sparse: Slices without foreground; None without a label.
        xi: Share of label-dense slices (the paper's ξ); None without a label.
        blank_sparse: Label-sparse slices whose image shows nothing either.
        foreground: Share of foreground in each slice.
        class_voxels: Voxels of each class.
        class_slices: Slices in which each class occurs.
    """

    id: str
    patient: str
    group: str | None
    split: str
    shape: tuple[int, ...]
    spacing: tuple[float, ...] | None
    orientation: str | None
    intensity: tuple[float, ...]
    slices: int
    label_sparse: int | None
    xi: float | None
    blank_sparse: int
    foreground: tuple[float, ...]
    class_voxels: tuple[int, ...]
    class_slices: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ClassReport:
    """One foreground class: its share of all voxels and of the foreground, where it occurs, in how many cases."""

    name: str
    voxel_share: float
    foreground_share: float
    slice_share: float
    cases: int


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """A hint: the method to try first, and why; how to set it, by dotted path, and what that is based on."""

    method: str
    reason: str
    settings: dict[str, Any] = field(default_factory=dict)
    basis: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What `diagnose` found.

    Attributes:
        path: What was looked at.
        kind: `store`, or the source's class.
        dataset: Its name.
        class_names: The classes, background first.
        cases: One report per readable case.
        classes: One report per foreground class.
        faults: What must be fixed before the data can be used; each names the file and the fix.
        warnings: What may be right but should be looked at.
        recommendation: The method to try first.
    """

    path: str
    kind: str
    dataset: str
    class_names: tuple[str, ...]
    cases: tuple[CaseReport, ...]
    classes: tuple[ClassReport, ...]
    faults: tuple[str, ...]
    warnings: tuple[str, ...]
    recommendation: Recommendation

    @property
    def training(self) -> tuple[CaseReport, ...]:
        """The labelled cases that train: those of `train`, or all where no split is known."""
        return training_cases(self.cases)

    @property
    def summary(self) -> dict[str, Any]:
        """The main numbers."""
        training = self.training
        slices = sum(case.slices for case in training)
        sparse = sum(case.label_sparse or 0 for case in training)
        shares = [report.foreground_share for report in self.classes if report.foreground_share]
        return {
            "cases": len(self.cases),
            "patients": len({case.patient for case in self.cases}),
            "cases_by_split": dict(Counter(case.split or "none" for case in self.cases)),
            "cases_by_group": dict(Counter(case.group or "none" for case in self.cases)),
            "training_slices": slices,
            "training_label_sparse": sparse,
            "xi": (slices - sparse) / slices if slices else None,
            "xi_range": _range(case.xi for case in training),
            "class_imbalance": max(shares) / min(shares) if shares else None,
            "shape_range": _ranges(case.shape for case in self.cases),
            "spacing_range": _ranges(case.spacing for case in self.cases if case.spacing),
            "intensity_range": _range(
                value for case in self.cases for value in (case.intensity[0], case.intensity[-1])
            ),
            "orientations": dict(Counter(case.orientation or "unknown" for case in self.cases)),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "summary": self.summary}


def training_cases(cases: Sequence[CaseReport]) -> tuple[CaseReport, ...]:
    """Return the labelled cases of `train`, or all labelled ones where no split is known."""
    labelled = tuple(case for case in cases if case.xi is not None)
    return tuple(case for case in labelled if case.split == "train") or labelled


def _range(values: Any) -> tuple[float, float] | None:
    values = list(values)
    return (min(values), max(values)) if values else None


def _ranges(rows: Any) -> list[tuple[float, float]]:
    """Return the smallest and largest value of each column."""
    return [(min(column), max(column)) for column in zip(*rows, strict=True)]
