"""Work as it is watched: training or a grid on a live display, or in plain lines without a terminal."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from adawac.cli.shell import plain_console, print_text, printable
from adawac.figures.display_names import METRIC_NAMES
from adawac.reproduction.engines import GridProgress
from adawac.reproduction.jobs import Job, JobOutcome

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

    from adawac.config import TrainConfig
    from adawac.runs import Run, RunWriter

_WEIGHING = ("reg_ac", "beta_sparse", "beta_dense", "beta_auc")


class Display:
    """Epochs and steps as bars, the numbers of each epoch as a line. Close it when training has ended.

    Without a terminal a line a minute takes the place of the bars.

    With `quiet` nothing is shown, where standard output is for something else.
    """

    def __init__(self, quiet: bool = False) -> None:
        from rich.progress import TimeRemainingColumn

        self._console = plain_console(quiet=quiet)
        self._bars = _bars(self._console, TimeRemainingColumn())

    def start(self, config: "TrainConfig", run: "RunWriter", steps: int) -> None:
        """Say what is trained, and open the bars."""
        from adawac.train.engine import StepLines

        self._lines = StepLines(config.epochs, steps)
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
        """Move the bars, or say now and then how far it is."""
        if not self._bars.disable:
            self._bars.update(self._epoch, completed=step)
            self._bars.update(self._run, completed=epoch - 1 + step / self._steps)
        elif line := self._lines.line(epoch, step):
            self._console.print(line, soft_wrap=True)

    def epoch(self, epoch: int, metrics: Mapping[str, Any]) -> None:
        """Print the numbers of an epoch; those of the weights only where a method weighs."""
        plain = metrics.get("beta") == 1 and metrics.get("reg_ac") == 0
        shown = {name: text for name, text in METRIC_NAMES.items() if not (plain and name in _WEIGHING)}
        numbers = [f"{text} {metrics[name]:.4g}" for name, text in shown.items() if metrics.get(name) is not None]
        self._console.print(f"epoch {epoch}/{self._epochs}  " + "  ".join(numbers), soft_wrap=True)
        self._bars.update(self._run, completed=epoch)

    def close(self) -> None:
        """Take the bars away."""
        self._bars.stop()


class DemoDisplay(Display):
    """The bars of a training, and above them one for the whole demonstration, with the time left."""

    _EVERY = 5  # epochs between two lines

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(quiet)
        self._whole = self._bars.add_task("the demo", total=100)
        self._bars.start()

    def part(self, text: str, start: float, stop: float) -> None:
        """Say what comes next; `start` and `stop` are the shares of all work before and after it."""
        self._console.print(printable(text), soft_wrap=True)
        self._share = (start, stop)
        for task in self._bars.task_ids:
            if task != self._whole:
                self._bars.remove_task(task)
        self._bars.update(self._whole, completed=100 * start)

    def step(self, epoch: int, step: int) -> None:
        """Move all bars."""
        super().step(epoch, step)
        start, stop = self._share
        done = (epoch - 1 + step / self._steps) / self._epochs
        self._bars.update(self._whole, completed=100 * (start + (stop - start) * done))

    def epoch(self, epoch: int, metrics: Mapping[str, Any]) -> None:
        """Print the numbers of some epochs."""
        if epoch % self._EVERY == 0 or epoch == self._epochs:
            super().epoch(epoch, metrics)


def _bars(console: "Console", *columns: "ProgressColumn") -> "Progress":
    """Return bars with these further columns; they are on a terminal only, and go away in the end."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    first = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    return Progress(*first, *columns, console=console, disable=not console.is_terminal, transient=True)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


@contextmanager
def bar() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that shows progress: what is being done, how many parts are done, and of how many.

    It shows on stderr, and only on a terminal, so that results can go elsewhere.
    """
    from rich.progress import TimeRemainingColumn

    with _bars(plain_console(stderr=True), TimeRemainingColumn()) as bars:
        task = bars.add_task("starting", total=None)
        yield lambda what, done, total: bars.update(task, description=printable(what), completed=done, total=total)


def standing(run: "Run") -> dict[str, Any]:
    """Return how a run stands, as plain data: what `train` and `watch` print as JSON."""
    epochs = run.info.get("epochs")
    return {"run": str(run.folder), "status": run.status, "epoch": run.epoch, "epochs": epochs, "metrics": run.metrics}


_EVERY = 1.0  # seconds between two looks at the run folders


class Overview(GridProgress, AbstractContextManager["Overview"]):
    """Tells on stderr how runs go, and on stdout that Ctrl-C leaves what is `kept`; use it as a context manager."""

    def __init__(self, kept: str = "") -> None:
        from rich.progress import TextColumn, TimeElapsedColumn

        self._console = plain_console(stderr=True)
        self._bars = _bars(self._console, TextColumn("{task.fields[unit]}"), TimeElapsedColumn())
        self._kept = kept
        self._running: dict[Job, Any] = {}
        self._looked = 0.0
        self._failed = 0

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bars.stop()
        if kind is KeyboardInterrupt and self._kept:
            print_text(f"{self._kept} are saved as far as they came. The same command goes on with them.\n")

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
        self._console.print(printable(text).replace("\n", "\\n"), soft_wrap=True)  # one line for each event
