"""The released code's own transform of a slice, with SciPy's numbers: for comparisons with the paper, on the CPU.

A view is `np.rot90` and a flip, or `scipy.ndimage.rotate(order=0, reshape=False)`; then `scipy.ndimage.zoom` to the
network's size, order 3 for the image and order 0 for the label. Both keep SciPy's rounding (ties, and the last row and
column, which it sets to 0 from 512 to 224), because SciPy itself says where each pixel comes from: it moves an array of
pixel numbers once per size and angle, and every slice after that is an indexing. The cubic zoom is linear and
separable, so it is two matrix products, with the zoom of the identity as the matrix.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adawac.data.resample import Ragged
from adawac.data.views import ViewDraws
from adawac.errors import ConfigError

Array = npt.NDArray[Any]


def transform(images: Ragged, labels: Ragged, draws: ViewDraws, size: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return (images (B, C, H, W), labels (B, H, W), theta) of one view of each image."""
    if images.values.device.type != "cpu" or len(size) != 2:
        raise ConfigError(
            f"Expected 2D slices on the CPU for views of mode 'released', but got {len(size)}D on "
            f"{images.values.device}. Use mode 'affine'."
        )
    x = torch.empty(len(images), images.channels, *size)
    y = torch.empty(len(images), *size, dtype=torch.int64)
    for row, (turns, flip, angle) in enumerate(
        zip(draws.turns.tolist(), draws.flip.tolist(), draws.angle.tolist(), strict=True)
    ):
        label = _turn(_array(labels, row)[0], turns, flip, angle)
        y[row] = torch.from_numpy(nearest_zoom(label, size).astype(np.int64))
        for channel, image in enumerate(_array(images, row).astype(np.float32)):
            x[row, channel] = torch.from_numpy(cubic_zoom(_turn(image, turns, flip, angle), size))
    # Resize and rotation hold the centres of the corner pixels: in normalised coordinates an image is n - 1 pixels
    # wide. (For a network's input that is not square, that leaves quarter turns off by less than half a pixel.)
    target = torch.tensor(size)
    return x, y, draws.theta((images.shapes - 1) * (target / (target - 1)))


def _array(images: Ragged, row: int) -> Array:
    """Return one image as (C, H, W)."""
    height, width = images.shapes[row].tolist()
    values = images.values.narrow(0, int(images.offsets[row]), images.channels * height * width)
    return values.numpy().reshape(images.channels, height, width)


def _turn(array: Array, turns: int, flip: int, angle: int) -> Array:
    return np.flip(np.rot90(array, turns), flip) if flip >= 0 else rotate(array, angle)


def rotate(array: Array, angle: int) -> Array:
    """Return `scipy.ndimage.rotate(array, angle, order=0, reshape=False)`."""
    pixels = np.concatenate([np.zeros(1, array.dtype), array.ravel()])  # number 0 is the fill, 1 the first pixel
    return pixels[_rotation(array.shape, angle)]


def nearest_zoom(array: Array, size: Sequence[int]) -> Array:
    """Return `scipy.ndimage.zoom(array, size / array.shape, order=0)`."""
    rows, columns = (_nearest(old, new) for old, new in zip(array.shape, size, strict=True))
    moved = array[np.maximum(rows, 0)[:, None], np.maximum(columns, 0)]
    moved[rows < 0] = 0
    moved[:, columns < 0] = 0
    return moved


def cubic_zoom(array: Array, size: Sequence[int]) -> Array:
    """Return `scipy.ndimage.zoom(array, size / array.shape, order=3)`."""
    rows, columns = (_cubic(old, new) for old, new in zip(array.shape, size, strict=True))
    return np.asarray((rows @ array.astype(rows.dtype) @ columns.T).astype(array.dtype))


@lru_cache(maxsize=128)
def _rotation(shape: tuple[int, int], angle: int) -> npt.NDArray[np.int32]:
    from scipy.ndimage import rotate as scipy_rotate

    numbers = np.arange(1, shape[0] * shape[1] + 1, dtype=np.int32).reshape(shape)
    return np.asarray(scipy_rotate(numbers, angle, order=0, reshape=False))


@lru_cache(maxsize=256)
def _nearest(old: int, new: int) -> npt.NDArray[np.int64]:
    """Return the row that each new row shows, or -1 where SciPy fills."""
    from scipy.ndimage import zoom

    return np.asarray(zoom(np.arange(1, old + 1), new / old, order=0) - 1)


@lru_cache(maxsize=256)
def _cubic(old: int, new: int) -> npt.NDArray[np.float32]:
    """Return the matrix (new, old) of SciPy's cubic zoom; in float32, which is twice as fast and exact to 1e-6."""
    from scipy.ndimage import zoom

    # Column by column: a second axis in the same call would pass through SciPy's spline filter too.
    moved = np.stack([zoom(unit, new / old, order=3) for unit in np.eye(old)], axis=1)
    return np.asarray(moved.astype(np.float32))
