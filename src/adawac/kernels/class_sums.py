"""Sums over pixels that cross-entropy and Dice need, as one differentiable function on kernels of our own.

torch would write a dozen maps of the logits' size in float32 on the way, forward and backward; this reads the logits
twice and writes their gradient once.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from adawac.kernels.availability import launch, plain, power_of_two
from adawac.kernels.norms import works

CLASSES = 64  # of more, a tile would hold too few pixels
TILE = 2048  # elements that a program handles at a time
PROGRAMS = 1024  # that share a batch


def class_sums(logits: Tensor, labels: Tensor, *, squared: bool = False, ignore_index: int | None = None) -> Tensor:
    """Return for each sample and class the sums of log p and of p where it is the label, of p (or p²), and of labels.

    Args:
        logits: (B, K, N), pixels at one distance from each other in memory.
        labels: (B, N).
        squared: Sum p² instead of p.
        ignore_index: A label that counts nowhere.

    Returns:
        (B, 4, K) in float32; NaN for a sample with a label that is no class.
    """
    sums: Tensor = _ClassSums.apply(logits, labels, squared, ignore_index)
    return sums


def can_sum(logits: Tensor, labels: Tensor) -> bool:
    """Tell whether `class_sums` can take these; if not, torch's own functions must."""
    return (
        plain(logits)
        and logits.dim() == 3
        and logits.numel() > 0
        and 1 < logits.shape[1] <= CLASSES
        and logits.shape[2] < 2**31
        and logits.shape[0] < 2**16
        and labels.device == logits.device
        and labels.shape == (logits.shape[0], logits.shape[2])
        and not labels.is_floating_point()
        and works(logits.device)
    )


class _ClassSums(torch.autograd.Function):
    """The kernels. Nothing here waits for the device, so all of it can be captured."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, squared: bool, ignore_index: int | None) -> Tensor:
        samples, classes, pixels = logits.shape
        labels = labels.contiguous()
        ctx.tile = {"BLOCK_K": power_of_two(classes)}
        ctx.tile["BLOCK_P"] = TILE // ctx.tile["BLOCK_K"]
        ctx.how = {"SQUARED": squared, "IGNORE": ignore_index is not None}
        ctx.ignored = -1 if ignore_index is None else ignore_index
        tiles = ceil(pixels / ctx.tile["BLOCK_P"])
        chunk = ceil(tiles / min(tiles, ceil(PROGRAMS / samples))) * ctx.tile["BLOCK_P"]
        chunks = ceil(pixels / chunk)
        partial = torch.empty((samples, chunks, 4, classes), device=logits.device)
        launch(
            "pixel_kernels", "sums", (chunks, samples),
            logits, labels, partial,
            pixels, chunk, *logits.stride(), classes, ctx.ignored,
            **ctx.how, **ctx.tile,
        )  # fmt: skip
        ctx.save_for_backward(logits, labels)
        return partial.sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dsums: Tensor) -> Sequence[Tensor | None]:
        logits, labels = ctx.saved_tensors
        samples, classes, pixels = logits.shape
        result = torch.empty_strided(logits.shape, logits.stride(), dtype=logits.dtype, device=logits.device)
        launch(
            "pixel_kernels", "gradient", (ceil(pixels / ctx.tile["BLOCK_P"]), samples),
            logits, labels, dsums.contiguous(), result,
            pixels, *logits.stride(), classes, ctx.ignored,
            **ctx.how, **ctx.tile,
        )  # fmt: skip
        return result, None, None, None
