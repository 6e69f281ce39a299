"""Work on many cases: in this process or in several, with a progress bar."""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context, resource_tracker
from typing import Any, TypeVar

from adawac.errors import ConfigError, DataError

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_jobs(
    function: Callable[[Item], Result],
    jobs: Iterable[Item],
    *,
    title: str,
    workers: int | None = None,
    progress: bool | None = None,
) -> Iterator[tuple[Item, Result]]:
    """Yield each job with what `function` made of it, as they finish; an exception cancels the rest.

    Args:
        function: A function of a module, so that another process can import it.
        jobs: Its arguments; they are sent to the processes.
        title: What the progress bar says.
        workers: Processes; all processors by default. 1 stays in this process.
        progress: Show a progress bar on stderr; by default where that is a terminal.
    """
    from rich.console import Console
    from rich.progress import Progress

    jobs = list(jobs)
    check_workers(workers)
    workers = min(workers or _processors(), len(jobs)) or 1
    show = sys.stderr.isatty() if progress is None else progress
    finished = ((job, function(job)) for job in jobs) if workers == 1 else _in_processes(function, jobs, workers)
    with Progress(console=Console(stderr=True), disable=not show) as bar:
        yield from bar.track(finished, total=len(jobs), description=title)


def check_workers(workers: int | None) -> None:
    """Check the number of processes before work begins."""
    if workers is not None and workers < 1:
        raise ConfigError(f"Expected at least one worker process, but got {workers}. Leave it out for all processors.")


def _in_processes(function: Callable[[Item], Result], jobs: list[Item], workers: int) -> Iterator[tuple[Item, Result]]:
    # Spawned, not forked: the parent may hold threads (torch, a GPU) that a fork would copy in an unknown state.
    # The function may carry a source with thousands of paths: it is sent once to each process, not with every job.
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_receive, initargs=(function,)) as pool:
        with _out_of_reach():
            futures: dict[Future[Result], Item] = {pool.submit(_call, job): job for job in jobs}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenExecutor as error:
            raise DataError(
                f"Expected {workers} worker processes to stay alive, but one died: it ran out of memory, or your "
                'script starts them without `if __name__ == "__main__":`. Run it again with fewer workers (1 stays in '
                "this process); what is finished is kept."
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _out_of_reach() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach: the parent receives it and lets them finish their jobs."""
    resource_tracker.ensure_running()  # which, when it starts, unblocks what is blocked here
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


_received: list[Callable[[Any], Any]] = []


def _receive(function: Callable[[Any], Any]) -> None:
    _received.append(function)


def _call(job: Any) -> Any:
    return _received[-1](job)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
