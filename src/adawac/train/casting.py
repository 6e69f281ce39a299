"""A network's weights in bf16, all at once: autocast casts each by itself, and each one's gradient back again."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from adawac.models.fused.conv import Conv2d as NarrowConv2d

__all__ = ["CastWeights"]

# Modules whose parameters autocast casts as they are: those that compute with their weights first are not among them.
PLAIN = (nn.Conv2d, NarrowConv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear)


class CastWeights:
    """The weights of a module's convolutions and linear layers in another type, differentiably.

    The numbers are autocast's; a step of TransUNet has hundreds of kernels less.

    Args:
        module: The module.
        dtype: The type that autocast uses.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype):
        self.dtype = dtype
        self.parameters: dict[str, nn.Parameter] = {}
        for prefix, one in module.named_modules():
            if type(one) in PLAIN:
                self.parameters |= dict(one.named_parameters(prefix, recurse=False))

    def __call__(self) -> dict[str, Tensor]:
        """Return the weights by their names, as `torch.func.functional_call` takes them."""
        cast: Sequence[Tensor] = _Cast.apply(self.dtype, *self.parameters.values())
        return dict(zip(self.parameters, cast, strict=True))


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.layouts = [torch.empty_like(one, device="meta") for one in weights]
        ctx.set_materialize_grads(False)
        return tuple(_copied(weights, ctx.layouts, dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Sequence[Tensor | None]:
        given = [one for one in gradients if one is not None]
        layouts = [layout for layout, one in zip(ctx.layouts, gradients, strict=True) if one is not None]
        cast = iter(_copied(given, layouts, torch.float32))
        return (None, *(None if one is None else next(cast) for one in gradients))


def _copied(tensors: Sequence[Tensor], layouts: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return copies in a type and in layouts: all whose layout stays in one go, as torch does it fast."""
    copies = [
        torch.empty_strided(layout.shape, layout.stride(), dtype=dtype, device=one.device)
        for one, layout in zip(tensors, layouts, strict=True)
    ]
    same = [copy.stride() == one.stride() for copy, one in zip(copies, tensors, strict=True)]
    pairs = list(zip(copies, tensors, same, strict=True))
    if any(same):
        torch._foreach_copy_(
            [copy for copy, _, is_same in pairs if is_same], [one for _, one, is_same in pairs if is_same]
        )
    for copy, one, is_same in pairs:
        if not is_same:
            copy.copy_(one)
    return copies
