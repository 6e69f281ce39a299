"""Upsampling, pooling, the sums of the losses and the warp of views on the kernels of this package."""

from collections.abc import Sequence
from math import ceil
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from adawac.kernels.availability import launch, plain, power_of_two
from adawac.kernels.norms import TILE, WARPS, fits, works

# -- upsampling with the skip connection, and max pooling, of channels-last maps ---------------------------------------


def enlarge(x: Tensor, skip: Tensor | None = None, *, bilinear: bool = False) -> Tensor:
    """Return x in twice its height and width, followed by the skip connection's channels where there is one.

    Args:
        x: (N, C, H, W), channels-last in memory.
        skip: (N, S, 2H, 2W), of x's type and layout.
        bilinear: Interpolate with corners on corners; otherwise repeat each pixel four times.
    """
    y: Tensor = _Enlarge.apply(x, skip, bilinear)
    return y


def can_enlarge(x: Tensor, size: Sequence[int], skip: Tensor | None = None) -> bool:
    """Tell whether `enlarge` can bring x to this size beside this skip connection; if not, torch must."""
    height, width = x.shape[-2:]
    return (
        fits(x)
        and tuple(size) == (2 * height, 2 * width)
        and min(height, width) > 1
        and len(x) * 4 * height * width < 2**31  # pixels are counted in 32 bits
        and (skip is None or (fits(skip) and skip.dtype == x.dtype and skip.shape[2:] == tuple(size)))
        and (skip is None or len(skip) == len(x))
    )


class _Enlarge(torch.autograd.Function):
    """The kernels. Nothing here waits for the device, so all of it can be captured."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, skip: Tensor | None, bilinear: bool) -> Tensor:
        images, channels, height, width = x.shape
        skipped = 0 if skip is None else skip.shape[1]
        size = (images, channels + skipped, 2 * height, 2 * width)
        y = torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        pixels = images * 4 * height * width
        tile = tile_of(max(channels, skipped))
        blocks = ceil(channels / tile["BLOCK_C"]) + ceil(skipped / tile["BLOCK_C"])
        launch(
            "pixel_kernels", "join", (ceil(pixels / tile["BLOCK_R"]), blocks),
            x, x if skip is None else skip, y,
            pixels, 2 * height, 2 * width, channels, skipped,
            BILINEAR=bilinear, **tile, num_warps=WARPS,
        )  # fmt: skip
        ctx.shape, ctx.bilinear, ctx.joined = x.shape, bilinear, skip is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Sequence[Tensor | None]:
        channels, height, width = ctx.shape[1:]
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = torch.empty(ctx.shape, dtype=dy.dtype, device=dy.device, memory_format=torch.channels_last)
        # A pixel of the small map went into two of each axis of the large one, or, with weights, up to five.
        taps = 5 if ctx.bilinear else 2
        _gather("enlarged_gradient", (dy, dx), height, width, channels, dy.shape[1], BILINEAR=ctx.bilinear, TAPS=taps)
        return dx, dy[:, channels:] if ctx.joined else None, None


def tile_of(channels: int) -> dict[str, int]:
    """Return how many pixels and channels of a map a program handles at a time."""
    columns = min(64, power_of_two(channels))
    return {"BLOCK_R": TILE // columns, "BLOCK_C": columns}


class MaxPool2d(nn.MaxPool2d):
    """torch's maximum over windows, on our kernels where these take its input."""

    def forward(self, input: Tensor) -> Tensor:
        """Return each window's maximum."""
        if not self.fits(input):
            return super().forward(input)  # type: ignore[no-any-return]
        padding = self.padding if isinstance(self.padding, int) else self.padding[0]
        size = [_windows(side, padding, self.ceil_mode) for side in input.shape[2:]]
        y: Tensor = _Maxima.apply(input, size, padding)
        return y

    def fits(self, x: Tensor) -> bool:
        """Tell whether the kernel can take this input: windows of three, two apart, channels-last on a GPU."""
        return (
            self.kernel_size in (3, (3, 3))
            and self.stride in (2, (2, 2))
            and self.dilation in (1, (1, 1))
            and self.padding in (0, 1, (0, 0), (1, 1))
            and not self.return_indices
            and fits(x)
            and min(x.shape[2:]) > 2
            and x[:, 0].numel() < 2**31  # pixels are counted in 32 bits
        )


def _windows(side: int, padding: int, ceil_mode: bool) -> int:
    """Return how many windows there are on a side; as in torch, none begins in the padding after it."""
    steps = (side + 2 * padding - 3 + (1 if ceil_mode else 0)) // 2 + 1
    return steps - 1 if (steps - 1) * 2 >= side + padding else steps


class _Maxima(torch.autograd.Function):
    """The kernels. Nothing here waits for the device, so all of it can be captured."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: Sequence[int], padding: int) -> Tensor:
        shape = (*x.shape[:2], *size)
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        taken = torch.empty_like(y, dtype=torch.int8)
        _gather("maxima", (x, taken, y), *x.shape[2:], *size, x.shape[1], PADDING=padding)
        ctx.save_for_backward(taken)
        ctx.shape, ctx.padding = x.shape, padding
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Sequence[Tensor | None]:
        (taken,) = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = torch.empty(ctx.shape, dtype=dy.dtype, device=dy.device, memory_format=torch.channels_last)
        sizes = *dx.shape[2:], *dy.shape[2:], dx.shape[1]
        _gather("maxima_gradient", (dy, taken, dx), *sizes, PADDING=ctx.padding)
        return dx, None, None


def _gather(kernel: str, maps: Sequence[Tensor], *sizes: int, **constants: Any) -> None:
    """Run a kernel with programs for all pixels of the last of the maps, which it writes."""
    written = maps[-1]
    channels = written.shape[1]
    pixels = written.numel() // channels
    tile = tile_of(channels)
    grid = ceil(pixels / tile["BLOCK_R"]), ceil(channels / tile["BLOCK_C"])
    launch("pixel_kernels", kernel, grid, *maps, pixels, *sizes, **constants, **tile, num_warps=WARPS)


# -- sums over pixels that cross-entropy and Dice need -----------------------------------------------------------------

# As one differentiable function: torch would write a dozen maps of the logits' size in float32 on the way, forward and
# backward; this reads the logits twice and writes their gradient once.
CLASSES = 64  # of more, a tile would hold too few pixels
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


# -- 2D images of different sizes, read through affine maps; `data/resample.py` does the same with torch ---------------

BLOCK = 512  # output pixels of a program
Buffer = tuple[Shaped[Tensor, " total"], Int[Tensor, " n"]]  # all images' values, and where each image starts


def can_warp(
    images: Buffer, labels: Buffer | None, shapes: Int[Tensor, "n d"], theta: Float[Tensor, "n d d+1"], channels: int
) -> bool:
    """Tell whether `warp` can take these; if not, torch's own functions must."""
    values = images[0]
    return (
        plain(theta)
        and theta.dtype == torch.float32
        and shapes.shape[1] == 2
        and channels <= 8
        and len(shapes) < 2**16
        and (values.dtype == torch.float32 or not values.is_floating_point())
        and not values.requires_grad
        and all(tensor.device == theta.device for tensor in (*images, *(labels or images)))
        and works(theta.device)
    )


def warp(
    images: Buffer,
    labels: Buffer | None,
    shapes: Int[Tensor, "n 2"],
    theta: Float[Tensor, "n 2 3"],
    size: Sequence[int],
    channels: int,
) -> tuple[Float[Tensor, "n C H W"], Int[Tensor, "n H W"] | None]:
    """Return the images and labels that the maps show; nothing waits for the device, so a graph can capture it.

    Args:
        images: Each (C, *shape) in row-major order.
        labels: Each of its image's shape, or None.
        shapes: The images' sizes.
        theta: The maps, as for `adawac.data.resample.warp`.
        size: Of the output, (H, W).
        channels: C.
    """
    count, (height, width) = len(shapes), size
    x = torch.empty((count, channels, height, width), device=theta.device)
    y = torch.empty((count, height, width), dtype=torch.int64, device=theta.device)
    classes, starts = images if labels is None else labels
    launch(
        "pixel_kernels", "warp", (-(-height * width // BLOCK), count),
        images[0], images[1].long(), classes, starts.long(), shapes.contiguous(), theta.contiguous(), x, y,
        height, width,
        CHANNELS=channels, LABELS=labels is not None, BLOCK=BLOCK,
    )  # fmt: skip
    return x, None if labels is None else y
