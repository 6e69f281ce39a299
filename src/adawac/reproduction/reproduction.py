"""From the name of a table or figure to runs, and from runs to our numbers beside the paper's."""

import logging
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adawac.data.store import Store
from adawac.errors import ConfigError, MissingFileError, RunError
from adawac.files import FolderLock, explained, make_folder
from adawac.reproduction.collected_results import find_entry, read_entries
from adawac.reproduction.comparison_files import write_comparison
from adawac.reproduction.engines import GridProgress, build_engine
from adawac.reproduction.grid_data import (
    MARK,
    check_scorable,
    checked_store,
    describe_store,
    is_papers_data,
    phantom_mark,
    phantom_store,
    quick_rows,
    quick_settings,
)
from adawac.reproduction.grids import Grid, Row, load_grid
from adawac.reproduction.jobs import Job, JobOutcome, Planned, in_order, make_jobs
from adawac.reproduction.paper_tables import PaperComparison, compare

if TYPE_CHECKING:
    from adawac.figures import Picture

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """What came of a grid.

    Attributes:
        comparison: Ours beside the paper's; for a figure, a table without columns.
        failures: Jobs that failed, and why.
        files: What was written.
        skipped: How many jobs had been done before.
        left: How many jobs there was no time for; the same command goes on with them.
    """

    comparison: PaperComparison
    failures: dict[Job, JobOutcome]
    files: list[Path]
    skipped: int
    left: int = 0


def reproduce(
    name: Path | str,
    out: Path | str,
    *,
    data: Path | str | None = None,
    quick: bool = False,
    engine: str = "local",
    address: str | None = None,
    jobs: int | None = None,
    presets: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
    seconds: float | None = None,
    phantom: bool = False,
    watch: GridProgress | None = None,
) -> Reproduction:
    """Run a table or figure of the paper, or a grid of one's own, and write ours beside the paper's.

    Runs that are finished are kept, interrupted ones go on, and grids in the same folder share the runs that they have
    in common. A run that fails leaves cells missing; the others finish. Runs are processes of their own: in a script,
    call this below `if __name__ == "__main__":`, since they import the script.

    Args:
        name: One of `grid_names()`, or a YAML file.
        out: Where runs, logs and results go; one process at a time.
        data: The prepared store; not needed with `quick`.
        quick: The same grid on phantom scans, small: not the paper's numbers.
        engine: `local` or `ray`.
        address: Of a Ray cluster.
        jobs: How many runs at a time; by default one for each GPU, or 1.
        presets: `paper`, `official` or both, instead of the grid's own.
        changes: Settings of all runs, by their dotted path, above everything else; not those that tell rows apart.
        only: Names of rows, with * for anything; by default all.
        seconds: After this time nothing begins, and what runs is saved and stopped; the same command goes on.
        phantom: Take a store of the phantom for a grid of the paper, too, and mark everything as not the paper's.
        watch: Is told how runs go.
    """
    end = math.inf if seconds is None else time.monotonic() + seconds
    short, grid = load_grid(name)
    grid = grid.with_presets(tuple(presets)) if presets else grid
    grid.check_changes(changes or {})
    out = Path(out)
    rows = _chosen(grid.rows(quick_settings(grid) if quick else None, changes), only)
    rows = quick_rows(rows) if quick else rows
    check_figures(grid, rows)
    store = None if quick else checked_store(data, grid, phantom=phantom)
    runner = build_engine(engine, address=address, at_once=jobs)
    mark, about = (MARK, "") if store is None else (phantom_mark(store, grid), describe_store(store, grid, rows))
    if store is not None and about and grid.source and not is_papers_data(store, grid, rows):
        log.warning("%s", f"{mark} {about}".strip())  # before days of training, not after
    entries = [] if quick else read_entries(grid.results)
    with explained(RunError, f"the runs to {out}", "Give another --out."):
        make_folder(out)
        lock = FolderLock(out)
    try:
        store_path = phantom_store(grid, out / "quick-data") if store is None else store.path
        planned = make_jobs(rows, store_path, out, grid.conventions)
        every = in_order(planned)
        collected = {job for row, seeded in planned for job in seeded if find_entry(entries, row, job.config.seed)}
        waiting = [job for job in every if job not in collected and job.state != "done"]
        if waiting:
            check_scorable(Store(store_path), [(job.config, job.part) for job in waiting])
            check_jobs(waiting, here=engine == "local")
        watch = GridProgress() if watch is None else watch
        watch.planned(every, len(every) - len(waiting))
        outcomes = runner.run(waiting, watch, end) if waiting else {}
        accepted = {"done"} if seconds is None else {"done", "interrupted"}
        failures = {job: outcome for job, outcome in outcomes.items() if outcome.status not in accepted}
        comparison = compare(short, grid, planned, _notes(about, changes or {}), mark, entries)
        files = []
        advice = "Make room, or fix that, and give the same command: runs that are done are kept."
        with explained(RunError, f"the results to {out}", advice):
            if grid.columns:
                files += write_comparison(comparison, out, failures)
            files += draw_figures(short, grid, planned, out, mark)
    finally:
        lock.release()
    return Reproduction(
        comparison=comparison,
        failures=failures,
        files=files,
        skipped=len(every) - len(waiting),
        left=len(waiting) - len(failures) - sum(outcome.status == "done" for outcome in outcomes.values()),
    )


def _chosen(rows: list[Row], only: Sequence[str]) -> list[Row]:
    """Return the rows whose name, or one of whose labels, matches a pattern; all without any pattern."""
    if not only:
        return rows
    chosen = [
        row for row in rows if any(fnmatch(name, mask) for mask in only for name in (row.name, *row.labels.values()))
    ]
    if not chosen:
        raise ConfigError(
            f"Expected names of rows (--only), but none matches {', '.join(only)}. They are called "
            f"{', '.join(row.name for row in rows[:20])}{', …' if len(rows) > 20 else ''}."
        )
    return chosen


def check_figures(grid: Grid, rows: Sequence[Row]) -> None:
    """Refuse figures that could not be drawn: that would show only after everything is trained."""
    if not grid.drawings:
        return
    from adawac.figures import check_figure

    most = max(Counter(row.labels.get("preset", "") for row in rows).values())
    for drawing in grid.drawings:
        check_figure(drawing.name, most, width=drawing.width, **drawing.options)


def draw_figures(name: str, grid: Grid, planned: Planned, folder: Path, mark: str = "") -> list[Path]:
    """Draw the figures of a grid as PNG and PDF, once for each preset; those whose runs are not all done are left out.

    A figure shows the first seed of each row; `mark` says that it is not one of the paper's.
    """
    presets: dict[str, list[Job]] = {}
    for row, of_seeds in planned:
        presets.setdefault(row.labels.get("preset", ""), []).append(of_seeds[0])
    paths = []
    for preset, jobs in presets.items():
        if grid.drawings and all(job.state == "done" for job in jobs):
            stem = f"{name}-quick" if mark == MARK else name
            paths += _draw(f"{stem}-{preset}" if len(presets) > 1 else stem, grid, jobs, folder, mark)
    return paths


def _draw(stem: str, grid: Grid, jobs: Sequence[Job], folder: Path, mark: str) -> list[Path]:
    from adawac.figures import compose

    paths = []
    for count, drawing in enumerate(grid.drawings, 1):
        number = "" if len(grid.drawings) == 1 else f"-{count}"
        picture = compose(drawing.name, [job.folder for job in jobs], width=drawing.width, **drawing.options)
        picture = _marked(picture, mark) if mark else picture
        paths += [picture.save(folder / f"{stem}{number}{ending}") for ending in (".png", ".pdf")]
    return paths


def _marked(picture: "Picture", mark: str) -> "Picture":
    """Return a picture that says across it, and in its description, that it is not one of the paper's."""
    word, size = mark.partition(":")[0], 6 * min(picture.figure.get_size_inches())
    look: dict[str, Any] = {"color": "#b3261e", "alpha": 0.45, "weight": "bold", "fontsize": size, "rotation": 30}
    picture.figure.text(0.5, 0.5, f"{word}\nnot the paper's data", ha="center", va="center", zorder=100, **look)
    return replace(picture, title=f"{picture.title} ({word.lower()})", alt=f"{mark} {picture.alt}")


def check_jobs(jobs: Sequence[Job], here: bool) -> None:
    """Refuse names that nobody provides, and pretrained weights that cannot be had, before days of training."""
    for job in jobs:
        job.config.check_names()
    _check_weights([job for job in jobs if job.state != "trained"], here)


def _check_weights(jobs: Sequence[Job], here: bool) -> None:
    """Refuse pretrained weights that are missing or do not fit: otherwise every run would begin, then fail.

    Where the jobs run `here`, on this machine, weights are downloaded.
    """
    models = {str(job.config.model): job.config for job in jobs if job.config.model.pretrained is not None}
    for config in models.values():
        model, pretrained = config.model, str(config.model.pretrained)
        if Path(pretrained).suffix and not Path(pretrained).is_file():
            raise MissingFileError(
                f"Expected a file of pretrained weights, but {pretrained} does not exist. Give its path, --set "
                "model.pretrained=FILE; imagenet downloads one, null trains from scratch."
            )
        if here and config.data.store is not None:
            from adawac.models import build

            store = Store(config.data.store)
            sizes = (store.num_classes, len(store.channels), config.data.image_size)
            build(model.name, *sizes, pretrained=pretrained, tap=model.tap, **model.options)


def _notes(about: str, changes: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a reader must know of our numbers: what they are of, and what was changed."""
    changed = ", ".join(f"{path}={value}" for path, value in changes.items())
    return tuple(filter(None, (about, f"Changed in all of our runs: {changed}." if changed else "")))
