"""Jobs as tasks of a Ray cluster, with GPUs (or CPUs) as resources; all machines see the run folders."""

import math
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from adawac.errors import ConfigError, MissingDependencyError
from adawac.reproduction.engines import TICK, GridProgress
from adawac.reproduction.jobs import INTERRUPTED, Job, JobOutcome, attempt

_RETRIES = 5  # when a machine or a process is lost; a job that fails is not tried again
_KNOCK = 10.0  # seconds to wait for a cluster to answer
_SAVING = 120.0  # seconds that interrupted jobs have to save


class RayEngine:
    """Runs jobs on a Ray cluster.

    Args:
        address: Of the cluster (`auto`, `HOST:PORT`, `ray://…`); None starts one on this machine.
        at_once: The most jobs at a time; None: as many as there are resources for.
    """

    def __init__(self, address: str | None = None, at_once: int | None = None):
        self.ray = _import_ray()
        self.address, self.at_once = address, at_once

    def run(self, jobs: Sequence[Job], progress: GridProgress, end: float = math.inf) -> dict[Job, JobOutcome]:
        """Run all jobs; see `adawac.reproduction.engines.Engine`."""
        ray, ours = self.ray, not self.ray.is_initialized()
        if ours:
            self._connect()
        try:
            return self._run(jobs, progress, end)
        finally:
            if ours:
                ray.shutdown()

    def _connect(self) -> None:
        try:
            _check_reachable(self.address)
            self.ray.init(address=self.address, log_to_driver=False, logging_level="ERROR", configure_logging=True)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            first = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"Expected a Ray cluster at {self.address or 'this machine'}, but got: {first.rstrip('.')}. Start one "
                "with `ray start --head`, or check --address."
            ) from error

    def _run(self, jobs: Sequence[Job], progress: GridProgress, end: float) -> dict[Job, JobOutcome]:
        ray = self.ray
        needs = [_needs(job, ray.cluster_resources()) for job in jobs]
        # A process for each job, as on one machine.
        task = ray.remote(max_calls=1, max_retries=_RETRIES, retry_exceptions=False)(attempt)
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
            first = str(error).strip().splitlines()[0]
            return JobOutcome(
                status="failed", reason=f"Ray lost it {_RETRIES + 1} times ({type(error).__name__}: {first})"
            )

    def _stop(self, references: list[Any]) -> None:
        """Let all jobs save and end."""
        for reference in references:
            self.ray.cancel(reference, force=False)  # as Ctrl-C within the task
        if references:
            self.ray.wait(references, num_returns=len(references), timeout=_SAVING)


def _check_reachable(address: str | None) -> None:
    """Knock at HOST:PORT: Ray itself would try for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK).close()


def _needs(job: Job, cluster: Mapping[str, float]) -> dict[str, int]:
    """Return the resources of a job: GPUs where the cluster has some, else CPUs."""
    hardware = job.config.hardware
    if hardware.accelerator != "cpu" and cluster.get("GPU", 0) >= 1:
        need, kind = {"num_gpus": hardware.devices, "num_cpus": 1}, "GPU"
    else:
        need, kind = {"num_cpus": hardware.devices}, "CPU"
    if cluster.get(kind, 0) < hardware.devices or (kind == "CPU" and hardware.accelerator == "cuda"):
        raise ConfigError(
            f"Expected a Ray cluster with {hardware.devices} {hardware.accelerator} devices, but it has "
            f"{cluster.get('GPU', 0):g} GPUs and {cluster.get('CPU', 0):g} CPUs. Add machines, or change hardware."
        )
    return need


def _size(job: Job) -> int:
    try:
        return job.log.stat().st_size
    except FileNotFoundError:
        return 0


def _import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise MissingDependencyError(
            "Expected Ray for --engine ray, but it is not installed. Install it: pip install 'adawac[ray]'."
        ) from error
    return ray
