"""A scan as the network wants it, block by block: what `Preprocessing.apply` gives, without the volume in memory.

Intensities need numbers of the whole volume (a quantile, the range, mean and deviation): these come from passes over
the spooled scan. Orientation is a matter of which slices are read. Resampling takes a margin of slices on both sides,
beyond which a cubic spline's reach is below float32's precision.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.data.preprocessing import Preprocessing, stretch
from adawac.errors import DataError
from adawac.inference.volumes import BLOCK_VOXELS, Spool

Array = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint32]

# The spline's prefilter forgets by 0.27 a slice: after 16 slices a billionth is left.
_MARGIN = 16


@dataclass(frozen=True)
class Scaling:
    """How the intensities of one channel are clipped and scaled."""

    low: float
    high: float
    shift: float
    scale: float

    def __call__(self, image: Array) -> Array:
        """Return scaled intensities."""
        image = np.clip(image, np.float32(self.low), np.float32(self.high))
        image -= np.float32(self.shift)
        image /= np.float32(self.scale)
        return image


class PreparedScan:
    """The slices of a scan on the network's grid, with the network's intensities.

    Attributes:
        shape: Voxels along each axis of the prepared volume.
        slices: How many slices it is cut into.
    """

    def __init__(self, spool: Spool, preprocessing: Preprocessing):
        if preprocessing.unit != "slice":
            raise DataError(
                f"Expected a network for slices, but got one for a {preprocessing.unit}. Train one on slices."
            )
        self._spool = spool
        self._preprocessing = preprocessing
        self._axis = preprocessing.axis
        self._turn = _turn(preprocessing, spool)
        volume = spool.volume
        order = np.argsort(self._turn[:, 0]).astype(int)  # which of the file's axes each turned axis is
        turned = np.array(volume.shape)[order]
        own = np.array(volume.spacing)[order]
        wanted = np.array([size or old for size, old in zip(preprocessing.spacing or own, own, strict=True)])
        self._native_axis = int(order[self._axis])
        self._flipped = self._turn[self._native_axis, 1] < 0
        self._native_slices = int(turned[self._axis])
        # A prepared voxel k lies at scale * k + offset of the turned volume; both have the same centre.
        self._scale = wanted / own
        sides = np.maximum(1, np.round(turned * own / wanted))
        self.shape = tuple(int(side) for side in sides)
        self._offset = ((turned - 1) - self._scale * (sides - 1)) / 2
        self.slices = self.shape[self._axis]
        self._scalings = [_fit(spool, channel, preprocessing) for channel in range(volume.channels)]

    @property
    def plane(self) -> tuple[int, int]:
        """Height and width of a slice."""
        height, width = (side for axis, side in enumerate(self.shape) if axis != self._axis)
        return height, width

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield where each block of slices that fits into memory starts and stops."""
        step = max(1, BLOCK_VOXELS // (len(self._scalings) * self.plane[0] * self.plane[1]))
        for start in range(0, self.slices, step):
            yield start, min(start + step, self.slices)

    def read(self, start: int, stop: int) -> Array:
        """Return prepared slices as (P, C, H, W)."""
        first, last = start, stop
        if self._preprocessing.spacing:
            scale, offset = self._scale[self._axis], self._offset[self._axis]
            first = max(0, int(np.floor(scale * start + offset)) - _MARGIN)
            last = min(self._native_slices, int(np.ceil(scale * (stop - 1) + offset)) + _MARGIN + 1)
        image = self._turned(first, last)
        if self._preprocessing.spacing:
            image = np.stack([self._resample(channel, start, stop, first) for channel in image])
        return np.ascontiguousarray(np.moveaxis(image, self._axis + 1, 0))

    def _turned(self, first: int, last: int) -> Array:
        """Return scaled intensities of slices of the turned volume, (C, *spatial)."""
        from nibabel.orientations import apply_orientation

        if self._flipped:
            first, last = self._native_slices - last, self._native_slices - first
        image = self._spool.read(self._native_axis, first, last)
        for channel, scaling in zip(image, self._scalings, strict=True):
            channel[:] = scaling(channel)
        return np.stack([apply_orientation(channel, self._turn) for channel in image])

    def _resample(self, image: Array, start: int, stop: int, first: int) -> Array:
        shape, offset = list(self.shape), self._offset.copy()
        shape[self._axis] = stop - start
        offset[self._axis] += self._scale[self._axis] * start - first
        return stretch(image, self._scale, offset, tuple(shape), order=3, dtype=np.float32)


def _turn(preprocessing: Preprocessing, spool: Spool) -> npt.NDArray[np.float64]:
    """Return nibabel's orientation transform from the file's voxel axes to the wanted ones."""
    from nibabel.orientations import axcodes2ornt, io_orientation, ornt_transform

    own = io_orientation(spool.volume.affine)
    wanted = axcodes2ornt(tuple(preprocessing.orientation)) if preprocessing.orientation else own
    return np.asarray(ornt_transform(own, wanted), dtype=np.float64)


# -- intensities ------------------------------------------------------------------------------------------------------


def _fit(spool: Spool, channel: int, preprocessing: Preprocessing) -> Scaling:
    low, high = preprocessing.window or (-np.inf, np.inf)
    if preprocessing.clip_quantile:
        high = float(np.clip(quantile(_Passes(spool, channel), preprocessing.clip_quantile), low, high))
    shift, scale = 0.0, 1.0
    clipped = _Passes(spool, channel, low, high)
    if preprocessing.normalisation == "min-max":
        least = min(float(block.min()) for block in clipped)
        most = max(float(block.max()) for block in clipped)
        shift, scale = least, float(np.float32(most) - np.float32(least))
    elif preprocessing.normalisation == "z-score":
        count = sum(block.size for block in clipped)
        shift = sum(float(block.sum(dtype=np.float64)) for block in clipped) / count
        squares = (float(np.square(block - np.float64(shift)).sum()) for block in clipped)
        scale = float(np.sqrt(sum(squares) / count))
    return Scaling(low, high, shift, scale or 1.0)


class _Passes:
    """One channel, clipped, as often as it is asked for: each iteration is a pass over the disk."""

    def __init__(self, spool: Spool, channel: int, low: float = -np.inf, high: float = np.inf):
        self._spool, self._channel, self._low, self._high = spool, channel, low, high

    def __iter__(self) -> Iterator[Array]:
        columns, rows, slices = self._spool.volume.shape
        step = max(1, BLOCK_VOXELS // (columns * rows))
        for start in range(0, slices, step):
            block = self._spool.read(2, start, min(start + step, slices))[self._channel]
            yield np.clip(block, np.float32(self._low), np.float32(self._high))


def quantile(passes: Iterable[Array], share: float) -> float:
    """Return the smallest value at or below which this share of all values lies.

    That is `np.quantile(…, method="inverted_cdf")`, found digit by digit: a pass counts the upper halves of the
    numbers' bits, a second one the lower halves of those that share the upper half in question.
    """
    count = sum(block.size for block in passes)
    rank = max(0, int(np.ceil(np.float32(share) * np.float32(count) - 1)))  # in the precision that NumPy takes
    upper = _counts(_sortable(block) >> 16 for block in passes)
    top = int(np.searchsorted(np.cumsum(upper), rank, side="right"))
    rank -= int(upper[:top].sum())
    lower = _counts(key[key >> 16 == top] & np.uint32(0xFFFF) for key in map(_sortable, passes))
    bottom = int(np.searchsorted(np.cumsum(lower), rank, side="right"))
    return float(_from_sortable(np.array([top << 16 | bottom], dtype=np.uint32))[0])


def _counts(digits: Iterable[npt.NDArray[np.integer[Any]]]) -> npt.NDArray[np.int64]:
    """Return how often each 16-bit number occurs."""
    total = np.zeros(1 << 16, dtype=np.int64)
    for block in digits:
        total += np.bincount(block, minlength=1 << 16)
    return total


def _sortable(values: Array) -> Bits:
    """Return unsigned integers that have the order of the values."""
    bits = np.ascontiguousarray(values).ravel().view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | 0x80000000)


def _from_sortable(keys: Bits) -> Array:
    return np.where(keys >> 31, keys & 0x7FFFFFFF, ~keys).astype(np.uint32).view(np.float32)
