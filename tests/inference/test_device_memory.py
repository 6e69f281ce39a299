"""A device that runs out of memory: batches are halved, and where a single slice does not fit, a message says so.

On a GPU it really does: the process may have no more than a few slices take. On the CPU the network wants an exbibyte.
"""

import contextlib

import nibabel as nib
import numpy as np
import pytest
import torch

from adawac import evaluate, load_trained, predict, prepare
from adawac.cli import run as run_cli
from adawac.errors import RunError
from tests.data.scans import make_nnunet
from tests.inference.made_runs import trained_on
from tests.networks.threshold_network import Threshold

SLICE = 256 << 20
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
    ),
]


class Hungry(Threshold):
    """Takes 256 MiB for each slice; on the CPU an exbibyte, once there are more slices than `room`."""

    room: int | None = None

    def forward(self, x):
        if x.device.type == "cpu":
            if self.room is not None and len(x) > self.room:
                torch.empty(1 << 60, dtype=torch.uint8)
        else:
            torch.empty(len(x) * SLICE, dtype=torch.uint8, device=x.device)
        return super().forward(x)


class Large(Threshold):
    """Has 256 MiB of its own; on the CPU it fits unless `Hungry` has no room."""

    def __init__(self, num_classes):
        super().__init__(num_classes, 50.0)
        self.register_buffer("ballast", torch.empty(SLICE, dtype=torch.uint8), persistent=False)

    def _apply(self, move, recurse=True):
        if Hungry.room == 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 256.00 MiB.")
        return super()._apply(move, recurse)


def hungry(num_classes, in_channels, image_size):
    """By the name `tests.inference.test_device_memory:hungry`."""
    return Hungry(num_classes, 50.0), "encoder"


def large(num_classes, in_channels, image_size):
    """By the name `tests.inference.test_device_memory:large`."""
    return Large(num_classes), "encoder"


@contextlib.contextmanager
def room(device, slices, monkeypatch):
    """Leave a device no more memory than these slices take, and half of one."""
    if device == "cpu":
        with monkeypatch.context() as patch:
            patch.setattr(Hungry, "room", slices)
            yield
        return
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved() + slices * SLICE + SLICE // 2
    torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.get_device_properties(0).total_memory)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


@pytest.fixture
def store(tmp_path):
    make_nnunet(tmp_path / "scans", cases=2, shape=(12, 10, 8))
    return prepare("nifti", tmp_path / "scans", tmp_path / "store", workers=1, progress=False)


@pytest.mark.parametrize("device", DEVICES)
def test_predict_and_evaluate_take_as_many_slices_as_fit(tmp_path, store, device, monkeypatch, caplog):
    run = trained_on(store, tmp_path / "run", "tests.inference.test_device_memory:hungry")
    options = {"device": device, "batch_size": 4}
    whole = [np.asarray(nib.load(done.labels).dataobj) for done in predict(run, tmp_path / "scans", tmp_path / "a")]
    scored = {"data": store.path, "part": "train", "workers": 0, "gallery": 0}
    (expected,) = evaluate(run, **scored)
    with room(device, 2, monkeypatch):
        done = predict(run, tmp_path / "scans", tmp_path / "b", **options)
        assert caplog.text.count("4 slices do not fit into the device's memory: it gets 2") == 1
        (evaluation,) = evaluate(run, **scored, **options)
    assert caplog.text.count("4 slices do not fit into the device's memory: it gets 2") == 2
    for labels, prediction in zip(whole, done, strict=True):
        np.testing.assert_array_equal(np.asarray(nib.load(prediction.labels).dataobj), labels)
    assert evaluation.scores == expected.scores


@pytest.mark.parametrize("device", DEVICES)
def test_a_slice_that_does_not_fit_is_one_message(tmp_path, store, device, monkeypatch, capsys):
    run = trained_on(store, tmp_path / "run", "tests.inference.test_device_memory:hungry")
    words = ["predict", str(run), str(tmp_path / "scans"), "--out", str(tmp_path / "out"), "--device", device]
    message = f"Expected a batch of 1 to fit into the memory of {device}"
    with room(device, 0, monkeypatch):
        with pytest.raises(RunError, match=f"{message}.*Use another device"):
            evaluate(run, data=store.path, part="train", workers=0, gallery=0, device=device)
        assert run_cli(words) == 1
    assert message in capsys.readouterr().err
    assert list((tmp_path / "out").glob("*.nii.gz")) == []
    assert run_cli(words) == 0


@pytest.mark.parametrize("device", DEVICES)
def test_a_network_that_does_not_fit_is_one_message(tmp_path, store, device, monkeypatch, capsys):
    run = trained_on(store, tmp_path / "run", "tests.inference.test_device_memory:large")
    words = ["predict", str(run), str(tmp_path / "scans"), "--out", str(tmp_path / "out"), "--device", device]
    message = f"Expected the network to fit into the memory of {device}"
    with room(device, 0, monkeypatch):
        with pytest.raises(RunError, match=rf"{message}.*out of memory.*another device"):
            load_trained(run, device=device)
        with pytest.raises(RunError, match=message):
            evaluate(run, data=store.path, part="train", workers=0, gallery=0, device=device)
        assert run_cli(words) == 2
    assert message in capsys.readouterr().err
