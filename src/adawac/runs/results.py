"""What evaluation adds to a run: scores by case, class and metric, and a gallery of slices to look at.

Both are files of their own, each written in one step, so that a run can be evaluated while it still trains.
"""

import csv
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.errors import RunError, UnknownNameError, near
from adawac.files import beside
from adawac.runs.layout import gallery_path, scores_path

Array = npt.NDArray[Any]


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
    with beside(path) as temporary, temporary.open("w", newline="", encoding="utf-8", errors="surrogatepass") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Score)], quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(asdict(score) for score in scores)
    return path


def read_scores(path: Path) -> list[Score]:
    """Read the scores of one evaluation; columns of a later version are passed over."""
    known = {field.name for field in fields(Score)}
    with path.open(newline="", encoding="utf-8", errors="surrogatepass") as file:
        try:
            rows: list[dict[str, Any]] = [
                {key: row[key] for key in row if key in known} for row in csv.DictReader(file)
            ]
            return [Score(**row | _as_numbers(row)) for row in rows]
        except (ValueError, KeyError, TypeError, csv.Error) as error:
            raise RunError(f"Expected scores in {path}, but got: {error!r}. Evaluate the run again.") from error


def _as_numbers(row: Mapping[str, str]) -> dict[str, Any]:
    epoch = row.get("epoch")
    return {"label": int(row["label"]), "value": float(row["value"]), "epoch": int(epoch) if epoch else None}


@dataclass(frozen=True, kw_only=True, eq=False)
class Slice:
    """A slice to look at.

    Attributes:
        id: The sample's id.
        image: (H, W) or (C, H, W), any numbers.
        label: (H, W) class indices, or None.
        prediction: (H, W) class indices, or None.
        spacing: Pixel size (height, width) in mm.
    """

    id: str
    image: Array
    label: Array | None = None
    prediction: Array | None = None
    spacing: tuple[float, float] = (1.0, 1.0)


def write_gallery(
    folder: Path | str, name: str, slices: Iterable[Slice], *, checkpoint: str = "", epoch: int | None = None
) -> Path:
    """Write a gallery as one compressed npz, with the weights that predicted; ids stand in it as data."""
    arrays: dict[str, Array] = {}
    about: list[dict[str, Any]] = []
    for number, item in enumerate(slices):
        about.append({"id": item.id, "spacing": list(item.spacing)})
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
        try:
            self._about: list[dict[str, Any]] = json.loads(self._read("about").tobytes())
            self._numbers = {str(item["id"]): number for number, item in enumerate(self._about)}
            weights = self._read("weights", optional=True)
            made: dict[str, Any] = {} if weights is None else json.loads(weights.tobytes())
            self.checkpoint: str = made.get("checkpoint", "")
            self.epoch: int | None = made.get("epoch")
        except (ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
            raise RunError(f"Expected a gallery in {path}, but got: {error!r}. Evaluate the run again.") from error

    def __getitem__(self, name: str) -> Slice:
        if name not in self._numbers:
            raise UnknownNameError(
                f"Expected a sample of the gallery, but got {name!r}. Near names: {near(name, self)}."
            )
        number = self._numbers[name]
        height, width = self._about[number]["spacing"]
        return Slice(
            id=name,
            image=self._read(f"image_{number}"),
            label=self._read(f"label_{number}", optional=True),
            prediction=self._read(f"prediction_{number}", optional=True),
            spacing=(height, width),
        )

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def _read(self, name: str, optional: bool = False) -> Any:
        with self.path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return None if optional and name not in arrays else arrays[name]
