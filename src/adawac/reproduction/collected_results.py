"""A grid's results in one JSON file, collected from run folders of any machine: these need not be kept."""

import json
import logging
import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from adawac.config import TrainConfig, leaves, to_dict
from adawac.config.settings import NOT_DECISIVE
from adawac.errors import AdawacError, ConfigError, DataError, reading
from adawac.evaluation.statistics import by_patient, summarise
from adawac.files import write_text
from adawac.reproduction.grids import Column, Grid, Row
from adawac.reproduction.jobs import read_epoch_times
from adawac.runs import Run, list_runs

log = logging.getLogger(__name__)

Entry = dict[str, Any]
"""What the file keeps of a run."""


def read_entries(path: Path | str) -> list[Entry]:
    """Return the entries of a results file; none where there is no file yet."""
    if not path or not Path(path).is_file():
        return []
    with reading(
        lambda reason: DataError(f"Expected collected results in {path}, but got: {reason}. Restore the file.")
    ):
        entries = list(json.loads(Path(path).read_text(encoding="utf-8"))["runs"])
        for entry in entries:
            facts = [fact for scores in entry["scores"].values() for fact in scores.values()]
            numbers = [number for values in facts if isinstance(values, dict) for number in values.values()]
            if not isinstance(entry["settings"], dict) or not isinstance(entry["name"], str):
                raise ValueError(f"a run without name and settings: {str(entry)[:80]}")
            if not all(isinstance(number, int | float | None) for number in numbers):
                raise ValueError(f"a score of {entry['name']} that is not a number")
    return entries


def find_entry(entries: Iterable[Entry], row: Row, seed: int) -> Entry | None:
    """Return the entry of a row's run, if its settings are still those of the row."""
    settings = planned_settings(row, seed)
    named = (entry for entry in entries if entry["name"] == run_name(row, seed))
    return next((entry for entry in named if fits(settings, entry["settings"])), None)


def entry_value(entry: Entry, column: Column, convention: str) -> float:
    """Return a run's number for a column, as its scores have it; NaN where there is none."""
    scores = entry["scores"].get(convention, {})
    value = scores.get(column.metric, {}).get(column.class_name or "mean")
    return math.nan if value is None else float(value)


def run_name(row: Row, seed: int) -> str:
    """Return what results call the run of a row."""
    return f"{row.name}-seed{seed}"


def planned_settings(row: Row, seed: int) -> dict[str, Any]:
    """Return the decisive settings of the run of a row."""
    return decisive_settings(to_dict(replace(row.config, seed=seed)))


def fits(planned: Mapping[str, Any], made: Mapping[str, Any]) -> bool:
    """Tell whether a run has the settings that were planned; what these leave open, it has decided itself."""
    undecided = {leaf.path for leaf in leaves(TrainConfig) if leaf.default == "auto"}
    if "optim.ema_decay" in made and _has_teacher(planned.get("method.name", "")):
        undecided.add("optim.ema_decay")
    return {path: value for path, value in made.items() if path in planned or path not in undecided} == planned


def _has_teacher(method: str) -> bool:
    """Tell whether a method needs averaged weights, whose decay training chooses where nothing else does."""
    from adawac.methods import METHODS

    return method in METHODS and getattr(METHODS[method], "uses_teacher", False)


def decisive_settings(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a result depends on and that differ from the defaults, by dotted path.

    `data` is a configuration as plain data; settings that only another version knows are passed over.
    """
    settings = {}
    for leaf in leaves(TrainConfig):
        section, _, name = leaf.path.rpartition(".")
        value = (data.get(section, {}) if section else data).get(name, leaf.default)
        if value != leaf.default:
            settings[leaf.path] = value
    split = settings.get("data.split", "")
    if "/" in split and not split.startswith("fold:"):  # a folder of lists, which may lie elsewhere on another machine
        settings["data.split"] = Path(split).name
    return {path: value for path, value in settings.items() if path not in NOT_DECISIVE}


def collect(
    grid: Grid, folders: Iterable[Path | str], describe: Callable[[Run, Row], Mapping[str, Any]] | None = None
) -> list[str]:
    """Add the finished and scored runs of a grid that lie below some folders to its results file.

    Args:
        grid: A grid that names a results file.
        folders: Where run folders lie, in whatever depth.
        describe: Returns what else an entry is to keep of a run.

    Returns:
        The names of the runs that were found.
    """
    if not grid.results:
        raise ConfigError("Expected a grid that names its results file, but got none. Add results: FILE.json to it.")
    planned = {run_name(row, seed): (row, seed) for row in grid.rows() for seed in row.seeds}
    wanted = {name: planned_settings(row, seed) for name, (row, seed) in planned.items()}
    collected: dict[str, Entry] = {}
    for run in (run for folder in folders for run in list_runs(folder)):
        settings = decisive_settings(run.settings)
        for name in [name for name in planned if fits(wanted[name], settings)]:
            row, seed = planned[name]
            try:
                if _is_complete(run, grid, row):
                    more = {} if describe is None else describe(run, row)
                    collected[name] = _plain(_entry(run, grid, row, seed) | dict(more))
            except (AdawacError, OSError, LookupError, ValueError) as error:  # the others are worth having
                log.warning("%s is left out: %s", run.folder, error)
    entries = {entry["name"]: entry for entry in read_entries(grid.results)} | collected
    order = {name: number for number, name in enumerate(planned)}
    names = sorted(entries, key=lambda name: (order.get(name, len(order)), name))
    lines = [json.dumps(entries[name]) for name in names]
    write_text(Path(grid.results), '{"runs": [\n' + ",\n".join(lines) + "\n]}\n")  # a line each: diffs stay readable
    return [name for name in planned if name in collected]


def _is_complete(run: Run, grid: Grid, row: Row) -> bool:
    same_data = not grid.dataset or str(run.data.get("dataset", grid.dataset)).lower() == grid.dataset
    scored = all(_evaluation(run, row, convention) for convention in grid.conventions)
    return same_data and scored and run.status == "finished"


def _evaluation(run: Run, row: Row, convention: str) -> str | None:
    """Return the name of the scores by a convention."""
    names = [name for name in run.evaluations if name.startswith(f"{row.score}-{convention}-")]
    return next((name for name in names if name.endswith("-tta") == row.tta), None)


def _entry(run: Run, grid: Grid, row: Row, seed: int) -> Entry:
    made = run.environments[-1]
    epochs = read_epoch_times(run.folder)
    rates = [epoch["slices_per_second"] for epoch in epochs]
    rates = rates[2:] or rates  # the first ones also compile
    scores = {convention: run.scores(_evaluation(run, row, convention) or "") for convention in grid.conventions}
    return {
        "name": run_name(row, seed),
        "row": row.name,
        "seed": seed,
        "part": row.score,
        "settings": decisive_settings(run.settings),
        "views": _num_views(row.config),
        "epochs": run.settings["epochs"],
        "samples": run.data["num_samples"],
        "label_sparse": run.data["label_sparse"],
        "device": next(iter(made["gpus"]), made["cpu"]),
        "torch": made["packages"]["torch"],
        "adawac": made["adawac"],
        "commit": made["commit"],
        "train_seconds": sum(epoch["seconds"] for epoch in epochs),
        "slices_per_second": statistics.median(rates) if rates else None,
        "scores": {convention: _summary(rows) for convention, rows in scores.items()},
        "patients": by_patient(scores[grid.convention], "dice"),
    }


def _summary(scores: list[Any]) -> dict[str, Any]:
    """Return the means over cases, by class and over all, and how often a structure was missed or invented."""
    units = [score.unit for score in scores if score.metric == "hd95"]
    summary: dict[str, Any] = {"unit": units[0], "cases": len({score.case for score in scores})}
    for metric in ("dice", "hd95"):
        classes = summarise(scores, metric)
        summary[metric] = {of_class.class_name: of_class.mean for of_class in classes}
    return summary | {"missed": classes[-1].missed, "invented": classes[-1].invented}


def _num_views(config: TrainConfig) -> int:
    """Return how many views of a sample a run looks at."""
    from adawac.methods import build_method

    method = config.method
    criterion = build_method(method.name, 1, method.preset, **{"trim_ratio": 0.0, **method.options})
    return 2 if criterion.uses_latents or criterion.objective.views == "both" else 1


def _plain(value: Any) -> Any:
    """Return numbers of five digits, more would only pretend; null stands for what is not a number."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value
