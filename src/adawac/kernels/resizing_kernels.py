# mypy: ignore-errors
# ruff: noqa: N803
"""Triton kernels that double the size of channels-last maps beside a skip connection, and pool them."""

import triton
import triton.language as tl

# Numbers that differ from layer to layer, and need no kernel of their own for each kind of number.
SHAPES = ["pixels", "height", "width"]


@triton.jit
def _locate(pixels, height, width, BLOCK_R: tl.constexpr):
    """Return a program's pixels, which of them exist, and their images, rows and columns."""
    pixel = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    image = pixel // (height * width)
    rest = pixel - image * (height * width)
    row = rest // width
    return pixel.to(tl.int64), pixel < pixels, image, row, rest - row * width


@triton.jit
def _channels(block, exists, channels, BLOCK_C: tl.constexpr):
    """Return the channels of a block, and which of the pixels' values there are."""
    channel = block * BLOCK_C + tl.arange(0, BLOCK_C)
    return channel, exists[:, None] & (channel < channels)[None, :]


@triton.jit
def _between(out, small, BILINEAR: tl.constexpr):
    """Return the two places of a small axis that a place of the large one lies between, and how far from the first."""
    if BILINEAR:  # corners on corners: `out` of 2·small - 1 steps lies at out·(small - 1)/(2·small - 1)
        at = out * (small - 1)
        first = at // (2 * small - 1)
        part = (at - first * (2 * small - 1)).to(tl.float32) / (2 * small - 1)
        second = tl.minimum(first + 1, small - 1)
    else:
        first = out // 2
        second = first
        part = first.to(tl.float32) * 0.0
    return first, second, part


@triton.jit
def _pixels(x, image, row, column, height, width, channels, channel, valid):
    at = ((image * height + row) * width + column).to(tl.int64)
    return tl.load(x + at[:, None] * channels + channel[None, :], mask=valid, other=0.0)


@triton.jit(do_not_specialize=SHAPES)
def join(
    x, skip, y,
    pixels, height, width, channels, skipped,
    BILINEAR: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write x in twice its size (height×width), and beside it the skip connection, to y."""
    pixel, exists, image, row, column = _locate(pixels, height, width, BLOCK_R)
    block = tl.program_id(1)
    blocks = (channels + BLOCK_C - 1) // BLOCK_C
    out = y + pixel[:, None] * (channels + skipped)
    if block < blocks:
        channel, valid = _channels(block, exists, channels, BLOCK_C)
        h, w = height // 2, width // 2
        above, below, down = _between(row, h, BILINEAR)
        left, right, along = _between(column, w, BILINEAR)
        value = _pixels(x, image, above, left, h, w, channels, channel, valid)
        if BILINEAR:
            down, along = down[:, None], along[:, None]
            upper = value.to(tl.float32) * (1.0 - along)
            upper += _pixels(x, image, above, right, h, w, channels, channel, valid).to(tl.float32) * along
            lower = _pixels(x, image, below, left, h, w, channels, channel, valid).to(tl.float32) * (1.0 - along)
            lower += _pixels(x, image, below, right, h, w, channels, channel, valid).to(tl.float32) * along
            value = (upper * (1.0 - down) + lower * down).to(y.dtype.element_ty)
        tl.store(out + channel[None, :], value, mask=valid)
    else:
        channel, valid = _channels(block - blocks, exists, skipped, BLOCK_C)
        value = tl.load(skip + pixel[:, None] * skipped + channel[None, :], mask=valid, other=0.0)
        tl.store(out + channels + channel[None, :], value, mask=valid)


@triton.jit
def _first(small_at, small, BILINEAR: tl.constexpr):
    """Return the first place of the large axis that a place of the small one went into."""
    if BILINEAR:
        return tl.where(small_at == 0, 0, (small_at - 1) * (2 * small - 1) // (small - 1) + 1)
    else:
        return small_at * 2


@triton.jit
def _share(out, small_at, small, BILINEAR: tl.constexpr):
    """Return how much of a place of the large axis came from one of the small axis."""
    share = (out < 2 * small).to(tl.float32)
    if BILINEAR:
        off = tl.abs(out * (small - 1) - small_at * (2 * small - 1)).to(tl.float32)
        share = tl.where(out < 2 * small, tl.maximum(1.0 - off / (2 * small - 1), 0.0), 0.0)
    return share


@triton.jit(do_not_specialize=SHAPES)
def enlarged_gradient(
    dy, dx,
    pixels, height, width, channels, wide,
    BILINEAR: tl.constexpr, TAPS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gather the gradient of the small map (height×width) from that of the joined one, of `wide` channels."""
    pixel, exists, image, row, column = _locate(pixels, height, width, BLOCK_R)
    channel, valid = _channels(tl.program_id(1), exists, channels, BLOCK_C)
    top, left = _first(row, height, BILINEAR), _first(column, width, BILINEAR)
    total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for i in tl.static_range(TAPS):
        for j in tl.static_range(TAPS):
            share = _share(top + i, row, height, BILINEAR) * _share(left + j, column, width, BILINEAR)
            seen = valid & (share > 0.0)[:, None]
            value = _pixels(dy, image, top + i, left + j, 2 * height, 2 * width, wide, channel, seen)
            total += value.to(tl.float32) * share[:, None]
    tl.store(dx + pixel[:, None] * channels + channel[None, :], total.to(dx.dtype.element_ty), mask=valid)


# Numbers that differ from layer to layer, and need no kernel of their own for each kind of number.
POOL_SHAPES = ["pixels", "height", "width", "out_height", "out_width"]


@triton.jit(do_not_specialize=POOL_SHAPES)
def maxima(
    x, taken, y,
    pixels, height, width, out_height, out_width, channels,
    PADDING: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write each window's maximum to y, and which of its pixels that was."""
    pixel, exists, image, row, column = _locate(pixels, out_height, out_width, BLOCK_R)
    channel, valid = _channels(tl.program_id(1), exists, channels, BLOCK_C)
    best = tl.full((BLOCK_R, BLOCK_C), float("-inf"), tl.float32)
    index = tl.full((BLOCK_R, BLOCK_C), -1, tl.int32)
    for tap in tl.static_range(9):
        i, j = row * 2 - PADDING + tap // 3, column * 2 - PADDING + tap % 3
        inside = (i >= 0) & (i < height) & (j >= 0) & (j < width)
        at = ((image * height + i) * width + j).to(tl.int64)
        seen = valid & inside[:, None]
        value = tl.load(x + at[:, None] * channels + channel[None, :], mask=seen, other=float("-inf")).to(tl.float32)
        larger = seen & ((value > best) | (value != value) | (index < 0))  # NaN is the maximum, as in torch
        best = tl.where(larger, value, best)
        index = tl.where(larger, tap, index)
    out = pixel[:, None] * channels + channel[None, :]
    tl.store(y + out, best.to(y.dtype.element_ty), mask=valid)
    tl.store(taken + out, index.to(tl.int8), mask=valid)


@triton.jit(do_not_specialize=POOL_SHAPES)
def maxima_gradient(
    dy, taken, dx,
    pixels, height, width, out_height, out_width, channels,
    PADDING: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Add up, for each pixel, the gradients of the windows that took it."""
    pixel, exists, image, row, column = _locate(pixels, height, width, BLOCK_R)
    channel, valid = _channels(tl.program_id(1), exists, channels, BLOCK_C)
    total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for k in tl.static_range(4):
        # The last window that the pixel lies in, and the one before, on each axis.
        i, j = (row + PADDING) // 2 - k // 2, (column + PADDING) // 2 - k % 2
        tap_i, tap_j = row + PADDING - 2 * i, column + PADDING - 2 * j
        inside = (i >= 0) & (i < out_height) & (j >= 0) & (j < out_width) & (tap_i < 3) & (tap_j < 3)
        at = ((image * out_height + i) * out_width + j).to(tl.int64)[:, None] * channels + channel[None, :]
        seen = valid & inside[:, None]
        index = tl.load(taken + at, mask=seen, other=-1)
        value = tl.load(dy + at, mask=seen, other=0.0).to(tl.float32)
        total += tl.where(index == (tap_i * 3 + tap_j)[:, None], value, 0.0)
    tl.store(dx + pixel[:, None] * channels + channel[None, :], total.to(dx.dtype.element_ty), mask=valid)
