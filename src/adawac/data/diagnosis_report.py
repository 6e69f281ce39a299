"""What a look at a data set's labels found, as plain records, which method that suggests, and its figure."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from adawac.data.cases import is_label_dense
from adawac.data.splits import suggest_split
from adawac.errors import ConfigError
from adawac.files import beside, explained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# So many different sizes are listed, the most frequent first.
_SHAPES = 5


@dataclass(frozen=True, kw_only=True)
class CaseReport:
    """One case.

    Attributes:
        id, patient, group, split: As in the source or the store.
        spacing: Voxel size in mm; None where the format has lost it.
        orientation: Directions of the voxel axes, such as RAS; None where the format has lost them.
        intensity: Minimum, 1 %, median, 99 % and maximum of all channels.
        unlabelled: Slices that nobody has annotated: without a label map, or with every pixel ignored.
        partly_ignored: Labelled slices of which some pixels are ignored.
        label_sparse: Labelled slices without foreground; None without a label.
        xi: Share of label-dense slices among the labelled ones (the paper's ξ); None without a label.
        blank_sparse: Label-sparse slices whose image shows nothing either.
        foreground: Share of foreground in each slice; None for an unlabelled one of a case with a label.
        class_voxels, class_slices: Voxels of each class, and slices in which it occurs.
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
    unlabelled: int = 0
    partly_ignored: int = 0
    label_sparse: int | None
    xi: float | None
    blank_sparse: int
    foreground: tuple[float | None, ...]
    class_voxels: tuple[int, ...]
    class_slices: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ClassReport:
    """One foreground class: its share of all voxels and of the foreground, where it occurs, in how many cases.

    `values` are those that mean it in label files: numbers, or colours such as "#ff0000".
    """

    name: str
    voxel_share: float
    foreground_share: float
    slice_share: float
    cases: int
    values: tuple[str, ...] = ()


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
        channels: Name of each image channel.
        cases: One report per readable case.
        classes: One report per foreground class.
        faults: What must be fixed before the data can be used; each names the file and the fix.
        warnings: What may be right but should be looked at.
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
    channels: tuple[str, ...] = ()

    def __repr__(self) -> str:
        found = f"{len(self.cases)} cases, {len(self.faults)} faults, {len(self.warnings)} warnings"
        return f"Diagnosis({self.path!r}: {self.dataset}, {found}, try {self.recommendation.method})"

    @property
    def training(self) -> tuple[CaseReport, ...]:
        """The labelled cases that train: those of `train`, or all where no split is known."""
        return training_cases(self.cases)

    @property
    def summary(self) -> dict[str, Any]:
        """The main numbers."""
        training = self.training
        slices = sum(case.slices - case.unlabelled for case in training)
        sparse = sum(case.label_sparse or 0 for case in training)
        shares = [report.foreground_share for report in self.classes if report.foreground_share]
        return {
            "cases": len(self.cases),
            "patients": len({case.patient for case in self.cases}),
            "cases_by_split": dict(Counter(case.split or "none" for case in self.cases)),
            "cases_by_group": dict(Counter(case.group or "none" for case in self.cases)),
            "slices_by_state": {
                "labelled": sum(case.slices - case.unlabelled - case.partly_ignored for case in self.cases),
                "partly ignored": sum(case.partly_ignored for case in self.cases),
                "unlabelled": sum(case.unlabelled for case in self.cases),
            },
            "training_slices": slices,
            "training_label_sparse": sparse,
            "xi": (slices - sparse) / slices if slices else None,
            "xi_range": _range(case.xi for case in training),
            "class_imbalance": max(shares) / min(shares) if shares else None,
            "empty_share": sparse / slices if slices else None,
            "shapes": [list(shape) for shape, _ in Counter(case.shape for case in self.cases).most_common(_SHAPES)],
            "shape_range": _ranges(case.shape for case in self.cases),
            "spacing_range": _ranges(case.spacing for case in self.cases if case.spacing),
            "intensity_range": _range(
                value for case in self.cases for value in (case.intensity[0], case.intensity[-1])
            ),
            "orientations": dict(Counter(case.orientation or "unknown" for case in self.cases)),
        }

    @property
    def suggested_split(self) -> str:
        """What to give as --split: a split that works where the data's own does not say who trains and tests."""
        columns = [(case.patient, case.group or "", case.split) for case in self.cases if case.xi is not None]
        patient, group, split = np.array(columns, dtype=np.str_).reshape(-1, 3).T
        return suggest_split(patient, group, split)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "summary": self.summary}


def training_cases(cases: Sequence[CaseReport]) -> tuple[CaseReport, ...]:
    """Return the labelled cases of `train`, or all labelled ones where no split is known."""
    labelled = tuple(case for case in cases if case.xi is not None)
    return tuple(case for case in labelled if case.split == "train") or labelled


def known_shares(case: CaseReport) -> npt.NDArray[np.float64]:
    """Return the share of foreground in each labelled slice."""
    shares = np.array(case.foreground, dtype=np.float64)
    return shares[~np.isnan(shares)]


def _range(values: Any) -> tuple[float, float] | None:
    values = list(values)
    return (min(values), max(values)) if values else None


def _ranges(rows: Any) -> list[tuple[float, float]]:
    """Return the smallest and largest value of each column."""
    return [(min(column), max(column)) for column in zip(*rows, strict=True)]


# -- which method the labels suggest, and how to set it ---------------------------------------------------------------

# A slice with less than this share of the usual foreground is nearly label-sparse, as in the paper's "few (if any)".
_FEW = 0.1
# Below this share of label-sparse and nearly label-sparse slices there is hardly anything to separate.
_HARDLY_ANY = 0.02


def recommend(training: Sequence[CaseReport]) -> Recommendation:
    """Return a hint from the training cases' label density; only a comparison on held-out data can settle it."""
    if not training:
        return Recommendation(method="none", reason="No readable case has a label map, so nothing can be said.")
    foreground = np.concatenate([known_shares(case) for case in training])
    sparse = sum(case.label_sparse or 0 for case in training)
    blank = sum(case.blank_sparse for case in training)
    share = sparse / len(foreground)
    dense = foreground[foreground > 0]
    if not len(dense):
        return Recommendation(
            method="none", reason="No training label has any foreground, so there is nothing to learn."
        )
    few = float((foreground < _FEW * np.median(dense)).mean())
    spread = [case.xi for case in training if case.xi is not None]
    counts = f"{sparse} of {len(foreground)} training slices ({share:.1%}) are label-sparse"
    if sparse and blank > sparse / 2:
        return Recommendation(
            method="trim-train",
            reason=f"{counts}, and {blank} of them show no structure at all, so their images teach nothing: "
            "dropping them (trim-train) may be enough. Compare with AdaWAC if you can.",
        )
    if few < _HARDLY_ANY:
        return Recommendation(
            method="baseline",
            reason=f"{counts}, and only {few:.1%} carry less than a tenth of the usual foreground, so there is hardly "
            "anything for sample weights to separate: start with the baseline. (Consistency alone may help: "
            f"{_alone()} Compare with acr-only.)",
        )
    return Recommendation(
        method="adawac",
        reason=f"{counts}, {few:.1%} carry less than a tenth of the usual foreground, and ξ ranges from "
        f"{min(spread):.2f} to {max(spread):.2f} between cases: AdaWAC is worth trying against the baseline. "
        "(The paper gained with 42 % label-sparse slices on Synapse and with 3 % on ACDC.)",
        **how_to_set(len(foreground), share),
    )


@cache
def _study() -> dict[str, Any]:
    """Return what the studies found, as studies/recommendations.py wrote it."""
    return dict(json.loads(Path(__file__).with_name("recommendations.json").read_text(encoding="utf-8")))


def _alone() -> str:
    gains = {name: runs["mean"] for name, runs in _study()["consistency_alone"].items()}
    return (
        f"on ACDC, with the preset official, it gained {gains['acr_only']:.1f} points of DSC, and AdaWAC "
        f"{gains['adawac']:.1f}."
    )


def _points(gained: dict[str, Any]) -> str:
    by_seed = ", ".join(f"{gain:+.1f}" for gain in gained["gains"])
    seeds = "1 seed" if len(gained["seeds"]) == 1 else f"{len(gained['seeds'])} seeds"
    return f"{gained['mean']:+.1f} points ({seeds}: {by_seed})"


def how_to_set(slices: int, label_sparse: float) -> dict[str, Any]:
    """Return AdaWAC's settings and what they are based on, docs/results, for so many slices and such a share."""
    study = _study()
    no_gain = study["no_gain"]
    less = (
        "Expect less with a pretrained encoder, or with longer training and stronger augmentation (--config strong): "
        f"there AdaWAC gained {no_gain['pretrained']['mean']:+.1f} and {no_gain['strong']['mean']:+.1f} points over "
        "the baseline on ACDC."
    )
    few, usual = study["few_slices"], study["usual"]
    if slices < few["below"]:
        these, defaults = few["evidence"]["these"], few["evidence"]["defaults"]
        return {
            "settings": dict(few["settings"]),
            "basis": (
                f"With only {slices} training slices the first epochs, in which the network has learned nothing yet, "
                "decide where the weights go. Let them wait, with the released code's settings: with "
                f"{few['evidence']['slices']} slices of ACDC that gained {_points(these)} over the baseline, while the "
                f"defaults, waiting as long, gained {defaults['mean']:+.1f}.",
                less,
            ),
        }
    many = study["many_sparse"]
    if label_sparse >= many["from"]:
        like, lgg = many["evidence"], many["evidence"]["lgg"]
        return {
            "settings": dict(many["settings"]),
            "basis": (
                f"Like here, many slices of Synapse are label-sparse ({like['label_sparse']:.0%}). There the released "
                f"code's settings gained {_points(like['over_baseline'])} over the baseline on the test cases, with a "
                f"UNet from scratch, and {_points(like['over_pair'])} over training on the same two views. On "
                f"validation folds of LGG ({lgg['label_sparse']:.0%}) they gained {_points(lgg)}: compare with the "
                "baseline.",
                less,
            ),
        }
    scores = usual["evidence"]
    best, worst = scores["best_cell"], scores["worst_cell"]
    return {
        "settings": dict(usual["settings"]),
        "basis": (
            "Start with the defaults, preset paper with η_β = 1 and λ = 1: on ACDC, a UNet from scratch, their DSC of "
            f"{scores['dice']:.1f} was {best['ahead']:.1f} points below the best of a grid over η_β and λ, while "
            f"λ = {worst['lambda_ac']:g} lost up to {worst['behind_best']:.0f}. With other seeds they lost "
            f"{scores['lost_by_other_seeds']:.1f} at most, while one of the grid's best cells lost "
            f"{scores['repeated_cell']['lost_by_other_seeds']:.1f}.",
            less,
        ),
    }


# -- the figure: where labels are, how much of them, and which classes ------------------------------------------------

# Okabe and Ito's colours are distinct for any kind of colour vision.
_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#E69F00", "#009E73", "#6E6E6E"
_SPLIT_COLOURS = {"train": _BLUE, "val": _GREEN, "test": _ORANGE, "": _GREY}
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def draw_diagnosis(diagnosis: Diagnosis) -> "Figure":
    """Return the figure; `figure.savefig(path)` writes it as PNG, PDF or SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(10, 6.5), layout="constrained")
        ((per_case, along), (classes, density)) = figure.subplots(2, 2)
        labelled = [case for case in diagnosis.cases if case.xi is not None]
        _draw_cases(per_case, labelled)
        _draw_profile(along, diagnosis.training)
        _draw_classes(classes, diagnosis)
        _draw_density(density, diagnosis.training)
        xi = diagnosis.summary["xi"]
        share = "no labels" if xi is None else f"{1 - xi:.1%} of the training slices are label-sparse"
        figure.suptitle(f"{diagnosis.dataset}: {len(diagnosis.cases)} cases, {share}", x=0.01, ha="left", weight="bold")
    return figure


def save_diagnosis(diagnosis: Diagnosis, path: Path) -> None:
    """Draw the figure into a file; one that cannot be written is a `ConfigError`."""
    with explained(ConfigError, str(path), "Make room, or give another --figure."), beside(path) as temporary:
        draw_diagnosis(diagnosis).savefig(temporary, format=path.suffix[1:].lower())


def _draw_cases(axes: Any, cases: list[CaseReport]) -> None:
    axes.set(title="Label-dense share ξ of each case", xlabel="cases, sorted", ylabel="ξ", ylim=(0, 1.02))
    start = 0
    for split, colour in _SPLIT_COLOURS.items():
        if xi := sorted(case.xi or 0.0 for case in cases if case.split == split):
            axes.bar(range(start, start + len(xi)), xi, width=1.0, color=colour, label=split or "no split")
            start += len(xi)
    axes.grid(axis="x", visible=False)
    if cases:
        axes.legend(loc="lower right", facecolor="white", framealpha=0.9, frameon=True, edgecolor="none")


def _draw_profile(axes: Any, cases: tuple[CaseReport, ...]) -> None:
    axes.set(title="Where along the scan the foreground is", xlabel="position in the scan (0 first slice, 1 last)")
    axes.set(ylabel="foreground, % of the slice", xlim=(0, 1))
    if not cases:
        return
    positions = np.linspace(0, 1, 50)
    profiles = np.array([_profile(case, positions) for case in cases]) * 100
    low, middle, high = np.percentile(profiles, (10, 50, 90), axis=0)
    axes.fill_between(positions, low, high, color=_BLUE, alpha=0.2, linewidth=0, label="10-90 % of the cases")
    axes.plot(positions, middle, color=_BLUE, label="median case")
    axes.set_ylim(bottom=0)
    axes.legend()


def _profile(case: CaseReport, positions: Any) -> Any:
    """Return a case's share of foreground at the positions, between its labelled slices."""
    shares = np.array(case.foreground, dtype=np.float64)
    known = ~np.isnan(shares)
    return np.interp(positions, np.linspace(0, 1, case.slices)[known], shares[known])


def _draw_classes(axes: Any, diagnosis: Diagnosis) -> None:
    axes.set(title="Classes", xlabel="%", xlim=(0, 100))
    rows = np.arange(len(diagnosis.classes))
    slices = [100 * report.slice_share for report in diagnosis.classes]
    voxels = [100 * report.foreground_share for report in diagnosis.classes]
    axes.barh(rows - 0.2, slices, height=0.38, color=_BLUE, label="of the slices contain it")
    axes.barh(rows + 0.2, voxels, height=0.38, color=_ORANGE, label="of the foreground is it")
    axes.set_yticks(rows, [report.name for report in diagnosis.classes])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def _draw_density(axes: Any, cases: tuple[CaseReport, ...]) -> None:
    axes.set(title="How much foreground a training slice has", xlabel="foreground, % of the slice", ylabel="slices")
    foreground = 100 * np.concatenate([known_shares(case) for case in cases]) if cases else np.zeros(0)
    dense = foreground[is_label_dense(foreground)]
    if not len(dense):
        return
    edges = np.geomspace(dense.min(), dense.max() * 1.001, 30)
    axes.hist(dense, bins=edges, color=_BLUE, label=f"label-dense ({len(dense)})")
    # The empty slices have no place on a logarithmic axis: they stand to the left of it.
    empty = len(foreground) - len(dense)
    left, ratio = edges[0] / (edges[1] / edges[0]) ** 3, edges[1] / edges[0]
    axes.bar(left, empty, width=left * (ratio - 1), align="edge", color=_ORANGE, label=f"without foreground ({empty})")
    axes.annotate("0 %", (left * (1 + ratio) / 2, empty), ha="center", va="bottom")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.legend(loc="upper left")
