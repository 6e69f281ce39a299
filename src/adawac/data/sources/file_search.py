"""Finding files: folders searched to the bottom, glob patterns, and nnU-Net's channel numbers in file names."""

import os
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate
from itertools import pairwise
from pathlib import Path, PurePath

from adawac.errors import ConfigError, DataError

#: What makes a word a pattern.
WILDCARD = re.compile(r"[*?[]")


def walk(root: Path, leave_out: Callable[[Path], bool] | None = None) -> Iterator[tuple[Path, list[Path]]]:
    """Yield a folder and every one below it with its files, each folder once; one that may not be read has no files.

    Links to folders are followed last, so that what lies below `root` keeps its direct path, and never to a folder that
    holds `root`. Broken links count as files: their reader reports them. `leave_out` says of a folder that it is not to
    be searched.
    """
    top, seen = root.resolve(), set()
    folders, links = deque([root]), deque[Path]()
    while folders or links:
        linked = not folders
        folder = (links if linked else folders).popleft()
        real = folder.resolve()
        if real in seen or (linked and top.is_relative_to(real)) or (leave_out is not None and leave_out(folder)):
            continue
        seen.add(real)
        below, files = _contents(folder)
        for path in below:
            (links if path.is_symlink() else folders).append(path)
        yield folder, files


def files_below(root: Path) -> list[Path]:
    """Return all files below a folder, sorted; a folder that may not be read is a `DataError`."""
    return sorted(path for _, files in _open_folders(root) for path in files)


def find(root: Path, pattern: str) -> list[Path]:
    """Return the files and folders that match a pattern, sorted; a folder that may not be read is a `DataError`.

    `*`, `?` and `[sets]` stand for parts of a name, `**` for any number of folders; behind it, nothing is found twice,
    whatever links there are.
    """
    parts = PurePath(pattern).parts
    paths = [root]
    for part in parts:
        paths = list(dict.fromkeys(path for folder in paths if folder.is_dir() for path in _matching(folder, part)))
    return sorted(_once(paths, root) if "**" in parts else paths)


def is_closed(folder: Path) -> bool:
    """Say whether a folder may not be searched."""
    return not os.access(folder, os.R_OK | os.X_OK)


def _open_folders(root: Path) -> Iterator[tuple[Path, list[Path]]]:
    for folder, files in walk(root):
        _check_open(folder)
        yield folder, files


def _check_open(folder: Path) -> None:
    """Raise a `DataError` where a folder may not be searched: its scans would be missing silently."""
    if is_closed(folder):
        raise DataError(f"Expected a folder of scans, but {folder} may not be read. Change its permissions.")


def _contents(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the folders in a folder, and its files; sockets and pipes, which would block a reader, are neither."""
    folders, files = [], []
    if not is_closed(folder):
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                path = folder / entry.name
                if entry.name.startswith("."):
                    continue
                if path.is_dir() if entry.is_symlink() else entry.is_dir():
                    folders.append(path)
                elif entry.is_file(follow_symlinks=False) or (entry.is_symlink() and _is_readable(path)):
                    files.append(path)
    return folders, files


def _is_readable(link: Path) -> bool:
    return link.is_file() or not link.exists()


def _matching(folder: Path, part: str) -> Iterable[Path]:
    """Return what one part of a pattern stands for in a folder."""
    if part == "**":
        return [below for below, _ in _open_folders(folder)]
    _check_open(folder)
    if not WILDCARD.search(part):
        return [folder / part] if os.path.lexists(folder / part) else []
    expression = re.compile(translate(part))
    return [path for paths in _contents(folder) for path in paths if expression.fullmatch(path.name)]


def _once(paths: Iterable[Path], root: Path) -> Iterable[Path]:
    """Return one path of each file that links to folders lead to as well, the one without links where it is listed."""
    top, real = root.resolve(), {path: path.parent.resolve() / path.name for path in paths}
    direct_first = sorted(real, key=lambda path: (top / path.relative_to(root) != real[path], path))
    return {real[path]: path for path in reversed(direct_first)}.values()


# What a wildcard may stand for, as a group of a regular expression; `**/` may be any number of folders. The ending is
# no part of a name: scan.nii* is scan.nii and scan.nii.gz.
_WILDCARDS = {"**/": "(?:(.*)/)?", "*": "([^/]*)", "?": "([^/])", ".nii*": r"\.nii(?:\.gz)?"}
_PARTS = re.compile(r"(\.nii\*$|\*\*/|\*|\?)")
_PARTS_AND_SETS = re.compile(r"(\.nii\*$|\*\*/|\*|\?|\[[^]/]+\])")


@dataclass(frozen=True)
class Naming:
    """How files of a kind are called.

    Attributes:
        stem_of: Takes the ending from a file's name.
        wanted: Says which of the files that match a pattern count.
    """

    stem_of: Callable[[str], str] = lambda name: name.removesuffix(".gz").removesuffix(".nii")
    wanted: Callable[[Path], bool] = lambda path: not path.is_dir()


_SCANS = Naming()


def glob_cases(root: Path, pattern: str, naming: Naming = _SCANS) -> dict[str, Path]:
    """Return the files that match, by what the wildcards stand for (joined by _, without spaces around it).

    Brackets stand for themselves, since they are common in names, and else for one of the characters in them. The
    ending may be in upper or lower case.
    """
    wild = "*" in pattern.removesuffix(".nii*")
    if not wild and "[" not in pattern:
        raise ConfigError(
            f"Expected a pattern with at least one *, but got {pattern!r}. Mark where the case's name stands."
        )
    if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise ConfigError(f"Expected a pattern of files below {root}, but got {pattern!r}. Leave the folder out of it.")
    if Path(pattern).name == "**":
        pattern += "/*"
    cases = _cases(root, pattern.replace("[", "[[]"), _PARTS.split(pattern), naming) if wild else {}
    return _cases(root, pattern, _PARTS_AND_SETS.split(pattern), naming) if "[" in pattern and not cases else cases


def _cases(root: Path, pattern: str, parts: Sequence[str], naming: Naming) -> dict[str, Path]:
    """Return the files that match a pattern, by what those of its parts stand for that are wildcards."""
    wildcards = {part: _WILDCARDS.get(part, _WILDCARDS["?"]) for part in parts[1::2]}  # a set is one character, too
    # Only endings differ in case: `find` has taken care of the rest.
    expression = re.compile("".join(wildcards.get(part) or re.escape(part) for part in parts), re.IGNORECASE)
    cases: dict[str, Path] = {}
    for path in find(root, _ending_in_any_case(pattern)):
        match = expression.fullmatch(path.relative_to(root).as_posix())
        if match is None or not naming.wanted(path):
            continue
        case = "_".join(part.replace("/", "_") for part in match.groups() if part is not None)
        case = naming.stem_of(case).strip()
        other = cases.setdefault(case, path)
        if other is not path:
            raise DataError(
                f"Expected case ids that differ, but {other} and {path} are both {case!r}. Use a finer pattern."
            )
    return cases


def _ending_in_any_case(pattern: str) -> str:
    """Return a pattern whose ending, such as .png, also stands for .PNG, as cameras write it."""
    stem, dot, ending = pattern.rpartition(".")
    if not dot or not ending.isalnum():
        return pattern
    return stem + dot + "".join(f"[{letter.lower()}{letter.upper()}]" for letter in ending)


def match_patterns(
    root: Path, images: Sequence[str], labels: str, naming: Naming = _SCANS
) -> tuple[list[tuple[str, tuple[Path, ...], tuple[Path, ...]]], list[Path]]:
    """Pair files by what the wildcards stand for: case, image files, label files (none where nothing matches).

    What stands for the role of a file at the end of its name, such as `_mask`, makes no difference where the names are
    not the same. Returns these, and all label files.
    """
    by_channel = [glob_cases(root, pattern, naming) for pattern in images]
    label_files = glob_cases(root, labels, naming)
    # A label map may match the images' pattern too, as scan_gt.nii.gz matches *.nii.gz.
    taken = set(label_files.values())
    cases = [case for case, path in by_channel[0].items() if path not in taken]
    if not cases:
        raise DataError(f"Expected images that match {images[0]!r} in {root}, but got none. Change the pattern.")
    pairs: list[tuple[str, tuple[Path, ...], tuple[Path, ...]]] = []
    by_role = {name: path for name, path in label_files.items() if name not in cases}
    by_role = by_name(by_role.values(), {path: without_role(name) for name, path in by_role.items()}.__getitem__)
    for case in cases:
        if missing := [pattern for pattern, files in zip(images, by_channel, strict=True) if case not in files]:
            raise DataError(f"Expected every channel of case {case}, but nothing matches {missing[0]!r}. Add the file.")
        path = label_files.get(case) or by_role.get(without_role(case))
        label = () if path is None else (path,)
        pairs.append((case, tuple(files[case] for files in by_channel), label))
    return pairs, list(label_files.values())


# What files in folders of images and of labels may have behind the name of their case.
_ROLE = re.compile(r"[_-](image|img|scan|segmentation|seg|labels?|masks?|gt)$", re.IGNORECASE)


def without_role(name: str) -> str:
    """Return the name of a case from that of a file, which may end in `_image`, `_mask` and the like."""
    return _ROLE.sub("", name)


def by_name(files: Iterable[Path], name_of: Callable[[Path], str]) -> dict[str, Path]:
    """Return the file of each case; there must be one."""
    paths: dict[str, Path] = {}
    for path in files:
        other = paths.setdefault(name_of(path), path)
        if other is not path:
            raise DataError(f"Expected one file per case, but got {other} and {path}. Remove the copy.")
    return paths


#: What people call the folder of their scans, and beside it that of the label maps.
IMAGE_FOLDERS = ("images", "image", "imgs", "img", "scans")
LABEL_FOLDERS = ("labels", "label", "masks", "mask", "segmentations", "segmentation")

_ENDINGS = (".nii.gz", ".nii")
_NUMBERED = re.compile(r"(?P<case>.+)_(?P<channel>\d{4})")


def is_nifti(path: Path) -> bool:
    """Say whether a file is called as NIfTI files are."""
    return path.name.lower().endswith(_ENDINGS)


def stem(path: Path) -> str:
    """Return a file's name without .nii or .nii.gz."""
    ending = next((ending for ending in _ENDINGS if path.name.lower().endswith(ending)), "")
    return path.name[: len(path.name) - len(ending)]


def only_folder(root: Path, names: Collection[str]) -> Path | None:
    """Return the folder in `root` that has one of these names, in any case; None if there are several, or none."""
    below = [] if is_closed(root) else root.iterdir()
    folders = [path for path in below if path.name.lower() in names and path.is_dir()]
    return folders[0] if len(folders) == 1 else None


def nifti_files(folder: Path) -> list[Path]:
    """Return the NIfTI files of a folder, sorted, without macOS's hidden companions; none where there is no folder."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if is_nifti(path) and not path.name.startswith("."))


def case_and_channel(path: Path) -> tuple[str, str] | None:
    """Return the case and the four digits of its channel, or None for a file that is not called so."""
    match = _NUMBERED.fullmatch(stem(path))
    return (match["case"], match["channel"]) if match else None


def channel_fault(case: str, files: Sequence[Path]) -> str:
    """Return what is wrong with the sorted files of a case: they must be 0000, 0001, … and each once."""
    numbers = [stem(path)[-4:] for path in files]
    for (number, path), (other, copy) in pairwise(zip(numbers, files, strict=True)):
        if number == other:
            return f"Expected one file for each channel of case {case}, but got {path} and {copy}. Remove the copy."
    expected = [f"{number:04d}" for number in range(len(files))]
    if numbers != expected:
        return (
            f"Expected the channels {', '.join(expected)} of case {case}, but {files[0].parent} has "
            f"{', '.join(numbers)}. Add the missing file, or rename these."
        )
    return ""
