"""Jobs as processes of this machine, one for each GPU by default."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from adawac.reproduction.engines import Watch
from adawac.reproduction.jobs import Job, Outcome
from adawac.reproduction.worker import run_in_process

__all__ = ["LocalEngine", "Slot", "find_slots"]

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


@dataclass(kw_only=True, eq=False)
class _Running:
    """A job that runs."""

    job: Job
    slot: Slot
    process: Any
    answer: "Connection[None, Outcome]"

    def outcome(self) -> Outcome:
        """Return how the process ended; one that was killed sent no word."""
        self.process.join()
        try:
            if self.answer.poll():
                return self.answer.recv()
        except EOFError:
            pass
        finally:
            self.answer.close()
        code = self.process.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            reason = (
                f"Its process was killed ({name}); too little memory is a common cause. Lower --jobs and try again."
            )
        else:
            reason = f"Its process ended with exit code {code} and no word. See its log."
        return Outcome(status="failed", reason=reason)


class LocalEngine:
    """Runs jobs as processes of this machine.

    Args:
        at_once: How many at a time; None: one for each GPU, or 1.
    """

    def __init__(self, at_once: int | None = None):
        self.at_once = at_once

    def run(self, jobs: Sequence[Job], watch: Watch) -> None:
        """Run all jobs; see `adawac.reproduction.engines.Engine`."""
        waiting, free = deque(jobs), deque(find_slots(jobs, self.at_once))
        running: list[_Running] = []
        try:
            while waiting or running:
                while waiting and free:
                    running.append(_start(waiting.popleft(), free.popleft()))
                    watch.started(running[-1].job)
                ready = wait([one.process.sentinel for one in running], timeout=_TICK)
                for one in [one for one in running if one.process.sentinel in ready]:
                    running.remove(one)
                    free.append(one.slot)
                    watch.ended(one.job, one.outcome())
                watch.tick()
        except BaseException:
            _stop(running)
            raise


def _start(job: Job, slot: Slot) -> _Running:
    # CUDA does not survive a fork: with a GPU each process begins from nothing, for a job that is long anyway.
    context: Any = multiprocessing.get_context("forkserver" if slot.devices is None else "spawn")
    if slot.devices is None:
        context.set_forkserver_preload(_PRELOAD)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=run_in_process, args=(job, theirs, slot.devices, slot.threads), name=job.name)
    process.start()
    theirs.close()
    return _Running(job=job, slot=slot, process=process, answer=ours)


def _stop(running: Sequence[_Running]) -> None:
    """Let all jobs save and end; a second Ctrl-C kills them."""
    try:
        for one in running:
            if one.process.is_alive():
                os.kill(one.process.pid, signal.SIGINT)
        for one in running:
            one.process.join()
    except KeyboardInterrupt:
        for one in running:
            one.process.kill()
            one.process.join()
        raise
