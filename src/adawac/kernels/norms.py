"""Batch and group norms over channels-last activations, on the kernels of this package."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from adawac.kernels.availability import launch, plain, power_of_two, succeeds

TILE = 2048  # elements that a program handles at a time
WARPS = 4
PROGRAMS = 264  # that share a reduction: some for each of a large GPU's processors
STAGES = 6  # tiles of a reduction that are under way at a time
STRETCH = 4  # tiles for each program that only reads and writes, where there are plenty
COLUMNS = 64  # of bf16 are a line of the cache
LARGEST = 1024  # columns of a group, all of which one program has to see


@dataclass(frozen=True)
class Running:
    """A batch norm's running statistics, which the kernel moves: the variance is the unbiased one."""

    mean: Tensor
    var: Tensor
    batches: Tensor
    momentum: float


def normalise(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    samples: int,
    groups: int,
    eps: float,
    residual: Tensor | None = None,
    relu: bool = False,
    running: Running | None = None,
) -> Tensor:
    """Return relu(weight·x̂ + bias + residual); the last two steps only where they are asked for.

    Args:
        x: (N, C, H, W), channels-last in memory.
        weight: (C,) in float32.
        bias: (C,) in float32.
        samples: Parts of the batch that are normalised apart: N, or 1 for the statistics of the whole batch.
        groups: Groups of channels that are normalised together.
        eps: Added to the variance.
        residual: Of x's shape, type and layout.
        relu: Cut at zero.
        running: Statistics to move.
    """
    y: Tensor = _Normalise.apply(x, weight, bias, residual, samples, groups, eps, relu, running)
    return y


def fits(x: Tensor, *parameters: Tensor | None, residual: Tensor | None = None) -> bool:
    """Tell whether the kernels can take this input; if not, torch's own functions must."""
    return (
        plain(x)
        and _channels_last(x)
        and all(
            parameter is not None and parameter.dtype == torch.float32 and parameter.device == x.device
            for parameter in parameters
        )
        and (residual is None or (residual.shape == x.shape and residual.dtype == x.dtype and _channels_last(residual)))
        and works(x.device)
    )


def _channels_last(x: Tensor) -> bool:
    return x.dim() == 4 and x.numel() > 0 and x.is_contiguous(memory_format=torch.channels_last)


@lru_cache
def works(device: torch.device) -> bool:
    """Tell whether the kernels run there. Asked once a device."""

    def trial() -> None:  # of kernels that most networks need anyway: to compile others would take seconds
        half = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        x = torch.linspace(-2, 2, 2048, device=device).reshape(2, 4, 4, 64).permute(0, 3, 1, 2)
        x = x.to(torch.bfloat16 if half else torch.float32).requires_grad_()
        weight, bias = (torch.full((64,), value, device=device, requires_grad=True) for value in (1.0, 0.5))
        mean, var = torch.zeros((2, 64), device=device)
        running = Running(mean, var, torch.zeros((), dtype=torch.int64, device=device), 0.1)
        y = normalise(x, weight, bias, samples=1, groups=64, eps=1e-5, relu=True, running=running)
        expected = nn.functional.batch_norm(x.float(), None, None, weight, bias, training=True).relu().to(x.dtype)
        gradients, wanted = (torch.autograd.grad(output.square().sum(), (x, weight, bias)) for output in (y, expected))
        tolerance = 0.05 if half else 1e-3
        torch.testing.assert_close((y, *gradients), (expected, *wanted), rtol=tolerance, atol=tolerance)

    return succeeds(device, trial)


@dataclass(frozen=True)
class _Plan:
    """How the matrix is cut up.

    Attributes:
        tile: Rows and columns of a tile.
        group: Columns of a group, and the places that they take in a tile; 0 if the kernel sees to that.
        chunk: Rows of a program that reduces.
        reduce: The grid of programs that reduce: blocks of columns, chunks of rows, samples.
        stretch: Rows of a program that reads and writes.
        stream: The grid of those.
    """

    tile: dict[str, int]
    group: dict[str, int]
    chunk: int
    reduce: tuple[int, int, int]
    stretch: int
    stream: tuple[int, int, int]


@lru_cache(maxsize=1024)
def _plan(samples: int, rows: int, channels: int, groups: int) -> _Plan:
    size = channels // groups
    width = power_of_two(size)
    block_c = max(width, min(COLUMNS, power_of_two(channels)))
    block_r = max(1, TILE // block_c)
    tiles = ceil(rows / block_r)
    blocks = ceil(groups / (block_c // width))
    chunk = ceil(rows / min(ceil(PROGRAMS / (blocks * samples)), tiles) / block_r) * block_r
    columns = ceil(channels / block_c)
    plenty = min(STRETCH, max(1, tiles * columns * samples // 4096))
    shared = size == width <= block_c == COLUMNS and (size, samples) != (1, 1)  # not for a batch norm: it is simpler
    stretch = block_r * max(plenty, ceil(tiles / 65535))  # as many programs as CUDA takes on that axis
    return _Plan(
        tile={"BLOCK_R": block_r, "BLOCK_C": block_c},
        group={"SIZE": 0, "BLOCK_J": 0} if shared else {"SIZE": size, "BLOCK_J": width},
        chunk=chunk,
        reduce=(blocks, ceil(rows / chunk), samples),
        stretch=stretch,
        stream=(columns, ceil(rows / stretch), samples),
    )


_COUNTERS: dict[tuple[torch.device, int, int], Tensor] = {}


def _counters(x: Tensor, plan: _Plan) -> Tensor:
    """Return zeros in which the programs of a kernel count themselves, and which they leave as zeros.

    Kernels on one stream come one after another, so that they can share them. They are kept for good, since captured
    graphs hold on to them. Those that a graph itself sets to zero are not: only its replay does so.
    """
    stream = torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
    key = x.device, stream, power_of_two(plan.reduce[0] * (plan.reduce[2] + 1))
    if key in _COUNTERS:
        return _COUNTERS[key]
    counters = torch.zeros(key[-1], dtype=torch.int32, device=x.device)
    if not (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        _COUNTERS[key] = counters
    return counters


class _Normalise(torch.autograd.Function):
    """The kernels, one after another. Nothing here waits for the device, so all of it can be captured."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None,
        samples: int, groups: int, eps: float, relu: bool, running: Running | None,
    ) -> Tensor:  # fmt: skip
        channels = x.shape[1]
        rows = x.numel() // channels // samples
        plan = _plan(samples, rows, channels, groups)
        partial = x.new_empty((2, samples, plan.reduce[1], channels), dtype=torch.float32)
        stats = x.new_empty((2, samples, groups), dtype=torch.float32)
        y = torch.empty_like(x)
        follow = (None, None, None) if running is None else (running.mean, running.var, running.batches)
        launch(
            "norm_kernels", "moments", plan.reduce,
            x, partial, _counters(x, plan), stats, *follow,
            rows, plan.chunk, channels, groups, eps, 0.0 if running is None else running.momentum,
            RUNNING=running is not None, **plan.group, **plan.tile, STAGES=STAGES, num_warps=WARPS,
        )  # fmt: skip
        launch(
            "norm_kernels", "apply", plan.stream,
            x, residual, y, stats, weight, bias,
            rows, plan.stretch, channels, groups, int(relu),
            RESIDUAL=residual is not None, **plan.tile, num_warps=WARPS,
        )  # fmt: skip
        ctx.save_for_backward(x, weight, bias, stats, y if relu and residual is not None else None)
        ctx.samples, ctx.groups, ctx.relu, ctx.residual = samples, groups, relu, residual is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Sequence[Tensor | None]:
        x, weight, bias, stats, y = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        channels, groups = x.shape[1], ctx.groups
        rows = x.numel() // channels // ctx.samples
        plan = _plan(ctx.samples, rows, channels, groups)
        partial = x.new_empty((2, ctx.samples, plan.reduce[1], channels), dtype=torch.float32)
        of_columns = x.new_empty((2, ctx.samples, channels), dtype=torch.float32)
        total = x.new_empty((2, channels), dtype=torch.float32) if ctx.samples > 1 else of_columns[:, 0]
        of_groups = torch.empty_like(stats)
        dx = torch.empty_like(x)
        kept = ctx.relu and ctx.residual
        dz = torch.empty_like(x) if kept else dy
        launch(
            "norm_kernels", "gradient_sums", plan.reduce,
            x, dy, y, dz, partial, _counters(x, plan), of_columns, of_groups, total, stats, weight, bias,
            rows, plan.chunk, channels, groups, int(ctx.relu),
            KEEP=kept, SEVERAL=ctx.samples > 1, **plan.group, **plan.tile, STAGES=STAGES, num_warps=WARPS,
        )  # fmt: skip
        launch(
            "norm_kernels", "input_gradient", plan.stream,
            x, dz, dx, stats, of_groups, weight, bias,
            rows, plan.stretch, channels, groups, int(ctx.relu and not kept),
            **plan.tile, num_warps=WARPS,
        )  # fmt: skip
        dbias, dweight = total.unbind()
        return dx, dweight, dbias, dz if ctx.residual else None, None, None, None, None, None


class FusedNorm(nn.Module):
    """A norm layer whose kernel also adds a residual and cuts at zero; before torch's own class among the bases."""

    def fits(self, x: Tensor, residual: Tensor | None = None) -> bool:
        """Tell whether the kernel can take this input now; if not, torch's own functions must."""
        raise NotImplementedError

    def fused(self, x: Tensor, residual: Tensor | None = None, relu: bool = False) -> Tensor:
        """Return the normalised input, with the residual added, cut at zero."""
        raise NotImplementedError

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised input."""
        return self.fused(input) if self.fits(input) else super().forward(input)


def activated(norm: nn.Module, x: Tensor, act: nn.Module, residual: Tensor | None = None) -> Tensor:
    """Return act(norm(x) + residual), in one where that is possible.

    A module with a hook is called separately, so that the hook sees what it would have seen.
    """
    unheard = type(act) is nn.ReLU and not hooked(norm) and not hooked(act)
    if unheard and isinstance(norm, FusedNorm) and norm.fits(x, residual):
        return norm.fused(x, residual, relu=True)
    y: Tensor = norm(x)
    z: Tensor = act(y if residual is None else y + residual)
    return z


def hooked(module: nn.Module) -> bool:
    """Tell whether a module has hooks."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)


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
        return normalise(
            x, self.weight, self.bias,
            samples=1, groups=x.shape[1], eps=self.eps, residual=residual, relu=relu, running=running,
        )  # fmt: skip


class GroupNorm(FusedNorm, nn.GroupNorm):
    """torch's group norm, on our kernels where these take its input."""

    def fits(self, x: Tensor, residual: Tensor | None = None) -> bool:
        """Tell whether the kernel can take this input; one value for each group is left to torch, which refuses it."""
        small = self.num_channels // self.num_groups <= LARGEST
        return small and x.numel() > self.num_groups and fits(x, self.weight, self.bias, residual=residual)

    def fused(self, x: Tensor, residual: Tensor | None = None, relu: bool = False) -> Tensor:
        """Return the normalised input, with the residual added, cut at zero."""
        return normalise(
            x, self.weight, self.bias,
            samples=len(x), groups=self.num_groups, eps=self.eps, residual=residual, relu=relu,
        )  # fmt: skip
