# mypy: ignore-errors
# ruff: noqa: N803
"""Triton kernels that standardise a convolution's weight: a row for each output channel, which one program holds."""

import triton
import triton.language as tl

__all__ = ["standardise", "standardise_gradient"]


@triton.jit
def standardise(weight, y, stats, row, eps, BLOCK: tl.constexpr):
    """Write the standardised weight; keep each row's mean and 1/σ."""
    begin, c = tl.program_id(0) * row, tl.arange(0, BLOCK)
    there = c < row
    value = tl.load(weight + begin + c, mask=there, other=0.0)
    mean = tl.sum(value, 0) / row
    off = tl.where(there, value - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(off * off, 0) / row + eps)
    tl.store(y + begin + c, (off * rstd).to(y.dtype.element_ty), mask=there)
    tl.store(stats + tl.program_id(0), mean)
    tl.store(stats + tl.num_programs(0) + tl.program_id(0), rstd)


@triton.jit
def standardise_gradient(dy, weight, stats, dweight, row, BLOCK: tl.constexpr):
    """Write the gradient of the weight."""
    begin, c = tl.program_id(0) * row, tl.arange(0, BLOCK)
    there = c < row
    mean, rstd = tl.load(stats + tl.program_id(0)), tl.load(stats + tl.num_programs(0) + tl.program_id(0))
    gradient = tl.load(dy + begin + c, mask=there, other=0.0).to(tl.float32)
    standard = tl.where(there, (tl.load(weight + begin + c, mask=there, other=0.0) - mean) * rstd, 0.0)
    across, along = tl.sum(gradient, 0) / row, tl.sum(gradient * standard, 0) / row
    tl.store(dweight + begin + c, rstd * (gradient - across - standard * along), mask=there)
