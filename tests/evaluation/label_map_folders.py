"""Folders of label maps in every format, with predictions that a test knows."""

from pathlib import Path

import nibabel as nib
import numpy as np
from scipy import ndimage

from tests.data.scans import AFFINES, write_nifti

SHAPE = (17, 14, 9)


def organs(seed=0, shape=SHAPE, classes=3):
    """A truth of smooth organs with an empty slice at each end, and a prediction that is a little off."""
    rng = np.random.default_rng(seed)
    fields = np.stack([ndimage.gaussian_filter(rng.standard_normal(shape), 2) for _ in range(classes)])
    noisy = fields + 0.02 * rng.standard_normal(fields.shape)
    truth, prediction = (part.argmax(axis=0).astype(np.uint8) for part in (fields, noisy))
    truth[..., 0] = truth[..., -1] = 0
    return truth, prediction


def make_folders(root: Path, cases=4, affine=None, **options):
    """Write truth and two folders of predictions, the second a worse one; return them."""
    affine = AFFINES["anisotropic"] if affine is None else affine
    for number in range(cases):
        name = f"patient{number // 2}_frame{number}.nii.gz"
        truth, prediction = organs(number, **options)
        write_nifti(root / "labels" / name, truth, affine)
        write_nifti(root / "good" / name, prediction, affine)
        write_nifti(root / "worse" / name, np.roll(prediction, 1, axis=0), affine)
    return root / "labels", root / "good", root / "worse"


def maps_of(folder: Path):
    """The label maps of a folder by case."""
    return {path.name.removesuffix(".nii.gz"): nib.load(path) for path in sorted(folder.glob("*.nii.gz"))}


def values_of(evaluation):
    """The numbers of an evaluation by case, label and metric."""
    return {(score.case, score.label, score.metric): score.value for score in evaluation.scores}
