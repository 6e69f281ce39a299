"""ACDC: cardiac MR of 100 patients, two frames each, in TransUNet's h5 layout or as released (NIfTI and Info.cfg)."""

import re
from dataclasses import dataclass
from pathlib import Path

from adawac.data.cases import Case, CaseRef
from adawac.data.preprocessing import MR, READY
from adawac.data.sources.file_search import files_below, is_nifti, stem
from adawac.data.sources.nifti import load_nifti
from adawac.data.sources.source import SOURCES, Classes, Source, check_refs, number_in
from adawac.data.sources.transunet_layout import SliceSource, find_folder, group_slices
from adawac.errors import DataError

CLASSES: Classes = {"background": (0,), "RV": (1,), "Myo": (2,), "LV": (3,)}
_GROUPS = ("DCM", "HCM", "MINF", "NOR", "RV")
_FRAME = re.compile(r"(?P<patient>patient\d+)_frame\d+")
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


def _ref(
    patient: str, case: str, group: str | None, images: tuple[Path, ...], labels: tuple[Path, ...] = ()
) -> CaseRef:
    return CaseRef(
        dataset="acdc",
        patient=patient,
        id=case,
        group=group or group_by_number(patient),
        split=paper_split(patient),
        images=images,
        labels=labels,
    )


@SOURCES.register("acdc")
def acdc(root: Path) -> Source:
    """Open an ACDC folder; the layout is recognised."""
    source: Source = AcdcSlices(root=root, dataset="acdc", classes=CLASSES, preprocessing=READY)
    if not source.cases():
        source = AcdcRelease(root=root, dataset="acdc", classes=CLASSES, preprocessing=MR)
    if not source.cases():
        raise DataError(f"Expected {_LAYOUTS}, but {root} has none of them. Give the folder that holds them.")
    return source


@dataclass(frozen=True, kw_only=True)
class AcdcSlices(SliceSource):
    """TransUNet's h5 files. A case is read from its volume where there is one, otherwise from its slices."""

    def cases(self) -> list[CaseRef]:
        """Find the volumes and the cases that exist as slices only."""
        assert self.root is not None
        volumes = find_folder(self.root, "ACDC_training_volumes")
        slices = find_folder(self.root, "ACDC_training_slices")
        files = group_slices(slices) if slices else {}
        if volumes:
            files |= {path.stem: (path,) for path in sorted(volumes.glob("*.h5")) if _FRAME.fullmatch(path.stem)}
        refs = []
        for case, paths in sorted(files.items()):
            match = _FRAME.fullmatch(case)
            if match is None:
                raise DataError(f"Expected patientPPP_frameFF, but got {paths[0]}. Rename it as in the release.")
            refs.append(_ref(match["patient"], case, None, paths))
        return check_refs(refs, self.root) if refs else []


@dataclass(frozen=True, kw_only=True)
class AcdcRelease(Source):
    """The raw release: two NIfTI frames a patient with their `_gt` label maps, and the pathology in Info.cfg."""

    def cases(self) -> list[CaseRef]:
        """Find the frames; a frame without its label map is a `DataError`."""
        assert self.root is not None
        refs = []
        for path in filter(is_nifti, files_below(self.root)):
            case = stem(path)
            match = _FRAME.fullmatch(case)
            if match is None:
                continue
            label = path.with_name(path.name.replace(case, f"{case}_gt"))
            if not label.is_file():
                raise DataError(f"Expected the label map {label}, but it is missing. Copy it from the release.")
            refs.append(_ref(match["patient"], case, _read_group(path.with_name("Info.cfg")), (path,), (label,)))
        return check_refs(refs, self.root) if refs else []

    def load(self, ref: CaseRef) -> Case:
        """Read a frame and its label map."""
        return load_nifti(ref, self.classes, channels=1)


def _read_group(path: Path) -> str | None:
    """Return `Group` of an Info.cfg (lines such as `Group: DCM`), or None without one."""
    if not path.is_file():
        return None
    lines = (line.partition(":") for line in path.read_text(encoding="utf-8").splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == "Group"), None)
