"""Weight standardisation on the kernels of this package: torch normalises, then casts, and on the way back again."""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from adawac.gpu import plain, succeeds
from adawac.models.fused.aside import await_gradients, mark_late

__all__ = ["can_standardise", "is_standardised", "standardised"]

ROW = 16384  # weights of an output channel that a program holds at once


def standardised(weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
    """Return a convolution's weight, that of each output channel with mean 0 and variance 1, channels-last in memory.

    Args:
        weight: (O, I, h, w) in float32.
        eps: Added to the variance.
        dtype: Of the result; by default autocast's where that is on.
    """
    kind = weight.device.type
    dtype = dtype or (torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype)
    y: Tensor = _Standardise.apply(weight, eps, dtype)
    y.is_standardised = True  # type: ignore[attr-defined]
    mark_late([y])
    return y


def is_standardised(weight: Tensor) -> bool:
    """Tell whether a weight comes from `standardised`."""
    return getattr(weight, "is_standardised", False)


def can_standardise(weight: Tensor) -> bool:
    """Tell whether the kernels can take this weight."""
    return (
        plain(weight)
        and weight.dtype == torch.float32
        and weight.dim() == 4
        and weight.is_contiguous(memory_format=torch.channels_last)
        and 0 < prod(weight.shape[1:]) <= ROW
        and works(weight.device)
    )


@lru_cache
def works(device: torch.device) -> bool:
    """Tell whether the kernels run there. Asked once a device."""

    def trial() -> None:
        weight = torch.linspace(-2, 3, 24, device=device).square().reshape(3, 8, 1, 1).requires_grad_()
        found = standardised(weight, 1e-3)
        expected = torch.nn.functional.layer_norm(weight, weight.shape[1:], eps=1e-3)
        given, wanted = (torch.autograd.grad(one.pow(3).sum(), weight)[0] for one in (found, expected))
        torch.testing.assert_close((found, given), (expected, wanted), rtol=1e-3, atol=1e-3)

    return succeeds("Standardised convolutions", device, trial)


class _Standardise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        from adawac.models.fused import weight_kernels

        rows, row = len(weight), prod(weight.shape[1:])
        y = torch.empty(weight.shape, dtype=dtype, device=weight.device, memory_format=torch.channels_last)
        stats = torch.empty((2, rows), device=weight.device)
        with torch.cuda.device_of(weight):
            weight_kernels.standardise[(rows,)](weight, y, stats, row, eps, **_block(row))
        ctx.save_for_backward(weight, stats)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Sequence[Tensor | None]:
        from adawac.models.fused import weight_kernels

        await_gradients(dy.device)
        weight, stats = ctx.saved_tensors
        rows, row = len(weight), prod(weight.shape[1:])
        dy = dy.contiguous(memory_format=torch.channels_last)
        dweight = torch.empty_like(weight)
        with torch.cuda.device_of(weight):
            weight_kernels.standardise_gradient[(rows,)](dy, weight, stats, dweight, row, **_block(row))
        return dweight, None, None


def _block(row: int) -> dict[str, int]:
    """Return how many elements a program holds, and the warps that share them."""
    block = 1 << (row - 1).bit_length()
    return {"BLOCK": block, "num_warps": min(16, max(1, block // 512))}
