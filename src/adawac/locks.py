"""One writer per folder: a lock that the operating system drops when its holder dies."""

import os
import time
from pathlib import Path
from weakref import WeakSet

from adawac.errors import BusyError

__all__ = ["LOCK", "FolderLock", "is_locked"]

LOCK = ".lock"
"""The file in a folder that its writer holds."""

_PATIENCE = 1.0  # seconds; a reader that asks `is_locked` holds the lock for an instant
_held: "WeakSet[FolderLock]" = WeakSet()


class FolderLock:
    """The exclusive right to write to a folder, held until `release` or the end of the process."""

    def __init__(self, folder: Path):
        self._file = (folder / LOCK).open("a+b")
        deadline = time.monotonic() + _PATIENCE
        while not _try_lock(self._file.fileno(), shared=False):
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
    return True


def _release_in_child() -> None:
    # A forked worker shares the lock; it must not keep the folder locked after its parent was killed.
    for lock in _held:
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)
