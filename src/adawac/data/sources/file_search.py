"""Finding files: folders searched to the bottom, glob patterns, and nnU-Net's channel numbers in file names."""

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import translate
from pathlib import Path, PurePath

from adawac.errors import ConfigError, DataError

#: What makes a word a pattern.
WILDCARD = re.compile(r"[*?[]")


def walk(root: Path, leave_out: Callable[[Path], bool] | None = None) -> Iterator[tuple[Path, list[Path]]]:
    """Yield a folder and every one below it with its files, each folder once; one that may not be read has no files.

    Links to folders are followed last, so that what lies below `root` keeps its direct path, and never to a folder that
    holds `root`. Broken links count as files: their reader reports them.

    Args:
        root: Where to begin.
        leave_out: Says of a folder that it is not to be searched.
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


def glob_cases(root: Path, pattern: str) -> dict[str, Path]:
    """Return the files that match, by what the wildcards stand for (joined by _, without spaces around it)."""
    if "*" not in pattern.removesuffix(".nii*"):
        raise ConfigError(
            f"Expected a pattern with at least one *, but got {pattern!r}. Mark where the case's name stands."
        )
    if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise ConfigError(f"Expected a pattern of files below {root}, but got {pattern!r}. Leave the folder out of it.")
    if Path(pattern).name == "**":
        pattern += "/*"
    expression = re.compile("".join(_WILDCARDS.get(part) or re.escape(part) for part in _PARTS.split(pattern)))
    # Brackets stand for themselves: they are common in names, and a set of characters is rarely meant.
    cases: dict[str, Path] = {}
    for path in find(root, pattern.replace("[", "[[]")):
        match = expression.fullmatch(path.relative_to(root).as_posix())
        if match is None or path.is_dir():
            continue
        case = "_".join(part.replace("/", "_") for part in match.groups() if part is not None)
        case = case.removesuffix(".gz").removesuffix(".nii").strip()
        other = cases.setdefault(case, path)
        if other is not path:
            raise DataError(
                f"Expected case ids that differ, but {other} and {path} are both {case!r}. Use a finer pattern."
            )
    return cases


def match_patterns(
    root: Path, images: Sequence[str], labels: str
) -> list[tuple[str, tuple[Path, ...], tuple[Path, ...]]]:
    """Pair files by what the wildcards stand for: case, image files, label files (none where nothing matches)."""
    by_channel = [glob_cases(root, pattern) for pattern in images]
    label_files = glob_cases(root, labels)
    # A label map may match the images' pattern too, as scan_gt.nii.gz matches *.nii.gz.
    taken = set(label_files.values())
    cases = [case for case, path in by_channel[0].items() if path not in taken]
    if not cases:
        raise DataError(f"Expected images that match {images[0]!r} in {root}, but got none. Change the pattern.")
    pairs: list[tuple[str, tuple[Path, ...], tuple[Path, ...]]] = []
    for case in cases:
        missing = [pattern for pattern, files in zip(images, by_channel, strict=True) if case not in files]
        if missing:
            raise DataError(f"Expected every channel of case {case}, but nothing matches {missing[0]!r}. Add the file.")
        label = (label_files[case],) if case in label_files else ()
        pairs.append((case, tuple(files[case] for files in by_channel), label))
    return pairs


_ENDINGS = (".nii.gz", ".nii")
_NUMBERED = re.compile(r"(?P<case>.+)_(?P<channel>\d{4})")


def is_nifti(path: Path) -> bool:
    """Say whether a file is called as NIfTI files are."""
    return path.name.lower().endswith(_ENDINGS)


def stem(path: Path) -> str:
    """Return a file's name without .nii or .nii.gz."""
    ending = next((ending for ending in _ENDINGS if path.name.lower().endswith(ending)), "")
    return path.name[: len(path.name) - len(ending)]


def case_and_channel(path: Path) -> tuple[str, str] | None:
    """Return the case and the four digits of its channel, or None for a file that is not called so."""
    match = _NUMBERED.fullmatch(stem(path))
    return (match["case"], match["channel"]) if match else None


def channel_fault(case: str, files: Sequence[Path]) -> str:
    """Return what is wrong with the sorted files of a case: they must be 0000, 0001, … and each once."""
    numbers = [stem(path)[-4:] for path in files]
    copy = next((k for k in range(1, len(files)) if numbers[k] == numbers[k - 1]), None)
    if copy is not None:
        return (
            f"Expected one file for each channel of case {case}, but got {files[copy - 1]} and {files[copy]}. "
            "Remove the copy."
        )
    expected = [f"{number:04d}" for number in range(len(files))]
    if numbers != expected:
        return (
            f"Expected the channels {', '.join(expected)} of case {case}, but {files[0].parent} has "
            f"{', '.join(numbers)}. Add the missing file, or rename these."
        )
    return ""
