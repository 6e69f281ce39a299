"""Gradients of weights on their own stream: they are not needed before the backward pass is over.

A gradient of a weight is a matrix product that leaves the memory alone, the norms beside it are the opposite, and small
maps fill only a part of a GPU. So both together take less time than one after the other, in a captured CUDA graph in
particular. The numbers are the same to the bit.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# For each device the stream, and what its kernels read: that must not be freed before they are done.
_streams: dict[torch.device, torch.cuda.Stream] = {}
_read: dict[torch.device, list[Tensor]] = {}


class Uses:
    """How often a weight is used in a pass. The gradients of several uses are added up, so these cannot come late."""

    def __init__(self) -> None:
        self.count = 0

    def gradient(self, compute: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Return a gradient that a function makes of tensors: on the side, if it is the only one."""
        return on_the_side(compute, *inputs) if self.count == 1 else compute(*inputs)


def mark_late(weights: Sequence[Tensor]) -> None:
    """Promise that `await_gradients` is called before the gradients of these weights are read."""
    for weight in weights:
        weight.uses = Uses()  # type: ignore[attr-defined]


def used(weight: Tensor) -> Uses | None:
    """Note that a weight is used; return None if its gradient is not awaited."""
    uses: Uses | None = getattr(weight, "uses", None)
    if uses is None or not weight.is_cuda or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    uses.count += 1
    return uses


def on_the_side(compute: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return what a function makes of tensors, to be read after `await_gradients`."""
    device = inputs[0].device
    side = _streams.setdefault(device, torch.cuda.Stream(device))
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        result = compute(*inputs)
    _read.setdefault(device, []).extend(inputs)
    return result


def await_gradients(device: torch.device) -> None:
    """Let the current stream wait for everything on the side."""
    if _read.get(device):
        torch.cuda.current_stream(device).wait_stream(_streams[device])
        _read[device].clear()


def convolve(x: Tensor, weight: Tensor, module: nn.Conv2d, uses: Uses) -> Tensor:
    """Return a module's convolution, whose weight's gradient comes late."""
    how = module.stride, module.padding, module.dilation, module.groups
    y: Tensor = _Convolve.apply(x.to(weight.dtype), weight, module.bias, uses, *how)
    return y


def multiply(x: Tensor, weight: Tensor, bias: Tensor, uses: Uses) -> Tensor:
    """Return what a linear layer gives but for its bias's gradient; that of its weight comes late."""
    y: Tensor = _Multiply.apply(x.to(weight.dtype), weight, bias, uses)
    return y


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, uses: Uses, *how: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.uses, ctx.how = uses, how
        return F.conv2d(x, weight, bias, *how)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Sequence[Tensor | None]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]

        def gradient(which: int, *inputs: Tensor) -> Tensor:
            stride, padding, dilation, groups = ctx.how
            wanted = [number == which for number in range(3)]
            gradients: Sequence[Tensor] = torch.ops.aten.convolution_backward(
                *inputs, None, stride, padding, dilation, False, [0] * len(stride), groups, wanted
            )
            return gradients[which]

        dweight = ctx.uses.gradient(lambda *inputs: gradient(1, *inputs), dy, x, weight) if wants_weight else None
        dx = gradient(0, dy, x, weight) if wants_x else None
        dbias = dy.sum((0, 2, 3)) if wants_bias else None
        return dx, dweight, dbias, None, None, None, None, None


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, uses: Uses) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.uses = uses
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Sequence[Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = dy.flatten(0, -2)
        dweight = ctx.uses.gradient(lambda rows, x: rows.T @ x, rows, x.flatten(0, -2))
        return (rows @ weight).view(x.shape), dweight, None, None
