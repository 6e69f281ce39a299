"""One DICOM series to a volume: sorted along the normal, rescaled, with its affine."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.data.cases import Array
from adawac.data.preprocessing import Affine
from adawac.data.sources.file_search import nifti_files, stem
from adawac.errors import DataError, reading
from adawac.lazy import library

#: DICOM's x runs to the left and y to the back; NIfTI's to the right and to the front.
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
#: What counts as a scan; structure sets, doses, reports and segmentations do not.
MODALITIES = ("CT", "MR", "PT")
_DIRECTORY = "1.2.840.10008.1.3.10"  # the table of contents of a disc, which is usually called DICOMDIR
_ENDINGS = (".dcm", ".dicom", ".ima")
# Gaps between slices may differ by this share: positions are often rounded to 0.1 mm.
_GAP_TOLERANCE = 0.1


def load_pydicom() -> Any:
    """Import pydicom, or say how to install it."""
    return library("pydicom", "adawac[dicom]")


def load_highdicom() -> Any:
    """Import highdicom, or say how to install it."""
    return library("highdicom", "adawac[dicom]")


def is_dicom(path: Path, unreadable: bool = False) -> bool:
    """Say whether a file is called as DICOM images are, or begins as they do; `unreadable` is said of a closed one."""
    if path.name == "DICOMDIR":
        return False
    if path.suffix.lower() in _ENDINGS:
        return True
    try:
        with path.open("rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return unreadable


def read_header(path: Path, tags: Sequence[str], name: object) -> Any:
    """Return some tags of a DICOM file; `name` is what an error calls the file."""
    header = _read(path, name, stop_before_pixels=True, specific_tags=list(tags))
    with reading_dicom(name):
        for _ in header.iterall():  # each value is converted when it is asked for
            pass
    return header


def reading_dicom(name: object) -> AbstractContextManager[None]:
    """Turn what pydicom raises on a damaged file, often only where a value is used, into a `DataError`."""
    return reading(
        lambda reason: DataError(
            f"Expected a DICOM file, but {name} cannot be read ({reason}). Copy it again, or remove it."
        )
    )


def _read(path: Path, name: object, **options: Any) -> Any:
    pydicom = load_pydicom()
    with reading_dicom(name):
        dataset = pydicom.dcmread(path, **options)
        if is_scan(dataset) or object_kind(dataset) == "other":
            dataset.SeriesInstanceUID  # noqa: B018  a file without it cannot be placed
    return dataset


def is_scan(header: Any) -> bool:
    """Say whether a header is that of a scan; localisers are none."""
    return header.get("Modality") in MODALITIES and "LOCALIZER" not in header.get("ImageType", ())


def object_kind(header: Any) -> str:
    """Return what kind of object a file holds, in DICOM's words: CT, RTSTRUCT, DICOMDIR, …, or other."""
    directory = header.file_meta.get("MediaStorageSOPClassUID") == _DIRECTORY
    return "DICOMDIR" if directory else str(header.get("Modality") or "other")


def series_folder(files: Iterable[Path]) -> Path:
    """Return the folder of a series: of several that its files are in, the uppermost."""
    return min((path.parent for path in files), key=lambda folder: len(folder.parts))


def nifti_labels(folders: Collection[Path], top: Path) -> dict[Path, list[Path]]:
    """Return the NIfTI files that are taken for label maps of the series in each folder.

    They lie in the folder, or else beside it, but not above `top`; beside several series they have its name in theirs.
    """
    below = Counter(parent for folder in set(folders) for parent in folder.parents)
    beside = {parent: nifti_files(parent) for folder in folders if folder != top for parent in [folder.parent]}
    labels = {}
    for folder in folders:
        paths = nifti_files(folder)
        if not paths and folder != top:
            named = re.compile(rf"(?<![^\W_]){re.escape(folder.name)}(?![^\W_])")
            alone = below[folder.parent] == 1
            paths = [
                path
                for path in beside[folder.parent]
                if alone or (folder.name in path.name and named.search(stem(path)))
            ]
        labels[folder] = paths
    return labels


def read_series(paths: Sequence[Path]) -> tuple[npt.NDArray[np.float32], Affine]:
    """Read one series as (column, row, slice) in rescaled units, with its affine in NIfTI's RAS convention.

    Slices are sorted by their position along the normal, whatever their names or instance numbers say.
    """
    with reading_dicom(series_folder(paths) if len(paths) > 1 else paths[0]):
        return _stack(paths)


def _stack(paths: Sequence[Path]) -> tuple[npt.NDArray[np.float32], Affine]:
    slices = [_read(path, path) for path in paths]
    if len(slices) == 1 and int(slices[0].get("NumberOfFrames", 1)) > 1:
        return _read_multi_frame(paths[0])
    first = slices[0]
    where = paths[0] if len(paths) == 1 else paths[0].parent
    try:
        cosines = np.array(first.ImageOrientationPatient, dtype=np.float64).reshape(2, 3)
        row_size, column_size = (float(size) for size in first.PixelSpacing)
        positions = np.array([header.ImagePositionPatient for header in slices], dtype=np.float64)
    except AttributeError as error:
        raise DataError(
            f"Expected slices with a position in space, but {where} has none ({error}). Export it again."
        ) from error
    _check_alike(slices, paths)
    order = np.argsort(positions @ np.cross(*cosines), kind="stable")
    step = _slice_step(positions[order], np.cross(*cosines), [paths[k] for k in order], first)
    # Columns run along the first cosine and are `PixelSpacing[1]` apart: DICOM gives the row distance first.
    affine = np.eye(4)
    affine[:3, :3] = np.stack([cosines[0] * column_size, cosines[1] * row_size, step], axis=1)
    affine[:3, 3] = positions[order[0]]
    image = np.stack([_pixels(slices[k], paths[k]).T for k in order], axis=-1)
    return image, LPS_TO_RAS @ affine


def _pixels(dataset: Any, path: Path) -> npt.NDArray[np.float32]:
    from pydicom.pixels.processing import apply_modality_lut

    with reading(
        lambda reason: DataError(
            f"Expected pixel data that can be decoded, but {path} cannot be ({reason}). Copy it again; if it is "
            "compressed, `pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg`."
        )
    ):
        return np.asarray(apply_modality_lut(dataset.pixel_array, dataset), dtype=np.float32)


def _check_alike(slices: Sequence[Any], paths: Sequence[Path]) -> None:
    for name in ("Rows", "Columns", "PixelSpacing", "ImageOrientationPatient"):
        wanted = np.array(slices[0].get(name), dtype=np.float64)
        for header, path in zip(slices, paths, strict=True):
            got = header.get(name)
            if got is None or not np.allclose(np.array(got, dtype=np.float64), wanted, atol=1e-4):
                raise DataError(
                    f"Expected {name} {wanted.tolist()} in every slice of the series, but got {got} in {path}. "
                    "Move slices of another scan or a scout image out of the folder."
                )


def _slice_step(positions: Array, normal: Array, paths: Sequence[Path], first: Any) -> Array:
    """Return the vector from one slice to the next; a doubled or missing slice is a `DataError`."""
    if len(positions) == 1:
        thickness = float(first.get("SpacingBetweenSlices") or first.get("SliceThickness") or 1.0)
        return np.asarray(normal * thickness)
    gaps = np.diff(positions @ normal)
    usual = float(np.median(gaps))
    if usual <= 0 or gaps.min() < _GAP_TOLERANCE * usual:
        row = int(gaps.argmin())
        raise DataError(
            f"Expected one slice at each position, but {paths[row]} and {paths[row + 1]} lie at the same. "
            "Remove the copy, or put each phase of the series into a separate folder."
        )
    row = int(np.abs(gaps - usual).argmax())
    if abs(gaps[row] - usual) > _GAP_TOLERANCE * usual:
        raise DataError(
            f"Expected slices {usual:.3g} mm apart, but {paths[row]} and {paths[row + 1]} are {gaps[row]:.3g} mm "
            "apart: a slice is missing. Export the whole series again; it is not interpolated."
        )
    return np.asarray((positions[-1] - positions[0]) / (len(positions) - 1))


def _read_multi_frame(path: Path) -> tuple[npt.NDArray[np.float32], Affine]:
    """Read an enhanced CT or MR object, which holds all slices in one file."""
    hd = load_highdicom()
    with reading(
        lambda reason: DataError(
            f"Expected a multi-frame image that is one regular volume, but {path} is not ({reason}). "
            "Export it slice by slice."
        )
    ):
        volume = hd.imread(path).get_volume(dtype=np.float32, allow_missing_positions=False)
    image = volume.array.transpose(2, 1, 0)
    affine = np.asarray(volume.affine, dtype=np.float64)[:, [2, 1, 0, 3]]
    if np.linalg.det(affine[:3, :3]) < 0:  # highdicom sorts against the normal; a series is sorted along it
        image = image[:, :, ::-1]
        affine[:3, 3] += affine[:3, 2] * (image.shape[2] - 1)
        affine[:3, 2] *= -1
    return np.ascontiguousarray(image), LPS_TO_RAS @ affine
