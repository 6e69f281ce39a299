"""Jobs as tasks of a Ray cluster, with GPUs (or CPUs) as resources; all machines see the run folders."""

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from adawac.data.parallel import RAY_RETRIES, ray_loss, ray_session
from adawac.errors import ConfigError
from adawac.lazy import library
from adawac.reproduction.engines import TICK, GridProgress
from adawac.reproduction.jobs import INTERRUPTED, Job, JobOutcome, attempt

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
