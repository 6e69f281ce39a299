"""What evaluation adds to a run: scores by case, class and metric, and a gallery of slices to look at.

Both are files of their own, each written in one step, so that a run can be evaluated while it still trains.
"""

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.data.cases import Array
from adawac.errors import RunError, check_known, reading
from adawac.files import beside, write_csv
from adawac.runs.layout import CALIBRATION, gallery_path, read_json, scores_path, write_json


@dataclass(frozen=True, kw_only=True)
class Score:
    """One number: a metric of one class in one case.

    Attributes:
        patient: Who was scanned; tests and intervals go by it.
        case: The case's id.
        group: Pathology or another stratum; empty where unknown.
        label: The class index.
        class_name: The class's name.
        metric: `dice`, `hd95`, …
        value: The number; NaN where the convention leaves it out.
        convention: What empty masks score.
        checkpoint: Which weights predicted.
        split: Which part of the data the case belongs to.
        unit: Of distances: `mm` or `voxel`; empty for other metrics.
        dataset: The patient's data set: patients of two data sets may have the same name. Empty where unknown;
            `Run.scores` then fills in the run's.
        epoch: How far these weights had been trained; None where unknown. A run may go on: see `Run.outdated`.
    """

    patient: str
    case: str
    group: str = ""
    label: int
    class_name: str
    metric: str
    value: float
    convention: str = "strict"
    checkpoint: str = "last"
    split: str = "test"
    unit: str = ""
    dataset: str = ""
    epoch: int | None = None


def write_scores(folder: Path | str, name: str, scores: Iterable[Score]) -> Path:
    """Write the scores of one evaluation; `name` tells it from others, for example `test-strict`."""
    path = scores_path(Path(folder), name)
    columns, rows = [field.name for field in fields(Score)], map(asdict, scores)
    write_csv(path, columns, rows, errors="surrogatepass", quoting=csv.QUOTE_ALL)
    return path


def read_scores(path: Path) -> list[Score]:
    """Read the scores of one evaluation; columns of a later version are passed over."""
    known = {field.name for field in fields(Score)}
    with (
        reading(lambda reason: RunError(f"Expected scores in {path}, but got: {reason}. Evaluate the run again.")),
        path.open(newline="", encoding="utf-8", errors="surrogatepass") as file,
    ):
        rows: list[dict[str, Any]] = [
            {key: row[key] or "" for key in row if key in known} for row in csv.DictReader(file)
        ]
        for row in rows:
            epoch = int(row["epoch"]) if row.get("epoch") else None
            row |= {"label": int(row["label"]), "value": float(row["value"]), "epoch": epoch}
        return [Score(**row) for row in rows]


@dataclass(frozen=True, kw_only=True)
class Bin:
    """Pixels of which a network is about as sure.

    Attributes:
        low, high: Between which the probability of its class lies.
        count: How many.
        confidence: Mean probability of the class that it finds.
        accuracy: Share in which that class is right.
    """

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """How well probabilities say how often a network is right.

    Attributes:
        cross_entropy: Mean over pixels.
        ece: Expected calibration error: the mean gap between confidence and accuracy, over all pixels.
        ece_foreground: The same over pixels that may be foreground, where background has less than 0.975.
        bins: Of these, by confidence; without those that have no pixel.
    """

    cross_entropy: float
    ece: float
    ece_foreground: float
    bins: tuple[Bin, ...]


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The temperature of a run's probabilities.

    Attributes:
        temperature: What logits are divided by.
        checkpoint, epoch: Which weights, and how far they had been trained.
        tta: Whether probabilities were averaged over flipped images.
        part, cases, pixels: What it was fitted to.
        before, after: How reliable probabilities are without it and with it.
    """

    temperature: float
    checkpoint: str
    epoch: int | None
    tta: bool
    part: str
    cases: int
    pixels: int
    before: Reliability
    after: Reliability


def write_calibration(folder: Path | str, calibration: Calibration) -> Path:
    """Write the calibration of a run; it replaces an earlier one."""
    path = Path(folder) / CALIBRATION
    write_json(path, asdict(calibration))
    return path


def read_calibration(path: Path) -> Calibration:
    """Read the calibration of a run."""
    data = read_json(path, "Calibrate the run again.")
    with reading(lambda reason: RunError(f"Expected a calibration in {path}, but got: {reason}. Calibrate it again.")):
        parts = {name: _reliability(data[name]) for name in ("before", "after")}
        calibration = Calibration(**{field.name: data[field.name] for field in fields(Calibration)} | parts)
        if not 0 < calibration.temperature < math.inf:
            raise ValueError(f"temperature {calibration.temperature!r}")
    return calibration


def _reliability(data: Mapping[str, Any]) -> Reliability:
    bins = tuple(Bin(**{field.name: entry[field.name] for field in fields(Bin)}) for entry in data["bins"])
    return Reliability(**{field.name: data[field.name] for field in fields(Reliability)} | {"bins": bins})


@dataclass(frozen=True, kw_only=True, eq=False)
class Slice:
    """A slice to look at.

    Attributes:
        id: The sample's id.
        image: (H, W) or (C, H, W), any numbers.
        label: (H, W) class indices, or None.
        prediction: (H, W) class indices, or None.
        spacing: Pixel size (height, width) in mm.
        in_colour: Whether the image's three channels are red, green and blue, and are to be shown as such.
    """

    id: str
    image: Array
    label: Array | None = None
    prediction: Array | None = None
    spacing: tuple[float, float] = (1.0, 1.0)
    in_colour: bool = False

    @property
    def colours(self) -> npt.NDArray[np.uint8] | None:
        """(H, W, 3) the picture in 256 steps of red, green and blue; None for what is shown in grey."""
        if not (self.in_colour and self.image.ndim == 3 and len(self.image) == 3):
            return None
        image = np.moveaxis(self.image, 0, 2)
        if image.dtype != np.uint8:
            image = (np.nan_to_num(image.astype(np.float64)).clip(0, 1) * 255).round().astype(np.uint8)
        return image


def write_gallery(
    folder: Path | str, name: str, slices: Iterable[Slice], *, checkpoint: str = "", epoch: int | None = None
) -> Path:
    """Write a gallery as one compressed npz, with the weights that predicted; ids stand in it as data."""
    arrays: dict[str, Array] = {}
    about: list[dict[str, Any]] = []
    for number, item in enumerate(slices):
        about.append({"id": item.id, "spacing": list(item.spacing), **({"in_colour": True} if item.in_colour else {})})
        parts = {"image": item.image, "label": item.label, "prediction": item.prediction}
        for part, array in parts.items():
            if array is not None:
                arrays[f"{part}_{number}"] = _numbers(np.asarray(array), part, item.id)
    arrays["about"] = _text(about)
    arrays["weights"] = _text({"checkpoint": checkpoint, "epoch": epoch})
    path = gallery_path(Path(folder), name)
    with beside(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return path


def _text(data: Any) -> Array:
    return np.frombuffer(json.dumps(data).encode("ascii"), dtype=np.uint8)


def _numbers(array: Array, part: str, name: str) -> Array:
    kinds, shapes = ("iufb", (2, 3)) if part == "image" else ("iu", (2,))
    if array.dtype.kind not in kinds or array.ndim not in shapes:
        raise RunError(
            f"Expected numbers of {' or '.join(map(str, shapes))} dimensions as {part} of {name!r}, but got "
            f"{array.dtype} of shape {array.shape}. Convert it first."
        )
    if part == "image":
        return array
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    return array.astype(np.min_scalar_type(high if low >= 0 else low))


class Gallery(Mapping[str, Slice]):
    """The slices of a gallery by sample id; each is read when it is asked for.

    Attributes:
        path: The file.
        checkpoint, epoch: Which weights predicted, and how far they had been trained; empty and None where unknown.
    """

    def __init__(self, path: Path):
        self.path = path
        with self._reading():
            self._about: list[dict[str, Any]] = json.loads(self._read("about").tobytes())
            self._numbers = {str(item["id"]): number for number, item in enumerate(self._about)}
            weights = self._read("weights", optional=True)
            made: dict[str, Any] = {} if weights is None else json.loads(weights.tobytes())
            self.checkpoint: str = made.get("checkpoint", "")
            self.epoch: int | None = made.get("epoch")

    def _reading(self) -> AbstractContextManager[None]:
        return reading(
            lambda reason: RunError(f"Expected a gallery in {self.path}, but got: {reason}. Evaluate the run again.")
        )

    def __getitem__(self, name: str) -> Slice:
        check_known(name, self._numbers, "a sample of the gallery")
        number = self._numbers[name]
        with self._reading():
            height, width = map(float, self._about[number]["spacing"])
            in_colour = self._about[number].get("in_colour") is True
            image = _numbers(self._read(f"image_{number}"), "image", name)
            maps = {part: self._read(f"{part}_{number}", optional=True) for part in ("label", "prediction")}
            maps = {part: None if array is None else _numbers(array, part, name) for part, array in maps.items()}
            if any(array is not None and array.shape != image.shape[-2:] for array in maps.values()):
                raise ValueError(f"arrays of several shapes for {name!r}")
        return Slice(id=name, image=image, **maps, spacing=(height, width), in_colour=in_colour)

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def _read(self, name: str, optional: bool = False) -> Any:
        with self.path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return None if optional and name not in arrays else arrays[name]
