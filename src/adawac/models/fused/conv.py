"""Convolutions of 3×3 pixels between few channels, on the kernels of this package."""

from collections.abc import Sequence
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from adawac.models.fused.normalise import fits

__all__ = ["Conv2d"]

# Beyond these numbers of channels cuDNN is as fast.
INPUTS, OUTPUTS = 32, 16
PIXELS = 128 * 128  # below, a map is small, and so is the time it takes
PROGRAMS = 1056  # that share a weight's gradient: some for each of a large GPU's processors


class Conv2d(nn.Conv2d):
    """torch's convolution, on our kernels where these take its input."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolved input."""
        if not self.fits(input):
            return super().forward(input)
        weight = self.weight.to(input.dtype)
        y: Tensor = _Convolve.apply(input, weight, self.bias)
        return y

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
        dx = _convolved(dy, weight.flip(2, 3).transpose(0, 1)) if wants_x else None
        dweight = _weight_gradient(x, dy).to(weight.dtype) if wants_weight else None
        dbias = dy.sum((0, 2, 3), dtype=torch.float32).to(ctx.bias) if wants_bias and ctx.bias is not None else None
        return dx, dweight, dbias


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    from adawac.models.fused import conv_kernels

    images, inputs, height, width = x.shape
    outputs, pixels = len(weight), images * height * width
    matrices = weight.new_zeros((9, _power(inputs), _power(outputs)))
    matrices[:, :inputs, :outputs] = weight.permute(2, 3, 1, 0).reshape(9, inputs, outputs)
    y = torch.empty((images, outputs, height, width), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    with torch.cuda.device_of(x):
        conv_kernels.convolve[(ceil(pixels / 128),)](
            x,
            matrices,
            matrices if bias is None else bias,
            y,
            pixels,
            height,
            width,
            inputs,
            outputs,
            BIAS=bias is not None,
            BLOCK_P=128,
            BLOCK_I=matrices.shape[1],
            BLOCK_O=matrices.shape[2],
            num_warps=4,
        )
    return y


def _weight_gradient(x: Tensor, dy: Tensor) -> Tensor:
    from adawac.models.fused import conv_kernels

    images, inputs, height, width = x.shape
    outputs, pixels = dy.shape[1], images * height * width
    chunk = ceil(pixels / PROGRAMS / 64) * 64
    chunks = ceil(pixels / chunk)
    partial = torch.empty((chunks, 9, _power(inputs), _power(outputs)), device=x.device)
    with torch.cuda.device_of(x):
        conv_kernels.weight_gradient[(chunks, 3)](
            x,
            dy,
            partial,
            pixels,
            height,
            width,
            inputs,
            outputs,
            chunk,
            BLOCK_P=64,
            BLOCK_I=partial.shape[2],
            BLOCK_O=partial.shape[3],
            num_warps=2,
        )
    gradient: Tensor = partial.sum(0)[:, :inputs, :outputs].unflatten(0, (3, 3)).permute(3, 2, 0, 1)
    return gradient


def _power(channels: int) -> int:
    """Return the least power of two that a matrix unit takes and that holds the channels."""
    return max(16, 1 << (channels - 1).bit_length())
