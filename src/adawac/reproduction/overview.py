"""A grid as it is watched: bars on a terminal, a line for each run elsewhere."""

import time
from collections.abc import Sequence
from typing import Any

from adawac.reproduction.jobs import Job, Outcome

__all__ = ["Overview"]

_EVERY = 1.0  # seconds between two looks at the run folders


class Overview:
    """Tells on stderr how runs go; use it as a context manager, so that the bars go away."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = Console(stderr=True, highlight=False, markup=False)
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._running: dict[Job, Any] = {}
        self._looked = 0.0
        self._failed = 0

    def __enter__(self) -> "Overview":
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def planned(self, jobs: Sequence[Job], done: int) -> None:
        """Say how much there is to do."""
        self._total, self._done = len(jobs), done
        self._say(f"{len(jobs)} runs, {done} of them done before")
        if done < len(jobs):
            self._bars.start()
        self._all = self._bars.add_task("all runs", total=len(jobs), completed=done, unit="runs")

    def started(self, job: Job) -> None:
        """Show a run's own bar."""
        epoch, epochs = job.progress
        self._running[job] = self._bars.add_task(job.name, total=epochs, completed=epoch, unit="epochs")
        self._say(f"started {job.name}" + (f" from epoch {epoch} on" if epoch else ""))

    def ended(self, job: Job, outcome: Outcome) -> None:
        """Take the bar away, and say how it ended."""
        if job in self._running:
            self._bars.remove_task(self._running.pop(job))
        if outcome.status == "done":
            self._done += 1
            self._say(f"done {job.name} in {outcome.seconds:.1f} s ({self._done} of {self._total})")
        else:
            self._failed += 1
            self._say(f"{outcome.status} {job.name}: {outcome.reason}")
        failed = f", {self._failed} failed" if self._failed else ""
        self._bars.update(self._all, completed=self._done, description=f"all runs{failed}")

    def tick(self) -> None:
        """Look at the run folders now and then: they say how far they are, wherever they run."""
        if self._bars.disable or time.monotonic() < self._looked + _EVERY:
            return
        self._looked = time.monotonic()
        for job, task in self._running.items():
            self._bars.update(task, completed=job.progress[0])
        self._bars.refresh()

    def _say(self, text: str) -> None:
        shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
        self._console.print(shown, soft_wrap=True)
