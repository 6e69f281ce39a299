"""Convolutions of 3×3 pixels between few channels, on the kernels of this package."""

from collections.abc import Sequence
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from adawac.models.fused import aside
from adawac.models.fused.normalise import fits
from adawac.models.fused.stem import can_convolve_gray, convolve_gray
from adawac.models.fused.sums import add_up

__all__ = ["Conv2d"]

# Beyond these numbers of channels cuDNN is as fast.
INPUTS, OUTPUTS = 32, 16
PIXELS = 128 * 128  # below, a map is small, and so is the time it takes
# How the work is cut up: a program's rows, the longest part of a span in one product, the most outputs; its columns.
ROWS, SPAN, CHANNELS = 56, 32, 32
CONVOLVE: dict[str, Any] = {"CACHE": ".ca", "BLOCK_P": 64, "num_warps": 2, "num_stages": 3}
GRADIENT_ROWS, GRADIENT_SPAN = 75, 128
GRADIENT: dict[str, Any] = {"CACHE": ".ca", "BLOCK_P": 64, "num_warps": 4, "num_stages": 4}


class Conv2d(nn.Conv2d):
    """torch's convolution, on our kernels where these take its input."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolved input."""
        uses = aside.used(self.weight)
        if self.in_channels == 1 and can_convolve_gray(input, self):
            return convolve_gray(input, self.weight, self.bias, self.stride[0], int(self.padding[0]))
        if self.fits(input):
            y: Tensor = _Convolve.apply(input, self.weight.to(input.dtype), self.bias)
            return y
        if uses is not None and self.padding_mode == "zeros" and not isinstance(self.padding, str):
            return aside.convolve(input, self.weight, self, uses)
        return super().forward(input)

    def fits(self, x: Tensor) -> bool:
        """Tell whether the kernels can take this input: half precision, channels-last, on a GPU."""
        return (
            self.narrow
            and fits(x)
            and x.dtype in (torch.bfloat16, torch.float16)
            and x.shape[1] == self.in_channels
            and x.shape[2] * x.shape[3] >= PIXELS
            and x[:, 0].numel() < 2**31  # pixels are counted in 32 bits
        )

    @property
    def narrow(self) -> bool:
        """Whether this is a convolution of 3×3 pixels, of equal size, between few channels."""
        plain = (3, 3), (1, 1), (1, 1), (1, 1), 1, "zeros"
        given = self.kernel_size, self.stride, self.padding, self.dilation, self.groups, self.padding_mode
        return plain == given and self.in_channels <= INPUTS and self.out_channels <= OUTPUTS


class _Convolve(torch.autograd.Function):
    """The kernels. Nothing here waits for the device, so all of it can be captured."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias = None if bias is None else bias.dtype
        return _convolved(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Sequence[Tensor | None]:
        x, weight = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        # The gradient of a convolution is one with the mirrored kernel, from outputs to inputs.
        dx = _convolved(dy, weight.transpose(0, 1), mirrored=True) if wants_x else None
        dweight = dbias = None
        if wants_weight or wants_bias:
            dweight, dbias = _weight_gradient(x, dy, weight.dtype, ctx.bias if wants_bias else None)
        return dx, dweight, dbias


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, mirrored: bool = False) -> Tensor:
    from adawac.models.fused import conv_kernels

    images, inputs, height, width = x.shape
    outputs, columns = len(weight), images * width
    block = min(_power(outputs), CHANNELS)
    y = torch.empty((images, outputs, height, width), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    with torch.cuda.device_of(x):
        conv_kernels.convolve[(ceil(columns / CONVOLVE["BLOCK_P"]), ceil(height / ROWS), ceil(outputs / block))](
            x,
            weight,
            weight if bias is None else bias,
            y,
            columns,
            height,
            width,
            ROWS,
            *weight.stride(),
            INPUTS=inputs,
            OUTPUTS=outputs,
            FLIP=mirrored,
            BIAS=bias is not None,
            BLOCK_K=min(_power(3 * inputs), SPAN),
            BLOCK_O=block,
            **CONVOLVE,
        )
    return y


def _weight_gradient(
    x: Tensor, dy: Tensor, dtype: torch.dtype, bias: torch.dtype | None
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of the weight and, where its type is given, of the bias."""
    from adawac.models.fused import conv_kernels

    images, inputs, height, width = x.shape
    outputs, columns = dy.shape[1], images * width
    span = min(_power(3 * inputs), GRADIENT_SPAN)
    blocks, parts = ceil(columns / GRADIENT["BLOCK_P"]), ceil(height / GRADIENT_ROWS)
    partial = torch.empty((blocks * parts, outputs * (9 * inputs + (bias is not None))), device=x.device)
    with torch.cuda.device_of(x):
        conv_kernels.weight_gradient[(blocks, parts, ceil(3 * inputs / span))](
            x,
            dy,
            partial,
            columns,
            height,
            width,
            GRADIENT_ROWS,
            INPUTS=inputs,
            OUTPUTS=outputs,
            BIAS=bias is not None,
            BLOCK_K=span,
            BLOCK_N=_power(3 * outputs),
            **GRADIENT,
        )
    weight, of_bias = add_up(partial, (outputs, 3, 3, inputs), dtype, bias)
    return weight.permute(0, 3, 1, 2), of_bias


def _power(channels: int) -> int:
    """Return the least power of two that a matrix unit takes and that holds the channels."""
    return max(16, 1 << (channels - 1).bit_length())
