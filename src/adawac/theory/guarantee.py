"""Step sizes for Algorithm 1, and what they guarantee: Proposition 2, and what its proof supports.

Let R_θ² = γ²/2 and R_β² = n·log 2 be the extents of F_γ and of the weights in their mirror maps. For any two constant
step sizes, stochastic mirror descent (Nemirovski et al., 2009, Section 3) from θ_0 = θ* and β_0 = 1/2, the centres of
both, keeps its averages' mean duality gap below

    2·(R_θ²/η_θ + R_β²/η_β)/T + 5/2·(η_θ·C_θ² + η_β·C_β²).

Each block has a step size of its own at which its two terms are equal and their sum is smallest (`balanced_steps`); the
bound is then a little below that of Proposition 2. The proposition itself gives both blocks the same step size
(`stated_steps`), for which the first term is about n times larger, so that its bound does not hold.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from adawac.theory.instance import Instance, bounded_constants, margins


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
