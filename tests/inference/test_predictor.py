"""Packed batches against one slice at a time, and against SciPy for the released code's resize."""

import numpy as np
import pytest
import torch
from scipy.ndimage import zoom
from torch import nn

from adawac.data.resample import warp
from adawac.errors import ConfigError, RunError
from adawac.inference.predictor import Predictor
from adawac.inference.trained_network import resize_of
from tests.networks.lookup_network import Lookup


@pytest.fixture
def stacks():
    rng = np.random.default_rng(0)
    shapes = [(3, 1, 20, 17), (1, 1, 9, 31), (5, 1, 16, 16), (2, 1, 20, 17)]
    return [rng.uniform(0, 2, shape).astype(np.float32) for shape in shapes]


def one_by_one(network, stack, size, interpolation):
    """Resize there and back with `warp`, a slice at a time."""
    identity = torch.eye(2, 3)[None]
    label_maps = []
    for image in stack:
        x, _ = warp(torch.from_numpy(image[None]), None, identity, size, interpolation)
        classes = network(x).argmax(1)
        _, back = warp(torch.zeros(1, 1, *size), classes, identity, image.shape[1:], "nearest")
        label_maps.append(back[0].numpy())
    return np.stack(label_maps)


@pytest.mark.parametrize("interpolation", ["bilinear", "cubic"])
@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_packing_changes_nothing(stacks, batch_size, interpolation):
    network = Lookup(3)
    label_maps = list(Predictor([network], (14, 11), interpolation, batch_size=batch_size).predict(stacks))
    assert [labels.shape for labels in label_maps] == [(len(stack), *stack.shape[2:]) for stack in stacks]
    for stack, labels in zip(stacks, label_maps, strict=True):
        assert labels.dtype == np.uint8
        with torch.inference_mode():
            np.testing.assert_array_equal(labels, one_by_one(network, stack, (14, 11), interpolation))


@pytest.mark.parametrize("batch_size", [0, -5])
def test_batches_of_nothing_are_refused(batch_size):
    with pytest.raises(ConfigError, match=f"batch_size={batch_size}"):
        Predictor([Lookup(3)], (14, 11), batch_size=batch_size)


def test_the_released_resize_is_scipys(stacks):
    network = Lookup(3)
    for stack in [*stacks[:3], np.random.default_rng(1).uniform(0, 2, (1, 1, 512, 512)).astype(np.float32)]:
        size = (224, 224) if stack.shape[-1] == 512 else (14, 11)
        (labels,) = Predictor([network], size, "released").predict([stack])
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

    labels = Predictor([Lookup(3)], (8, 8), batch_size=4).predict(reading())
    next(labels)
    assert read == [0, 1]


def test_many_classes_and_several_outputs():
    class Many(nn.Module):
        def forward(self, x):
            classes = torch.arange(300.0).view(1, -1, 1, 1)
            return [-((x - classes) ** 2), None]

    image = np.array([0, 299, 256, 7], dtype=np.float32).reshape(1, 1, 2, 2)
    (labels,) = Predictor([Many()], (2, 2)).predict([image])
    np.testing.assert_array_equal(labels[0], image[0, 0])


def test_resize_follows_training():
    assert resize_of({}) == "bilinear"
    assert resize_of({"interpolation": "cubic", "mode": "affine"}) == "cubic"
    assert resize_of({"mode": "released"}) == "released"


def test_probabilities_are_averaged_over_flipped_images():
    torch.manual_seed(0)
    network = nn.Conv2d(1, 4, 3, padding=1)  # knows left from right
    stack = np.random.default_rng(0).normal(size=(2, 1, 9, 9)).astype(np.float32)
    (labels,) = Predictor([network], (9, 9), tta=True).predict([stack])
    x = torch.from_numpy(stack)
    with torch.no_grad():
        mean = sum(network(x.flip(axes)).flip(axes).softmax(1) for axes in ((), (2,), (3,), (2, 3)))
        alone = network(x).argmax(1)
    np.testing.assert_array_equal(labels, mean.argmax(1).numpy())
    assert (labels != alone.numpy()).any()


# -- precision, memory, NaN -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "whole"), [("fp32", True), ("bf16", False)])
def test_fp32_is_not_rounded_to_tf32_whatever_was_switched_on_before(monkeypatch, precision, whole):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    former = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    seen = []

    def note(*_):
        switches = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
        seen.append((*switches, torch.is_autocast_enabled("cpu")))

    network = Lookup(3)
    network.register_forward_pre_hook(note)
    try:
        with torch.autocast("cpu"):  # not the caller's business either
            for _ in Predictor([network], (8, 8), precision=precision).predict([np.zeros((2, 1, 8, 8), np.float32)]):
                assert torch.backends.cudnn.allow_tf32
                assert torch.is_autocast_enabled("cpu")
        assert seen == [(False, "highest", False) if whole else (True, "high", True)]
        assert (torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()) == (True, "high")
    finally:
        torch.set_float32_matmul_precision(former)


def test_an_unknown_precision_is_refused():
    with pytest.raises(ConfigError, match="fp32 or bf16, but got 'fp16'"):
        Predictor([Lookup(3)], (8, 8), precision="fp16")


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="there is a GPU of Apple's")
def test_a_device_that_is_not_here_is_refused_in_a_sentence():
    with pytest.raises(ConfigError, match=r"torch can use, but got 'mps'.*Use auto, cpu") as caught:
        Predictor([Lookup(3)], (8, 8), device="mps")
    assert len(str(caught.value)) < 300


class Greedy(Lookup):
    """Needs more memory than there is for more than `room` slices."""

    def __init__(self, room):
        super().__init__(3)
        self.room, self.sizes = room, []

    def forward(self, x):
        self.sizes.append(len(x))
        if len(x) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().forward(x)


def test_batches_that_do_not_fit_are_halved(stacks, caplog):
    network = Greedy(room=2)
    expected = list(Predictor([Lookup(3)], (14, 11)).predict(stacks))
    for labels, wanted in zip(Predictor([network], (14, 11), batch_size=6).predict(stacks), expected, strict=True):
        np.testing.assert_array_equal(labels, wanted)
    assert network.sizes == [6, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    assert "6 slices do not fit into the device's memory" in caplog.text


def test_a_single_slice_that_does_not_fit_is_an_error(stacks):
    with pytest.raises(RunError, match="memory of cpu, but it did not"):
        list(Predictor([Greedy(room=0)], (14, 11)).predict(stacks))


@pytest.mark.parametrize("tta", [False, True])
@pytest.mark.parametrize("probabilities", [False, True])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_nan_is_noticed_and_the_network_is_named(stacks, tta, probabilities, wrong):
    network = Lookup(3)
    network.bias.data[1] = wrong
    predictor = Predictor([network], (14, 11), name="runs/a, checkpoint last", tta=tta)
    with pytest.raises(
        RunError, match="Expected finite numbers from the network of runs/a, checkpoint last, but got NaN"
    ):
        list(predictor.run(stacks, probabilities=probabilities))
    with pytest.raises(RunError, match="Expected finite numbers from the network"):
        predictor.scores(torch.zeros(1, 1, 14, 11))
