# mypy: ignore-errors
# ruff: noqa: N803
"""Triton kernels for a transformer's tokens: a row for each token, a column for each channel.

All arithmetic is float32, whatever the tokens are. Sums over tokens take two steps, as in `kernels`.
"""

import triton
import triton.language as tl

__all__ = ["add_and_normalise", "add_and_normalise_gradient", "gelu_and_drop", "gelu_and_drop_gradient"]


@triton.jit
def add_and_normalise(
    x, branch, weight, bias, total, y, stats, channels, eps, ADD: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Write total = x + branch, and y, its layer norm; keep each token's mean and 1/σ."""
    token, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_C)
    there = c < channels
    value = tl.load(x + token * channels + c, mask=there, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(branch + token * channels + c, mask=there, other=0.0).to(tl.float32)
        tl.store(total + token * channels + c, value.to(total.dtype.element_ty), mask=there)
        value = value.to(total.dtype.element_ty).to(tl.float32)  # what the backward pass will read
    mean = tl.sum(value, 0) / channels
    off = tl.where(there, value - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(off * off, 0) / channels + eps)
    w, b = tl.load(weight + c, mask=there, other=0.0), tl.load(bias + c, mask=there, other=0.0)
    tl.store(y + token * channels + c, (off * rstd * w + b).to(y.dtype.element_ty), mask=there)
    tl.store(stats + token, mean)
    tl.store(stats + tl.num_programs(0) + token, rstd)


@triton.jit
def add_and_normalise_gradient(
    dy,
    dtotal,
    total,
    weight,
    stats,
    dx,
    dbranch,
    partial,
    tokens,
    channels,
    each,
    PASSED: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Write the gradient of x, and the same for the branch in its type; leave those of weight and bias in `partial`.

    `dtotal` is the gradient that passes by the norm, PASSED whether there is one.
    """
    c = tl.arange(0, BLOCK_C)
    there = c < channels
    w = tl.load(weight + c, mask=there, other=0.0)
    of_weight = tl.zeros((BLOCK_C,), tl.float32)
    of_bias = tl.zeros((BLOCK_C,), tl.float32)
    first = tl.program_id(0) * each
    begin = first.to(tl.int64) * channels
    for number in range(0, tl.minimum(each, tokens - first)):
        token, at = first + number, begin + number * channels + c
        gradient = tl.load(dy + at, mask=there, other=0.0).to(tl.float32)
        mean, rstd = tl.load(stats + token), tl.load(stats + tokens + token)
        value = tl.load(total + at, mask=there, other=0.0).to(tl.float32)
        standard = tl.where(there, (value - mean) * rstd, 0.0)
        of_weight += gradient * standard
        of_bias += gradient
        scaled = gradient * w
        result = rstd * (scaled - tl.sum(scaled, 0) / channels - standard * (tl.sum(scaled * standard, 0) / channels))
        if PASSED:
            result += tl.load(dtotal + at, mask=there, other=0.0).to(tl.float32)
        tl.store(dx + at, result.to(dx.dtype.element_ty), mask=there)
        if ADD:
            tl.store(dbranch + at, result.to(dbranch.dtype.element_ty), mask=there)
    out = partial + tl.program_id(0) * channels + c
    tl.store(out, of_weight, mask=there)
    tl.store(out + tl.num_programs(0) * channels, of_bias, mask=there)


@triton.jit
def _kept(seed, element, rate):
    """Tell which elements dropout keeps: a hash of the seed and the element's place (MurmurHash3's last steps)."""
    state = tl.load(seed).to(tl.uint32) ^ (element.to(tl.uint32) * 0x9E3779B1)
    state = (state ^ (state >> 16)) * 0x85EBCA6B
    state = (state ^ (state >> 13)) * 0xC2B2AE35
    state = state ^ (state >> 16)
    return (state >> 8).to(tl.float32) * (1.0 / (1 << 24)) >= rate


@triton.jit
def gelu_and_drop(x, seed, y, elements, rate, DROP: tl.constexpr, BLOCK: tl.constexpr):
    """Write GELU(x), with dropout."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < elements
    value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    value = value * 0.5 * (1.0 + tl.erf(value * 0.7071067811865476))
    if DROP:
        value = tl.where(_kept(seed, at, rate), value / (1.0 - rate), 0.0)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=there)


@triton.jit
def gelu_and_drop_gradient(x, seed, dy, dx, elements, rate, DROP: tl.constexpr, BLOCK: tl.constexpr):
    """Write the gradient of x; what was dropped is found again by the same hash."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < elements
    value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    gradient = tl.load(dy + at, mask=there, other=0.0).to(tl.float32)
    if DROP:
        gradient = tl.where(_kept(seed, at, rate), gradient / (1.0 - rate), 0.0)
    below = 0.5 * (1.0 + tl.erf(value * 0.7071067811865476))
    density = tl.exp(-0.5 * value * value) * 0.3989422804014327
    tl.store(dx + at, (gradient * (below + value * density)).to(dx.dtype.element_ty), mask=there)
