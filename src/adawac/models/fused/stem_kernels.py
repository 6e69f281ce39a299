# mypy: ignore-errors
# ruff: noqa: N803
"""Triton kernels for the first convolution of a network, from an image of one channel to many.

As in conv_kernels.py a program takes a block of columns and goes down their rows. It gathers each output pixel's window
into a row of a matrix, eight places for each row of taps: the image is small and stays in the cache.
"""

import triton
import triton.language as tl

from adawac.models.fused.conv_kernels import own_columns

__all__ = ["convolve_gray", "gray_weight_gradient"]


@triton.jit
def _taps(KERNEL: tl.constexpr, PADDING: tl.constexpr, BLOCK_K: tl.constexpr):
    """Return the taps' places in the weight, and which of them there are."""
    k = tl.arange(0, BLOCK_K)
    i, j = k // 8, k % 8 - PADDING % 2
    return i * KERNEL + j, (i < KERNEL) & (j >= 0) & (j < KERNEL)


@triton.jit
def _windows(
    x,
    row,
    there,
    image,
    column,
    height,
    width,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Load the windows of one row of outputs, zero beyond the border.

    They begin one place before the kernel where it would begin at odd pixels: so they are loaded in pairs. What lies
    beside the kernel has no weight.
    """
    k = tl.arange(0, BLOCK_K)
    down = row * STRIDE - PADDING + k // 8
    right = (column * STRIDE - (PADDING + PADDING % 2))[:, None] + (k % 8)[None, :]
    inside = (k // 8 < KERNEL) & (down >= 0) & (down < height)
    first = (image * height * width).to(tl.int32)  # images are small: they have one channel
    at = first[:, None] + (down * width)[None, :] + right
    return tl.load(x + at, mask=there[:, None] & inside[None, :] & (right >= 0) & (right < width), other=0.0)


@triton.jit
def convolve_gray(
    x,
    weight,
    bias,
    y,
    columns,
    height,
    width,
    out_height,
    out_width,
    rows,
    OUTPUTS: tl.constexpr,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """Write some rows of y = x * weight + bias; `weight` is (OUTPUTS, KERNEL, KERNEL)."""
    there, image, column = own_columns(columns, out_width, BLOCK_P)
    tap, real = _taps(KERNEL, PADDING, BLOCK_K)
    out = tl.arange(0, BLOCK_O)
    matrix = tl.load(
        weight + tap[:, None] + (out * KERNEL * KERNEL)[None, :],
        mask=real[:, None] & (out < OUTPUTS)[None, :],
        other=0.0,
    )
    start = tl.zeros((BLOCK_P, BLOCK_O), tl.float32)
    if BIAS:
        start += tl.load(bias + out, mask=out < OUTPUTS, other=0.0).to(tl.float32)[None, :]
    begin = tl.program_id(1) * rows
    for step in range(tl.minimum(rows, out_height - begin)):
        row = begin + step
        value = _windows(x, row, there, image, column, height, width, KERNEL, STRIDE, PADDING, BLOCK_K)
        total = tl.dot(value.to(matrix.dtype), matrix, start)
        at = ((image * out_height + row) * out_width + column)[:, None] * OUTPUTS + out[None, :]
        tl.store(y + at, total.to(y.dtype.element_ty), mask=there[:, None] & (out < OUTPUTS)[None, :])


@triton.jit
def gray_weight_gradient(
    x,
    dy,
    partial,
    columns,
    height,
    width,
    out_height,
    out_width,
    rows,
    OUTPUTS: tl.constexpr,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """Leave the gradients over some rows of dy in `partial`: (programs, OUTPUTS, KERNEL, KERNEL), then the bias's."""
    there, image, column = own_columns(columns, out_width, BLOCK_P)
    tap, real = _taps(KERNEL, PADDING, BLOCK_K)
    out = tl.arange(0, BLOCK_O)
    total = tl.zeros((BLOCK_O, BLOCK_K), tl.float32)
    sums = tl.zeros((BLOCK_P, BLOCK_O), tl.float32)
    begin = tl.program_id(1) * rows
    for step in range(tl.minimum(rows, out_height - begin)):
        row = begin + step
        value = _windows(x, row, there, image, column, height, width, KERNEL, STRIDE, PADDING, BLOCK_K)
        at = ((image * out_height + row) * out_width + column)[:, None] * OUTPUTS + out[None, :]
        gradient = tl.load(dy + at, mask=there[:, None] & (out < OUTPUTS)[None, :], other=0.0)
        total = tl.dot(tl.trans(gradient), value.to(gradient.dtype), total)
        if BIAS:
            sums += gradient
    taps: tl.constexpr = KERNEL * KERNEL
    partial += (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)) * (taps + BIAS) * OUTPUTS
    at = (out * taps)[:, None] + tap[None, :]
    tl.store(partial + at, total, mask=(out < OUTPUTS)[:, None] & real[None, :])
    if BIAS:
        tl.store(partial + taps * OUTPUTS + out, tl.sum(sums, 0), mask=out < OUTPUTS)
