"""Images of different sizes in one buffer, read through affine maps into a batch of one size.

A batch often holds slices of several native sizes (ACDC has 29), and torch's own `grid_sample` wants one. So images lie
end to end in a flat buffer, `Ragged`, and `warp` computes for every output pixel where in that buffer its neighbours
are. That is plain indexing: one code for 2D and 3D, for the CPU and for a GPU, without a host synchronisation (a CUDA
graph can capture it), and a map that only permutes pixels copies them bit for bit.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from adawac.data.cases import Array
from adawac.errors import ConfigError, ShapeError
from adawac.kernels import pixels

if TYPE_CHECKING:
    from adawac.data.views import ViewDraws

Interpolation = Literal["nearest", "bilinear", "cubic"]
Taps = list[tuple[Tensor, Tensor | None]]  # along one axis: (where a neighbour is, its weight or None for 1)
_CACHED_PIXELS = 1 << 15
"""How many output pixels are read at once on the CPU, where images are that small."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ragged:
    """Images of different sizes, each (C, *S) in row-major order, end to end in one buffer.

    Attributes:
        values: (total,) all pixels.
        offsets: (n,) where each image starts.
        shapes: (n, d) each image's size, without channels.
        channels: C, the same for all.
    """

    values: Shaped[Tensor, " total"]
    offsets: Int[Tensor, " n"]
    shapes: Int[Tensor, "n d"]
    channels: int = 1

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def buffer(self) -> tuple[Tensor, Tensor]:
        """The pixels, and where each image starts."""
        return self.values, self.offsets

    @classmethod
    def from_arrays(cls, arrays: Sequence[Any]) -> "Ragged":
        """Lay arrays (C, *S) of equal C, d and type end to end, as a copy."""
        images = [np.asarray(array) for array in arrays]
        kinds = {(image.shape[0], image.ndim, str(image.dtype)) for image in images}
        if len(kinds) != 1:
            raise ShapeError(
                "Expected images of one channel count, dimension and type, but got (C, dimension, type) = "
                f"{sorted(kinds)}. Convert them first."
            )
        sizes = torch.tensor([image.size for image in images])
        return cls(
            values=torch.from_numpy(np.concatenate([image.ravel() for image in images])),
            offsets=sizes.cumsum(0) - sizes,
            shapes=torch.tensor([image.shape[1:] for image in images]),
            channels=images[0].shape[0],
        )

    @classmethod
    def empty(
        cls, shapes: Int[Tensor, "n d"], *, channels: int, dtype: torch.dtype, device: torch.device | str
    ) -> "Ragged":
        """Make room for images of the given shapes, to be filled."""
        sizes = shapes.prod(1) * channels
        return cls(
            values=torch.empty(int(sizes.sum()), dtype=dtype, device=device),
            offsets=(sizes.cumsum(0) - sizes).to(device),
            shapes=shapes.to(device),
            channels=channels,
        )

    @classmethod
    def from_batch(cls, batch: Shaped[Tensor, "B C *S"]) -> "Ragged":
        """Take a batch of one size as it is, without a copy where it is contiguous."""
        size, device = batch[0].numel(), batch.device
        return cls(
            values=batch.reshape(-1),
            offsets=torch.arange(len(batch), device=device) * size,
            shapes=torch.stack([torch.full((len(batch),), side, device=device) for side in batch.shape[2:]], 1),
            channels=batch.shape[1],
        )

    def select(self, rows: Int[Tensor, " B"] | slice) -> "Ragged":
        """Return the images in `rows`; the buffer is shared."""
        return replace(self, offsets=self.offsets[rows], shapes=self.shapes[rows])

    def to(self, device: torch.device | str) -> "Ragged":
        """Return the same images on `device`; the host does not wait where they lie in pinned memory."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "Ragged":
        """Return the same images in pinned memory; `DataLoader` calls this."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Ragged":
        return replace(self, values=change(self.values), offsets=change(self.offsets), shapes=change(self.shapes))


def warp(
    images: Ragged | Tensor,
    labels: Ragged | Tensor | None,
    theta: Float[Tensor, "B d d+1"],
    size: Sequence[int],
    interpolation: Interpolation = "bilinear",
    outside: float | Sequence[float] = 0,
    outside_label: int = 0,
) -> tuple[Float[Tensor, "B C *S"], Int[Tensor, "B *S"] | None]:
    """Read images and labels through affine maps into batches of one size, on the device they are on.

    The output shows at u what the input has at `theta @ [u, 1]`; coordinates are those of `F.affine_grid` with
    `align_corners=False`, that is -1 and 1 at the outer edges of the first and last pixel, in the order (x, y[, z]). As
    both sides are normalised, the identity is the plain resize. Within the input's edges the border pixels go on
    (as in `F.interpolate`); beyond them the output is `outside`.

    Args:
        images: `Ragged`, or (B, C, *S).
        labels: `Ragged` with one channel and the images' shapes, or (B, *S), or None.
        theta: The maps.
        size: Size of the output.
        interpolation: For the images; labels are always read by nearest neighbour.
        outside: The images' value beyond the input's edges; one for all, or one for each channel.
        outside_label: The labels' value there.

    Returns:
        Images in their type (float32 if that is an integer), and labels as int64.
    """
    images = images if isinstance(images, Ragged) else Ragged.from_batch(images)
    if isinstance(labels, Tensor):
        labels = Ragged.from_batch(labels.unsqueeze(1))
    _check(images, labels, theta, size)
    if interpolation == "bilinear" and outside == 0 and outside_label == 0:
        buffers = images.buffer, None if labels is None else labels.buffer
        if pixels.can_warp(*buffers, images.shapes, theta, images.channels):
            return pixels.warp(*buffers, images.shapes, theta, size, images.channels)
    if images.values.device.type != "cpu":
        x, y = _warp(images, labels, theta, size, interpolation, outside, outside_label)
        return x.to(_float(x.dtype)), y
    # What stays in the processor's cache is several times faster than the whole batch: one image, or a few small ones.
    x = images.values.new_empty((len(images), images.channels, *size), dtype=_float(images.values.dtype))
    y = None if labels is None else labels.values.new_empty((len(images), *size), dtype=torch.int64)
    together = max(1, _CACHED_PIXELS // math.prod(size))
    choose = _alone if together == 1 else Ragged.select
    for start in range(0, len(images), together):
        rows = slice(start, start + together)
        part = choose(images, rows), labels and choose(labels, rows)
        image, label = _warp(*part, theta[rows], size, interpolation, outside, outside_label)
        x[rows] = image
        if y is not None and label is not None:
            y[rows] = label
    return x, y


def _float(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point else torch.float32


def _check(images: Ragged, labels: Ragged | None, theta: Tensor, size: Sequence[int]) -> None:
    dims = images.shapes.shape[1]
    if tuple(theta.shape) != (len(images), dims, dims + 1) or len(size) != dims:
        raise ShapeError(
            f"Expected maps of shape {(len(images), dims, dims + 1)} and a size of {dims} numbers for {len(images)} "
            f"images in {dims}D, but got {tuple(theta.shape)} and {tuple(size)}. Give one map per image."
        )
    if labels is not None and (labels.channels != 1 or labels.shapes.shape != images.shapes.shape):
        raise ShapeError(
            f"Expected one label map per image, but got {len(labels)} with {labels.channels} channels in "
            f"{labels.shapes.shape[1]}D for {len(images)} images in {dims}D. Give class indices of shape (B, *S)."
        )


def _alone(images: Ragged, row: slice) -> Ragged:
    """Return one image with a buffer that holds it alone."""
    shape = images.shapes[row]
    values = images.values.narrow(0, int(images.offsets[row]), images.channels * int(shape.prod()))
    return replace(images, values=values, offsets=torch.zeros(1, dtype=torch.int32), shapes=shape)


def _warp(
    images: Ragged,
    labels: Ragged | None,
    theta: Tensor,
    size: Sequence[int],
    interpolation: Interpolation,
    outside: float | Sequence[float] = 0,
    outside_label: int = 0,
) -> tuple[Tensor, Tensor | None]:
    # One image on the CPU may look at its own map and size: plain numbers are faster there than tensors of one element.
    alone = len(images) == 1 and theta.device.type == "cpu"
    sides = images.shapes[0].tolist() if alone else [column(side, len(size)) for side in images.shapes.int().unbind(1)]
    positions, beyond = _positions(images.shapes, theta, size, alone)
    x = _read(images, sides, positions, interpolation)
    if isinstance(outside, Sequence):
        x = torch.where(beyond, column(x.new_tensor(outside), len(size)).movedim(0, 1), x)
    else:
        x.masked_fill_(beyond, outside)
    if labels is None:
        return x, None
    return x, _read(labels, sides, positions, "nearest").long().masked_fill_(beyond, outside_label).squeeze(1)


def _positions(shapes: Tensor, theta: Tensor, size: Sequence[int], alone: bool) -> tuple[list[Tensor], Tensor]:
    """Return where every output pixel lies in the input, in pixels along each axis, and whether that is outside.

    It is computed from the centre in pixels: there a quarter turn or a flip onto the same size has no rounding error.
    """
    dims = len(size)
    shapes = shapes.to(theta.dtype)
    centred = [
        (torch.arange(side, device=theta.device, dtype=theta.dtype) - (side - 1) / 2).view(-1, *[1] * (dims - axis - 1))
        for axis, side in enumerate(size)
    ]
    linear, shift = theta[:, :, :-1].flip(1, 2), theta[:, :, -1].flip(1)  # from (x, y, z) to the axes' order
    known = linear[0].tolist() if alone else None  # a resize or a quarter turn needs one row and one column of places
    positions, beyond = [], []
    for axis in range(dims):
        half = shapes[:, axis] / 2
        position = column(shift[:, axis] * half, dims)
        for other in reversed(range(dims)):  # rows before planes: the large sum comes last
            if known is None or known[axis][other]:
                factor = linear[:, axis, other] * (shapes[:, axis] / size[other])
                position = position + column(factor, dims) * centred[other]
        beyond.append(position.abs() > (float(half) if alone else column(half, dims)))
        positions.append(position.add_(column(half - 0.5, dims)))
    return positions, functools.reduce(torch.logical_or, beyond)


def column(values: Tensor, dims: int) -> Tensor:
    """Return (B,) values as (B, 1, 1, …) for images with channels in `dims` dimensions."""
    return values.view(-1, *[1] * (dims + 1))


def _read(images: Ragged, sides: list[Any], positions: list[Tensor], interpolation: Interpolation) -> Tensor:
    """Return (B, C, *S): the weighted sum over each output pixel's neighbours."""
    dims = len(positions)
    stride: Any = 1
    taps: list[Taps] = []
    for side, position in zip(reversed(sides), reversed(positions), strict=True):
        taps.insert(0, _taps(position, side - 1, stride, interpolation))
        stride = stride * side
    channel = torch.arange(images.channels, device=images.offsets.device, dtype=torch.int32).view(-1, *[1] * dims)
    return _sum(images.values, column(images.offsets, dims) + stride * channel, taps)


def _taps(position: Tensor, last: Any, stride: Any, interpolation: Interpolation) -> Taps:
    """Return the neighbours along one axis; those beyond the edge are the border pixel."""
    if interpolation == "nearest":
        return [(_limited(position + 0.5, last).to(torch.int32) * stride, None)]
    position = _limited(position, last)
    below = position.floor()
    if interpolation == "bilinear":
        below = _limited(below, last - 1)  # at the last pixel, the upper neighbour has all the weight
        t = position - below
        index = below.to(torch.int32) * stride
        return [(index, 1 - t), (index + stride * (last > 0), t)]
    # Keys' cubic, a = -1/2: exact for polynomials of degree two.
    t = position - below
    u = 1 - t
    weights = [-0.5 * t * u * u, 1 + t * t * (1.5 * t - 2.5), 1 + u * u * (1.5 * u - 2.5), -0.5 * u * t * t]
    index = below.to(torch.int32) - 1
    return [(_limited(index + k, last) * stride, weight) for k, weight in enumerate(weights)]


def _limited(values: Tensor, last: Any) -> Tensor:
    """Return `values` within 0 and `last`, a number or a tensor; 0 if that is negative."""
    if isinstance(last, Tensor):
        return values.minimum(last.to(values.dtype)).clamp_(min=0)
    return values.clamp(0, max(last, 0))


def _sum(values: Tensor, index: Tensor, taps: list[Taps]) -> Tensor:
    """Add up the neighbours along the first axis of `taps`, each of them summed along the axes after it."""
    if not taps:
        return values.index_select(0, index.flatten()).view(index.shape)
    total: Tensor | None = None
    for position, weight in taps[0]:
        part = _sum(values, index + position, taps[1:])
        part = part if weight is None else part * weight
        total = part if total is None else total + part
    assert total is not None
    return total


# -- the released code's own transform of a slice, with SciPy's numbers: for comparisons with the paper, on the CPU ----

# A view is `np.rot90` and a flip, or `scipy.ndimage.rotate(order=0, reshape=False)`; then `scipy.ndimage.zoom` to the
# network's size, order 3 for the image and order 0 for the label. Both keep SciPy's rounding (ties, and the last row
# and column, which it sets to 0 from 512 to 224), because SciPy itself says where each pixel comes from: it moves an
# array of pixel numbers once per size and angle, and every slice after that is an indexing. The cubic zoom is linear
# and separable, so it is two matrix products, with the zoom of the identity as the matrix.


def released_views(
    images: Ragged, labels: Ragged, draws: "ViewDraws", size: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
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


@functools.lru_cache(maxsize=128)
def _rotation(shape: tuple[int, int], angle: int) -> npt.NDArray[np.int32]:
    from scipy.ndimage import rotate as scipy_rotate

    numbers = np.arange(1, shape[0] * shape[1] + 1, dtype=np.int32).reshape(shape)
    return np.asarray(scipy_rotate(numbers, angle, order=0, reshape=False))


@functools.lru_cache(maxsize=256)
def _nearest(old: int, new: int) -> npt.NDArray[np.int64]:
    """Return the row that each new row shows, or -1 where SciPy fills."""
    from scipy.ndimage import zoom

    return np.asarray(zoom(np.arange(1, old + 1), new / old, order=0) - 1)


@functools.lru_cache(maxsize=256)
def _cubic(old: int, new: int) -> npt.NDArray[np.float32]:
    """Return the matrix (new, old) of SciPy's cubic zoom; in float32, which is twice as fast and exact to 1e-6."""
    from scipy.ndimage import zoom

    # Column by column: a second axis in the same call would pass through SciPy's spline filter too.
    moved = np.stack([zoom(unit, new / old, order=3) for unit in np.eye(old)], axis=1)
    return np.asarray(moved.astype(np.float32))
