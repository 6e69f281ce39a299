"""Engines: what runs jobs. Each takes jobs, runs several at a time, and reports their progress."""

import contextlib
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Protocol

from adawac.errors import ConfigError
from adawac.reproduction.jobs import Job, Outcome
from adawac.reproduction.worker import can_serve_again, interrupt, serve


class Watch(Protocol):
    """Who wants to know how jobs go."""

    def started(self, job: Job) -> None:
        """A job runs."""

    def ended(self, job: Job, outcome: Outcome) -> None:
        """A job has ended, well or not."""

    def tick(self) -> None:
        """Some time has passed."""


class Engine(Protocol):
    """Runs jobs, several at a time."""

    def run(self, jobs: Sequence[Job], watch: Watch) -> None:
        """Run all jobs, whatever becomes of the others; Ctrl-C stops all of them, saved, and is raised again."""


def build_engine(name: str, *, address: str | None = None, at_once: int | None = None) -> Engine:
    """Return the engine of that name.

    Args:
        name: `local` or `ray`.
        address: Of a Ray cluster; None starts one on this machine.
        at_once: How many jobs at a time; None lets the engine decide.
    """
    if at_once is not None and at_once < 1:
        raise ConfigError(f"Expected at least 1 job at a time, but got {at_once}. Raise --jobs.")
    if name == "local":
        if address is not None:
            raise ConfigError(
                "Expected no address for the local engine, but got one. Add --engine ray, or leave it out."
            )
        return LocalEngine(at_once)
    if name == "ray":
        from adawac.reproduction.ray_engine import RayEngine

        return RayEngine(address, at_once)
    raise ConfigError(f"Expected the engine local or ray, but got {name!r}. Correct it.")


_TICK = 0.5  # seconds
_PRELOAD = ["adawac.reproduction.preloading"]  # by the process that forks the others


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A place for one job at a time.

    Attributes:
        devices: Its GPUs, as CUDA_VISIBLE_DEVICES; None for a place without a GPU.
        threads: Threads of torch; None leaves that to torch.
    """

    devices: str | None = None
    threads: int | None = None


def find_slots(jobs: Sequence[Job], at_once: int | None = None) -> list[Slot]:
    """Return the places of this machine: one for each GPU (or as many as a job wants), without GPUs one.

    Args:
        jobs: What is to run.
        at_once: How many places; where that is more than there are GPUs, jobs share them.
    """
    hardware = [job.config.hardware for job in jobs]
    each = max((one.devices for one in hardware), default=1)
    gpus = [] if all(one.accelerator == "cpu" for one in hardware) else _visible_gpus()
    groups = [",".join(gpus[first : first + each]) for first in range(0, len(gpus) - each + 1, each)]
    if groups:
        return [Slot(devices=groups[place % len(groups)]) for place in range(at_once or len(groups))]
    count = at_once or 1
    # Several jobs share the processors; one alone takes what torch takes.
    threads = max(1, (os.cpu_count() or 1) // count) if count > 1 else None
    return [Slot(threads=threads)] * count


def _visible_gpus() -> list[str]:
    import torch

    count = torch.cuda.device_count()  # asks the driver, without starting CUDA in this process
    named = [one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


class _Place:
    """A slot with its process, which runs one job after the other; one that is gone is replaced for the next job."""

    def __init__(self, slot: Slot):
        self.slot = slot
        self.process: Any = None
        self.line: Any = None
        self.job: Job | None = None

    def begin(self, job: Job) -> None:
        """Let the process run a job."""
        if self.process is None or not self.process.is_alive():
            self.close()
            self._start()
        self.job = job
        with contextlib.suppress(OSError):  # it has died this very moment: `end` says so
            self.line.send(job)

    def _start(self) -> None:
        # CUDA does not survive a fork: with a GPU each process begins from nothing.
        context: Any = multiprocessing.get_context("forkserver" if self.slot.devices is None else "spawn")
        if self.slot.devices is None:
            context.set_forkserver_preload(_PRELOAD)
        self.line, theirs = context.Pipe()
        self.process = context.Process(
            target=serve, args=(theirs, self.slot.devices, self.slot.threads), name="adawac-job"
        )
        self.process.start()
        theirs.close()

    @property
    def signs(self) -> list[Any]:
        """What `multiprocessing.connection.wait` waits for: word from the process, or its end."""
        return [self.line, self.process.sentinel]

    def end(self) -> tuple[Job, Outcome]:
        """Return the job and how it ended; a process that was killed sent no word."""
        assert self.job is not None
        job, self.job = self.job, None
        try:
            if self.line.poll():
                outcome: Outcome = self.line.recv()
                if not can_serve_again(job, outcome):
                    self.close()
                return job, outcome
        except (EOFError, OSError):
            pass
        self.close()
        return job, Outcome(status="failed", reason=_why_silent(self.process.exitcode))

    def interrupt(self) -> None:
        """Let the job save and end."""
        if self.process is not None and self.process.is_alive():
            interrupt(self.process.pid)

    def kill(self) -> None:
        """End the process, whatever it does."""
        if self.process is not None:
            self.process.kill()

    def close(self) -> None:
        """Wait for the end of the process, which ends when there is nothing left to do."""
        if self.process is not None:
            self.line.close()
            self.process.join()


def _why_silent(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"Its process was killed ({name}); too little memory is a common cause. Lower --jobs and try again."
    return f"Its process ended with exit code {code} and no word. See its log."


class LocalEngine:
    """Runs jobs in processes of this machine, which are kept: to start Python and torch for each would cost seconds.

    Args:
        at_once: How many at a time; None: one for each GPU, or 1.
    """

    def __init__(self, at_once: int | None = None):
        self.at_once = at_once

    def run(self, jobs: Sequence[Job], watch: Watch) -> None:
        """Run all jobs; see `adawac.reproduction.engines.Engine`."""
        places = [_Place(slot) for slot in find_slots(jobs, self.at_once)]
        waiting, free, busy = deque(jobs), deque(places), list[_Place]()
        try:
            while waiting or busy:
                while waiting and free:
                    busy.append(free.popleft())
                    job = waiting.popleft()
                    busy[-1].begin(job)
                    watch.started(job)
                ready = wait([sign for place in busy for sign in place.signs], timeout=_TICK)
                for place in [one for one in busy if any(sign in ready for sign in one.signs)]:
                    busy.remove(place)
                    free.append(place)
                    watch.ended(*place.end())
                watch.tick()
        except BaseException:
            _stop(busy)
            raise
        finally:
            for place in places:
                place.close()


def _stop(busy: Sequence[_Place]) -> None:
    """Let all jobs save and end; a second Ctrl-C kills them."""
    try:
        for place in busy:
            place.interrupt()
        for place in busy:
            place.close()
    except KeyboardInterrupt:
        for place in busy:
            place.kill()
        raise
