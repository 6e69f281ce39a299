"""Following a run: its folder is read again and again until the run has ended; there is no server."""

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from adawac.errors import MissingFileError, RunError
from adawac.report.page import write_report
from adawac.runs import Run

__all__ = ["follow", "watch_page"]

log = logging.getLogger(__name__)

Sleep = Callable[[float], None]


def follow(folder: Path | str, *, every: float = 5.0, wait: bool = False, sleep: Sleep = time.sleep) -> Iterator[Run]:
    """Yield a run anew every few seconds; the last one has ended, well or not.

    A run whose process died without a word counts as interrupted, and ends this too.

    Args:
        folder: The run folder.
        every: Seconds between two looks.
        wait: Wait for a folder that is not there yet; otherwise that is an error.
        sleep: What waits.
    """
    if every <= 0:
        raise RunError(
            f"Expected a positive number of seconds between two looks, but got {every:g}. Give for example 5."
        )
    while True:
        try:
            run = Run(folder)
        except MissingFileError:
            if not wait:
                raise
            sleep(every)
            continue
        wait = False  # from now on, a folder that is gone is an error
        status = run.status
        yield run
        if status != "running":
            return
        sleep(every)


def watch_page(run: Run, out: Path, *, every: float) -> None:
    """Write the report of a run that may go on; as long as it does, the page loads itself again.

    What cannot be read at this moment, because it is being written, is a reason to keep the last page.
    """
    going = run.status == "running"
    try:
        write_report(run, out, refresh=every if going else None)
    except (RunError, OSError, ValueError) as error:
        if not going or not out.is_file():
            raise
        log.warning("The page is not up to date: %s", error)
