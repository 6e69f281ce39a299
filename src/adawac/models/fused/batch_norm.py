"""Batch norm over channels-last activations in training; evaluation is torch's."""

from torch import Tensor, nn

from adawac.models.fused.base import FusedNorm
from adawac.models.fused.normalise import Running, fits, normalise

__all__ = ["BatchNorm2d", "batch_norm"]


def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float = 1e-5,
    *,
    running: Running | None = None,
    residual: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    """Return relu(batch_norm(x) + residual) by the batch's statistics, and move the running ones as torch does."""
    return normalise(
        x, weight, bias, samples=1, groups=x.shape[1], eps=eps, residual=residual, relu=relu, running=running
    )


class BatchNorm2d(FusedNorm, nn.BatchNorm2d):
    """torch's batch norm, on our kernels in training where these take its input."""

    def fits(self, x: Tensor, residual: Tensor | None = None) -> bool:
        """Tell whether the kernel can take this input: in training, with running statistics of a fixed momentum.

        A single value for each channel is left to torch, which refuses it.
        """
        follows = self.training and self.track_running_stats and self.momentum is not None
        several = x.numel() > x.shape[1]
        return (
            follows
            and several
            and fits(x, self.weight, self.bias, self.running_mean, self.running_var, residual=residual)
        )

    def fused(self, x: Tensor, residual: Tensor | None = None, relu: bool = False) -> Tensor:
        """Return the normalised input, with the residual added, cut at zero."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        running = Running(self.running_mean, self.running_var, self.num_batches_tracked, self.momentum)
        return batch_norm(x, self.weight, self.bias, self.eps, running=running, residual=residual, relu=relu)

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised input."""
        return self.fused(input) if self.fits(input) else super().forward(input)
