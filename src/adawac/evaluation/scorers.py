"""Processes that score cases while the network predicts the next ones.

Threads would not do: scoring is many short calls of NumPy that hold the interpreter's lock (two threads took as long as
one). Each process runs `python -m adawac.evaluation.scorers`: a line of JSON in, a line of JSON out, until its input
ends. It imports NumPy and SciPy, but neither torch nor the script that started it. So it is ready before a network is
loaded, the parent's threads and GPU do not matter, and scripts need no `if __name__ == "__main__":`. The prediction
comes as a file, which the process removes.
"""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Semaphore
from typing import Any

import numpy as np

import adawac
from adawac.errors import AdawacError, DataError, RunError
from adawac.evaluation.case_scores import CaseResult, Rules, score_case
from adawac.metrics.surfaces import Array

_MOST_WORKERS = 8  # more of them do not finish earlier than the network does
_VOXELS = 8_000_000  # take about as long to score as a process takes to start
_WAITING = 2  # predictions that may wait for each worker: they take disk space


def default_workers(voxels: int) -> int:
    """Return how many processes score by default: none where scoring takes less time than starting them."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(processors, _MOST_WORKERS, voxels // _VOXELS)


class Scorers:
    """Processes that score cases. They start at once; use it as a context manager to end them.

    Where more cases come than they can take, this process scores some, too.

    Args:
        workers: How many; 0 scores in this process alone.
    """

    def __init__(self, workers: int):
        self._processes = [_start() for _ in range(workers)]
        self._idle: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(workers, "scorer") if workers else None
        self._room = Semaphore(workers * _WAITING)
        self._folder = TemporaryDirectory(prefix="adawac-")
        self._count = 0

    def submit(self, store: Path, case: str, prediction: Array, rules: Rules) -> "Future[CaseResult]":
        """Score a case (see `score_case`) as soon as a process is free, or right here where enough are in line."""
        if self._threads is None or not self._room.acquire(blocking=False):
            done: Future[CaseResult] = Future()
            done.set_result(score_case(store, case, prediction, rules))
            return done
        self._count += 1
        path = Path(self._folder.name) / f"{self._count}.npy"
        np.save(path, prediction)
        job = {"store": str(store.absolute()), "case": case, "prediction": str(path), "rules": asdict(rules)}
        future = self._threads.submit(self._ask, json.dumps(job))
        future.add_done_callback(lambda _: self._room.release())
        return future

    def _ask(self, job: str) -> CaseResult:
        process = self._idle.get()
        try:
            return _ask(process, job)
        finally:
            self._idle.put(process)

    def close(self) -> None:
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
        self._folder.cleanup()

    def __enter__(self) -> "Scorers":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _start() -> "subprocess.Popen[str]":
    source = str(Path(adawac.__file__).resolve().parents[1])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "adawac.evaluation.scorers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join(paths), "PYTHONIOENCODING": "utf-8"},
    )


def _ask(process: "subprocess.Popen[str]", job: str) -> CaseResult:
    assert process.stdin is not None  # both are pipes
    assert process.stdout is not None
    try:
        process.stdin.write(job + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except (BrokenPipeError, ValueError):  # it has ended, or we are closing
        line = ""
    if not line:
        raise RunError(
            f"Expected scoring processes to stay alive, but one ended (exit code {process.poll()}), probably for lack "
            "of memory. Use fewer --workers; 0 scores in the main process."
        )
    answer = json.loads(line)
    if "fault" in answer:
        raise DataError(answer["fault"])
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return CaseResult.from_dict(answer)


# -- in the process ---------------------------------------------------------------------------------------------------


def main() -> None:
    """Score the cases named on standard input until it ends."""
    import scipy.ndimage
    import scipy.spatial  # noqa: F401 (what scoring needs is loaded while the parent still loads its network)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which then closes the input
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_answer(json.loads(line))) + "\n")
        sys.stdout.flush()


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    path = Path(job["prediction"])
    try:
        prediction = np.load(path, allow_pickle=False)
        path.unlink()
        return score_case(job["store"], job["case"], prediction, Rules(**job["rules"])).to_dict()
    except AdawacError as error:
        return {"fault": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__} in case {job['case']}: {error}"}


if __name__ == "__main__":
    main()
