"""Query, key and value of attention heads out of one tensor: their gradients go back into one in a single pass."""

from collections.abc import Sequence
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from adawac.models.fused.sums import add_up
from adawac.models.fused.tokens import TILE, stripes

__all__ = ["split_heads"]


def split_heads(x: Tensor, heads: int, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value (B, heads, N, D), as views, of tokens (B, N, 3·heads·D).

    Args:
        x: The tokens; `can_gelu` tells whether they fit.
        heads: How many heads.
        bias: One that was added to x, if its gradient is to be given here.
    """
    query, key, value = _SplitHeads.apply(x, bias, heads)
    return query, key, value


class _SplitHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, heads: int) -> tuple[Tensor, ...]:
        ctx.bias = None if bias is None else bias.dtype
        query, key, value = x.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        return query, key, value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Sequence[Tensor | None]:
        from adawac.models.fused import token_kernels

        strides = {one.stride() for one in gradients}
        if len(strides) > 1 or next(iter(strides))[-1] != 1:
            gradients = tuple(one.contiguous() for one in gradients)
        first = gradients[0]
        images, heads, tokens, width = first.shape
        rows, channels = images * tokens, heads * width
        dx = torch.empty((images, tokens, 3 * channels), dtype=first.dtype, device=first.device)
        summed = ctx.needs_input_grad[1]
        each, chunks = stripes(rows, channels)
        partial = torch.empty((chunks, 3 * channels), device=first.device) if summed else None
        with torch.cuda.device_of(first):
            token_kernels.pack[(ceil(channels / TILE["BLOCK_C"]), chunks)](
                *gradients,
                dx,
                partial,
                rows,
                tokens,
                channels,
                each,
                *first.stride()[:3],
                WIDTH=width,
                SUM=summed,
                **TILE,
            )
        dbias = None if partial is None else add_up(partial, (3 * channels,), ctx.bias, None)[0]
        return dx, dbias, None
