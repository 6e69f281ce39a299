"""An open scan: its grid, and its intensities in blocks of slices, so that no long CT lies in memory as a whole."""

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.filesize import decimal

from adawac.data.preprocessing import Affine, Floats, PreparedGrid, Preprocessing, find_orientation, nearest_orientation
from adawac.data.sources.dicom_series import LPS_TO_RAS, load_pydicom, read_header, read_series
from adawac.data.sources.scan_files import check_affine, check_rest, check_same_grid, open_nifti
from adawac.errors import AdawacError, DataError, reading
from adawac.inference.scan_search import Scan

#: As many voxels are held at a time: 32 slices of 512 × 512.
BLOCK_VOXELS = 1 << 23


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A scan that has been opened.

    Attributes:
        shape: Voxels along each axis of the file.
        affine: Voxel index → world in mm (RAS+, as in NIfTI).
        channels: How many there are.
        header: The NIfTI header that its geometry is copied from; None for DICOM.
        blocks: Reads it: all slices of channel 0 along the third axis, (b, X, Y) at a time, then those of channel 1, ….
        files: Its files; a DICOM series' in the order of its slices.
        modality: `CT`, `MR` or another one; None where the format does not say it.
    """

    shape: tuple[int, int, int]
    affine: Affine
    channels: int
    header: Any
    blocks: Callable[[], Iterator[Floats]]
    files: tuple[Path, ...]
    modality: str | None = None

    @property
    def spacing(self) -> tuple[float, ...]:
        """Voxel size along each axis, in mm."""
        return tuple(float(size) for size in np.linalg.norm(self.affine[:3, :3], axis=0))

    @property
    def axes(self) -> str:
        """Where its axes point at a guess, such as "RAS"."""
        return nearest_orientation(self.affine)

    @property
    def orientation(self) -> str | None:
        """The same; None where the axes point in between, or where the header does not say it."""
        unsaid = self.header is not None and not (self.header["qform_code"] or self.header["sform_code"])
        return None if unsaid else find_orientation(self.affine)


def open_scan(scan: Scan, channels: Sequence[str]) -> Volume:
    """Open a scan for a network with these channels; what is wrong with it is a `DataError`."""
    if scan.problem:
        raise DataError(scan.problem)
    volume = _open_nifti(scan, channels) if scan.kind == "nifti" else _open_series(scan)
    if volume.channels != len(channels):
        raise DataError(
            f"Expected {len(channels)} channels ({', '.join(channels)}), but got {volume.channels}. Give a 4D file "
            "with the channels last, or files CASE_0000.nii.gz, CASE_0001.nii.gz, … in the order of the channels, or a "
            'pattern for each of them in `images`, such as "*/t1.nii.gz" and "*/t2.nii.gz".'
        )
    if 0 in volume.shape:
        raise DataError(f"Expected a scan with voxels, but got shape {volume.shape}. Export it again.")
    return volume


def _ranges(length: int, plane: int) -> Iterator[tuple[int, int]]:
    step = max(1, BLOCK_VOXELS // max(1, plane))
    for start in range(0, length, step):
        yield start, min(start + step, length)


# -- NIfTI ------------------------------------------------------------------------------------------------------------


def _open_nifti(scan: Scan, channels: Sequence[str]) -> Volume:
    images = [_load_nifti(path) for path in scan.files]
    first = images[0]
    four = len(images) == 1 and len(first.shape) == 4 and first.shape[3] == len(channels)
    for image, path in zip(images, scan.files, strict=True):
        if len(image.shape) != 3 and not four:
            wanted = f" or a 4D one with the {len(channels)} channels last" if len(channels) > 1 else ""
            advice = (
                "Split a time series into its volumes."
                if len(image.shape) > 3
                else f"Save a single slice as a volume of {(*image.shape, 1)}."
            )
            raise DataError(f"Expected a 3D scan{wanted}, but got shape {tuple(image.shape)}. {advice}")
        check_same_grid(scan.files[0], first.shape, first.affine, path, image.shape, image.affine)
    shape: Any = tuple(int(side) for side in first.shape[:3])
    sources = [(first, channel) for channel in range(len(channels))] if four else [(image, None) for image in images]

    def blocks() -> Iterator[Floats]:
        for image, channel in sources:
            for start, stop in _ranges(shape[2], shape[0] * shape[1]):
                yield _read_nifti(image, channel, start, stop)
        with reading(_unreadable):
            for image in images:
                check_rest(image)

    return Volume(
        shape=shape,
        affine=np.asarray(first.affine, dtype=np.float64),
        channels=len(sources),
        header=first.header,
        blocks=blocks,
        files=scan.files,
    )


def _load_nifti(path: Path) -> Any:
    import nibabel as nib

    if path.is_file() and not os.access(path, os.R_OK):
        raise DataError("Expected a NIfTI file, but it may not be read. Change its permissions.")
    with reading(_unreadable):
        image = open_nifti(path)
        affine = np.asarray(image.affine, dtype=np.float64)
        kind = image.get_data_dtype()
    if not isinstance(image, nib.Nifti1Image | nib.Nifti2Image):
        raise DataError(f"Expected a NIfTI file, but got {type(image).__name__}. Convert it to .nii.gz.")
    if image.header.get_intent()[0] == "label":
        raise DataError("Expected a scan, but its header says that it is a label map. Leave it out.")
    if kind.kind not in "iuf":
        raise DataError(f"Expected numbers, but got voxels of type {kind}. Export it as a grey-value image.")
    check_affine(affine, "")
    return image


def _read_nifti(image: Any, channel: int | None, start: int, stop: int) -> Floats:
    part = (slice(None), slice(None), slice(start, stop), *(() if channel is None else (channel,)))
    with reading(_unreadable):
        block = np.asarray(image.dataobj[part])
    return np.ascontiguousarray(block.transpose(2, 0, 1), dtype=np.float32)


def _unreadable(reason: str) -> DataError:
    return DataError(
        f"Expected a NIfTI file, but it cannot be read ({reason}). It may be truncated: copy or download it again."
    )


# -- DICOM ------------------------------------------------------------------------------------------------------------


def _open_series(scan: Scan) -> Volume:
    header = read_header(scan.files[0], ["SeriesInstanceUID", "NumberOfFrames", "Modality"], scan.files[0])
    blocks: Callable[[], Iterator[Floats]]
    shape: Any
    files: tuple[Path, ...] = scan.files
    in_one_file = len(files) == 1 and int(header.get("NumberOfFrames", 1)) > 1
    if in_one_file:  # an enhanced CT or MR object, which is decoded as a whole
        image, affine = read_series(files)
        shape = image.shape
        blocks = partial(iter, [np.ascontiguousarray(image.transpose(2, 0, 1))])
    else:
        files, positions = _sorted_files(files)
        first, affine = read_series(files[:2])
        if len(files) > 1:
            affine[:3, 2] = LPS_TO_RAS[:3, :3] @ (positions[-1] - positions[0]) / (len(files) - 1)
        shape = (*first.shape[:2], len(files))
        blocks = partial(_series_blocks, files, affine, shape)
    modality = header.get("Modality") or None
    return Volume(shape=shape, affine=affine, channels=1, header=None, blocks=blocks, files=files, modality=modality)


def _sorted_files(paths: Sequence[Path]) -> tuple[tuple[Path, ...], Affine]:
    """Return the slices' files along the normal of the slices, and where each slice is."""
    tags = ["ImageOrientationPatient", "ImagePositionPatient"]
    where = paths[0] if len(paths) == 1 else paths[0].parent
    with reading(
        lambda reason: DataError(
            f"Expected slices with a position in space, but {where} has none ({reason}). Export it again."
        )
    ):
        headers = [load_pydicom().dcmread(path, stop_before_pixels=True, specific_tags=tags) for path in paths]
        cosines = np.array(headers[0].ImageOrientationPatient, dtype=np.float64).reshape(2, 3)
        positions = np.array([header.ImagePositionPatient for header in headers], dtype=np.float64)
    order = np.argsort(positions @ np.cross(*cosines), kind="stable")
    return tuple(paths[k] for k in order), positions[order]


def _series_blocks(files: Sequence[Path], affine: Affine, shape: tuple[int, int, int]) -> Iterator[Floats]:
    """Read a series in blocks. Each begins with the last slice of the one before: no gap escapes `read_series`."""
    for start, stop in _ranges(shape[2], shape[0] * shape[1]):
        again = 1 if start else 0
        image, block_affine = read_series(files[start - again : stop])
        step = float(np.linalg.norm(affine[:3, 2]))
        if stop - start + again > 1 and not np.allclose(block_affine[:3, :3], affine[:3, :3], atol=0.1 * step):
            raise DataError(
                f"Expected the slices from {files[start]} to {files[stop - 1]} to go on as those before, {step:.3g} mm "
                f"apart, but they are {np.linalg.norm(block_affine[:3, 2]):.3g} mm apart or turned: a slice is "
                "missing, or there are two scans. Export the series again."
            )
        if image.shape[:2] != shape[:2]:
            raise DataError(f"Expected slices of {shape[:2]}, but got {image.shape[:2]} in {files[start]}. Split them.")
        yield np.ascontiguousarray(image[:, :, again:].transpose(2, 0, 1))


# -- a scan on the disk -----------------------------------------------------------------------------------------------


class Spool:
    """A scan's intensities in a nameless file on the disk, from which any part is read at once.

    Reading a compressed file takes place from front to back and once only, while preparing a scan takes several passes
    and another order. Checks what a network could not use, too.

    Attributes:
        lowest, highest: The range of its intensities.
    """

    def __init__(self, volume: Volume, folder: Path, label_values: Sequence[int] = ()):
        self.volume = volume
        columns, rows, slices = volume.shape
        self._shape = (volume.channels, slices, columns, rows)
        self.lowest, self.highest = np.inf, -np.inf
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  closed by __exit__
        try:
            self._fill(np.array(sorted(label_values), dtype=np.float32))
        except BaseException:
            self._file.close()
            raise

    def _fill(self, label_values: Floats) -> None:
        bad, only_labels = 0, len(label_values) > 0
        for block in self.volume.blocks():
            bad += int(np.count_nonzero(~np.isfinite(block)))
            self.lowest, self.highest = min(self.lowest, float(block.min())), max(self.highest, float(block.max()))
            only_labels = only_labels and bool(np.isin(block, label_values).all())
            try:
                self._file.write(block.data)
            except OSError as error:
                if isinstance(error, AdawacError):
                    raise
                need = decimal(4 * math.prod(self._shape))
                raise DataError(
                    f"Expected {need} of disk for the scan while it is segmented, but got: {error.strerror}. "
                    "Make room where the label maps go."
                ) from error
        self._file.flush()
        if bad:
            raise DataError(
                f"Expected finite intensities, but got {bad} NaN or infinite voxels. Export the image again, or "
                "replace them (for CT by -1024, otherwise by the background's intensity)."
            )
        if only_labels:
            raise DataError(
                "Expected a scan, but each of its voxels is one of the data set's label values: it looks like a label "
                "map, or it is empty. Leave it out."
            )

    def read(self, axis: int, start: int, stop: int) -> Floats:
        """Return the slices from `start` to `stop` along one of the file's axes, as (C, X, Y, Z)."""
        # A map of its own for each part: what was read does not count as the process's memory afterwards.
        mapped = np.memmap(self._file, np.float32, "r", shape=self._shape)
        volume = mapped.transpose(0, 2, 3, 1)
        part: list[slice] = [slice(None)] * 4
        part[axis + 1] = slice(start, stop)
        return np.array(volume[tuple(part)])

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


@dataclass(frozen=True)
class _Channel:
    """The voxels of one channel in blocks; each iteration is a pass over the disk."""

    spool: Spool
    number: int

    def __iter__(self) -> Iterator[Floats]:
        columns, rows, slices = self.spool.volume.shape
        for start, stop in _ranges(slices, columns * rows):
            yield self.spool.read(2, start, stop)[self.number]


class PreparedScan:
    """The slices of a scan as a network takes them, block by block: what `Preprocessing.apply` and `cut` give.

    Intensities need numbers of the whole volume, which come from passes over the spooled scan.

    Attributes:
        shape: Voxels along each axis of the prepared volume.
        slices: How many slices it is cut into.
        plane: Height and width of a slice.
        voxel_volume: Of a prepared voxel, in mm³.
    """

    def __init__(self, spool: Spool, preprocessing: Preprocessing):
        if preprocessing.unit != "slice":
            raise DataError(
                f"Expected a network for slices, but got one for a {preprocessing.unit}. Train one on slices."
            )
        volume = spool.volume
        self._spool, self._preprocessing = spool, preprocessing
        self._grid = PreparedGrid(preprocessing, volume.shape, volume.spacing, volume.affine)
        self._scalings = [preprocessing.fit_scaling(_Channel(spool, number)) for number in range(volume.channels)]
        self.shape = self._grid.shape
        self.slices = self.shape[preprocessing.axis]
        self.voxel_volume = math.prod(self._grid.spacing)
        self.plane = tuple(side for axis, side in enumerate(self.shape) if axis != preprocessing.axis)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield where each block of slices that fits into memory starts and stops."""
        return _ranges(self.slices, len(self._scalings) * self.plane[0] * self.plane[1])

    def read(self, start: int, stop: int) -> Floats:
        """Return prepared slices as (P, C, H, W)."""
        first, last = self._grid.source(start, stop)
        image = self._spool.read(self._grid.native_axis, *self._grid.in_file(first, last))
        channels = [
            self._grid.prepare(scaling(channel), start=start, stop=stop, first=first)
            for channel, scaling in zip(image, self._scalings, strict=True)
        ]
        return self._preprocessing.cut(np.stack(channels), channels=True)
