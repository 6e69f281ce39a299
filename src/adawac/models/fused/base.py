"""What a norm with a kernel can do, and how it is called together with what follows it."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

__all__ = ["FusedNorm", "activated", "hooked"]


class FusedNorm(nn.Module, ABC):
    """A norm layer whose kernel also adds a residual and cuts at zero."""

    @abstractmethod
    def fits(self, x: Tensor, residual: Tensor | None = None) -> bool:
        """Tell whether the kernel can take this input now; if not, torch's own functions must."""

    @abstractmethod
    def fused(self, x: Tensor, residual: Tensor | None = None, relu: bool = False) -> Tensor:
        """Return the normalised input, with the residual added, cut at zero."""


def activated(norm: nn.Module, x: Tensor, act: nn.Module, residual: Tensor | None = None) -> Tensor:
    """Return act(norm(x) + residual), in one where that is possible.

    A module with a hook is called by itself, so that the hook sees what it would have seen.
    """
    unheard = type(act) is nn.ReLU and not hooked(norm) and not hooked(act)
    if unheard and isinstance(norm, FusedNorm) and norm.fits(x, residual):
        return norm.fused(x, residual, relu=True)
    y: Tensor = norm(x)
    z: Tensor = act(y if residual is None else y + residual)
    return z


def hooked(module: nn.Module) -> bool:
    """Tell whether somebody listens to a module."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)
