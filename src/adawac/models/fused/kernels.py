# mypy: ignore-errors
# ruff: noqa: N803
"""Triton kernels that normalise channels-last activations, forward and backward.

Channels-last activations are a matrix: a row for each pixel, a column for each channel, rows one after another. The
rows belong to `samples`, which are normalised apart from one another, the columns to `groups`, which are normalised
together. So a group norm has as many samples as the batch, a batch norm has one, and a group for each channel; the
kernels are the same. All arithmetic is float32, whatever the activations are.

A sum over rows takes two steps: many programs each leave the sums of a chunk of rows in a buffer, then few add up the
buffer. Atomic additions would need one step, but their order, and so the result's last bits, would change from run to
run.

`tl.where(z <= 0, 0, …)` instead of a maximum keeps NaN: a run that diverges must be seen to do so.
"""

import triton
import triton.language as tl

__all__ = ["apply", "gradient_statistics", "gradient_sums", "input_gradient", "moments", "statistics"]

# Numbers that differ from layer to layer, and need no kernel of their own for each kind of number.
SHAPES = ["rows", "chunk_rows", "chunks", "groups"]


@triton.jit
def _place(rows, chunk_rows, channels, BLOCK_C: tl.constexpr):
    """Return a program's part of the matrix: its columns, number of rows, and where the first of these begins."""
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    first = tl.program_id(1) * chunk_rows
    begin = (tl.program_id(2).to(tl.int64) * rows + first) * channels  # the whole matrix may exceed 2³¹ elements
    return column, tl.minimum(chunk_rows, rows - first), begin


@triton.jit
def _tile(start, count, column, channels, BLOCK_R: tl.constexpr):
    """Return the positions of a tile's elements after the first row, and which of them exist."""
    row = start + tl.arange(0, BLOCK_R)
    return row[:, None] * channels + column[None, :], (row < count)[:, None] & (column < channels)[None, :]


@triton.jit
def _of_groups(values, column, channels, groups):
    """Load a value of each column's group: `values` is (2, samples, groups), the result a pair."""
    at = tl.program_id(2) * groups + column // (channels // groups)
    there = column < channels
    second = tl.num_programs(2) * groups
    return tl.load(values + at, mask=there, other=0.0), tl.load(values + second + at, mask=there, other=0.0)


@triton.jit(do_not_specialize=SHAPES)
def moments(x, partial, rows, chunk_rows, channels, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Leave each column's mean and sum of squared deviations over a chunk of rows in `partial`.

    Each element of the tile follows its own running mean (Welford), so that nothing cancels where the mean is far
    larger than the deviation, and no threads have to meet before the last row.
    """
    column, count, begin = _place(rows, chunk_rows, channels, BLOCK_C)
    mean = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    seen = 0.0
    for start in range(0, count, BLOCK_R):
        at, there = _tile(start, count, column, channels, BLOCK_R)
        value = tl.load(x + begin + at, mask=there, other=0.0).to(tl.float32)
        seen += 1.0
        change = tl.where(there, value - mean, 0.0)
        mean += change * (1.0 / seen)
        squares += change * (value - mean)
    each = ((count - tl.arange(0, BLOCK_R) + BLOCK_R - 1) // BLOCK_R).to(tl.float32)[:, None]
    centre = tl.sum(mean * each, 0) / count.to(tl.float32)
    off = mean - centre[None, :]
    spread = tl.sum(squares + each * off * off, 0)
    out = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * channels + column
    second = tl.num_programs(2) * tl.num_programs(1) * channels
    tl.store(partial + out, centre, mask=column < channels)
    tl.store(partial + second + out, spread, mask=column < channels)


@triton.jit(do_not_specialize=SHAPES)
def statistics(
    partial,
    stats,
    running_mean,
    running_var,
    batches,
    rows,
    chunk_rows,
    chunks,
    channels,
    groups,
    eps,
    momentum,
    RUNNING: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_J: tl.constexpr,
):
    """Merge the chunks and the columns of each group to its mean and 1/√(variance + eps); follow them if asked to."""
    sample, samples = tl.program_id(1), tl.num_programs(1)
    group = tl.program_id(0) * BLOCK_G + tl.arange(0, BLOCK_G)
    size = channels // groups
    k, g, j = tl.arange(0, BLOCK_K)[:, None, None], group[None, :, None], tl.arange(0, BLOCK_J)[None, None, :]
    there = (k < chunks) & (g < groups) & (j < size)
    at = (sample * chunks + k) * channels + g * size + j
    centre = tl.load(partial + at, mask=there, other=0.0)
    spread = tl.load(partial + samples * chunks * channels + at, mask=there, other=0.0)
    each = tl.where(there, tl.minimum(chunk_rows, rows - k * chunk_rows), 0).to(tl.float32)
    total = rows.to(tl.float32) * size
    mean = tl.sum(tl.sum(centre * each, 2), 0) / total
    off = centre - mean[None, :, None]
    var = tl.sum(tl.sum(spread + each * off * off, 2), 0) / total
    out = sample * groups + group
    tl.store(stats + out, mean, mask=group < groups)
    tl.store(stats + samples * groups + out, 1.0 / tl.sqrt(var + eps), mask=group < groups)
    if RUNNING:
        old_mean = tl.load(running_mean + group, mask=group < groups)
        old_var = tl.load(running_var + group, mask=group < groups)
        unbiased = var * (total / (total - 1.0))
        tl.store(running_mean + group, old_mean + momentum * (mean - old_mean), mask=group < groups)
        tl.store(running_var + group, old_var + momentum * (unbiased - old_var), mask=group < groups)
        if tl.program_id(0) == 0:
            tl.store(batches, tl.load(batches) + 1)


@triton.jit(do_not_specialize=SHAPES)
def apply(
    x,
    residual,
    y,
    stats,
    weight,
    bias,
    rows,
    chunk_rows,
    channels,
    groups,
    RELU: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Normalise, scale and shift; then add the residual and cut at zero while the values are at hand."""
    column, count, begin = _place(rows, chunk_rows, channels, BLOCK_C)
    mean, rstd = _of_groups(stats, column, channels, groups)
    w = tl.load(weight + column, mask=column < channels, other=0.0)
    b = tl.load(bias + column, mask=column < channels, other=0.0)
    for start in range(0, count, BLOCK_R):
        at, there = _tile(start, count, column, channels, BLOCK_R)
        value = tl.load(x + begin + at, mask=there, other=0.0).to(tl.float32)
        z = (value - mean[None, :]) * rstd[None, :] * w[None, :] + b[None, :]
        if RESIDUAL:
            z += tl.load(residual + begin + at, mask=there, other=0.0).to(tl.float32)
        if RELU:
            z = tl.where(z <= 0.0, 0.0, z)
        tl.store(y + begin + at, z.to(y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=SHAPES)
def gradient_sums(
    x,
    dy,
    y,
    dz,
    partial,
    stats,
    weight,
    bias,
    rows,
    chunk_rows,
    channels,
    groups,
    RELU: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Leave each column's sums of dz and dz·x̂ over a chunk of rows in `partial`; z is what the ReLU is given.

    Where there is no residual, the ReLU's mask is computed anew from x, which is read anyway. Where there is one, the
    mask is the output's, and dz, which is the residual's gradient, is kept: the next kernel then reads neither again.
    """
    column, count, begin = _place(rows, chunk_rows, channels, BLOCK_C)
    mean, rstd = _of_groups(stats, column, channels, groups)
    w = tl.load(weight + column, mask=column < channels, other=0.0)
    b = tl.load(bias + column, mask=column < channels, other=0.0)
    plain = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    scaled = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for start in range(0, count, BLOCK_R):
        at, there = _tile(start, count, column, channels, BLOCK_R)
        value = tl.load(x + begin + at, mask=there, other=0.0).to(tl.float32)
        gradient = tl.load(dy + begin + at, mask=there, other=0.0).to(tl.float32)
        standard = (value - mean[None, :]) * rstd[None, :]
        if RELU and RESIDUAL:
            out = tl.load(y + begin + at, mask=there, other=0.0).to(tl.float32)
            gradient = tl.where(out <= 0.0, 0.0, gradient)
            tl.store(dz + begin + at, gradient.to(dz.dtype.element_ty), mask=there)
        elif RELU:
            gradient = tl.where(standard * w[None, :] + b[None, :] <= 0.0, 0.0, gradient)
        plain += gradient
        scaled += gradient * standard
    out = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * channels + column
    second = tl.num_programs(2) * tl.num_programs(1) * channels
    tl.store(partial + out, tl.sum(plain, 0), mask=column < channels)
    tl.store(partial + second + out, tl.sum(scaled, 0), mask=column < channels)


@triton.jit(do_not_specialize=SHAPES)
def gradient_statistics(
    partial,
    of_columns,
    of_groups,
    weight,
    rows,
    chunks,
    channels,
    groups,
    BLOCK_K: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_J: tl.constexpr,
):
    """Add up the chunks to each column's sums of dz and dz·x̂, and average w·dz and w·dz·x̂ over each group."""
    sample, samples = tl.program_id(1), tl.num_programs(1)
    group = tl.program_id(0) * BLOCK_G + tl.arange(0, BLOCK_G)
    size = channels // groups
    k = tl.arange(0, BLOCK_K)[:, None, None]
    j = tl.arange(0, BLOCK_J)[None, :]
    column = group[:, None] * size + j
    there = (group < groups)[:, None] & (j < size)
    at = (sample * chunks + k) * channels + column[None, :, :]
    loaded = (k < chunks) & there[None, :, :]
    plain = tl.sum(tl.load(partial + at, mask=loaded, other=0.0), 0)
    scaled = tl.sum(tl.load(partial + samples * chunks * channels + at, mask=loaded, other=0.0), 0)
    w = tl.load(weight + column, mask=there, other=0.0)
    total = rows.to(tl.float32) * size
    tl.store(of_columns + sample * channels + column, plain, mask=there)
    tl.store(of_columns + (samples + sample) * channels + column, scaled, mask=there)
    tl.store(of_groups + sample * groups + group, tl.sum(w * plain, 1) / total, mask=group < groups)
    tl.store(of_groups + (samples + sample) * groups + group, tl.sum(w * scaled, 1) / total, mask=group < groups)


@triton.jit(do_not_specialize=SHAPES)
def input_gradient(
    x,
    dz,
    dx,
    stats,
    averages,
    weight,
    bias,
    rows,
    chunk_rows,
    channels,
    groups,
    RELU: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute dx = (w·dz - mean(w·dz) - x̂·mean(w·dz·x̂))/σ; with RELU, dz is the output's gradient, not yet masked."""
    column, count, begin = _place(rows, chunk_rows, channels, BLOCK_C)
    mean, rstd = _of_groups(stats, column, channels, groups)
    plain, scaled = _of_groups(averages, column, channels, groups)
    w = tl.load(weight + column, mask=column < channels, other=0.0)
    b = tl.load(bias + column, mask=column < channels, other=0.0)
    for start in range(0, count, BLOCK_R):
        at, there = _tile(start, count, column, channels, BLOCK_R)
        value = tl.load(x + begin + at, mask=there, other=0.0).to(tl.float32)
        gradient = tl.load(dz + begin + at, mask=there, other=0.0).to(tl.float32)
        standard = (value - mean[None, :]) * rstd[None, :]
        if RELU:
            gradient = tl.where(standard * w[None, :] + b[None, :] <= 0.0, 0.0, gradient)
        result = (gradient * w[None, :] - plain[None, :] - standard * scaled[None, :]) * rstd[None, :]
        tl.store(dx + begin + at, result.to(dx.dtype.element_ty), mask=there)
