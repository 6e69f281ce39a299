"""Any folder of NIfTI scans: nnU-Net's layout, the Medical Segmentation Decathlon's, or two glob patterns."""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adawac.data.cases import Case, CaseRef
from adawac.data.preprocessing import CT, MR
from adawac.data.sources.base import SOURCES, Classes, Source, as_classes, check_refs
from adawac.data.sources.reading import read_json, read_nifti_image, read_nifti_label, read_nifti_values
from adawac.errors import ConfigError, DataError, MissingFileError

__all__ = ["NAME_PATTERN", "NiftiSource", "found_classes", "glob_cases", "load_nifti", "nifti", "read_groups"]

#: What a made-up name must not contain.
NAME_PATTERN = re.compile(r"[^\w.-]+")
_LAYOUTS = (
    "dataset.json with imagesTr/CASE_0000.nii.gz and labelsTr/CASE.nii.gz (nnU-Net), dataset.json with a `training` "
    "list (MSD), or the patterns `images` and `labels`"
)


def load_nifti(ref: CaseRef, classes: Classes, channels: int) -> Case:
    """Read one case from NIfTI files."""
    image, affine = read_nifti_image(ref.images, channels)
    shape = image.shape[1:]
    label = read_nifti_label(ref.labels[0], classes, ref.images[0], shape, affine) if ref.labels else None
    return Case(
        dataset=ref.dataset,
        patient=ref.patient,
        id=ref.id,
        group=ref.group,
        image=image,
        label=label,
        spacing=tuple(float(size) for size in np.linalg.norm(affine[:3, :3], axis=0)),
        affine=affine,
        class_names=tuple(classes),
        files=ref.files,
    )


@dataclass(frozen=True, kw_only=True)
class NiftiSource(Source):
    """Pairs of NIfTI images and label maps that were found when the source was opened."""

    found: tuple[CaseRef, ...]

    def cases(self) -> list[CaseRef]:
        """Return the cases."""
        return list(self.found)

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
            default every case is a patient of its own.
        groups: CSV file with the columns `patient,group`.
        dataset: Name of the data set; by default that of `dataset.json` or of the folder.
    """
    if (images is None) != (labels is None):
        raise ConfigError(
            "Expected both `images` and `labels`, or neither, but got one of them. Give the other pattern."
        )
    description: dict[str, Any] = {}
    if images is not None and labels is not None:
        patterns = [images] if isinstance(images, str) else list(images)
        pairs = _match_patterns(root, patterns, labels)
    elif (root / "dataset.json").is_file():
        description = read_json(root / "dataset.json")
        pairs = _match_listed(root, description) if "training" in description else _match_folders(root, description)
    else:
        raise DataError(f"Expected {_LAYOUTS}, but {root} has no dataset.json. Give the patterns.")
    name = dataset or NAME_PATTERN.sub("-", str(description.get("name") or root.resolve().name)).strip("-.") or "nifti"
    group_of = read_groups(Path(groups)) if groups else {}
    refs = []
    for case, split, image_files, label_files in pairs:
        who = _patient_of(case, patient)
        refs.append(
            CaseRef(
                dataset=name,
                patient=who,
                id=case,
                group=group_of.get(who),
                split=split,
                images=image_files,
                labels=label_files,
            )
        )
    refs = check_refs(sorted(refs, key=lambda ref: ref.id), root)
    names = tuple(channels or _channel_names(description) or [f"channel {k}" for k in range(len(refs[0].images))])
    ct = (modality or "").upper() == "CT" or (modality is None and all(one.upper() == "CT" for one in names))
    return NiftiSource(
        root=root,
        dataset=name,
        classes=as_classes(classes) if classes else _described_classes(root, description) or found_classes(refs),
        channels=names,
        preprocessing=CT if ct else MR,
        found=tuple(refs),
    )


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


# A case that was found: its id, its split, its image files and its label files.
_Pair = tuple[str, str, tuple[Path, ...], tuple[Path, ...]]


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".nii")


def _patient_of(case: str, pattern: str | None) -> str:
    if pattern is None:
        return case
    try:
        match = re.search(pattern, case)
    except re.error as error:
        raise ConfigError(
            f"Expected a regular expression for `patient`, but got {pattern!r} ({error}). Correct it."
        ) from error
    if match is None:
        raise DataError(f"Expected {pattern!r} to find the patient in {case!r}, but it does not. Correct the pattern.")
    return match[1] if match.groups() else match[0]


def _scans(folder: Path) -> list[Path]:
    """Return the NIfTI files of a folder, without macOS's hidden companions."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.glob("*.nii*") if not path.name.startswith("."))


def _match_folders(root: Path, description: Mapping[str, Any]) -> list[_Pair]:
    """nnU-Net: imagesTr/CASE_0000.nii.gz, labelsTr/CASE.nii.gz, and the same with Ts for testing."""
    pairs: list[_Pair] = []
    for suffix, split in (("Tr", "train"), ("Ts", "test")):
        channels: dict[str, dict[str, Path]] = {}
        for path in _scans(root / f"images{suffix}"):
            match = re.fullmatch(r"(?P<case>.+)_(?P<channel>\d{4})", _stem(path))
            if match is None:
                raise DataError(f"Expected CASE_0000.nii.gz, but got {path}. Rename it as nnU-Net asks for.")
            if match["channel"] in channels.setdefault(match["case"], {}):
                raise DataError(
                    f"Expected one file per case and channel, but {channels[match['case']][match['channel']]} "
                    f"and {path} are the same. Remove the copy."
                )
            channels[match["case"]][match["channel"]] = path
        labels = _unique_stems(root / f"labels{suffix}")
        for case, files in channels.items():
            if suffix == "Tr" and case not in labels:
                raise DataError(
                    f"Expected a label map labelsTr/{case}.nii.gz for {files[min(files)]}, but it is missing. "
                    "Add it, or move the scan to imagesTs."
                )
            images = tuple(files[channel] for channel in sorted(files))
            pairs.append((case, split, images, (labels[case],) if case in labels else ()))
    return pairs


def _unique_stems(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in _scans(folder):
        other = found.setdefault(_stem(path), path)
        if other is not path:
            raise DataError(f"Expected one label map per case, but got {other} and {path}. Remove the copy.")
    return found


def _match_listed(root: Path, description: Mapping[str, Any]) -> list[_Pair]:
    """MSD: dataset.json lists the pairs; scans of `test` have no labels."""
    pairs: list[_Pair] = []
    for entry in description["training"]:
        image, label = _inside(root, entry["image"]), _inside(root, entry["label"])
        if not label.is_file():
            raise DataError(f"Expected the label map {label} that dataset.json lists, but it is missing. Add it.")
        pairs.append((_stem(image), "train", (image,), (label,)))
    for entry in description.get("test", []):
        image = _inside(root, entry["image"] if isinstance(entry, dict) else entry)
        if image.is_file():
            pairs.append((_stem(image), "test", (image,), ()))
    return pairs


def _inside(root: Path, name: str) -> Path:
    path = root / name
    if not path.resolve().is_relative_to(root.resolve()):
        raise DataError(f"Expected files below {root}, but dataset.json lists {name!r}. Mend dataset.json.")
    return path


def _match_patterns(root: Path, images: Sequence[str], labels: str) -> list[_Pair]:
    """Pair files by what the wildcards stand for."""
    by_channel = [glob_cases(root, pattern) for pattern in images]
    label_files = glob_cases(root, labels)
    # A label map may match the images' pattern too, as scan_gt.nii.gz matches *.nii.gz.
    taken = set(label_files.values())
    cases = [case for case, path in by_channel[0].items() if path not in taken]
    if not cases:
        raise DataError(f"Expected images that match {images[0]!r} in {root}, but got none. Correct the pattern.")
    pairs: list[_Pair] = []
    for case in cases:
        if case not in label_files:
            raise DataError(
                f"Expected a label map for {by_channel[0][case]}, but nothing matches {labels.replace('*', case, 1)!r} "
                f"in {root}. Add it, or correct the pattern."
            )
        missing = [pattern for pattern, found in zip(images, by_channel, strict=True) if case not in found]
        if missing:
            raise DataError(f"Expected every channel of case {case}, but nothing matches {missing[0]!r}. Add the file.")
        pairs.append((case, "", tuple(found[case] for found in by_channel), (label_files[case],)))
    return pairs


def glob_cases(root: Path, pattern: str) -> dict[str, Path]:
    """Return the files that match, by what the wildcards stand for (joined by _)."""
    if "*" not in pattern:
        raise ConfigError(
            f"Expected a pattern with at least one *, but got {pattern!r}. Mark where the case's name stands."
        )
    expression = re.compile(
        "".join("([^/]*)" if part == "*" else re.escape(part) for part in re.split(r"(\*)", pattern))
    )
    found: dict[str, Path] = {}
    for path in sorted(root.glob(pattern)):
        match = expression.fullmatch(path.relative_to(root).as_posix())
        if match is None or path.name.startswith("."):
            continue
        case = "_".join(match.groups()).removesuffix(".gz").removesuffix(".nii")
        other = found.setdefault(case, path)
        if other is not path:
            raise DataError(
                f"Expected case ids that differ, but {other} and {path} are both {case!r}. Use a finer pattern."
            )
    return found


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


def found_classes(refs: Sequence[CaseRef]) -> Classes:
    """Return a class for every label value that occurs; this reads all label maps."""
    values: set[int] = set()
    for ref in refs:
        for path in ref.labels:
            values |= read_nifti_values(path)
    if not values - {0}:
        raise DataError(
            f"Expected label values other than 0, but all {len(refs)} label maps are empty. Give `classes`."
        )
    return as_classes({f"class {value}": value for value in sorted(values - {0})})
