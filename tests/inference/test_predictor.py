"""Packed batches against one slice at a time, and against SciPy for the released code's resize."""

import numpy as np
import pytest
import torch
from scipy.ndimage import zoom
from torch import nn

from adawac.data.resample import warp
from adawac.errors import ConfigError
from adawac.inference.predictor import resize_of, segment, segment_stacks
from tests.networks.lookup_network import Lookup


@pytest.fixture
def stacks():
    rng = np.random.default_rng(0)
    shapes = [(3, 1, 20, 17), (1, 1, 9, 31), (5, 1, 16, 16), (2, 1, 20, 17)]
    return [rng.uniform(0, 2, shape).astype(np.float32) for shape in shapes]


def one_by_one(network, stack, size, interpolation):
    """Resize there and back with `warp`, a slice at a time."""
    identity = torch.eye(2, 3)[None]
    found = []
    for image in stack:
        x, _ = warp(torch.from_numpy(image[None]), None, identity, size, interpolation)
        classes = network(x).argmax(1)
        _, back = warp(torch.zeros(1, 1, *size), classes, identity, image.shape[1:], "nearest")
        found.append(back[0].numpy())
    return np.stack(found)


@pytest.mark.parametrize("interpolation", ["bilinear", "cubic"])
@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_packing_changes_nothing(stacks, batch_size, interpolation):
    network = Lookup(3)
    found = list(segment_stacks(network, stacks, (14, 11), batch_size=batch_size, resize=interpolation))
    assert [one.shape for one in found] == [(len(stack), *stack.shape[2:]) for stack in stacks]
    for stack, labels in zip(stacks, found, strict=True):
        assert labels.dtype == np.uint8
        with torch.inference_mode():
            np.testing.assert_array_equal(labels, one_by_one(network, stack, (14, 11), interpolation))


@pytest.mark.parametrize("batch_size", [0, -5])
def test_batches_of_nothing_are_refused(stacks, batch_size):
    with pytest.raises(ConfigError, match=f"batch_size={batch_size}"):
        next(segment_stacks(Lookup(3), stacks, (14, 11), batch_size=batch_size))


def test_the_released_resize_is_scipys(stacks):
    network = Lookup(3)
    for stack in [*stacks[:3], np.random.default_rng(1).uniform(0, 2, (1, 1, 512, 512)).astype(np.float32)]:
        size = (224, 224) if stack.shape[-1] == 512 else (14, 11)
        labels = segment(network, stack, size, resize="released")
        for image, found in zip(stack, labels, strict=True):
            height, width = image.shape[1:]
            x = zoom(image[0], (size[0] / height, size[1] / width), order=3)
            with torch.inference_mode():
                classes = network(torch.from_numpy(x)[None, None]).argmax(1)[0].numpy()
            expected = zoom(classes, (height / size[0], width / size[1]), order=0)
            assert np.mean(found != expected) < 1e-4  # SciPy's spline in float32, at a tie between classes


def test_stacks_are_read_when_they_are_needed(stacks):
    read = []

    def reading():
        for number, stack in enumerate(stacks):
            read.append(number)
            yield stack

    labels = segment_stacks(Lookup(3), reading(), (8, 8), batch_size=4)
    next(labels)
    assert read == [0, 1]


def test_many_classes_and_several_outputs():
    class Many(nn.Module):
        def forward(self, x):
            classes = torch.arange(300.0).view(1, -1, 1, 1)
            return [-((x - classes) ** 2), None]

    image = np.array([0, 299, 256, 7], dtype=np.float32).reshape(1, 1, 2, 2)
    np.testing.assert_array_equal(segment(Many(), image, (2, 2))[0], image[0, 0])


def test_resize_follows_training():
    assert resize_of({}) == "bilinear"
    assert resize_of({"interpolation": "cubic", "mode": "affine"}) == "cubic"
    assert resize_of({"mode": "released"}) == "released"
