"""Engines: what runs jobs. Each takes jobs, runs several at a time, and reports their progress."""

import contextlib
import math
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from adawac.data.parallel import RAY_RETRIES, check_engine, out_of_reach, ray_loss, ray_session
from adawac.errors import ConfigError
from adawac.lazy import library
from adawac.reproduction.jobs import INTERRUPTED, Job, JobOutcome, attempt

TICK = 0.5  # seconds


class GridProgress:
    """Is told how the jobs of a grid go; this one shows nothing."""

    def planned(self, jobs: Sequence[Job], done: int) -> None:
        """These jobs are to run; so many of them are done."""

    def started(self, job: Job) -> None:
        """A job runs."""

    def ended(self, job: Job, outcome: JobOutcome) -> None:
        """A job has ended, well or not."""

    def tick(self) -> None:
        """Some time has passed."""


class Engine(Protocol):
    """Runs jobs, several at a time."""

    def run(self, jobs: Sequence[Job], progress: GridProgress, end: float = math.inf) -> dict[Job, JobOutcome]:
        """Run all jobs, in their order, whatever becomes of the others; return how those that began ended.

        Ctrl-C saves and stops all of them, and is raised again. At the time `end` (of `time.monotonic`) those that run
        are saved and stopped, too, and no other job begins.
        """


def build_engine(name: str, *, address: str | None = None, at_once: int | None = None) -> Engine:
    """Return the engine of that name (`local` or `ray`), with `at_once` jobs at a time; None lets it decide.

    `address` is that of a Ray cluster; None starts one on this machine.
    """
    if at_once is not None and at_once < 1:
        raise ConfigError(f"Expected at least 1 job at a time, but got {at_once}. Raise --jobs.")
    check_engine(name, address)
    if name == "local":
        return LocalEngine(at_once)
    return RayEngine(address, at_once)


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Room for one job at a time.

    Attributes:
        devices: Its GPUs, as CUDA_VISIBLE_DEVICES; None without a GPU.
        threads: Threads of torch; None leaves that to torch.
    """

    devices: str | None = None
    threads: int | None = None


def find_slots(jobs: Sequence[Job], at_once: int | None = None) -> list[Slot]:
    """Return the slots of this machine: one for each GPU (or as many as a job wants), without GPUs one.

    Where `at_once` asks for more of them than there are GPUs, jobs share these.
    """
    hardware = [job.config.hardware for job in jobs]
    each = max((wanted.devices for wanted in hardware), default=1)
    gpus = [] if all(wanted.accelerator == "cpu" for wanted in hardware) else _visible_gpus()
    groups = [",".join(gpus[first : first + each]) for first in range(0, len(gpus) - each + 1, each)]
    if groups:
        return [Slot(devices=groups[number % len(groups)]) for number in range(at_once or len(groups))]
    count = at_once or 1
    # Several jobs share the processors; a single one takes what torch takes.
    threads = max(1, (os.cpu_count() or 1) // count) if count > 1 else None
    return [Slot(threads=threads)] * count


def _visible_gpus() -> list[str]:
    import torch

    count = torch.cuda.device_count()  # asks the driver, without starting CUDA in this process
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


class _JobProcess:
    """A job in a process of its own."""

    def __init__(self, job: Job, slot: Slot):
        self.job, self.slot = job, slot
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self._receiver, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_run_job, args=(job, slot, sender), name="adawac-job")
        with out_of_reach():  # the process inherits that until it is ready
            self._process.start()
        sender.close()

    @property
    def sentinel(self) -> int:
        """What `multiprocessing.connection.wait` waits for: the end of the process."""
        return self._process.sentinel

    def outcome(self) -> JobOutcome:
        """Wait for the end of the process, and return how the job ended; a process that was killed sent nothing."""
        self._process.join()
        with contextlib.closing(self._receiver), contextlib.suppress(EOFError):
            if self._receiver.poll():  # a process that it left behind may keep the line open
                outcome: JobOutcome = self._receiver.recv()
                return outcome
        return JobOutcome(status="failed", reason=_why_silent(self._process.exitcode))

    def interrupt(self) -> None:
        """Let the job save and end, as Ctrl-C on a terminal would."""
        if self._process.is_alive() and self._process.pid is not None:
            _interrupt(self._process.pid)

    def kill(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()


def _run_job(job: Job, slot: Slot, sender: "Connection[Any, Any]") -> None:
    """Run a job in this process, and send how it ended."""
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C reaches the process that started this one, which passes it on once
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs would ignore it
    if slot.devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = slot.devices
    outcome = JobOutcome(status="interrupted", reason=INTERRUPTED)
    with contextlib.suppress(KeyboardInterrupt):  # before the job has begun, or after its end
        threading.Thread(target=_stop_when_alone, daemon=True).start()  # it keeps SIGINT blocked
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        if slot.threads is not None:
            import torch

            torch.set_num_threads(slot.threads)
        outcome = attempt(job)
    with contextlib.suppress(BrokenPipeError):  # the receiver is gone
        sender.send(outcome)


def _stop_when_alone() -> None:
    """Save and stop when the process that started this one is gone: nobody else would know of it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        _interrupt(os.getpid())


def _interrupt(pid: int) -> None:
    """Interrupt a process of `_run_job` and its children.

    Where several ranks train, these take Ctrl-C, and the process that waits for them does not: all have to hear it.
    Windows can only end it: what it did since its last checkpoint is lost.
    """
    with contextlib.suppress(ProcessLookupError):  # it has ended this very moment
        # Else its group is still that of the process that started it.
        leads_group = hasattr(os, "killpg") and os.getpgid(pid) == pid
        (os.killpg if leads_group else os.kill)(pid, signal.SIGINT)


def _why_silent(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"Its process was killed ({name}); too little memory is a common cause. Lower --jobs and try again."
    return f"Its process ended with exit code {code} and no word. See its log."


class LocalEngine:
    """Runs jobs on this machine, each in a process of its own, `at_once` at a time; None: one for each GPU, or 1."""

    def __init__(self, at_once: int | None = None):
        self.at_once = at_once

    def run(self, jobs: Sequence[Job], progress: GridProgress, end: float = math.inf) -> dict[Job, JobOutcome]:
        """Run all jobs; see `adawac.reproduction.engines.Engine`."""
        waiting, free, running = deque(jobs), deque(find_slots(jobs, self.at_once)), list[_JobProcess]()
        outcomes: dict[Job, JobOutcome] = {}
        try:
            while running or (waiting and time.monotonic() < end):
                while waiting and free and time.monotonic() < end:
                    running.append(_JobProcess(waiting.popleft(), free.popleft()))
                    progress.started(running[-1].job)
                ready = wait([process.sentinel for process in running], timeout=TICK)
                if time.monotonic() >= end:
                    for process in running:
                        process.interrupt()
                    ready = [process.sentinel for process in running]
                for process in [process for process in running if process.sentinel in ready]:
                    outcomes[process.job] = process.outcome()
                    running.remove(process)
                    free.append(process.slot)
                    progress.ended(process.job, outcomes[process.job])
                progress.tick()
        except BaseException:
            _stop(running)
            raise
        return outcomes


def _stop(running: Sequence[_JobProcess]) -> None:
    """Let all jobs save and end; a second Ctrl-C kills them."""
    try:
        if hasattr(os, "setsid"):  # elsewhere Ctrl-C reaches them, too
            for process in running:
                process.interrupt()
        for process in running:
            process.outcome()
    except KeyboardInterrupt:
        for process in running:
            process.kill()
        raise


# -- jobs as tasks of a Ray cluster, with GPUs (or CPUs) as resources; all machines see the run folders ----------------

_SAVING = 120.0  # seconds that interrupted jobs have to save


class RayEngine:
    """Runs jobs on a Ray cluster.

    Args:
        address: Of the cluster (`auto`, `HOST:PORT`, `ray://…`); None starts one on this machine.
        at_once: The most jobs at a time; None: as many as there are resources for.
    """

    def __init__(self, address: str | None = None, at_once: int | None = None):
        self.ray: Any = library("ray", "adawac[ray]")
        self.address, self.at_once = address, at_once

    def run(self, jobs: Sequence[Job], progress: GridProgress, end: float = math.inf) -> dict[Job, JobOutcome]:
        """Run all jobs; see `adawac.reproduction.engines.Engine`."""
        with ray_session(self.address):
            return self._run(jobs, progress, end)

    def _run(self, jobs: Sequence[Job], progress: GridProgress, end: float) -> dict[Job, JobOutcome]:
        ray = self.ray
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        needs = [_needs(job, machines) for job in jobs]
        # A process for each job, as on one machine.
        task = ray.remote(max_calls=1, max_retries=RAY_RETRIES, retry_exceptions=False)(attempt)
        waiting, running = deque(zip(jobs, needs, strict=True)), dict[Any, Job]()
        outcomes: dict[Job, JobOutcome] = {}
        silent: dict[str, int] = {}  # size of the log of jobs that were submitted but have not begun
        try:
            while running or (waiting and time.monotonic() < end):
                while waiting and time.monotonic() < end and len(running) < (self.at_once or math.inf):
                    job, need = waiting.popleft()
                    silent[job.name] = _size(job)
                    running[task.options(**need).remote(job)] = job
                ready, _ = ray.wait(list(running), num_returns=1, timeout=TICK)
                if time.monotonic() >= end:
                    self._stop(list(running))
                    ready = [reference for reference, job in running.items() if job.name not in silent]
                    running = {reference: running[reference] for reference in ready}
                for job in [job for job in running.values() if _size(job) != silent.get(job.name, _size(job))]:
                    del silent[job.name]
                    progress.started(job)
                for reference in ready:
                    job = running.pop(reference)
                    silent.pop(job.name, None)
                    outcomes[job] = self._outcome(reference)
                    progress.ended(job, outcomes[job])
                progress.tick()
        except BaseException:
            self._stop(list(running))
            raise
        return outcomes

    def _outcome(self, reference: Any) -> JobOutcome:
        try:
            outcome: JobOutcome = self.ray.get(reference)
            return outcome
        except self.ray.exceptions.TaskCancelledError:
            return JobOutcome(status="interrupted", reason=INTERRUPTED)
        except self.ray.exceptions.RayError as error:
            return JobOutcome(status="failed", reason=ray_loss(error))

    def _stop(self, references: list[Any]) -> None:
        """Let all jobs save and end."""
        for reference in references:
            self.ray.cancel(reference, force=False)  # as Ctrl-C within the task
        if references:
            self.ray.wait(references, num_returns=len(references), timeout=_SAVING)


def _needs(job: Job, machines: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """Return the resources of a job, all of one machine: GPUs where the cluster has some, else CPUs."""
    hardware = job.config.hardware
    gpus, cpus = (max((machine.get(kind, 0) for machine in machines), default=0) for kind in ("GPU", "CPU"))
    on_gpus = hardware.accelerator != "cpu" and gpus >= 1
    if (gpus if on_gpus else cpus) < hardware.devices or (not on_gpus and hardware.accelerator == "cuda"):
        raise ConfigError(
            f"Expected a machine of the Ray cluster with {hardware.devices} {hardware.accelerator} devices, but the "
            f"largest one has {gpus:g} GPUs and {cpus:g} CPUs. Add machines, or change hardware."
        )
    return {"num_gpus": hardware.devices, "num_cpus": 1} if on_gpus else {"num_cpus": hardware.devices}


def _size(job: Job) -> int:
    try:
        return job.log.stat().st_size
    except FileNotFoundError:
        return 0
