"""`adawac report` and `adawac watch`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from adawac.cli.main import SEE, AsJson, app, plain_console, print_json, print_text, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adawac.runs import Run

_INTERRUPTED = 3


@app.command(group=SEE)
def report(
    runs: Annotated[tuple[Path, ...], Parameter(help="Run folders; the first is what others are compared with.")],
    /,
    *,
    out: Annotated[Path, Parameter(help="The HTML file.")] = Path("report.html"),
    pictures: Annotated[int, Parameter(help="Slices of the galleries to include at most; suspects come first.")] = 100,
) -> None:
    """Write a report of one or several runs: one HTML file that works offline.

    Scores side by side, the weights atlas, samples to check for label errors, curves, and how to repeat it. A run that
    goes on, was interrupted or lost some files gives what it has. The file holds images and names from the data.

    Example: adawac report runs/baseline runs/adawac --out report.html
    """
    from adawac.report import write_report

    path = write_report(runs, out, pictures=pictures)
    print_text(f"{printable(str(path))}: {path.stat().st_size / 1e6:.1f} MB\n")


@app.command(group=SEE)
def watch(
    run: Annotated[Path, Parameter(help="A run folder.")],
    /,
    *,
    every: Annotated[float, Parameter(help="Seconds between two looks.")] = 5.0,
    once: Annotated[bool, Parameter(help="Show how the run stands and return.", show_default=False)] = False,
    wait: Annotated[bool, Parameter(help="Wait for a run that has not begun.", show_default=False)] = False,
    page: Annotated[Path | None, Parameter(help="Also keep a report up to date in this file.")] = None,
    as_json: AsJson = False,
) -> int:
    """Follow a run while it trains: progress, curves, and where β sends the samples.

    It ends with the run: exit code 0 if that finished, 3 if it was interrupted or its process died. Ctrl-C ends the
    watching, not the run. Where there is no terminal, it prints one line an epoch.

    Example: adawac watch runs/adawac

    Example: adawac watch runs/adawac --page report.html --every 30

    Example: adawac watch runs/adawac --once --json
    """
    from adawac.report import follow
    from adawac.runs import Run

    looks: Iterator[Run] = iter([Run(run)]) if once else follow(run, every=every, wait=wait)
    if wait and not once and not as_json and not run.exists():
        print_text(f"Waiting for {printable(str(run))} …\n")
    if page is not None:
        looks = _keep_page(looks, page, every)
    status = _print_last(looks) if as_json else _show(looks, printable(str(run)))
    return _INTERRUPTED if status == "interrupted" else 0


def _keep_page(looks: "Iterator[Run]", page: Path, every: float) -> "Iterator[Run]":
    from adawac.report import watch_page

    for look in looks:
        watch_page(look, page, every=every)
        yield look


def _print_last(looks: "Iterator[Run]") -> str:
    """Print the last look at the run as JSON, and return how it stood then."""
    from collections import deque

    from adawac.cli.display import standing

    last = deque(looks, maxlen=1).pop()
    print_json(standing(last))
    return last.status


def _show(looks: "Iterator[Run]", title: str) -> str:
    """Show each look at the run, and return how it stood at the last one."""
    from contextlib import nullcontext

    from rich.live import Live

    from adawac.report.terminal import draw_run, list_epochs

    console = plain_console()
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    status, epoch = "", 0
    with live or nullcontext():
        for look in looks:
            if live is not None:
                live.update(draw_run(look, console, title), refresh=True)
            else:
                for line in list_epochs(look, epoch):
                    console.print(line, soft_wrap=True)
            status, epoch = look.status, max(look.epoch, epoch)
    console.print(f"{title}: {status}, epoch {epoch}", soft_wrap=True)
    return status
