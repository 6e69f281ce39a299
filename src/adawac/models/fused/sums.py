"""Gradients of weights, of which each program of a kernel has computed a part."""

from collections.abc import Sequence
from math import ceil, prod

import torch
from torch import Tensor

__all__ = ["add_up"]

BLOCK_R, BLOCK_E = 64, 32  # parts and elements of a tile


def add_up(
    partial: Tensor, shape: Sequence[int], dtype: torch.dtype, bias: torch.dtype | None
) -> tuple[Tensor, Tensor | None]:
    """Return the sum of all parts, always in the same order.

    Args:
        partial: (parts, elements) in float32: a weight's and, behind it, its bias's.
        shape: Of the weight.
        dtype: Of the weight.
        bias: The bias's type; None if there is none.
    """
    from adawac.models.fused import conv_kernels

    parts, size = partial.shape
    weight = torch.empty(tuple(shape), dtype=dtype, device=partial.device)
    of_bias = None if bias is None else torch.empty(size - prod(shape), dtype=bias, device=partial.device)
    with torch.cuda.device_of(partial):
        conv_kernels.summed[(ceil(size / BLOCK_E),)](
            partial,
            weight,
            weight if of_bias is None else of_bias,
            parts,
            size,
            prod(shape),
            BLOCK_R=BLOCK_R,
            BLOCK_E=BLOCK_E,
        )
    return weight, of_bias
