"""Scans of any source as nnU-Net's raw data."""

import json
from pathlib import Path

import nibabel as nib
import numpy as np

from adawac.data.sources import Source


def write_raw_data(source: Source, dest: Path) -> dict[str, list[str]] | None:
    """Write the labelled cases of a source as nnU-Net's raw data, slices along the last axis.

    Returns:
        The cases that train and validate, where the source says; test cases validate. Else None.
    """
    for folder in ("imagesTr", "labelsTr"):
        (dest / folder).mkdir(parents=True, exist_ok=True)
    cases: dict[str, list[str]] = {"train": [], "val": []}
    for ref in source.cases():
        case = source.load(ref)
        if case.label is None:
            continue
        axis = source.preprocessing.axis
        spacing = np.append(np.delete(case.spacing, axis), case.spacing[axis])
        affine = np.diag([*spacing, 1.0])
        for channel, image in enumerate(case.image):
            file = nib.Nifti1Image(np.moveaxis(image, axis, -1), affine)
            nib.save(file, dest / "imagesTr" / f"{case.id}_{channel:04d}.nii.gz")
        label = np.moveaxis(case.label, axis, -1).astype(np.uint8)
        nib.save(nib.Nifti1Image(label, affine), dest / "labelsTr" / f"{case.id}.nii.gz")
        cases["val" if ref.split in ("val", "test") else "train"].append(case.id)
    modality = source.modality or "MRI"
    description = {
        "channel_names": {str(number): modality for number in range(len(source.channels))},
        "labels": {name: value for value, name in enumerate(case.class_names)},
        "numTraining": sum(map(len, cases.values())),
        "file_ending": ".nii.gz",
    }
    (dest / "dataset.json").write_text(json.dumps(description, indent=2), encoding="utf-8")
    return cases if all(cases.values()) else None
