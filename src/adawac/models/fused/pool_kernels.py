# mypy: ignore-errors
# ruff: noqa: N803
"""Triton kernels for the maximum over windows of 3×3 pixels, two pixels apart, of channels-last maps.

The forward pass notes in a byte which of its nine pixels a window took, the first of equal ones as in torch. So each
pixel can look up the windows that it lies in, four at most, and the gradient needs no atomic addition.
"""

import triton
import triton.language as tl

from adawac.models.fused.enlarge_kernels import place

__all__ = ["maxima", "maxima_gradient"]

# Numbers that differ from layer to layer, and need no kernel of their own for each kind of number.
SHAPES = ["pixels", "height", "width", "out_height", "out_width"]


@triton.jit(do_not_specialize=SHAPES)
def maxima(
    x,
    y,
    taken,
    pixels,
    height,
    width,
    out_height,
    out_width,
    channels,
    PADDING: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Write each window's maximum, and which of its pixels that was."""
    pixel, exists, image, row, column = place(pixels, out_height, out_width, BLOCK_R)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    there = exists[:, None] & (channel < channels)[None, :]
    best = tl.full((BLOCK_R, BLOCK_C), float("-inf"), tl.float32)
    index = tl.full((BLOCK_R, BLOCK_C), -1, tl.int32)
    for tap in tl.static_range(9):
        i, j = row * 2 - PADDING + tap // 3, column * 2 - PADDING + tap % 3
        inside = (i >= 0) & (i < height) & (j >= 0) & (j < width)
        at = ((image * height + i) * width + j).to(tl.int64)
        seen = there & inside[:, None]
        value = tl.load(x + at[:, None] * channels + channel[None, :], mask=seen, other=float("-inf")).to(tl.float32)
        larger = seen & ((value > best) | (value != value) | (index < 0))  # NaN is the maximum, as in torch
        best = tl.where(larger, value, best)
        index = tl.where(larger, tap, index)
    out = pixel[:, None] * channels + channel[None, :]
    tl.store(y + out, best.to(y.dtype.element_ty), mask=there)
    tl.store(taken + out, index.to(tl.int8), mask=there)


@triton.jit(do_not_specialize=SHAPES)
def maxima_gradient(
    dy,
    taken,
    dx,
    pixels,
    height,
    width,
    out_height,
    out_width,
    channels,
    PADDING: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Add up, for each pixel, the gradients of the windows that took it."""
    pixel, exists, image, row, column = place(pixels, height, width, BLOCK_R)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    there = exists[:, None] & (channel < channels)[None, :]
    total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for k in tl.static_range(4):
        # The last window that the pixel lies in, and the one before, on each axis.
        i, j = (row + PADDING) // 2 - k // 2, (column + PADDING) // 2 - k % 2
        tap_i, tap_j = row + PADDING - 2 * i, column + PADDING - 2 * j
        inside = (i >= 0) & (i < out_height) & (j >= 0) & (j < out_width) & (tap_i < 3) & (tap_j < 3)
        at = ((image * out_height + i) * out_width + j).to(tl.int64)[:, None] * channels + channel[None, :]
        seen = there & inside[:, None]
        index = tl.load(taken + at, mask=seen, other=-1)
        value = tl.load(dy + at, mask=seen, other=0.0).to(tl.float32)
        total += tl.where(index == (tap_i * 3 + tap_j)[:, None], value, 0.0)
    tl.store(dx + pixel[:, None] * channels + channel[None, :], total.to(dx.dtype.element_ty), mask=there)
