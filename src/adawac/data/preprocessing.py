"""From a scan as it was read to the array that a network sees: grid, intensities, slices; and back.

The same options prepare the training data and every scan that is predicted later: a store records them, a run copies
them.
"""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from adawac.data.cases import Array, Case, Unit, name_file
from adawac.data.tiles import Tiling
from adawac.errors import ConfigError, DataError, check_known

Normalisation = Literal["min-max", "z-score", "range", "none"]
Affine = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]

# A cubic spline's prefilter forgets by 0.27 a slice: after 16 slices a billionth is left.
_MARGIN = 16
_SMALLEST_TILE = 16
# The cosine of the largest angle between a voxel axis and the anatomical axis that it counts as: 37 degrees.
_CLEAR = 0.8
#: What an orientation is, for messages.
ORIENTATIONS = 'three letters such as "RAS" or "LPS"'


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How a scan becomes samples.

    Attributes:
        axis: The voxel axis (0, 1 or 2) along which a volume is cut into slices.
        orientation: Turn and flip the voxel axes to this orientation first, such as "RAS"; None keeps the file's own.
        spacing: Resample to this voxel size in mm, one per axis (0 keeps an axis as it is); None keeps the native grid.
        window: Clip intensities to this range (HU for CT).
        clip_quantile: Clip each volume at the intensity below or at which this share of its voxels lies.
        normalisation: `min-max` to [0, 1] or `z-score`, each volume and channel on its own, after clipping; `range`,
            the window to [0, 1], the same for all; or `none`. Without a window `range` changes nothing: pictures
            come as shares of the largest value that their type has.
        size: Keep copies resized to this height and width beside the native slices.
        unit: What one sample is: `slice` or `volume`.
        tile: Cut each slice into tiles of this height and width, which are the samples; None keeps slices whole.
        overlap: Pixels that neighbouring tiles share.
    """

    axis: int = 2
    orientation: str | None = None
    spacing: tuple[float, ...] | None = None
    window: tuple[float, float] | None = None
    clip_quantile: float | None = None
    normalisation: Normalisation = "min-max"
    size: tuple[int, int] | None = None
    unit: Unit = "slice"
    tile: int | None = None
    overlap: int = 0

    def __post_init__(self) -> None:
        for name in ("spacing", "window", "size"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else tuple(value))
        spacing, window, size, share = self.spacing, self.window, self.size, self.clip_quantile
        checks = {
            "axis": (self.axis in (0, 1, 2), "0, 1 or 2"),
            "orientation": (self.orientation is None or is_orientation(self.orientation), ORIENTATIONS),
            "spacing": (
                spacing is None or (len(spacing) == 3 and all(0 <= length < np.inf for length in spacing)),
                "three sizes in mm",
            ),
            "window": (window is None or (len(window) == 2 and window[0] < window[1]), "low < high"),
            "clip_quantile": (share is None or 0 < share <= 1, "a share in (0, 1]"),
            "normalisation": (self.normalisation in get_args(Normalisation), ", ".join(get_args(Normalisation))),
            "size": (size is None or (len(size) == 2 and min(size) > 0), "height and width"),
            "unit": (self.unit in ("slice", "volume"), "slice or volume"),
            "tile": (
                self.tile is None or (type(self.tile) is int and self.tile >= _SMALLEST_TILE),
                f"{_SMALLEST_TILE} pixels or more",
            ),
            "overlap": (type(self.overlap) is int and 0 <= self.overlap < (self.tile or 1), "less than `tile`"),
        }
        for name, (fine, wanted) in checks.items():
            if not fine:
                raise ConfigError(f"Expected `{name}` to be {wanted}, but got {getattr(self, name)!r}.")
        if self.size and self.unit != "slice":
            raise ConfigError(
                "Expected no size with unit volume, but got one: copies are resized slice by slice. Leave it out."
            )
        if self.tile and (self.axis, self.unit, self.spacing, self.orientation) != (0, "slice", None, None):
            raise ConfigError(
                "Expected axis 0, unit slice, and neither spacing nor orientation with tiles: they are cut from "
                "pictures as these are. Leave `tile` or these out."
            )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Preprocessing":
        """Build from what `to_dict` gave; an unknown key is an error."""
        known = [field.name for field in fields(cls)]
        for name in data:
            check_known(name, known, "a preprocessing option", ConfigError)
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without those about tiles where there are none, as in older stores."""
        left_out = () if self.tile else ("tile", "overlap")
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if name not in left_out
        }

    def override(self, **options: Any) -> "Preprocessing":
        """Return a copy with those of the options that are not None; a new window or quantile replaces the other."""
        options = {name: value for name, value in options.items() if value is not None}
        clips = {"window", "clip_quantile"}
        if clips & set(options):
            options = {**dict.fromkeys(clips), **options}
        return replace(self, **options)

    @property
    def axis_name(self) -> str:
        """The `axis` part of a sample id: differs wherever the same slice number would mean another slice."""
        if self.unit == "volume":
            return "volume"
        if self.tile:
            return f"tile{self.tile}-{self.overlap}"
        spacing = self.spacing[self.axis] if self.spacing else 0.0
        return f"{self.orientation or ''}{self.axis}" + (f"@{spacing:g}mm" if spacing else "")

    @property
    def keeps_levels(self) -> bool:
        """Whether pictures keep the values of their files, which a store may then hold as integers."""
        return self.normalisation == "range" and self.window is None and self.clip_quantile is None

    # -- a case, there and back ---------------------------------------------------------------------------------------

    def apply(self, case: Case) -> Case:
        """Return the case on the wanted grid with the wanted intensities."""
        if case.affine is None and (self.orientation or self.spacing):
            raise DataError(
                f"Expected a scan with an affine to turn or resample it, but {name_file(case)} has lost its geometry. "
                "Leave `orientation` and `spacing` out."
            )
        grid = PreparedGrid(self, case.shape, case.spacing, case.affine, name_file(case))
        return replace(
            case,
            image=np.stack([grid.prepare(channel) for channel in self.scale(case.image)]),
            label=None if case.label is None else grid.prepare(case.label, spline=0),
            spacing=grid.spacing,
            affine=grid.affine,
        )

    def scale(self, image: Array) -> Floats:
        """Clip and normalise (C, *spatial), each channel by its own numbers."""
        return np.stack([self.fit_scaling([channel])(channel) for channel in image.astype(np.float32)])

    def fit_scaling(self, blocks: Iterable[Floats]) -> "Scaling":
        """Return how one channel is clipped and scaled; `blocks` are its voxels in parts, which are read repeatedly."""
        low, high = self.window or (-np.inf, np.inf)
        if self.clip_quantile:
            # The smallest intensity at which the cumulative histogram reaches the share.
            high = float(np.clip(quantile(blocks, self.clip_quantile), low, high))
        clip = Scaling(low=low, high=high)
        if self.normalisation == "none":
            return clip
        if self.normalisation == "range":
            return replace(clip, shift=low, scale=high - low) if self.window else clip
        if self.normalisation == "min-max":
            ends = clip(np.array([(block.min(), block.max()) for block in blocks], dtype=np.float32))
            return replace(clip, shift=float(ends.min()), scale=float(np.ptp(ends)) or 1.0)
        count = sum(block.size for block in blocks)
        mean = sum(float(clip(block).sum(dtype=np.float64)) for block in blocks) / count
        squares = sum(float(np.square(clip(block) - np.float64(mean)).sum()) for block in blocks)
        return replace(clip, shift=mean, scale=float(np.sqrt(squares / count)) or 1.0)

    def undo(
        self,
        label: Array,
        native_shape: tuple[int, ...],
        native_spacing: tuple[float, ...],
        native_affine: Affine | None,
    ) -> Array:
        """Bring class indices from the prepared grid back to the file's own: exactly, unless `spacing` resampled it.

        Tiles become whole pages.
        """
        if self.tile:
            tiling = self.tiling(native_shape)
            return np.stack([tiling.join(page) for page in np.split(label, native_shape[0])])
        return PreparedGrid(self, native_shape, native_spacing, native_affine).undo(label)

    # -- samples, there and back --------------------------------------------------------------------------------------

    def cut(self, volume: Array, channels: bool = False) -> Array:
        """Return a volume's samples along the first axis: (S, [C,] H, W), or (1, [C,] *spatial) for whole volumes."""
        if self.unit == "volume":
            return volume[None]
        return np.ascontiguousarray(np.moveaxis(volume, self.axis + channels, 0))

    def cut_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of `cut` for a volume of this shape, without channels."""
        sides = list(shape)
        return (1, *sides) if self.unit == "volume" else (sides.pop(self.axis), *sides)

    def tiling(self, native_shape: Sequence[int]) -> Tiling:
        """Return where the tiles of a page lie, given pages, height and width of a picture."""
        _, height, width = native_shape
        return Tiling(height=height, width=width, tile=self.tile or max(height, width), overlap=self.overlap)

    def tiled_shape(self, native_shape: Sequence[int]) -> tuple[int, int, int]:
        """Return how many tiles all pages of a picture have, and their height and width."""
        tiling = self.tiling(native_shape)
        return native_shape[0] * len(tiling), *tiling.shape

    def join(self, samples: Array, channels: bool = False) -> Array:
        """Undo `cut`, without a copy."""
        return samples[0] if self.unit == "volume" else np.moveaxis(samples, 0, self.axis + channels)


def as_shares(pixels: Array, full_range: int | None) -> Floats:
    """Return pixels as shares of what stands for 1; floating-point numbers are taken as they are."""
    return pixels.astype(np.float32) / np.float32(full_range or 1)


def is_orientation(codes: object) -> bool:
    """Say whether these are three letters that say where the voxel axes point."""
    pairs = ({"L", "R"}, {"P", "A"}, {"I", "S"})
    return isinstance(codes, str) and len(codes) == 3 and all(len(pair & set(codes)) == 1 for pair in pairs)


def nearest_orientation(affine: npt.ArrayLike) -> str:
    """Return where the voxel axes point at a guess, such as "RAS"."""
    from nibabel.orientations import aff2axcodes

    return "".join(aff2axcodes(np.asarray(affine)))


def find_orientation(affine: npt.ArrayLike | None) -> str | None:
    """Return where the voxel axes point, such as "RAS"; None without an affine, or where they point in between."""
    if affine is None:
        return None
    directions = np.asarray(affine, dtype=np.float64)[:3, :3]
    directions = directions / np.linalg.norm(directions, axis=0)
    clear = bool((np.abs(directions).max(axis=0) >= _CLEAR).all())
    return nearest_orientation(affine) if clear else None


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """How the intensities of one channel are clipped and scaled."""

    low: float
    high: float
    shift: float = 0.0
    scale: float = 1.0

    def __call__(self, image: Floats) -> Floats:
        """Return scaled intensities."""
        image = np.clip(image, np.float32(self.low), np.float32(self.high))
        image -= np.float32(self.shift)
        image /= np.float32(self.scale)
        return image


def quantile(blocks: Iterable[Floats], share: float) -> float:
    """Return the smallest value at or below which this share of all values lies.

    That is `np.quantile(…, method="inverted_cdf")`, found digit by digit: a pass over the blocks counts the upper
    halves of the numbers' bits, a second one the lower halves of those that share the upper half in question.
    """
    count = sum(block.size for block in blocks)
    rank = max(0, math.ceil(share * count - 1))
    upper = _counts(_sortable(block) >> 16 for block in blocks)
    top = int(np.searchsorted(np.cumsum(upper), rank, side="right"))
    rank -= int(upper[:top].sum())
    lower = _counts(key[key >> 16 == top] & np.uint32(0xFFFF) for key in map(_sortable, blocks))
    bottom = int(np.searchsorted(np.cumsum(lower), rank, side="right"))
    key = top << 16 | bottom
    bits = key & 0x7FFFFFFF if key >> 31 else ~key & 0xFFFFFFFF
    return float(np.array(bits, dtype=np.uint32).view(np.float32))


def _counts(digits: Iterable[npt.NDArray[np.integer[Any]]]) -> npt.NDArray[np.int64]:
    """Return how often each 16-bit number occurs."""
    total = np.zeros(1 << 16, dtype=np.int64)
    for block in digits:
        total += np.bincount(block, minlength=1 << 16)
    return total


def _sortable(values: Floats) -> npt.NDArray[np.uint32]:
    """Return unsigned integers that have the order of the values."""
    bits = np.ascontiguousarray(values).ravel().view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | 0x80000000)


_MOST_VOXELS = 2e9  # of a resampled scan, which has to lie in memory


class PreparedGrid:
    """Where the prepared voxels of a scan lie in its file: turned, flipped, resampled, as a whole or slice by slice.

    A prepared voxel k lies at `scale * k + offset` of the turned volume; both have the same centre.

    Attributes:
        shape, spacing, affine: Those of the prepared volume.
        native_axis: The file's axis along which slices are cut.
    """

    def __init__(
        self,
        preprocessing: Preprocessing,
        shape: Sequence[int],
        spacing: Sequence[float],
        affine: Affine | None,
        name: object = "the scan",
    ):
        self._axis, self._native_shape, self.affine = preprocessing.axis, tuple(shape), affine
        self._order: tuple[int, ...] = tuple(range(len(shape)))
        self._flipped: tuple[int, ...] = ()
        if preprocessing.orientation and affine is not None:
            from nibabel.orientations import axcodes2ornt, inv_ornt_aff, io_orientation, ornt_transform

            turn = ornt_transform(io_orientation(affine), axcodes2ornt(tuple(preprocessing.orientation)))
            self._order = tuple(int(axis) for axis in np.argsort(turn[:, 0]))
            self._flipped = tuple(int(axis) for axis in np.flatnonzero(turn[:, 1] < 0))
            self.affine = affine @ inv_ornt_aff(turn, self._native_shape)
        self._turned_shape = tuple(self._native_shape[axis] for axis in self._order)
        self.native_axis = self._order[self._axis]
        native = self.spacing = tuple(spacing[axis] for axis in self._order)
        self.shape, self._resampled = self._turned_shape, preprocessing.spacing is not None
        if preprocessing.spacing:
            self.spacing = tuple(new or old for new, old in zip(preprocessing.spacing, native, strict=True))
            steps = zip(self._turned_shape, native, self.spacing, strict=True)
            sides = [max(1.0, side * old / new) for side, old, new in steps]
            if math.prod(sides) > _MOST_VOXELS:
                grid, sizes = (" × ".join(f"{number:.4g}" for number in numbers) for numbers in (sides, spacing))
                raise DataError(
                    f"Expected at most {_MOST_VOXELS:.0e} voxels after resampling, but {name} has voxels of {sizes} mm "
                    f"and would have {grid} of them. If its header is in micrometres, fix it; or give more `spacing`."
                )
            self.shape = tuple(map(round, sides))
        self._scale = np.array(self.spacing) / np.array(native)
        self._back = np.array(native) / np.array(self.spacing)
        self._offset = _offset(self._scale, self._turned_shape, self.shape)
        if preprocessing.spacing and self.affine is not None:
            step = np.eye(4)
            step[:3, :3], step[:3, 3] = np.diag(self._scale), self._offset
            self.affine = self.affine @ step

    def source(self, start: int, stop: int) -> tuple[int, int]:
        """Return which slices of the turned volume the prepared ones from `start` to `stop` are made of."""
        if not self._resampled:
            return start, stop
        scale, offset = self._scale[self._axis], self._offset[self._axis]
        first = max(0, int(np.floor(scale * start + offset)) - _MARGIN)
        last = int(np.ceil(scale * (stop - 1) + offset)) + _MARGIN + 1
        return first, min(self._turned_shape[self._axis], last)

    def in_file(self, first: int, last: int) -> tuple[int, int]:
        """Return where slices of the turned volume lie along `native_axis`."""
        length = self._turned_shape[self._axis]
        return (length - last, length - first) if self.native_axis in self._flipped else (first, last)

    def prepare(self, volume: Array, spline: int = 3, start: int = 0, stop: int | None = None, first: int = 0) -> Array:
        """Turn and resample one channel, or a label map.

        Args:
            volume: The file's voxels; those of its slices from `first` on, where they are part of it.
            spline: Order of the spline: 0 for labels.
            start: The first prepared slice that is wanted.
            stop: The one behind the last; None for all.
            first: The slice of the turned volume that `volume` begins with.
        """
        turned = np.flip(volume, self._flipped).transpose(self._order)
        if not self._resampled:
            return turned
        shape, offset = list(self.shape), self._offset.copy()
        shape[self._axis] = (shape[self._axis] if stop is None else stop) - start
        offset[self._axis] += self._scale[self._axis] * start - first
        return _stretch(turned, self._scale, offset, shape, spline)

    def undo(self, label: Array) -> Array:
        """Bring a prepared label map back to the file's voxels."""
        if label.shape != self.shape:
            raise DataError(
                f"Expected a label map that fills {self.shape}, but got {label.shape}. Pass the whole volume."
            )
        if self._resampled:
            offset = _offset(self._back, self.shape, self._turned_shape)
            label = _stretch(label, self._back, offset, self._turned_shape, spline=0)
        return np.ascontiguousarray(np.flip(label.transpose(np.argsort(self._order)), self._flipped))


def _offset(scale: Array, old: Sequence[int], new: Sequence[int]) -> Array:
    """Return where voxel 0 of a new grid lies in the old one, if both have the same centre."""
    return np.asarray(((np.array(old) - 1) - scale * (np.array(new) - 1)) / 2)


def _stretch(volume: Array, scale: Array, offset: Array, shape: Sequence[int], spline: int) -> Array:
    """Return a volume on another grid, whose voxel k lies at scale * k + offset of the volume's own."""
    from scipy.ndimage import affine_transform

    with warnings.catch_warnings():  # SciPy before 1.16 recalls a change of 2016 wherever axes are scaled one by one
        warnings.filterwarnings("ignore", "The behavior of affine_transform with a 1-D array")
        stretched: Array = affine_transform(
            volume, scale, offset, output_shape=tuple(shape), order=spline, mode="nearest"
        )
    return stretched


#: The paper's defaults for CT (Synapse): abdominal window in HU, min-max per volume.
CT = Preprocessing(window=(-125.0, 275.0), normalisation="min-max")
#: The paper's defaults for MR (ACDC): clipped where the histogram's CDF reaches 0.99, min-max per volume.
MR = Preprocessing(clip_quantile=0.99, normalisation="min-max")
#: For files that were normalised before (TransUNet's layouts): slices first, nothing changed.
READY = Preprocessing(axis=0, normalisation="none")
#: For pictures, whose values are shares of the largest one of their type: page by page, nothing changed.
PICTURES = Preprocessing(axis=0, normalisation="range")

_AIR = -500.0  # HU; air has about -1000, and nothing but CT reaches that low


def unnamed_ct(preprocessing: Preprocessing, lowest: float) -> str:
    """Return a hint where intensities look like a CT's but are not clipped as one; empty where they do not."""
    if preprocessing.clip_quantile is None or lowest > _AIR:
        return ""
    return (
        f"Intensities begin at {lowest:g}, as in CT (Hounsfield units), but the data does not say that the scans are "
        "CT, so they are clipped at a quantile. If they are CT, prepare them with --modality CT, which clips to "
        "[-125, 275], or with another --window."
    )
