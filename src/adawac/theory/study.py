"""All of `adawac theory`: one experiment after another, their numbers in a file, and the figures drawn from them."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adawac.errors import ConfigError
from adawac.files import beside, write_text
from adawac.theory import experiments
from adawac.theory.instance import build_instance

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = Mapping[str, Any]

# Okabe and Ito's colours, which colour-blind readers can tell apart; every series has its own marker too.
_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7"]
_MARKERS = ["o", "s", "^", "D"]
_GREY = "#666666"


def draw(results: Results, out: Path) -> None:
    """Write all figures as PNG files into the folder `out`."""
    drawings = {
        "theory-convergence": _convergence(results),
        "theory-separation": _separation(results),
        "theory-eta-beta": _eta_beta(results["eta_beta"]),
        "theory-lambda": _lambda(results["lambda_ac"]),
        "theory-thresholding": _thresholding(results["thresholding"]),
        "theory-example": _example(results["claims"]["example"]),
    }
    for name, figure in drawings.items():
        with beside(out / f"{name}.png") as temporary:
            figure.savefig(temporary, format="png", dpi=160, facecolor="white")


def _panels(count: int) -> tuple["Figure", list["Axes"]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * count, 3.4), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    for axis in axes:
        axis.grid(color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)


def _legend_above_one(axis: "Axes", columns: int) -> None:
    """Leave room for the legend over values that lie between 0 and 1."""
    axis.set(ylim=(-0.03, 1.35), yticks=[0, 0.25, 0.5, 0.75, 1])
    axis.legend(frameon=False, fontsize=8, loc="upper left", ncols=columns)


def _series(rows: list[dict[str, Any]]) -> list[tuple[int, str, str]]:
    """Give every n its colour and marker."""
    return list(zip(sorted({row["n"] for row in rows}), _COLOURS, _MARKERS, strict=False))


def _curve(rows: list[dict[str, Any]], rule: str, size: int, key: str) -> tuple[list[float], list[float]]:
    chosen = [row for row in rows if row["rule"] == rule and row["n"] == size]
    return [row["T"] for row in chosen], [row[key] for row in chosen]


def _convergence(results: Results) -> "Figure":
    figure, axes = _panels(2)
    rows = results["convergence"]
    slopes = {(fit["rule"], fit["n"]): fit["slope"] for fit in results["slopes"]}
    titles = {"stated": "the paper's step sizes", "balanced": "balanced step sizes"}
    for axis, (rule, title) in zip(axes, titles.items(), strict=True):
        for size, colour, marker in _series(rows):
            slope = slopes[rule, size]
            label = f"n = {size}" + ("" if slope is None else f", slope −{-slope:.2f}")
            axis.loglog(*_curve(rows, rule, size, "gap"), color=colour, marker=marker, markersize=5, label=label)
            axis.loglog(*_curve(rows, rule, size, "stated_bound"), color=colour, linestyle="--", linewidth=1)
        above = [row for row in rows if row["rule"] == rule and row["gap"] > row["stated_bound"]]
        if above:
            x, y = [row["T"] for row in above], [row["gap"] for row in above]
            axis.plot(x, y, "o", color="black", markerfacecolor="none", markersize=12, label="above its bound")
        axis.plot([], [], color=_GREY, linestyle="--", linewidth=1, label="bound of Proposition 2")
        axis.set(title=title, xlabel="steps T", ylabel="duality gap")
        axis.legend(frameon=False, fontsize=8, loc="lower left")
    limits = [bound for axis in axes for bound in axis.get_ylim()]
    for axis in axes:
        axis.set_ylim(min(limits) / 6, max(limits))  # room for the legends
    return figure


def _separation(results: Results) -> "Figure":
    figure, (left, right) = _panels(2)
    rows = results["convergence"]
    for size, colour, marker in _series(rows):
        look = {"color": colour, "marker": marker, "markersize": 5}
        left.semilogx(*_curve(rows, "balanced", size, "confident"), label=f"n = {size}", **look)
        left.semilogx(*_curve(rows, "stated", size, "confident"), linestyle=":", **look)
    left.plot([], [], color=_GREY, linestyle=":", label="paper's steps")
    left.set(title="weights within 0.1 of where they belong", xlabel="steps T", ylabel="share of samples")
    _legend_above_one(left, columns=3)

    rows = results["violation"]
    x = [row["separation"] for row in rows]
    series: dict[str, tuple[str, dict[str, Any]]] = {
        "right_at_saddle": ("right side of ½, saddle point", {"markersize": 10, "markerfacecolor": "none"}),
        "right_by_algorithm": ("right side of ½, Algorithm 1", {"markersize": 5}),
        "certified": ("draws known to satisfy Assumption 1", {"markersize": 5, "linestyle": "--"}),
    }
    for (key, (label, style)), colour, marker in zip(series.items(), _COLOURS, _MARKERS, strict=False):
        right.plot(x, [row[key] for row in rows], color=colour, marker=marker, label=label, **style)
    right.set(title="bringing P₀ and P₁ together", xlabel="separation of the labels' intercepts", ylim=(-0.03, 1.05))
    right.set_ylabel("share")
    right.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def _eta_beta(cases: Results) -> "Figure":
    figure, (left, right) = _panels(2)
    labels = {"separated": "separated", "crossing": "not separated"}
    for (name, label), colour, marker in zip(labels.items(), _COLOURS, _MARKERS, strict=False):
        rows = cases[name]["rows"]
        x = [row["eta_beta"] for row in rows]
        left.loglog(x, [row["gap"] for row in rows], color=colour, marker=marker, markersize=5, label=label)
        left.loglog(x, [row["provable_bound"] for row in rows], color=colour, linestyle="--", linewidth=1)
    left.plot([], [], color=_GREY, linestyle="--", linewidth=1, label="provable bounds")
    left.axvline(cases["separated"]["balanced_eta_beta"], color=_GREY, linewidth=0.8)
    left.text(cases["separated"]["balanced_eta_beta"] * 1.2, 7e-4, "balanced", color=_GREY, fontsize=8)
    left.set(title="gap after 150 epochs", xlabel=r"$\eta_\beta$", ylabel="duality gap", ylim=(5e-4, 1e3))
    left.legend(frameon=False, fontsize=8, loc="upper left")

    case = cases["crossing"]
    shown = [min(case["rows"], key=lambda row: abs(row["eta_beta"] - eta)) for eta in (1 / 64, 1, 64)]
    for row, colour, style in zip(shown, _COLOURS, ("--", "-", ":"), strict=False):
        for number, path in enumerate(row["paths"]):
            name = "_" if number else rf"$\eta_\beta$ = {row['eta_beta']:.2g}"  # one entry in the legend
            right.plot(path, style, color=colour, linewidth=1.2, label=name)
    right.axhline(case["saddle_beta"][case["undecided"]], color="black", linewidth=1, label="saddle point")
    right.set(title=r"$\beta$ of a sample that is on neither side", xlabel="epoch", ylabel=r"$\beta$")
    _legend_above_one(right, columns=2)
    return figure


def _lambda(sweep: Results) -> "Figure":
    figure, (axis,) = _panels(1)
    rows = sweep["rows"]
    x = [row["lambda_ac"] for row in rows]
    for key, label, colour, marker in (
        ("beta_dense", "label-dense", _COLOURS[1], "s"),
        ("beta_sparse", "label-sparse", _COLOURS[0], "o"),
    ):
        axis.semilogx(x, [row[key]["mean"] for row in rows], color=colour, marker=marker, markersize=5, label=label)
        lowest, highest = ([row[key][end] for row in rows] for end in ("low", "high"))
        axis.fill_between(x, lowest, highest, color=colour, alpha=0.2)
    low, high = sweep["lambda_range"]
    if low is not None and low < high:
        axis.axvspan(low, high, color="#009E73", alpha=0.15, label="Assumption 1 holds")
    axis.set(xlabel=r"$\lambda$", ylabel=r"$\beta$ after 150 epochs")
    _legend_above_one(axis, columns=2)
    return figure


def _thresholding(comparison: Results) -> "Figure":
    figure, (left, right) = _panels(2)
    rows = comparison["rows"]
    adawac = next(row for row in rows if row["method"] == "adawac")
    for method, colour, marker in (("trim-ratio", _COLOURS[1], "s"), ("trim-ratio+acr", _COLOURS[2], "^")):
        chosen = [row for row in rows if row["method"] == method]
        keeps = [row["keep"] for row in chosen]
        if method == "trim-ratio":
            share = [row["right"] for row in chosen]
            left.plot(keeps, share, color=colour, marker=marker, label="trim-ratio, with or without ACR")
        right.plot(keeps, [row["excess"] for row in chosen], color=colour, marker=marker, label=method)
    for axis, key in ((left, "right"), (right, "excess")):
        axis.axhline(adawac[key], color=_COLOURS[0], linewidth=2, label="AdaWAC, which needs no number")
        axis.axvline(comparison["dense"], color=_GREY, linewidth=0.8, linestyle=":", label="true number of label-dense")
        axis.set(xlabel=f"samples kept, of {comparison['n']}", xticks=range(0, comparison["n"] + 1, 4))
    left.set(title="samples treated as what they are", ylabel="share", ylim=(0, 1.05))
    right.set(title="distance from the game's value", ylabel="excess of the worst-case loss")
    left.legend(frameon=False, fontsize=8, loc="lower left")
    right.legend(frameon=False, fontsize=8, loc="center right")
    return figure


def _example(example: Results) -> "Figure":
    figure, (axis,) = _panels(1)
    x, y = example["offsets"], example["profile"]
    axis.plot(x, y, color=_COLOURS[0], linewidth=2, label=r"$\ell_\mathrm{CE}$ along a line through $\theta^*$")
    chord = "chord: a convex function stays below"
    axis.plot([x[0], x[-1]], [y[0], y[-1]], color=_COLOURS[1], linestyle="--", label=chord)
    axis.set(title="the paper's bilinear Example", ylabel=r"$\ell_\mathrm{CE}$ of one sample")
    axis.set_xlabel(r"position in the ball, from $-\gamma$ to $\gamma$")
    axis.legend(frameon=False, fontsize=8, loc="lower center")
    return figure


_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """How finely each experiment samples its axis."""

    sizes: Sequence[int] = (2, 4, 8, 16)
    horizons: Sequence[int] = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000)
    num_seeds: int = 8
    num_instances: int = 8
    separations: Sequence[float] = (0, 1, 2, 3, 4, 5, 6)
    radii: Sequence[float] = (0.1, 0.25, 0.5, 0.75, 1)
    etas: Sequence[float] = tuple(4.0**power for power in range(-6, 5))
    factors: Sequence[float] = tuple(2 ** (power / 2) for power in range(-8, 9))
    keeps: Sequence[int] = (1, 2, 4, 6, 8, 12, 16)


_QUICK = _Plan(
    sizes=[2, 4],
    horizons=[500, 2_000],
    num_seeds=2,
    num_instances=2,
    separations=[0, 3, 6],
    radii=[0.1, 1],
    etas=[4.0**power for power in range(-6, 5, 3)],
    factors=[1 / 16, 1, 16],
    keeps=[2, 4, 8],
)


# Experiments, and the drawing: `run` announces each as it begins.
_PARTS = 6


def run(
    out: Path, quick: bool = False, seed: int = 0, watch: Callable[[str, int, int], None] | None = None
) -> dict[str, Any]:
    """Measure everything, write `theory.json` and the figures to `out`, and return the numbers.

    Args:
        out: a folder; it is made where it does not exist.
        quick: shorter runs and coarser sweeps, for a first look.
        seed: of the instances and of Algorithm 1's draws.
        watch: called with what begins, how many parts are done, and of how many; writes to the log by default.
    """
    if seed < 0:
        raise ConfigError(f"Expected a seed of 0 or more, but got {seed}. Give another one.")
    try:
        out.mkdir(parents=True, exist_ok=True)  # before a minute of work is done for nothing
    except OSError as error:
        raise ConfigError(
            f"Expected a folder for the figures, but {out} cannot be made ({error.strerror}). Give another one."
        ) from error
    plan = _QUICK if quick else _Plan()
    results: dict[str, Any] = {"seed": seed, "quick": quick}
    begin = watch or (lambda what, done, total: _log.info("%s (%d of %d)", what, done + 1, total))
    begin("Algorithm 1", 0, _PARTS)
    results["instances"] = [experiments.describe(build_instance(size, seed=seed)) for size in plan.sizes]
    results["convergence"] = experiments.convergence(plan.sizes, plan.horizons, num_seeds=plan.num_seeds, seed=seed)
    results["slopes"] = experiments.slopes(results["convergence"])
    begin("where the samples are not separated", 1, _PARTS)
    results["violation"] = experiments.violation(plan.separations, plan.num_instances, seed=seed)
    results["radius"] = experiments.radius_sweep(plan.radii, plan.num_instances, seed=seed)
    begin("eta_beta and lambda", 2, _PARTS)
    results["eta_beta"] = experiments.eta_sweep(plan.etas, plan.num_seeds, seed)
    results["lambda_ac"] = experiments.lambda_sweep(plan.factors, seed=seed)
    begin("hard thresholding", 3, _PARTS)
    results["thresholding"] = experiments.thresholding(plan.keeps, num_seeds=plan.num_seeds, seed=seed)
    begin("what does not hold as stated", 4, _PARTS)
    results["claims"] = experiments.claims()
    begin("the figures", 5, _PARTS)
    write_text(out / "theory.json", json.dumps(results, indent=1, allow_nan=False) + "\n")
    draw(results, out)
    return results
