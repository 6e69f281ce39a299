"""Cases with predictions that a test knows: every outcome of its own, random ones, and some to train on."""

import numpy as np

from tests.networks.lookup_network import DrawnCase


def _volumes():
    """Return empty volumes: a label-sparse slice, two others with a lesion that is always found."""
    label = np.zeros((3, 8, 8), dtype=np.uint8)
    label[1:, 6:8, 6:8] = 2
    return label.copy(), label.copy()


def outcome_cases():
    """Draw an organ that is found, missed, invented (on a label-sparse slice, and elsewhere) or absent."""
    cases = {}
    for name in ("found", "missed", "invented-a", "invented-b", "absent"):
        pred, label = _volumes()
        if name == "found":
            label[1, 1:3, 1:3] = 1
            pred[1, 1:3, 1:4] = 1  # Dice 2·4 / (4 + 6), distances 0 eight times and 1 twice
        if name == "missed":
            label[1, 1:3, 1:3] = 1
        if name == "invented-a":
            pred[0, 0, 0:3] = 1
        if name == "invented-b":
            pred[1, 0, 0:3] = 1
        group = "ill" if name.startswith("invented") else "well"
        cases[name] = DrawnCase(prediction=pred, label=label, patient=f"p-{name}", group=group)
    return cases


def training_cases(count=2, slices=6):
    rng = np.random.default_rng(7)
    cases = {}
    for number in range(count):
        label = rng.integers(0, 3, (slices, 8, 8)).astype(np.uint8)
        label[::3] = 0  # label-sparse
        cases[f"train-{number}"] = DrawnCase(
            prediction=label, label=label, patient=f"t{number}", split="train", group="well"
        )
    return cases


def random_cases(count=5, seed=0):
    """Draw cases of several sizes, two for each patient, with predictions that are the label with noise."""
    rng = np.random.default_rng(seed)
    cases = {}
    for number in range(count):
        shape = (int(rng.integers(3, 9)), int(rng.integers(7, 14)), int(rng.integers(7, 14)))
        coarse = rng.integers(0, 3, (shape[0], 4, 4)).repeat(4, axis=1).repeat(4, axis=2)
        label = coarse[:, : shape[1], : shape[2]].astype(np.uint8)
        label[0] = 0
        noisy = np.where(rng.random(shape) < 0.2, rng.integers(0, 3, shape), label)
        cases[f"case-{number}"] = DrawnCase(
            prediction=noisy, label=label, patient=f"p{number // 2}", group="ab"[number // 2 % 2]
        )
    return cases
