"""Group norm over channels-last activations: torch's own works on contiguous ones only, and copies there and back."""

from torch import Tensor, nn

from adawac.models.fused.base import FusedNorm
from adawac.models.fused.normalise import LARGEST, fits, normalise

__all__ = ["GroupNorm", "group_norm"]


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor,
    bias: Tensor,
    eps: float = 1e-5,
    *,
    residual: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    """Return relu(group_norm(x) + residual), as torch does, in x's type; x (N, C, H, W) is channels-last in memory."""
    return normalise(
        x, weight, bias, samples=x.shape[0], groups=num_groups, eps=eps, residual=residual, relu=relu, running=None
    )


class GroupNorm(FusedNorm, nn.GroupNorm):
    """torch's group norm, on our kernels where these take its input."""

    def fits(self, x: Tensor, residual: Tensor | None = None) -> bool:
        """Tell whether the kernel can take this input; one value for each group is left to torch, which refuses it."""
        small = self.num_channels // self.num_groups <= LARGEST
        return small and x.numel() > self.num_groups and fits(x, self.weight, self.bias, residual=residual)

    def fused(self, x: Tensor, residual: Tensor | None = None, relu: bool = False) -> Tensor:
        """Return the normalised input, with the residual added, cut at zero."""
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps, residual=residual, relu=relu)

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised input."""
        return self.fused(input) if self.fits(input) else super().forward(input)
