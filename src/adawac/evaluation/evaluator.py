"""`evaluate`: the networks of runs on the cases that they were not trained on, and what that scores."""

import logging
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from adawac.errors import ConfigError, RunError
from adawac.evaluation.case_scores import CaseResult, Unit, pixel_size
from adawac.evaluation.comparison import check_units
from adawac.evaluation.evaluation_record import DISTANCES, METRICS, Evaluation
from adawac.evaluation.gallery import Galleries
from adawac.evaluation.plan import Plan, checked_metrics, plan_run
from adawac.evaluation.scorers import Scorers, default_workers
from adawac.evaluation.slice_scores import Slices, join_slices
from adawac.evaluation.statistics import OUTCOMES
from adawac.files import explained
from adawac.runs import Run, Score, Slice, write_gallery, write_scores

if TYPE_CHECKING:
    from adawac.inference.predictor import Precision, Predictor

log = logging.getLogger(__name__)


def evaluate(
    runs: Path | str | Run | Sequence[Path | str | Run],
    *,
    data: Path | str | None = None,
    part: Literal["test", "val", "train"] = "test",
    checkpoint: str | None = None,
    convention: str = "strict",
    metrics: Sequence[str] = ("dice", "hd95"),
    spacing: Unit | None = None,
    tolerance: float = 1.0,
    tta: bool = False,
    device: str = "auto",
    precision: "Precision" = "fp32",
    batch_size: int | None = None,
    workers: int | None = None,
    gallery: int = 100,
    progress: bool | None = None,
) -> list[Evaluation]:
    """Score runs on cases that they were not trained on, and leave the scores and slices to look at in their folders.

    Nothing is written before everything is computed.

    Args:
        runs: One run or several.
        data: The store, if it is not where the runs' configurations say.
        part: Part of the runs' split.
        checkpoint: Which weights; by default what a run's configuration selects.
        convention: What empty masks score: `strict`, `adawac`, `transunet` or `nan`.
        metrics: What summaries and tables show, of `evaluation_record.METRICS`; the scores have all of them.
        spacing: Measure distances in `mm` or in voxels (`voxel`). By default mm, but voxels for the conventions of the
            paper's tables and for data that has lost its voxel size.
        tolerance: How far a surface may be off for `surface_dice`, in that unit.
        tta: Average the probabilities over flipped images, too: four passes instead of one.
        device: `auto`, `cpu`, `cuda`, …
        precision: Of the network: `fp32`, on a GPU without TF32's rounding, or `bf16`. `predict` has the same rule: its
            label maps are what is scored here.
        batch_size: Slices at a time; by default what suits the device.
        workers: Processes that score; 0 scores in this one. The results are the same.
        gallery: The most slices to keep for looking at, for each of two galleries; 0 keeps none.
        progress: Show a progress bar on stderr; by default where that is a terminal.

    Returns:
        One evaluation for each run, in their order.
    """
    folders = [runs] if isinstance(runs, Path | str | Run) else list(runs)
    if not folders:
        raise ConfigError("Expected run folders to evaluate, but got none. Give at least one.")
    for name, count, least in (("batch_size", batch_size, 1), ("workers", workers, 0), ("gallery", gallery, 0)):
        if count is not None and count < least:
            raise ConfigError(f"Expected {name} to be {least} or more, but got {count}. Raise it, or leave it out.")
    measured = checked_metrics(metrics)
    stores: dict[Path, Any] = {}
    plans = [
        plan_run(
            run if isinstance(run, Run) else Run(run),
            stores=stores,
            data=None if data is None else Path(data),
            part=part,
            checkpoint=checkpoint,
            convention=convention,
            spacing=spacing,
            tolerance=tolerance,
            tta=tta,
        )
        for run in folders
    ]
    _check_together(plans)
    count = sum(len(plan.cases) for plan in plans)
    usual = default_workers(sum(plan.voxels for plan in plans))
    processes = min(usual if workers is None else workers, count)
    # The processes start before torch is imported and a network is loaded: they are ready when the first case is.
    with Scorers(processes) as scorers, _progress(count, progress) as advance:
        from adawac.inference.predictor import Predictor, find_device
        from adawac.inference.trained import load_trained

        options = {"device": find_device(device), "precision": precision, "batch_size": batch_size, "tta": tta}
        results = []
        for plan in plans:
            predictor = Predictor.of([load_trained(plan.run, plan.checkpoint)], **options)
            results.append(_evaluate(plan, predictor, scorers, measured, gallery, advance))
    for (evaluation, galleries), plan in zip(results, plans, strict=True):
        _write(plan, evaluation, galleries)
    return [evaluation for evaluation, _ in results]


def _check_together(plans: Sequence[Plan]) -> None:
    """Refuse runs that cannot stand in one table: one that would count twice as a seed, and two units."""
    seen: set[Path] = set()
    for plan in plans:
        folder = plan.run.folder.resolve()
        if folder in seen:
            raise ConfigError(
                f"Expected each run once, but got {plan.run.folder} twice: it would count as two seeds. Leave one out."
            )
        seen.add(folder)
    check_units({str(plan.run.folder): plan.rules.unit for plan in plans})


def _evaluate(
    plan: Plan, predictor: "Predictor", scorers: Scorers, metrics: tuple[str, ...], gallery: int, advance: Any
) -> tuple[Evaluation, dict[str, list[Slice]]]:
    """Predict all cases while earlier ones are scored, then the slices of the galleries."""
    waiting: list[tuple[str, Future[CaseResult]]] = []
    stacks = (plan.store.stack(case)[0] for case in plan.cases)
    for case, prediction in zip(plan.cases, predictor.predict(stacks), strict=True):
        waiting.append((case, scorers.submit(plan.store.path, case, prediction, plan.rules)))
        advance()
    galleries = Galleries(plan, predictor, gallery)
    galleries.add_training()  # predicted while the last cases are scored
    results = {case: future.result() for case, future in waiting}
    evaluation = _assemble(plan, results, metrics)
    galleries.add_evaluated(evaluation)
    return evaluation, galleries.found


def _assemble(plan: Plan, results: dict[str, CaseResult], metrics: tuple[str, ...]) -> Evaluation:
    slices = join_slices([_slices(plan, case, result) for case, result in results.items()])
    scores = [score for case, result in results.items() for score in _scores(plan, case, result, slices)]
    return Evaluation(
        run=plan.run,
        name=plan.name,
        dataset=plan.store.dataset,
        part=plan.part,
        checkpoint=plan.checkpoint,
        convention=plan.rules.convention,
        unit=plan.rules.unit,
        metrics=metrics,
        scores=scores,
        slices=slices,
    )


def _slices(plan: Plan, case: str, result: CaseResult) -> Slices:
    rows = plan.rows[case]
    area = float(np.prod(pixel_size(plan.store, case))) if plan.rules.unit == "mm" else 1.0
    return Slices(
        id=plan.table.id[rows],
        case=plan.table.case[rows],
        sparse=plan.table.label_sparse[rows],
        pred=result.pred,
        truth=result.truth,
        both=result.both,
        area=np.full(len(rows), area),
        class_names=plan.store.class_names,
    )


def _scores(plan: Plan, case: str, result: CaseResult, slices: Slices) -> Iterator[Score]:
    first = plan.rows[case][0]
    own = slices.of_case(case)
    for row in result.rows:
        values = {name: float(getattr(row, name)) for name in METRICS}
        values |= {name: float(row.outcome == name) for name in OUTCOMES}
        values |= own.values(row.label)
        for metric, value in values.items():
            yield Score(
                patient=str(plan.table.patient[first]),
                case=case,
                group=str(plan.table.group[first]),
                label=row.label,
                class_name=plan.store.class_names[row.label],
                metric=metric,
                value=value,
                convention=plan.rules.convention,
                checkpoint=plan.checkpoint,
                split=plan.part,
                unit=plan.rules.unit if metric in DISTANCES else "",
                dataset=plan.store.dataset,
                epoch=plan.epoch,
            )


def _write(plan: Plan, evaluation: Evaluation, galleries: dict[str, list[Slice]]) -> None:
    with explained(RunError, f"scores into {plan.run.folder}", "Make room, or check the folder's permissions."):
        write_scores(plan.run.folder, plan.name, evaluation.scores)
        for name, slices in galleries.items():
            write_gallery(plan.run.folder, name, slices, checkpoint=plan.checkpoint, epoch=plan.epoch)


@contextmanager
def _progress(total: int, show: bool | None) -> Iterator[Any]:
    """Yield what is to be called after each case."""
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("cases", total=total)
        yield lambda: bar.advance(task)
