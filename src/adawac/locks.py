"""One writer per folder: a lock that the operating system drops when its holder dies."""

import errno
import logging
import os
import time
from pathlib import Path
from weakref import WeakSet

from adawac.errors import BusyError

__all__ = ["LOCK", "FolderLock", "is_locked"]

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
                    f"Expected a folder that nobody writes to, but {folder} is in use by process {holder}. "
                    "Wait for it to end, stop it, or choose another folder."
                )
            time.sleep(0.05)
        self._file.truncate(0)
        self._file.write(str(os.getpid()).encode())
        self._file.flush()
        _held.add(self)

    def _try(self, path: Path) -> bool:
        """Try to lock the file that is there; whoever held it may have removed the folder, and made it again."""
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
    except OSError:  # no lock, or none that we may open: nobody that we know of
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
            log.warning("This file system has no locks (%s): see to it that nobody else writes there.", error.strerror)
    return True


def _release_in_child() -> None:
    # A forked worker shares the lock; it must not keep the folder locked after its parent was killed.
    for lock in _held:
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)
