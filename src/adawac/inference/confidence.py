"""How sure a prediction is: its temperature, entropy, disagreement, volumes with intervals, and what to review first.

Everything comes from the probabilities of the slices, block by block. Labels do not depend on any of it.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from adawac.errors import RunError
from adawac.files import write_csv
from adawac.inference.predictor import FULL, Predictor, Shares
from adawac.inference.trained import ENSEMBLE, find_members, read_ensemble
from adawac.inference.trained_network import Trained
from adawac.runs import Run
from adawac.runs.layout import INFO

log = logging.getLogger(__name__)

_TAIL = 0.025
REVIEW = "review.csv"
"""The file that lists scans, the least sure one first."""


class FittedTemperature(NamedTuple):
    """A temperature, and whether it was fitted to probabilities that are averaged over flipped images."""

    value: float
    tta: bool


def find_temperature(members: Sequence[Trained], tta: bool) -> float:
    """Return what was fitted for these networks, as one or as the ensemble of a folder, with these flips; else 1."""
    fitted = fitted_temperature(members[0]) if len(members) == 1 else _ensemble_temperature(members)
    if fitted is None:
        return 1.0
    if fitted.tta != tta:
        _warn_of_other(members[0].source, "tta", fitted.tta, tta)
        return 1.0
    return fitted.value


def fitted_temperature(trained: Trained) -> FittedTemperature | None:
    """Return what `calibrate` fitted for these weights of a run, or what a model folder says; None without any."""
    if not (trained.source / INFO).is_file():
        if trained.temperature is None:
            return None
        return FittedTemperature(trained.temperature, trained.temperature_tta)
    run = Run(trained.source)
    calibration = run.calibration
    if calibration is None:
        return None
    epoch = run.checkpoint(trained.checkpoint).state.get("epoch")
    for name, value in {"checkpoint": trained.checkpoint, "epoch": epoch}.items():
        if getattr(calibration, name) != value:
            _warn_of_other(trained.source, name, getattr(calibration, name), value)
            return None
    return FittedTemperature(calibration.temperature, calibration.tta)


def _warn_of_other(source: Path, name: str, fitted: object, wanted: object) -> None:
    log.warning(
        "The temperature of %s is not used: it was fitted with %s %s, and this is %s. Calibrate it again.",
        source,
        name,
        fitted,
        wanted,
    )


def mean_temperature(members: Sequence[Trained]) -> FittedTemperature | None:
    """Return the geometric mean of networks' temperatures; None unless all have one, fitted alike."""
    fitted = [fitted_temperature(member) for member in members]
    known = [temperature for temperature in fitted if temperature is not None]
    if len(known) < len(fitted) or len({temperature.tta for temperature in known}) != 1:
        return None
    logs = [math.log(temperature.value) for temperature in known]
    return FittedTemperature(math.exp(sum(logs) / len(logs)), known[0].tta)


def _ensemble_temperature(members: Sequence[Trained]) -> FittedTemperature | None:
    """Return what the folder of an ensemble says, if these are all of its members; else None."""
    folder = members[0].source.parent
    if not (folder / ENSEMBLE).is_file() or [member.source for member in members] != list(find_members(folder)):
        return None
    about = read_ensemble(folder)
    value = about.get("temperature")
    if value is None:
        return None
    if not isinstance(value, float) or not 0 < value < math.inf:
        raise RunError(
            f"Expected a temperature above 0 in {folder / ENSEMBLE}, but got {value!r}. Copy the folder again."
        )
    return FittedTemperature(value, about.get("temperature_tta") is True)


@dataclass(frozen=True, kw_only=True)
class VolumeInterval:
    """How large a class is.

    Attributes:
        class_name: The class.
        volume: Of the label map, in ml; of a picture, in pixels, as all that follows.
        expected: The sum of the probabilities.
        low, high: 95 % interval if all voxels err together: the voxels with a probability above 0.975 and above 0.025.
            Voxels err together in part, so it is rather too wide than too narrow.
        members: The least and the largest volume that a member of the ensemble finds; None for a single network.
    """

    class_name: str
    volume: float
    expected: float
    low: float
    high: float
    members: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Uncertainty:
    """How sure the prediction of a scan is.

    Attributes:
        expected_dice: DSC of the label map if the probabilities are right, mean over classes: the lower, the sooner one
            should look at the scan. Of a class that was not found, the probability that it is not there.
        mean_entropy: Where there may be foreground.
        disagreement: Share of voxels, among those that are foreground to some member, in which not all members find
            the class of the ensemble; None for a single network.
        volumes: Of each class but background.
        entropy: (S, H, W) entropy of each voxel in parts of `FULL`, which is that of classes that are all as probable;
            None once it is in its file.
        votes: (S, H, W) share of the members that do not find the ensemble's class, in parts of `FULL`; or None.
        unit: Of the volumes: `ml` or `pixels`.
    """

    expected_dice: float
    mean_entropy: float
    disagreement: float | None
    volumes: tuple[VolumeInterval, ...]
    entropy: Shares | None = None
    votes: Shares | None = None
    unit: str = "ml"

    def facts(self) -> dict[str, Any]:
        """Return what stands beside the label map."""
        return {
            "expected_dice": self.expected_dice,
            "mean_entropy": self.mean_entropy,
            "disagreement": self.disagreement,
            f"volumes_{self.unit}": [dict(vars(volume)) for volume in self.volumes],
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> "Uncertainty":
        """Return what `facts` gave, without the maps."""
        numbers = {name: value for name, value in facts.items() if not name.startswith("volumes_")}
        [(name, volumes)] = [(name, value) for name, value in facts.items() if name.startswith("volumes_")]
        intervals = tuple(VolumeInterval(**of_class) for of_class in volumes)
        return cls(**numbers, volumes=intervals, unit=name.removeprefix("volumes_"))


class UncertaintyMeter:
    """Gathers entropies and volumes while a scan is segmented, or a picture row by row.

    Args:
        shape: Slices, and their height and width.
        num_classes: K, the background included.
        voxel: Size of a voxel.
        unit: Of that size: `ml` or `pixels`.
    """

    def __init__(self, shape: Sequence[int], num_classes: int, voxel: float = 1.0, unit: str = "pixels"):
        self._voxel, self._unit = voxel, unit
        self._entropy = np.zeros(shape, dtype=np.uint16)
        self._sums = np.zeros((3, num_classes))  # probabilities, voxels above the lower tail, above the upper one
        self._agreed, self._highest = np.zeros(num_classes), np.zeros(num_classes)  # sum where it is the class; maximum
        self._doubtful = self._doubt = 0.0

    def add(self, start: int, labels: npt.NDArray[np.integer[Any]], shares: Shares) -> None:
        """Add the classes (P, H, W) of slices and their probabilities (P, K, H, W), in parts of `FULL`."""
        for position, (classes, of_slice) in enumerate(zip(labels, shares, strict=True), start=start):
            probabilities = of_slice.astype(np.float32) / FULL
            entropy = entropy_of(probabilities)
            self._entropy[position] = np.rint(entropy * FULL)
            self._sums[0] += probabilities.sum(axis=(1, 2), dtype=np.float64)
            for row, tail in ((1, 1 - _TAIL), (2, _TAIL)):
                self._sums[row] += (probabilities > tail).sum(axis=(1, 2))
            sure = np.take_along_axis(probabilities, classes[None].astype(np.intp), axis=0).ravel()
            self._agreed += np.bincount(classes.ravel(), sure, minlength=len(self._agreed))
            self._highest = np.maximum(self._highest, probabilities.max(axis=(1, 2)))
            maybe = probabilities[0] < 1 - _TAIL
            self._doubtful += float(maybe.sum())
            self._doubt += float(entropy[maybe].sum(dtype=np.float64))

    def add_rows(self, start: int, labels: npt.NDArray[np.integer[Any]], shares: Shares) -> None:
        """Add the classes (rows, W) of a picture's rows, each of which is a slice, and their shares (K, rows, W)."""
        self.add(start, labels[:, None], shares.swapaxes(0, 1)[:, :, None])

    def result(
        self, labels: npt.NDArray[np.integer[Any]], class_names: Sequence[str], members: "Votes | None"
    ) -> Uncertainty:
        """Return how sure the whole scan is; `labels` are its classes, (S, H, W)."""
        voxel = self._voxel
        sizes = np.bincount(labels.ravel(), minlength=len(class_names))
        volumes = tuple(
            VolumeInterval(
                class_name=name,
                volume=float(sizes[k] * voxel),
                expected=float(self._sums[0, k] * voxel),
                low=float(self._sums[1, k] * voxel),
                high=float(self._sums[2, k] * voxel),
                members=None if members is None else (members.least[k] * voxel, members.largest[k] * voxel),
            )
            for k, name in enumerate(class_names)
            if k
        )
        return Uncertainty(
            expected_dice=self._expected_dice(sizes),
            mean_entropy=self._doubt / self._doubtful if self._doubtful else 0.0,
            disagreement=None if members is None else members.disagreement,
            volumes=volumes,
            entropy=self._entropy,
            votes=None if members is None else members.against,
            unit=self._unit,
        )

    def _expected_dice(self, sizes: npt.NDArray[np.int64]) -> float:
        found = sizes > 0
        dice = np.where(found, 2 * self._agreed / np.maximum(self._sums[0] + sizes, 1), 1 - self._highest)
        return float(dice[1:].mean())


def entropy_of(probabilities: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return (H, W), from 0 where one class is sure to 1 where all K of (K, H, W) are as probable."""
    logs = np.log(np.maximum(probabilities, np.finfo(np.float32).tiny))
    entropy: npt.NDArray[np.float32] = -(probabilities * logs).sum(axis=0) / np.float32(math.log(len(probabilities)))
    return entropy.clip(0, 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Votes:
    """What the members of an ensemble find, each alone.

    Attributes:
        against: (S, H, W) share that does not find the ensemble's class, in parts of `FULL`.
        disagreement: As in `Uncertainty`.
        least, largest: (K,) voxels of each class, over members.
    """

    against: Shares
    disagreement: float
    least: npt.NDArray[np.int64]
    largest: npt.NDArray[np.int64]


def count_votes(
    members: Sequence[Trained],
    segment: Callable[[Predictor], Iterable[npt.NDArray[np.integer[Any]]]],
    labels: npt.NDArray[np.integer[Any]],
    options: Mapping[str, Any],
) -> Votes:
    """Segment with each member alone, and compare: as much work again as the ensemble was.

    Args:
        members: The networks.
        segment: Gives the classes that a predictor finds, in blocks of slices (P, H, W) in their order.
        labels: (S, H, W) classes that the ensemble finds.
        options: Those of `Predictor`.
    """
    against = np.zeros(labels.shape, dtype=np.uint16)
    foreground = labels > 0
    sizes = []
    for member in members:
        predictor = Predictor.of([member], **options)
        size = np.zeros(len(member.class_names), dtype=np.int64)
        start = 0
        for block in segment(predictor):
            stop = start + len(block)
            against[start:stop] += block != labels[start:stop]
            foreground[start:stop] |= block > 0
            size += np.bincount(block.ravel(), minlength=len(size))
            start = stop
        sizes.append(size)
    differs, some = np.count_nonzero(against), np.count_nonzero(foreground)
    return Votes(
        against=(against * (FULL // len(members))).astype(np.uint16),
        disagreement=differs / some if some else 0.0,
        least=np.min(sizes, axis=0),
        largest=np.max(sizes, axis=0),
    )


def review_order(uncertainties: Mapping[str, Uncertainty]) -> list[str]:
    """Return the names of scans, the least sure one first."""
    return sorted(uncertainties, key=lambda name: (uncertainties[name].expected_dice, name))


def write_review(folder: Path, uncertainties: Mapping[str, Uncertainty]) -> Path | None:
    """Write the list of scans to review, the least sure one first; nothing without scans."""
    rows = [_review_row(name, uncertainties[name]) for name in review_order(uncertainties)]
    if not rows:
        return None
    write_csv(folder / REVIEW, list(rows[0]), rows)
    return folder / REVIEW


def _review_row(name: str, uncertainty: Uncertainty) -> dict[str, Any]:
    row: dict[str, Any] = {"scan": name}
    row |= {what: f"{getattr(uncertainty, what):.4f}" for what in ("expected_dice", "mean_entropy")}
    row["disagreement"] = "" if uncertainty.disagreement is None else f"{uncertainty.disagreement:.4f}"
    for volume in uncertainty.volumes:
        for what in ("volume", "low", "high"):
            row[f"{volume.class_name}: {what}, {uncertainty.unit}"] = f"{getattr(volume, what):.4g}"
    return row
