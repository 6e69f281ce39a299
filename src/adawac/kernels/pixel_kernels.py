# mypy: ignore-errors
# ruff: noqa: N803
"""Triton kernels that sum up what losses need, resize and pool maps, and read images through affine maps."""

import triton
import triton.language as tl

# -- sums of logits, read once in whatever layout they have ------------------------------------------------------------

# Classes are the columns of a tile, pixels its rows. Programs leave the sums of a chunk of pixels in a buffer, which is
# added up afterwards: atomic additions would come in another order each time.


@triton.jit
def _softmax(logits, base, pixel, valid, stride_p, stride_k, classes, BLOCK_K: tl.constexpr):
    """Return a tile's probabilities and their logarithms, zero for classes that do not exist."""
    k = tl.arange(0, BLOCK_K)
    at = base + pixel.to(tl.int64)[:, None] * stride_p + k[None, :] * stride_k
    exists = (k < classes)[None, :]
    x = tl.load(logits + at, mask=valid[:, None] & exists, other=0.0).to(tl.float32)
    largest = tl.max(tl.where(exists, x, float("-inf")), 1)
    off = x - largest[:, None]
    e = tl.where(exists, tl.exp(off), 0.0)
    total = tl.sum(e, 1)
    return at, exists, e / total[:, None], tl.where(exists, off - tl.log(total)[:, None], 0.0)


@triton.jit
def _labels(labels, row, pixel, valid, pixels, ignored, classes, IGNORE: tl.constexpr):
    """Return a tile's labels, which of them count, and which are none."""
    label = tl.load(labels + row * pixels + pixel, mask=valid, other=0).to(tl.int32)
    counts = valid
    if IGNORE:
        counts = valid & (label != ignored)
    return label, counts, counts & ((label < 0) | (label >= classes))


@triton.jit
def sums(
    logits, labels, partial,
    pixels, chunk, stride_b, stride_k, stride_p, classes, ignored,
    SQUARED: tl.constexpr, IGNORE: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Leave, class by class, a chunk's sums of log p, p of the labelled class, p (or p²) of all, and one.

    A label that is no class makes the sum of log p NaN: a loss that quietly left it out would be worse.
    """
    row = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    logs = tl.zeros((BLOCK_K,), tl.float32)
    overlap = tl.zeros((BLOCK_K,), tl.float32)
    mass = tl.zeros((BLOCK_K,), tl.float32)
    labelled = tl.zeros((BLOCK_K,), tl.float32)
    begin = tl.program_id(0) * chunk
    for start in range(begin, tl.minimum(begin + chunk, pixels), BLOCK_P):
        pixel = start + tl.arange(0, BLOCK_P)
        valid = pixel < tl.minimum(begin + chunk, pixels)
        _, _, p, log_p = _softmax(logits, row * stride_b, pixel, valid, stride_p, stride_k, classes, BLOCK_K)
        label, counts, wrong = _labels(labels, row, pixel, valid, pixels, ignored, classes, IGNORE)
        hit = counts[:, None] & (label[:, None] == k[None, :])
        logs += tl.sum(tl.where(hit, log_p, tl.where(wrong, float("nan"), 0.0)[:, None]), 0)
        overlap += tl.sum(tl.where(hit, p, 0.0), 0)
        mass += tl.sum(tl.where(counts[:, None], p * p if SQUARED else p, 0.0), 0)
        labelled += tl.sum(tl.where(hit, 1.0, 0.0), 0)
    out = partial + (row * tl.num_programs(0) + tl.program_id(0)) * 4 * classes + k
    tl.store(out, logs, mask=k < classes)
    tl.store(out + classes, overlap, mask=k < classes)
    tl.store(out + 2 * classes, mass, mask=k < classes)
    tl.store(out + 3 * classes, labelled, mask=k < classes)


@triton.jit
def gradient(
    logits, labels, dsums, result,
    pixels, stride_b, stride_k, stride_p, classes, ignored,
    SQUARED: tl.constexpr, IGNORE: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write the logits' gradient, in their layout, from that of the sums: `dsums` is (samples, 4, classes)."""
    row = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    valid = pixel < pixels
    k = tl.arange(0, BLOCK_K)
    of_logs = tl.load(dsums + row * 4 * classes + k, mask=k < classes, other=0.0)[None, :]
    of_overlap = tl.load(dsums + (row * 4 + 1) * classes + k, mask=k < classes, other=0.0)[None, :]
    of_mass = tl.load(dsums + (row * 4 + 2) * classes + k, mask=k < classes, other=0.0)[None, :]
    at, exists, p, _ = _softmax(logits, row * stride_b, pixel, valid, stride_p, stride_k, classes, BLOCK_K)
    label, counts, wrong = _labels(labels, row, pixel, valid, pixels, ignored, classes, IGNORE)
    hit = label[:, None] == k[None, :]
    pull = tl.sum(tl.where(hit, of_logs + of_overlap * p, 0.0), 1)[:, None]
    if SQUARED:
        of_mass = 2.0 * of_mass * p
    change = pull * (tl.where(hit, 1.0, 0.0) - p) + p * (of_mass - tl.sum(of_mass * p, 1)[:, None])
    change = tl.where(counts[:, None], change, 0.0)
    change = tl.where(wrong[:, None], float("nan"), change)
    tl.store(result + at, change.to(result.dtype.element_ty), mask=valid[:, None] & exists)


# -- channels-last maps in twice their size beside a skip connection, and pooled ---------------------------------------

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


# -- 2D images and labels read through affine maps; `adawac.data.resample` says what that means ------------------------

# Each program takes some output pixels of one image, finds their places once, and reads labels and all channels there.
# torch would write every place, index and weight to memory, as a map of its own.


@triton.jit
def _position(theta, axis, row, column, half, side, height, width):
    """Return where output pixels lie along an axis (0: rows), from the input's centre; `theta` is in the order x, y.

    The same operations in the same order as in `resample._positions`.
    """
    at = theta + (1 - axis) * 3
    along_x = tl.load(at) * (side / width)
    along_y = tl.load(at + 1) * (side / height)
    position = tl.load(at + 2) * half + along_x * (column.to(tl.float32) - (width - 1) / 2)
    return position + along_y * (row.to(tl.float32) - (height - 1) / 2)


@triton.jit
def _neighbours(position, last):
    """Return the neighbour below and the weight of the one above; at the last pixel that has all of it."""
    position = tl.minimum(tl.maximum(position, 0.0), last)
    below = tl.maximum(tl.minimum(tl.floor(position), last - 1), 0.0)
    return below.to(tl.int32), position - below


@triton.jit
def _nearest(position, last):
    return tl.maximum(tl.minimum(position + 0.5, last), 0.0).to(tl.int32)


@triton.jit(do_not_specialize=["height", "width"])
def warp(
    images,
    image_offsets,
    labels,
    label_offsets,
    shapes,
    theta,
    x,
    y,
    height,
    width,
    CHANNELS: tl.constexpr,
    LABELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the views x (B, C, height, width) and their labels y (B, height, width)."""
    image = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = pixel < height * width
    row = pixel // width
    column = pixel - row * width
    rows, columns = tl.load(shapes + 2 * image).to(tl.int32), tl.load(shapes + 2 * image + 1).to(tl.int32)
    tall, wide = rows.to(tl.float32), columns.to(tl.float32)
    map_of = theta + 6 * image
    down = _position(map_of, 0, row, column, tall / 2, tall, height.to(tl.float32), width.to(tl.float32))
    along = _position(map_of, 1, row, column, wide / 2, wide, height.to(tl.float32), width.to(tl.float32))
    inside = valid & (tl.abs(down) <= tall / 2) & (tl.abs(along) <= wide / 2)
    down += tall / 2 - 0.5
    along += wide / 2 - 0.5
    if LABELS:
        at = _nearest(down, tall - 1) * columns + _nearest(along, wide - 1)
        label = tl.load(labels + tl.load(label_offsets + image) + at, mask=inside, other=0)
        tl.store(y + image * height * width + pixel, label.to(tl.int64), mask=valid)
    top, t = _neighbours(down, tall - 1)
    left, s = _neighbours(along, wide - 1)
    bottom = tl.where(rows > 1, columns, 0)  # an image of one row has no neighbour
    right = tl.where(columns > 1, 1, 0)
    for channel in tl.static_range(CHANNELS):
        at = images + tl.load(image_offsets + image) + channel * rows * columns + top * columns + left
        upper = tl.load(at, mask=inside, other=0).to(tl.float32) * (1 - s)
        upper += tl.load(at + right, mask=inside, other=0).to(tl.float32) * s
        lower = tl.load(at + bottom, mask=inside, other=0).to(tl.float32) * (1 - s)
        lower += tl.load(at + bottom + right, mask=inside, other=0).to(tl.float32) * s
        out = (image * CHANNELS + channel) * height * width + pixel
        tl.store(x + out, upper * (1 - t) + lower * t, mask=valid)
