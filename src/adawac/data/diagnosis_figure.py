"""The figure of a diagnosis: where labels are, how much of them, and which classes."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adawac.data.cases import is_label_dense
from adawac.data.diagnosis_report import CaseReport, Diagnosis, known_shares
from adawac.errors import ConfigError
from adawac.files import beside, explained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
