"""ACDC: cardiac MR of 100 patients, two frames each, in TransUNet's h5 layout or as released (NIfTI and Info.cfg)."""

import re
from pathlib import Path
from typing import Any

from adawac.data.cases import CaseRef
from adawac.data.preprocessing import MR, READY
from adawac.data.sources.file_search import files_below, is_nifti, stem
from adawac.data.sources.nifti import NiftiSource
from adawac.data.sources.source import SOURCES, Classes, Source, check_refs, number_in
from adawac.data.sources.transunet_layout import SliceSource, find_folder, group_slices
from adawac.errors import DataError, LayoutError

CLASSES: Classes = {"background": (0,), "RV": (1,), "Myo": (2,), "LV": (3,)}
_GROUPS = ("DCM", "HCM", "MINF", "NOR", "RV")
_FRAME = re.compile(r"patient\d+_frame\d+")
_LAYOUTS = (
    "ACDC_training_volumes/patientPPP_frameFF.h5, ACDC_training_slices/patientPPP_frameFF_slice_S.h5, "
    "or patientPPP/patientPPP_frameFF.nii.gz with patientPPP_frameFF_gt.nii.gz"
)


def paper_split(patient: str) -> str:
    """Return the paper's split: test 1-20, validation 21-30, training 31-100; later patients are in none."""
    number = number_in(patient, "patient")
    return "test" if number <= 20 else "val" if number <= 30 else "train" if number <= 100 else ""


def group_by_number(patient: str) -> str | None:
    """Return the pathology by the patient's number, 20 each in the order of the release."""
    fifth = (number_in(patient, "patient") - 1) // 20
    return _GROUPS[fifth] if 0 <= fifth < len(_GROUPS) else None


class AcdcSlices(SliceSource):
    """TransUNet's h5 files."""


class AcdcRelease(NiftiSource):
    """The raw release: two NIfTI frames a patient with their `_gt` label maps, and the pathology in Info.cfg."""


@SOURCES.register("acdc")
def acdc(root: Path) -> Source:
    """Open an ACDC folder; the layout is recognised."""
    known: dict[str, Any] = {"root": root, "dataset": "acdc", "classes": CLASSES, "modality": "MR"}
    if refs := _find_slices(root):
        return AcdcSlices(**known, preprocessing=READY, refs=check_refs(refs, root))
    if refs := _find_release(root):
        return AcdcRelease(**known, preprocessing=MR, refs=check_refs(refs, root))
    raise LayoutError(f"Expected {_LAYOUTS}, but {root} has none of them. Give the folder that holds them.")


def _find_slices(root: Path) -> list[CaseRef]:
    """Return a case for each volume, and for what exists as slices only."""
    volumes, slices = find_folder(root, "ACDC_training_volumes"), find_folder(root, "ACDC_training_slices")
    files = group_slices(slices) if slices else {}
    if volumes:
        files |= {path.stem: (path,) for path in sorted(volumes.glob("*.h5")) if _FRAME.fullmatch(path.stem)}
    refs = []
    for case, paths in sorted(files.items()):
        if not _FRAME.fullmatch(case):
            raise DataError(f"Expected patientPPP_frameFF, but got {paths[0]}. Rename it as in the release.")
        refs.append(_ref(case, paths))
    return refs


def _find_release(root: Path) -> list[CaseRef]:
    """Return the frames; a frame without its label map is a `DataError`."""
    refs = []
    for path in filter(is_nifti, files_below(root)):
        case = stem(path)
        if _FRAME.fullmatch(case):
            label = path.with_name(path.name.replace(case, f"{case}_gt"))
            if not label.is_file():
                raise DataError(f"Expected the label map {label}, but it is missing. Copy it from the release.")
            refs.append(_ref(case, (path,), (label,), _read_group(path.with_name("Info.cfg"))))
    return refs


def _ref(case: str, images: tuple[Path, ...], labels: tuple[Path, ...] = (), group: str | None = None) -> CaseRef:
    patient = case.partition("_")[0]
    group, split = group or group_by_number(patient), paper_split(patient)
    return CaseRef(dataset="acdc", patient=patient, id=case, group=group, split=split, images=images, labels=labels)


def _read_group(path: Path) -> str | None:
    """Return `Group` of an Info.cfg (lines such as `Group: DCM`), or None without one."""
    if not path.is_file():
        return None
    lines = (line.partition(":") for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == "Group"), None)
