"""Layer norm with the addition before it, and GELU with the dropout after it, on the kernels of this package.

Under autocast torch adds a branch in bf16 to the tokens in float32, casts the sum to bf16 for the norm, and on the way
back adds and casts again; dropout keeps a mask of every element. Here each element is read and written once.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from adawac.gpu import plain, succeeds

__all__ = ["add_and_normalise", "can_gelu", "can_normalise", "gelu_and_drop"]

CHANNELS = 4096  # that a program holds at once
PROGRAMS = 528  # that share the gradients of a norm's weights: some for each of a large GPU's processors
BLOCK = 2048  # elements that a program handles


def add_and_normalise(x: Tensor, branch: Tensor | None, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """Return x + branch, in x's type, and its layer norm, in autocast's type where that is on."""
    half = torch.is_autocast_enabled(x.device.type)
    dtype = torch.get_autocast_dtype(x.device.type) if half else x.dtype
    total, y = _AddAndNormalise.apply(x, branch, norm.weight, norm.bias, norm.eps, dtype)
    return total, y


def can_normalise(x: Tensor, norm: nn.Module) -> bool:
    """Tell whether `add_and_normalise` can take these tokens."""
    return (
        isinstance(norm, nn.LayerNorm)
        and norm.normalized_shape == (x.shape[-1],)
        and norm.weight is not None
        and norm.bias is not None
        and norm.weight.dtype == torch.float32
        and x.shape[-1] <= CHANNELS
        and can_gelu(x)
    )


def can_gelu(x: Tensor) -> bool:
    """Tell whether the kernels can take these tokens."""
    return plain(x) and x.is_contiguous() and x.numel() > 0 and works(x.device)


@lru_cache
def works(device: torch.device) -> bool:
    """Tell whether the kernels run there. Asked once a device."""

    def trial() -> None:
        x = torch.linspace(-2, 3, 24, device=device).reshape(3, 8).requires_grad_()
        norm = nn.LayerNorm(8, device=device)
        total, y = add_and_normalise(x, x, norm)
        found = gelu_and_drop(y, 0.0) + total
        expected = nn.functional.gelu(norm(2 * x)) + 2 * x
        given, wanted = (torch.autograd.grad(one.square().sum(), (x, norm.weight)) for one in (found, expected))
        torch.testing.assert_close((found, *given), (expected, *wanted), rtol=1e-3, atol=1e-3)

    return succeeds("Transformers", device, trial)


def gelu_and_drop(x: Tensor, rate: float) -> Tensor:
    """Return GELU(x), with dropout at a rate."""
    # A draw of torch's own generator: it goes on from step to step, in a captured CUDA graph as well.
    seed = torch.randint(1 << 31, (1,), device=x.device) if rate else torch.zeros(1, dtype=torch.long, device=x.device)
    y: Tensor = _GeluAndDrop.apply(x, seed, rate)
    return y


class _AddAndNormalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, branch: Tensor | None, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        from adawac.models.fused import token_kernels

        channels = x.shape[-1]
        tokens = x.numel() // channels
        branch = None if branch is None else branch.contiguous()
        total = x if branch is None else torch.empty_like(x)
        y = torch.empty_like(x, dtype=dtype)
        stats = torch.empty((2, tokens), device=x.device)
        with torch.cuda.device_of(x):
            token_kernels.add_and_normalise[(tokens,)](
                x,
                x if branch is None else branch,
                weight,
                bias,
                total,
                y,
                stats,
                channels,
                eps,
                ADD=branch is not None,
                BLOCK_C=1 << (channels - 1).bit_length(),
            )
        ctx.save_for_backward(total, weight, stats)
        ctx.branch = None if branch is None else branch.dtype
        ctx.set_materialize_grads(False)
        return total, y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dtotal: Tensor | None, dy: Tensor | None) -> Sequence[Tensor | None]:
        from adawac.models.fused import token_kernels

        total, weight, stats = ctx.saved_tensors
        if dy is None:
            passed = None if ctx.branch is None or dtotal is None else dtotal.to(ctx.branch)
            return dtotal, passed, None, None, None, None
        channels = total.shape[-1]
        tokens = total.numel() // channels
        dy = dy.contiguous()
        dtotal = None if dtotal is None else dtotal.contiguous()
        dx = torch.empty_like(total)
        dbranch = None if ctx.branch is None else torch.empty_like(total, dtype=ctx.branch)
        each = ceil(tokens / PROGRAMS)
        programs = ceil(tokens / each)
        partial = torch.empty((2, programs, channels), device=total.device)
        with torch.cuda.device_of(total):
            token_kernels.add_and_normalise_gradient[(programs,)](
                dy,
                dy if dtotal is None else dtotal,
                total,
                weight,
                stats,
                dx,
                dx if dbranch is None else dbranch,
                partial,
                tokens,
                channels,
                each,
                PASSED=dtotal is not None,
                ADD=dbranch is not None,
                BLOCK_C=1 << (channels - 1).bit_length(),
            )
        dweight, dbias = partial.sum(1).unbind()
        return dx, dbranch, dweight, dbias, None, None


class _GeluAndDrop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, seed: Tensor, rate: float) -> Tensor:
        from adawac.models.fused import token_kernels

        y = torch.empty_like(x)
        with torch.cuda.device_of(x):
            token_kernels.gelu_and_drop[(ceil(x.numel() / BLOCK),)](
                x, seed, y, x.numel(), rate, DROP=rate > 0, BLOCK=BLOCK
            )
        ctx.save_for_backward(x, seed)
        ctx.rate = rate
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Sequence[Tensor | None]:
        from adawac.models.fused import token_kernels

        x, seed = ctx.saved_tensors
        dx = torch.empty_like(x)
        with torch.cuda.device_of(x):
            token_kernels.gelu_and_drop_gradient[(ceil(x.numel() / BLOCK),)](
                x, seed, dy.contiguous(), dx, x.numel(), ctx.rate, DROP=ctx.rate > 0, BLOCK=BLOCK
            )
        return dx, None, None
