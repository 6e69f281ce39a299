"""The network of a run, ready to predict stacks of slices as fast as the device allows."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any, Literal

import numpy.typing as npt
import torch
from torch import nn

from adawac.errors import ConfigError, RunError
from adawac.inference.ensemble import Ensemble
from adawac.inference.predictor import Resize, segment_stacks
from adawac.inference.trained import load_trained
from adawac.runs import Run

Array = npt.NDArray[Any]

# Slices of 224×224 at a time, fewer of larger ones: a GPU wants large batches; a processor's cache wants small ones.
_BATCH = {"cuda": 128, "cpu": 16}


class Predictor:
    """Predicts with one network after the other.

    Args:
        device: `auto`, `cpu`, `cuda`, …
        precision: `auto` is bf16 on a GPU and fp32 elsewhere.
        batch_size: Slices at a time.
        tta: Average the probabilities over flipped images, too.
    """

    def __init__(
        self, device: str, precision: Literal["auto", "fp32", "bf16"], batch_size: int | None, tta: bool = False
    ):
        self.device = _device(device)
        self._half = precision == "bf16" or (precision == "auto" and self.device.type == "cuda")
        self._asked, self._tta = batch_size, tta
        self._batch_size: int
        self._network: nn.Module
        self._size: tuple[int, int]
        self._resize: Resize
        self._waking = Thread(target=_wake, args=(self.device,), daemon=True)
        if self.device.type == "cuda":
            self._waking.start()

    def load(self, run: Run, checkpoint: str) -> None:
        """Take the network of a run; the one before is let go."""
        trained = load_trained(run, checkpoint)
        if self._waking.is_alive():
            self._waking.join()
        self._network = trained.network.to(self.device)
        if self.device.type == "cuda":
            self._network = self._network.to(memory_format=torch.channels_last)  # what the tensor cores want
        if self._tta:
            self._network = Ensemble([self._network], tta=True).eval()
        self._size, self._resize = trained.image_size, trained.resize
        usual = _BATCH.get(self.device.type, 16) * 224 * 224 // math.prod(self._size)
        self._batch_size = self._asked or min(max(1, usual), 512)

    def predict(self, stacks: Iterable[Array]) -> Iterator[Array]:
        """Yield the label map of each stack (P, C, H, W), on its own grid."""
        labels = segment_stacks(
            self._network, stacks, self._size, device=self.device, batch_size=self._batch_size, resize=self._resize
        )
        try:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self._half), _float32(whole=not self._half):
                yield from labels
        except torch.OutOfMemoryError as error:
            raise RunError(
                f"Expected {self._batch_size} slices to fit into the device's memory, but they did not "
                f"({str(error).splitlines()[0]}). Give a smaller --batch-size."
            ) from error


@contextmanager
def _float32(whole: bool) -> Iterator[None]:
    """Let a GPU compute float32 as such: cuDNN rounds to TF32, unless somebody switched that off, as training does."""
    convolutions, products = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    if whole:
        torch.backends.cudnn.allow_tf32 = False
        torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = convolutions
        torch.set_float32_matmul_precision(products)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"Expected a device that torch sees, but got {name!r}: {str(error).splitlines()[0]} Use auto, cpu or cuda."
        ) from error
    return device


def _wake(device: torch.device) -> None:
    """Let CUDA and cuDNN start while the network's weights are read from the disk."""
    with suppress(RuntimeError), torch.inference_mode():  # whatever is wrong, the network will say so
        nn.functional.conv2d(
            torch.zeros(1, 8, 8, 8, device=device, dtype=torch.bfloat16),
            torch.zeros(8, 8, 3, 3, device=device, dtype=torch.bfloat16),
        )
