"""Processes that score cases while the network predicts the next ones.

Threads would not do: scoring is many short calls of NumPy that hold the interpreter's lock (two threads took as long as
one). Each process runs `python -m adawac.evaluation.scorers`: a case in, its scores out, until its input ends. It
imports NumPy and SciPy, but neither torch nor the script that started it. So it is ready before a network is loaded,
the parent's threads and GPU do not matter, and scripts need no `if __name__ == "__main__":`.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Semaphore
from typing import Any, TypeVar

import adawac
from adawac.data.parallel import processors
from adawac.errors import AdawacError, DataError, RunError

Result = TypeVar("Result")

_MOST_WORKERS = 8  # more of them do not finish earlier than the network does
_VOXELS = 8_000_000  # take about as long to score as a process takes to start
_WAITING = 2  # predictions that may wait for each worker: they take memory

Job = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function of a module, which a process imports, and its arguments."""


def default_workers(voxels: int) -> int:
    """Return how many processes score by default: none where scoring takes less time than starting them."""
    return min(processors(), _MOST_WORKERS, voxels // _VOXELS)


class Scorers(AbstractContextManager["Scorers"]):
    """Processes that score cases. They start at once; use it as a context manager to end them.

    Where more cases come than they can take, this process scores some, too; without `workers` it scores all.
    """

    def __init__(self, workers: int):
        self._processes = [_start() for _ in range(workers)]
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(workers, "scorer") if workers else None
        self._room = Semaphore(workers * _WAITING)

    def submit(self, score: Callable[..., Result], *arguments: Any) -> "Future[Result]":
        """Score a case (`score_case` and its like) once a process is free, or right here where enough are in line."""
        if self._threads is None or not self._room.acquire(blocking=False):
            done: Future[Result] = Future()
            done.set_result(score(*arguments))
            return done
        future = self._threads.submit(self._ask, (score, arguments))
        future.add_done_callback(lambda _: self._room.release())
        return future

    def _ask(self, job: Job) -> Any:
        process = self._idle.get()
        try:
            return _ask(process, job)
        finally:
            self._idle.put(process)

    def __exit__(self, *error: object) -> None:
        """End the processes; what nobody waited for is dropped."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()  # they hold nothing, and leaving Python would take them longer
        if self._threads is not None:
            self._threads.shutdown(wait=True)
        for process in self._processes:
            with suppress(BrokenPipeError), process:
                pass  # closes the pipes and waits


@contextmanager
def scoring_bar(total: int, show: bool | None) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each case; the bar is shown on stderr, by default where that is a terminal."""
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("cases", total=total)
        yield lambda: bar.advance(task)


def _start() -> "subprocess.Popen[bytes]":
    source = str(Path(adawac.__file__).resolve().parents[1])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "adawac.evaluation.scorers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join(paths)},
    )


def _ask(process: "subprocess.Popen[bytes]", job: Job) -> Any:
    assert process.stdin is not None  # both are pipes
    assert process.stdout is not None
    try:
        pickle.dump(job, process.stdin)
        process.stdin.flush()
        answer = pickle.load(process.stdout)  # of our own program
    except (BrokenPipeError, EOFError, ValueError, pickle.UnpicklingError) as error:  # it has ended, or we are closing
        raise RunError(
            f"Expected scoring processes to stay alive, but one ended (exit code {process.poll()}), probably for lack "
            "of memory. Use fewer `workers`; 0 scores in the main process."
        ) from error
    if isinstance(answer, Exception):
        raise answer
    return answer


# -- in the process ---------------------------------------------------------------------------------------------------


def main() -> None:
    """Score the cases that come on standard input until it ends."""
    import scipy.ndimage
    import scipy.spatial  # noqa: F401 (what scoring needs is loaded while the parent still loads its network)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which then closes the input
    with suppress(EOFError):
        while True:
            pickle.dump(_answer(*pickle.load(sys.stdin.buffer)), sys.stdout.buffer)
            sys.stdout.flush()


def _answer(score: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Return the scores, or what went wrong as an error that the parent can raise."""
    try:
        return score(*arguments)
    except AdawacError as error:
        return DataError(str(error))
    except Exception as error:
        words = ", ".join(str(argument) for argument in arguments if isinstance(argument, str | Path))
        return RuntimeError(f"{type(error).__name__} in {score.__name__} of {words}: {error}")


if __name__ == "__main__":
    main()
