"""Hard thresholding on the same instance: only the samples with the highest cross-entropy are learned from."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from adawac.theory.instance import Array, Instance

__all__ = ["Thresholded", "hard_thresholding"]


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
