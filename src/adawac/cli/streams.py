"""The standard streams as they may be: closed, on a full disk, a pipe that nobody reads, a terminal without β."""

import io
import os
import sys
from typing import TextIO

__all__ = ["discard_unwritable", "open_streams"]

_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}


def open_streams() -> None:
    """Make all three streams usable: a closed one is nowhere, and a terminal that has no β shows ? in its place."""
    for number, (name, mode) in enumerate(_MODES.items()):
        if getattr(sys, name) is None:
            # The lowest free number is the closed stream's own; the next file that is opened would take it, and get
            # whatever a library prints.
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, descriptor == number)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def discard_unwritable(stream: TextIO) -> None:
    """Let what waits in a stream that cannot be written go nowhere: Python would complain about it at exit."""
    try:
        stream.flush()
    except OSError:
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, stream.fileno())
        os.close(descriptor)
