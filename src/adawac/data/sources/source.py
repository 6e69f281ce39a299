"""What a source is: it lists cases quickly and reads them one by one."""

import inspect
import itertools
import logging
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from adawac.data.cases import Case, CaseRef, check_name
from adawac.data.preprocessing import MR, Preprocessing
from adawac.data.sources.file_search import files_below, is_nifti
from adawac.errors import AdawacError, ConfigError, DataError, MissingFileError
from adawac.registry import Registry

log = logging.getLogger(__name__)

# From so many folders on, folders may stand for patients.
_PATIENTS = 3
# More scans than this are counted, not named.
_SHOWN = 10

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
        label_place: Where label maps are looked for, in words.
    """

    dataset: str
    classes: Classes
    channels: tuple[str, ...] = ("image",)
    preprocessing: Preprocessing = MR
    root: Path | None = None
    label_place: str = ""

    @abstractmethod
    def cases(self) -> list[CaseRef]:
        """Find the cases, in a stable order, without reading voxels."""

    @abstractmethod
    def load(self, ref: CaseRef) -> Case:
        """Read one case; a fault of its files is a `DataError` that names the file and the fix."""

    def lacking_labels(self) -> list[CaseRef]:
        """Return the cases that lack the label map they need: `diagnose` lists them, `prepare` refuses them."""
        return []

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each class; index 0 is the background."""
        return tuple(self.classes)

    def options(self) -> dict[str, Any]:
        """Return what decides the voxels of a case besides its files, for the store's record."""
        skipped = {"root", "preprocessing", "dataset", "classes", "channels", "label_place"}
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in skipped}

    def relative(self, path: Path) -> str:
        """Return a file's name for the store: relative to the root, so that moving the folder changes nothing."""
        return path.relative_to(self.root).as_posix() if self.root and path.is_relative_to(self.root) else path.name


def build_source(name: str, root: Path | str, **options: Any) -> Source:
    """Open the folder `root` with the source called `name`; options that are None are left at their defaults."""
    root = _folder(root)
    options = {key: value for key, value in options.items() if value is not None}
    entry = SOURCES[name]
    known = list(inspect.signature(entry).parameters)[1:]
    if not _takes(entry, root, options):
        raise ConfigError(
            f"Expected options of source {name} ({', '.join(known) or 'it has none'}), but got "
            f"{', '.join(sorted(set(options) - set(known)))}. Leave it out."
        )
    return entry(root, **options)


def _folder(root: Path | str) -> Path:
    root = Path(root)
    if not root.is_dir():
        what = "is a file" if root.is_file() else "is not there"
        raise MissingFileError(f"Expected a folder with scans, but {root} {what}. Correct the path.")
    return root


def _takes(entry: Callable[..., Source], root: Path, options: Mapping[str, Any]) -> bool:
    """Say whether a source knows all of the options."""
    try:
        inspect.signature(entry).bind(root, **options)
    except TypeError:
        return False
    return True


def detect_source(root: Path | str, **options: Any) -> Source:
    """Return the first source that takes the options and finds cases in `root`."""
    root = _folder(root)
    options = {key: value for key, value in options.items() if value is not None}
    reasons = []
    for name in SOURCES:
        if options and not _takes(SOURCES[name], root, options):
            continue
        try:
            source = build_source(name, root, **options)
            source.cases()
        except AdawacError as error:
            reasons.append((name, str(error)))
        else:
            return source
    if len(reasons) == 1:
        raise DataError(reasons[0][1])
    hint = _hint(root)
    raise DataError(
        f"Expected scans in {root}, but no source finds any.{hint}\n"
        + "\n".join(f"{name}: {reason}" for name, reason in reasons)
    )


def _hint(root: Path) -> str:
    """Return what to do where the folder holds NIfTI files in no layout that is known."""
    example = next(filter(is_nifti, files_below(root)), None)
    if example is None:
        return ""
    return (
        f" It has NIfTI files, such as {example.relative_to(root)}: say which are images and which are labels, such as "
        '--images "*/scan.nii.gz" --labels "*/labels.nii.gz".'
    )


def missing_labels(source: Source) -> str:
    """Return what to say about cases without the label map they need; nothing if all have theirs."""
    refs = source.lacking_labels()
    if not refs:
        return ""
    total = len(refs) + sum(bool(ref.labels) for ref in source.cases())
    shown = [source.relative(ref.images[0]) for ref in refs[:_SHOWN]]
    more = f" and {len(refs) - _SHOWN} more" if len(refs) > _SHOWN else ""
    missing = (
        "none of them has one" if len(refs) == total else f"{len(refs)} {'has' if len(refs) == 1 else 'have'} none"
    )
    return (
        f"Expected a label map for each of the {total} scans in {source.root}, but {missing} (looked for "
        f"{source.label_place}): {', '.join(shown)}{more}. "
    ) + (
        "Change where to look, or label some scans: training needs labels. Scans without labels can be segmented by a "
        "trained network (adawac predict)."
        if len(refs) == total
        else "Add the missing ones, or leave these scans out with --skip-unlabelled (skip_unlabelled=True); a trained "
        "network can segment them (adawac predict)."
    )


def drop_unlabelled(source: Source) -> tuple[CaseRef, ...]:
    """Return the cases but those without the label map they need, with a warning; none left is a `DataError`."""
    missing = {ref.id for ref in source.lacking_labels()}
    left = tuple(ref for ref in source.cases() if ref.id not in missing)
    if not left:
        raise DataError(missing_labels(source))
    if missing:
        log.warning("%d of %d scans have no label map and are left out.", len(missing), len(missing) + len(left))
    return left


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


def shared_folders(refs: Sequence[CaseRef]) -> str:
    """Return what to say where folders look like patients and hold several scans that count as several patients."""
    images = [ref.images[0] for ref in refs if ref.images and ref.patient == ref.id]
    top = Path(os.path.commonpath([path.parent for path in images])) if images else Path()
    for level in itertools.count():  # visits may have separate folders: sub-01/ses-1/t1.nii.gz
        scans = Counter(path.parents[level] for path in images if top in path.parents[level + 1 :])
        if len(scans) < _PATIENTS:  # two folders are those for training and for testing
            return ""
        if several := sorted(folder.name for folder, count in scans.items() if count > 1):
            break
    some = ", ".join(several[:3]) + (", …" if len(several) > 3 else "")
    return (
        f"Folders hold several scans ({some}), and each scan counts as a separate patient. If a folder is a patient, "
        "say so, or a patient may be trained and tested on: --patient '^(.+?)_' takes what stands before the first "
        "_ of a case's name."
    )


def as_classes(names: Mapping[str, int | Iterable[int]]) -> Classes:
    """Return class names with their label values as tuples, the background first (value 0 unless named)."""
    classes: Classes = {
        name: (values,) if isinstance(values, int) else tuple(map(int, values)) for name, values in names.items()
    }
    background = next((name for name in classes if name.casefold() == "background"), None)
    if background is None:
        background = next((name for name, values in classes.items() if 0 in values), None)
    first = {"background": (0,)} if background is None else {background: classes.pop(background)}
    classes = {**first, **classes}
    every_value = [value for values in classes.values() for value in values]
    if len(set(every_value)) != len(every_value) or not all(classes.values()):
        raise ConfigError(f"Expected each label value under one class, but got {classes}. Name every value once.")
    return classes


def number_in(name: str, prefix: str) -> int:
    """Return the number that follows `prefix` in a name such as patient007."""
    digits = name.removeprefix(prefix)
    if not digits.isdigit():
        raise DataError(f"Expected a name such as {prefix}007, but got {name!r}. Rename it as in the release.")
    return int(digits)
