"""The saddle point and the convergence guarantee, shown numerically (Propositions 1 and 2).

`run` does it all. The parts are plain functions: a convex instance, Algorithm 1 through the training's own
`SampleWeights`, the duality gap with a certificate, step sizes and their bounds, hard thresholding, and what does not
hold as stated.
"""

from adawac.theory.descent import Averages, Trajectory, hard_thresholding, run_algorithm
from adawac.theory.guarantee import (
    Steps,
    balanced_steps,
    bilinear_example,
    duality_gap,
    eta_beta_for,
    inner_maximum,
    inner_minimum,
    multiplicative_update,
    provable_bound,
    returns_from,
    saddle_point,
    stated_bound,
    stated_steps,
    steps_to_converge,
    vertex_shortfall,
)
from adawac.theory.instance import Instance, bounded_constants, build_instance, lambda_range, margins, sampled_constants
from adawac.theory.study import run

__all__ = [
    "Averages",
    "Instance",
    "Steps",
    "Trajectory",
    "balanced_steps",
    "bilinear_example",
    "bounded_constants",
    "build_instance",
    "duality_gap",
    "eta_beta_for",
    "hard_thresholding",
    "inner_maximum",
    "inner_minimum",
    "lambda_range",
    "margins",
    "multiplicative_update",
    "provable_bound",
    "returns_from",
    "run",
    "run_algorithm",
    "saddle_point",
    "sampled_constants",
    "stated_bound",
    "stated_steps",
    "steps_to_converge",
    "vertex_shortfall",
]
