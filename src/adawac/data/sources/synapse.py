"""Synapse / BTCV: 30 abdominal CTs, in TransUNet's npz and h5 layout or as released (NIfTI, 13 organs)."""

import re
from dataclasses import dataclass
from pathlib import Path

from adawac.data.cases import Case, CaseRef
from adawac.data.preprocessing import CT, READY
from adawac.data.sources.file_search import files_below
from adawac.data.sources.nifti import load_nifti
from adawac.data.sources.source import SOURCES, Classes, Source, check_refs, number_in
from adawac.data.sources.transunet_layout import SliceSource, find_folder, group_slices
from adawac.errors import DataError

_ORGANS = ("aorta", "gallbladder", "left kidney", "right kidney", "liver", "pancreas", "spleen", "stomach")
#: TransUNet's files: the eight organs as they are trained.
CLASSES: Classes = {"background": (0,), **{name: (value,) for value, name in enumerate(_ORGANS, start=1)}}
#: BTCV's own values of the same organs; the other five count as background.
BTCV_CLASSES: Classes = {
    "background": (0, 5, 9, 10, 12, 13),
    **{name: (value,) for name, value in zip(_ORGANS, (8, 4, 3, 2, 6, 11, 1, 7), strict=True)},
}
TEST_CASES = (1, 2, 3, 4, 8, 22, 25, 29, 32, 35, 36, 38)
_LAYOUTS = "train_npz/caseNNNN_sliceMMM.npz and test_vol_h5/caseNNNN.npy.h5, or imgNNNN.nii.gz with labelNNNN.nii.gz"


def paper_split(case: str) -> str:
    """Return the paper's split of a case called caseNNNN: 12 cases test, all others train."""
    return "test" if number_in(case, "case") in TEST_CASES else "train"


@SOURCES.register("synapse")
def synapse(root: Path) -> Source:
    """Open a Synapse folder; the layout is recognised."""
    source: Source = SynapseSlices(root=root, dataset="synapse", classes=CLASSES, preprocessing=READY)
    if not source.cases():
        source = SynapseRelease(root=root, dataset="synapse", classes=BTCV_CLASSES, preprocessing=CT)
    if not source.cases():
        raise DataError(f"Expected {_LAYOUTS}, but {root} has neither. Give the folder that holds them.")
    return source


def _ref(case: str, images: tuple[Path, ...], labels: tuple[Path, ...] = ()) -> CaseRef:
    return CaseRef(dataset="synapse", patient=case, id=case, split=paper_split(case), images=images, labels=labels)


@dataclass(frozen=True, kw_only=True)
class SynapseSlices(SliceSource):
    """TransUNet's files: training slices as npz, test volumes as h5."""

    def cases(self) -> list[CaseRef]:
        """Find the training cases, by their slices, and the test volumes."""
        assert self.root is not None
        train, test = find_folder(self.root, "train_npz"), find_folder(self.root, "test_vol_h5")
        refs = [_ref(case, paths) for case, paths in (group_slices(train) if train else {}).items()]
        volumes = sorted(test.glob("case*.h5")) if test else []
        refs += [_ref(path.name.removesuffix(".h5").removesuffix(".npy"), (path,)) for path in volumes]
        return check_refs(sorted(refs, key=lambda ref: ref.id), self.root) if refs else []


@dataclass(frozen=True, kw_only=True)
class SynapseRelease(Source):
    """BTCV as released: imgNNNN.nii.gz and labelNNNN.nii.gz, in one folder or in `img` and `label`."""

    def cases(self) -> list[CaseRef]:
        """Find the pairs; a scan without its label map is a `DataError`."""
        assert self.root is not None
        images = _by_number(self.root, "img")
        labels = _by_number(self.root, "label")
        if not labels:
            return []
        missing = sorted(set(images) - set(labels))
        if missing:
            raise DataError(
                f"Expected a label map label{missing[0]}.nii.gz for {images[missing[0]]}, but it is missing "
                f"({len(missing)} such scans). Add it, or give the folder RawData/Training alone."
            )
        refs = [_ref(f"case{number}", (images[number],), (labels[number],)) for number in sorted(images)]
        return check_refs(refs, self.root) if refs else []

    def load(self, ref: CaseRef) -> Case:
        """Read a scan and its label map, 13 organs to 8."""
        return load_nifti(ref, self.classes, channels=1)


def _by_number(root: Path, prefix: str) -> dict[str, Path]:
    pattern = re.compile(rf"{prefix}(?P<number>\d{{4}})\.nii(\.gz)?")
    files: dict[str, Path] = {}
    for path in files_below(root):
        if match := pattern.fullmatch(path.name):
            other = files.setdefault(match["number"], path)
            if other is not path:
                raise DataError(
                    f"Expected one file per scan, but {other} and {path} are both number {match['number']}. "
                    "Remove the copy."
                )
    return files
