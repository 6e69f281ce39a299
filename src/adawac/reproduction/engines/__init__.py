"""Engines: what runs jobs. Each takes jobs, runs several at a time, and tells a watch how they go."""

from collections.abc import Sequence
from typing import Protocol

from adawac.errors import ConfigError
from adawac.reproduction.jobs import Job, Outcome

__all__ = ["Engine", "Watch", "build_engine"]


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
        from adawac.reproduction.engines.local import LocalEngine

        return LocalEngine(at_once)
    if name == "ray":
        from adawac.reproduction.engines.ray import RayEngine

        return RayEngine(address, at_once)
    raise ConfigError(f"Expected the engine local or ray, but got {name!r}. Correct it.")
