"""A small run to look at: made in a second, without a network, and the same for the same seed.

Ellipses stand for organs. The losses follow a simple law (label-sparse samples are learned at once, label-dense ones
slowly; consistency is much alike for all), the weights follow from them by the update of Algorithm 1, and the scores
are those of the predictions, which are the labels slightly moved.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from adawac.config import DataConfig, MethodConfig, TrainConfig
from adawac.data.cases import Array, SampleTable, class_pixels, sample_id
from adawac.metrics import dice, hd95
from adawac.runs.reader import Run
from adawac.runs.results import Score, Slice
from adawac.runs.writer import RunWriter

CLASS_NAMES = ("background", "liver", "kidney")
_DATASET = "example"


class _Volume(NamedTuple):
    """One case: (slices, size, size) each."""

    name: str
    image: Array
    label: Array
    prediction: Array


def example_run(
    folder: Path | str,
    *,
    seed: int = 0,
    method: str = "adawac",
    cases: Sequence[str] = ("case01", "case02", "case03"),
    slices: int = 20,
    epochs: int = 20,
    size: int = 64,
    status: Literal["finished", "interrupted"] = "finished",
) -> Run:
    """Write a small, complete and plausible run, and open it.

    Args:
        folder: A new or empty folder.
        seed: Everything drawn follows from it.
        method: `adawac`, or another name: then nothing is weighed, and consistency and beta are NaN.
        cases: Names of the cases, which may be any text; each is a patient of its own.
        slices: Slices in a case; about half of them carry no label.
        epochs: Epochs of the run.
        size: Height and width of a slice.
        status: `interrupted` stops in the middle and leaves no scores and no gallery.
    """
    rng = np.random.default_rng(seed)
    volumes = [_draw(name, slices, size, rng, error=0.03 if method == "adawac" else 0.06) for name in cases]
    table = _table(volumes, size)
    config = TrainConfig(
        epochs=epochs,
        seed=seed,
        data=DataConfig(image_size=(size, size), batch_size=min(24, len(table))),
        method=MethodConfig(name=method, options={"eta_beta": 1.0}),
    )
    last = epochs if status == "finished" else max(1, epochs // 2)
    run = RunWriter(folder, config, epochs=epochs, summary=config.summary)
    with run:
        run.write_data({"dataset": _DATASET, "class_names": CLASS_NAMES, "unit": "slice", "spacing": [1.0, 1.0, 1.0]})
        rows = run.write_samples(table)
        for epoch, fields in zip(range(1, last + 1), _train(table, epochs, method, rng), strict=False):
            run.log_history(epoch, rows, **fields)
            run.log_metrics(epoch, {"lr": config.optim.lr} | {name: _mean(values) for name, values in fields.items()})
        log_odds = np.nan_to_num(np.log(fields["beta"]) - np.log1p(-fields["beta"]))
        weights = {"model.weight": rng.normal(size=(4, 4)), "criterion.log_odds": log_odds}
        weights = {name: tensor.astype(np.float32) for name, tensor in weights.items()}
        run.save_checkpoint("last", weights, {"epoch": last, "ids": table.id.tolist()})
        if status == "finished":
            scores = list(_scores(volumes))
            run.write_scores("test-strict", scores)
            run.write_gallery("test", _gallery(volumes))
            dice = np.mean([score.value for score in scores if score.metric == "dice"])
            run.close("finished", {"dice": round(float(dice), 4)})
        run.close("interrupted")
    return Run(folder)


def _draw(name: str, slices: int, size: int, rng: np.random.Generator, error: float) -> _Volume:
    """Draw a body, two organs that begin in the middle of the scan and grow, and a prediction that is a little off."""
    y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    image, label, prediction = np.zeros((3, slices, size, size))
    centre = rng.uniform(-0.05, 0.05, 2)
    for number in range(slices):
        image[number] = 0.4 * _ellipse(y, x, centre, (0.8, 0.9))
        for organ, middle, reach in ((1, (0.0, -0.35), (0.38, 0.34)), (2, (0.25, 0.4), (0.17, 0.13))):
            grown = np.sqrt(np.clip(2 * (number + 0.5) / slices - 1, 0, None))  # nothing in the lower half
            position = centre + middle
            label[number][_ellipse(y, x, position, np.multiply(reach, grown))] = organ
            moved, scaled = position + rng.normal(0, error, 2), np.multiply(reach, grown * rng.normal(1, error))
            prediction[number][_ellipse(y, x, moved, scaled)] = organ
        image[number] += 0.2 * (label[number] > 0) + 0.15 * (label[number] == 2) + rng.normal(0, 0.04, (size, size))
    return _Volume(name, image.astype(np.float16), label.astype(np.uint8), prediction.astype(np.uint8))


def _ellipse(y: Array, x: Array, centre: Array, reach: Any) -> npt.NDArray[np.bool_]:
    height, width = np.maximum(reach, 1e-9)
    return np.asarray(((y - centre[0]) / height) ** 2 + ((x - centre[1]) / width) ** 2 < 1)


def _table(volumes: list[_Volume], size: int) -> SampleTable:
    named = [(volume.name, number) for volume in volumes for number in range(len(volume.label))]
    n, numbers = len(named), np.array([number for _, number in named])
    pixels = np.concatenate([class_pixels(volume.label, len(CLASS_NAMES)) for volume in volumes])
    return SampleTable(
        id=np.array([sample_id(_DATASET, name, name, "2", number) for name, number in named]),
        patient=np.array([name for name, _ in named]),
        case=np.array([name for name, _ in named]),
        slice=numbers,
        axis=np.full(n, "2"),
        unit=np.full(n, "slice"),
        split=np.full(n, "train"),
        group=np.full(n, "drawn"),
        position=numbers,
        shape=np.full((n, 2), size),
        fraction=pixels / size**2,
        class_names=CLASS_NAMES,
    )


def _train(table: SampleTable, epochs: int, method: str, rng: np.random.Generator) -> Iterator[dict[str, Array]]:
    """Yield the fields of each epoch: losses by law and chance, beta by Algorithm 1 (lines 5-8) in log-odds."""
    n, dense = len(table), ~table.label_sparse
    start = rng.normal(1.2, 0.1, n) + dense * rng.uniform(0.2, 0.8, n)
    floor = np.where(dense, rng.uniform(0.35, 0.6, n), 0.01)  # what stays hard: the organs' borders
    pace = np.where(dense, rng.uniform(3, 6, n), rng.uniform(0.6, 1.2, n))
    log_odds = np.zeros(n)
    for epoch in range(epochs):
        ell_ce = (floor + (start - floor) * np.exp(-epoch / pace)) * rng.lognormal(0, 0.1, n)
        ell_dice = np.where(dense, 0.15, 0.02) + 0.7 * np.exp(-epoch / pace) * rng.lognormal(0, 0.1, n)
        reg_ac = (0.15 + 0.15 * np.exp(-epoch / 8)) * rng.lognormal(0, 0.1, n)
        log_odds += ell_ce - reg_ac
        if method == "adawac":
            yield {"ell_ce": ell_ce, "ell_dice": ell_dice, "reg_ac": reg_ac, "beta": 1 / (1 + np.exp(-log_odds))}
        else:
            unused = np.full(n, np.nan)
            yield {"ell_ce": ell_ce, "ell_dice": ell_dice, "reg_ac": unused, "beta": unused}


def _scores(volumes: list[_Volume]) -> Iterator[Score]:
    for volume in volumes:
        for label in range(1, len(CLASS_NAMES)):
            truth, predicted = volume.label == label, volume.prediction == label
            for metric, value in (("dice", dice(truth, predicted)), ("hd95", hd95(truth, predicted))):
                yield Score(
                    patient=volume.name,
                    case=volume.name,
                    group="drawn",
                    label=label,
                    class_name=CLASS_NAMES[label],
                    metric=metric,
                    value=float(value),
                    unit="mm" if metric == "hd95" else "",
                )


def _gallery(volumes: list[_Volume]) -> list[Slice]:
    """Choose the last slice without a label and the densest one of each case."""
    chosen = []
    for name, image, label, prediction in volumes:
        foreground = (label > 0).sum((1, 2))
        sparse = np.flatnonzero(foreground == 0)
        for k in dict.fromkeys([*sparse[-1:].tolist(), int(foreground.argmax())]):
            sample = sample_id(_DATASET, name, name, "2", k)
            chosen.append(Slice(id=sample, image=image[k], label=label[k], prediction=prediction[k]))
    return chosen


def _mean(values: Array) -> float | None:
    return None if np.isnan(values).all() else float(np.nanmean(values))
