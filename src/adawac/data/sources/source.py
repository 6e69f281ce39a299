"""What a source is: it lists cases quickly and reads them one by one."""

import csv
import inspect
import itertools
import logging
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from adawac.data.cases import IGNORED, Array, Case, CaseRef, check_name, hide_slices, name_file
from adawac.data.preprocessing import MR, Preprocessing
from adawac.data.sources.file_search import files_below, is_nifti
from adawac.errors import (
    AdawacError,
    ConfigError,
    DataError,
    LayoutError,
    MissingDependencyError,
    MissingFileError,
    near,
    reading,
)
from adawac.registry import Registry

log = logging.getLogger(__name__)

# From so many folders on, folders may stand for patients.
_PATIENTS = 3
# More files than this are counted, not named.
_SHOWN = 10

#: Class name → the label values in the files that mean it; the background first.
Classes = dict[str, tuple[int, ...]]

Unlabelled = Literal["keep", "skip", "refuse", "empty"]
#: What may be done with scans without a label map.
WAYS: tuple[Unlabelled, ...] = ("keep", "skip", "refuse")

#: Case → its annotated slices, or None for all of them.
LabelledSlices = Mapping[str, tuple[int, ...] | None]
_ALL = "all"

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
        modality: `CT`, `MR` or another one; None where it is unknown, or where the scans have several.
        root: The folder; None for cases that are computed.
        label_place: Where label maps are looked for, in words.
        unused_labels: Label maps that belong to no case.
    """

    dataset: str
    classes: Classes
    channels: tuple[str, ...] = ("image",)
    preprocessing: Preprocessing = MR
    modality: str | None = None
    root: Path | None = None
    label_place: str = ""
    unused_labels: tuple[Path, ...] = ()

    @abstractmethod
    def cases(self) -> list[CaseRef]:
        """Find the cases, in a stable order, without reading voxels."""

    @abstractmethod
    def load(self, ref: CaseRef) -> Case:
        """Read one case; a fault of its files is a `DataError` that names the file and the fix."""

    def open(self, ref: CaseRef) -> "OpenCase":
        """Open a case of which rows are read; by default it is read as a whole."""
        return LoadedCase(self.annotated(self.load(ref), 0))

    def check_annotated(self, name: str, annotated: bool) -> None:  # noqa: B027  most sources refuse nothing
        """Raise a `DataError` where a label map whose pixels are all ignored is refused; `name` says which it is."""

    def annotated(self, case: Case, axis: int) -> Case:
        """Return a case with what nobody has annotated as `IGNORED`; slices are cut along `axis` of its voxels."""
        return case

    def lacking_labels(self) -> list[CaseRef]:
        """Return the cases that lack the label map they need: `diagnose` lists them, `prepare` refuses them."""
        return []

    def hints(self, preprocessing: Preprocessing) -> list[str]:
        """Return what may be right but should be looked at before cases are preprocessed like this."""
        return [hint for hint in (shared_folders(self.cases()), about_unused_labels(self)) if hint]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each class; index 0 is the background."""
        return tuple(self.classes)

    def options(self) -> dict[str, Any]:
        """Return what decides the voxels of a case besides its files, for the store's record."""
        skipped = {"root", "preprocessing", "dataset", "classes", "channels", "label_place", "unused_labels"}
        skipped |= {"refs", "unlabelled", "modality"}  # what the modality decides is the preprocessing
        options = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in skipped}
        unset = [name for name in ("ignore", "labelled_slices") if options.get(name) is None]
        return {name: value for name, value in options.items() if name not in unset}

    def relative(self, path: Path) -> str:
        """Return a file's name for the store: relative to the root, so that moving the folder changes nothing."""
        return path.relative_to(self.root).as_posix() if self.root and path.is_relative_to(self.root) else path.name


@dataclass(frozen=True, kw_only=True)
class ListedSource(Source):
    """Cases that were listed when the source was opened.

    Attributes:
        refs: The cases.
        unlabelled: What is done with cases that lack the label map they need.
        ignore: The value in label files of voxels that nobody has annotated.
        labelled_slices: The annotated slices of each case; None for all of all cases.
    """

    refs: tuple[CaseRef, ...]
    unlabelled: Unlabelled = "refuse"
    ignore: int | None = None
    labelled_slices: LabelledSlices | None = None

    def __post_init__(self) -> None:
        if self.ignore is not None or self.labelled_slices is not None:
            check_ignored(self.ignore, self.classes)

    def cases(self) -> list[CaseRef]:
        """Return the cases."""
        return list(self.refs)

    def annotated(self, case: Case, axis: int) -> Case:
        """Return a case whose slices that are not listed are ignored; one without anything left may be refused."""
        if case.label is None:
            return case
        if (slices := (self.labelled_slices or {}).get(case.id)) is not None:
            case = replace(case, label=hide_slices(case.label, slices, axis, name_file(case)))
        if case.label is not None:
            self.check_annotated(name_file(case), bool((case.label != IGNORED).any()))
        return case

    def check_annotated(self, name: str, annotated: bool) -> None:
        """Raise a `DataError` where every voxel is ignored, unless unlabelled cases are kept."""
        may_ignore = self.ignore is not None or self.labelled_slices is not None
        if may_ignore and self.unlabelled != "keep" and not annotated:
            raise DataError(
                f"Expected something annotated, but every voxel is ignored in the label map of {name}. "
                "Take the label map away, or keep it as an unlabelled scan with --unlabelled keep (unlabelled='keep')."
            )

    def keeps(self, lacking: list[CaseRef]) -> bool:
        """Say whether cases without a label map stay as unlabelled ones; some others must have a label."""
        return self.unlabelled == "keep" and len(lacking) < len([ref for ref in self.refs if ref.split != "test"])


class OpenCase(Protocol):
    """A case of which rows are read.

    Attributes:
        shape: Pages, height and width.
        has_label: Whether its label is known.
    """

    shape: tuple[int, int, int]
    has_label: bool

    @property
    def full_range(self) -> int | None:
        """What stands for 1 in its images; None where these are floating-point numbers."""

    def raw(self, page: int, start: int, stop: int) -> Array:
        """Return rows of an image, (channels, rows, width), in the file's own numbers."""

    def label(self, page: int, start: int, stop: int) -> Array:
        """Return class indices of rows, (rows, width)."""


class LoadedCase:
    """A case that has been read as a whole."""

    full_range = None

    def __init__(self, case: Case):
        if case.affine is not None:
            raise DataError(f"Expected a picture to cut into tiles, but {name_file(case)} is a scan in space.")
        self._case, self.has_label = case, case.label is not None
        self.shape: Any = case.shape

    def raw(self, page: int, start: int, stop: int) -> Array:
        """Return rows of an image, (channels, rows, width)."""
        return self._case.image[:, page, start:stop]

    def label(self, page: int, start: int, stop: int) -> Array:
        """Return class indices of rows, (rows, width)."""
        assert self._case.label is not None  # it is asked for where `has_label` says so
        return np.asarray(self._case.label[page, start:stop])


def build_source(name: str, root: Path | str, **options: Any) -> Source:
    """Open the folder `root` with the source called `name`; options that are None are left at their defaults."""
    root = _folder(root)
    options = {key: value for key, value in options.items() if value is not None}
    entry = SOURCES[name]
    if not _takes(entry, root, options):
        known = list(inspect.signature(entry).parameters)[1:]
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
    """Return the first source that takes the options and finds cases in `root`.

    Where a single source knows the layout, but cannot use what is there, its reason is raised.
    """
    root = _folder(root)
    options = {key: value for key, value in options.items() if value is not None}
    reasons: list[tuple[str, AdawacError]] = []
    for name in SOURCES:
        if options and not _takes(SOURCES[name], root, options):
            continue
        try:
            source = build_source(name, root, **options)
            source.cases()
        except AdawacError as error:
            reasons.append((name, error))
        else:
            return source
    faults = [error for _, error in reasons if not isinstance(error, LayoutError | MissingDependencyError)]
    different = {str(error): error for error in faults or [error for _, error in reasons]}
    if len(different) == 1:
        raise next(iter(different.values()))
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
    orphans = about_unused_labels(source)
    missing = (
        "none of them has one" if len(refs) == total else f"{len(refs)} {'has' if len(refs) == 1 else 'have'} none"
    )
    return (
        f"Expected a label map for each of the {total} scans in {source.root}, but {missing} (looked for "
        f"{source.label_place}): {_some_files(source, [ref.images[0] for ref in refs])}. {orphans and orphans + ' '}"
    ) + (
        "Change where to look, or label some scans: training needs labels. Scans without labels can be segmented by a "
        "trained network (adawac predict)."
        if len(refs) == total
        else "Add the missing ones, or leave these scans out with --skip-unlabelled (skip_unlabelled=True); a trained "
        "network can segment them (adawac predict). Or keep them, to learn from their images, with --unlabelled keep "
        "(unlabelled='keep')."
    )


def about_unused_labels(source: Source) -> str:
    """Return what to say about label maps that belong to no case; nothing if there are none."""
    if not source.unused_labels:
        return ""
    count = len(source.unused_labels)
    belong = "1 label map belongs" if count == 1 else f"{count} label maps belong"
    return f"{belong} to no scan: {_some_files(source, source.unused_labels)}. Check the files' names."


def alike(source: Source, faults: Iterable[tuple[CaseRef, str]]) -> list[str]:
    """Return what is wrong with some cases; what is the same but for the names of files is said once, with a count."""
    groups: dict[str, list[tuple[str, Path]]] = {}
    for ref, fault in faults:
        named = [path for path in ref.files if str(path) in fault]
        kind = fault
        for path in named:
            kind = kind.replace(str(path), "")
        groups.setdefault(kind.replace(ref.id, ""), []).append((fault, named[-1] if named else Path(ref.id)))
    lines = []
    for (first, _), *others in groups.values():
        files = _some_files(source, [path for _, path in others])
        count = f"{len(others)} more case{'s' if others[1:] else ''}"
        lines.append(f"{first} The same with {count}: {files}." if others else first)
    return lines


def _some_files(source: Source, paths: Sequence[Path]) -> str:
    """Return the names of files, as many as one wants to read."""
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(source.relative(path) for path in paths[:_SHOWN]) + more


# -- what nobody has annotated -----------------------------------------------------------------------------------------


def checked_way(unlabelled: Unlabelled | None, skip_unlabelled: bool, ways: Sequence[Unlabelled] = WAYS) -> Unlabelled:
    """Return what to do with scans without a label map; `skip_unlabelled` is the short form of `skip`."""
    way: Unlabelled = unlabelled or ("skip" if skip_unlabelled else "refuse")
    if way not in ways or (skip_unlabelled and way != "skip"):
        given = f"{way!r} with skip_unlabelled" if skip_unlabelled else repr(way)
        raise ConfigError(f"Expected `unlabelled` to be one of {', '.join(ways)}, but got {given}. Choose one.")
    return way


def check_ignored(ignore: int | None, classes: Mapping[str, Sequence[int]]) -> None:
    """Refuse an ignored value that is a class, too, and more classes than an ignored pixel can be told from."""
    if clash := [name for name, values in classes.items() if ignore in values]:
        raise ConfigError(
            f"Expected an ignored value that is no class, but {ignore} is {clash[0]!r}, too. Leave one of them out."
        )
    if len(classes) > IGNORED:
        raise ConfigError(f"Expected at most {IGNORED} classes where pixels are ignored, but got {len(classes)}.")


def read_rows(path: Path, *columns: str) -> list[dict[str, str]]:
    """Read a CSV file that has these columns, among others; an empty cell is an empty text."""
    names = ",".join(columns)
    if not path.is_file():
        raise MissingFileError(f"Expected a CSV file with {names}, but {path} is not there. Correct the path.")
    with (
        reading(lambda reason: DataError(f"Expected a CSV file in UTF-8, but {path} cannot be read ({reason}).")),
        path.open(newline="", encoding="utf-8-sig") as file,
    ):
        rows = list(csv.DictReader(file))
    if not rows or not set(columns) <= set(rows[0]):
        raise DataError(
            f"Expected the columns {names} in {path}, but got {list(rows[0]) if rows else 'none'}. Add them."
        )
    return [{name: row[name] or "" for name in columns} for row in rows]


def read_labelled_slices(path: Path, refs: Sequence[CaseRef]) -> LabelledSlices:
    """Read a CSV file with the columns case and slice: a number, from 0, or `all`.

    Every case with a label map must be in it: that of one that is not might be whole, or not be finished.
    """
    rows = read_rows(path, "case", "slice")
    labelled = {ref.id for ref in refs if ref.labels}
    slices: dict[str, list[int] | None] = {}
    for row in rows:
        case, text = row["case"].strip(), row["slice"].strip()
        if case not in labelled:
            what = "has no label map" if case in {ref.id for ref in refs} else "is not there"
            raise DataError(
                f"Expected cases with a label map in {path}, but {case!r} {what}. Near names: {near(case, labelled)}."
            )
        if text == _ALL:
            slices[case] = None
        elif not re.fullmatch("[0-9]{1,9}", text):
            raise DataError(f"Expected a slice's number, from 0, or {_ALL} in {path}, but got {text!r} for {case}.")
        elif (numbers := slices.setdefault(case, [])) is not None:
            numbers.append(int(text))
    if missing := [ref.id for ref in refs if ref.labels and ref.id not in slices]:
        raise DataError(
            f"Expected the annotated slices of each case with a label map in {path}, but it names none of {missing[0]} "
            f"({len(missing)} such). Name them, write {missing[0]},{_ALL} for all, or take its label map away."
        )
    return {case: None if numbers is None else tuple(sorted(set(numbers))) for case, numbers in slices.items()}


def drop_unlabelled(source: ListedSource) -> ListedSource:
    """Leave out the cases without the label map they need, with a warning; none left is a `DataError`."""
    lacking = source.lacking_labels()
    missing = {ref.id for ref in lacking}
    left = tuple(ref for ref in source.refs if ref.id not in missing)
    if not left:
        raise DataError(missing_labels(source))
    if missing:
        log.warning(
            "%d of %d scans have no label map and are left out: %s.",
            len(missing),
            len(source.refs),
            _some_files(source, [ref.images[0] for ref in lacking]),
        )
    return replace(source, refs=left)


def check_refs(refs: Sequence[CaseRef], where: Path | str) -> tuple[CaseRef, ...]:
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
                f"Expected case ids that differ, but {other.id!r} comes from {name_file(other)} and from "
                f"{name_file(ref)}. Rename one of the files, or remove the copy."
            )
    return tuple(refs)


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


#: A label value from here on is a colour: 255 (opaque), red, green and blue, 8 bits each.
COLOUR = 0xFF000000


def label_value(value: int | str) -> int:
    """Return a label value; a colour such as "#ff0000" is one of 32 bits, from `COLOUR` on."""
    if isinstance(value, int) or not str(value).startswith("#"):
        return int(value)
    if not re.fullmatch("#[0-9a-fA-F]{6}", value):
        raise ConfigError(f"Expected a colour such as #ff0000, but got {value!r}. Give red, green and blue.")
    return COLOUR | int(value[1:], 16)


def show_value(value: int) -> str:
    """Return a label value as it is written: a number, or a colour."""
    return f"#{value - COLOUR:06x}" if value >= COLOUR else str(value)


def as_classes(names: Mapping[str, int | str | Iterable[int | str]]) -> Classes:
    """Return class names with their label values as tuples, the background first (0, or black, unless named)."""
    classes: Classes = {
        name: (label_value(values),) if isinstance(values, int | str) else tuple(map(label_value, values))
        for name, values in names.items()
    }
    colours = [value >= COLOUR for values in classes.values() for value in values]
    if any(colours) and not all(colours):
        raise ConfigError(f"Expected each class by colours, or each by values, but got {dict(names)}. Choose one.")
    zero = COLOUR if any(colours) else 0
    background = next((name for name in classes if name.casefold() == "background"), None)
    if background is None:
        background = next((name for name, values in classes.items() if zero in values), None)
    first = {"background": (zero,)} if background is None else {background: classes.pop(background)}
    classes = {**first, **classes}
    every_value = [value for values in classes.values() for value in values]
    if len(set(every_value)) != len(every_value) or not all(classes.values()):
        raise ConfigError(f"Expected each label value under one class, but got {classes}. Name every value once.")
    return classes


def number_in(name: str, prefix: str) -> int:
    """Return the number that follows `prefix` in a name such as patient007."""
    digits = name.removeprefix(prefix)
    if not digits.isdecimal():
        raise DataError(f"Expected a name such as {prefix}007, but got {name!r}. Rename it as in the release.")
    return int(digits)
