"""The experiments behind `adawac theory`: each returns plain numbers, ready for JSON and for a figure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from adawac.theory.descent import Trajectory, hard_thresholding, run_algorithm
from adawac.theory.guarantee import (
    StepRule,
    Steps,
    balanced_steps,
    bilinear_example,
    duality_gap,
    eta_beta_for,
    inner_maximum,
    provable_bound,
    returns_from,
    saddle_point,
    stated_bound,
    stated_steps,
    steps_to_converge,
    vertex_shortfall,
)
from adawac.theory.instance import (
    Array,
    Instance,
    bounded_constants,
    build_instance,
    lambda_range,
    margins,
    sampled_constants,
    theta_star_of,
)

RULES: Mapping[str, StepRule] = {"stated": stated_steps, "balanced": balanced_steps}
EPOCHS = 150  # as the paper trains
ETA_THETA = 0.05  # of the experiments that are about η_β and λ
CONFIDENT = 0.1  # a sample counts as separated when its weight is this close to 0 or 1

Numbers = dict[str, Any]


def describe(instance: Instance) -> Numbers:
    """Return the numbers that Propositions 1 and 2 are about."""
    bounded, sampled = bounded_constants(instance), sampled_constants(instance)
    return {
        "n": instance.num_samples,
        "dense": int(instance.dense.sum()),
        "gamma": instance.gamma,
        "lambda_ac": instance.lambda_ac,
        "lambda_range": [_finite(limit) for limit in lambda_range(instance)],
        "margin": float(margins(instance).min()),
        "c_theta": bounded.c_theta,
        "c_beta": bounded.c_beta,
        "c_theta_at_least": sampled.c_theta,
        "c_beta_at_least": sampled.c_beta,
        "converges_from": {name: _finite(steps_to_converge(instance, rule)) for name, rule in RULES.items()},
    }


def convergence(
    sizes: Sequence[int],
    horizons: Sequence[int],
    rules: Sequence[str] = tuple(RULES),
    num_seeds: int = 8,
    seed: int = 0,
) -> list[Numbers]:
    """Measure gap and separation against T for several n, at the paper's step size and at the balanced ones."""
    kinds = [(rule, build_instance(size, seed=seed)) for rule in rules for size in sizes]
    rows = []
    for horizon in horizons:
        runs = [Trajectory(instance, RULES[rule](instance, horizon)) for rule, instance in kinds]
        results = run_algorithm(runs, horizon, num_seeds=num_seeds, seed=seed)
        for (rule, instance), run, result in zip(kinds, runs, results, strict=True):
            gaps = _gaps(instance, result.theta, result.beta)
            rows.append(
                {
                    "rule": rule,
                    "n": instance.num_samples,
                    "T": horizon,
                    "eta_theta": run.steps.eta_theta,
                    "eta_beta": run.steps.eta_beta,
                    "gap": float(gaps.mean()),
                    "gap_spread": float(gaps.std()),
                    "stated_bound": stated_bound(instance, horizon),
                    "provable_bound": provable_bound(instance, horizon, run.steps),
                    "converges_from": _finite(steps_to_converge(instance, RULES[rule])),
                    **_separation(instance, result.beta),
                }
            )
    return rows


def slopes(rows: Sequence[Numbers]) -> list[Numbers]:
    """Fit the slope of log gap over log T for each rule and n, where the 1/sqrt(T) regime has been reached."""
    fitted = []
    for rule, size in sorted({(row["rule"], row["n"]) for row in rows}):
        curve = [row for row in rows if (row["rule"], row["n"]) == (rule, size)]
        curve = [row for row in curve if row["converges_from"] is not None and row["T"] >= row["converges_from"]]
        fit, last = (_slope(part) if len(part) > 1 else None for part in (curve, curve[-2:]))
        fitted.append({"rule": rule, "n": size, "points": len(curve), "slope": fit, "last_slope": last})
    return fitted


def violation(separations: Sequence[float], num_instances: int = 8, size: int = 16, seed: int = 0) -> list[Numbers]:
    """Bring P₀ and P₁ together until Assumption 1 fails; count what is separated still, exactly and by Algorithm 1."""
    instances = [
        [build_instance(size, separation=separation, seed=seed + number) for number in range(num_instances)]
        for separation in separations
    ]
    runs = [Trajectory(instance, balanced_steps(instance, EPOCHS * size)) for group in instances for instance in group]
    results = run_algorithm(runs, EPOCHS * size, num_seeds=2, seed=seed)
    rows = []
    for number, (separation, group) in enumerate(zip(separations, instances, strict=True)):
        averages = results[number * num_instances : (number + 1) * num_instances]
        separated = [_separation(instance, result.beta) for instance, result in zip(group, averages, strict=True)]
        rows.append(
            {
                "separation": separation,
                "certified": _mean([float(margins(instance).min() > 0) for instance in group]),
                "margin": _mean([float(margins(instance).min()) for instance in group]),
                "right_at_saddle": _mean([_right(instance, saddle_point(instance).beta) for instance in group]),
                "right_by_algorithm": _mean([shares["right"] for shares in separated]),
                "confident_by_algorithm": _mean([shares["confident"] for shares in separated]),
            }
        )
    return rows


def radius_sweep(radii: Sequence[float], num_instances: int = 4, size: int = 16, seed: int = 0) -> list[Numbers]:
    """Enlarge F_γ until Assumption 1 fails, and count what the saddle point still separates."""
    rows = []
    for gamma in radii:
        group = [build_instance(size, gamma=gamma, seed=seed + number) for number in range(num_instances)]
        saddles = [saddle_point(instance) for instance in group]
        right = [_right(instance, saddle.beta) for instance, saddle in zip(group, saddles, strict=True)]
        rows.append(
            {
                "gamma": gamma,
                "certified": _mean([float(margins(instance).min() > 0) for instance in group]),
                "right_at_saddle": _mean(right),
                "undecided": _mean([float(((saddle.beta > 0.01) & (saddle.beta < 0.99)).mean()) for saddle in saddles]),
                "largest_gap": max(saddle.gap for saddle in saddles),
            }
        )
    return rows


def eta_sweep(etas: Sequence[float], num_seeds: int = 8, seed: int = 0) -> Numbers:
    """Vary η_β over 150 epochs on two instances: a separated one, and one whose ball is so large that terms cross."""
    cases: dict[str, Numbers] = {}
    instances = {"separated": build_instance(8, seed=seed), "crossing": build_instance(8, gamma=1.0, seed=seed)}
    for name, instance in instances.items():
        horizon = EPOCHS * instance.num_samples
        runs = [Trajectory(instance, Steps(ETA_THETA, eta)) for eta in etas]
        saddle = saddle_point(instance)
        undecided = int(np.argmin(np.abs(saddle.beta - 0.5)))
        rows = []
        results = run_algorithm(runs, horizon, num_seeds=num_seeds, seed=seed, record_every=instance.num_samples)
        for run, result in zip(runs, results, strict=True):
            rows.append(
                {
                    "eta_beta": run.steps.eta_beta,
                    "gap": float(_gaps(instance, result.theta, result.beta).mean()),
                    "provable_bound": provable_bound(instance, horizon, run.steps),
                    "from_saddle": float(np.abs(result.beta - saddle.beta).mean()),
                    "swing": float(result.path[EPOCHS // 2 :].std(0).mean(0)[undecided]),
                    "paths": result.path[:, :4, undecided].T.tolist(),
                    **_separation(instance, result.beta),
                }
            )
        cases[name] = {
            **describe(instance),
            "saddle_beta": saddle.beta.tolist(),
            "undecided": undecided,
            "balanced_eta_beta": eta_beta_for(bounded_constants(instance).c_beta, EPOCHS),
            "stated_eta_beta": stated_steps(instance, horizon).eta_beta,
            "rows": rows,
        }
    return cases


def lambda_sweep(factors: Sequence[float], size: int = 16, num_seeds: int = 2, seed: int = 0) -> Numbers:
    """Vary λ, and see on which side the weights of label-dense and label-sparse samples end up after 150 epochs."""
    middle = build_instance(size, seed=seed)
    instances = [replace(middle, lambda_ac=middle.lambda_ac * factor) for factor in factors]
    eta_beta = eta_beta_for(bounded_constants(middle).c_beta, EPOCHS)
    runs = [Trajectory(instance, Steps(ETA_THETA, eta_beta)) for instance in instances]
    results = run_algorithm(runs, EPOCHS * size, num_seeds=num_seeds, seed=seed)
    rows = []
    for instance, result in zip(instances, results, strict=True):
        last = result.path[-1]
        rows.append(
            {
                "lambda_ac": instance.lambda_ac,
                "beta_dense": _spread(last[:, instance.dense]),
                "beta_sparse": _spread(last[:, ~instance.dense]),
                "right": _right(instance, last),
            }
        )
    return {
        "lambda_range": [_finite(limit) for limit in lambda_range(middle)],
        "lambda_ac": middle.lambda_ac,
        "eta_beta": eta_beta,
        "rows": rows,
    }


def thresholding(keeps: Sequence[int], size: int = 16, num_seeds: int = 8, seed: int = 0) -> Numbers:
    """Compare AdaWAC with hard thresholding for several numbers of kept samples, also on fresh samples."""
    instance, horizon = build_instance(size, gamma=0.25, seed=seed), EPOCHS * size
    fresh = build_instance(1024, xi=0.5, lambda_ac=instance.lambda_ac, seed=seed + 1)
    value = saddle_point(instance).value

    def scores(method: str, keep: int | None, theta: Array, beta: Array) -> Numbers:
        terms = [fresh.terms(point) for point in theta]
        return {
            "method": method,
            "keep": keep,
            "right": _right(instance, beta),
            "excess": _mean([inner_maximum(instance, point) for point in theta]) - value,
            "ce_sparse": _mean([float(term.ell_ce[~fresh.dense].mean()) for term in terms]),
            "ce_dense": _mean([float(term.ell_ce[fresh.dense].mean()) for term in terms]),
            "reg_ac": _mean([float(term.reg_ac.mean()) for term in terms]),
        }

    eta_beta = eta_beta_for(bounded_constants(instance).c_beta, EPOCHS)
    run = Trajectory(instance, Steps(ETA_THETA, eta_beta))
    (adawac,) = run_algorithm([run], horizon, num_seeds=num_seeds, seed=seed)
    rows = [
        scores("start", None, instance.theta_star[None], np.full((1, size), 0.5)),
        scores("adawac", None, adawac.theta, adawac.beta),
    ]
    for method, acr in (("trim-ratio", False), ("trim-ratio+acr", True)):
        results = hard_thresholding(instance, keeps, horizon, ETA_THETA, acr=acr, num_seeds=num_seeds, seed=seed)
        rows += [scores(method, keep, *result) for keep, result in zip(keeps, results, strict=True)]
    return {**describe(instance), "rows": rows}


def claims() -> Numbers:
    """Put numbers to what does not hold as stated: the Example's convexity, vertex saddle points, one θ* for all ξ."""
    example = bilinear_example()
    crossing = build_instance(4, gamma=1.0)
    stars = {xi: theta_star_of(xi, 6.0) for xi in (0.0, 0.25, 1.0)}
    return {
        "example": {**example._asdict(), "offsets": example.offsets.tolist(), "profile": example.profile.tolist()},
        "vertices": {
            "shortfall": vertex_shortfall(crossing),
            "shortfall_separated": vertex_shortfall(build_instance(4)),
            "saddle_beta": saddle_point(crossing).beta.tolist(),
        },
        "theta_star": {str(xi): star.tolist() for xi, star in stars.items()},
        "theta_star_distance": float(np.linalg.norm(stars[0.0] - stars[1.0])),
        "multiplicative": {
            str(dtype).removeprefix("torch."): {str(steps): returns_from(steps, dtype) for steps in (6, 16, 18, 36, 37)}
            for dtype in (torch.float32, torch.float64)
        },
    }


def _slope(rows: Sequence[Numbers]) -> float:
    return float(np.polyfit(np.log([row["T"] for row in rows]), np.log([row["gap"] for row in rows]), 1)[0])


def _gaps(instance: Instance, thetas: Array, betas: Array) -> Array:
    return np.array([duality_gap(instance, theta, beta) for theta, beta in zip(thetas, betas, strict=True)])


def _separation(instance: Instance, beta: Array) -> Numbers:
    distance = np.abs(beta - instance.dense)
    return {
        "right": float((distance < 0.5).mean()),
        "confident": float((distance < CONFIDENT).mean()),
        "distance": float(distance.mean()),
    }


def _right(instance: Instance, beta: Array) -> float:
    return float(_separation(instance, beta)["right"])


def _finite(value: float) -> float | None:
    """Return the number, or None for an infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _spread(beta: Array) -> Numbers:
    return {"mean": float(beta.mean()), "low": float(beta.min()), "high": float(beta.max())}
