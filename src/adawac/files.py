"""Files that survive a kill and a full disk, and folders that one process writes at a time."""

import errno
import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from weakref import WeakSet

from adawac.errors import AdawacError, BusyError

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
    """Make a folder with its parents, unless it exists; a file of that name is an error that says so."""
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

    A kill may leave part of a record at the end. Readers skip it, and the writer that opens the file says with
    `length` how much of it is complete.
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


log = logging.getLogger(__name__)

LOCK = ".lock"
"""The file in a folder that its writer holds."""

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # as on some network drives
_PATIENCE = 1.0  # seconds; a reader that asks `is_locked` holds the lock for an instant
_held: "WeakSet[FolderLock]" = WeakSet()


class FolderLock:
    """The exclusive right to write to a folder, held until `release` or the end of the process."""

    def __init__(self, folder: Path):
        self._file = (folder / LOCK).open("a+b")
        deadline = time.monotonic() + _PATIENCE
        while not self._try(folder / LOCK):
            if time.monotonic() > deadline:
                self._file.seek(0)
                holder = self._file.read(20).decode("ascii", "replace").strip() or "unknown"
                self._file.close()
                raise BusyError(
                    f"Expected a folder that no other process writes to, but {folder} is in use by process {holder}. "
                    "Wait for it to end, stop it, or choose another folder."
                )
            time.sleep(0.05)
        self._file.truncate(0)
        self._file.write(str(os.getpid()).encode())
        self._file.flush()
        _held.add(self)

    def _try(self, path: Path) -> bool:
        """Try to lock the file; its last holder may have removed the folder and made it again."""
        if not _try_lock(self._file.fileno(), shared=False):
            return False
        if path.exists() and os.path.samestat(os.fstat(self._file.fileno()), path.stat()):
            return True
        self._file.close()
        self._file = path.open("a+b")
        return False

    def release(self) -> None:
        """Let others write."""
        self._file.close()


def is_locked(folder: Path) -> bool:
    """Say whether a living process writes to the folder."""
    try:
        with (folder / LOCK).open("rb") as file:
            return not _try_lock(file.fileno(), shared=True)
    except OSError:  # no lock file, or one that we may not open
        return False


def _try_lock(descriptor: int, shared: bool) -> bool:
    import fcntl

    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        if not shared:
            log.warning("This file system has no locks (%s): make sure that nothing else writes there.", error.strerror)
    return True


def _release_in_child() -> None:
    # A forked worker shares the lock; it must not keep the folder locked after its parent was killed.
    for lock in _held:
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)
