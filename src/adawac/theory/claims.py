"""Claims of the paper that do not hold as they are stated, each shown at a concrete point."""

import itertools
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor

from adawac.theory.guarantee import inner_minimum, saddle_point
from adawac.theory.instance import Array, Instance


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
