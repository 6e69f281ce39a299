"""`evaluate`: predict the cases that runs were not trained on, and score the predictions."""

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from adawac.errors import ConfigError, RunError
from adawac.evaluation.case_scores import CaseResult, DistanceUnit, score_case
from adawac.evaluation.comparison import check_units
from adawac.evaluation.evaluation_record import Evaluation, assemble
from adawac.evaluation.gallery import predict_slices, telling_slices, training_slices
from adawac.evaluation.plan import Plan, checked_metrics, plan_run
from adawac.evaluation.scorers import Scorers, default_workers, scoring_bar
from adawac.files import explained
from adawac.metrics.surfaces import Array
from adawac.runs import Run, Slice, write_gallery, write_scores

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
    spacing: DistanceUnit | None = None,
    tolerance: float = 1.0,
    tta: bool = False,
    device: str = "auto",
    precision: "Precision" = "fp32",
    batch_size: int | None = None,
    workers: int | None = None,
    gallery: int = 100,
    progress: bool | None = None,
) -> list[Evaluation]:
    """Score runs on cases that they were not trained on, and write the scores and a gallery of slices to their folders.

    Nothing is written before everything is computed.

    Args:
        runs: One run or several.
        data: The store, if it is not where the runs' configurations say.
        part: Part of the runs' split.
        checkpoint: Which weights; by default what a run's configuration selects.
        convention: What empty masks score: `strict`, `adawac`, `transunet` or `nan`.
        metrics: What summaries and tables show, of `evaluation_record.CASE_METRICS`; the scores have all of them.
        spacing: Measure distances in `mm` or in voxels (`voxel`). By default mm, but voxels for the conventions of the
            paper's tables and for data that has lost its voxel size.
        tolerance: How far a surface may be off for `surface_dice`, in that unit.
        tta: Also average the probabilities over flipped images: four passes instead of one.
        device: `auto`, `cpu`, `cuda`, …
        precision: Of the network: `fp32`, on a GPU without TF32's rounding, or `bf16`. `predict` has the same rule: its
            label maps are what is scored here.
        batch_size: Slices at a time; by default what suits the device.
        workers: Processes that score; 0 scores in this one. The results are the same.
        gallery: The most slices in each of the two galleries; 0 writes none.
        progress: Show a progress bar on stderr; by default where that is a terminal.

    Returns:
        One evaluation for each run, in their order.

    Examples:
        >>> import adawac
        >>> [evaluation] = adawac.evaluate("runs/adawac", part="val", workers=0)
        >>> evaluation.num_cases, evaluation.metrics
        (1, ('dice', 'hd95'))
        >>> adawac.Run("runs/adawac").evaluations
        ['val-strict-last']
    """
    listed = [runs] if isinstance(runs, Path | str | Run) else list(runs)
    if not listed:
        raise ConfigError("Expected run folders to evaluate, but got none. Give at least one.")
    for name, count, least in (("batch_size", batch_size, 1), ("workers", workers, 0), ("gallery", gallery, 0)):
        if count is not None and count < least:
            raise ConfigError(f"Expected `{name}` to be {least} or more, but got {count}. Raise it, or leave it out.")
    measured = checked_metrics(metrics)
    stores: dict[Path, Any] = {}
    plans = [
        plan_run(
            run,
            stores=stores,
            data=data,
            part=part,
            checkpoint=checkpoint,
            convention=convention,
            spacing=spacing,
            tolerance=tolerance,
            tta=tta,
        )
        for run in listed
    ]
    _check_together(plans)
    count = sum(len(plan.cases) for plan in plans)
    usual = default_workers(sum(plan.voxels for plan in plans))
    processes = min(usual if workers is None else workers, count)
    # The processes start before torch is imported and a network is loaded: they are ready when the first case is.
    with Scorers(processes) as scorers, scoring_bar(count, progress) as advance:
        from adawac.inference.predictor import Predictor, find_device
        from adawac.inference.trained import load_trained

        options = {"device": find_device(device), "precision": precision, "batch_size": batch_size, "tta": tta}
        results = []
        for plan in plans:
            predictor = Predictor.of([load_trained(plan.run, plan.checkpoint)], **options)
            results.append(_evaluate(plan, predictor, scorers, measured, gallery, advance))
    for (evaluation, galleries), plan in zip(results, plans, strict=True):
        folder = plan.run.folder
        with explained(RunError, f"scores into {folder}", "Make room, or check the folder's permissions."):
            write_scores(folder, plan.name, evaluation.scores)
            for name, slices in galleries.items():
                write_gallery(folder, name, slices, checkpoint=plan.checkpoint, epoch=plan.epoch)
    return [evaluation for evaluation, _ in results]


def _check_together(plans: Sequence[Plan]) -> None:
    """Refuse runs that do not fit one table: the same run twice, which would count as two seeds, and two units."""
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
    for case, prediction in zip(plan.cases, _predictions(plan, predictor), strict=True):
        waiting.append((case, scorers.submit(score_case, plan.store.path.absolute(), case, prediction, plan.rules)))
        advance()
    # Predicted while the last cases are scored.
    galleries = {"train": predict_slices(plan, predictor, training_slices(plan.run, gallery))}
    results = {case: future.result() for case, future in waiting}
    evaluation = assemble(
        [(plan.scored_case(case), result) for case, result in results.items()],
        run=plan.run,
        name=plan.name,
        dataset=plan.store.dataset,
        part=plan.part,
        checkpoint=plan.checkpoint,
        epoch=plan.epoch,
        rules=plan.rules,
        metrics=metrics,
        class_names=plan.store.class_names,
    )
    telling = predict_slices(plan, predictor, telling_slices(evaluation)[:gallery])
    galleries[plan.part] = galleries.get(plan.part, {}) | telling
    return evaluation, {f"{part}-{plan.gallery}": [*slices.values()] for part, slices in galleries.items() if slices}


def _predictions(plan: Plan, predictor: "Predictor") -> Iterator[Array]:
    """Yield the label map of each case as the store cuts it; tiles are those of the whole picture, blended."""
    if not plan.store.preprocessing.tile:
        yield from predictor.predict(plan.store.stack(case)[0] for case in plan.cases)
        return
    for case in plan.cases:
        tiling, rows = plan.store.tiling(case), plan.rows[case]
        tiles = (plan.store.read(case, position)[0] for position in range(len(rows)))
        pages = np.concatenate(list(predictor.blend(tiles, tiling))).reshape(-1, tiling.height, tiling.width)
        yield np.stack([tile for page in pages for tile in tiling.cut(page)])
