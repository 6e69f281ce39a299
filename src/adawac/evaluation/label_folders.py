"""Folders of label maps: which file is which case, and what the label values mean."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adawac.data.cases import Array
from adawac.data.sources.file_search import LABEL_FOLDERS, files_below
from adawac.data.sources.label_maps import COMPANIONS, LabelMap, is_label_map, label_map_stem
from adawac.data.sources.nifti import described_classes, described_ignore, described_regions, read_description
from adawac.data.sources.scan_files import to_class_indices
from adawac.data.sources.source import Classes, as_classes, check_ignored
from adawac.errors import ConfigError, MissingFileError

_DESCRIPTION = "dataset.json"
LABELS = (*LABEL_FOLDERS, "labelstr", "labelsts")
"""What people call a folder of label maps in that of a data set."""
# What the same case may be called with, and without, by different programs.
_ROLE = re.compile(r"([_-](image|img|scan|segmentation|seg|labels?|masks?|gt|pred|prediction|0000))+$", re.IGNORECASE)
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class LabelScheme:
    """What label values mean.

    Attributes:
        classes: Class names with their label values, the background first; with regions, a class for each value.
        regions: Region → the classes that are in it, by index; they may overlap. Empty where classes are scored.
        ignore: The value of voxels in the truth that count nowhere.
    """

    classes: Classes
    regions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ignore: int | None = None

    @property
    def num_classes(self) -> int:
        """How many classes the label maps have, with background."""
        return len(self.classes)

    @property
    def names(self) -> tuple[str, ...]:
        """What is scored, the background first."""
        return ("background", *self.regions) if self.regions else tuple(self.classes)

    def read(self, label_map: LabelMap, truth: bool) -> Array:
        """Return a label map as class indices; a value without a class is a `DataError`."""
        classes, segments = self.classes, label_map.segments
        if segments is not None and segments.keys() <= self.classes.keys():  # numbers differ from file to file
            classes = {name: segments.get(name, ()) for name in classes} | {next(iter(classes)): (0,)}
        return to_class_indices(label_map.values, classes, label_map.path, self.ignore if truth else None)


def region_scheme(regions: Mapping[str, tuple[int, ...]], ignore: int | None = None) -> LabelScheme:
    """Return the scheme of regions by name, each with its label values."""
    values = sorted({value for of_region in regions.values() for value in of_region} - {0})
    members = {name: tuple(values.index(value) + 1 for value in of_region) for name, of_region in regions.items()}
    return LabelScheme(
        classes=as_classes({f"value {value}": value for value in values}), regions=members, ignore=ignore
    )


def find_scheme(
    folders: Sequence[Path], classes: Mapping[str, Any] | None, dataset_json: Path | None, ignore: int | None
) -> LabelScheme | None:
    """Return what label values mean: as `classes` say, else nnU-Net's dataset.json; None where nothing says it.

    Without `dataset_json`, the file is looked for in the folders and in that which the first, of the truth, lies in.
    """
    places = [folders[0], folders[0].absolute().parent, *folders[1:]]
    path = dataset_json or next((place / _DESCRIPTION for place in places if (place / _DESCRIPTION).is_file()), None)
    if dataset_json is not None and not dataset_json.is_file():
        raise MissingFileError(f"Expected nnU-Net's dataset.json, but {dataset_json} is not there. Correct the path.")
    if classes:
        scheme = LabelScheme(classes=as_classes(classes), ignore=ignore)
    elif path is None or not (description := read_description(path)).get("labels"):
        return None
    elif regions := described_regions(path.parent, description):
        scheme = region_scheme(regions, described_ignore(path.parent, description, {}) if ignore is None else ignore)
    else:
        known = described_classes(path.parent, description) or {}
        scheme = LabelScheme(
            classes=known, ignore=described_ignore(path.parent, description, known) if ignore is None else ignore
        )
    if scheme.ignore is not None:
        check_ignored(scheme.ignore, scheme.classes)
    return scheme


# -- files ------------------------------------------------------------------------------------------------------------


def find_label_maps(folder: Path) -> dict[str, list[Path]]:
    """Return the label maps of a folder by case: its own, or else those below it. A case with several is ambiguous.

    A case is called as its file, or where files of several folders have one name, as the folders.
    """
    if not folder.is_dir():
        what = "is a file" if folder.is_file() else "is not there"
        raise MissingFileError(f"Expected a folder of label maps, but {folder} {what}. Give the folder.")
    paths = [path for path in files_below(folder) if is_label_map(path)]
    direct = [path for path in paths if path.parent == folder]
    if not direct and (better := _label_folders(folder)):
        raise ConfigError(f"Expected a folder of label maps, but {folder} is a data set. Give {better[0]}.")
    paths = _without_companions(direct or paths)
    if not paths:
        raise MissingFileError(
            f"Expected label maps in {folder} (.nii.gz, .nrrd, .mha, .dcm, .png, …), but there are none. Give their "
            "folder."
        )
    cases: dict[str, list[Path]] = {}
    for name, path in zip(_case_names(folder, paths), paths, strict=True):
        cases.setdefault(name, []).append(path)
    return cases


def _label_folders(folder: Path) -> list[Path]:
    """Return the folders of label maps in a data set's folder."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name.lower() in LABELS)


def _without_companions(paths: Sequence[Path]) -> list[Path]:
    """Leave out what `predict` writes beside label maps: probabilities and the like."""
    stems = {(path.parent, label_map_stem(path)) for path in paths}
    left = []
    for path in paths:
        name = label_map_stem(path)
        bare = next((name.removesuffix(ending) for ending in COMPANIONS.values() if name.endswith(ending)), None)
        if (path.parent, bare) not in stems:
            left.append(path)
    return left


def _case_names(folder: Path, paths: Sequence[Path]) -> list[str]:
    stems = [label_map_stem(path) for path in paths]
    parents = [path.relative_to(folder).parts[:-1] for path in paths]
    if len(set(stems)) == len(stems) or not any(parents):
        return stems
    if len(set(stems)) == 1:  # patient/seg.nii.gz
        return ["_".join(parts) for parts in parents]
    return ["_".join((*parts, name)) for parts, name in zip(parents, stems, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Matches:
    """Which predictions belong to which truth.

    Attributes:
        pairs: Case → prediction.
        missing: Cases without a prediction.
        unknown: Predictions without a truth.
        ambiguous: Case → its several predictions.
    """

    pairs: dict[str, Path]
    missing: list[str]
    unknown: list[Path]
    ambiguous: dict[str, list[Path]]


def match_cases(truth: Collection[str], predictions: Mapping[str, Sequence[Path]]) -> Matches:
    """Pair cases by name; those left over also without what the file is (_seg, _gt, _0000, …), if that is unique."""
    names = {case: case for case in truth if case in predictions}
    left = _by_bare_name(case for case in truth if case not in names)
    for bare, others in _by_bare_name(name for name in predictions if name not in names).items():
        if len(left.get(bare, ())) == len(others) == 1:
            names[left[bare][0]] = others[0]
    taken, files = set(names.values()), {case: list(predictions[name]) for case, name in names.items()}
    return Matches(
        pairs={case: files[case][0] for case in truth if len(files.get(case, ())) == 1},
        missing=[case for case in truth if case not in names],
        unknown=[path for name, paths in predictions.items() if name not in taken for path in paths],
        ambiguous={case: paths for case, paths in files.items() if paths[1:]},
    )


def _by_bare_name(names: Iterable[str]) -> dict[str, list[str]]:
    bare: dict[str, list[str]] = {}
    for name in names:
        bare.setdefault(_ROLE.sub("", name).casefold(), []).append(name)
    return bare


def some(names: Sequence[Any]) -> str:
    """Return a few names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(str(name) for name in names[:_SHOWN]) + more
