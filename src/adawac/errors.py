"""Errors that say what was expected, what came and what to do.

Every error that a user can cause is an `AdawacError`: the command line prints its one message and exits with code 2;
in a library it is also the built-in kind that a caller would expect (`ValueError`, `KeyError`, `FileNotFoundError`).
"""

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

_LONGEST = 300  # letters of a reason: some libraries quote the file
_NO_MEMORY = ("out of memory", "allocate memory", "not enough memory", "ALLOC_FAILED")  # of the GPU, the CPU, cuDNN


class AdawacError(Exception):
    """Something a user can fix; the message says how."""

    def __str__(self) -> str:
        """Return the message alone: `KeyError` would quote it."""
        return " ".join(str(argument) for argument in self.args)


class ShapeError(AdawacError, ValueError):
    """A tensor of another shape, type or range than the call needs."""


class TapError(AdawacError, RuntimeError):
    """An encoder tap that has nothing to give, or that cannot be attached."""


class ConfigError(AdawacError, ValueError):
    """A configuration with an unknown key, a wrong type or an impossible combination."""


class UnknownNameError(AdawacError, KeyError):
    """A method, model, source or submodule that does not exist."""


class DataError(AdawacError, ValueError):
    """A scan, a label map or a prepared store that cannot be used as it is."""


class LayoutError(DataError):
    """A folder that is not laid out as a source of scans expects."""


class MissingFileError(AdawacError, FileNotFoundError):
    """A file or folder that is not there."""


class RunError(AdawacError, ValueError):
    """A run folder that is incomplete, in use, or of another version."""


class BusyError(AdawacError, RuntimeError):
    """A folder that another process writes to."""


class MissingDependencyError(AdawacError, ImportError):
    """A library that is not installed, or too old for what was asked."""


@contextmanager
def reading(explain: Callable[[str], AdawacError]) -> Iterator[None]:
    """Turn whatever is raised while a file is read into an error of ours: a damaged file may fail in any way.

    Args:
        explain: Makes the error, given the reason in one line.
    """
    try:
        yield
    except AdawacError:
        raise
    except Exception as error:
        missing = f"it has no {error}" if isinstance(error, KeyError) else ""
        reason = missing or (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        raise explain(" ".join(reason.split())[:_LONGEST]) from error


def lacks_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory ran out: of the GPU, or of the computer.

    Examples:
        >>> lacks_memory(RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB.")), lacks_memory(OSError())
        (True, False)
    """
    text = (str(error).splitlines() or [""])[0]
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in text for words in _NO_MEMORY)
    )


def near(name: str, known: Iterable[str], count: int = 4) -> str:
    """Return a phrase with the known names closest to `name`, for the end of an error message."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=count, cutoff=0.5) or known[:count]
    return ", ".join(repr(candidate) for candidate in close) if close else "none"


def check_known(
    name: str, known: Collection[str], what: str, error: type[AdawacError] = UnknownNameError, count: int = 4
) -> None:
    """Raise an error that lists near names if a name is unknown; `what` says what was expected."""
    if name not in known:
        raise error(f"Expected {what}, but got {name!r}. Near names: {near(name, known, count)}.")
