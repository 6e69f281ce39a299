"""2D images of different sizes, read through affine maps by one kernel; `data/resample.py` does the same with torch."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from adawac.kernels.availability import launch, plain
from adawac.kernels.norms import works

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
        "warp_kernels", "warp", (-(-height * width // BLOCK), count),
        images[0], images[1].long(), classes, starts.long(), shapes.contiguous(), theta.contiguous(), x, y,
        height, width,
        CHANNELS=channels, LABELS=labels is not None, BLOCK=BLOCK,
    )  # fmt: skip
    return x, None if labels is None else y
