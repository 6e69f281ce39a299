"""Any folder of NIfTI scans: nnU-Net's layout, the Medical Segmentation Decathlon's, or two glob patterns."""

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adawac.data.cases import Case, CaseRef
from adawac.data.parallel import run_jobs
from adawac.data.preprocessing import CT, MR
from adawac.data.sources.file_search import case_and_channel, channel_fault, is_nifti, match_patterns, stem
from adawac.data.sources.scan_files import read_json, read_nifti_image, read_nifti_label, read_nifti_values
from adawac.data.sources.source import SOURCES, Classes, Source, as_classes, check_refs, drop_unlabelled
from adawac.errors import ConfigError, DataError, MissingFileError

#: What a made-up name must not contain.
NAME_PATTERN = re.compile(r"[^\w.-]+")
# What the parts of a dataset.json look like.
_PARTS: dict[str, Any] = {
    "channel_names": {"0": "CT"},
    "modality": {"0": "CT"},
    "labels": {"background": 0, "liver": 1},
    "training": [{"image": "imagesTr/a.nii.gz", "label": "labelsTr/a.nii.gz"}],
    "test": ["imagesTs/b.nii.gz"],
}
_LAYOUTS = (
    "dataset.json with imagesTr/CASE_0000.nii.gz and labelsTr/CASE.nii.gz (nnU-Net), dataset.json with a `training` "
    "list (MSD), or the patterns `images` and `labels`"
)


def load_nifti(ref: CaseRef, classes: Classes, channels: int) -> Case:
    """Read one case from NIfTI files."""
    image, affine = read_nifti_image(ref.images, channels)
    shape = image.shape[1:]
    label = read_nifti_label(ref.labels[0], classes, ref.images[0], shape, affine) if ref.labels else None
    return ref.with_voxels(image, label, affine, tuple(classes))


@dataclass(frozen=True, kw_only=True)
class NiftiSource(Source):
    """Pairs of NIfTI images and label maps that were listed when the source was opened.

    Attributes:
        refs: The cases.
    """

    refs: tuple[CaseRef, ...]

    def cases(self) -> list[CaseRef]:
        """Return the cases."""
        return list(self.refs)

    def lacking_labels(self) -> list[CaseRef]:
        """Return the cases without a label map; those that are for testing need none."""
        return [ref for ref in self.refs if not ref.labels and ref.split != "test"]

    def load(self, ref: CaseRef) -> Case:
        """Read one case."""
        return load_nifti(ref, self.classes, len(self.channels))

    def options(self) -> dict[str, Any]:
        """Nothing but the files and the classes decides the voxels."""
        return {}


@SOURCES.register("nifti")
def nifti(
    root: Path,
    *,
    images: str | Sequence[str] | None = None,
    labels: str | None = None,
    classes: Mapping[str, int | Iterable[int]] | None = None,
    channels: Sequence[str] | None = None,
    modality: str | None = None,
    patient: str | None = None,
    groups: Path | str | None = None,
    skip_unlabelled: bool = False,
    dataset: str | None = None,
) -> Source:
    r"""Open a folder of NIfTI scans.

    Args:
        root: The folder.
        images: Glob pattern of the images below `root`, one per channel; without it `dataset.json` is read. What the
            wildcards stand for is the case's id: `*/t1.nii.gz` names a case after its folder.
        labels: Glob pattern of the label maps, with as many wildcards.
        classes: Class name → label value, or values; 0 is the background unless named. By default what `dataset.json`
            says, otherwise every value that occurs.
        channels: Names of the image channels.
        modality: `CT` or `MR`, which decides the default intensity window; by default what `dataset.json` says, or MR.
        patient: Regular expression; what its first group finds in a case's id is the patient (`(patient\d+)_`). By
            default every case is a separate patient.
        groups: CSV file with the columns `patient,group`.
        skip_unlabelled: Leave scans without a label map out, with a warning, instead of refusing the folder.
        dataset: Name of the data set; by default that of `dataset.json` or of the folder.
    """
    if (images is None) != (labels is None):
        raise ConfigError(
            "Expected both `images` and `labels`, or neither, but got one of them. Give the other pattern."
        )
    if modality is not None and modality.upper() not in ("CT", "MR"):
        raise ConfigError(f"Expected CT or MR as `modality`, but got {modality!r}. It decides how to clip intensities.")
    description: dict[str, Any] = {}
    pairs: list[_Pair]
    if images is not None and labels is not None:
        patterns, label_place = [images] if isinstance(images, str) else list(images), repr(labels)
        pairs = [(case, "", image, label) for case, image, label in match_patterns(root, patterns, labels)]
    elif (root / "dataset.json").is_file():
        description = _read_description(root / "dataset.json")
        listed = "training" in description
        label_place = "what dataset.json lists" if listed else "labelsTr/CASE.nii.gz"
        pairs = _match_listed(root, description) if listed else _match_folders(root, description)
    else:
        raise DataError(f"Expected {_LAYOUTS}, but {root} has no dataset.json. Give the patterns.")
    name = dataset or NAME_PATTERN.sub("-", str(description.get("name") or root.resolve().name)).strip("-.") or "nifti"
    group_of = read_groups(Path(groups)) if groups else {}
    refs = []
    for case, split, image_files, label_files in sorted(pairs, key=lambda pair: pair[0]):
        person = _patient_of(case, patient)
        files = {"images": image_files, "labels": label_files}
        refs.append(CaseRef(dataset=name, patient=person, id=case, group=group_of.get(person), split=split, **files))
    refs = check_refs(refs, root)
    names = tuple(channels or _channel_names(description) or [f"channel {k}" for k in range(len(refs[0].images))])
    ct = (modality or "").upper() == "CT" or (modality is None and all(channel.upper() == "CT" for channel in names))
    source = NiftiSource(
        root=root,
        dataset=name,
        classes=as_classes(classes) if classes else _described_classes(root, description) or found_classes(refs),
        channels=names,
        preprocessing=CT if ct else MR,
        refs=tuple(refs),
        label_place=label_place,
    )
    return replace(source, refs=drop_unlabelled(source)) if skip_unlabelled else source


def read_groups(path: Path) -> dict[str, str]:
    """Read a CSV file with the columns patient and group."""
    if not path.is_file():
        raise MissingFileError(f"Expected a CSV file with patient,group, but {path} is not there. Correct the path.")
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows or not {"patient", "group"} <= set(rows[0]):
        raise DataError(
            f"Expected the columns patient,group in {path}, but got {list(rows[0]) if rows else 'none'}. Add them."
        )
    return {row["patient"]: row["group"] for row in rows}


# A case: its id, its split, its image files and its label files.
_Pair = tuple[str, str, tuple[Path, ...], tuple[Path, ...]]


def _patient_of(case: str, pattern: str | None) -> str:
    if pattern is None:
        return case
    try:
        match = re.search(pattern, case)
    except re.error as error:
        raise ConfigError(f"Expected a regular expression for `patient`, but got {pattern!r} ({error}).") from error
    if match is None:
        raise DataError(f"Expected {pattern!r} to find the patient in {case!r}, but it does not. Change the pattern.")
    return match[1] if match.groups() else match[0]


def _scans(folder: Path) -> list[Path]:
    """Return the NIfTI files of a folder, without macOS's hidden companions."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if is_nifti(path) and not path.name.startswith("."))


def _match_folders(root: Path, description: Mapping[str, Any]) -> list[_Pair]:
    """nnU-Net: imagesTr/CASE_0000.nii.gz, labelsTr/CASE.nii.gz, and the same with Ts for testing."""
    pairs: list[_Pair] = []
    for suffix, split in (("Tr", "train"), ("Ts", "test")):
        channels: dict[str, list[Path]] = {}
        for path in _scans(root / f"images{suffix}"):
            numbered = case_and_channel(path)
            if numbered is None:
                raise DataError(f"Expected CASE_0000.nii.gz, but got {path}. Rename it as nnU-Net asks for.")
            channels.setdefault(numbered[0], []).append(path)
        labels = _unique_stems(root / f"labels{suffix}")
        for case, files in channels.items():
            if fault := channel_fault(case, files):
                raise DataError(fault)
            pairs.append((case, split, tuple(files), (labels[case],) if case in labels else ()))
    return pairs


def _unique_stems(folder: Path) -> dict[str, Path]:
    paths: dict[str, Path] = {}
    for path in _scans(folder):
        other = paths.setdefault(stem(path), path)
        if other is not path:
            raise DataError(f"Expected one label map per case, but got {other} and {path}. Remove the copy.")
    return paths


def _match_listed(root: Path, description: Mapping[str, Any]) -> list[_Pair]:
    """MSD: dataset.json lists the pairs; scans of `test` have no labels."""
    pairs: list[_Pair] = []
    for entry in description["training"]:
        if not isinstance(entry, dict) or "image" not in entry:
            raise DataError(
                f"Expected image and label in each entry of `training` in {root / 'dataset.json'}, but got {entry!r}. "
                "Fix dataset.json."
            )
        image, label = _inside(root, entry["image"]), _inside(root, entry.get("label") or "")
        pairs.append((stem(image), "train", (image,), (label,) if label.is_file() else ()))
    for entry in description.get("test", []):
        image = _inside(root, entry["image"] if isinstance(entry, dict) else entry)
        if image.is_file():
            pairs.append((stem(image), "test", (image,), ()))
    return pairs


def _read_description(path: Path) -> dict[str, Any]:
    """Read a dataset.json; people write them by hand, so every part is looked at before it is used."""
    description = read_json(path)
    for name, example in _PARTS.items():
        part = description.get(name, example)
        numbered = name in ("channel_names", "modality")
        if not isinstance(part, type(example)) or (numbered and not all(str(key).isdigit() for key in part)):
            raise DataError(
                f"Expected {name} in {path} to be like {json.dumps(example)}, but got {json.dumps(part)[:80]}."
            )
    for entry in [*description.get("training", []), *description.get("test", [])]:
        names = entry.values() if isinstance(entry, dict) else [entry]
        if not all(isinstance(name, str) for name in names):
            raise DataError(f"Expected names of files in the lists of {path}, but got {entry!r}. Fix dataset.json.")
    return description


def _inside(root: Path, name: str) -> Path:
    """Return a file that is listed; by its name it must lie below the folder, wherever links lead from there."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise DataError(f"Expected files below {root}, but dataset.json lists {name!r}. Fix dataset.json.")
    return root / name


def _channel_names(description: Mapping[str, Any]) -> list[str]:
    names = description.get("channel_names") or description.get("modality") or {}
    return [str(names[key]) for key in sorted(names, key=int)]


def _described_classes(root: Path, description: Mapping[str, Any]) -> Classes | None:
    """Return the classes of dataset.json: name → value (nnU-Net v2) or value → name (nnU-Net v1, MSD)."""
    labels = description.get("labels")
    if not labels:
        return None
    if all(str(key).isdigit() for key in labels):
        return as_classes({str(name): int(value) for value, name in labels.items()})
    if "ignore" in labels:
        raise DataError(
            f"Expected classes in {root / 'dataset.json'}, but got nnU-Net's ignore label ({labels['ignore']}). "
            "Give `classes`, with that value under background, or leave those scans out."
        )
    if not all(isinstance(value, int) for value in labels.values()):
        raise DataError(
            f"Expected one value per class in {root / 'dataset.json'}, but got regions ({labels}). "
            "Give `classes` with values that do not overlap."
        )
    return as_classes(labels)


def _values_or_fault(path: Path) -> set[int] | DataError:
    try:
        return read_nifti_values(path)
    except DataError as error:
        return error


def found_classes(refs: Sequence[CaseRef]) -> Classes:
    """Return a class for every label value that occurs; this reads all label maps.

    A file that cannot be read is passed over: it is named when its case is loaded, together with all other bad ones.
    """
    values: set[int] = set()
    fault: DataError | None = None
    paths = [path for ref in refs for path in ref.labels]
    for _, result in run_jobs(_values_or_fault, paths, title="Looking for label values", workers=1):
        if isinstance(result, DataError):
            fault = fault or result
        else:
            values |= result
    if paths and not values:
        raise fault or DataError("Expected label maps with voxels, but got none. Export them again.")
    if paths and not values - {0}:
        raise DataError(
            f"Expected label values other than 0, but all {len(paths)} label maps are empty. Give `classes`."
        )
    return as_classes({f"class {value}": value for value in sorted(values - {0})})
