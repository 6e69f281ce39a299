"""What to evaluate of a run: everything that can be wrong with it is found here, before anything is computed."""

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from adawac.config import TrainConfig
from adawac.data.cases import SampleTable, rows_by_value
from adawac.data.splits import SPLITS, resolve_split
from adawac.data.store import Store, is_store
from adawac.errors import ConfigError, DataError, MissingFileError, RunError, check_known
from adawac.evaluation.case_scores import DistanceUnit, Rules
from adawac.evaluation.evaluation_record import CASE_METRICS, ScoredCase
from adawac.metrics.masks import checked_convention, checked_tolerance
from adawac.runs import Run, read_state
from adawac.runs.layout import checkpoint_path

log = logging.getLogger(__name__)

IN_VOXELS = ("adawac", "transunet")
"""Conventions of tables that were measured without a spacing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """What to evaluate of one run.

    Attributes:
        run, config: The run and its configuration.
        store: Where the cases are.
        part: `test`, `val` or `train`.
        cases: The labelled cases of that part.
        table: The store's samples, with the run's split.
        checkpoint: Which weights.
        epoch: How far these have been trained; None where the checkpoint does not say.
        rules: How cases are scored.
        name: What the scores will be called.
        gallery: What the name of a gallery ends in.
    """

    run: Run
    config: TrainConfig
    store: Store
    part: str
    cases: tuple[str, ...]
    table: SampleTable
    checkpoint: str
    epoch: int | None
    rules: Rules
    name: str
    gallery: str

    @property
    def voxels(self) -> int:
        """How much there is to score."""
        return sum(math.prod(self.store.case_info(case).native_shape) for case in self.cases)

    @cached_property
    def rows(self) -> dict[str, npt.NDArray[np.int64]]:
        """Rows of the table of each case, in the order of its slices."""
        rows = rows_by_value(self.table.case)
        return {case: rows[case][np.argsort(self.table.position[rows[case]])] for case in self.cases}

    def scored_case(self, case: str) -> ScoredCase:
        """Return who a case is."""
        rows, table = self.rows[case], self.table
        return ScoredCase(
            id=case, patient=str(table.patient[rows[0]]), group=str(table.group[rows[0]]), samples=table.id[rows]
        )


def checked_metrics(metrics: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics as they are called in scores, each once."""
    names = tuple(dict.fromkeys(metric.replace("-", "_") for metric in metrics))
    for name in names:
        check_known(name, CASE_METRICS, "a metric")
    if not names:
        raise ConfigError(f"Expected metrics, but got none. Name some of {', '.join(CASE_METRICS)}.")
    return names


def plan_run(
    run: Run | Path | str,
    *,
    part: str,
    stores: dict[Path, Store] | None = None,
    data: Path | str | None = None,
    checkpoint: str | None = None,
    convention: str = "strict",
    spacing: DistanceUnit | None = None,
    tolerance: float = 1.0,
    tta: bool = False,
) -> Plan:
    """Return what to evaluate of a run, or raise an error that says why it cannot be done.

    `stores` has the open stores by path, and one that is opened here is added; the rest is as in `adawac.evaluate`.
    """
    run = run if isinstance(run, Run) else Run(run)
    run.require("config.yaml", "data.json", "checkpoints")
    config = run.config
    assert config is not None  # it was required
    if part not in SPLITS:
        raise ConfigError(f"Expected a part of the split ({', '.join(SPLITS)}), but got {part!r}. Choose one.")
    checked_convention(convention)
    if run.status != "finished":
        log.warning(
            "%s is not finished (epoch %d of %d): these are the scores of its weights so far.",
            run.folder,
            run.epoch,
            config.epochs,
        )
    weights = run.checkpoint_name(checkpoint)
    store = _open_store(run, config, data, {} if stores is None else stores)
    _check_fits(run, store)
    table = resolve_split(store.table, config.data.split, config.seed)
    cases = _cases(table, store, part, config)
    if part != "train":
        _check_unseen(run, table.take(table.split == part), store)
    unit = _unit(store, cases, spacing, convention)
    usual = _unit(store, cases, None, convention)
    # What is not usual is in the name: it must not replace the scores of the run's own data.
    foreign = f"-{_plain(store.dataset)}" if store.dataset != run.task.dataset else ""
    within = "" if checked_tolerance(tolerance) == 1.0 else f"-within{_plain(f'{tolerance:g}')}"
    unusual = ("" if unit == usual else f"-{unit}") + within + ("-tta" if tta else "")
    return Plan(
        run=run,
        config=config,
        store=store,
        part=part,
        cases=cases,
        table=table,
        checkpoint=weights,
        epoch=read_state(checkpoint_path(run.folder, weights)).get("epoch"),
        rules=Rules(convention=convention, unit=unit, tolerance=tolerance),
        name=f"{part}-{convention}-{weights}{foreign}{unusual}",
        gallery=f"{weights}{foreign}",
    )


def _plain(text: str) -> str:
    """Return text that can be part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text)[:40]


def _open_store(run: Run, config: TrainConfig, data: Path | str | None, stores: dict[Path, Store]) -> Store:
    path = config.data.store if data is None else Path(data)
    if path is None:
        raise RunError(
            f"Expected the store that {run.folder} was trained on, but its configuration names none. Give it as `data`."
        )
    if data is None and not is_store(path):
        raise MissingFileError(
            f"Expected the store that {run.folder} was trained on, but {path.absolute()} no longer exists. Give its "
            "new path as `data`, or prepare it again."
        )
    path = path.absolute()
    if path not in stores:
        stores[path] = Store(path)
    return stores[path]


def _check_fits(run: Run, store: Store) -> None:
    """Refuse a store that the network cannot read; warn of one that was preprocessed differently."""
    for what, expected, actual in (
        ("classes", run.task.class_names, store.class_names),
        ("channels", run.task.channels, store.channels),
    ):
        if expected != actual:
            raise DataError(
                f"Expected the {what} of {run.folder}, {', '.join(expected)}, but {store.path} has "
                f"{', '.join(actual)}. Give the store that the run was trained on, or one with the same {what}."
            )
    check_sliced(store)
    now, then = store.preprocessing.to_dict(), run.task.preprocessing.to_dict()
    changed = [name for name, value in then.items() if name != "size" and now.get(name) != value]
    if changed:
        log.warning(
            "%s was preprocessed differently from what %s was trained on (%s): the scores may suffer.",
            store.path,
            run.folder,
            ", ".join(f"{name} {now.get(name)} instead of {then[name]}" for name in changed),
        )


def check_sliced(store: Store) -> None:
    """Refuse a store of whole volumes: networks are evaluated slice by slice."""
    if store.preprocessing.unit != "slice":
        raise DataError(
            f"Expected a store of slices, but the samples of {store.path} are whole volumes. Prepare it as slices."
        )


def _cases(table: SampleTable, store: Store, part: str, config: TrainConfig) -> tuple[str, ...]:
    parts = [name for name in SPLITS if (table.split == name).any()]
    table = table.take(table.split == part)
    if not len(table):
        others = f"Evaluate another part (`part`: {' or '.join(parts)}), or" if parts else "Evaluate"
        raise DataError(
            f"Expected {part} cases in the split {config.data.split!r} of {store.path}, but there are none. {others} "
            "another store (`data`); or train with --split stratified, which holds some back."
        )
    labelled = table.take(~table.unlabelled).cases
    if not labelled:
        others = " or ".join(name for name in reversed(parts) if name != part)
        raise DataError(
            f"Expected labelled {part} cases in {store.path}, but none has a label. Evaluate another part "
            f"(`part`: {others}); or train with --split stratified or fold:0/5, which hold labelled patients back."
        )
    if len(labelled) < len(table.cases):
        count = len(table.cases)
        log.warning("%d of %d %s cases have no label and are left out.", count - len(labelled), count, part)
    infos = [store.case_info(case) for case in labelled]
    if ignored := sum(info.ignored for info in infos):
        share = 100 * ignored / sum(math.prod(info.shape) for info in infos)
        several = sum(info.ignored > 0 for info in infos)
        log.warning("%.1f %% of the voxels are ignored, in %d of the cases: they count in no score.", share, several)
    return labelled


def _check_unseen(run: Run, table: SampleTable, store: Store) -> None:
    """Refuse to test on a patient that was trained on: the store or its split may have changed since."""
    if run.samples is None:
        return
    trained, tested = (
        {sample.rsplit("/", 3)[0] for sample in samples.id.tolist()}  # dataset/patient
        for samples in (run.samples, table)
    )
    leaks = sorted(trained & tested)
    if leaks:
        raise DataError(
            f"Expected patients that {run.folder} was not trained on, but {leaks[0]} and {len(leaks) - 1} others of "
            f"{store.path} were. The store or its split has changed since: give the one that it was trained with."
        )


def _unit(store: Store, cases: Sequence[str], asked: DistanceUnit | None, convention: str) -> DistanceUnit:
    lost = [case for case in cases if store.case_info(case).native_affine is None]  # as in formats that lose it
    if asked == "mm" and lost:
        raise DataError(
            f"Expected cases with a voxel size to measure in mm, but {lost[0]} and {len(lost) - 1} others of "
            f"{store.path} have lost it. Measure in voxels, or prepare the original files."
        )
    return asked or ("voxel" if lost or convention in IN_VOXELS else "mm")
