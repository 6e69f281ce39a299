"""Doubling a channels-last map's size and joining it with a skip connection, as one differentiable function.

torch repeats pixels at a tenth of the memory's rate, writes the enlarged map, reads it again for the concatenation, and
copies its part of the gradient out before it folds that back. Here the joined map is written once, and read once.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from adawac.models.fused.normalise import TILE, WARPS, fits

__all__ = ["can_enlarge", "enlarge", "tile_of"]


def enlarge(x: Tensor, skip: Tensor | None = None, *, bilinear: bool = False) -> Tensor:
    """Return x in twice its height and width, followed by the skip connection's channels where there is one.

    Args:
        x: (N, C, H, W), channels-last in memory.
        skip: (N, S, 2H, 2W), of x's type and layout.
        bilinear: Interpolate with corners on corners; otherwise repeat each pixel four times.
    """
    y: Tensor = _Enlarge.apply(x, skip, bilinear)
    return y


def can_enlarge(x: Tensor, size: Sequence[int], skip: Tensor | None = None) -> bool:
    """Tell whether `enlarge` can bring x to this size beside this skip connection; if not, torch must."""
    height, width = x.shape[-2:]
    return (
        fits(x)
        and tuple(size) == (2 * height, 2 * width)
        and min(height, width) > 1
        and len(x) * 4 * height * width < 2**31  # pixels are counted in 32 bits
        and (skip is None or (fits(skip) and skip.dtype == x.dtype and skip.shape[2:] == tuple(size)))
        and (skip is None or len(skip) == len(x))
    )


class _Enlarge(torch.autograd.Function):
    """The kernels. Nothing here waits for the device, so all of it can be captured."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, skip: Tensor | None, bilinear: bool) -> Tensor:
        from adawac.models.fused import enlarge_kernels

        images, channels, height, width = x.shape
        skipped = 0 if skip is None else skip.shape[1]
        y = torch.empty(
            (images, channels + skipped, 2 * height, 2 * width),
            dtype=x.dtype,
            device=x.device,
            memory_format=torch.channels_last,
        )
        pixels = images * 4 * height * width
        tile = tile_of(max(channels, skipped))
        blocks = ceil(channels / tile["BLOCK_C"]) + ceil(skipped / tile["BLOCK_C"])
        with torch.cuda.device_of(x):
            enlarge_kernels.join[(ceil(pixels / tile["BLOCK_R"]), blocks)](
                x,
                x if skip is None else skip,
                y,
                pixels,
                2 * height,
                2 * width,
                channels,
                skipped,
                BILINEAR=bilinear,
                **tile,
                num_warps=WARPS,
            )
        ctx.shape, ctx.bilinear, ctx.joined = x.shape, bilinear, skip is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Sequence[Tensor | None]:
        from adawac.models.fused import enlarge_kernels

        images, channels, height, width = ctx.shape
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = torch.empty(ctx.shape, dtype=dy.dtype, device=dy.device, memory_format=torch.channels_last)
        pixels = images * height * width
        tile = tile_of(channels)
        with torch.cuda.device_of(dy):
            enlarge_kernels.enlarged_gradient[(ceil(pixels / tile["BLOCK_R"]), ceil(channels / tile["BLOCK_C"]))](
                dy,
                dx,
                pixels,
                height,
                width,
                channels,
                dy.shape[1],
                BILINEAR=ctx.bilinear,
                # A pixel of the small map went into two of each axis of the large one, or, with weights, up to five.
                TAPS=5 if ctx.bilinear else 2,
                **tile,
                num_warps=WARPS,
            )
        return dx, dy[:, channels:] if ctx.joined else None, None


def tile_of(channels: int) -> dict[str, int]:
    """Return how many pixels and channels of a map a program handles at a time."""
    columns = min(64, 1 << (channels - 1).bit_length())
    return {"BLOCK_R": TILE // columns, "BLOCK_C": columns}
