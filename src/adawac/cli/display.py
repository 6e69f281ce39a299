"""Work as it is watched: training or a grid on a live display, or in plain lines without a terminal."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from adawac.cli.shell import plain_console, printable
from adawac.reproduction.engines import GridProgress
from adawac.reproduction.jobs import Job, JobOutcome

if TYPE_CHECKING:
    from adawac.config import TrainConfig
    from adawac.runs import Run, RunWriter

_COLUMNS = {
    "loss": "loss",
    "ell_ce": "CE",
    "ell_dice": "Dice",
    "reg_ac": "ACR",
    "beta_sparse": "β sparse",
    "beta_dense": "β dense",
    "beta_auc": "AUC of β",
    "val_dice": "val DSC",
    "slices_per_second": "slices/s",
}
_WEIGHING = ("reg_ac", "beta_sparse", "beta_dense", "beta_auc")


class Display:
    """Epochs and steps as bars, the numbers of each epoch as a line. Close it when training has ended.

    Args:
        quiet: Show nothing, where standard output is for something else.
    """

    def __init__(self, quiet: bool = False) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = plain_console(quiet=quiet)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )

    def start(self, config: "TrainConfig", run: "RunWriter", steps: int) -> None:
        """Say what is trained, and open the bars."""
        self._epochs, self._steps = config.epochs, steps
        samples = 0 if run.samples is None else len(run.samples)
        self._console.print(
            printable(
                f"{config.method.name} ({config.method.preset}) with {config.model.name}: {samples} samples, "
                f"{_count(steps, 'step')} an epoch, {_count(config.epochs, 'epoch')}, into {run.folder}"
            ),
            soft_wrap=True,
        )
        self._bars.start()
        self._run = self._bars.add_task("epochs", total=config.epochs)
        self._epoch = self._bars.add_task("steps", total=steps)
        self._started = time.monotonic()

    def step(self, epoch: int, step: int) -> None:
        """Move the bars."""
        if not self._bars.disable:
            self._bars.update(self._epoch, completed=step)
            self._bars.update(self._run, completed=epoch - 1 + step / self._steps)

    def epoch(self, epoch: int, metrics: Mapping[str, Any]) -> None:
        """Print the numbers of an epoch; those of the weights only where a method weighs."""
        plain = metrics.get("beta") == 1 and metrics.get("reg_ac") == 0
        shown = {name: text for name, text in _COLUMNS.items() if not (plain and name in _WEIGHING)}
        numbers = [f"{text} {metrics[name]:.4g}" for name, text in shown.items() if metrics.get(name) is not None]
        self._console.print(f"epoch {epoch}/{self._epochs}  " + "  ".join(numbers), soft_wrap=True)
        self._bars.update(self._run, completed=epoch)

    def close(self) -> None:
        """Take the bars away."""
        self._bars.stop()


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


@contextmanager
def bar() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that shows progress: what is being done, how many parts are done, and of how many.

    It shows on stderr, and only on a terminal, so that results can go elsewhere.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = plain_console(stderr=True)
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        task = bars.add_task("starting", total=None)
        yield lambda what, done, total: bars.update(task, description=printable(what), completed=done, total=total)


def standing(run: "Run") -> dict[str, Any]:
    """Return how a run stands, as plain data: what `train` and `watch` print as JSON."""
    epochs = run.info.get("epochs")
    return {"run": str(run.folder), "status": run.status, "epoch": run.epoch, "epochs": epochs, "metrics": run.metrics}


_EVERY = 1.0  # seconds between two looks at the run folders


class Overview(GridProgress):
    """Tells on stderr how runs go; use it as a context manager, so that the bars go away."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = plain_console(stderr=True)
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

    def ended(self, job: Job, outcome: JobOutcome) -> None:
        """Take the bar away, and say how it ended."""
        if job in self._running:
            self._bars.remove_task(self._running.pop(job))
        if outcome.status == "done":
            self._done += 1
            self._say(f"done {job.name} in {outcome.seconds:.1f} s ({self._done} of {self._total})")
        else:
            self._failed += outcome.status == "failed"
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
        shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
        self._console.print(shown, soft_wrap=True)
