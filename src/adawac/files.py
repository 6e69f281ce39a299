"""Files that survive a kill and a full disk, and folders that one process writes at a time."""

import csv
import errno
import logging
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from filelock import lock_descriptor

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
        _sync(temporary, os.O_RDWR)
        _replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if hasattr(os, "O_DIRECTORY"):  # Windows opens no folders
        _sync(path.parent, os.O_RDONLY)  # the new name is on the disk too


def make_folder(path: Path) -> None:
    """Make a folder with its parents, unless it exists; a file of that name is an error that says so."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, "it is a file", str(path)) from error


def is_hub_address(source: Path | str) -> bool:
    """Say whether this is `hf://owner/name`, also as a path, which has lost one of the slashes."""
    return Path(source).as_posix().startswith("hf:/")


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step."""
    with beside(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_csv(
    path: Path,
    columns: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    *,
    encoding: str = "utf-8",
    errors: str = "strict",
    **form: Any,
) -> None:
    """Write rows as CSV in one step, below the names of the columns; `form` is that of `csv.DictWriter`."""
    with beside(path) as temporary, temporary.open("w", newline="", encoding=encoding, errors=errors) as file:
        writer = csv.DictWriter(file, columns, **form)
        writer.writeheader()
        writer.writerows(rows)


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


def _replace(temporary: Path, path: Path) -> None:
    """Replace `path`; Windows refuses that while somebody has it open, such as a report that is being drawn."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            temporary.replace(path)
            return
        except PermissionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class AppendFile(AbstractContextManager["AppendFile"]):
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

    def __exit__(self, *error: object) -> None:
        self.close()


log = logging.getLogger(__name__)

LOCK = ".lock"
"""The file in a folder that its writer holds."""

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # as on some network drives
_PATIENCE = 1.0  # seconds; a reader that asks `is_locked` holds the lock for an instant
_held: "WeakSet[FolderLock]" = WeakSet()


class FolderLock:
    """The exclusive right to write to a folder, held until `release` or the end of the process.

    Args:
        folder: The folder, which must exist.
        patience: Seconds to wait for another holder.
    """

    def __init__(self, folder: Path, patience: float = _PATIENCE):
        self._file = (folder / LOCK).open("a+b")
        deadline = time.monotonic() + patience
        while not self._try(folder / LOCK):
            if time.monotonic() > deadline:
                self._file.seek(1)  # Windows lets nobody read the first byte, which is locked
                holder = self._file.read(20).decode("ascii", "replace").strip() or "unknown"
                self._file.close()
                raise BusyError(
                    f"Expected a folder that no other process writes to, but {folder} is in use by process {holder}. "
                    "Wait for it to end, stop it, or choose another folder."
                )
            time.sleep(0.05)
        self._file.truncate(0)
        self._file.write(f" {os.getpid()}".encode())
        self._file.flush()
        _held.add(self)

    def _try(self, path: Path) -> bool:
        """Try to lock the file; its last holder may have removed the folder and made it again."""
        try:
            if not lock_descriptor(self._file.fileno(), blocking=False):
                return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            log.warning("%s has no locks (%s): make sure that nothing else writes there.", path.parent, error.strerror)
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
    for mode in ("r+b", "rb"):  # NFS locks nothing that is open for reading only; a colleague may only read
        with suppress(OSError), (folder / LOCK).open(mode) as file:
            for _ in range(3):  # another reader holds it for an instant
                if lock_descriptor(file.fileno(), blocking=False):
                    return False
                time.sleep(0.01)
            return True
    return False


def _release_in_child() -> None:
    # A forked worker shares the lock; it must not keep the folder locked after its parent was killed.
    for lock in _held:
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
