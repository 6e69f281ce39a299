"""`calibrate`: one temperature that makes a network's probabilities mean what they say; labels stay as they are.

A network that is sure of 90 % should be right in 90 % of such pixels. Guo et al. (ICML 2017) divide the logits by one
number, which is fitted to the cross-entropy of cases that were not trained on. Here, to those pixels of theirs that may
be foreground: all others are so many, and so sure, that the temperature would be theirs.
"""

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from adawac.data.cases import IGNORED, Array
from adawac.errors import DataError, RunError
from adawac.evaluation.plan import Plan, plan_run
from adawac.files import explained
from adawac.runs import Bin, Calibration, Reliability, Run, write_calibration

if TYPE_CHECKING:
    from adawac.inference.predictor import Answer, PixelLogits, Precision, Predictor

log = logging.getLogger(__name__)

Logits = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

_BINS = 15
_PIXELS = 2_000_000  # that are drawn from all slices: the temperature's third digit no longer changes
_SLICES = 8  # that are a block: probabilities of a whole scan are large
_SURE_BACKGROUND = 0.975
_LOWEST, _HIGHEST = 0.05, 20.0


def calibrate(
    run: Run | Path | str,
    *,
    data: Path | str | None = None,
    part: Literal["val", "test", "train"] = "val",
    checkpoint: str | None = None,
    tta: bool = False,
    device: str = "auto",
    precision: "Precision" = "fp32",
    batch_size: int | None = None,
) -> Calibration:
    """Fit the temperature of a run's probabilities, and write it to the run, where `predict` takes it from.

    Args:
        run: The run.
        data: The store, if it is not where the run's configuration says.
        part: Part of the run's split that the temperature is fitted to; of `test`, scores that use probabilities are
            no longer independent, and `train` makes networks look surer than they are.
        checkpoint: Which weights; by default what the run's configuration selects.
        tta: Of probabilities that are averaged over flipped images, as with `predict(…, tta=True)`.
        device: `auto`, `cpu`, `cuda`, …
        precision: Of the network: `fp32` or `bf16`.
        batch_size: Slices at a time; by default what suits the device.

    Returns:
        The temperature, and how reliable the probabilities were before and are after.

    Examples:
        >>> import adawac
        >>> calibration = adawac.calibrate("runs/adawac")
        >>> calibration.part, calibration.cases, calibration.after.cross_entropy < calibration.before.cross_entropy
        ('val', 1, True)
        >>> adawac.Run("runs/adawac").calibration == calibration
        True
    """
    from adawac.inference.predictor import Predictor, find_device
    from adawac.inference.trained import load_trained

    plan = plan_run(run, part=part, data=data, checkpoint=checkpoint, tta=tta)
    options: dict[str, Any] = {"device": find_device(device), "precision": precision, "tta": tta}
    predictor = Predictor.of([load_trained(plan.run, plan.checkpoint)], batch_size=batch_size, **options)
    pixels = DrawnPixels(plan, tta=tta)
    for case in plan.cases:
        for label, answer in predict_blocks(plan, predictor, case):
            pixels.add(label, answer.logits)
    return pixels.calibrate()


def predict_blocks(
    plan: Plan, predictor: "Predictor", case: str, *, probabilities: bool = False
) -> "Iterator[tuple[Array, Answer]]":
    """Yield labels (P, H, W) and what networks say of the same slices, logits too, some of a case at a time."""
    images, label = plan.store.stack(case)
    assert label is not None  # only labelled cases are planned
    blocks = (images[start : start + _SLICES] for start in range(0, len(images), _SLICES))
    start = 0
    for answer in predictor.run(blocks, probabilities=probabilities, logits=True):
        stop = start + len(answer.labels)
        yield label[start:stop], answer
        start = stop


class DrawnPixels:
    """Pixels that a temperature is fitted to: they are drawn while all cases of a plan are predicted, in its order.

    Which pixels are drawn depends on the number of the case and of the slice alone.

    Args:
        plan: What is predicted.
        tta: Whether the probabilities are averaged over flipped images.
    """

    def __init__(self, plan: Plan, *, tta: bool = False):
        self._plan, self._tta = plan, tta
        self._seeds = iter(
            [number, position] for number, case in enumerate(plan.cases) for position in range(len(plan.rows[case]))
        )
        self._per_slice = -(-_PIXELS // sum(len(rows) for rows in plan.rows.values()))
        self._drawn: list[tuple[Logits, Labels]] = []

    def add(self, label: Array, logits: "Iterable[PixelLogits]") -> None:
        """Draw pixels of the next slices; `label` is (P, H, W)."""
        for of_slice, plane, seed in zip(logits, label, self._seeds, strict=False):  # the seeds are of all slices
            chosen = np.random.default_rng(seed).integers(plane.size, size=min(self._per_slice, plane.size))
            classes = plane.ravel()[chosen]
            known = classes != IGNORED if self._plan.store.num_classes <= IGNORED else np.full(len(classes), True)
            self._drawn.append((of_slice(chosen[known]), classes[known].astype(np.int64)))

    def calibrate(self) -> Calibration:
        """Fit the temperature, and write it to the run."""
        plan = self._plan
        logits = np.concatenate([scores for scores, _ in self._drawn])
        labels = np.concatenate([classes for _, classes in self._drawn])
        if not len(labels):
            raise DataError(
                f"Expected annotated pixels in the {plan.part} cases of {plan.store.path}, but there are none."
            )
        foreground = may_be_foreground(logits)
        if not foreground.any():
            raise DataError(
                f"Expected a network that may find something in the {plan.part} cases, but {plan.run.folder} is sure "
                "of background in every pixel. Train it longer."
            )
        temperature = fit_temperature(logits[foreground], labels[foreground])
        calibration = Calibration(
            temperature=temperature,
            checkpoint=plan.checkpoint,
            epoch=plan.epoch,
            tta=self._tta,
            part=plan.part,
            cases=len(plan.cases),
            pixels=len(labels),
            before=measure_reliability(logits, labels, foreground),
            after=measure_reliability((logits / temperature).astype(np.float32), labels, foreground),
        )
        with explained(RunError, f"the calibration into {plan.run.folder}", "Check the folder's permissions."):
            write_calibration(plan.run.folder, calibration)
        return calibration


def fit_temperature(logits: Logits, labels: Labels) -> float:
    """Return the temperature whose softmax(logits / temperature) has the least cross-entropy.

    Args:
        logits: (n, K)
        labels: (n,) classes.

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> logits = 3 * rng.standard_normal((20_000, 3)).astype(np.float32)
        >>> labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
        >>> round(fit_temperature(logits, labels), 1)
        2.0
    """
    from scipy.optimize import minimize_scalar

    def cost(exponent: float) -> float:
        return cross_entropy(logits / np.float32(np.exp(exponent)), labels)

    bounds = np.log(_LOWEST), np.log(_HIGHEST)
    temperature = float(np.exp(minimize_scalar(cost, bounds=bounds, method="bounded", options={"xatol": 1e-4}).x))
    if (logits.argmax(axis=1) == labels).all():
        log.warning("The temperature of %.3g means little: there are no errors to fit it to.", temperature)
    return temperature


def cross_entropy(logits: Logits, labels: Labels) -> float:
    """Return the mean cross-entropy, (n, K) logits against (n,) classes."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    of_class = np.take_along_axis(shifted, labels[:, None], axis=1)[:, 0]
    return float((np.log(np.exp(shifted).sum(axis=1)) - of_class).mean(dtype=np.float64))


def may_be_foreground(logits: Logits) -> npt.NDArray[np.bool_]:
    """Say in which pixels the probability of background is below 0.975.

    Nearly all other pixels are sure background, and hide the rest. Truth must not choose: among pixels that are
    foreground in truth, even perfect probabilities would be too low.
    """
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted[:, 0] / shifted.sum(axis=1) < _SURE_BACKGROUND)


def measure_reliability(logits: Logits, labels: Labels, foreground: npt.NDArray[np.bool_]) -> Reliability:
    """Return how sure a network is and how often it is right, in all pixels and in those that may be `foreground`."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    sure = (1 / shifted.sum(axis=1)).astype(np.float64)  # of the most probable class
    classes = logits.argmax(axis=1)
    right = classes == labels
    bins = _bins(sure[foreground], right[foreground])
    return Reliability(
        cross_entropy=cross_entropy(logits, labels),
        ece=_ece(_bins(sure, right)),
        ece_foreground=_ece(bins),
        bins=bins,
    )


def _bins(sure: npt.NDArray[np.float64], right: npt.NDArray[np.bool_]) -> tuple[Bin, ...]:
    """Return the bins of equal width that have a pixel."""
    number = np.minimum((sure * _BINS).astype(int), _BINS - 1)
    return tuple(
        Bin(
            low=k / _BINS,
            high=(k + 1) / _BINS,
            count=int((number == k).sum()),
            confidence=float(sure[number == k].mean()),
            accuracy=float(right[number == k].mean()),
        )
        for k in np.unique(number).tolist()
    )


def _ece(bins: tuple[Bin, ...]) -> float:
    """Return the expected calibration error: the mean gap between confidence and accuracy over pixels, by bins."""
    count = sum(entry.count for entry in bins)
    return sum(entry.count * abs(entry.accuracy - entry.confidence) for entry in bins) / count if count else 0.0
