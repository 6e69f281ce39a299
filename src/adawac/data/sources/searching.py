"""Where files lie: folders all the way down and glob patterns, links followed, nothing twice and nothing hidden."""

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from fnmatch import translate
from pathlib import Path, PurePath

from adawac.errors import DataError

__all__ = ["WILDCARD", "files_below", "find", "is_closed", "walk"]

#: What makes a word a pattern.
WILDCARD = re.compile(r"[*?[]")


def walk(root: Path, leave_out: Callable[[Path], bool] | None = None) -> Iterator[tuple[Path, list[Path]]]:
    """Yield a folder and every one below it with its files, each folder once; one that may not be read has no files.

    Links to folders are followed after all else, so that what lies below `root` keeps its own name, and never to a
    folder that holds `root`. Links to nothing count as files: whoever reads them says so.

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
        for one in below:
            (links if one.is_symlink() else folders).append(one)
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
    found = [root]
    for part in parts:
        found = list(dict.fromkeys(one for folder in found if folder.is_dir() for one in _matching(folder, part)))
    return sorted(_once(found, root) if "**" in parts else found)


def is_closed(folder: Path) -> bool:
    """Say whether a folder may not be searched."""
    return not os.access(folder, os.R_OK | os.X_OK)


def _open_folders(root: Path) -> Iterator[tuple[Path, list[Path]]]:
    for folder, files in walk(root):
        _check_open(folder)
        yield folder, files


def _check_open(folder: Path) -> None:
    """Raise a `DataError` where a folder may not be searched: its scans would be missing without a word."""
    if is_closed(folder):
        raise DataError(f"Expected a folder of scans, but {folder} may not be read. Change its permissions.")


def _contents(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the folders in a folder, and its files; sockets and pipes, which would block a reader, are neither."""
    folders, files = [], []
    if not is_closed(folder):
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda one: one.name):
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
        return [one for one, _ in _open_folders(folder)]
    _check_open(folder)
    if not WILDCARD.search(part):
        return [folder / part] if os.path.lexists(folder / part) else []
    expression = re.compile(translate(part))
    return [one for kind in _contents(folder) for one in kind if expression.fullmatch(one.name)]


def _once(paths: Iterable[Path], root: Path) -> Iterable[Path]:
    """Return one path of each that a link to a folder leads to as well, by its own name where that is among them."""
    top, real = root.resolve(), {path: path.parent.resolve() / path.name for path in paths}
    own = sorted(real, key=lambda path: (top / path.relative_to(root) != real[path], path))
    return {real[path]: path for path in reversed(own)}.values()
