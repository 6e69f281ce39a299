"""Convolutions on the kernels of this package: of grey images, 3×3 between few channels, weight-standardised.

Also all weights of a network in bf16 at once: autocast casts each one, and its gradient back, separately.
"""

from collections.abc import Callable, Sequence
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from adawac.kernels.availability import autocast_dtype, launch, plain, power_of_two
from adawac.kernels.norms import fits, works

BLOCK_R, BLOCK_E = 64, 32  # parts and elements of a tile


def add_up(
    partial: Tensor, shape: Sequence[int], dtype: torch.dtype, bias: torch.dtype | None
) -> tuple[Tensor, Tensor | None]:
    """Return the sum of all parts, always in the same order.

    Args:
        partial: (parts, elements) in float32: a weight's and, behind it, its bias's.
        shape: Of the weight.
        dtype: Of the weight.
        bias: The bias's type; None if there is none.
    """
    parts, size = partial.shape
    weight = torch.empty(tuple(shape), dtype=dtype, device=partial.device)
    of_bias = None if bias is None else torch.empty(size - prod(shape), dtype=bias, device=partial.device)
    launch(
        "convolution_kernels", "summed", (ceil(size / BLOCK_E),),
        partial, weight, weight if of_bias is None else of_bias,
        parts, size, prod(shape),
        BLOCK_R=BLOCK_R, BLOCK_E=BLOCK_E,
    )  # fmt: skip
    return weight, of_bias


KERNEL, GRAY_OUTPUTS = 7, 128  # at most
PIXELS = 128 * 128  # below, an image is small, and so is the time it takes
# Tiles: rows of a program, its columns.
GRAY_ROWS, GRAY_GRADIENT_ROWS = 4, 28
GRAY = {"BLOCK_P": 64, "num_warps": 4, "num_stages": 1}


def gray(x: Tensor) -> Tensor:
    """Return the one channel of an image whose channels are all views of it, and other images as they are."""
    return x[:, :1] if x.dim() == 4 and x.stride(1) == 0 else x


def can_convolve_gray(x: Tensor, conv: nn.Conv2d) -> bool:
    """Tell whether the kernels can take this image, which wants no gradient, in half precision or under autocast."""
    size, stride, padding = ({*pair} for pair in (conv.kernel_size, conv.stride, conv.padding))
    return (
        x.dim() == 4
        and x.shape[1] == 1
        and len(size) == len(stride) == len(padding) == 1
        and 1 < conv.kernel_size[0] <= KERNEL
        and (conv.dilation, conv.groups, conv.padding_mode) == ((1, 1), 1, "zeros")
        and conv.padding[0] in range(conv.kernel_size[0])
        and conv.out_channels <= GRAY_OUTPUTS
        and not (x.requires_grad and torch.is_grad_enabled())
        and plain(x)
        and x.is_contiguous()
        and x.shape[2] * x.shape[3] >= PIXELS
        and x.numel() < 2**31  # pixels are counted in 32 bits
        and autocast_dtype(x) in (torch.bfloat16, torch.float16)
        and works(x.device)
    )


def convolve_gray(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """Return the convolution of an image (N, 1, H, W) with a weight (C, 1, k, k), channels-last."""
    y: Tensor = _ConvolveGray.apply(x, weight.to(autocast_dtype(x)), bias, stride, padding)
    return y


class _ConvolveGray(torch.autograd.Function):
    """The kernels. They cast the image as they read it, so that no copy is made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
        images, _, height, width = x.shape
        outputs, _, kernel, _ = weight.shape
        high, wide = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
        shape = (images, outputs, high, wide)
        y = torch.empty(shape, dtype=weight.dtype, device=x.device, memory_format=torch.channels_last)
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias = weight.shape, None if bias is None else bias.dtype
        ctx.sizes = images * wide, height, width, high, wide
        ctx.tile = _tile(outputs, kernel, stride, padding)
        launch(
            "convolution_kernels", "convolve_gray", (ceil(images * wide / GRAY["BLOCK_P"]), ceil(high / GRAY_ROWS)),
            x, weight.contiguous(), weight if bias is None else bias, y,
            *ctx.sizes, GRAY_ROWS,
            BIAS=bias is not None, **ctx.tile, **GRAY,
        )  # fmt: skip
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Sequence[Tensor | None]:
        (x,) = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        outputs, high = dy.shape[1:3]
        bias = ctx.bias if ctx.needs_input_grad[2] else None
        blocks, parts = ceil(ctx.sizes[0] / GRAY["BLOCK_P"]), ceil(high / GRAY_GRADIENT_ROWS)
        taps = ctx.weight.numel() // outputs
        partial = torch.empty((blocks * parts, outputs * (taps + (bias is not None))), device=x.device)
        launch(
            "convolution_kernels", "gray_weight_gradient", (blocks, parts),
            x, dy, partial,
            *ctx.sizes, GRAY_GRADIENT_ROWS,
            BIAS=bias is not None, **ctx.tile, **GRAY,
        )  # fmt: skip
        dweight, dbias = add_up(partial, ctx.weight, dy.dtype, bias)
        return None, dweight, dbias, None, None


def _tile(outputs: int, kernel: int, stride: int, padding: int) -> dict[str, int]:
    return {
        "OUTPUTS": outputs,
        "KERNEL": kernel,
        "STRIDE": stride,
        "PADDING": padding,
        "BLOCK_K": 8 * power_of_two(kernel),
        "BLOCK_O": _matrix_side(outputs),
    }


# Beyond these numbers of channels cuDNN is as fast.
INPUTS, OUTPUTS = 32, 16
# How the work is cut up: a program's rows, the longest part of a span in one product, the most outputs; its columns.
ROWS, SPAN, CHANNELS = 56, 32, 32
CONVOLVE: dict[str, Any] = {"CACHE": ".ca", "BLOCK_P": 64, "num_warps": 2, "num_stages": 3}
GRADIENT_ROWS, GRADIENT_SPAN = 75, 128
GRADIENT: dict[str, Any] = {"CACHE": ".ca", "BLOCK_P": 64, "num_warps": 4, "num_stages": 4}


class Conv2d(nn.Conv2d):
    """torch's convolution, on our kernels where these take its input."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolved input."""
        if self.in_channels == 1 and can_convolve_gray(input, self):
            return convolve_gray(input, self.weight, self.bias, self.stride[0], int(self.padding[0]))
        if self.fits(input):
            y: Tensor = _Convolve.apply(input, self.weight.to(input.dtype), self.bias)
            return y
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
        actual = self.kernel_size, self.stride, self.padding, self.dilation, self.groups, self.padding_mode
        return plain == actual and self.in_channels <= INPUTS and self.out_channels <= OUTPUTS


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
    images, inputs, height, width = x.shape
    outputs, columns = len(weight), images * width
    weight = weight.contiguous(memory_format=torch.channels_last)
    to_out, to_in, to_row, to_column = weight.stride()
    if mirrored:  # the last tap first, and back from there
        weight, to_row, to_column = weight[:, :, 2:, 2:], -to_row, -to_column
    block = min(_matrix_side(outputs), CHANNELS)
    y = torch.empty((images, outputs, height, width), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    launch(
        "convolution_kernels", "convolve",
        (ceil(columns / CONVOLVE["BLOCK_P"]), ceil(height / ROWS), ceil(outputs / block)),
        x, weight, weight if bias is None else bias, y,
        columns, height, width, ROWS, to_out, to_in, to_row, to_column,
        INPUTS=inputs, OUTPUTS=outputs, BIAS=bias is not None,
        BLOCK_K=min(_matrix_side(3 * inputs), SPAN), BLOCK_O=block, **CONVOLVE,
    )  # fmt: skip
    return y


def _weight_gradient(
    x: Tensor, dy: Tensor, dtype: torch.dtype, bias: torch.dtype | None
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of the weight and, where its type is given, of the bias."""
    images, inputs, height, width = x.shape
    outputs, columns = dy.shape[1], images * width
    span = min(_matrix_side(3 * inputs), GRADIENT_SPAN)
    blocks, parts = ceil(columns / GRADIENT["BLOCK_P"]), ceil(height / GRADIENT_ROWS)
    partial = torch.empty((blocks * parts, outputs * (9 * inputs + (bias is not None))), device=x.device)
    launch(
        "convolution_kernels", "weight_gradient", (blocks, parts, ceil(3 * inputs / span)),
        x, dy, partial,
        columns, height, width, GRADIENT_ROWS,
        INPUTS=inputs, OUTPUTS=outputs, BIAS=bias is not None,
        BLOCK_K=span, BLOCK_N=_matrix_side(3 * outputs), **GRADIENT,
    )  # fmt: skip
    weight, of_bias = add_up(partial, (outputs, 3, 3, inputs), dtype, bias)
    return weight.permute(0, 3, 1, 2), of_bias


def _matrix_side(channels: int) -> int:
    """Return the least power of two that a matrix unit takes and that holds the channels."""
    return max(16, power_of_two(channels))


ROW = 16384  # weights of an output channel that a program holds at once


def standardised(weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
    """Return a convolution's weight, that of each output channel with mean 0 and variance 1, channels-last in memory.

    Args:
        weight: (O, I, h, w) in float32.
        eps: Added to the variance.
        dtype: Of the result; by default autocast's where that is on.
    """
    y: Tensor = _Standardise.apply(weight, eps, dtype or autocast_dtype(weight))
    y.is_standardised = True  # type: ignore[attr-defined]
    return y


def is_standardised(weight: Tensor) -> bool:
    """Tell whether a weight comes from `standardised`."""
    return getattr(weight, "is_standardised", False)


def can_standardise(weight: Tensor) -> bool:
    """Tell whether the kernels can take this weight."""
    return (
        plain(weight)
        and weight.dtype == torch.float32
        and weight.dim() == 4
        and weight.is_contiguous(memory_format=torch.channels_last)
        and 0 < prod(weight.shape[1:]) <= ROW
        and works(weight.device)
    )


class _Standardise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        rows, row = len(weight), prod(weight.shape[1:])
        y = torch.empty(weight.shape, dtype=dtype, device=weight.device, memory_format=torch.channels_last)
        stats = torch.empty((2, rows), device=weight.device)
        launch("convolution_kernels", "standardise", (rows,), weight, y, stats, row, eps, **_block(row))
        ctx.save_for_backward(weight, stats)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Sequence[Tensor | None]:
        weight, stats = ctx.saved_tensors
        rows, row = len(weight), prod(weight.shape[1:])
        dy = dy.contiguous(memory_format=torch.channels_last)
        dweight = torch.empty_like(weight)
        launch("convolution_kernels", "standardise_gradient", (rows,), dy, weight, stats, dweight, row, **_block(row))
        return dweight, None, None


def _block(row: int) -> dict[str, int]:
    """Return how many elements a program holds, and the warps that share them: few sizes, so few are compiled."""
    block = next(block for block in (1024, 4096, ROW) if row <= block)
    return {"BLOCK": block, "num_warps": min(16, block // 512)}


# Modules whose parameters autocast casts as they are: those that compute with their weights first are not among them.
PLAIN = (nn.Conv2d, Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear)


class CastWeights:
    """The weights of a module's convolutions and linear layers in another type, differentiably.

    The numbers are autocast's; a step of TransUNet has hundreds of kernels less. Weights that are standardised are so
    once a pass as well, however often a layer is called.

    Args:
        module: The module.
        dtype: The type that autocast uses.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype):
        self.dtype = dtype
        self.parameters: dict[str, nn.Parameter] = {}
        self.standards: dict[str, Callable[[torch.dtype], Tensor | None]] = {}
        for prefix, layer in module.named_modules():
            if type(layer) in PLAIN:
                self.parameters |= dict(layer.named_parameters(prefix, recurse=False))
            elif hasattr(layer, "standard"):
                self.standards[f"{prefix}.weight"] = layer.standard

    def __call__(self) -> dict[str, Tensor]:
        """Return the weights by their names, as `torch.func.functional_call` takes them."""
        cast: Sequence[Tensor] = _Cast.apply(self.dtype, *self.parameters.values())
        standard = {name: compute(self.dtype) for name, compute in self.standards.items()}
        weights = dict(zip(self.parameters, cast, strict=True)) | standard
        return {name: weight for name, weight in weights.items() if weight is not None}


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.layouts = [torch.empty_like(weight, device="meta") for weight in weights]
        ctx.set_materialize_grads(False)
        return tuple(_copied(weights, ctx.layouts, dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Sequence[Tensor | None]:
        present = [gradient for gradient in gradients if gradient is not None]
        layouts = [layout for layout, gradient in zip(ctx.layouts, gradients, strict=True) if gradient is not None]
        cast = iter(_copied(present, layouts, torch.float32))
        return (None, *(None if gradient is None else next(cast) for gradient in gradients))


def _copied(tensors: Sequence[Tensor], layouts: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return copies in a type and in layouts: all whose layout stays in one go, as torch does it fast."""
    copies = [
        torch.empty_strided(layout.shape, layout.stride(), dtype=dtype, device=tensor.device)
        for tensor, layout in zip(tensors, layouts, strict=True)
    ]
    same = [copy.stride() == tensor.stride() for copy, tensor in zip(copies, tensors, strict=True)]
    pairs = list(zip(copies, tensors, same, strict=True))
    if any(same):
        torch._foreach_copy_(
            [copy for copy, _, is_same in pairs if is_same], [tensor for _, tensor, is_same in pairs if is_same]
        )
    for copy, tensor, is_same in pairs:
        if not is_same:
            copy.copy_(tensor)
    return copies
