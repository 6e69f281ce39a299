"""Step sizes for Algorithm 1, what they guarantee (Proposition 2, and what its proof supports), and the duality gap.

Let R_θ² = γ²/2 and R_β² = n·log 2 be the extents of F_γ and of the weights in their mirror maps. For any two constant
step sizes, stochastic mirror descent (Nemirovski et al., 2009, Section 3) from θ_0 = θ* and β_0 = 1/2, the centres of
both, keeps its averages' mean duality gap below

    2·(R_θ²/η_θ + R_β²/η_β)/T + 5/2·(η_θ·C_θ² + η_β·C_β²).

Each block has a step size of its own at which its two terms are equal and their sum is smallest (`balanced_steps`); the
bound is then a little below that of Proposition 2. The proposition itself gives both blocks the same step size
(`stated_steps`), for which the first term is about n times larger, so that its bound does not hold.

The gap is exact: the inner maximum in closed form, the inner minimum by SciPy, with a certificate.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize, root

from adawac.errors import AdawacError
from adawac.theory.instance import Array, Instance, bounded_constants, margins


class Steps(NamedTuple):
    """The two step sizes of Algorithm 1."""

    eta_theta: float
    eta_beta: float


StepRule = Callable[[Instance, int], Steps]


def stated_steps(instance: Instance, num_steps: int) -> Steps:
    """Return the paper's η_θ = η_β = 2 / sqrt(5T(γ²C_θ² + 2nC_β²)) (Proposition 2)."""
    eta = 4 / (num_steps * stated_bound(instance, num_steps))
    return Steps(eta, eta)


def stated_bound(instance: Instance, num_steps: int) -> float:
    """Return the paper's bound 2·sqrt(5(γ²C_θ² + 2nC_β²)/T) on the mean duality gap (Proposition 2)."""
    c_theta, c_beta = bounded_constants(instance)
    spread = (instance.gamma * c_theta) ** 2 + 2 * instance.num_samples * c_beta**2
    return 2 * math.sqrt(5 * spread / num_steps)


def balanced_steps(instance: Instance, num_steps: int) -> Steps:
    """Return the step sizes with the smallest provable bound: 2·R / (C·sqrt(5T)), with each block's own R and C."""
    constants = bounded_constants(instance)
    return Steps(*(2 * r / (c * math.sqrt(5 * num_steps)) for r, c in zip(_extents(instance), constants, strict=True)))


def eta_beta_for(c_beta: float, num_epochs: float) -> float:
    """Return the balanced η_β in a trainer's terms: 0.74 / (C_β·sqrt(epochs)), where an epoch draws n samples."""
    return 2 * math.sqrt(math.log(2) / (5 * num_epochs)) / c_beta


def provable_bound(instance: Instance, num_steps: int, steps: Steps) -> float:
    """Return a bound on the mean duality gap for any step sizes, for Algorithm 1 from θ_0 = θ* and with a projection.

    Beside the two terms of mirror descent it has one for the θ step's use of the weight that the same draw has just
    moved, which biases it by at most γ·η_β·C_θ·C_β, and one for averaging over t = 1, …, T instead of 0, …, T − 1.
    """
    c_theta, c_beta = bounded_constants(instance)
    r_theta, r_beta = _extents(instance)
    start = 2 * (r_theta**2 / steps.eta_theta + r_beta**2 / steps.eta_beta) / num_steps
    noise = 5 / 2 * (steps.eta_theta * c_theta**2 + steps.eta_beta * c_beta**2)
    order = instance.gamma * steps.eta_beta * c_theta * c_beta
    shift = (instance.gamma * c_theta + c_beta / 2) / num_steps
    return start + noise + order + shift


def steps_to_converge(instance: Instance, rule: StepRule = stated_steps) -> float:
    """Return the T from which on the gap falls as 1/sqrt(T): about 25·n³·(C_β/Δ)² for the paper's step size.

    After T steps the log-odds of a sample with margin Δ are about η_β·Δ·T/n. At this T they have reached sqrt(10).
    Where the samples are not separated, the answer is infinity.
    """
    margin = float(margins(instance).min())
    if margin <= 0:
        return math.inf
    growth = rule(instance, 1).eta_beta * margin / instance.num_samples  # η_β is as 1/sqrt(T)
    return 10 / growth**2


def _extents(instance: Instance) -> tuple[float, float]:
    """Return R_θ and R_β; the paper has n in place of n·log 2, which is larger and does no harm."""
    return instance.gamma / math.sqrt(2), math.sqrt(instance.num_samples * math.log(2))


TOLERANCE = 1e-8


class Minimum(NamedTuple):
    """A minimum over F_γ; the true one lies between value − certificate and value."""

    value: float
    theta: Array
    certificate: float


class SaddlePoint(NamedTuple):
    """A pair whose duality gap is `gap`; the game's value lies within it of `value`."""

    theta: Array
    beta: Array
    value: float
    gap: float


def inner_maximum(instance: Instance, theta: Array) -> float:
    """Return max over β of L(θ, β): every sample takes the larger of its two terms."""
    terms = instance.terms(theta)
    return float(np.maximum(terms.ell_ce, terms.reg_ac).mean())


def inner_minimum(instance: Instance, beta: Array, tolerance: float = TOLERANCE) -> Minimum:
    """Return min over θ in F_γ of L(θ, β), a smooth convex problem, to a certified `tolerance`.

    The certificate needs no trust in the solver: a convex function lies above its tangent at θ, and the lowest point of
    a tangent over a ball is known, so that L(θ) − min L ≤ ⟨∇L, θ − θ*⟩ + γ‖∇L‖.
    """
    centre, gamma = instance.theta_star, instance.gamma

    def objective(unit: Array) -> tuple[float, Array]:
        terms = instance.terms(centre + gamma * unit)
        value = beta @ terms.ell_ce + (1 - beta) @ terms.reg_ac
        gradient = beta @ terms.grad_ce + (1 - beta) @ terms.grad_ac
        return float(value / len(beta)), gamma * gradient / len(beta)

    def certified(unit: Array) -> Minimum:
        unit = unit / max(1.0, float(np.linalg.norm(unit)))
        value, gradient = objective(unit)
        return Minimum(value, centre + gamma * unit, float(gradient @ unit + np.linalg.norm(gradient)))

    ball = {"type": "ineq", "fun": lambda unit: 1 - unit @ unit, "jac": lambda unit: -2 * unit}
    options = {"ftol": 1e-15, "maxiter": 500}
    start = minimize(objective, np.zeros_like(centre), jac=True, method="SLSQP", constraints=[ball], options=options).x
    best = certified(start)
    if best.certificate > tolerance:  # inside the ball the objective is flat to SLSQP before its gradient is 0
        best = min(
            best, certified(root(lambda unit: objective(unit)[1], start, tol=1e-14).x), key=lambda m: m.certificate
        )
    if best.certificate <= tolerance:
        return best
    raise AdawacError(
        f"Expected the inner minimum to {tolerance:g}, but got it to {best.certificate:g} only. "
        "Give a larger tolerance, or an instance whose consistency term is not 0 inside the ball."
    )


def duality_gap(instance: Instance, theta: Array, beta: Array, tolerance: float = TOLERANCE) -> float:
    """Return max over β of L(θ, ·) − min over θ of L(·, β); it is at most `tolerance` below the true one."""
    return inner_maximum(instance, theta) - inner_minimum(instance, beta, tolerance).value


def saddle_point(instance: Instance, tolerance: float = 1e-6) -> SaddlePoint:
    """Return a saddle point (Proposition 1): the concave min over θ of L(θ, ·), maximised over [0, 1]^n.

    Its duality gap is the certificate, and no larger than `tolerance`.
    """

    def dual(beta: Array) -> tuple[float, Array]:
        minimum = inner_minimum(instance, beta)
        terms = instance.terms(minimum.theta)
        return -minimum.value, (terms.reg_ac - terms.ell_ce) / len(beta)

    beta, gap = np.full(instance.num_samples, 0.5), np.inf
    for method, options in (("L-BFGS-B", {"ftol": 1e-15, "gtol": 1e-10}), ("SLSQP", {"ftol": 1e-15, "maxiter": 500})):
        result = minimize(dual, beta, jac=True, bounds=[(0, 1)] * len(beta), method=method, options=options)
        beta = np.clip(result.x, 0, 1)
        minimum = inner_minimum(instance, beta)
        gap = inner_maximum(instance, minimum.theta) - minimum.value
        if gap <= tolerance:
            return SaddlePoint(minimum.theta, beta, minimum.value, gap)
    raise AdawacError(
        f"Expected a saddle point to {tolerance:g}, but got one to {gap:g} only. "
        "Give a larger tolerance or a smaller ball."
    )
