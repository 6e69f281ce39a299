"""Step sizes for Algorithm 1, what they guarantee (Proposition 2, and what its proof supports), and what does not hold.

Let R_θ² = γ²/2 and R_β² = n·log 2 be the extents of F_γ and of the weights in their mirror maps. For any two constant
step sizes, stochastic mirror descent (Nemirovski et al., 2009, Section 3) from θ_0 = θ* and β_0 = 1/2, the centres of
both, keeps its averages' mean duality gap below

    2·(R_θ²/η_θ + R_β²/η_β)/T + 5/2·(η_θ·C_θ² + η_β·C_β²).

Each block has a step size of its own at which its two terms are equal and their sum is smallest (`balanced_steps`); the
bound is then a little below that of Proposition 2. The proposition itself gives both blocks the same step size
(`stated_steps`), for which the first term is about n times larger, so that its bound does not hold.

The gap is exact: the inner maximum in closed form, the inner minimum by SciPy, with a certificate.
"""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize, root
from torch import Tensor

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


# -- claims of the paper that do not hold as they are stated, each shown at a concrete point ---------------------------


class NonConvexity(NamedTuple):
    """How far the paper's Example is from convex: the cross-entropy at θ*, and the set of parameters."""

    gamma: float
    norms: tuple[float, float]
    """‖θ_e‖ and ‖θ_d‖ at θ*: it lies on the spheres."""
    largest_latent: float
    """max |xᵀθ_e*|, which the Example wants to be O(1)."""
    eigenvalue: float
    """The smallest of the Hessian of one sample's ℓ_CE at θ*; negative: not convex."""
    eigenvalue_on_spheres: float
    """The same along the two spheres; negative: not convex along great circles either."""
    missing_term: float
    """‖Hessian − what the paper's proof calls the Hessian − the cross term [0 xgᵀ; gxᵀ 0]‖."""
    midpoint_excess: float
    """ℓ_CE(midpoint) − mean of ℓ_CE at two points of the ball whose midpoint is θ*; positive: not convex."""
    midpoint_norm: float
    """‖θ_e‖ half-way between two points of F_γ; below 1: the midpoint has left the sphere, so F_γ is not convex."""
    offsets: Array
    """Positions on the line through those two points, from −γ to γ."""
    profile: Array
    """ℓ_CE along that line."""


def bilinear_example(num_pixels: int = 16, num_samples: int = 64, seed: int = 0) -> NonConvexity:
    """Examine the paper's Example f(x) = σ(θ_d θ_eᵀ x), θ_e and θ_d on unit spheres, γ = 1/sqrt(d)."""
    random = np.random.default_rng(seed)
    images = torch.from_numpy(random.random((num_samples, num_pixels)))
    labels = torch.from_numpy((random.random((num_samples, num_pixels)) < images.numpy()).astype(float))
    star = _bilinear_minimiser(images, labels, random.normal(size=2 * num_pixels))
    curvatures = [torch.linalg.eigvalsh(_hessian(star, x, y))[0] for x, y in zip(images, labels, strict=True)]
    x, y = (data[int(np.argmin(curvatures))] for data in (images, labels))

    hessian, gamma = _hessian(star, x, y), num_pixels**-0.5
    eigenvalues, vectors = torch.linalg.eigh(hessian)
    offsets = torch.linspace(-gamma, gamma, 65, dtype=torch.float64)
    profile = torch.stack([_bilinear_loss(star + offset * vectors[:, 0], x, y) for offset in offsets])
    theta_e, theta_d = star.chunk(2)
    return NonConvexity(
        gamma=gamma,
        norms=(float(theta_e.norm()), float(theta_d.norm())),
        largest_latent=float((images @ theta_e).abs().max()),
        eigenvalue=float(eigenvalues[0]),
        eigenvalue_on_spheres=_smallest_on_spheres(star, x, y, hessian),
        missing_term=float((hessian - _stated_hessian(star, x, y) - _cross_term(star, x, y)).norm()),
        midpoint_excess=float(profile[32] - (profile[0] + profile[-1]) / 2),
        midpoint_norm=_midpoint_norm(theta_e, gamma),
        offsets=offsets.numpy(),
        profile=profile.numpy(),
    )


def _bilinear_loss(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    theta_e, theta_d = theta.chunk(2)
    scores = (x @ theta_e).unsqueeze(-1) * theta_d
    return F.binary_cross_entropy_with_logits(scores, y)


def _bilinear_minimiser(images: Tensor, labels: Tensor, start: Array) -> Tensor:
    """Return a minimiser of the mean cross-entropy over both spheres; the search is over vectors of any length."""

    def on_spheres(free: Tensor) -> Tensor:
        return torch.cat([F.normalize(part, dim=0) for part in free.chunk(2)])

    def objective(free: Array) -> tuple[float, Array]:
        theta = torch.from_numpy(free).requires_grad_()
        loss = _bilinear_loss(on_spheres(theta), images, labels)
        (gradient,) = torch.autograd.grad(loss, theta)
        return loss.item(), gradient.numpy()

    result = minimize(objective, start, jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-10})
    return on_spheres(torch.from_numpy(result.x))


def _hessian(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    hessian: Tensor = torch.autograd.functional.hessian(lambda free: _bilinear_loss(free, x, y), theta)
    return hessian


def _stated_hessian(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return JᵀWJ, which the paper's proof takes for the Hessian; W is the Hessian in the logits z, J = ∂z/∂θ."""
    theta_e, theta_d = theta.chunk(2)
    jacobian = torch.cat([torch.outer(theta_d, x), (x @ theta_e) * torch.eye(len(x), dtype=x.dtype)], 1)
    p = ((x @ theta_e) * theta_d).sigmoid()
    return jacobian.T @ ((p * (1 - p) / len(x)).unsqueeze(1) * jacobian)


def _cross_term(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return Σ_j (∂ℓ/∂z_j)·∇²z_j, which z = θ_d θ_eᵀ x has because it is bilinear."""
    theta_e, theta_d = theta.chunk(2)
    block = torch.outer(x, (((x @ theta_e) * theta_d).sigmoid() - y) / len(x))
    zero = torch.zeros_like(block)
    return torch.cat([torch.cat([zero, block], 1), torch.cat([block.T, zero], 1)])


def _smallest_on_spheres(theta: Tensor, x: Tensor, y: Tensor, hessian: Tensor) -> float:
    """Return the smallest eigenvalue of the Riemannian Hessian: tangent directions, and the spheres' own bend."""
    gradient = torch.autograd.functional.jacobian(lambda free: _bilinear_loss(free, x, y), theta)
    size = len(theta) // 2
    bend = [
        gradient[part] @ theta[part] * torch.eye(size, dtype=theta.dtype) for part in (slice(size), slice(size, None))
    ]
    tangent = torch.block_diag(*[torch.linalg.svd(part.unsqueeze(0)).Vh[1:].T for part in theta.chunk(2)])
    return float(torch.linalg.eigvalsh(tangent.T @ (hessian - torch.block_diag(*bend)) @ tangent)[0])


def _midpoint_norm(theta_e: Tensor, gamma: float) -> float:
    """Return the norm half-way between two unit vectors that lie at distance γ on either side of θ_e."""
    sideways = torch.linalg.svd(theta_e.unsqueeze(0)).Vh[1]
    angle = 2 * np.arcsin(gamma / 2)
    ends = [np.cos(angle) * theta_e + sign * np.sin(angle) * sideways for sign in (1, -1)]
    return float((ends[0] + ends[1]).norm() / 2)


def vertex_shortfall(instance: Instance) -> float:
    """Return how far the best β in {0, 1}^n stays below the saddle point's value; positive: none of them is a saddle.

    The proof of Proposition 1 finds one before it uses that the samples are separated: it replaces β_i where
    ℓ_CE = R_AC by 0 or 1, after which θ need no longer be the minimiser. All 2^n vertices are tried.
    """
    vertices = itertools.product((0.0, 1.0), repeat=instance.num_samples)
    best = max(inner_minimum(instance, np.array(vertex)).value for vertex in vertices)
    return saddle_point(instance).value - best


def multiplicative_update(beta: Tensor, ell_ce: Tensor, reg_ac: Tensor, eta_beta: float) -> Tensor:
    """Return β after lines 5-8 of Algorithm 1, multiplied and normalised as they are printed."""
    first = beta * torch.exp(eta_beta * ell_ce)
    second = (1 - beta) * torch.exp(eta_beta * reg_ac)
    return first / (first + second)


def returns_from(num_steps: int, dtype: torch.dtype = torch.float64) -> float:
    """Return β after `num_steps` steps of +1 in log-odds and as many of −1, in the multiplicative form; ½ if exact."""
    beta, high, low = torch.tensor(0.5, dtype=dtype), torch.ones((), dtype=dtype), torch.zeros((), dtype=dtype)
    for ell_ce, reg_ac in [(high, low)] * num_steps + [(low, high)] * num_steps:
        beta = multiplicative_update(beta, ell_ce, reg_ac, 1.0)
    return float(beta)
