# mypy: ignore-errors
# ruff: noqa: N803
"""Triton kernels that normalise channels-last activations, forward and backward.

Channels-last activations are a matrix: a row for each pixel, a column for each channel, rows one after another. The
rows belong to `samples`, which are normalised apart from one another, the columns to `groups`, which are normalised
together. So a group norm has as many samples as the batch, a batch norm has one, and a group for each channel; the
kernels are the same. All arithmetic is float32, whatever the activations are.

A sum over rows takes two steps: many programs each leave the sums of a chunk of rows in a buffer, then the last of them
to finish adds up the buffer, in the order of the rows. Atomic additions would need no buffer, but their order, and so
the result's last bits, would change from run to run. A program's columns hold whole groups, so that no two of those
that finish last have to wait for one another.

`tl.where(z <= 0, 0, …)` instead of a maximum keeps NaN: a run that diverges must be seen to do so.
"""

import triton
import triton.language as tl

# Numbers that differ from layer to layer, and need no kernel of their own for each kind of number.
SHAPES = ["rows", "chunk_rows", "groups", "relu"]


# Groups of 1, 2, 4, … 64 columns share their kernels, for which SIZE is 0.
POWERS = tl.constexpr(7)


@triton.jit
def _columns(channels, SIZE: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_C: tl.constexpr):
    """Return a program's columns and which of them exist: groups of SIZE columns, in BLOCK_J places each."""
    first, offset = tl.program_id(0) * BLOCK_C, tl.arange(0, BLOCK_C)
    if SIZE == BLOCK_J:  # no gaps: neighbours in memory are read together
        column = first + offset
        valid = column < channels
    else:
        group = (first + offset) // BLOCK_J
        column = group * SIZE + offset % BLOCK_J
        valid = (offset % BLOCK_J < SIZE) & (column < channels)
    return column, valid


@triton.jit
def _place(rows, chunk_rows, channels):
    """Return a program's number of rows, and where the first of them begins."""
    first = tl.program_id(1) * chunk_rows
    begin = (tl.program_id(2).to(tl.int64) * rows + first) * channels  # the whole matrix may exceed 2³¹ elements
    return tl.minimum(chunk_rows, rows - first), begin


@triton.jit
def _tile(start, count, column, exists, channels, BLOCK_R: tl.constexpr):
    """Return the positions of a tile's elements after the first row, and which of them exist."""
    row = start + tl.arange(0, BLOCK_R)
    return row[:, None] * channels + column[None, :], (row < count)[:, None] & exists[None, :]


@triton.jit
def _of_groups(values, column, exists, channels, groups):
    """Load a value of each column's group: `values` is (2, samples, groups), the result a pair."""
    at = tl.program_id(2) * groups + column // (channels // groups)
    second = tl.num_programs(2) * groups
    return tl.load(values + at, mask=exists, other=0.0), tl.load(values + second + at, mask=exists, other=0.0)


@triton.jit
def _parameters(stats, weight, bias, column, exists, channels, groups):
    """Load each column's mean, 1/σ, weight and bias."""
    mean, rstd = _of_groups(stats, column, exists, channels, groups)
    w, b = tl.load(weight + column, mask=exists, other=0.0), tl.load(bias + column, mask=exists, other=0.0)
    return mean, rstd, w, b


@triton.jit
def _last(counter, programs):
    """Tell whether this program is the last of some to come here: it can read whatever these have stored before."""
    tl.debug_barrier()  # until all threads have stored
    last = tl.atomic_add(counter, 1) == programs - 1
    if last:
        tl.store(counter, 0)  # ready for the next kernel
    return last


@triton.jit
def _merged(mean, squares, each):
    """Merge the rows of a tile, that are moments of `each` values, to one."""
    centre = tl.sum(mean * each, 0) / tl.sum(each, 0)
    off = mean - centre[None, :]
    return centre, tl.sum(squares + each * off * off, 0)


@triton.jit
def _read(partial, start, column, exists, channels, BLOCK_R: tl.constexpr):
    """Load a tile of what the chunks of a sample have left: a pair."""
    chunks = tl.num_programs(1)
    at, valid = _tile(start, chunks, column, exists, channels, BLOCK_R)
    at += tl.program_id(2) * chunks * channels
    second = tl.num_programs(2) * chunks * channels
    # Past the processor's own cache, which need not know what others have stored.
    first = tl.load(partial + at, mask=valid, other=0.0, cache_modifier=".cg")
    return first, tl.load(partial + second + at, mask=valid, other=0.0, cache_modifier=".cg")


@triton.jit
def _leave(partial, column, exists, channels, first, second):
    """Store what a chunk has come to."""
    out = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * channels + column
    tl.store(partial + out, first, mask=exists)
    tl.store(partial + tl.num_programs(2) * tl.num_programs(1) * channels + out, second, mask=exists)


@triton.jit(do_not_specialize=SHAPES)
def moments(
    x, partial, counters, stats, running_mean, running_var, batches,
    rows, chunk_rows, channels, groups, eps, momentum,
    RUNNING: tl.constexpr, SIZE: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute each group's mean and 1/√(variance + eps); follow them if asked to.

    A program leaves each column's mean and sum of squared deviations over its chunk of rows in `partial`. Each element
    of the tile follows its own running mean (Welford), so that nothing cancels where the mean is far larger than the
    deviation, and no threads have to meet before the last row.
    """
    column, exists = _columns(channels, SIZE, BLOCK_J, BLOCK_C)
    count, begin = _place(rows, chunk_rows, channels)
    mean = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    seen = 0.0
    for start in tl.range(0, count, BLOCK_R, num_stages=STAGES):
        at, valid = _tile(start, count, column, exists, channels, BLOCK_R)
        value = tl.load(x + begin + at, mask=valid, other=0.0).to(tl.float32)
        seen += 1.0
        change = tl.where(valid, value - mean, 0.0)
        mean += change * (1.0 / seen)
        squares += change * (value - mean)
    each = ((count - tl.arange(0, BLOCK_R) + BLOCK_R - 1) // BLOCK_R).to(tl.float32)[:, None]
    centre, spread = _merged(mean, squares, each)
    _leave(partial, column, exists, channels, centre, spread)
    if _last(counters + tl.program_id(2) * tl.num_programs(0) + tl.program_id(0), tl.num_programs(1)):
        _finish_moments(
            partial, stats, running_mean, running_var, batches, rows, chunk_rows, channels, groups, eps, momentum,
            column, exists, RUNNING, SIZE, BLOCK_J, BLOCK_R, BLOCK_C,
        )  # fmt: skip


@triton.jit
def _finish_moments(
    partial, stats, running_mean, running_var, batches, rows, chunk_rows, channels, groups, eps, momentum,
    column, exists,
    RUNNING: tl.constexpr, SIZE: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Merge the chunks and the columns of each group."""
    mean = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    seen = tl.zeros((BLOCK_R, 1), tl.float32)
    for start in range(0, tl.num_programs(1), BLOCK_R):
        centre, spread = _read(partial, start, column, exists, channels, BLOCK_R)
        left = rows - (start + tl.arange(0, BLOCK_R)) * chunk_rows
        each = tl.maximum(0, tl.minimum(chunk_rows, left)).to(tl.float32)[:, None]
        seen += each
        share = each / tl.maximum(seen, 1.0)
        change = centre - mean
        mean += change * share
        squares += spread + change * change * share * (seen - each)
    mean, squares = _merged(mean, squares, seen)
    if SIZE > 0:
        _leave_moments(
            stats, running_mean, running_var, batches, rows, groups, eps, momentum,
            mean, squares, RUNNING, SIZE, BLOCK_J, BLOCK_C,
        )  # fmt: skip
    else:
        for power in tl.static_range(POWERS):
            if channels == groups << power:
                _leave_moments(
                    stats, running_mean, running_var, batches, rows, groups, eps, momentum,
                    mean, squares, RUNNING, 1 << power, 1 << power, BLOCK_C,
                )  # fmt: skip


@triton.jit
def _leave_moments(
    stats, running_mean, running_var, batches, rows, groups, eps, momentum, mean, squares,
    RUNNING: tl.constexpr, SIZE: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Merge the columns of each group, of which there are SIZE in BLOCK_J places."""
    group = tl.program_id(0) * (BLOCK_C // BLOCK_J) + tl.arange(0, BLOCK_C // BLOCK_J)
    total = rows.to(tl.float32) * SIZE
    if SIZE > 1:
        valid = (tl.arange(0, BLOCK_J) < SIZE)[None, :]
        of_columns = tl.reshape(mean, (BLOCK_C // BLOCK_J, BLOCK_J))
        mean = tl.sum(tl.where(valid, of_columns, 0.0), 1) / SIZE
        off = tl.where(valid, of_columns - mean[:, None], 0.0)
        squares = tl.sum(tl.reshape(squares, (BLOCK_C // BLOCK_J, BLOCK_J)) + off * off * rows.to(tl.float32), 1)
    var = squares / total
    out = tl.program_id(2) * groups + group
    tl.store(stats + out, mean, mask=group < groups)
    tl.store(stats + tl.num_programs(2) * groups + out, 1.0 / tl.sqrt(var + eps), mask=group < groups)
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
    x, residual, y, stats, weight, bias,
    rows, chunk_rows, channels, groups, relu,
    RESIDUAL: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Normalise, scale and shift; then add the residual and cut at zero while the values are at hand."""
    column, exists = _columns(channels, 1, 1, BLOCK_C)
    count, begin = _place(rows, chunk_rows, channels)
    mean, rstd, w, b = _parameters(stats, weight, bias, column, exists, channels, groups)
    for start in range(0, count, BLOCK_R):
        at, valid = _tile(start, count, column, exists, channels, BLOCK_R)
        value = tl.load(x + begin + at, mask=valid, other=0.0).to(tl.float32)
        z = (value - mean[None, :]) * rstd[None, :] * w[None, :] + b[None, :]
        if RESIDUAL:
            z += tl.load(residual + begin + at, mask=valid, other=0.0).to(tl.float32)
        z = tl.where((relu > 0) & (z <= 0.0), 0.0, z)
        tl.store(y + begin + at, z.to(y.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=SHAPES)
def gradient_sums(
    x, dy, y, dz, partial, counters, of_columns, of_groups, total, stats, weight, bias,
    rows, chunk_rows, channels, groups, relu,
    KEEP: tl.constexpr, SEVERAL: tl.constexpr, SIZE: tl.constexpr, BLOCK_J: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Average w·dz and w·dz·x̂ over each group; sum dz and dz·x̂ over the rows, and over samples if there are SEVERAL.

    z is what the ReLU is given.

    Where there is no residual, the ReLU's mask is computed anew from x, which is read anyway. Where there is one, the
    mask is the output's, and dz, which is the residual's gradient, is kept (KEEP): the next kernel then reads neither.
    """
    column, exists = _columns(channels, SIZE, BLOCK_J, BLOCK_C)
    count, begin = _place(rows, chunk_rows, channels)
    mean, rstd, w, b = _parameters(stats, weight, bias, column, exists, channels, groups)
    plain = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    scaled = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for start in tl.range(0, count, BLOCK_R, num_stages=STAGES):
        at, valid = _tile(start, count, column, exists, channels, BLOCK_R)
        value = tl.load(x + begin + at, mask=valid, other=0.0).to(tl.float32)
        gradient = tl.load(dy + begin + at, mask=valid, other=0.0).to(tl.float32)
        standard = (value - mean[None, :]) * rstd[None, :]
        if KEEP:
            out = tl.load(y + begin + at, mask=valid, other=0.0).to(tl.float32)
            gradient = tl.where(out <= 0.0, 0.0, gradient)
            tl.store(dz + begin + at, gradient.to(dz.dtype.element_ty), mask=valid)
        else:
            gradient = tl.where((relu > 0) & (standard * w[None, :] + b[None, :] <= 0.0), 0.0, gradient)
        plain += gradient
        scaled += gradient * standard
    _leave(partial, column, exists, channels, tl.sum(plain, 0), tl.sum(scaled, 0))
    sample, samples, blocks = tl.program_id(2), tl.num_programs(2), tl.num_programs(0)
    if _last(counters + sample * blocks + tl.program_id(0), tl.num_programs(1)):
        _finish_sums(
            partial, of_columns, of_groups, w, rows, channels, groups, column, exists, SIZE, BLOCK_J, BLOCK_R, BLOCK_C
        )
        if SEVERAL:  # noqa: SIM102 (a constant of the kernel, the other a value)
            if _last(counters + samples * blocks + tl.program_id(0), samples):
                _sum_samples(of_columns, total, channels, column, exists, BLOCK_R, BLOCK_C)


@triton.jit
def _finish_sums(
    partial, of_columns, of_groups, w, rows, channels, groups, column, exists,
    SIZE: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Add up the chunks of a sample."""
    plain = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    scaled = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for start in range(0, tl.num_programs(1), BLOCK_R):
        first, second = _read(partial, start, column, exists, channels, BLOCK_R)
        plain += first
        scaled += second
    plain, scaled = tl.sum(plain, 0), tl.sum(scaled, 0)
    out, second = tl.program_id(2) * channels + column, tl.num_programs(2) * channels
    tl.store(of_columns + out, plain, mask=exists)
    tl.store(of_columns + second + out, scaled, mask=exists)
    plain, scaled = tl.where(exists, w * plain, 0.0), tl.where(exists, w * scaled, 0.0)
    if SIZE > 0:
        _leave_averages(of_groups, plain, scaled, rows, groups, SIZE, BLOCK_J, BLOCK_C)
    else:
        for power in tl.static_range(POWERS):
            if channels == groups << power:
                _leave_averages(of_groups, plain, scaled, rows, groups, 1 << power, 1 << power, BLOCK_C)


@triton.jit
def _leave_averages(
    of_groups, plain, scaled, rows, groups, SIZE: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Add up the columns of each group."""
    if SIZE > 1:
        plain = tl.sum(tl.reshape(plain, (BLOCK_C // BLOCK_J, BLOCK_J)), 1)
        scaled = tl.sum(tl.reshape(scaled, (BLOCK_C // BLOCK_J, BLOCK_J)), 1)
    group = tl.program_id(0) * (BLOCK_C // BLOCK_J) + tl.arange(0, BLOCK_C // BLOCK_J)
    total = rows.to(tl.float32) * SIZE
    out, second = tl.program_id(2) * groups + group, tl.num_programs(2) * groups
    tl.store(of_groups + out, plain / total, mask=group < groups)
    tl.store(of_groups + second + out, scaled / total, mask=group < groups)


@triton.jit
def _sum_samples(of_columns, total, channels, column, exists, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Add up the samples."""
    samples = tl.num_programs(2)
    plain = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    scaled = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for start in range(0, samples, BLOCK_R):
        at, valid = _tile(start, samples, column, exists, channels, BLOCK_R)
        plain += tl.load(of_columns + at, mask=valid, other=0.0, cache_modifier=".cg")
        scaled += tl.load(of_columns + samples * channels + at, mask=valid, other=0.0, cache_modifier=".cg")
    tl.store(total + column, tl.sum(plain, 0), mask=exists)
    tl.store(total + channels + column, tl.sum(scaled, 0), mask=exists)


@triton.jit(do_not_specialize=SHAPES)
def input_gradient(
    x, dz, dx, stats, averages, weight, bias,
    rows, chunk_rows, channels, groups, relu,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Compute dx = (w·dz - mean(w·dz) - x̂·mean(w·dz·x̂))/σ; with `relu`, dz is the output's gradient, not yet masked."""
    column, exists = _columns(channels, 1, 1, BLOCK_C)
    count, begin = _place(rows, chunk_rows, channels)
    mean, rstd, w, b = _parameters(stats, weight, bias, column, exists, channels, groups)
    plain, scaled = _of_groups(averages, column, exists, channels, groups)
    for start in range(0, count, BLOCK_R):
        at, valid = _tile(start, count, column, exists, channels, BLOCK_R)
        value = tl.load(x + begin + at, mask=valid, other=0.0).to(tl.float32)
        gradient = tl.load(dz + begin + at, mask=valid, other=0.0).to(tl.float32)
        standard = (value - mean[None, :]) * rstd[None, :]
        gradient = tl.where((relu > 0) & (standard * w[None, :] + b[None, :] <= 0.0), 0.0, gradient)
        result = (gradient * w[None, :] - plain[None, :] - standard * scaled[None, :]) * rstd[None, :]
        tl.store(dx + begin + at, result.to(dx.dtype.element_ty), mask=valid)
