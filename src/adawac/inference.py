"""A network on whole volumes, slice by slice: resized to the network's input, classified, resized back."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from adawac.data.resample import warp

__all__ = ["segment"]


@torch.inference_mode()
def segment(
    network: nn.Module,
    slices: npt.NDArray[np.float32],
    size: Sequence[int],
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 24,
) -> npt.NDArray[np.uint8]:
    """Return the class of every pixel of a stack of slices, on the slices' own grid.

    Args:
        network: The network, on `device`, in the mode that is wanted (evaluation, as a rule).
        slices: (P, C, H, W), as a store has them.
        size: Size of the network's input.
        device: Where to compute.
        batch_size: Slices at a time.
    """
    labels = np.empty((len(slices), *slices.shape[2:]), dtype=np.uint8)
    for start in range(0, len(slices), batch_size):
        part = torch.from_numpy(np.array(slices[start : start + batch_size])).to(device)  # a copy: maps are read-only
        identity = torch.eye(2, 3, device=part.device).expand(len(part), 2, 3)
        images, _ = warp(part, None, identity, size)
        logits: Any = network(images)
        classes = _finest(logits).argmax(1)
        _, back = warp(part[:, :1].new_zeros(len(part), 1, *size), classes, identity, part.shape[2:], "nearest")
        assert back is not None  # labels were given
        labels[start : start + batch_size] = back.to(torch.uint8).cpu().numpy()
    return labels


def _finest(logits: Tensor | Sequence[Tensor]) -> Tensor:
    return logits if isinstance(logits, Tensor) else logits[0]
