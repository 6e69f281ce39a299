"""Files that survive a kill and a full disk: written beside and renamed, or appended and cut back."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from adawac.errors import AdawacError

__all__ = ["AppendFile", "beside", "explained", "is_temporary", "make_folder", "write_text"]

_SUFFIX = ".tmp"


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Yield a path in the same folder to write to; when the block ends well, that file replaces `path` in one step.

    Whatever goes wrong before, `path` keeps its last content: an error removes the new file, a kill leaves it behind
    under a name that `is_temporary` knows.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_SUFFIX}")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)  # the new name is on the disk too


def make_folder(path: Path) -> None:
    """Make a folder, with those above it, unless it is there; a file in its place is said to be one."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, "it is a file", str(path)) from error


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step."""
    with beside(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


@contextmanager
def explained(kind: type[AdawacError], what: str, advice: str) -> Iterator[None]:
    """Turn an error of the operating system into one that says what could not be written, and what to do.

    Args:
        kind: Of the error.
        what: Of which it says "Expected to write …".
        advice: The sentences after what went wrong.
    """
    try:
        yield
    except AdawacError:  # some of them are the operating system's, too, and say it already
        raise
    except OSError as error:
        raise kind(f"Expected to write {what}, but got: {error.strerror or error}. {advice}") from error


def is_temporary(path: Path) -> bool:
    """Say whether `path` is what a killed process left behind."""
    return path.name.startswith(".") and path.name.endswith(_SUFFIX)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class AppendFile:
    """A file that grows by whole records: an append that fails is cut off again.

    A kill may leave part of a record at the end. Readers pass over it, and whoever opens the file says with `length`
    how much of it is whole.
    """

    def __init__(self, path: Path, length: int):
        self._file = path.open("ab", buffering=0)
        self.cut(length)

    def append(self, record: bytes) -> None:
        """Write one record and wait until it is on the disk."""
        rest = memoryview(record)
        if os.fstat(self._file.fileno()).st_size != self.length:  # an earlier failure could not be cut off
            self.cut(self.length)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except BaseException:
            self.cut(self.length)
            raise
        self.length += len(record)

    def cut(self, length: int) -> None:
        """Keep the first `length` bytes."""
        self._file.truncate(length)
        os.fsync(self._file.fileno())
        self.length = length

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "AppendFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
