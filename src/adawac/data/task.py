"""What a data set is to a network: its classes, channels, label values and preprocessing.

A store records it in `store.json`, a run in `data.json`, a model folder in `model.json`, all under the same keys.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from adawac.data.preprocessing import Preprocessing
from adawac.errors import AdawacError, DataError


@dataclass(frozen=True, kw_only=True)
class Task:
    """The facts of a data set that store, run and model folder carry.

    Attributes:
        dataset: Name of the data set.
        class_names: Name of each class; index 0 is the background.
        channels: Name of each image channel.
        label_values: The values that stand for each class in the data set's own files.
        preprocessing: How a scan becomes samples: the same for training data and for new scans.

    Example:
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

    @property
    def num_classes(self) -> int:
        """K, the background included."""
        return len(self.class_names)

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
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "dataset": self.dataset,
            "class_names": list(self.class_names),
            "channels": list(self.channels),
            "label_values": [list(values) for values in self.label_values],
            "preprocessing": self.preprocessing.to_dict(),
        }


def find_faults(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (key, what is wrong with its value) for each fact that is missing or that cannot be used."""

    def names(value: Any) -> bool:
        return isinstance(value, list | tuple) and bool(value) and all(isinstance(name, str) for name in value)

    def values(value: Any) -> bool:
        return isinstance(value, list | tuple) and bool(value) and all(type(number) is int for number in value)

    classes, label_values = data.get("class_names"), data.get("label_values")
    count = len(classes) if isinstance(classes, list | tuple) else 0
    mapped = isinstance(label_values, list | tuple) and len(label_values) == count and all(map(values, label_values))
    checks = {
        "dataset": (isinstance(data.get("dataset"), str), "a name"),
        "class_names": (names(classes), "a list of names"),
        "channels": (names(data.get("channels")), "a list of names"),
        "label_values": (mapped, f"values for {count} classes"),
        "preprocessing": (isinstance(data.get("preprocessing"), Mapping), "options of `adawac prepare`"),
    }
    for name, (fine, wanted) in checks.items():
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
    def num_classes(self) -> int:
        """K, the background included."""
        return self.task.num_classes
