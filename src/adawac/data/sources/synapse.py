"""Synapse / BTCV: 30 abdominal CTs, in TransUNet's npz and h5 layout or as released (NIfTI, 13 organs)."""

import re
from pathlib import Path
from typing import Any

from adawac.data.cases import CaseRef
from adawac.data.preprocessing import CT, READY
from adawac.data.sources.file_search import files_below
from adawac.data.sources.nifti import NiftiSource
from adawac.data.sources.source import SOURCES, Classes, Source, check_refs, number_in
from adawac.data.sources.transunet_layout import SliceSource, find_folder, group_slices
from adawac.errors import DataError, LayoutError

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


class SynapseSlices(SliceSource):
    """TransUNet's files: training slices as npz, test volumes as h5."""


class SynapseRelease(NiftiSource):
    """BTCV as released, 13 organs to 8: imgNNNN.nii.gz and labelNNNN.nii.gz, in one folder or in `img` and `label`."""


@SOURCES.register("synapse")
def synapse(root: Path) -> Source:
    """Open a Synapse folder; the layout is recognised."""
    known: dict[str, Any] = {"root": root, "dataset": "synapse", "modality": "CT"}
    if refs := _find_slices(root):
        return SynapseSlices(**known, classes=CLASSES, preprocessing=READY, refs=check_refs(refs, root))
    if refs := _find_release(root):
        return SynapseRelease(**known, classes=BTCV_CLASSES, preprocessing=CT, refs=check_refs(refs, root))
    raise LayoutError(f"Expected {_LAYOUTS}, but {root} has neither. Give the folder that holds them.")


def _find_slices(root: Path) -> list[CaseRef]:
    """Return the training cases, by their slices, and the test volumes."""
    train, test = find_folder(root, "train_npz"), find_folder(root, "test_vol_h5")
    refs = [_ref(case, paths) for case, paths in (group_slices(train) if train else {}).items()]
    volumes = sorted(test.glob("case*.h5")) if test else []
    refs += [_ref(path.name.removesuffix(".h5").removesuffix(".npy"), (path,)) for path in volumes]
    return sorted(refs, key=lambda ref: ref.id)


def _find_release(root: Path) -> list[CaseRef]:
    """Return the pairs; a scan without its label map is a `DataError`."""
    images, labels = _by_number(root, "img"), _by_number(root, "label")
    missing = sorted(set(images) - set(labels))
    if labels and missing:
        raise DataError(
            f"Expected a label map label{missing[0]}.nii.gz for {images[missing[0]]}, but it is missing "
            f"({len(missing)} such scans). Add it, or give the folder RawData/Training alone."
        )
    return [_ref(f"case{number}", (images[number],), (labels[number],)) for number in sorted(images) if labels]


def _ref(case: str, images: tuple[Path, ...], labels: tuple[Path, ...] = ()) -> CaseRef:
    return CaseRef(dataset="synapse", patient=case, id=case, split=paper_split(case), images=images, labels=labels)


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
