"""Runs without training, scans with every kind of geometry, and what a thresholding network makes of them."""

import nibabel as nib
import numpy as np
import torch

from adawac.config import DataConfig, ModelConfig, TrainConfig
from adawac.data.preprocessing import Preprocessing
from adawac.models import build
from adawac.runs import RunWriter
from tests.data.scans import affine_of, rotation

NAMES = ("background", "liver", "left kidney")


def make_run(
    folder,
    model="tests.networks.threshold_network:threshold",
    image_size=(12, 10),
    preprocessing=None,
    classes=NAMES,
    values=((0,), (7,), (3, 4)),
    channels=("image",),
    checkpoints=("last",),
    views=None,
    options=None,
):
    """Write a run folder with the weights that a network is initialised with."""
    config = TrainConfig(
        epochs=1,
        data=DataConfig(image_size=image_size, views=views or {}),
        model=ModelConfig(name=model, options=options or {}),
    )
    preprocessing = preprocessing or Preprocessing(window=(0.0, 1000.0))
    with RunWriter(folder, config, epochs=1) as run:
        run.write_data(
            {
                "dataset": "small",
                "class_names": list(classes),
                "channels": list(channels),
                "label_values": [list(group) for group in values],
                "preprocessing": preprocessing.to_dict(),
                "network": {"faithful": None},
            }
        )
        for seed, name in enumerate(checkpoints):
            network, _ = build(model, len(classes), len(channels), image_size, seed=seed, **options or {})
            tensors = {f"network.{key}": value for key, value in network.state_dict().items()}
            run.save_checkpoint(name, tensors, {"epoch": 1})
    return folder


def trained_on(store, folder, model="tests.networks.threshold_network:texture", **options):
    """A run that could have been trained on a store."""
    return make_run(
        folder,
        model,
        image_size=(16, 16),
        preprocessing=store.preprocessing,
        classes=store.class_names,
        values=store.info["label_values"],
        channels=store.channels,
        **options,
    )


AFFINES = {
    "anisotropic": affine_of(np.diag([0.7, 0.9, 5.0])),
    "flipped": affine_of(np.diag([-1.5, -1.5, 10.0])),
    "permuted": affine_of(np.array([[0, 0, 3.0], [-0.8, 0, 0], [0, 0.9, 0]])),
    "oblique": affine_of(rotation(17, 0) @ rotation(-8, 1) @ rotation(31, 2) @ np.diag([0.8, 1.1, 4.0])),
    "oblique and flipped": affine_of(rotation(23, 1) @ rotation(5, 2) @ np.diag([-0.8, 1.1, -4.0])),
}


def noise(shape=(12, 10, 6), seed=0):
    """Intensities from 0 to 1000, both of them taken."""
    image = np.random.default_rng(seed).integers(0, 1001, shape).astype(np.int16)
    image.flat[:2] = 0, 1000
    return image


def save(path, image, affine=None, codes=(1, 2)):
    """Write NIfTI with these qform and sform codes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = nib.Nifti1Image(image, AFFINES["oblique"] if affine is None else affine, dtype=image.dtype)
    for setter, code in zip((made.set_qform, made.set_sform), codes, strict=True):
        setter(made.affine, code)
    made.header.set_xyzt_units("mm", "sec")
    made.header["descrip"] = b"DOE^JANE"
    nib.save(made, path)
    return path


def thresholded(image, classes=3, low=0.0, high=1000.0):
    """The class indices that `tests.networks.threshold_network:threshold` gives for a window."""
    scaled = np.clip(image.astype(np.float32), low, high)
    scaled = (scaled - scaled.min()) / (np.ptp(scaled) or 1)
    return np.abs(scaled[..., None] - np.linspace(0, 1, classes)).argmin(-1)


def softmax(logits, axis=1):
    """The probabilities, in float64."""
    exponents = np.exp(logits - logits.max(axis=axis, keepdims=True))
    return exponents / exponents.sum(axis=axis, keepdims=True)


def logits_of(trained, slices):
    """A network's output for (P, C, H, W), in float64."""
    with torch.inference_mode():
        return trained.network(torch.from_numpy(np.ascontiguousarray(slices, np.float32))).numpy().astype(np.float64)
