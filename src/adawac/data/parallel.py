"""Work on many cases: in this process, in several, or on the machines of a Ray cluster, with a progress bar."""

import logging
import os
import pickle
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import partial
from itertools import islice
from multiprocessing import get_context, resource_tracker
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from adawac.errors import ConfigError, DataError
from adawac.lazy import library

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST_ON_WINDOWS = 61  # processes that an executor can wait for there
_WAITING = 4  # jobs that are sent out for each worker: enough to keep it busy, whatever the number of jobs
RAY_RETRIES = 5  # when a machine or a process is lost; a job that fails is not tried again
_KNOCK = 10.0  # seconds to wait for a cluster to answer


def run_jobs(
    function: Callable[[Item], Result],
    jobs: Iterable[Item],
    *,
    title: str,
    workers: int | None = None,
    progress: bool | None = None,
    engine: str = "local",
    address: str | None = None,
    gpu: bool = False,
) -> Iterator[tuple[Item, Result]]:
    """Yield each job with what `function` made of it, as they finish; an exception cancels the rest.

    By default there are as many workers as processors, and a progress bar where stderr is a terminal. Workers import
    modules, but do not run the script that started them, so that needs no `if __name__ == "__main__":`. What they
    cannot import, such as a function of the script itself, is done in this process, as with one worker.

    With the engine `ray`, jobs are tasks of the cluster at `address`, `workers` at a time or as many as it has
    processors for; with `gpu` each takes a GPU where the cluster has some. All machines see the files under the same
    paths. A job whose machine is lost is done again elsewhere, so `function` must be able to find its work done.
    """
    from rich.console import Console
    from rich.progress import Progress

    jobs = list(jobs)
    check_workers(workers)
    check_engine(engine, address)
    most = _MOST_ON_WINDOWS if os.name == "nt" else len(jobs)
    on_ray = engine == "ray" and bool(jobs)
    here = min(workers or processors(), len(jobs), most) or 1
    show = sys.stderr.isatty() if progress is None else progress
    packed = _packed(function, jobs) if here > 1 or on_ray else None
    finished: Iterator[tuple[Item, Result]] = ((job, function(job)) for job in jobs)
    if packed is not None:
        finished = _on_ray(packed, jobs, workers, address, gpu) if on_ray else _in_processes(packed, jobs, here)
    with Progress(console=Console(stderr=True), disable=not show) as bar:
        yield from bar.track(finished, total=len(jobs), description=title)


def check_engine(engine: str, address: str | None) -> None:
    """Check what runs the jobs before work begins."""
    if engine not in ("local", "ray"):
        raise ConfigError(f"Expected the engine local or ray, but got {engine!r}. Change --engine.")
    if engine == "local" and address is not None:
        raise ConfigError("Expected no address for the local engine, but got one. Add --engine ray, or leave it out.")
    if engine == "ray":
        library("ray", "adawac[ray]")


def share_of(shard: str | None) -> slice:
    """Return which items of a list are those of a shard `K/N`: every Nth from the Kth on; all without a shard.

    Examples:
        >>> list("abcdefg")[share_of("2/3")]
        ['b', 'e']
    """
    if shard is None:
        return slice(None)
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    number, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= count:
        raise ConfigError(f"Expected a shard as K/N with K from 1 to N, such as 2/8, but got {shard!r}.")
    return slice(number - 1, None, count)


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def max_ranks() -> int:
    """Return how many processes may train together on the CPU: one on each processor, but two anywhere, to try it."""
    return max(2, processors())


def check_workers(workers: int | None) -> None:
    """Check the number of processes before work begins."""
    if workers is not None and workers < 1:
        raise ConfigError(f"Expected at least one worker process, but got {workers}. Leave it out for all processors.")


def _packed(function: Callable[[Any], Any], jobs: list[Any]) -> bytes | None:
    """Return a function as bytes for other processes, or None where these could not unpack it or its jobs."""
    try:
        packed = pickle.dumps(function)
        if b"__main__" not in packed + pickle.dumps(jobs[0]):
            return packed
        reason = "a class or function is defined in the script itself: move it to a module of its own"
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        reason = str(error)
    log.warning("The work is done in one process, as other processes cannot import what it needs (%s).", reason)
    return None


def _in_processes(function: bytes, jobs: list[Item], workers: int) -> Iterator[tuple[Item, Any]]:
    # Spawned, not forked: the parent may hold threads (torch, a GPU) that a fork would copy in an unknown state.
    # The function may carry a source with thousands of paths: it is sent once to each process, not with every job, and
    # by a file: starting a process that dies before it has read more than a pipe holds would take for ever.
    with TemporaryDirectory(prefix="adawac-") as folder:
        path = Path(folder, "function.pickle")
        path.write_bytes(function)
        yield from _in_pool(path, jobs, workers)


def _in_pool(function: Path, jobs: list[Item], workers: int) -> Iterator[tuple[Item, Any]]:
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_receive, initargs=(function,)) as pool:

        def start(job: Item) -> "Future[Any]":
            with out_of_reach(), _without_the_script():  # it may start a process
                return pool.submit(_call, job)

        def wait_for_some(futures: Iterable["Future[Any]"]) -> Iterable["Future[Any]"]:
            return wait(futures, return_when=FIRST_COMPLETED).done

        try:
            for job, future in _some_at_a_time(start, wait_for_some, jobs, _WAITING * workers):
                yield job, future.result()
        except BrokenExecutor as error:
            raise DataError(
                f"Expected {workers} worker processes to stay alive, but one died, probably for lack of memory. Run it "
                "again with fewer workers (1 stays in this process); what is finished is kept."
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _some_at_a_time(
    start: Callable[[Item], Any], wait_for_some: Callable[[list[Any]], Iterable[Any]], jobs: list[Item], most: int
) -> Iterator[tuple[Item, Any]]:
    """Yield each job with its handle, as they end; so many are under way that memory does not grow with the jobs."""
    waiting, running = iter(jobs), dict[Any, Item]()
    while True:
        running.update((start(job), job) for job in islice(waiting, most - len(running)))
        if not running:
            return
        for handle in wait_for_some(list(running)):
            yield running.pop(handle), handle


@contextmanager
def out_of_reach() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach: the parent receives it and lets them finish their jobs."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which, when it starts, unblocks what is blocked here
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


@contextmanager
def _without_the_script() -> Iterator[None]:
    """Start processes that do not run the script again: they would, to find there what was sent to them."""
    script: dict[str, Any] = vars(sys.modules["__main__"])
    hidden: dict[str, Any] = {name: script[name] for name in ("__file__", "__spec__") if name in script}
    script.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        script.update(hidden)


_received: list[Callable[[Any], Any]] = []


def _receive(function: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it could not be blocked
    _received.append(pickle.loads(function.read_bytes()))


def _call(job: Any) -> Any:
    return _received[-1](job)


# -- on a Ray cluster -------------------------------------------------------------------------------------------------


def _on_ray(
    function: bytes, jobs: list[Item], workers: int | None, address: str | None, gpu: bool
) -> Iterator[tuple[Item, Any]]:
    with ray_session(address) as ray:
        cluster = ray.cluster_resources()
        kind = "GPU" if gpu and cluster.get("GPU", 0) >= 1 else "CPU"
        need = {"num_cpus": 1, "num_gpus": int(kind == "GPU")}
        task = ray.remote(max_retries=RAY_RETRIES, retry_exceptions=False, **need)(_call_on_ray)
        send = partial(task.remote, token_hex(8), [ray.put(function)], Path.cwd())
        most = workers or _WAITING * max(1, int(cluster.get(kind, 1)))
        under_way: list[Any] = []

        def wait_for_some(tasks: list[Any]) -> Iterable[Any]:
            under_way[:] = tasks
            ended: list[Any] = ray.wait(tasks, num_returns=1)[0]
            return ended

        try:
            for job, ended in _some_at_a_time(send, wait_for_some, jobs, most):
                yield job, _ray_result(ray, ended)
        except BaseException:
            _, unfinished = ray.wait(under_way, num_returns=len(under_way), timeout=0) if under_way else ([], [])
            for reference in unfinished:  # Ray dies of a task that is cancelled as it ends
                ray.cancel(reference, force=False)
            raise


def _ray_result(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise DataError(f"{ray_loss(error)} What is finished is kept.") from error


def ray_loss(error: Exception) -> str:
    """Return why Ray gave a task up, and what helps."""
    first = str(error).strip().splitlines()[0]
    return (
        f"Ray lost it {RAY_RETRIES + 1} times ({type(error).__name__}: {first.rstrip('.')}). Too little memory is a "
        "common cause."
    )


_sent: dict[str, Callable[[Any], Any]] = {}


def _call_on_ray(key: str, function: list[Any], folder: Path, job: Any) -> Any:
    """Do a job in a process of the cluster, which unpacks the function of a call once and keeps it."""
    if key not in _sent:
        try:
            os.chdir(folder)  # relative paths mean what they mean in the process that asked
        except OSError as error:
            raise DataError(
                f"Expected every machine of the cluster to see {folder}, but {socket.gethostname()} does not "
                f"({error.strerror}). Use a folder that all share."
            ) from error
        _sent.clear()
        _sent[key] = pickle.loads(library("ray", "adawac[ray]").get(function[0]))
    return _sent[key](job)


@contextmanager
def ray_session(address: str | None) -> Iterator[Any]:
    """Yield `ray`, connected to the cluster at an address (`auto`, `HOST:PORT`, `ray://…`); None starts one here."""
    ray: Any = library("ray", "adawac[ray]")
    with ExitStack() as stack:
        if not ray.is_initialized():
            stack.enter_context(same_sigterm())
            _connect(ray, address)
            stack.callback(ray.shutdown)
        stack.enter_context(redirect_stdout(sys.stderr))  # Ray prints what it lost; results go to stdout
        yield ray


@contextmanager
def same_sigterm() -> Iterator[None]:
    """Put this process's handler of SIGTERM back at the end: `ray.init` leaves one that exits at once."""
    former = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # elsewhere Ray sets none, and neither may we
            signal.signal(signal.SIGTERM, former)


def _connect(ray: Any, address: str | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else a cluster started here reports to Ray's makers
    try:
        _check_reachable(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=True)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"Expected a Ray cluster at {address or 'this machine'}, but got: {first.rstrip('.')}. Start one with "
            "`ray start --head`, or check --address."
        ) from error


def _check_reachable(address: str | None) -> None:
    """Knock at HOST:PORT: Ray itself would try for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK).close()
