"""The phantom as files, in the layouts that people have: for tests, tutorials and trials of other tools."""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from adawac.data.cases import Case, CaseRef
from adawac.data.phantom.patient import CLASS_NAMES, Patient
from adawac.data.phantom.scanner import make_case, phantom_source
from adawac.data.preparation import prepare
from adawac.data.preprocessing import CT
from adawac.data.store import FORMAT_VERSION, is_store
from adawac.errors import BusyError

log = logging.getLogger(__name__)

#: The Synapse training cases: slices, first and last slice with a label.
SYNAPSE_TRAINING = {
    5: (117, 23, 116), 6: (131, 67, 130), 7: (163, 68, 162), 9: (149, 19, 148), 10: (148, 62, 147), 21: (143, 75, 142),
    23: (96, 45, 95), 24: (124, 62, 123), 26: (131, 46, 115), 27: (88, 39, 87), 28: (89, 36, 88), 30: (153, 79, 152),
    31: (93, 6, 92), 33: (104, 49, 103), 34: (98, 47, 97), 37: (99, 54, 98), 39: (90, 46, 89), 40: (195, 68, 169),
}  # fmt: skip


def write_synapse_layout(
    dest: Path | str,
    *,
    size: int = 32,
    seed: int = 0,
    training: Mapping[int, tuple[int, int, int]] = SYNAPSE_TRAINING,
    test: Iterable[int] = (1, 2),
) -> Path:
    """Write phantom scans as TransUNet's Synapse files: train_npz/caseNNNN_sliceMMM.npz, test_vol_h5/caseNNNN.npy.h5.

    Args:
        dest: The folder.
        size: Pixels along a side of a slice.
        seed: Other seeds are other patients.
        training: Case number → (slices, first and last with a label); the data set's own by default.
        test: Case numbers of the test volumes, of 40 slices each.

    Returns:
        The folder.
    """
    import h5py

    dest = Path(dest)
    train, volumes = dest / "train_npz", dest / "test_vol_h5"
    for folder in (train, volumes):
        folder.mkdir(parents=True, exist_ok=True)
    for number, (count, first, last) in training.items():
        image, label = _normalised(_synapse_case(number, seed, (count, size, size), first, last))
        for row in range(count):
            np.savez(train / f"case{number:04d}_slice{row:03d}.npz", image=image[row], label=label[row])
    for number in test:
        image, label = _normalised(_synapse_case(number, seed, (40, size, size), 12, 39))
        with h5py.File(volumes / f"case{number:04d}.npy.h5", "w") as file:
            file.create_dataset("image", data=image, compression="gzip")
            file.create_dataset("label", data=label, compression="gzip")
    return dest


def _synapse_case(number: int, seed: int, shape: tuple[int, int, int], first: int, last: int) -> Case:
    rng = np.random.default_rng([seed, number])
    name = f"case{number:04d}"
    ref = CaseRef(dataset="synapse", patient=name, id=name)
    return make_case(Patient(rng, "ct"), rng, ref, shape, first, last, planes=1)


def _normalised(case: Case) -> tuple[Any, Any]:
    """Return image and label as TransUNet stores them: windowed, scaled to [0, 1], both float32."""
    assert case.label is not None
    return CT.scale(case.image)[0], case.label.astype(np.float32)


def write_nifti_layout(dest: Path | str, num_patients: int = 4, seed: int = 0, **options: Any) -> Path:
    """Write phantom scans as nnU-Net's raw data: imagesTr/CASE_0000.nii.gz, labelsTr/CASE.nii.gz and dataset.json.

    Args:
        dest: The folder.
        num_patients: How many scans.
        seed: Other seeds are other patients.
        **options: Further options of `adawac.data.phantom.scanner.phantom_source`.

    Returns:
        The folder.
    """
    import nibabel as nib

    dest = Path(dest)
    for folder in ("imagesTr", "labelsTr"):
        (dest / folder).mkdir(parents=True, exist_ok=True)
    source = phantom_source(num_patients, seed, **options)
    for ref in source.cases():
        case = source.load(ref)
        assert case.affine is not None
        assert case.label is not None
        affine = case.affine[:, [2, 1, 0, 3]]  # NIfTI files have the slices last
        nib.save(nib.Nifti1Image(case.image[0].T, affine), dest / "imagesTr" / f"{case.id}_0000.nii.gz")
        nib.save(nib.Nifti1Image(case.label.T, affine), dest / "labelsTr" / f"{case.id}.nii.gz")
    description = {
        "name": source.dataset,
        "channel_names": {"0": source.modality.upper()},
        "labels": {name: value for value, name in enumerate(CLASS_NAMES)},
        "numTraining": num_patients,
        "file_ending": ".nii.gz",
    }
    (dest / "dataset.json").write_text(json.dumps(description, indent=2), encoding="utf-8")
    return dest


def phantom_store(num_patients: int = 16, seed: int = 0, **options: Any) -> Path:
    """Return the folder of a store of the phantom, prepared once into the user's cache.

    The cache is `$XDG_CACHE_HOME/adawac`, by default ~/.cache/adawac. Where several processes ask at once, one of them
    prepares and the others wait.

    Args:
        num_patients: How many scans.
        seed: Other seeds are other patients.
        **options: Further options of `adawac.data.phantom.phantom_source`.
    """
    from adawac import __version__

    source = phantom_source(num_patients, seed, **options)
    content = json.dumps([FORMAT_VERSION, __version__, num_patients, source.options()], default=str)
    name = f"phantom-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "adawac" / name
    while not is_store(folder):
        log.info("Preparing the phantom: %s", folder)
        try:
            prepare(source, None, folder, workers=1, progress=False)
        except BusyError:  # another process is preparing it
            continue
    return folder
