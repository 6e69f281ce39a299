"""From files, folders and patterns to scans: NIfTI files and DICOM series, each with its own name."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from adawac.data.sources.dicom_series import load_pydicom
from adawac.data.sources.file_search import (
    WILDCARD,
    case_and_channel,
    channel_fault,
    find,
    glob_cases,
    is_closed,
    is_nifti,
    stem,
    walk,
)
from adawac.errors import MissingFileError

_DICOM = (".dcm", ".dicom", ".ima")
_MODALITIES = ("CT", "MR", "PT")  # structure sets, doses, reports and segmentations are no scans


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
        return _folder(self.files) if len(self.files) > 1 else self.files[0]


def find_scans(paths: Iterable[Path | str], channels: int = 1, leave_out: Path | None = None) -> list[Scan]:
    """Return the scans that files, folders and patterns stand for, each once.

    Args:
        paths: NIfTI files, DICOM files, folders of either (searched all the way down, but for nnU-Net's label maps), or
            glob patterns of these.
        channels: Channels of a scan. With several, files CASE_0000.nii.gz, CASE_0001.nii.gz, … are one scan.
        leave_out: A folder that is not searched: where the label maps go.
    """
    existing = list(_existing(paths))
    scans = list(_scans_of([path for path in existing if not path.is_dir()], channels, folder=None))
    for folder in (path for path in existing if path.is_dir()):
        if beside := _scans_beside(folder.absolute()):
            raise MissingFileError(f"Expected scans, but {folder} holds label maps. Give {beside}.")
        below = list(_scans_of(sorted(_below(folder, leave_out)), channels, folder))
        if not below:
            raise MissingFileError(
                f"Expected scans in {folder}, but it has neither NIfTI files nor DICOM series. Check the path."
            )
        scans += below
    return _named({scan.files[0].resolve(): scan for scan in reversed(scans)}.values())


def find_cases(folders: Iterable[Path | str], images: Sequence[str], leave_out: Path | None = None) -> list[Scan]:
    """Return the scans whose channels are files of their own, each with its pattern, as `prepare` takes them.

    Args:
        folders: Where to look.
        images: A pattern for each channel, seen from the folder; what the wildcards stand for is the scan's name.
        leave_out: A folder that is not searched: where the label maps go.
    """
    scans = []
    for folder in _existing(folders):
        if not folder.is_dir():
            raise MissingFileError(
                f"Expected a folder to look for {images[0]!r} in, but {folder} is a file. Give its folder."
            )
        skipped = _skipped(folder, leave_out)
        channels = [glob_cases(folder, pattern) for pattern in images]
        cases = [case for case, path in channels[0].items() if not (skipped and path.resolve().is_relative_to(skipped))]
        if not cases:
            raise MissingFileError(
                f"Expected scans that match {images[0]!r} in {folder}, but got none. Check the pattern and the folder."
            )
        for case in cases:
            missing = [pattern for pattern, paths in zip(images, channels, strict=True) if case not in paths]
            problem = f"Expected every channel, but nothing matches {missing[0]!r}. Add the file." if missing else ""
            files = tuple(paths[case] for paths in channels if case in paths)
            scans.append(Scan(name=case or folder.resolve().name, kind="nifti", files=files, problem=problem))
    return _named({scan.files[0].resolve(): scan for scan in reversed(scans)}.values())


def _existing(words: Iterable[Path | str]) -> Iterator[Path]:
    """Yield the files and folders that words stand for; words that do not exist are patterns."""
    for word in words:
        path = Path(word).expanduser()
        matches = [path] if path.exists() else _matches(path)
        if not matches:
            raise MissingFileError(
                f"Expected a scan, a folder or a pattern, but {word} matches nothing. Check the path."
            )
        yield from matches


def _matches(pattern: Path) -> list[Path]:
    """Return what matches a pattern, but nothing in folders that do, which are searched, or in those of label maps."""
    fixed = next((k for k, part in enumerate(pattern.parts) if WILDCARD.search(part)), None)
    if fixed is None:
        return []
    root = Path(*pattern.parts[:fixed])
    matches = find(root, str(Path(*pattern.parts[fixed:])))
    folders = {path for path in matches if path.is_dir()}
    folders |= {folder for path in matches for folder in path.parents if folder != root and _scans_beside(folder)}
    return [path for path in matches if folders.isdisjoint(path.parents)]


def _below(folder: Path, leave_out: Path | None) -> Iterator[Path]:
    """Yield the files of a folder, without earlier label maps and nnU-Net's, and folders that are closed."""
    skipped = _skipped(folder, leave_out)

    def no_scans(path: Path) -> bool:
        return _scans_beside(path) is not None or (skipped is not None and path.resolve().is_relative_to(skipped))

    for searched, files in walk(folder, no_scans):
        yield from [searched] if is_closed(searched) else files


def _scans_beside(folder: Path) -> Path | None:
    """Return the folder of the scans that belong to a folder of label maps, as imagesTr does to labelsTr."""
    if not folder.name.startswith("labels"):
        return None
    scans = folder.with_name(folder.name.replace("labels", "images", 1))
    return scans if scans.is_dir() else None


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
        elif not path.exists():
            problem = "Expected a file, but it is a link to nothing. Fix the link, or fetch what it leads to."
            yield Scan(name=stem(path), kind="nifti", files=(path,), problem=problem)
        elif is_nifti(path):
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


def _nifti_scans(paths: Sequence[Path], channels: int) -> Iterator[Scan]:
    groups: dict[tuple[Path, str, bool], list[Path]] = {}
    for path in sorted(paths):
        match = case_and_channel(path) if channels > 1 else None
        key = (path.parent, match[0], True) if match else (path, stem(path), False)
        groups.setdefault(key, []).append(path)
    for (_, name, numbered), files in groups.items():
        problem = channel_fault(name, files) if numbered and len(files) > 1 else ""  # one 4D file may end in a year
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
        name = _absolute(_folder(files)).name
        if folders[_folder(files)] > 1:  # several series in one folder
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
    return min((path.parent for path in files), key=lambda folder: len(folder.parts))


def _absolute(folder: Path) -> Path:
    """Return a folder with all its names, those of links as they stand: people named them."""
    return Path(os.path.abspath(folder))  # noqa: PTH100  Path.absolute keeps a/..


# -- names ------------------------------------------------------------------------------------------------------------


def _named(scans: Iterable[Scan]) -> list[Scan]:
    """Return the scans with names that differ: the folders above come before the name, as many as it takes."""
    scans = sorted(scans, key=lambda scan: [str(path) for path in scan.files])
    above = [_folders_above(scan) for scan in scans]
    depth = [0] * len(scans)
    while True:
        names = [
            "_".join([*up[len(up) - deep :], scan.name]) for scan, up, deep in zip(scans, above, depth, strict=True)
        ]
        count = Counter(name.casefold() for name in names)  # not every file system tells A from a
        clash = [k for k, name in enumerate(names) if count[name.casefold()] > 1]
        folders: dict[str, set[str]] = {}
        for k in clash:
            folders.setdefault(names[k].casefold(), set()).add("/".join(above[k]))
        deeper = [k for k in clash if depth[k] < len(above[k]) and len(folders[names[k].casefold()]) > 1]
        if not deeper:
            break
        for k in deeper:
            depth[k] += 1
    for k in clash:  # such as a.nii and a.nii.gz in one folder
        names[k] += "_" + sha256(str(scans[k].files[0].resolve()).encode()).hexdigest()[:8]
    return [replace(scan, name=name) for scan, name in zip(scans, names, strict=True)]


def _folders_above(scan: Scan) -> list[str]:
    where = _absolute(_folder(scan.files))
    parts = (where.parent if scan.kind == "dicom" and not scan.problem else where).parts
    return [part for part in parts if part != where.anchor]
