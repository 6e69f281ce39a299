"""Slices worth looking at: the telling ones of evaluated cases; of the training slices a spread, and the suspects."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from adawac.data.store import Store
from adawac.evaluation.case_scores import pixel_size
from adawac.evaluation.evaluation_record import Evaluation
from adawac.evaluation.plan import Plan
from adawac.evaluation.slice_scores import Slices
from adawac.runs import Run, Slice

if TYPE_CHECKING:
    from adawac.inference.predictor import Predictor

__all__ = ["Galleries", "telling_slices", "training_slices"]

Array = npt.NDArray[Any]

_PER_RANK = 3  # cases at each end and in the middle
_SUSPECTS = 5  # every so manieth training slice is a suspect of one kind


class Galleries:
    """Collects the galleries of one evaluation; `found` has the slices by the gallery's name.

    Args:
        plan: What is evaluated.
        predictor: Has the run's network.
        count: The most slices in a gallery; 0 makes none.
    """

    def __init__(self, plan: Plan, predictor: "Predictor", count: int):
        self._plan, self._predictor, self._count = plan, predictor, count
        self.found: dict[str, list[Slice]] = {}

    def add_training(self) -> None:
        """Predict a spread of training slices and the suspects among them."""
        if self._count and self._plan.run.samples is not None:
            self._add("train", training_slices(self._plan.run, self._count))

    def add_evaluated(self, evaluation: Evaluation) -> None:
        """Predict the telling slices of the worst, middle and best cases again."""
        if self._count:
            self._add(self._plan.part, telling_slices(evaluation)[: self._count])

    def _add(self, part: str, ids: Sequence[str]) -> None:
        table = self._plan.store.table
        row_of = {sample: row for row, sample in enumerate(table.id.tolist())}
        rows = [row_of[sample] for sample in ids if sample in row_of]  # the store may have lost a sample since
        if not rows:
            return
        where = [(str(table.case[row]), int(table.position[row])) for row in rows]
        predictions = self._predictor.predict(self._plan.store.read(*position)[0][None] for position in where)
        slices = [
            _slice(self._plan.store, str(table.id[row]), *position, prediction[0])
            for row, position, prediction in zip(rows, where, predictions, strict=True)
        ]
        gallery = self.found.setdefault(f"{part}-{self._plan.gallery}", [])
        known = {shown.id for shown in gallery}  # evaluated on the training cases: one gallery
        gallery.extend(shown for shown in slices if shown.id not in known)


def telling_slices(evaluation: Evaluation) -> list[str]:
    """Return ids of slices of the worst, best and middle cases, by mean Dice over classes: those cases in turn.

    Of each case: the label-dense slices with the lowest and the highest Dice, the one with the most foreground, and the
    label-sparse slice with the most falsely found, if any.
    """
    slices = evaluation.slices
    ranked = sorted(_case_dice(evaluation).items(), key=lambda one: (one[1], one[0]))
    cases = [case for case, _ in ranked]
    middle = len(cases) // 2
    order: list[str] = []
    for step in range(_PER_RANK):
        places = (step, len(cases) - 1 - step, middle + (-1) ** step * ((step + 1) // 2))
        order += [cases[place] for place in places if 0 <= place < len(cases)]
    return list(dict.fromkeys(one for case in dict.fromkeys(order) for one in _of_case(slices.of_case(case))))


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
    dense, sparse = np.flatnonzero(~table.label_sparse), np.flatnonzero(table.label_sparse)
    some = count // _SUSPECTS
    chosen = [*dense[_order(beta[dense])][:some].tolist(), *sparse[_order(-ell_ce[sparse])][:some].tolist()]
    rest = np.setdiff1d(np.arange(len(table)), chosen)
    along = np.where(np.isnan(beta), ell_ce, beta)
    rest = rest[np.lexsort((along[rest], table.case[rest]))]
    places = np.unique(np.linspace(0, len(rest) - 1, min(count - len(chosen), len(rest))).round().astype(int))
    return [str(one) for one in table.id[[*chosen, *rest[places].tolist()]]]


def _case_dice(evaluation: Evaluation) -> dict[str, float]:
    """Return each case's mean Dice over classes."""
    values: dict[str, list[float]] = {}
    for score in evaluation.scores:
        if score.metric == "dice" and not np.isnan(score.value):
            values.setdefault(score.case, []).append(score.value)
    return {case: float(np.mean(own)) for case, own in values.items()}


def _of_case(slices: Slices) -> Iterator[str]:
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
    found = run.history.read(field, slice(-1, None))
    return found[0, :count] if len(found) else np.full(count, np.nan, dtype=np.float32)


def _order(values: Array) -> Array:
    """Return the places of the numbers, smallest first; NaN is none."""
    order = np.argsort(values, kind="stable")
    return order[: int((~np.isnan(values)).sum())]


def _slice(store: Store, name: str, case: str, position: int, prediction: Array) -> Slice:
    image, label = store.read(case, position)
    shown = _to_bytes(image, store.preprocessing.normalisation == "min-max")
    return Slice(
        id=name,
        image=shown[0] if len(shown) == 1 else shown,
        label=None if label is None else np.array(label),
        prediction=prediction,
        spacing=pixel_size(store, case),
    )


def _to_bytes(image: Array, scaled: bool) -> npt.NDArray[np.uint8]:
    """Return (C, H, W) in 256 steps: from 0 to 1 where that is the volume's range, else over each channel's own."""
    low = np.zeros((len(image), 1, 1)) if scaled else image.min(axis=(1, 2), keepdims=True)
    high = np.ones_like(low) if scaled else image.max(axis=(1, 2), keepdims=True)
    steps = (image - low) / np.maximum(high - low, np.finfo(np.float32).tiny) * 255
    return np.asarray(steps.clip(0, 255).round().astype(np.uint8))
