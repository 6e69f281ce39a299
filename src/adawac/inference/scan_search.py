"""From files, folders and patterns to scans: NIfTI files and DICOM series, each with its own name."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Literal

from adawac.data.sources import file_search
from adawac.data.sources.dicom_series import (
    MODALITIES,
    is_dicom,
    is_scan,
    nifti_labels,
    read_header,
    series_folder,
)
from adawac.data.sources.file_search import IMAGE_FOLDERS, LABEL_FOLDERS, only_folder
from adawac.data.sources.picture_files import is_picture, picture_stem
from adawac.data.sources.pictures import NAMING, is_mask
from adawac.errors import DataError, MissingFileError


@dataclass(frozen=True, kw_only=True)
class Scan:
    """A scan that was found but not read.

    Attributes:
        name: What its label map will be called; no two scans have the same.
        kind: How it is stored.
        files: Its files: one for each channel (NIfTI), one for each slice (DICOM), or a picture.
        problem: Why it cannot be read, as far as its name and header tell; empty if they tell nothing.
    """

    name: str
    kind: Literal["nifti", "dicom", "picture"]
    files: tuple[Path, ...]
    problem: str = ""

    @property
    def path(self) -> Path:
        """What a person would call the scan: its file, or the folder of its series."""
        return series_folder(self.files) if len(self.files) > 1 else self.files[0]


def find_scans(
    paths: Iterable[Path | str], channels: int = 1, leave_out: Path | None = None, pictures: bool = False
) -> list[Scan]:
    """Return the scans that files, folders and patterns stand for, each once.

    Args:
        paths: NIfTI files, DICOM files, folders of either (searched all the way down, but for nnU-Net's label maps and
            those of DICOM series), or glob patterns of these.
        channels: Channels of a scan. With several, files CASE_0000.nii.gz, CASE_0001.nii.gz, … are one scan.
        leave_out: A folder that is not searched: where the label maps go.
        pictures: Look for pictures instead.
    """
    existing = list(_existing(paths))
    sort_out = _pictures_of if pictures else partial(_scans_of, channels)
    scans = list(sort_out([path for path in existing if not path.is_dir()], folder=None))
    for folder in (path for path in existing if path.is_dir()):
        if beside := _scans_beside(folder.absolute()):
            raise MissingFileError(f"Expected scans, but {folder} holds label maps. Give {beside}.")
        below = list(sort_out(sorted(_below(folder, leave_out)), folder=folder))
        if not below:
            what = "pictures" if pictures else "scans"
            lacks = "no PNG, JPEG, BMP or TIFF files" if pictures else "neither NIfTI files nor DICOM series"
            raise MissingFileError(f"Expected {what} in {folder}, but it has {lacks}. Check the path.")
        scans += below
    return _named(scans)


def find_cases(
    folders: Iterable[Path | str], images: Sequence[str], leave_out: Path | None = None, pictures: bool = False
) -> list[Scan]:
    """Return the scans whose channels are files of their own, each with its pattern, as `prepare` takes them.

    Args:
        folders: Where to look.
        images: A pattern for each channel, seen from the folder; what the wildcards stand for is the scan's name.
        leave_out: A folder that is not searched: where the label maps go.
        pictures: They are pictures, which have one pattern.
    """
    naming = NAMING if pictures else file_search.Naming()
    scans = []
    for folder in _existing(folders):
        if not folder.is_dir():
            raise MissingFileError(
                f"Expected a folder to look for {images[0]!r} in, but {folder} is a file. Give its folder."
            )
        skipped = _skipped(folder, leave_out)
        channels = [file_search.glob_cases(folder, pattern, naming) for pattern in images]
        cases = [case for case, path in channels[0].items() if not (skipped and path.resolve().is_relative_to(skipped))]
        if not cases:
            raise MissingFileError(
                f"Expected scans that match {images[0]!r} in {folder}, but got none. Check the pattern and the folder."
            )
        for case in cases:
            missing = [pattern for pattern, paths in zip(images, channels, strict=True) if case not in paths]
            problem = f"Expected every channel, but nothing matches {missing[0]!r}. Add the file." if missing else ""
            files = tuple(paths[case] for paths in channels if case in paths)
            kind: Literal["nifti", "picture"] = "picture" if pictures else "nifti"
            scans.append(Scan(name=case or folder.resolve().name, kind=kind, files=files, problem=problem))
    return _named(scans)


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
    fixed = next((k for k, part in enumerate(pattern.parts) if file_search.WILDCARD.search(part)), None)
    if fixed is None:
        return []
    root = Path(*pattern.parts[:fixed])
    matches = file_search.find(root, str(Path(*pattern.parts[fixed:])))
    folders = {path for path in matches if path.is_dir()}
    folders |= {folder for path in matches for folder in path.parents if folder != root and _scans_beside(folder)}
    return [path for path in matches if folders.isdisjoint(path.parents)]


def _below(folder: Path, leave_out: Path | None) -> Iterator[Path]:
    """Yield the files of a folder, without earlier label maps and nnU-Net's, and folders that are closed."""
    skipped = _skipped(folder, leave_out)

    def no_scans(path: Path) -> bool:
        return _scans_beside(path) is not None or (skipped is not None and path.resolve().is_relative_to(skipped))

    for searched, files in file_search.walk(folder, no_scans):
        yield from [searched] if file_search.is_closed(searched) else files


def _scans_beside(folder: Path) -> Path | None:
    """Return the folder of the scans that belong to a folder of label maps, as imagesTr does to labelsTr."""
    if folder.name.lower() in LABEL_FOLDERS and folder.parent.is_dir():
        return only_folder(folder.parent, IMAGE_FOLDERS)
    if not folder.name.startswith("labels"):
        return None
    scans = folder.with_name(folder.name.replace("labels", "images", 1))
    return scans if scans.is_dir() else None


def _skipped(folder: Path, leave_out: Path | None) -> Path | None:
    """Return what is not to be searched, if it lies below the folder."""
    skipped = leave_out.resolve() if leave_out is not None else None
    return skipped if skipped is not None and folder.resolve() in skipped.parents else None


# -- files to scans ---------------------------------------------------------------------------------------------------


def _pictures_of(paths: Sequence[Path], folder: Path | None) -> Iterator[Scan]:
    """Yield the pictures among some files; others, and masks beside their picture, are passed over in a folder."""
    names = {path.stem for path in paths}
    for path in paths:
        problem = _fault(path, "pictures")
        if not problem and not is_picture(path):
            if folder is not None:
                continue
            problem = "Expected a picture (PNG, JPEG, BMP, TIFF), but it is called otherwise. Leave it out."
        if folder is None or not is_mask(path, names):
            yield Scan(name=picture_stem(path.name), kind="picture", files=(path,), problem=problem)


def _fault(path: Path, what: str) -> str:
    """Return what is wrong with something that was found, before anybody looks into it."""
    if path.is_dir():
        return f"Expected a folder of {what}, but it may not be read. Change its permissions."
    if not path.exists():
        return "Expected a file, but it is a link to nothing. Fix the link, or fetch what it leads to."
    return ""


def _scans_of(channels: int, paths: Iterable[Path], folder: Path | None) -> Iterator[Scan]:
    """Yield the scans among some files; what is none of them is passed over in a folder, but not where it was named."""
    nifti, dicom = [], []
    for path in paths:
        if problem := _fault(path, "scans"):
            name = path.name if path.is_dir() else file_search.stem(path)
            yield Scan(name=name, kind="nifti", files=(path,), problem=problem)
        elif file_search.is_nifti(path):
            nifti.append(path)
        elif is_dicom(path):
            dicom.append(path)
        elif folder is None:
            problem = "Expected a NIfTI file (.nii, .nii.gz) or a DICOM image, but it is neither. Leave it out."
            yield Scan(name=path.stem, kind="nifti", files=(path,), problem=problem)
    series = list(_dicom_scans(dicom, folder))
    if folder is not None and series:
        labels = nifti_labels({series_folder(scan.files) for scan in series}, folder)
        of_series = {path for paths in labels.values() for path in paths}
        nifti = [path for path in nifti if path not in of_series and path.parent.name.lower() not in LABEL_FOLDERS]
    yield from _nifti_scans(nifti, channels)
    yield from series


def _nifti_scans(paths: Sequence[Path], channels: int) -> Iterator[Scan]:
    groups: dict[tuple[Path, str, bool], list[Path]] = {}
    for path in sorted(paths):
        match = file_search.case_and_channel(path) if channels > 1 else None
        key = (path.parent, match[0], True) if match else (path, file_search.stem(path), False)
        groups.setdefault(key, []).append(path)
    for (_, name, numbered), files in groups.items():
        several = numbered and len(files) > 1  # one 4D file may end in a year
        problem = file_search.channel_fault(name, files) if several else ""
        yield Scan(name=name, kind="nifti", files=tuple(files), problem=problem)


def _dicom_scans(paths: Sequence[Path], folder: Path | None) -> Iterator[Scan]:
    """Sort files by series; files that were named one by one belong together only within a folder."""
    series: dict[tuple[str, Path | None], list[Path]] = {}
    for path in paths:
        problem = ""
        try:
            header = read_header(path, ["Modality", "SeriesInstanceUID", "ImageType"], "it")
        except DataError as error:
            problem = str(error)
        else:
            if is_scan(header):
                key = str(header.SeriesInstanceUID), path.parent if folder is None else None
                series.setdefault(key, []).append(path)
            elif folder is None:
                wanted = ", ".join(MODALITIES)
                problem = f"Expected a series of {wanted}, but it is {header.get('Modality')}. Leave it out."
        if problem:
            yield Scan(name=path.stem, kind="dicom", files=(path,), problem=problem)
    folders = Counter(series_folder(files) for files in series.values())
    for (uid, _), files in series.items():
        where = series_folder(files)
        name = _absolute(where).name
        if folders[where] > 1:  # several series in one folder
            name += "_" + sha256(uid.encode()).hexdigest()[:8]
        yield Scan(name=name, kind="dicom", files=tuple(files))


def _absolute(folder: Path) -> Path:
    """Return a folder with all its names, those of links as they stand: people named them."""
    return Path(os.path.abspath(folder))  # noqa: PTH100  Path.absolute keeps a/..


# -- names ------------------------------------------------------------------------------------------------------------


def _named(scans: Sequence[Scan]) -> list[Scan]:
    """Return the scans, each once, with names that differ: the folders above come before, as many as it takes."""
    once = {scan.files[0].resolve(): scan for scan in reversed(scans)}
    scans = sorted(once.values(), key=lambda scan: [str(path) for path in scan.files])
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
    where = _absolute(series_folder(scan.files))
    parts = (where.parent if scan.kind == "dicom" and not scan.problem else where).parts
    return [part for part in parts if part != where.anchor]
