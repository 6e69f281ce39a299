"""Sums and rows over all ranks, so that nothing else needs to know how many there are.

DDP averages the ranks' gradients. A loss that is world_size times the rank's own share of the global loss therefore has
the global loss's gradient after that average, whatever the sizes of the local batches.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Return the number of ranks, 1 where no process group exists."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather_rows(columns: Sequence[Tensor]) -> tuple[list[Tensor], slice]:
    """Return the columns (B,) of all ranks one after another, and where this rank's rows are among them.

    Ranks may hold different numbers of rows. Nothing is differentiated.
    """
    count, columns = len(columns[0]), [column.detach() for column in columns]
    if world_size() == 1:
        return columns, slice(0, count)
    table = torch.stack([column.double() for column in columns], 1)  # float64 holds every index exactly
    sizes_of_ranks = [torch.zeros(1, dtype=torch.int64, device=table.device) for _ in range(world_size())]
    dist.all_gather(sizes_of_ranks, torch.tensor([count], device=table.device))
    sizes = torch.cat(sizes_of_ranks).tolist()
    padded = table.new_full((max(sizes), table.shape[1]), -1)
    padded[:count] = table
    tables = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(tables, padded)
    everyone = torch.cat([rows[:size] for rows, size in zip(tables, sizes, strict=True)])
    start = sum(sizes[: dist.get_rank()])
    gathered = [column.to(local.dtype) for column, local in zip(everyone.T, columns, strict=True)]
    return gathered, slice(start, start + count)


class _AllReduce(torch.autograd.Function):
    """A sum over the ranks whose backward sums the ranks' gradients."""

    @staticmethod
    def forward(_: object, x: Tensor) -> Tensor:
        x = x.detach().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(_: object, grad: Tensor) -> Tensor:
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


def sum_over_ranks(x: Tensor) -> Tensor:
    """Return the sum of `x` over all ranks, differentiably."""
    return x if world_size() == 1 else _AllReduce.apply(x)


def global_loss(share: Tensor, total: Tensor) -> Tensor:
    """Return a loss that has the global loss's value, and whose gradients DDP averages to the global one.

    Args:
        share: this rank's share of the global loss, with its gradient.
        total: the global loss, the same on every rank.
    """
    scaled = share * world_size()
    return scaled if world_size() == 1 else scaled + (total - scaled).detach()
