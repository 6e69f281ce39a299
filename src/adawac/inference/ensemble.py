"""Several networks, flips, and probabilities: what stands between prepared slices and label maps."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from adawac.errors import ConfigError, RunError
from adawac.inference.predictor import Resize, nearest_rows, segment
from adawac.inference.trained_network import Trained

#: Probability 1 as it is stored: NIfTI knows no half-precision numbers, but 16-bit integers with a factor.
FULL = 65535
_FLIPS: tuple[tuple[int, ...], ...] = ((), (2,), (3,), (2, 3))


class Ensemble(nn.Module):
    """The mean of the probabilities of several networks, each also on flipped images (test-time augmentation).

    One network without flips gives its logits as they are: their largest is that of the probabilities.

    Attributes:
        probabilities: With `keep`, those of each batch since the list was emptied, at the network's size, in parts of
            `FULL`.
    """

    def __init__(self, networks: Sequence[nn.Module], tta: bool = False, keep: bool = False):
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.flips = _FLIPS if tta else _FLIPS[:1]
        self.keep = keep
        self.probabilities: list[npt.NDArray[np.uint16]] = []

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, K, H, W), of which the largest of each pixel is its class."""
        if len(self.networks) == len(self.flips) == 1:
            scores = _finest(self.networks[0](images))
            mean = scores.float().softmax(1) if self.keep else None
        else:
            scores = mean = self._mean(images)
        if not torch.isfinite(scores).all():
            raise RunError(
                "Expected finite numbers from the network, but got NaN or infinity. Its training may have diverged: "
                "take another checkpoint."
            )
        if self.keep and mean is not None:
            self.probabilities.append((mean * FULL).round().int().cpu().numpy().astype(np.uint16))
        return scores

    def _mean(self, images: Tensor) -> Tensor:
        total = torch.zeros(())
        for network in self.networks:
            for flip in self.flips:
                logits = _finest(network(images.flip(flip))).flip(flip)
                total = logits.float().softmax(1) + total.to(logits.device)
        return total / (len(self.networks) * len(self.flips))


def _finest(logits: Tensor | Sequence[Tensor]) -> Tensor:
    return logits if isinstance(logits, Tensor) else logits[0]


def check_agreement(members: Sequence[Trained]) -> None:
    """Raise a `ConfigError` unless networks can vote on one scan: same input, same classes."""
    first = members[0]
    for other in members[1:]:
        for name in ("class_names", "label_values", "channels", "preprocessing", "image_size", "resize"):
            if getattr(first, name) != getattr(other, name):
                raise ConfigError(
                    f"Expected networks with one {name.replace('_', ' ')} for an ensemble, but {first.source} has "
                    f"{getattr(first, name)} and {other.source} {getattr(other, name)}. Leave one of them out."
                )


def segment_block(
    ensemble: Ensemble,
    slices: npt.NDArray[np.float32],
    size: tuple[int, int],
    resize: Resize,
    *,
    device: torch.device,
    batch_size: int,
) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.uint16] | None]:
    """Return the classes of prepared slices (P, H, W), and their probabilities (P, K, H, W) where these are kept.

    Probabilities are brought to the slices' grid as the classes are, by nearest neighbour: at every pixel the class is
    the most probable one.
    """
    ensemble.probabilities.clear()
    try:
        labels = segment(ensemble, slices, size, device=device, batch_size=batch_size, resize=resize)
    except torch.OutOfMemoryError as error:
        raise RunError(
            f"Expected {batch_size} slices to fit into the device's memory, but they did not. Lower --batch-size."
        ) from error
    if not ensemble.keep:
        return labels, None
    cpu = torch.device("cpu")
    rows, columns = (
        nearest_rows(old, new, resize, cpu).numpy() - 1 for old, new in zip(size, slices.shape[2:], strict=True)
    )
    coarse = np.concatenate(ensemble.probabilities)
    fine = np.empty((*coarse.shape[:2], *slices.shape[2:]), dtype=np.uint16)
    for new, old in zip(fine, coarse, strict=True):
        new[:] = old[:, np.maximum(rows, 0)][:, :, np.maximum(columns, 0)]
    outside = (rows < 0)[:, None] | (columns < 0)
    fine[:, :, outside] = 0
    fine[:, 0, outside] = FULL
    return labels, fine
