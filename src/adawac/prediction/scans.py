"""Which scans were meant: files, folders and patterns to NIfTI files and DICOM series, each with a name of its own."""

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from adawac.data.sources.dicom_series import load_pydicom
from adawac.data.sources.patterns import glob_cases
from adawac.errors import MissingFileError

__all__ = ["Scan", "find_cases", "find_scans"]

_NIFTI = (".nii.gz", ".nii")
_DICOM = (".dcm", ".dicom", ".ima")
_MODALITIES = ("CT", "MR", "PT")  # structure sets, doses, reports and segmentations are no scans
_CHANNEL = re.compile(r"(?P<case>.+)_\d{4}")


@dataclass(frozen=True, kw_only=True)
class Scan:
    """A scan that was found but not read.

    Attributes:
        name: What its label map will be called; no two scans have the same.
        kind: How it is stored.
        files: Its files: one for each channel (NIfTI), or one for each slice (DICOM).
        problem: Why it cannot be read, as far as its name and header tell; empty if they tell nothing.
    """

    name: str
    kind: Literal["nifti", "dicom"]
    files: tuple[Path, ...]
    problem: str = ""

    @property
    def path(self) -> Path:
        """What a person would call the scan: its file, or the folder of its series."""
        return min((one.parent for one in self.files), key=_depth) if len(self.files) > 1 else self.files[0]


def find_scans(given: Iterable[Path | str], channels: int = 1, leave_out: Path | None = None) -> list[Scan]:
    """Return the scans that files, folders and patterns stand for, each once.

    Args:
        given: NIfTI files, DICOM files, folders of either (searched all the way down), or glob patterns of these.
        channels: Channels of a scan. With several, files CASE_0000.nii.gz, CASE_0001.nii.gz, … are one scan.
        leave_out: A folder that is not searched: where the label maps go.
    """
    places = list(_places(given))
    scans = list(_scans_of([one for one in places if not one.is_dir()], channels, folder=None))
    for folder in (one for one in places if one.is_dir()):
        own = list(_scans_of(_below(folder, leave_out), channels, folder))
        if not own:
            raise MissingFileError(
                f"Expected scans in {folder}, but it has neither NIfTI files nor DICOM series. Correct the path."
            )
        scans += own
    return _named({scan.files[0].resolve(): scan for scan in reversed(scans)}.values())


def find_cases(folders: Iterable[Path | str], images: Sequence[str], leave_out: Path | None = None) -> list[Scan]:
    """Return the scans whose channels are files of their own, each with its pattern, as `prepare` takes them.

    Args:
        folders: Where to look.
        images: A pattern for each channel, seen from the folder; what the wildcards stand for is the scan's name.
        leave_out: A folder that is not searched: where the label maps go.
    """
    scans = []
    for folder in _places(folders):
        if not folder.is_dir():
            raise MissingFileError(f"Expected a folder to look for {images[0]!r} in, but {folder} is a file. Give it.")
        skipped = _skipped(folder, leave_out)
        channels = [glob_cases(folder, pattern) for pattern in images]
        found = [case for case, path in channels[0].items() if not (skipped and path.resolve().is_relative_to(skipped))]
        if not found:
            raise MissingFileError(f"Expected scans that match {images[0]!r} in {folder}, but got none. Correct it.")
        for case in found:
            missing = [pattern for pattern, own in zip(images, channels, strict=True) if case not in own]
            problem = f"Expected every channel, but nothing matches {missing[0]!r}. Add the file." if missing else ""
            files = tuple(own[case] for own in channels if case in own)
            scans.append(Scan(name=case or folder.resolve().name, kind="nifti", files=files, problem=problem))
    return _named({scan.files[0].resolve(): scan for scan in reversed(scans)}.values())


def _places(given: Iterable[Path | str]) -> Iterator[Path]:
    """Yield what exists of the given words; those that do not exist are patterns."""
    for word in given:
        path = Path(word).expanduser()
        # (Path.glob takes no patterns that begin at the root.)
        matches = [str(path)] if path.exists() else sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207
        if not matches:
            raise MissingFileError(
                f"Expected a scan, a folder or a pattern, but {word} matches nothing. Correct the path."
            )
        yield from (Path(one) for one in matches)


def _below(folder: Path, leave_out: Path | None) -> Iterator[Path]:
    """Yield the files of a folder, without hidden ones and without earlier label maps, and folders that are closed."""
    skipped = _skipped(folder, leave_out)
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        wanted = path.is_file() or (path.is_dir() and not os.access(path, os.R_OK | os.X_OK))
        if wanted and not hidden and not (skipped and path.resolve().is_relative_to(skipped)):
            yield path


def _skipped(folder: Path, leave_out: Path | None) -> Path | None:
    """Return what is not to be searched, if it lies below the folder."""
    skipped = leave_out.resolve() if leave_out is not None else None
    return skipped if skipped is not None and folder.resolve() in skipped.parents else None


# -- files to scans ---------------------------------------------------------------------------------------------------


def _scans_of(paths: Iterable[Path], channels: int, folder: Path | None) -> Iterator[Scan]:
    """Yield the scans among some files; what is none of them is passed over in a folder, but not where it was named."""
    nifti, dicom = [], []
    for path in paths:
        if path.is_dir():
            problem = "Expected a folder of scans, but it may not be read. Change its permissions."
            yield Scan(name=path.name, kind="nifti", files=(path,), problem=problem)
        elif path.name.lower().endswith(_NIFTI):
            nifti.append(path)
        elif _is_dicom(path):
            dicom.append(path)
        elif folder is None:
            problem = "Expected a NIfTI file (.nii, .nii.gz) or a DICOM image, but it is neither. Leave it out."
            yield Scan(name=path.stem, kind="nifti", files=(path,), problem=problem)
    yield from _nifti_scans(nifti, channels)
    yield from _dicom_scans(dicom, folder)


def _is_dicom(path: Path) -> bool:
    if path.suffix.lower() in _DICOM:
        return True
    try:
        with path.open("rb") as file:
            return path.name != "DICOMDIR" and file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def _stem(path: Path) -> str:
    ending = next((one for one in _NIFTI if path.name.lower().endswith(one)), "")
    return path.name[: len(path.name) - len(ending)]


def _nifti_scans(paths: Sequence[Path], channels: int) -> Iterator[Scan]:
    groups: dict[tuple[Path, str, bool], list[Path]] = {}
    for path in sorted(paths):
        match = _CHANNEL.fullmatch(_stem(path)) if channels > 1 else None
        key = (path.parent, match["case"], True) if match else (path, _stem(path), False)
        groups.setdefault(key, []).append(path)
    for (_, name, numbered), files in groups.items():
        numbers = [_stem(path)[-4:] for path in files]
        expected = [f"{number:04d}" for number in range(len(files))]
        problem = (
            f"Expected the channels {', '.join(expected)}, but got {', '.join(numbers)}. Add the missing file."
            if numbered and len(files) > 1 and numbers != expected  # a single 4D file may end in a year
            else ""
        )
        yield Scan(name=name, kind="nifti", files=tuple(files), problem=problem)


def _dicom_scans(paths: Sequence[Path], folder: Path | None) -> Iterator[Scan]:
    """Sort files by series; files that were named one by one belong together only within a folder."""
    series: dict[tuple[str, Path | None], list[Path]] = {}
    for path in paths:
        header = _read_header(path)
        if isinstance(header, str):
            yield Scan(name=path.stem, kind="dicom", files=(path,), problem=header)
        elif header.get("Modality") in _MODALITIES and "LOCALIZER" not in header.get("ImageType", ()):
            key = str(header.SeriesInstanceUID), path.parent if folder is None else None
            series.setdefault(key, []).append(path)
        elif folder is None:
            problem = (
                f"Expected a series of {', '.join(_MODALITIES)}, but it is {header.get('Modality')}. Leave it out."
            )
            yield Scan(name=path.stem, kind="dicom", files=(path,), problem=problem)
    folders = Counter(_folder(files) for files in series.values())
    for (uid, _), files in series.items():
        own = _folder(files)
        name = own.resolve().name
        if folders[own] > 1:  # several series in one folder
            name += "_" + sha256(uid.encode()).hexdigest()[:8]
        yield Scan(name=name, kind="dicom", files=tuple(files))


def _read_header(path: Path) -> Any:
    """Return the tags that tell series apart, or what is wrong with the file."""
    pydicom = load_pydicom()
    try:
        header = pydicom.dcmread(
            path, stop_before_pixels=True, specific_tags=["Modality", "SeriesInstanceUID", "ImageType"]
        )
        header.SeriesInstanceUID  # noqa: B018  a file without it cannot be placed
    except (pydicom.errors.InvalidDicomError, OSError, EOFError, ValueError, AttributeError) as error:
        return f"Expected a DICOM file, but it cannot be read ({error}). Copy it again, or remove it."
    return header


def _folder(files: Iterable[Path]) -> Path:
    return min((one.parent for one in files), key=_depth)


def _depth(path: Path) -> int:
    return len(path.parts)


# -- names ------------------------------------------------------------------------------------------------------------


def _named(scans: Iterable[Scan]) -> list[Scan]:
    """Return the scans with names that differ: the folders above come before the name, as many as it takes."""
    found = sorted(scans, key=lambda scan: [str(one) for one in scan.files])
    above = [_folders_above(scan) for scan in found]
    depth = [0] * len(found)
    while True:
        names = [
            "_".join([*up[len(up) - deep :], scan.name]) for scan, up, deep in zip(found, above, depth, strict=True)
        ]
        count = Counter(name.casefold() for name in names)  # not every file system tells A from a
        clash = [k for k, name in enumerate(names) if count[name.casefold()] > 1]
        deeper = [k for k in clash if depth[k] < len(above[k])]
        if not deeper:
            break
        for k in deeper:
            depth[k] += 1
    for k in clash:  # such as a.nii and a.nii.gz in one folder
        names[k] += "_" + sha256(str(found[k].files[0].resolve()).encode()).hexdigest()[:8]
    return [replace(scan, name=name) for scan, name in zip(found, names, strict=True)]


def _folders_above(scan: Scan) -> list[str]:
    where = _folder(scan.files).resolve()
    parts = (where.parent if scan.kind == "dicom" and not scan.problem else where).parts
    return [part for part in parts if part != where.anchor]
