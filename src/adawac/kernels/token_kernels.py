# mypy: ignore-errors
# ruff: noqa: N803
"""Triton kernels for a transformer's tokens: a row for each token, a column for each channel.

All arithmetic is float32, whatever the tokens are. Sums over tokens take two steps, as in `norm_kernels`.
"""

import triton
import triton.language as tl

# Numbers that need no kernel of their own for each kind of number.
SHAPES = ["rows", "tokens", "each"]


@triton.jit
def _dropped(value, seed, element, rate):
    """Drop values at a rate, and scale up the others: by a hash of seed and place (MurmurHash3's last steps)."""
    state = tl.load(seed).to(tl.uint32) ^ (element.to(tl.uint32) * 0x9E3779B1)
    state = (state ^ (state >> 16)) * 0x85EBCA6B
    state = (state ^ (state >> 13)) * 0xC2B2AE35
    state = state ^ (state >> 16)
    kept = (state >> 8).to(tl.float32) >= rate * (1 << 24)
    return tl.where(kept, value * (1.0 / (1.0 - rate)), 0.0)


@triton.jit
def _normal(value):
    """Return the normal distribution's share below values, and its density there.

    Abramowitz and Stegun, 7.1.26: off by 1e-7 at most, and both need the same exponential.
    """
    power = tl.exp(-0.5 * value * value)
    t = 1.0 / (1.0 + 0.3275911 * 0.7071067811865476 * tl.abs(value))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * series * power
    return tl.where(value < 0.0, tail, 1.0 - tail), power * 0.3989422804014327


@triton.jit
def add_and_normalise(
    x, branch, seed, weight, bias, total, y, stats,
    channels, rate, eps,
    ADD: tl.constexpr, DROP: tl.constexpr, NORM: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write total = x + branch, with dropout, and y, its layer norm; keep each token's mean and 1/σ."""
    token, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_C)
    valid = c < channels
    value = tl.load(x + token * channels + c, mask=valid, other=0.0).to(tl.float32)
    if ADD:
        added = tl.load(branch + token * channels + c, mask=valid, other=0.0).to(tl.float32)
        if DROP:
            added = _dropped(added, seed, token * channels + c, rate)
        value += added
        tl.store(total + token * channels + c, value.to(total.dtype.element_ty), mask=valid)
        value = value.to(total.dtype.element_ty).to(tl.float32)  # what the backward pass will read
    if NORM:
        mean = tl.sum(value, 0) / channels
        off = tl.where(valid, value - mean, 0.0)
        rstd = 1.0 / tl.sqrt(tl.sum(off * off, 0) / channels + eps)
        w, b = tl.load(weight + c, mask=valid, other=0.0), tl.load(bias + c, mask=valid, other=0.0)
        tl.store(y + token * channels + c, (off * rstd * w + b).to(y.dtype.element_ty), mask=valid)
        tl.store(stats + token, mean)
        tl.store(stats + tl.num_programs(0) + token, rstd)


@triton.jit(do_not_specialize=SHAPES)
def add_and_normalise_gradient(
    dy, dtotal, total, weight, stats, seed, dx, dbranch, partial,
    tokens, channels, each, rate,
    PASSED: tl.constexpr, ADD: tl.constexpr, DROP: tl.constexpr, NORM: tl.constexpr, SUM: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write the gradients of x (with NORM) and of the branch; leave those of weight and bias in `partial`.

    `dtotal` is the gradient that passes by the norm, PASSED whether there is one. With SUM the branch's gradient is
    also added up. `partial` is (programs, sums, channels).
    """
    c = tl.arange(0, BLOCK_C)
    exists = c < channels
    of_weight = tl.zeros((BLOCK_C,), tl.float32)
    of_bias = tl.zeros((BLOCK_C,), tl.float32)
    of_branch = tl.zeros((BLOCK_C,), tl.float32)
    if NORM:
        w = tl.load(weight + c, mask=exists, other=0.0)[None, :]
    first = tl.program_id(0) * each
    begin = first.to(tl.int64) * channels
    count = tl.minimum(each, tokens - first)
    for start in range(0, count, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        at = row[:, None] * channels + c[None, :]
        valid = (row < count)[:, None] & exists[None, :]
        result = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
        if PASSED:
            result += tl.load(dtotal + begin + at, mask=valid, other=0.0).to(tl.float32)
        if NORM:
            gradient = tl.load(dy + begin + at, mask=valid, other=0.0).to(tl.float32)
            value = tl.load(total + begin + at, mask=valid, other=0.0).to(tl.float32)
            mean = tl.load(stats + first + row, mask=row < count, other=0.0)[:, None]
            rstd = tl.load(stats + tokens + first + row, mask=row < count, other=0.0)[:, None]
            standard = tl.where(valid, (value - mean) * rstd, 0.0)
            of_weight += tl.sum(gradient * standard, 0)
            of_bias += tl.sum(gradient, 0)
            scaled = gradient * w
            across, along = tl.sum(scaled, 1) / channels, tl.sum(scaled * standard, 1) / channels
            result += rstd * (scaled - across[:, None] - standard * along[:, None])
            tl.store(dx + begin + at, result.to(dx.dtype.element_ty), mask=valid)
        if ADD:
            if DROP:
                result = _dropped(result, seed, begin.to(tl.uint32) + at.to(tl.uint32), rate)
            tl.store(dbranch + begin + at, result.to(dbranch.dtype.element_ty), mask=valid)
            if SUM:
                of_branch += tl.sum(tl.where(valid, result, 0.0), 0)
    out = partial + tl.program_id(0) * (2 * NORM + SUM) * channels + c
    if NORM:
        tl.store(out, of_weight, mask=exists)
        tl.store(out + channels, of_bias, mask=exists)
    if SUM:
        tl.store(out + 2 * NORM * channels, of_branch, mask=exists)


@triton.jit
def gelu_and_drop(x, seed, y, elements, rate, DROP: tl.constexpr, BLOCK: tl.constexpr):
    """Write GELU(x), with dropout."""
    begin, at = tl.program_id(0).to(tl.int64) * BLOCK, tl.arange(0, BLOCK)
    valid = at < elements - begin
    value = tl.load(x + begin + at, mask=valid, other=0.0).to(tl.float32)
    value *= _normal(value)[0]
    if DROP:
        value = _dropped(value, seed, begin.to(tl.uint32) + at.to(tl.uint32), rate)
    tl.store(y + begin + at, value.to(y.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=SHAPES)
def gelu_and_drop_gradient(
    x, seed, dy, dx, partial,
    rows, channels, each, rate,
    DROP: tl.constexpr, SUM: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write the gradient of x; what was dropped is found again by the same hash.

    With SUM leave the columns' sums in `partial`.
    """
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    first = tl.program_id(1) * each
    begin = first.to(tl.int64) * channels
    count = tl.minimum(each, rows - first)
    sums = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for start in range(0, count, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        valid = (row < count)[:, None] & (c < channels)[None, :]
        at = row[:, None] * channels + c[None, :]
        value = tl.load(x + begin + at, mask=valid, other=0.0).to(tl.float32)
        gradient = tl.load(dy + begin + at, mask=valid, other=0.0).to(tl.float32)
        if DROP:
            gradient = _dropped(gradient, seed, begin.to(tl.uint32) + at.to(tl.uint32), rate)
        below, density = _normal(value)
        result = gradient * (below + value * density)
        tl.store(dx + begin + at, result.to(dx.dtype.element_ty), mask=valid)
        sums += result
    if SUM:
        tl.store(partial + tl.program_id(1) * channels + c, tl.sum(sums, 0), mask=c < channels)


@triton.jit(do_not_specialize=SHAPES)
def pack(
    query, key, value, packed, partial,
    rows, tokens, channels, each, image_stride, head_stride, token_stride,
    WIDTH: tl.constexpr, SUM: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write what lies as (images, heads, tokens, WIDTH) by any strides, three times, as rows of 3·channels.

    With SUM leave the columns' sums in `partial`.
    """
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    first = tl.program_id(1) * each
    count = tl.minimum(each, rows - first)
    begin = first.to(tl.int64) * 3 * channels
    of_query = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    of_key = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    of_value = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for start in range(0, count, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        valid = (row < count)[:, None] & (c < channels)[None, :]
        image, token = ((first + row) // tokens).to(tl.int64), (first + row) % tokens
        at = (image * image_stride + token * token_stride)[:, None] + (c // WIDTH * head_stride + c % WIDTH)[None, :]
        q, k = tl.load(query + at, mask=valid, other=0.0), tl.load(key + at, mask=valid, other=0.0)
        v = tl.load(value + at, mask=valid, other=0.0)
        out = packed + begin + row[:, None] * 3 * channels + c[None, :]
        tl.store(out, q, mask=valid)
        tl.store(out + channels, k, mask=valid)
        tl.store(out + 2 * channels, v, mask=valid)
        of_query += q.to(tl.float32)
        of_key += k.to(tl.float32)
        of_value += v.to(tl.float32)
    if SUM:
        out = partial + tl.program_id(1) * 3 * channels + c
        tl.store(out, tl.sum(of_query, 0), mask=c < channels)
        tl.store(out + channels, tl.sum(of_key, 0), mask=c < channels)
        tl.store(out + 2 * channels, tl.sum(of_value, 0), mask=c < channels)
