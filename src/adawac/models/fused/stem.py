"""The first convolution of a network, of an image with one channel, on the kernels of this package."""

from collections.abc import Sequence
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from adawac.gpu import plain
from adawac.models.fused.normalise import works
from adawac.models.fused.sums import add_up

__all__ = ["can_convolve_gray", "convolve_gray", "gray"]

KERNEL, OUTPUTS = 7, 128  # at most
PIXELS = 128 * 128  # below, an image is small, and so is the time it takes
# Tiles: rows of a program, its columns.
ROWS, GRADIENT_ROWS = 4, 28
CONVOLVE = {"BLOCK_P": 64, "num_warps": 4, "num_stages": 1}
GRADIENT = {"BLOCK_P": 64, "num_warps": 4, "num_stages": 1}


def gray(x: Tensor) -> Tensor:
    """Return the one channel of an image whose channels are all views of it, and other images as they are."""
    return x[:, :1] if x.dim() == 4 and x.stride(1) == 0 else x


def can_convolve_gray(x: Tensor, conv: nn.Conv2d) -> bool:
    """Tell whether the kernels can take this image, which wants no gradient, in half precision or under autocast."""
    size, stride, padding = ({*one} for one in (conv.kernel_size, conv.stride, conv.padding))
    return (
        x.dim() == 4
        and x.shape[1] == 1
        and len(size) == len(stride) == len(padding) == 1
        and 1 < conv.kernel_size[0] <= KERNEL
        and (conv.dilation, conv.groups, conv.padding_mode) == ((1, 1), 1, "zeros")
        and conv.padding[0] in range(conv.kernel_size[0])
        and conv.out_channels <= OUTPUTS
        and not (x.requires_grad and torch.is_grad_enabled())
        and plain(x)
        and x.is_contiguous()
        and x.shape[2] * x.shape[3] >= PIXELS
        and x.numel() < 2**31  # pixels are counted in 32 bits
        and _type(x) in (torch.bfloat16, torch.float16)
        and works(x.device)
    )


def convolve_gray(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """Return the convolution of an image (N, 1, H, W) with a weight (C, 1, k, k), channels-last."""
    y: Tensor = _ConvolveGray.apply(x, weight.to(_type(x)), bias, stride, padding)
    return y


def _type(x: Tensor) -> torch.dtype:
    """Return the type to compute in: autocast's, or else the image's own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class _ConvolveGray(torch.autograd.Function):
    """The kernels. They cast the image as they read it, so that no copy is made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
        from adawac.models.fused import stem_kernels

        images, _, height, width = x.shape
        outputs, _, kernel, _ = weight.shape
        high, wide = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
        shape = (images, outputs, high, wide)
        y = torch.empty(shape, dtype=weight.dtype, device=x.device, memory_format=torch.channels_last)
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias = weight.shape, None if bias is None else bias.dtype
        ctx.sizes = images * wide, height, width, high, wide
        ctx.tile = _tile(outputs, kernel, stride, padding)
        with torch.cuda.device_of(x):
            stem_kernels.convolve_gray[(ceil(images * wide / CONVOLVE["BLOCK_P"]), ceil(high / ROWS))](
                x,
                weight.contiguous(),
                weight if bias is None else bias,
                y,
                *ctx.sizes,
                ROWS,
                BIAS=bias is not None,
                **ctx.tile,
                **CONVOLVE,
            )
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Sequence[Tensor | None]:
        from adawac.models.fused import stem_kernels

        (x,) = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        outputs, high = dy.shape[1:3]
        bias = ctx.bias if ctx.needs_input_grad[2] else None
        blocks, parts = ceil(ctx.sizes[0] / GRADIENT["BLOCK_P"]), ceil(high / GRADIENT_ROWS)
        taps = ctx.weight.numel() // outputs
        partial = torch.empty((blocks * parts, outputs * (taps + (bias is not None))), device=x.device)
        with torch.cuda.device_of(x):
            stem_kernels.gray_weight_gradient[(blocks, parts)](
                x, dy, partial, *ctx.sizes, GRADIENT_ROWS, BIAS=bias is not None, **ctx.tile, **GRADIENT
            )
        dweight, dbias = add_up(partial, ctx.weight, dy.dtype, bias)
        return None, dweight, dbias, None, None


def _tile(outputs: int, kernel: int, stride: int, padding: int) -> dict[str, int]:
    return {
        "OUTPUTS": outputs,
        "KERNEL": kernel,
        "STRIDE": stride,
        "PADDING": padding,
        "BLOCK_K": 8 * (1 << (kernel - 1).bit_length()),
        "BLOCK_O": max(16, 1 << (outputs - 1).bit_length()),
    }
