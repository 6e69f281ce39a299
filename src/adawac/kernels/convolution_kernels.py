# mypy: ignore-errors
# ruff: noqa: N803
"""Triton kernels for convolutions: 3×3 between few channels, the first one of a grey image, weight standardisation."""

import triton
import triton.language as tl


@triton.jit
def _own_columns(columns, width, BLOCK_P: tl.constexpr):
    """Return this program's columns of all images: which there are, their images and their places in the row."""
    at = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    return at < columns, (at // width).to(tl.int64), at % width


@triton.jit
def _within(valid, column, k, width, INPUTS: tl.constexpr):
    """Tell which elements of the columns' spans lie in the image."""
    neighbour = column[:, None] + (k // INPUTS)[None, :] - 1
    return valid[:, None] & (k < 3 * INPUTS)[None, :] & (neighbour >= 0) & (neighbour < width)


@triton.jit
def _matrix(weight, tap, k, out, to_out, to_in, to_row, to_column, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr):
    """Load the weights of one row of taps, from the elements of a span to the outputs."""
    at = (k % INPUTS * to_in + k // INPUTS * to_column)[:, None] + out[None, :] * to_out
    return tl.load(weight + tap * to_row + at, mask=(k < 3 * INPUTS)[:, None] & (out < OUTPUTS)[None, :], other=0.0)


@triton.jit(do_not_specialize=["columns", "height", "rows"])
def convolve(
    x, weight, bias, y,
    columns, height, width, rows, to_out, to_in, to_row, to_column,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, BIAS: tl.constexpr, CACHE: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Write some rows of y = x * weight + bias; `weight` is read by its strides, which may be negative."""
    valid, image, column = _own_columns(columns, width, BLOCK_P)
    out = tl.program_id(2) * BLOCK_O + tl.arange(0, BLOCK_O)
    top, middle, bottom, within = (), (), (), ()
    for block in tl.static_range(0, 3 * INPUTS, BLOCK_K):
        k = block + tl.arange(0, BLOCK_K)
        top += (_matrix(weight, 0, k, out, to_out, to_in, to_row, to_column, INPUTS, OUTPUTS),)
        middle += (_matrix(weight, 1, k, out, to_out, to_in, to_row, to_column, INPUTS, OUTPUTS),)
        bottom += (_matrix(weight, 2, k, out, to_out, to_in, to_row, to_column, INPUTS, OUTPUTS),)
        within += (_within(valid, column, k, width, INPUTS),)
    start = tl.zeros((BLOCK_P, BLOCK_O), tl.float32)
    if BIAS:
        start += tl.load(bias + out, mask=out < OUTPUTS, other=0.0).to(tl.float32)[None, :]
    written = valid[:, None] & (out < OUTPUTS)[None, :]
    pixel = image * height * width + column
    begin = tl.program_id(1) * rows
    # A row of x belongs to three rows of y: the one above it, which is complete with it, its own, and the one below.
    above, here = start, start
    for step in range(-1, tl.minimum(rows, height - begin) + 1):
        row = tl.zeros_like(column) + begin + step
        below = start
        at = (pixel + row * width - 1)[:, None] * INPUTS
        for block in tl.static_range(0, 3 * INPUTS, BLOCK_K):
            k = block + tl.arange(0, BLOCK_K)
            seen = within[block // BLOCK_K] & ((row >= 0) & (row < height))[:, None]
            value = tl.load(x + at + k[None, :], mask=seen, other=0.0, cache_modifier=CACHE)
            above = tl.dot(value, bottom[block // BLOCK_K], above)
            here = tl.dot(value, middle[block // BLOCK_K], here)
            below = tl.dot(value, top[block // BLOCK_K], below)
        at = (pixel + (row - 1) * width)[:, None] * OUTPUTS + out[None, :]
        tl.store(y + at, above.to(y.dtype.element_ty), mask=written & (row > begin)[:, None])
        above, here = here, below


@triton.jit(do_not_specialize=["columns", "height", "rows"])
def weight_gradient(
    x, dy, partial,
    columns, height, width, rows,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, BIAS: tl.constexpr, CACHE: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Leave the gradients over some rows of x in `partial`: (programs, OUTPUTS, 3, 3·INPUTS), then the bias's.

    Each row of x is multiplied with the three rows of dy around it, side by side in one matrix.
    """
    valid, image, column = _own_columns(columns, width, BLOCK_P)
    k, n = tl.program_id(2) * BLOCK_K + tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_N)
    tap, out = n // OUTPUTS, n % OUTPUTS
    within = _within(valid, column, k, width, INPUTS)
    beside = valid[:, None] & (tap < 3)[None, :]
    pixel = image * height * width + column
    begin = tl.program_id(1) * rows
    total = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    sums = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    for step in range(tl.minimum(rows, height - begin)):
        row = begin + step
        at = (pixel + row * width - 1)[:, None] * INPUTS + k[None, :]
        value = tl.load(x + at, mask=within, other=0.0, cache_modifier=CACHE)
        other = row + 1 - tap
        around = (pixel[:, None] + (other * width)[None, :]) * OUTPUTS + out[None, :]
        seen = beside & ((other >= 0) & (other < height))[None, :]
        gradient = tl.load(dy + around, mask=seen, other=0.0, cache_modifier=CACHE)
        total = tl.dot(tl.trans(gradient), value, total)
        if BIAS:
            sums += gradient
    size: tl.constexpr = 9 * INPUTS * OUTPUTS + BIAS * OUTPUTS
    partial += (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)) * size
    at = (out * 3 + tap)[:, None] * (3 * INPUTS) + k[None, :]
    tl.store(partial + at, total, mask=(tap < 3)[:, None] & (k < 3 * INPUTS)[None, :])
    if BIAS and tl.program_id(2) == 0:
        tl.store(partial + size - OUTPUTS + out, tl.sum(sums, 0), mask=tap == 1)  # dy's own row


@triton.jit(do_not_specialize=["programs", "elements"])
def summed(partial, weight, bias, programs, size, elements, BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr):
    """Write the sum of all programs' gradients, each of `size`: `elements` to the weight, the rest to the bias."""
    at = tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E)
    total = tl.zeros((BLOCK_R, BLOCK_E), tl.float32)
    for start in range(0, programs, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        mask = (row < programs)[:, None] & (at < size)[None, :]
        total += tl.load(partial + row[:, None] * size + at[None, :], mask=mask, other=0.0)
    result = tl.sum(total, 0)
    tl.store(weight + at, result.to(weight.dtype.element_ty), mask=at < elements)
    tl.store(bias + at - elements, result.to(bias.dtype.element_ty), mask=(at >= elements) & (at < size))


@triton.jit
def _taps(KERNEL: tl.constexpr, PADDING: tl.constexpr, BLOCK_K: tl.constexpr):
    """Return the taps' places in the weight, and which of them there are."""
    k = tl.arange(0, BLOCK_K)
    i, j = k // 8, k % 8 - PADDING % 2
    return i * KERNEL + j, (i < KERNEL) & (j >= 0) & (j < KERNEL)


@triton.jit
def _windows(
    x,
    row, valid, image, column, height, width,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
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
    return tl.load(x + at, mask=valid[:, None] & inside[None, :] & (right >= 0) & (right < width), other=0.0)


@triton.jit
def convolve_gray(
    x, weight, bias, y,
    columns, height, width, out_height, out_width, rows,
    OUTPUTS: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Write some rows of y = x * weight + bias; `weight` is (OUTPUTS, KERNEL, KERNEL)."""
    valid, image, column = _own_columns(columns, out_width, BLOCK_P)
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
        value = _windows(x, row, valid, image, column, height, width, KERNEL, STRIDE, PADDING, BLOCK_K)
        total = tl.dot(value.to(matrix.dtype), matrix, start)
        at = ((image * out_height + row) * out_width + column)[:, None] * OUTPUTS + out[None, :]
        tl.store(y + at, total.to(y.dtype.element_ty), mask=valid[:, None] & (out < OUTPUTS)[None, :])


@triton.jit
def gray_weight_gradient(
    x, dy, partial,
    columns, height, width, out_height, out_width, rows,
    OUTPUTS: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Leave the gradients over some rows of dy in `partial`: (programs, OUTPUTS, KERNEL, KERNEL), then the bias's."""
    valid, image, column = _own_columns(columns, out_width, BLOCK_P)
    tap, real = _taps(KERNEL, PADDING, BLOCK_K)
    out = tl.arange(0, BLOCK_O)
    total = tl.zeros((BLOCK_O, BLOCK_K), tl.float32)
    sums = tl.zeros((BLOCK_P, BLOCK_O), tl.float32)
    begin = tl.program_id(1) * rows
    for step in range(tl.minimum(rows, out_height - begin)):
        row = begin + step
        value = _windows(x, row, valid, image, column, height, width, KERNEL, STRIDE, PADDING, BLOCK_K)
        at = ((image * out_height + row) * out_width + column)[:, None] * OUTPUTS + out[None, :]
        gradient = tl.load(dy + at, mask=valid[:, None] & (out < OUTPUTS)[None, :], other=0.0)
        total = tl.dot(tl.trans(gradient), value.to(gradient.dtype), total)
        if BIAS:
            sums += gradient
    taps: tl.constexpr = KERNEL * KERNEL
    partial += (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)) * (taps + BIAS) * OUTPUTS
    at = (out * taps)[:, None] + tap[None, :]
    tl.store(partial + at, total, mask=(out < OUTPUTS)[:, None] & real[None, :])
    if BIAS:
        tl.store(partial + taps * OUTPUTS + out, tl.sum(sums, 0), mask=out < OUTPUTS)


@triton.jit
def standardise(weight, y, stats, row, eps, BLOCK: tl.constexpr):
    """Write the standardised weight; keep each row's mean and 1/σ."""
    begin, c = tl.program_id(0) * row, tl.arange(0, BLOCK)
    valid = c < row
    value = tl.load(weight + begin + c, mask=valid, other=0.0)
    mean = tl.sum(value, 0) / row
    off = tl.where(valid, value - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(off * off, 0) / row + eps)
    tl.store(y + begin + c, (off * rstd).to(y.dtype.element_ty), mask=valid)
    tl.store(stats + tl.program_id(0), mean)
    tl.store(stats + tl.num_programs(0) + tl.program_id(0), rstd)


@triton.jit
def standardise_gradient(dy, weight, stats, dweight, row, BLOCK: tl.constexpr):
    """Write the gradient of the weight."""
    begin, c = tl.program_id(0) * row, tl.arange(0, BLOCK)
    valid = c < row
    mean, rstd = tl.load(stats + tl.program_id(0)), tl.load(stats + tl.num_programs(0) + tl.program_id(0))
    gradient = tl.load(dy + begin + c, mask=valid, other=0.0).to(tl.float32)
    standard = tl.where(valid, (tl.load(weight + begin + c, mask=valid, other=0.0) - mean) * rstd, 0.0)
    across, along = tl.sum(gradient, 0) / row, tl.sum(gradient * standard, 0) / row
    tl.store(dweight + begin + c, rstd * (gradient - across - standard * along), mask=valid)
