"""All of `adawac theory`: the experiments one after another, their numbers in a file, and the figures."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from adawac.errors import ConfigError
from adawac.files import write_text
from adawac.theory import experiments, figures
from adawac.theory.instance import build_instance

__all__ = ["run"]

_log = logging.getLogger(__name__)


class _Plan(NamedTuple):
    """How finely each experiment samples its axis."""

    sizes: list[int]
    horizons: list[int]
    num_seeds: int
    num_instances: int
    separations: list[float]
    radii: list[float]
    etas: list[float]
    factors: list[float]
    keeps: list[int]


_FULL = _Plan(
    sizes=[2, 4, 8, 16],
    horizons=[1_000, 2_000, 4_000, 8_000, 16_000, 32_000],
    num_seeds=8,
    num_instances=8,
    separations=[0, 1, 2, 3, 4, 5, 6],
    radii=[0.1, 0.25, 0.5, 0.75, 1],
    etas=[4.0**power for power in range(-6, 5)],
    factors=[2 ** (power / 2) for power in range(-8, 9)],
    keeps=[1, 2, 4, 6, 8, 12, 16],
)
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
        watch: is told what begins, how many parts are done, and of how many; a line in the log by default.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"Expected a folder for the figures, but got the file {out}. Give another one.")
    if seed < 0:
        raise ConfigError(f"Expected a seed of 0 or more, but got {seed}. Give another one.")
    try:
        out.mkdir(parents=True, exist_ok=True)  # before a minute of work is done for nothing
    except OSError as error:
        raise ConfigError(
            f"Expected a folder for the figures, but {out} cannot be made ({error.strerror}). Give another one."
        ) from error
    plan = _QUICK if quick else _FULL
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
    figures.draw(results, out)
    return results
