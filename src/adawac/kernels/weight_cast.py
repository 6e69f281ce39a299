"""A network's weights in bf16, all at once; autocast casts each one, and its gradient back, separately."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from adawac.kernels.convolutions import Conv2d as NarrowConv2d
from adawac.kernels.side_stream import await_gradients, mark_late

# Modules whose parameters autocast casts as they are: those that compute with their weights first are not among them.
PLAIN = (nn.Conv2d, NarrowConv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear)


class CastWeights:
    """The weights of a module's convolutions and linear layers in another type, differentiably.

    The numbers are autocast's; a step of TransUNet has hundreds of kernels less. Weights that are standardised are so
    at once as well: what comes first in a pass is the last on the way back, when all gradients are awaited.

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
        mark_late(cast)
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
        if present:
            await_gradients(present[0].device)
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
