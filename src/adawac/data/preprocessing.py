"""From a scan as it was read to the array that a network sees: grid, intensities, slices; and back.

The same options prepare the training data and every scan that is predicted later: a store records them, a run copies
them.
"""

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from adawac.data.cases import Array, Case, Unit
from adawac.errors import ConfigError, DataError, near

__all__ = ["CT", "MR", "READY", "Normalisation", "Preprocessing", "stretch", "unnamed_ct"]

Normalisation = Literal["min-max", "z-score", "none"]
Affine = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How a scan becomes samples.

    Attributes:
        axis: The voxel axis (0, 1 or 2) along which a volume is cut into slices.
        orientation: Turn and flip the voxel axes to this orientation first, such as "RAS"; None keeps the file's own.
        spacing: Resample to this voxel size in mm, one per axis (0 keeps an axis as it is); None keeps the native grid.
        window: Clip intensities to this range (HU for CT).
        clip_quantile: Clip each volume at the intensity below or at which this share of its voxels lies.
        normalisation: `min-max` to [0, 1], `z-score`, or `none`; each volume and channel by itself, after clipping.
        size: Keep copies resized to this height and width beside the native slices.
        unit: What one sample is: `slice` or `volume`.
    """

    axis: int = 2
    orientation: str | None = None
    spacing: tuple[float, ...] | None = None
    window: tuple[float, float] | None = None
    clip_quantile: float | None = None
    normalisation: Normalisation = "min-max"
    size: tuple[int, int] | None = None
    unit: Unit = "slice"

    def __post_init__(self) -> None:
        for name in ("spacing", "window", "size"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else tuple(value))
        checks = {
            "axis": (self.axis in (0, 1, 2), "0, 1 or 2"),
            "orientation": (_is_orientation(self.orientation), 'three letters such as "RAS" or "LPS"'),
            "spacing": (
                self.spacing is None or (len(self.spacing) == 3 and all(0 <= one < np.inf for one in self.spacing)),
                "three sizes in mm",
            ),
            "window": (
                self.window is None or (len(self.window) == 2 and self.window[0] < self.window[1]),
                "low < high",
            ),
            "clip_quantile": (self.clip_quantile is None or 0 < self.clip_quantile <= 1, "a share in (0, 1]"),
            "normalisation": (self.normalisation in get_args(Normalisation), ", ".join(get_args(Normalisation))),
            "size": (self.size is None or (len(self.size) == 2 and min(self.size) > 0), "height and width"),
            "unit": (self.unit in ("slice", "volume"), "slice or volume"),
        }
        for name, (fine, wanted) in checks.items():
            if not fine:
                raise ConfigError(f"Expected {name} to be {wanted}, but got {getattr(self, name)!r}. Correct it.")
        if self.size and self.unit != "slice":
            raise ConfigError(
                "Expected no size with unit volume, but got one: copies are resized slice by slice. Leave it out."
            )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Preprocessing":
        """Build from what `to_dict` gave; an unknown key is an error."""
        known = [one.name for one in fields(cls)]
        for name in data:
            if name not in known:
                raise ConfigError(
                    f"Expected a preprocessing option, but got {name!r}. Near names: {near(name, known)}."
                )
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {name: list(one) if isinstance(one, tuple) else one for name, one in asdict(self).items()}

    def override(self, **given: Any) -> "Preprocessing":
        """Return a copy with those of the options that are not None; a given window or quantile replaces the other."""
        given = {name: value for name, value in given.items() if value is not None}
        clips = {"window", "clip_quantile"}
        if clips & set(given):
            given = {**dict.fromkeys(clips), **given}
        return replace(self, **given)

    @property
    def axis_name(self) -> str:
        """The `axis` part of a sample id: differs wherever the same slice number would mean another slice."""
        if self.unit == "volume":
            return "volume"
        spacing = self.spacing[self.axis] if self.spacing else 0.0
        return f"{self.orientation or ''}{self.axis}" + (f"@{spacing:g}mm" if spacing else "")

    # -- a case, there and back ---------------------------------------------------------------------------------------

    def apply(self, case: Case) -> Case:
        """Return the case on the wanted grid with the wanted intensities."""
        return self._regrid(replace(case, image=self.scale(case.image)))

    def scale(self, image: Array) -> npt.NDArray[np.float32]:
        """Clip and normalise (C, *spatial), each channel by itself."""
        return np.stack([self._scale_channel(channel) for channel in image.astype(np.float32)])

    def _scale_channel(self, image: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        if self.window:
            image = np.clip(image, *self.window)
        if self.clip_quantile:
            # The smallest intensity at which the cumulative histogram reaches the share.
            image = np.minimum(image, np.quantile(image, self.clip_quantile, method="inverted_cdf"))
        if self.normalisation == "none":
            return image
        by_range = self.normalisation == "min-max"
        shift, scale = (
            (image.min(), np.ptp(image)) if by_range else (image.mean(dtype=np.float64), image.std(dtype=np.float64))
        )
        return ((image - np.float32(shift)) / np.float32(scale or 1.0)).astype(np.float32)

    def _regrid(self, case: Case) -> Case:
        if self.orientation:
            case = self._orient(case)
        return _resample_case(case, self._target(case.spacing)) if self.spacing else case

    def _orient(self, case: Case) -> Case:
        from nibabel.orientations import apply_orientation, inv_ornt_aff

        if case.affine is None:
            raise DataError(
                f"Expected a scan with an affine to turn it to {self.orientation}, but {case.name_file()} has lost its "
                "geometry. Leave `orientation` out."
            )
        turn = self._turn(case.affine)
        affine = case.affine @ inv_ornt_aff(turn, case.shape)
        order = np.argsort(turn[:, 0])
        return replace(
            case,
            image=np.stack([apply_orientation(channel, turn) for channel in case.image]),
            label=None if case.label is None else apply_orientation(case.label, turn),
            affine=affine,
            spacing=tuple(case.spacing[axis] for axis in order),
        )

    def _turn(self, native_affine: Affine) -> Array:
        """Return nibabel's orientation transform from the file's voxel axes to the wanted ones."""
        from nibabel.orientations import axcodes2ornt, io_orientation, ornt_transform

        turn: Array = ornt_transform(io_orientation(native_affine), axcodes2ornt(tuple(self.orientation or "RAS")))
        return turn

    def _target(self, spacing: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(wanted or own for wanted, own in zip(self.spacing or spacing, spacing, strict=True))

    def undo(
        self,
        label: Array,
        native_shape: tuple[int, ...],
        native_spacing: tuple[float, ...],
        native_affine: Affine | None,
    ) -> Array:
        """Bring class indices from the prepared grid back to the file's own: exactly, unless `spacing` resampled it."""
        from nibabel.orientations import apply_orientation, axcodes2ornt, io_orientation, ornt_transform

        turn = self._turn(native_affine) if self.orientation and native_affine is not None else None
        if self.spacing:
            order = range(3) if turn is None else np.argsort(turn[:, 0])
            shape = tuple(native_shape[axis] for axis in order)
            spacing = tuple(native_spacing[axis] for axis in order)
            label = _resample(label, self._target(spacing), spacing, shape, order=0)
        if turn is not None:
            wanted = axcodes2ornt(tuple(self.orientation or ""))
            label = apply_orientation(label, ornt_transform(wanted, io_orientation(native_affine)))
        if label.shape != tuple(native_shape):
            raise DataError(
                f"Expected a label map that fills {native_shape}, but got {label.shape}. Pass the whole volume."
            )
        return np.ascontiguousarray(label)

    # -- samples, there and back --------------------------------------------------------------------------------------

    def cut(self, volume: Array, channels: bool = False) -> Array:
        """Return a volume's samples along the first axis: (S, [C,] H, W), or (1, [C,] *spatial) for whole volumes."""
        if self.unit == "volume":
            return volume[None]
        return np.ascontiguousarray(np.moveaxis(volume, self.axis + channels, 0))

    def join(self, samples: Array, channels: bool = False) -> Array:
        """Undo `cut`, without a copy."""
        return samples[0] if self.unit == "volume" else np.moveaxis(samples, 0, self.axis + channels)


def _is_orientation(codes: str | None) -> bool:
    pairs = ({"L", "R"}, {"P", "A"}, {"I", "S"})
    return codes is None or (len(codes) == 3 and all(len(pair & set(codes)) == 1 for pair in pairs))


def _resample_case(case: Case, spacing: tuple[float, ...]) -> Case:
    if case.affine is None:
        raise DataError(f"Expected a scan with a voxel size, but {case.name_file()} has lost it. Leave `spacing` out.")
    shape = tuple(max(1, round(n * own / new)) for n, own, new in zip(case.shape, case.spacing, spacing, strict=True))
    scale, offset = _scale_and_offset(case.spacing, spacing, case.shape, shape)
    step = np.eye(4)
    step[:3, :3], step[:3, 3] = np.diag(scale), offset
    return replace(
        case,
        image=np.stack([_resample(channel, case.spacing, spacing, shape, order=3) for channel in case.image]),
        label=None if case.label is None else _resample(case.label, case.spacing, spacing, shape, order=0),
        spacing=spacing,
        affine=case.affine @ step,
    )


def _scale_and_offset(
    old: tuple[float, ...], new: tuple[float, ...], old_shape: tuple[int, ...], new_shape: tuple[int, ...]
) -> tuple[Array, Array]:
    """Return what maps a new voxel index to an old one; both volumes have the same centre."""
    scale = np.array(new) / np.array(old)
    return scale, ((np.array(old_shape) - 1) - scale * (np.array(new_shape) - 1)) / 2


def _resample(
    volume: Array, old: tuple[float, ...], new: tuple[float, ...], shape: tuple[int, ...], order: int
) -> Array:
    scale, offset = _scale_and_offset(old, new, volume.shape, shape)
    return stretch(volume, scale, offset, shape, order)


def stretch(
    volume: Array, scale: Array, offset: Array, shape: tuple[int, ...], order: int, dtype: npt.DTypeLike | None = None
) -> Array:
    """Return a volume on another grid, whose voxel k lies at scale * k + offset of the volume's own.

    Args:
        volume: The values, without channels.
        scale: One number for each axis.
        offset: One number for each axis.
        shape: The other grid's.
        order: The spline's: 0 for labels.
        dtype: What the result is of; None for the volume's own.
    """
    from scipy.ndimage import affine_transform

    with warnings.catch_warnings():  # SciPy before 1.16 recalls a change of 2016 wherever axes are scaled one by one
        warnings.filterwarnings("ignore", "The behavior of affine_transform with a 1-D array")
        result: Array = affine_transform(
            volume, scale, offset, output_shape=shape, order=order, mode="nearest", output=dtype
        )
    return result


#: The paper's defaults for CT (Synapse): abdominal window in HU, min-max per volume.
CT = Preprocessing(window=(-125.0, 275.0), normalisation="min-max")
#: The paper's defaults for MR (ACDC): clipped where the histogram's CDF reaches 0.99, min-max per volume.
MR = Preprocessing(clip_quantile=0.99, normalisation="min-max")
#: For files that were normalised before (TransUNet's layouts): slices first, nothing changed.
READY = Preprocessing(axis=0, normalisation="none")

_AIR = -500.0  # HU; air has about -1000, and nothing but CT reaches that low


def unnamed_ct(preprocessing: Preprocessing, lowest: float) -> str:
    """Return a hint where intensities look like a CT's but are not clipped as one; empty where they do not."""
    if preprocessing.clip_quantile is None or lowest > _AIR:
        return ""
    return (
        f"Intensities begin at {lowest:g}, as those of CT in Hounsfield units do, but nothing says that the scans are "
        "CT, so they are clipped at a quantile. If they are CT, prepare them with --window -125 275, the paper's, or "
        "another range."
    )
