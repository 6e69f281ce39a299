"""NIfTI files by name, and the channels of a scan as nnU-Net numbers them: CASE_0000.nii.gz and so on."""

import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["case_and_channel", "channel_fault", "is_nifti", "stem"]

_ENDINGS = (".nii.gz", ".nii")
_NUMBERED = re.compile(r"(?P<case>.+)_(?P<channel>\d{4})")


def is_nifti(path: Path) -> bool:
    """Say whether a file is called as NIfTI files are."""
    return path.name.lower().endswith(_ENDINGS)


def stem(path: Path) -> str:
    """Return a file's name without .nii or .nii.gz."""
    ending = next((one for one in _ENDINGS if path.name.lower().endswith(one)), "")
    return path.name[: len(path.name) - len(ending)]


def case_and_channel(path: Path) -> tuple[str, str] | None:
    """Return the case and the four digits of its channel, or None for a file that is not called so."""
    match = _NUMBERED.fullmatch(stem(path))
    return (match["case"], match["channel"]) if match else None


def channel_fault(case: str, files: Sequence[Path]) -> str:
    """Return what is wrong with the sorted files of a case: they must be 0000, 0001, … and each once."""
    numbers = [stem(path)[-4:] for path in files]
    copy = next((k for k in range(1, len(files)) if numbers[k] == numbers[k - 1]), None)
    if copy is not None:
        return (
            f"Expected one file for each channel of case {case}, but got {files[copy - 1]} and {files[copy]}. "
            "Remove the copy."
        )
    expected = [f"{number:04d}" for number in range(len(files))]
    if numbers != expected:
        return (
            f"Expected the channels {', '.join(expected)} of case {case}, but {files[0].parent} has "
            f"{', '.join(numbers)}. Add the missing file, or rename these."
        )
    return ""
