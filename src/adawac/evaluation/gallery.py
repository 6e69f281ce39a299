"""Slices worth looking at: the most telling ones of evaluated cases, and a spread of training slices with suspects."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from adawac.data.cases import IGNORED, leave_out_ignored
from adawac.data.store import Store
from adawac.evaluation.case_scores import pixel_size
from adawac.evaluation.evaluation_record import Evaluation, SliceScores
from adawac.evaluation.plan import Plan
from adawac.evaluation.statistics import means_by
from adawac.metrics.surfaces import Array
from adawac.runs import Run, Slice

if TYPE_CHECKING:
    from adawac.inference.predictor import Predictor

_PER_RANK = 3  # cases at each end and in the middle
_PER_RANK_OF_PICTURES = 10  # where most cases are empty, and have a slice or two
_SUSPECTS = 5  # one in so many training slices is a suspect of one kind


def predict_slices(plan: Plan, predictor: "Predictor", ids: Sequence[str]) -> dict[str, Slice]:
    """Return samples by id with their predictions, as a gallery keeps them."""
    table = plan.store.table
    row_of = {sample: row for row, sample in enumerate(table.id.tolist())}
    rows = [row_of[sample] for sample in ids if sample in row_of]  # the store may have lost a sample since
    slots = [(str(table.case[row]), int(table.position[row])) for row in rows]
    predictions = predictor.predict(plan.store.read(*slot)[0][None] for slot in slots) if rows else ()
    return {
        str(table.id[row]): make_slice(plan.store, str(table.id[row]), *slot, prediction[0])
        for row, slot, prediction in zip(rows, slots, predictions, strict=True)
    }


def telling_slices(evaluation: Evaluation) -> list[str]:
    """Return ids of slices of the worst, best and middle cases, by mean Dice over classes: those cases in turn.

    Of each case: the label-dense slices with the lowest and the highest Dice, the one with the most foreground, and the
    label-sparse slice with the most falsely found, if any. Where there are empty cases, those in which nothing was
    found are left out: they look alike.
    """
    slices = evaluation.slices
    dice = means_by("case", evaluation.scores, "dice")
    cases = sorted(dice, key=lambda case: (dice[case], case))
    per_rank = _PER_RANK
    if evaluation.has_empty_cases:
        busy = set(slices.case[(slices.truth + slices.pred)[:, 1:].any(axis=1)].tolist())
        cases, per_rank = [case for case in cases if case in busy], _PER_RANK_OF_PICTURES
    middle = len(cases) // 2
    order: list[str] = []
    for step in range(per_rank):
        ranks = (step, len(cases) - 1 - step, middle + (-1) ** step * ((step + 1) // 2))
        order += [cases[rank] for rank in ranks if 0 <= rank < len(cases)]
    return list(dict.fromkeys(sample for case in dict.fromkeys(order) for sample in _of_case(slices.of_case(case))))


def training_slices(run: Run, count: int) -> list[str]:
    """Return ids of up to `count` training slices.

    A fifth are label-dense with the smallest beta, a fifth label-sparse with the highest cross-entropy: labels that may
    be wrong. The others are spread evenly over the cases and, within each, over the range of beta (or of cross-entropy
    where the method has no weights).
    """
    table = run.samples
    if table is None:
        return []
    beta, ell_ce = _last(run, "beta", len(table)), _last(run, "ell_ce", len(table))
    dense, sparse = np.flatnonzero(table.label_dense), np.flatnonzero(table.label_sparse)
    some = count // _SUSPECTS
    chosen = [*dense[_order(beta[dense])][:some].tolist(), *sparse[_order(-ell_ce[sparse])][:some].tolist()]
    rest = np.setdiff1d(np.arange(len(table)), chosen)
    along = np.where(np.isnan(beta), ell_ce, beta)
    rest = rest[np.lexsort((along[rest], table.case[rest]))]
    evenly = np.unique(np.linspace(0, len(rest) - 1, min(count - len(chosen), len(rest))).round().astype(int))
    return [str(sample) for sample in table.id[[*chosen, *rest[evenly].tolist()]]]


def _of_case(slices: SliceScores) -> Iterator[str]:
    dice = np.where(slices.sparse, np.nan, slices.mean_dice)
    if (~np.isnan(dice)).any():
        yield str(slices.id[np.nanargmin(dice)])
        yield str(slices.id[np.nanargmax(dice)])
        yield str(slices.id[slices.truth[:, 1:].sum(axis=1).argmax()])
    invented = np.where(slices.sparse, slices.pred[:, 1:].sum(axis=1), 0)
    if invented.max() > 0:
        yield str(slices.id[invented.argmax()])


def _last(run: Run, field: str, count: int) -> Array:
    """Return a field of the last epoch that was recorded; NaN where there is none."""
    last = run.history.read(field, slice(-1, None))
    return last[0, :count] if len(last) else np.full(count, np.nan, dtype=np.float32)


def _order(values: Array) -> Array:
    """Return the indices of the numbers, smallest first, without NaN."""
    order = np.argsort(values, kind="stable")
    return order[: int((~np.isnan(values)).sum())]


def make_slice(store: Store, name: str, case: str, position: int, prediction: Array) -> Slice:
    """Return the sample `name`, which a store has at a position of a case, with its prediction (H, W), upright."""
    image, label = store.read(case, position)
    if label is not None and store.num_classes <= IGNORED and (label == IGNORED).all():
        label = None
    if label is not None:
        prediction, label = leave_out_ignored(prediction, label, store.num_classes)
    shown = _to_bytes(image, store.preprocessing.normalisation in ("min-max", "range"))
    order, flipped = _upright(store, case)
    height, width = (pixel_size(store, case)[axis] for axis in order)

    def turn(plane: Array) -> Array:
        turned = plane if order == (0, 1) else plane.swapaxes(-1, -2)
        return np.flip(turned, flipped)

    return Slice(
        id=name,
        image=turn(shown[0] if len(shown) == 1 else shown),
        label=None if label is None else turn(label),
        prediction=turn(prediction),
        spacing=(height, width),
        in_colour=store.task.in_colour,
    )


def _upright(store: Store, case: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return which axes of a case's slices become height and width, and which of these are flipped then.

    The head is up, or else the front; the patient's right is on the left, or else the front.
    """
    affine = store.case_info(case).affine
    if affine is None:
        return (0, 1), ()
    from nibabel.orientations import io_orientation

    plane = np.delete(io_orientation(np.array(affine)), store.preprocessing.axis, axis=0)
    order = (0, 1) if plane[0, 0] > plane[1, 0] else (1, 0)  # left-right, front-back, head-foot: the last one is height
    return order, tuple(side - 2 for side, axis in enumerate(order) if plane[axis, 1] > 0)


def _to_bytes(image: Array, scaled: bool) -> npt.NDArray[np.uint8]:
    """Return (C, H, W) in 256 steps: from 0 to 1 where that is the volume's range, else over each channel's own."""
    low = np.zeros((len(image), 1, 1)) if scaled else image.min(axis=(1, 2), keepdims=True)
    high = np.ones_like(low) if scaled else image.max(axis=(1, 2), keepdims=True)
    steps = (image - low) / np.maximum(high - low, np.finfo(np.float32).tiny) * 255
    return np.asarray(steps.clip(0, 255).round().astype(np.uint8))
