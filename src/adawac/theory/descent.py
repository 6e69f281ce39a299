"""Algorithm 1 as the paper writes it, for many instances and seeds at once; and hard thresholding beside it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from adawac.algorithm import SampleWeights
from adawac.errors import ConfigError
from adawac.theory.guarantee import Steps
from adawac.theory.instance import Array, Instance


class Thresholded(NamedTuple):
    """The mean of θ_t over t = 1, …, T for every seed, and for which share of the steps each sample was kept."""

    theta: Array
    kept: Array


@torch.inference_mode()
def hard_thresholding(
    instance: Instance,
    keeps: Sequence[int],
    num_steps: int,
    eta_theta: float,
    *,
    acr: bool = False,
    num_seeds: int = 16,
    seed: int = 0,
) -> list[Thresholded]:
    """Learn, at every step, from a sample drawn from the `keep` samples of the highest current ℓ_CE (Remark 2).

    This is Ordered SGD that ranks the whole set, for each number in `keeps`. With `acr`, R_AC of a sample drawn from
    all is added to each step, as `trim-ratio+acr` does. Start, ball and averages are those of `run_algorithm`.
    """
    generator = torch.Generator().manual_seed(seed)
    signed, roots = torch.from_numpy(instance.signed), instance.lambda_ac * torch.from_numpy(instance.roots)
    keep = torch.tensor(keeps).repeat_interleave(num_seeds)
    rows, ranks = torch.arange(len(keep)), torch.arange(len(signed))
    centre = torch.tensor(instance.theta_star).expand(len(keep), -1)
    theta, theta_sum, kept = centre, torch.zeros_like(centre), torch.zeros(len(keep), len(signed), dtype=torch.float64)

    def draw(below: Tensor) -> Tensor:
        return (torch.rand(len(keep), generator=generator, dtype=torch.float64) * below).long()

    for _ in range(num_steps):
        scores = torch.einsum("ndq,rq->rnd", signed, theta)
        order = F.softplus(scores, threshold=40).mean(2).argsort(1, descending=True)
        kept.scatter_add_(1, order, (ranks < keep.unsqueeze(1)).double())
        chosen = order[rows, draw(keep)]
        gradient = torch.einsum("rd,rdq->rq", scores[rows, chosen].sigmoid(), signed[chosen]) / signed.shape[1]
        if acr:
            root = roots[draw(torch.tensor(len(roots)))]
            gradient += torch.einsum("rk,rkq->rq", F.normalize(torch.einsum("rkq,rq->rk", root, theta)), root)
        offset = theta - eta_theta * gradient - centre
        theta = centre + offset * (instance.gamma / offset.norm(dim=1, keepdim=True)).clamp_max(1)
        theta_sum += theta
    return [
        Thresholded(theta.numpy(), share.numpy())
        for theta, share in zip(
            (theta_sum / num_steps).split(num_seeds), (kept / num_steps).split(num_seeds), strict=True
        )
    ]


_CHUNK = 1024  # draws made at a time
_EXACT = 40  # log(1 + eˣ) = x to float64's rounding from here on; torch's default of 20 is made for float32
_TINY = torch.finfo(torch.float64).tiny


class Trajectory(NamedTuple):
    """An instance and the step sizes that it is solved with."""

    instance: Instance
    steps: Steps


class Averages(NamedTuple):
    """What Algorithm 1 leaves behind, a row for every seed: means of θ_t and β_t over t = 1, …, T, and β on the way."""

    theta: Array
    """(seeds, 4)"""
    beta: Array
    """(seeds, n)"""
    path: Array
    """(records, seeds, n): β_t at every `record_every`-th step; without that, only at the last."""


class _Rows:
    """Every seed of every run as a row: its samples, its own weights among those of one `SampleWeights`, its ball."""

    def __init__(self, runs: Sequence[Trajectory], num_seeds: int):
        if len({run.instance.pixels.shape[1] for run in runs}) != 1:
            raise ConfigError("Expected instances of one num_pixels, but got several. Run them one after another.")
        sizes = torch.tensor([run.instance.num_samples for run in runs])

        def for_all(values: Tensor) -> Tensor:
            return values.repeat_interleave(num_seeds, 0)

        self.sizes = for_all(sizes)
        self.first_sample = for_all(sizes.cumsum(0) - sizes)
        self.first_weight = self.sizes.cumsum(0) - self.sizes
        # One product with θ gives the signed scores of all pixels, and λHθ, whose length is R_AC.
        tables = [np.concatenate([run.instance.signed, run.instance.lambda_ac * run.instance.roots], 1) for run in runs]
        self.table = torch.from_numpy(np.concatenate(tables))
        self.num_pixels = runs[0].instance.pixels.shape[1]
        self.centre = for_all(torch.tensor(np.stack([run.instance.theta_star for run in runs])))
        self.gamma = for_all(torch.tensor([[run.instance.gamma] for run in runs], dtype=torch.float64))
        self.eta_theta = for_all(torch.tensor([[run.steps.eta_theta] for run in runs], dtype=torch.float64))
        self.eta_beta = for_all(torch.tensor([run.steps.eta_beta for run in runs], dtype=torch.float64))

    def draws(self, num_steps: int, seed: int) -> Iterator[Tensor]:
        """Yield i_t for every row, t = 1, …, T."""
        generator = torch.Generator().manual_seed(seed)
        for start in range(0, num_steps, _CHUNK):
            shape = min(_CHUNK, num_steps - start), len(self.sizes)
            yield from (torch.rand(shape, generator=generator, dtype=torch.float64) * self.sizes).long()

    def project(self, theta: Tensor) -> Tensor:
        """Return the points of F_γ next to θ."""
        offset = theta - self.centre
        length = torch.linalg.vector_norm(offset, dim=1, keepdim=True)
        inside: Tensor = self.centre + offset * (self.gamma / length).clamp_max(1)
        return inside


@torch.inference_mode()
def run_algorithm(
    runs: Sequence[Trajectory], num_steps: int, *, num_seeds: int = 16, seed: int = 0, record_every: int | None = None
) -> list[Averages]:
    """Run Algorithm 1 from θ_0 = θ* and β_0 = 1/2, with a projection on F_γ, and return what each run leaves behind.

    Every step draws one sample a row. Averaged are the iterates after each step, t = 1, …, T, as in Proposition 2.
    """
    rows = _Rows(runs, num_seeds)
    weights = SampleWeights(int(rows.sizes.sum())).double()
    theta = rows.centre
    theta_sum, beta_sum = torch.zeros_like(theta), torch.zeros_like(weights.log_odds)
    every, path = min(record_every or num_steps, num_steps), []
    for step, draw in enumerate(rows.draws(num_steps, seed), start=1):
        equations = rows.table.index_select(0, rows.first_sample + draw)
        products = torch.bmm(equations, theta.unsqueeze(2)).squeeze(2)
        scores, latent = products[:, : rows.num_pixels], products[:, rows.num_pixels :]
        ell_ce = F.softplus(scores, threshold=_EXACT).mean(1)
        reg_ac = torch.linalg.vector_norm(latent, dim=1)

        index = rows.first_weight + draw
        weights.ascend(index, ell_ce, reg_ac, rows.eta_beta)  # lines 5-8
        beta = weights.log_odds.index_select(0, index).sigmoid().unsqueeze(1)

        slope_ce = scores.sigmoid() * (beta / rows.num_pixels)
        slope_ac = latent * ((1 - beta) / reg_ac.clamp_min(_TINY).unsqueeze(1))
        gradient = torch.bmm(torch.cat([slope_ce, slope_ac], 1).unsqueeze(1), equations).squeeze(1)
        theta = rows.project(theta - rows.eta_theta * gradient)  # line 9

        theta_sum += theta
        beta_sum += weights.beta
        if step % every == 0:
            path.append(weights.beta)
    theta_means = (theta_sum / num_steps).split(num_seeds)
    blocks = [run.instance.num_samples * num_seeds for run in runs]
    beta_means, paths = (beta_sum / num_steps).split(blocks), torch.stack(path).split(blocks, 1)
    return [
        Averages(mean.numpy(), weight.view(num_seeds, -1).numpy(), way.view(len(path), num_seeds, -1).numpy())
        for mean, weight, way in zip(theta_means, beta_means, paths, strict=True)
    ]
