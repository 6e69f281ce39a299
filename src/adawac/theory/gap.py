"""The duality gap, exactly: the inner maximum in closed form, the inner minimum by SciPy, with a certificate."""

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize, root

from adawac.errors import AdawacError
from adawac.theory.instance import Array, Instance

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
