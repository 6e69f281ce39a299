"""Maxima over windows of 3×3 pixels, two pixels apart, as ResNets take them after their first convolution.

torch notes the place of each maximum in eight bytes, and looks through them for every pixel when it comes back.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from adawac.models.fused.enlarge import tile_of
from adawac.models.fused.normalise import WARPS, fits

__all__ = ["MaxPool2d"]


class MaxPool2d(nn.MaxPool2d):
    """torch's maximum over windows, on our kernels where these take its input."""

    def forward(self, input: Tensor) -> Tensor:
        """Return each window's maximum."""
        if not self.fits(input):
            return super().forward(input)  # type: ignore[no-any-return]
        padding = self.padding if isinstance(self.padding, int) else self.padding[0]
        size = [_windows(side, padding, self.ceil_mode) for side in input.shape[2:]]
        y: Tensor = _Maxima.apply(input, size, padding)
        return y

    def fits(self, x: Tensor) -> bool:
        """Tell whether the kernel can take this input: windows of three, two apart, channels-last on a GPU."""
        return (
            self.kernel_size in (3, (3, 3))
            and self.stride in (2, (2, 2))
            and self.dilation in (1, (1, 1))
            and self.padding in (0, 1, (0, 0), (1, 1))
            and not self.return_indices
            and fits(x)
            and min(x.shape[2:]) > 2
            and x[:, 0].numel() < 2**31  # pixels are counted in 32 bits
        )


def _windows(side: int, padding: int, ceil_mode: bool) -> int:
    """Return how many windows there are on a side; as in torch, none begins in the padding after it."""
    steps = (side + 2 * padding - 3 + (1 if ceil_mode else 0)) // 2 + 1
    return steps - 1 if (steps - 1) * 2 >= side + padding else steps


class _Maxima(torch.autograd.Function):
    """The kernels. Nothing here waits for the device, so all of it can be captured."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: Sequence[int], padding: int) -> Tensor:
        from adawac.models.fused import pool_kernels

        shape = (*x.shape[:2], *size)
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        taken = torch.empty_like(y, dtype=torch.int8)
        _launch(pool_kernels.maxima, (x, y, taken), y, x.shape, shape, padding)
        ctx.save_for_backward(taken)
        ctx.shape, ctx.padding = x.shape, padding
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Sequence[Tensor | None]:
        from adawac.models.fused import pool_kernels

        (taken,) = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = torch.empty(ctx.shape, dtype=dy.dtype, device=dy.device, memory_format=torch.channels_last)
        _launch(pool_kernels.maxima_gradient, (dy, taken, dx), dx, ctx.shape, dy.shape, ctx.padding)
        return dx, None, None


def _launch(
    kernel: Any, maps: tuple[Tensor, ...], written: Tensor, shape: Sequence[int], out: Sequence[int], padding: int
) -> None:
    """Run a kernel with programs for all pixels of the map that it writes."""
    channels = written.shape[1]
    pixels = written.numel() // channels
    tile = tile_of(channels)
    with torch.cuda.device_of(written):
        kernel[(ceil(pixels / tile["BLOCK_R"]), ceil(channels / tile["BLOCK_C"]))](
            *maps,
            pixels,
            *shape[2:],
            *out[2:],
            channels,
            PADDING=padding,
            **tile,
            num_warps=WARPS,
        )
