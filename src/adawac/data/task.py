"""What a data set is to a network: its classes, channels, label values and preprocessing.

A store records it in `store.json`, a run in `data.json`, a model folder in `model.json`, all under the same keys.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from adawac.config.values import plain
from adawac.data.preprocessing import ORIENTATIONS, Preprocessing, is_orientation
from adawac.errors import AdawacError, DataError

# Okabe and Ito's colours, which people with any kind of colour vision can tell apart, and one more.
_COLOURS = ("#D55E00", "#009E73", "#E69F00", "#F0E442", "#56B4E9", "#CC79A7", "#0072B2", "#9A6FB0")

_OPTIONAL = ("orientation", "modality")  # which data sets that were written before do not have


@dataclass(frozen=True, kw_only=True)
class Task:
    """The facts of a data set that store, run and model folder carry.

    Attributes:
        dataset: Name of the data set.
        class_names: Name of each class; index 0 is the background.
        channels: Name of each image channel.
        label_values: The values that stand for each class in the data set's own files.
        preprocessing: How a scan becomes samples: the same for training data and for new scans.
        orientation: Where the voxel axes of the prepared scans point, such as "RAS"; None where that is unknown, or
            where they differ. Slices are cut along these axes.
        modality: `CT`, `MR` or another one; None where it is unknown, or where the scans have several.

    Examples:
        >>> from adawac.data.task import Task
        >>> task = Task.from_dict({
        ...     "dataset": "heart", "class_names": ["background", "LV"], "channels": ["MR"],
        ...     "label_values": [[0], [3]], "preprocessing": {"clip_quantile": 0.99},
        ... })
        >>> task.num_classes, task.label_values, task.preprocessing.axis
        (2, ((0,), (3,)), 2)
    """

    dataset: str
    class_names: tuple[str, ...]
    channels: tuple[str, ...]
    label_values: tuple[tuple[int, ...], ...]
    preprocessing: Preprocessing
    orientation: str | None = None
    modality: str | None = None

    @property
    def num_classes(self) -> int:
        """K, the background included."""
        return len(self.class_names)

    @property
    def of_pictures(self) -> bool:
        """Whether its samples are pictures, whose values are shares of the largest one, and not scans in space."""
        options = self.preprocessing
        return (options.normalisation, options.axis, options.unit) == ("range", 0, "slice") and self.orientation is None

    @property
    def in_colour(self) -> bool:
        """Whether the channels are red, green and blue in [0, 1]."""
        return self.of_pictures and len(self.channels) == 3

    @property
    def scan_preprocessing(self) -> Preprocessing:
        """How a new scan becomes samples, however it lies: it is turned to the orientation of the prepared scans."""
        return replace(self.preprocessing, orientation=self.preprocessing.orientation or self.orientation)

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], source: object = "the description of a data set", advice: str = ""
    ) -> "Task":
        """Build from what `to_dict` gave, or from JSON that holds it among other keys.

        Args:
            data: The facts.
            source: Where they come from, for the error message.
            advice: What to do about a fault, for the error message.

        Raises:
            DataError: With the first fault.
        """
        for name, fault in find_faults(data):
            raise DataError(
                f"Expected the facts of a data set in {source}, but got a fault in {name}: {fault} {advice}".rstrip()
            )
        return cls(
            dataset=data["dataset"],
            class_names=tuple(data["class_names"]),
            channels=tuple(data["channels"]),
            label_values=tuple(tuple(values) for values in data["label_values"]),
            preprocessing=Preprocessing.from_dict(data["preprocessing"]),
            **{name: data.get(name) for name in _OPTIONAL},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without those that are unknown."""
        facts: dict[str, Any] = plain({**vars(self), "preprocessing": self.preprocessing.to_dict()})
        return {name: value for name, value in facts.items() if value is not None}


@cache
def class_colour(label: int) -> str:
    """Return the colour of a class (1, 2, …) as `#rrggbb`; from the ninth on they repeat lighter, then darker."""
    turn, index = divmod(label - 1, len(_COLOURS))
    towards, share = ((0.0, 0.0), (1.0, 0.5), (0.0, 0.4))[turn % 3]
    channels = (channel / 255 for channel in bytes.fromhex(_COLOURS[index][1:]))
    return "#" + "".join(f"{round(255 * ((1 - share) * channel + share * towards)):02x}" for channel in channels)


def find_faults(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (key, what is wrong with its value) for each fact that is missing or that cannot be used."""

    def is_list(value: Any, kind: type) -> bool:
        return isinstance(value, list | tuple) and bool(value) and all(type(item) is kind for item in value)

    classes, values = data.get("class_names"), data.get("label_values")
    count = len(classes) if isinstance(classes, list | tuple) else 0
    mapped = isinstance(values, list | tuple) and len(values) == count and all(is_list(row, int) for row in values)
    checks = {
        "dataset": (isinstance(data.get("dataset"), str), "a name"),
        "class_names": (is_list(classes, str), "a list of names"),
        "channels": (is_list(data.get("channels"), str), "a list of names"),
        "label_values": (mapped, f"values for {count} classes"),
        "preprocessing": (isinstance(data.get("preprocessing"), Mapping), "options of `adawac prepare`"),
        "orientation": (is_orientation(data.get("orientation")), ORIENTATIONS),
        "modality": (isinstance(data.get("modality"), str), "a name"),
    }
    for name, (fine, wanted) in checks.items():
        if name in _OPTIONAL and data.get(name) is None:
            continue
        if name not in data:
            yield name, f"expected {wanted}, but it is missing."
        elif not fine:
            yield name, f"expected {wanted}, but got {data[name]!r}."
    if checks["preprocessing"][0]:
        try:
            Preprocessing.from_dict(data["preprocessing"])
        except (AdawacError, TypeError) as error:
            yield "preprocessing", str(error)


class HasTask:
    """Gives the facts of `task` as attributes of what carries it."""

    task: Task

    @property
    def dataset(self) -> str:
        """Name of the data set."""
        return self.task.dataset

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each class; index 0 is the background."""
        return self.task.class_names

    @property
    def channels(self) -> tuple[str, ...]:
        """Name of each image channel."""
        return self.task.channels

    @property
    def label_values(self) -> tuple[tuple[int, ...], ...]:
        """The values that stand for each class in the data set's own files."""
        return self.task.label_values

    @property
    def preprocessing(self) -> Preprocessing:
        """How a scan becomes samples."""
        return self.task.preprocessing

    @property
    def orientation(self) -> str | None:
        """Where the voxel axes of the prepared scans point, such as "RAS"; None where that is unknown."""
        return self.task.orientation

    @property
    def modality(self) -> str | None:
        """`CT`, `MR` or another one; None where it is unknown."""
        return self.task.modality

    @property
    def num_classes(self) -> int:
        """K, the background included."""
        return self.task.num_classes
