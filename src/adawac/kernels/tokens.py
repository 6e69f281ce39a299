"""Transformer tokens on the kernels of this package: layer norm after an addition, GELU with dropout, heads."""

from collections.abc import Sequence
from math import ceil
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from adawac.kernels.availability import autocast_dtype, launch, plain, power_of_two
from adawac.kernels.convolutions import add_up
from adawac.kernels.norms import hooked, works

CHANNELS = 4096  # that a program holds at once
PROGRAMS = 528  # that share the gradients of a norm's weights: some for each of a large GPU's processors
TOKENS, WARPS = 2, 4  # that such a program handles at a time
STRIPES = 1056  # programs that share a tensor where each handles some of its channels only
BLOCK = 2048  # elements that a program handles
TILE = {"BLOCK_R": 8, "BLOCK_C": 256}  # tokens and channels that a program handles at a time


class Branch(NamedTuple):
    """What is added to the tokens.

    Attributes:
        value: The tokens' change.
        bias: One that was added to the value, if its gradient is to be given by the addition.
        rate: Of the dropout before the addition.
        seed: Of this dropout, one of `seeds`; by default one is drawn.
    """

    value: Tensor
    bias: Tensor | None = None
    rate: float = 0.0
    seed: Tensor | None = None


def add_and_normalise(x: Tensor, branch: Branch | None, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """Return x + branch, in x's type, and its layer norm, in autocast's type where that is on."""
    total, y = _AddAndNormalise.apply(x, *_seeded(branch), norm.weight, norm.bias, norm.eps, autocast_dtype(x))
    return total, y


def add(x: Tensor, branch: Branch) -> Tensor:
    """Return x + branch, in x's type."""
    total: Tensor = _AddAndNormalise.apply(x, *_seeded(branch), None, None, 0.0, x.dtype)[0]
    return total


def linear(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return a linear layer's output, and its bias where the gradient of this is left to what reads the output.

    A layer of another kind, or with a hook, is called as it is.
    """
    if type(layer) is not nn.Linear or hooked(layer) or layer.bias is None:
        return layer(x), None
    return F.linear(x, layer.weight, layer.bias.detach()), layer.bias


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


def seeds(count: int, device: torch.device) -> Sequence[Tensor]:
    """Return seeds for dropouts, each on the device, out of one draw.

    The draw is torch's own generator's: it goes on from step to step, in a captured CUDA graph as well.
    """
    return torch.randint(1 << 31, (count, 1), device=device).unbind()


def _seeded(branch: Branch | None) -> Sequence[Any]:
    if branch is None:
        return [None] * len(Branch._fields)
    drawn = branch.rate and branch.seed is None
    return branch._replace(seed=seeds(1, branch.value.device)[0]) if drawn else branch


def gelu_and_drop(x: Tensor, rate: float, seed: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Return GELU(x), with dropout at a rate.

    Args:
        x: The tokens.
        rate: 0 drops nothing.
        seed: One of `seeds`; by default one is drawn.
        bias: One that was added to x, if its gradient is to be given here.
    """
    seed = seeds(1, x.device)[0] if rate and seed is None else seed
    y: Tensor = _GeluAndDrop.apply(x.contiguous(), bias, seed, rate)
    return y


def stripes(rows: int, channels: int) -> tuple[int, int]:
    """Return how many rows a program handles, and how many programs thus share the rows."""
    chunks = max(1, STRIPES // ceil(channels / TILE["BLOCK_C"]))
    each = ceil(rows / chunks / TILE["BLOCK_R"]) * TILE["BLOCK_R"]
    return each, ceil(rows / each)


class _AddAndNormalise(torch.autograd.Function):
    """x + branch, and its norm; without a norm's weight the sum alone."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor, branch: Tensor | None, offset: Tensor | None, rate: float | None, seed: Tensor | None,
        weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        channels = x.shape[-1]
        tokens = x.numel() // channels
        branch = None if branch is None else branch.contiguous()
        total = x if branch is None else torch.empty_like(x)
        y = None if weight is None else torch.empty_like(x, dtype=dtype)
        stats = None if weight is None else torch.empty((2, tokens), device=x.device)
        ctx.rate, ctx.branch = rate or 0.0, None if branch is None else branch.dtype
        ctx.offset = None if offset is None else offset.dtype
        launch(
            "token_kernels", "add_and_normalise", (tokens,),
            x, branch, seed, weight, bias, total, y, stats,
            channels, ctx.rate, eps,
            ADD=branch is not None, DROP=ctx.rate > 0, NORM=weight is not None, BLOCK_C=power_of_two(channels),
        )  # fmt: skip
        ctx.save_for_backward(total if weight is not None else None, weight, stats, seed)
        ctx.set_materialize_grads(False)
        return total, y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dtotal: Tensor | None, dy: Tensor | None) -> Sequence[Tensor | None]:
        total, weight, stats, seed = ctx.saved_tensors
        gradient = dtotal if dy is None else dy
        if gradient is None or (dy is None and ctx.branch is None):
            return dtotal, *[None] * 8
        channels = gradient.shape[-1]
        tokens = gradient.numel() // channels
        dy = None if dy is None else dy.contiguous()
        dtotal = None if dtotal is None else dtotal.contiguous()
        dx = dtotal if dy is None else torch.empty_like(total)
        dbranch = None if ctx.branch is None else torch.empty_like(gradient, dtype=ctx.branch)
        summed = ctx.needs_input_grad[2]
        each = ceil(tokens / PROGRAMS / TOKENS) * TOKENS
        programs = ceil(tokens / each)
        norms = 2 if dy is not None else 0
        partial = torch.empty((programs, (norms + summed) * channels), device=gradient.device)
        launch(
            "token_kernels", "add_and_normalise_gradient", (programs,),
            dy, dtotal, total, weight, stats, seed, dx, dbranch, partial,
            tokens, channels, each, ctx.rate,
            PASSED=dtotal is not None, ADD=dbranch is not None, DROP=ctx.rate > 0, NORM=dy is not None, SUM=summed,
            BLOCK_R=TOKENS, BLOCK_C=power_of_two(channels), num_warps=WARPS,
        )  # fmt: skip
        if not partial.numel():
            return dx, dbranch, *[None] * 7
        sums, doffset = add_up(partial, (norms, channels), torch.float32, ctx.offset if summed else None)
        dweight, dbias = sums.unbind() if norms else (None, None)
        return dx, dbranch, doffset, None, None, dweight, dbias, None, None


class _GeluAndDrop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, seed: Tensor | None, rate: float) -> Tensor:
        y = torch.empty_like(x)
        launch(
            "token_kernels", "gelu_and_drop", (ceil(x.numel() / BLOCK),),
            x, seed, y, x.numel(), rate, DROP=rate > 0, BLOCK=BLOCK,
        )  # fmt: skip
        ctx.save_for_backward(x, seed)
        ctx.rate, ctx.bias = rate, None if bias is None else bias.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Sequence[Tensor | None]:
        x, seed = ctx.saved_tensors
        channels = x.shape[-1]
        rows = x.numel() // channels
        dx = torch.empty_like(x)
        summed = ctx.needs_input_grad[1]
        each, chunks = stripes(rows, channels)
        partial = torch.empty((chunks, channels), device=x.device) if summed else None
        launch(
            "token_kernels", "gelu_and_drop_gradient", (ceil(channels / TILE["BLOCK_C"]), chunks),
            x, seed, dy.contiguous(), dx, partial,
            rows, channels, each, ctx.rate,
            DROP=ctx.rate > 0, SUM=summed, **TILE,
        )  # fmt: skip
        dbias = None if partial is None else add_up(partial, (channels,), ctx.bias, None)[0]
        return dx, dbias, None, None


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
        strides = {gradient.stride() for gradient in gradients}
        if len(strides) > 1 or next(iter(strides))[-1] != 1:
            gradients = tuple(gradient.contiguous() for gradient in gradients)
        first = gradients[0]
        images, heads, tokens, width = first.shape
        rows, channels = images * tokens, heads * width
        dx = torch.empty((images, tokens, 3 * channels), dtype=first.dtype, device=first.device)
        summed = ctx.needs_input_grad[1]
        each, chunks = stripes(rows, channels)
        partial = torch.empty((chunks, 3 * channels), device=first.device) if summed else None
        launch(
            "token_kernels", "pack", (ceil(channels / TILE["BLOCK_C"]), chunks),
            *gradients, dx, partial,
            rows, tokens, channels, each, *first.stride()[:3],
            WIDTH=width, SUM=summed, **TILE,
        )  # fmt: skip
        dbias = None if partial is None else add_up(partial, (3 * channels,), ctx.bias, None)[0]
        return dx, dbias, None
