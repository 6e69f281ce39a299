"""Folders of small scans in the layouts that people have, for the tests."""

import gzip
import json
from pathlib import Path

import h5py
import nibabel as nib
import numpy as np

# Synapse's training cases: number → (slices, first and last slice with foreground).
SYNAPSE = {
    5: (117, 23, 116), 6: (131, 67, 130), 7: (163, 68, 162), 9: (149, 19, 148), 10: (148, 62, 147), 21: (143, 75, 142),
    23: (96, 45, 95), 24: (124, 62, 123), 26: (131, 46, 115), 27: (88, 39, 87), 28: (89, 36, 88), 30: (153, 79, 152),
    31: (93, 6, 92), 33: (104, 49, 103), 34: (98, 47, 97), 37: (99, 54, 98), 39: (90, 46, 89), 40: (195, 68, 169),
}  # fmt: skip
SYNAPSE_TEST = (1, 2, 3, 4, 8, 22, 25, 29, 32, 35, 36, 38)


def rotation(degrees, axis):
    """A rotation about a voxel axis, as a 3 × 3 matrix."""
    c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    i, j = [k for k in range(3) if k != axis]
    matrix = np.eye(3)
    matrix[i, i], matrix[i, j], matrix[j, i], matrix[j, j] = c, -s, s, c
    return matrix


def affine_of(matrix, origin=(-11.5, 7.25, 33.0)):
    """A NIfTI affine, rounded as the file format rounds it."""
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = matrix, origin
    return affine.astype(np.float32).astype(np.float64)


AFFINES = {
    "plain": affine_of(np.diag([1.0, 1.0, 1.0])),
    "anisotropic": affine_of(np.diag([0.7, 0.9, 5.0])),
    "flipped": affine_of(np.diag([-1.5, -1.5, 10.0])),
    "permuted": affine_of(np.array([[0, 0, 3.0], [-0.8, 0, 0], [0, 0.9, 0]])),
    "oblique": affine_of(rotation(17, 0) @ rotation(-8, 1) @ rotation(31, 2) @ np.diag([0.8, 1.1, 4.0])),
    "oblique and flipped": affine_of(rotation(23, 1) @ rotation(5, 2) @ np.diag([-0.8, 1.1, -4.0])),
}


def scan(shape=(12, 10, 6), classes=3, seed=0):
    """An image with int16 intensities and a label whose first and last slices are empty."""
    generator = np.random.default_rng(seed)
    label = generator.integers(0, classes, shape).astype(np.uint8)
    label[..., 0] = label[..., -1] = 0
    return generator.integers(-200, 400, shape).astype(np.int16), label


def write_nifti(path, array, affine=None):
    """Write an array as NIfTI."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(array, np.eye(4) if affine is None else affine, dtype=array.dtype), path)
    return path


def flip_bit(path):
    """Change a voxel of a .nii.gz file: it decompresses as before, but not to what was compressed."""
    packed = bytearray(gzip.compress(gzip.decompress(path.read_bytes()), compresslevel=0))
    packed[-40] ^= 1
    path.write_bytes(packed)
    return path


def write_h5(path, image, label):
    """Write TransUNet's kind of HDF5 file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.create_dataset("image", data=image, compression="gzip")
        file.create_dataset("label", data=label, compression="gzip")
    return path


def make_nnunet(root, cases=3, classes=3, affine=None, channels=1, labels=None, names=None, shape=(12, 10, 6)):
    """Write nnU-Net's layout; cases are called case_00, case_01 and so on."""
    root = Path(root)
    for number in range(cases):
        name = names[number] if names else f"case_{number:02d}"
        for channel in range(channels):
            image, label = scan(shape, classes, seed=10 * number + channel)
            write_nifti(root / "imagesTr" / f"{name}_{channel:04d}.nii.gz", image, affine)
        write_nifti(root / "labelsTr" / f"{name}.nii.gz", label, affine)
    description = {
        "channel_names": {str(channel): "MRI" for channel in range(channels)},
        "labels": labels or {"background": 0, **{f"organ {k}": k for k in range(1, classes)}},
        "numTraining": cases,
        "file_ending": ".nii.gz",
        "name": "Small",
    }
    (root / "dataset.json").write_text(json.dumps(description))
    return root


def foreground(count, first, last, value, shape=(4, 5)):
    """A label (slices, H, W) with foreground from slice `first` to slice `last`."""
    label = np.zeros((count, *shape), dtype=np.uint8)
    label[first : last + 1, 1:3, 1:3] = value
    return label


def make_synapse(root):
    """Write TransUNet's Synapse layout with the release's case numbers and slice counts."""
    root = Path(root)
    (root / "train_npz").mkdir(parents=True)
    for number, (count, first, last) in SYNAPSE.items():
        label = foreground(count, first, last, 5).astype(np.float32)
        image = np.random.default_rng(number).random(label.shape, dtype=np.float32)
        for k in range(count):
            np.savez(root / "train_npz" / f"case{number:04d}_slice{k:03d}.npz", image=image[k], label=label[k])
    for number in SYNAPSE_TEST:
        label = foreground(5, 1, 3, 8)
        write_h5(root / "test_vol_h5" / f"case{number:04d}.npy.h5", label.astype(np.float32) / 8, label)
    return root


def make_btcv(root):
    """Write BTCV's release with the same numbers; slices lie along the last axis, the liver has value 6."""
    root = Path(root)
    affine = np.diag([-0.8, 0.8, 3.0, 1.0])
    counts = SYNAPSE | {number: (5, 1, 3) for number in SYNAPSE_TEST}
    for number, (count, first, last) in counts.items():
        label = np.moveaxis(foreground(count, first, last, 6), 0, 2)
        label[0, 0, :] = 13  # an organ that the paper leaves out
        image = np.random.default_rng(number).integers(-1000, 1000, label.shape).astype(np.int16)
        write_nifti(root / "img" / f"img{number:04d}.nii.gz", image, affine)
        write_nifti(root / "label" / f"label{number:04d}.nii.gz", label, affine)
    return root


def make_acdc(root, patients=(1, 25, 40), info=True):
    """Write ACDC's raw release for a few patients, two frames each."""
    root = Path(root)
    affine = np.diag([-1.5, -1.5, 10.0, 1.0])
    for patient in patients:
        folder = root / f"patient{patient:03d}"
        for frame in (1, 12):
            image, label = scan((10, 12, 5), 4, seed=patient + frame)
            name = f"patient{patient:03d}_frame{frame:02d}"
            write_nifti(folder / f"{name}.nii.gz", image + 200, affine)
            write_nifti(folder / f"{name}_gt.nii.gz", label, affine)
        write_nifti(folder / f"patient{patient:03d}_4d.nii.gz", np.zeros((4, 4, 3, 2), np.int16))
        if info:
            (folder / "Info.cfg").write_text("ED: 1\nES: 12\nGroup: NOR\nHeight: 170.0\n")
    return root
