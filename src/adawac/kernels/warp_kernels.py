# mypy: ignore-errors
# ruff: noqa: N803
"""A Triton kernel that reads 2D images and labels through affine maps; `adawac.data.resample` says what that means.

Each program takes some output pixels of one image, finds their places once, and reads labels and all channels there.
torch would write every place, index and weight to memory, as a map of its own.
"""

import triton
import triton.language as tl


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
