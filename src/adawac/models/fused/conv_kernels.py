# mypy: ignore-errors
# ruff: noqa: N803
"""Triton kernels for convolutions of 3×3 pixels between few channels, at the full size of channels-last maps.

A U-Net's last convolutions have 16 to 64 channels and all pixels. They are bound by memory, not by arithmetic, but
cuDNN's tiles are made for wide layers. Here a program takes a row of pixels and multiplies the nine shifted rows, which
it finds in its cache, with nine small matrices.
"""

import triton
import triton.language as tl

__all__ = ["convolve", "weight_gradient"]


@triton.jit
def _shifted(x, pixel, row, column, there, channel, i, j, height, width, channels):
    """Load the pixels that lie i rows and j columns off, zero beyond the border."""
    seen = there & (row + i >= 0) & (row + i < height) & (column + j >= 0) & (column + j < width)
    at = (pixel + i * width + j).to(tl.int64)
    return tl.load(
        x + at[:, None] * channels + channel[None, :], mask=seen[:, None] & (channel < channels)[None, :], other=0.0
    )


@triton.jit
def convolve(
    x,
    weight,
    bias,
    y,
    pixels,
    height,
    width,
    inputs,
    outputs,
    BIAS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """Write y = x * weight + bias; `weight` is (9, BLOCK_I, BLOCK_O), with zeros where there are less channels."""
    pixel = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    there = pixel < pixels
    rest = pixel % (height * width)
    row, column = rest // width, rest % width
    channel, out = tl.arange(0, BLOCK_I), tl.arange(0, BLOCK_O)
    total = tl.zeros((BLOCK_P, BLOCK_O), tl.float32)
    for tap in tl.static_range(9):
        value = _shifted(x, pixel, row, column, there, channel, tap // 3 - 1, tap % 3 - 1, height, width, inputs)
        matrix = tl.load(weight + (tap * BLOCK_I + channel[:, None]) * BLOCK_O + out[None, :])
        total = tl.dot(value, matrix, total)
    if BIAS:
        total += tl.load(bias + out, mask=out < outputs, other=0.0).to(tl.float32)[None, :]
    at = pixel.to(tl.int64)[:, None] * outputs + out[None, :]
    tl.store(y + at, total.to(y.dtype.element_ty), mask=there[:, None] & (out < outputs)[None, :])


@triton.jit
def weight_gradient(
    x,
    dy,
    partial,
    pixels,
    height,
    width,
    inputs,
    outputs,
    chunk,
    BLOCK_P: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """Leave one row of taps' gradients, over a chunk of pixels, in `partial` (chunks, 9, BLOCK_I, BLOCK_O)."""
    begin, i = tl.program_id(0) * chunk, tl.program_id(1) - 1
    channel, out = tl.arange(0, BLOCK_I), tl.arange(0, BLOCK_O)
    left = tl.zeros((BLOCK_I, BLOCK_O), tl.float32)
    middle = tl.zeros((BLOCK_I, BLOCK_O), tl.float32)
    right = tl.zeros((BLOCK_I, BLOCK_O), tl.float32)
    for start in range(0, chunk, BLOCK_P):
        pixel = begin + start + tl.arange(0, BLOCK_P)
        there = pixel < pixels
        rest = pixel % (height * width)
        row, column = rest // width, rest % width
        gradient = tl.load(
            dy + pixel.to(tl.int64)[:, None] * outputs + out[None, :],
            mask=there[:, None] & (out < outputs)[None, :],
            other=0.0,
        )
        value = _shifted(x, pixel, row, column, there, channel, i, -1, height, width, inputs)
        left = tl.dot(tl.trans(value), gradient, left)
        value = _shifted(x, pixel, row, column, there, channel, i, 0, height, width, inputs)
        middle = tl.dot(tl.trans(value), gradient, middle)
        value = _shifted(x, pixel, row, column, there, channel, i, 1, height, width, inputs)
        right = tl.dot(tl.trans(value), gradient, right)
    at = partial + ((tl.program_id(0) * 9 + tl.program_id(1) * 3) * BLOCK_I + channel[:, None]) * BLOCK_O + out[None, :]
    tl.store(at, left)
    tl.store(at + BLOCK_I * BLOCK_O, middle)
    tl.store(at + 2 * BLOCK_I * BLOCK_O, right)
