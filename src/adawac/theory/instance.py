"""A convex instance of the paper's problem: logistic pixels, a linear encoder, a mixture of sparse and dense labels.

A sample is an image of `num_pixels` pixels with three features each. The encoder is φ(x)_j = ⟨w, x_j⟩ and the decoder
ψ(z)_j = σ(z_j + b), so every logit is linear in θ = (w, b): the cross-entropy (Eq. 2) is convex in θ, and so is the
consistency R_AC = λ·rms(φ(A₁x) − φ(A₂x)) (Eq. 3), the norm of a linear function.

Label-sparse and label-dense samples share the distribution of x and differ in the intercept of their labels'
probabilities, σ(⟨w°, x_j⟩ + b_k): a concept shift whose size is `separation`.
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog, minimize
from scipy.special import expit
from scipy.stats import qmc

from adawac.errors import ConfigError

Array = NDArray[np.float64]

_TEACHER = np.array([2.0, -1.0, 1.0])
_SPARSE_INTERCEPT = -6.0  # about 0.6 % foreground
_JITTER = 0.5  # how far an augmentation may move a feature, which lies in [-1, 1]


class Terms(NamedTuple):
    """ℓ_CE and R_AC of every sample, and their gradients in θ."""

    ell_ce: Array
    reg_ac: Array
    grad_ce: Array
    grad_ac: Array


class Ranges(NamedTuple):
    """What ℓ_CE and R_AC of every sample can be, anywhere in F_γ."""

    ce_low: Array
    ce_high: Array
    ac_low: Array
    ac_high: Array


class Constants(NamedTuple):
    """C_θ and C_β of Proposition 2."""

    c_theta: float
    c_beta: float


@dataclass(frozen=True, kw_only=True)
class Instance:
    """n samples with their augmentations, and the ball F_γ around θ* in which θ = (w, b) lives."""

    pixels: Array
    """(n, d, 4): three features and a 1, which carries the intercept."""
    labels: NDArray[np.bool_]
    """(n, d): foreground or background."""
    views: Array
    """(2, n, d, 3): the features of A₁(x) and A₂(x)."""
    dense: NDArray[np.bool_]
    """(n,): drawn from P₁."""
    theta_star: Array
    """(4,): the minimiser of the expected cross-entropy under P_ξ."""
    gamma: float
    lambda_ac: float

    @property
    def num_samples(self) -> int:
        """The number of samples, n."""
        return len(self.labels)

    @cached_property
    def signed(self) -> Array:
        """(n, d, 4): the pixels, negated where they are foreground, so that ℓ_CE = mean log(1 + exp(signed·θ))."""
        return np.where(self.labels[..., None], -self.pixels, self.pixels)

    @cached_property
    def roots(self) -> Array:
        """(n, 4, 4): matrices H with R_AC = λ‖Hθ‖: the views' difference, squeezed from d rows to 4 by a QR."""
        difference = np.zeros_like(self.pixels)
        difference[..., :3] = self.views[0] - self.views[1]
        return np.asarray(np.linalg.qr(difference / np.sqrt(difference.shape[1]), mode="r"))

    def terms(self, theta: Array) -> Terms:
        """Return both terms and their gradients at θ (4,); where R_AC is 0, 0 is one of its subgradients."""
        scores = self.signed @ theta
        latent = self.roots @ theta
        reg_ac = self.lambda_ac * np.linalg.norm(latent, axis=1)
        direction = latent / np.maximum(np.linalg.norm(latent, axis=1, keepdims=True), np.finfo(float).tiny)
        return Terms(
            ell_ce=np.logaddexp(0, scores).mean(1),
            reg_ac=reg_ac,
            grad_ce=np.einsum("nd,ndq->nq", expit(scores), self.signed) / scores.shape[1],
            grad_ac=self.lambda_ac * np.einsum("nr,nrq->nq", direction, self.roots),
        )

    @cached_property
    def curvature(self) -> Array:
        """(n,): how fast the gradient of ℓ_CE can change: the largest eigenvalue of its Hessian is at most this."""
        bound: Array = np.linalg.norm(self.pixels, ord=2, axis=(1, 2)) ** 2 / (4 * self.pixels.shape[1])
        return bound

    @cached_property
    def ranges(self) -> Ranges:
        """Bounds over F_γ: a convex ℓ_CE lies above its tangent and below its parabola; R_AC is Lipschitz."""
        at = self.terms(self.theta_star)
        slope = self.gamma * np.linalg.norm(at.grad_ce, axis=1)
        reach = self.gamma * self.lambda_ac * np.linalg.norm(self.roots, ord=2, axis=(1, 2))
        return Ranges(
            ce_low=np.maximum(at.ell_ce - slope, 0),
            ce_high=at.ell_ce + slope + self.curvature * self.gamma**2 / 2,
            ac_low=np.maximum(at.reg_ac - reach, 0),
            ac_high=at.reg_ac + reach,
        )


def build_instance(
    num_samples: int,
    *,
    xi: float = 0.25,
    separation: float = 6.0,
    num_pixels: int = 64,
    gamma: float = 0.1,
    lambda_ac: float | None = None,
    seed: int = 0,
) -> Instance:
    """Return samples of P_ξ; round(ξn) of them, but not all and not none, are label-dense.

    Args:
        num_samples: n.
        xi: the share of label-dense samples; θ* is that of this mixture.
        separation: the difference of the two label distributions' intercepts; 0 makes P₀ and P₁ the same.
        num_pixels: d.
        gamma: the radius of F_γ.
        lambda_ac: λ; by default the one that leaves the largest margin between ℓ_CE and R_AC at θ*.
        seed: of the samples.
    """
    if num_samples < 2 or not 0 < xi < 1 or gamma <= 0 or num_pixels < 4:
        raise ConfigError(
            "Expected num_samples >= 2, 0 < xi < 1, gamma > 0 and num_pixels >= 4, "
            f"but got {num_samples}, {xi}, {gamma} and {num_pixels}. Change what is out of range."
        )
    random = np.random.default_rng(seed)
    dense = np.arange(num_samples) < np.clip(round(xi * num_samples), 1, num_samples - 1)
    features = random.uniform(-1, 1, (num_samples, num_pixels, len(_TEACHER)))
    intercept = _SPARSE_INTERCEPT + separation * dense
    labels = random.random(features.shape[:2]) < expit(features @ _TEACHER + intercept[:, None])
    instance = Instance(
        pixels=_with_one(features),
        labels=labels,
        views=features + random.uniform(-_JITTER, _JITTER, (2, *features.shape)),
        dense=dense,
        theta_star=theta_star_of(xi, separation),
        gamma=gamma,
        lambda_ac=1.0 if lambda_ac is None else lambda_ac,
    )
    return instance if lambda_ac is not None else replace(instance, lambda_ac=_widest_lambda(instance))


def margins(instance: Instance) -> Array:
    """Return how far each sample keeps to its side of ℓ_CE = R_AC, whatever θ in F_γ; all positive: separated.

    This is the condition inside Assumption 1, bounded from below; the bound is rigorous, so a negative number may still
    belong to a sample that is separated.
    """
    low, high, ac_low, ac_high = instance.ranges
    return np.where(instance.dense, low - ac_high, ac_low - high)


def lambda_range(instance: Instance) -> tuple[float, float]:
    """Return the λ between which the samples are certainly separated over F_γ; none, if the first is the larger."""
    low, high, ac_low, ac_high = instance.ranges
    with np.errstate(divide="ignore"):  # R_AC may vanish in a large ball: no λ is large enough
        smallest = (high / ac_low)[~instance.dense].max()
    largest = (low / ac_high)[instance.dense].min()
    return float(smallest * instance.lambda_ac), float(largest * instance.lambda_ac)


def bounded_constants(instance: Instance) -> Constants:
    """Return C_θ and C_β, bounded rigorously over all θ in F_γ and β in [0, 1]^n (Proposition 2)."""
    steepest_ce = (
        np.linalg.norm(instance.terms(instance.theta_star).grad_ce, axis=1) + instance.gamma * instance.curvature
    )
    steepest_ac = instance.lambda_ac * np.linalg.norm(instance.roots, ord=2, axis=(1, 2))
    return Constants(
        c_theta=_rms(np.maximum(steepest_ce, steepest_ac)),  # a mixture's gradient is no longer than the longer of two
        c_beta=_rms(np.maximum(instance.ranges.ce_high, instance.ranges.ac_high)),
    )


def sampled_constants(instance: Instance, count: int = 256, seed: int = 0) -> Constants:
    """Return what C_θ and C_β must be at least: the largest values met at random θ on the surface of F_γ."""
    directions = np.random.default_rng(seed).normal(size=(count, len(instance.theta_star)))
    directions *= instance.gamma / np.linalg.norm(directions, axis=1, keepdims=True)
    c_theta = c_beta = 0.0
    for direction in directions:
        ell_ce, reg_ac, *gradients = instance.terms(instance.theta_star + direction)
        c_theta = max(c_theta, _rms(np.linalg.norm(gradients, axis=2).max(0)))
        c_beta = max(c_beta, _rms(np.maximum(ell_ce, reg_ac)))
    return Constants(c_theta, c_beta)


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _with_one(features: Array) -> Array:
    return np.concatenate([features, np.ones((*features.shape[:-1], 1))], axis=-1)


@lru_cache
def theta_star_of(xi: float, separation: float) -> Array:
    """Return the minimiser of the expected cross-entropy under P_ξ: a logistic regression on label probabilities."""
    cube = qmc.Sobol(len(_TEACHER), scramble=False).random_base2(12)
    inputs = _with_one(2 * cube - 1)
    scores = inputs[:, :-1] @ _TEACHER + _SPARSE_INTERCEPT
    probability = (1 - xi) * expit(scores) + xi * expit(scores + separation)

    def expected(theta: Array) -> tuple[float, Array]:
        logits = inputs @ theta
        loss = np.mean(np.logaddexp(0, logits) - probability * logits)
        return float(loss), inputs.T @ (expit(logits) - probability) / len(inputs)

    solution = np.asarray(minimize(expected, np.zeros(inputs.shape[1]), jac=True, options={"gtol": 1e-9}).x)
    solution.setflags(write=False)  # the cache hands out the same array again
    return solution


def _widest_lambda(instance: Instance) -> float:
    """Return the λ with the largest smallest margin at θ*: a linear programme in λ and that margin (λ is 1 so far)."""
    at, dense = instance.terms(instance.theta_star), instance.dense
    sign = np.where(dense, 1, -1)
    rows = np.stack([sign * at.reg_ac, np.ones(len(sign))], 1)  # ±λ·R_AC + margin ≤ ±ℓ_CE
    best = linprog([0, -1], A_ub=rows, b_ub=sign * at.ell_ce, bounds=[(0, None), (None, None)])
    return float(best.x[0])
