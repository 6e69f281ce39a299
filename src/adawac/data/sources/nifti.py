"""Any folder of NIfTI scans: nnU-Net's layout, the Decathlon's, folders of images and labels, or two glob patterns."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adawac.data.cases import Case, CaseRef
from adawac.data.parallel import run_jobs
from adawac.data.preprocessing import CT, MR
from adawac.data.sources.file_search import (
    IMAGE_FOLDERS,
    LABEL_FOLDERS,
    by_name,
    case_and_channel,
    channel_fault,
    is_closed,
    match_patterns,
    nifti_files,
    only_folder,
    stem,
    without_role,
)
from adawac.data.sources.picture_files import is_picture
from adawac.data.sources.scan_files import read_json, read_nifti_image, read_nifti_label, read_nifti_values
from adawac.data.sources.source import (
    SOURCES,
    Classes,
    ListedSource,
    Source,
    Unlabelled,
    as_classes,
    check_refs,
    checked_way,
    drop_unlabelled,
    read_labelled_slices,
    read_rows,
)
from adawac.errors import ConfigError, DataError, LayoutError

#: What a made-up name must not contain.
NAME_PATTERN = re.compile(r"[^\w.-]+")
# What channels of a modality are called in a dataset.json.
_MODALITIES = {"CT": {"CT"}, "MR": {"MR", "MRI"}}
# What the parts of a dataset.json look like.
_IGNORE = "ignore"  # what nnU-Net calls the label that counts nowhere
_PARTS: dict[str, Any] = {
    "channel_names": {"0": "CT"},
    "modality": {"0": "CT"},
    "labels": {"background": 0, "liver": 1},
    "training": [{"image": "imagesTr/a.nii.gz", "label": "labelsTr/a.nii.gz"}],
    "test": ["imagesTs/b.nii.gz"],
}
_LAYOUTS = (
    "dataset.json with imagesTr/CASE_0000.nii.gz and labelsTr/CASE.nii.gz (nnU-Net), dataset.json with a `training` "
    "list (MSD), folders called images and labels (or masks) whose files have the same names, or the patterns `images` "
    "and `labels`"
)


class NiftiSource(ListedSource):
    """NIfTI images with their label maps."""

    def lacking_labels(self) -> list[CaseRef]:
        """Return the cases without a label map; those that are for testing need none."""
        lacking = [ref for ref in self.refs if not ref.labels and ref.split != "test"]
        return [] if self.keeps(lacking) else lacking

    def load(self, ref: CaseRef) -> Case:
        """Read one case."""
        image, affine = read_nifti_image(ref.images, len(self.channels))
        shape = image.shape[1:]
        label = None
        if ref.labels:
            label = read_nifti_label(ref.labels[0], self.classes, ref.images[0], shape, affine, self.ignore)
        return ref.with_voxels(image, label, affine, self.class_names)


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
    unlabelled: Unlabelled | None = None,
    labelled_slices: Path | str | None = None,
    ignore: int | None = None,
    dataset: str | None = None,
) -> Source:
    r"""Open a folder of NIfTI scans.

    Args:
        root: The folder.
        images: Glob pattern of the images below `root`, one per channel; without it `dataset.json` is read, or the
            files of the folders `images` and `labels` are paired by their names. What the wildcards stand for is the
            case's id: `*/t1.nii.gz` names a case after its folder.
        labels: Glob pattern of the label maps, with as many wildcards.
        classes: Class name → label value, or values; 0 is the background unless named. By default what `dataset.json`
            says, otherwise every value that occurs.
        channels: Names of the image channels.
        modality: `CT` or `MR`, which decides the default intensity window; by default what `dataset.json` says, or MR.
        patient: Regular expression; what its first group finds in a case's id is the patient (`(patient\d+)_`). By
            default every case is a separate patient.
        groups: CSV file with the columns `patient,group`.
        skip_unlabelled: Leave scans without a label map out, with a warning, instead of refusing the folder.
        unlabelled: What to do with scans without a label map: `keep` them as unlabelled, `skip` or `refuse` them.
        labelled_slices: CSV file with the columns `case,slice`: the others were never annotated, and are unlabelled.
        ignore: Label value of voxels that count nowhere; by default nnU-Net's `ignore` label in `dataset.json`.
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
        matches, every_label = match_patterns(root, patterns, labels)
        if all(is_picture(path) for _, files, _ in matches for path in files):
            raise _refusal_of_picture(matches[0][1][0])
        pairs = [(case, "", image, label) for case, image, label in matches]
    elif (root / "dataset.json").is_file() or (root / "imagesTr").is_dir():
        description = read_description(root / "dataset.json") if (root / "dataset.json").is_file() else {}
        listed = "training" in description
        label_place = "what dataset.json lists" if listed else "labelsTr/CASE.nii.gz"
        pairs = _match_listed(root, description) if listed else _match_folders(root, description)
        every_label = [path for name in ("labelsTr", "labelsTs") for path in nifti_files(root / name)]
    else:
        pairs, label_folder = _match_two_folders(root)
        label_place, every_label = f"{label_folder.name}/CASE.nii.gz", nifti_files(label_folder)
    name = dataset or NAME_PATTERN.sub("-", str(description.get("name") or root.resolve().name)).strip("-.") or "nifti"
    group_of = read_groups(Path(groups)) if groups else {}
    found = []
    for case, split, image_files, label_files in sorted(pairs, key=lambda pair: pair[0]):
        person = patient_of(case, patient)
        files = {"images": image_files, "labels": label_files}
        found.append(CaseRef(dataset=name, patient=person, id=case, group=group_of.get(person), split=split, **files))
    refs = check_refs(found, root)
    used = {path for ref in refs for path in ref.labels}
    described = description.get("channel_names") or description.get("modality") or {}
    listed_names = [str(described[key]) for key in sorted(described, key=int)]
    names = tuple(channels or listed_names or [f"channel {k}" for k in range(len(refs[0].images))])
    kinds = {modality or channel for channel in names}
    known = next((kind for kind, called in _MODALITIES.items() if {name.upper() for name in kinds} <= called), None)
    known_classes = as_classes(classes) if classes else described_classes(root, description)
    if ignore is None:
        ignore = described_ignore(root, description, known_classes or {})
    source = NiftiSource(
        root=root,
        dataset=name,
        classes=known_classes or found_classes(refs, ignore),
        channels=names,
        preprocessing=CT if known == "CT" else MR,
        modality=known,
        refs=refs,
        label_place=label_place,
        unused_labels=tuple(path for path in every_label if path not in used),
        unlabelled=(way := checked_way(unlabelled, skip_unlabelled)),
        ignore=ignore,
        labelled_slices=read_labelled_slices(Path(labelled_slices), refs) if labelled_slices else None,
    )
    return drop_unlabelled(source) if way == "skip" else source


def read_groups(path: Path) -> dict[str, str]:
    """Read a CSV file with the columns patient and group."""
    return {row["patient"]: row["group"] for row in read_rows(path, "patient", "group")}


# A case: its id, its split, its image files and its label files.
_Pair = tuple[str, str, tuple[Path, ...], tuple[Path, ...]]


def patient_of(case: str, pattern: str | None) -> str:
    """Return what the first group of a regular expression finds in a case's name, or all that it finds.

    Without one the case is a patient of its own.
    """
    if pattern is None:
        return case
    try:
        match = re.search(pattern, case)
    except re.error as error:
        raise ConfigError(f"Expected a regular expression for `patient`, but got {pattern!r} ({error}).") from error
    if match is None:
        raise DataError(f"Expected {pattern!r} to find the patient in {case!r}, but it does not. Change the pattern.")
    return match[1] if match.groups() else match[0]


def _match_folders(root: Path, description: Mapping[str, Any]) -> list[_Pair]:
    """nnU-Net: imagesTr/CASE_0000.nii.gz, labelsTr/CASE.nii.gz, and the same with Ts for testing."""
    pairs: list[_Pair] = []
    for suffix, split in (("Tr", "train"), ("Ts", "test")):
        labels = by_name(nifti_files(root / f"labels{suffix}"), stem)
        for case, files in _by_channel(nifti_files(root / f"images{suffix}")).items():
            pairs.append((case, split, tuple(files), (labels[case],) if case in labels else ()))
    return pairs


def _match_two_folders(root: Path) -> tuple[list[_Pair], Path]:
    """Return the pairs of a folder of scans and one of label maps, and the latter."""
    images, labels = only_folder(root, IMAGE_FOLDERS), only_folder(root, LABEL_FOLDERS)
    if images is not None and labels is not None:
        files = nifti_files(images)
        label_of = by_name(nifti_files(labels), _name_of_case)
        image_of = {case: [path] for case, path in by_name(files, _name_of_case).items()}
        if not set(image_of) & set(label_of) and all(map(case_and_channel, files)):
            image_of = _by_channel(files)
        if set(image_of) & set(label_of):
            pairs: list[_Pair] = [
                (case, "", tuple(paths), (label_of[case],) if case in label_of else ())
                for case, paths in image_of.items()
            ]
            return pairs, labels
    place = images or root
    for path in [] if is_closed(place) else sorted(place.iterdir()):
        if is_picture(path):
            raise _refusal_of_picture(path)
    raise LayoutError(f"Expected {_LAYOUTS}, but {root} has none of them. Give the patterns.")


def _refusal_of_picture(path: Path) -> LayoutError:
    return LayoutError(f"Expected NIfTI files, but {path} is a picture. Use the source pictures.")


def _name_of_case(path: Path) -> str:
    """Return a file's name without its ending and what the file is, as in case_seg.nii.gz."""
    return without_role(stem(path))


def _by_channel(files: Iterable[Path]) -> dict[str, list[Path]]:
    """Return the files of each case, which are called CASE_0000, CASE_0001 and so on."""
    channels: dict[str, list[Path]] = {}
    for path in files:
        numbered = case_and_channel(path)
        if numbered is None:
            raise DataError(f"Expected CASE_0000.nii.gz, but got {path}. Rename it as nnU-Net asks for.")
        channels.setdefault(numbered[0], []).append(path)
    for case, paths in channels.items():
        if fault := channel_fault(case, paths):
            raise DataError(fault)
    return channels


def _match_listed(root: Path, description: Mapping[str, Any]) -> list[_Pair]:
    """MSD: dataset.json lists the pairs; scans of `test` have no labels."""
    pairs: list[_Pair] = []
    for entry in description["training"]:
        image, label = _inside(root, entry["image"]), _inside(root, entry.get("label") or "")
        pairs.append((stem(image), "train", (image,), (label,) if label.is_file() else ()))
    for entry in description.get("test", []):
        image = _inside(root, entry["image"] if isinstance(entry, dict) else entry)
        if image.is_file():
            pairs.append((stem(image), "test", (image,), ()))
    return pairs


def read_description(path: Path) -> dict[str, Any]:
    """Read a dataset.json; people write them by hand, so every part is looked at before it is used."""
    description = read_json(path)
    for name, example in _PARTS.items():
        part = description.get(name, example)
        numbered = name in ("channel_names", "modality")
        if not isinstance(part, type(example)) or (numbered and not all(str(key).isdecimal() for key in part)):
            raise DataError(
                f"Expected {name} in {path} to be like {json.dumps(example)}, but got {json.dumps(part)[:80]}."
            )
    training, test = description.get("training", []), description.get("test", [])
    odd = [entry for entry in training if not _is_pair(entry)]
    odd += [entry for entry in test if not _is_pair(entry) and not isinstance(entry, str)]
    if odd:
        raise DataError(
            f"Expected image and label in each entry of `training` in {path}, and names of files in `test`, but got "
            f"{odd[0]!r}. Fix dataset.json."
        )
    return description


def _is_pair(entry: Any) -> bool:
    """Say whether an entry names an image, and perhaps its label map."""
    return isinstance(entry, dict) and "image" in entry and all(isinstance(name, str) for name in entry.values())


def _inside(root: Path, name: str) -> Path:
    """Return a file that is listed; by its name it must lie below the folder, wherever links lead from there."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise DataError(f"Expected files below {root}, but dataset.json lists {name!r}. Fix dataset.json.")
    return root / name


def described_classes(root: Path, description: Mapping[str, Any]) -> Classes | None:
    """Return the classes of dataset.json: name → value (nnU-Net v2) or value → name (nnU-Net v1, MSD)."""
    labels = description.get("labels")
    if not labels:
        return None
    if all(str(key).isdecimal() for key in labels):
        return as_classes({str(name): int(value) for value, name in labels.items()})
    labels = {
        name: value[0] if isinstance(value, list) and len(value) == 1 else value
        for name, value in labels.items()
        if name != _IGNORE
    }
    if not all(isinstance(value, int) for value in labels.values()):
        raise DataError(
            f"Expected one value per class in {root / 'dataset.json'}, but got regions ({labels}). "
            "Give `classes` with values that do not overlap."
        )
    return as_classes(labels)


def described_regions(root: Path, description: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return nnU-Net's regions, name → label values, which may overlap; empty where each class has one value."""
    labels = {name: value for name, value in description.get("labels", {}).items() if name != _IGNORE}
    if not any(isinstance(value, list) and len(value) > 1 for value in labels.values()):
        return {}
    regions = {name: tuple(value) if isinstance(value, list) else (value,) for name, value in labels.items()}
    if odd := [
        name for name, values in regions.items() if not values or any(type(value) is not int for value in values)
    ]:
        raise DataError(f"Expected label values of {odd[0]} in {root / 'dataset.json'}, but got {labels[odd[0]]!r}.")
    return {name: values for name, values in regions.items() if values != (0,)}


def described_ignore(root: Path, description: Mapping[str, Any], classes: Classes) -> int | None:
    """Return nnU-Net's ignore label, unless that value is of a class that was given."""
    value = description.get("labels", {}).get(_IGNORE)
    if value is not None and type(value) is not int:
        raise DataError(f"Expected a number as {_IGNORE} in {root / 'dataset.json'}, but got {value!r}.")
    return None if any(value in values for values in classes.values()) else value


def found_classes(refs: Sequence[CaseRef], ignore: int | None = None) -> Classes:
    """Return a class for every label value that occurs but `ignore`; this reads all label maps.

    A file that cannot be read is passed over: it is named when its case is loaded, together with all other bad ones.
    """
    values: set[int] = set()
    faults: list[DataError] = []

    def look(path: Path) -> None:
        try:
            values.update(read_nifti_values(path))
        except DataError as error:
            faults.append(error)

    paths = [path for ref in refs for path in ref.labels]
    list(run_jobs(look, paths, title="Looking for label values", workers=1))
    if paths and not values:
        if not faults:
            raise DataError("Expected label maps with voxels, but got none. Export them again.")
        raise DataError(f"None of the {len(paths)} label maps can be used. {faults[0]}") if faults[1:] else faults[0]
    values -= {ignore}
    if paths and not values - {0}:
        raise DataError(
            f"Expected label values other than 0, but all {len(paths)} label maps are empty. Give `classes`."
        )
    return as_classes({f"class {value}": value for value in sorted(values - {0})})
