"""What a source is: it lists cases quickly and reads them one by one."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from adawac.data.cases import Case, CaseRef, check_name
from adawac.data.preprocessing import MR, Preprocessing
from adawac.errors import AdawacError, ConfigError, DataError, MissingFileError
from adawac.registry import Registry

__all__ = ["SOURCES", "Classes", "Source", "as_classes", "build_source", "check_refs", "detect_source", "number_in"]

#: Class name → the label values in the files that mean it; the background first.
Classes = dict[str, tuple[int, ...]]

#: Sources by name. An entry is called as `entry(root, **options)` and returns a `Source`.
SOURCES: Registry[Callable[..., "Source"]] = Registry("source")


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """A folder (or a generator) of cases.

    Instances are sent to worker processes, so they hold options only; `load` does the reading. Two cases with the same
    id and the same files must load to the same voxels, whatever the order and the process.

    Attributes:
        dataset: Name of the data set, the first part of every sample id.
        classes: Class names with the label values that mean them; the background first.
        channels: Name of each image channel.
        preprocessing: The default options of `prepare` for these scans.
        root: The folder; None for cases that are computed.
    """

    dataset: str
    classes: Classes
    channels: tuple[str, ...] = ("image",)
    preprocessing: Preprocessing = field(default=MR)
    root: Path | None = None

    @abstractmethod
    def cases(self) -> list[CaseRef]:
        """Find the cases, in a stable order, without reading voxels."""

    @abstractmethod
    def load(self, ref: CaseRef) -> Case:
        """Read one case; a fault of its files is a `DataError` that names the file and the fix."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each class; index 0 is the background."""
        return tuple(self.classes)

    def options(self) -> dict[str, Any]:
        """Return what decides the voxels of a case besides its files, for the store's record."""
        skipped = {"root", "preprocessing", "dataset", "classes", "channels"}
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in skipped}

    def relative(self, path: Path) -> str:
        """Return a file's name for the store: relative to the root, so that moving the folder changes nothing."""
        return path.relative_to(self.root).as_posix() if self.root and path.is_relative_to(self.root) else path.name


def build_source(name: str, root: Path | str, **options: Any) -> Source:
    """Open the folder `root` with the source called `name`; options that are None are left at their defaults."""
    root = Path(root)
    if not root.is_dir():
        raise MissingFileError(f"Expected a folder with scans, but {root} is not there. Correct the path.")
    given = {key: value for key, value in options.items() if value is not None}
    entry = SOURCES[name]
    try:
        inspect.signature(entry).bind(root, **given)
    except TypeError as error:
        raise ConfigError(
            f"Expected options of source {name}, but got {sorted(given)} ({error}). Leave it out."
        ) from error
    return entry(root, **given)


def detect_source(root: Path | str) -> Source:
    """Return the first source that finds cases in `root`."""
    reasons = []
    for name in SOURCES:
        try:
            source = build_source(name, root)
            source.cases()
        except AdawacError as error:
            reasons.append(f"{name}: {error}")
        else:
            return source
    raise DataError(f"Expected scans in {root}, but no source finds any.\n" + "\n".join(reasons))


def check_refs(refs: Sequence[CaseRef], where: Path | str) -> list[CaseRef]:
    """Return the cases if there are any, their names are usable and no two of them are the same."""
    if not refs:
        raise DataError(f"Expected at least one case, but {where} has none. Give the folder that holds the scans.")
    seen: dict[str, CaseRef] = {}
    for ref in refs:
        check_name(ref.id)
        check_name(ref.patient, "patient")
        check_name(ref.dataset, "data set name")
        # Not every file system tells A from a.
        other = seen.setdefault(ref.id.casefold(), ref)
        if other is not ref:
            raise DataError(
                f"Expected case ids that differ, but {other.id!r} comes from {other.name_file()} and from "
                f"{ref.name_file()}. Rename one of the files, or remove the copy."
            )
    return list(refs)


def as_classes(given: Mapping[str, int | Iterable[int]]) -> Classes:
    """Return class names with their label values as tuples, the background first (value 0 unless named)."""
    classes: Classes = {
        name: (values,) if isinstance(values, int) else tuple(int(one) for one in values)
        for name, values in given.items()
    }
    background = next((name for name in classes if name.casefold() == "background"), None)
    taken = {one for values in classes.values() for one in values}
    if background is None and 0 in taken:
        background = next(name for name, values in classes.items() if 0 in values)
    first = {"background": (0,)} if background is None else {background: classes.pop(background)}
    classes = {**first, **classes}
    values = [one for own in classes.values() for one in own]
    if len(set(values)) != len(values) or not all(classes.values()):
        raise ConfigError(f"Expected each label value under one class, but got {classes}. Name every value once.")
    return classes


def number_in(name: str, prefix: str) -> int:
    """Return the number that follows `prefix` in a name such as patient007."""
    digits = name.removeprefix(prefix)
    if not digits.isdigit():
        raise DataError(f"Expected a name such as {prefix}007, but got {name!r}. Rename it as in the release.")
    return int(digits)
