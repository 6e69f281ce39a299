"""What a network says of cases that it was not trained on, kept as files: predictions, doubts, losses of every sample.

A folder has `CASE.npz` for each case and, written last, `samples.csv` with a row for each sample. A case's file holds
maps (P, H, W) on the store's grid: `prediction`, the class that the network finds; `confidence`, the probability that
it gives to the label, in 255ths; `certainty`, the probability of the class that it finds, in 255ths. Where nobody has
annotated, both are 255: there is no label to doubt.
"""

import csv
import logging
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from adawac.data.cases import IGNORED, Array, leave_out_ignored
from adawac.errors import DataError, RunError, reading
from adawac.evaluation.calibration import DrawnPixels, predict_blocks
from adawac.evaluation.plan import Plan, plan_run
from adawac.files import beside, write_csv
from adawac.runs import Run

if TYPE_CHECKING:
    from adawac.inference.predictor import Predictor

log = logging.getLogger(__name__)

Bytes = npt.NDArray[np.uint8]

TABLE = "samples.csv"
"""The last file of a folder: with it the folder is whole."""

_STEPS = 255  # of a probability


@dataclass(frozen=True, kw_only=True)
class SampleLoss:
    """A sample's losses by a network that was not trained on its patient.

    Attributes:
        id: The sample.
        case: Its case.
        ell_ce: Cross-entropy, the mean over annotated pixels; NaN without any.
        ell_dice: 1 − mean over classes of the soft Dice coefficient; NaN without annotated pixels.
    """

    id: str
    case: str
    ell_ce: float
    ell_dice: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Doubts:
    """The maps of one case.

    Attributes:
        prediction: (P, H, W) the class that the network finds.
        confidence: (P, H, W) the probability of the label, in 255ths.
        certainty: (P, H, W) the probability of the prediction, in 255ths.
    """

    prediction: Array
    confidence: Bytes
    certainty: Bytes


def predict_out_of_fold(run: Run, folder: Path) -> None:
    """Write what a run's result says of the cases that the run was to be validated on; an earlier answer goes.

    The same pass fits the temperature of the run's probabilities to these cases, as `calibrate` does.
    """
    from adawac.inference.predictor import Predictor, find_device
    from adawac.inference.trained import load_trained

    plan = plan_fold(run)
    predictor = Predictor.of([load_trained(run, plan.checkpoint)], device=find_device("auto"))
    shutil.rmtree(folder, ignore_errors=True)
    losses: list[SampleLoss] = []
    pixels = DrawnPixels(plan)
    for case in plan.cases:
        doubts, of_case = _predict_case(plan, predictor, case, pixels)
        losses += of_case
        with beside(folder / f"{case}.npz") as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **vars(doubts))
    try:
        pixels.calibrate()
    except DataError as error:
        log.warning("The probabilities of %s are not calibrated. %s", run.folder, error)
    write_csv(folder / TABLE, [field.name for field in fields(SampleLoss)], map(asdict, losses))


def plan_fold(run: Run, convention: str = "strict") -> Plan:
    """Return what is to be predicted and scored: the cases that a run was to be validated on."""
    return plan_run(run, part="val", convention=convention)


def read_doubts(folder: Path, case: str) -> Doubts:
    """Read the maps of a case."""
    path = folder / f"{case}.npz"
    with (
        reading(lambda reason: RunError(f"Expected maps of {case} in {path}, but got: {reason}. Predict it again.")),
        np.load(path, allow_pickle=False) as arrays,
    ):
        return Doubts(**{field.name: arrays[field.name] for field in fields(Doubts)})


def read_losses(folder: Path) -> list[SampleLoss]:
    """Read the losses of a folder's samples."""
    path = folder / TABLE
    with (
        reading(lambda reason: RunError(f"Expected losses in {path}, but got: {reason}. Predict it again.")),
        path.open(newline="", encoding="utf-8") as file,
    ):
        rows: Iterator[dict[str, Any]] = csv.DictReader(file)
        return [SampleLoss(**row | {name: float(row[name]) for name in ("ell_ce", "ell_dice")}) for row in rows]


def _predict_case(
    plan: Plan, predictor: "Predictor", case: str, pixels: DrawnPixels
) -> tuple[Doubts, list[SampleLoss]]:
    """Return a case's maps and its samples' losses, and draw its pixels."""
    parts: list[Doubts] = []
    losses: list[tuple[float, float]] = []
    for truth, (prediction, shares, logits) in predict_blocks(plan, predictor, case, probabilities=True):
        assert shares is not None  # they were asked for
        pixels.add(truth, logits)
        parts.append(_doubts(prediction, shares, truth, plan.store.num_classes))
        losses += _losses(shares, truth, plan.store.num_classes)
    maps = {field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Doubts)}
    ids = plan.table.id[plan.rows[case]].tolist()
    named = [
        SampleLoss(id=sample, case=case, ell_ce=ell_ce, ell_dice=ell_dice)
        for sample, (ell_ce, ell_dice) in zip(ids, losses, strict=True)
    ]
    return Doubts(**maps), named


def _doubts(prediction: Array, shares: Array, label: Array, num_classes: int) -> Doubts:
    """Return the maps of some slices; `shares` (P, K, H, W) are probabilities as `Predictor.run` gives them."""
    from adawac.inference.predictor import FULL

    ignored = (label == IGNORED) & (num_classes <= IGNORED)
    classes = np.where(ignored, 0, label).astype(np.intp)

    def bytes_of(probability: Array) -> Bytes:
        return np.where(ignored, _STEPS, np.round(probability * (_STEPS / FULL))).astype(np.uint8)

    confidence = np.take_along_axis(shares, classes[:, None], axis=1)[:, 0]
    return Doubts(
        prediction=leave_out_ignored(prediction, label, num_classes)[0],
        confidence=bytes_of(confidence),
        certainty=bytes_of(shares.max(axis=1)),
    )


def _losses(shares: Array, label: Array, num_classes: int) -> Iterator[tuple[float, float]]:
    """Yield cross-entropy and Dice loss of each slice, as training computes them."""
    import torch

    from adawac.inference.predictor import FULL
    from adawac.losses import cross_entropy, dice_loss

    ignore = IGNORED if num_classes <= IGNORED else None
    logits = torch.from_numpy(np.maximum(shares, 1).astype(np.float32) / FULL).log()
    truth = torch.from_numpy(label.astype(np.int64))
    pair = cross_entropy(logits, truth, ignore), dice_loss(logits, truth, ignore_index=ignore)
    annotated = (truth != IGNORED).flatten(1).any(1) if ignore is not None else torch.ones(len(truth), dtype=torch.bool)
    yield from zip(*(loss.where(annotated, torch.nan).tolist() for loss in pair), strict=True)
