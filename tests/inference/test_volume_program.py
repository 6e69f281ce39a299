"""A network as one TorchScript program: the numbers are those of prediction, bit for bit."""

import zipfile

import numpy as np
import pytest
import torch

from adawac.data.preprocessing import PreparedGrid, Preprocessing
from adawac.inference.predictor import Predictor, nearest_rows, network_input
from adawac.inference.trained import load_trained
from adawac.inference.volume_program import VolumeProgram, compile_program, save_program
from adawac.lazy import quietly
from tests.inference.made_runs import make_run
from tests.networks.threshold_network import Texture

CPU = torch.device("cpu")
SPACING = (0.8, 1.1, 4.0)
TEXTURE = "tests.networks.threshold_network:texture"


def program(preprocessing=None, size=(16, 12), resize="bilinear", network=None, values=(0, 7, 300)):
    return VolumeProgram(network or torch.nn.Identity(), preprocessing or Preprocessing(), size, resize, values).eval()


def volume(shape=(2, 30, 23, 9), seed=0):
    return (np.random.default_rng(seed).normal(size=shape) * 100).astype(np.float32)


PREPROCESSING = [
    Preprocessing(window=(-100, 200)),
    Preprocessing(window=(-10.0, 20.0), normalisation="range", axis=0),
    Preprocessing(clip_quantile=0.99, axis=1),
    Preprocessing(clip_quantile=0.9, normalisation="z-score"),
    Preprocessing(normalisation="none"),
    Preprocessing(window=(-100, 200), spacing=(1.5, 1.5, 0)),
    Preprocessing(clip_quantile=0.99, spacing=(0.9, 1.3, 3.0), axis=0),
    Preprocessing(normalisation="z-score", spacing=(2, 0.5, 1), axis=1),
    Preprocessing(spacing=(3, 3, 300)),
]


@pytest.mark.parametrize("resize", ["bilinear", "cubic"])
@pytest.mark.parametrize("preprocessing", PREPROCESSING)
def test_label_maps_are_those_of_the_predictor(preprocessing, resize):
    torch.manual_seed(0)
    network, scan = Texture(3, 2).eval(), volume()
    affine = np.diag([*SPACING, 1.0])
    grid = PreparedGrid(preprocessing, scan.shape[1:], SPACING, affine)
    prepared = np.stack([grid.prepare(channel) for channel in preprocessing.scale(scan)])
    slices = preprocessing.cut(prepared, channels=True)
    (labels,) = Predictor([network], (16, 12), resize).predict([slices])
    wanted = np.array([0, 7, 300])[grid.undo(preprocessing.join(labels))]
    with torch.inference_mode():
        got = program(preprocessing, resize=resize, network=network)(
            torch.from_numpy(np.stack([scan, scan])), torch.from_numpy(affine).expand(2, 4, 4)
        )
    assert got.dtype == torch.int16
    assert len(np.unique(wanted)) == 3
    for label_map in got:
        np.testing.assert_array_equal(label_map[0].numpy(), wanted)


@pytest.mark.parametrize("preprocessing", PREPROCESSING[:5])
def test_intensities_are_scaled_as_before_training(preprocessing):
    scan = volume()
    got = torch.stack([program(preprocessing).scaled(channel) for channel in torch.from_numpy(scan)])
    np.testing.assert_array_equal(got.numpy(), preprocessing.scale(scan))


def test_a_constant_channel_becomes_zero():
    scan = np.full((1, 4, 5, 6), 3.0, np.float32)
    got = program(Preprocessing()).scaled(torch.from_numpy(scan[0]))
    np.testing.assert_array_equal(got.numpy(), Preprocessing().scale(scan)[0])


@pytest.mark.parametrize("plane", [(16, 12), (50, 37), (9, 13), (2, 3), (180, 100)])
@pytest.mark.parametrize("resize", ["bilinear", "cubic", "released"])
def test_slices_are_resized_as_for_the_predictor(plane, resize):
    slices = volume((3, 2, *plane))
    small = program(resize=resize)
    wanted, got = network_input([slices], (16, 12), CPU, resize), small.resized(torch.from_numpy(slices))
    if resize == "released":  # a product of matrices, whose order of summation is the library's
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-3)
    else:
        assert torch.equal(got, wanted)
    for old, new in zip((16, 12), plane, strict=True):
        assert small.nearest(old, new).tolist() == nearest_rows(old, new, resize, CPU).tolist()


def test_released_slices_of_512_lose_their_last_row_as_the_released_code_does():
    slices = volume((1, 1, 512, 512))
    got = program(size=(224, 224), resize="released").resized(torch.from_numpy(slices))
    wanted = network_input([slices], (224, 224), CPU, "released")
    assert not got[..., -1, :].any()
    assert not wanted[..., -1, :].any()
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-3)


def test_what_cannot_be_segmented_is_refused():
    scan = torch.from_numpy(volume())[None]
    with pytest.raises(RuntimeError, match="the scan's affine"):
        program(Preprocessing(spacing=(1, 1, 1)))(scan)
    with pytest.raises(RuntimeError, match="finite intensities"):
        program()(scan.masked_fill(scan > 200, torch.nan))

    class Broken(torch.nn.Module):
        def forward(self, x):
            return x * torch.nan

    with pytest.raises(RuntimeError, match="finite numbers from the network"):
        program(network=Broken())(scan)


def test_the_file_holds_no_path_and_no_python_source(tmp_path):
    run = make_run(tmp_path / "run", TEXTURE, (16, 12), Preprocessing(spacing=(1, 1, 2), axis=1))
    trained = load_trained(run)
    save_program(compile_program(trained), tmp_path / "model.ts")
    with zipfile.ZipFile(tmp_path / "model.ts") as archive:
        assert archive.testzip() is None
        content = b"".join(archive.read(name) for name in archive.namelist())
    assert b"volume_program.py" not in content
    assert str(tmp_path).encode() not in content
    with quietly():  # torch.jit.load is deprecated, and what MONAI Label calls
        loaded = torch.jit.load(tmp_path / "model.ts")
    scan = torch.from_numpy(volume((1, 1, 20, 14, 7)))
    affine = torch.diag(torch.tensor([*SPACING, 1.0]))
    wanted = program(trained.preprocessing, (16, 12), network=trained.network, values=(0, 7, 3))(scan, affine)
    assert len(wanted.unique()) > 1
    assert torch.equal(loaded(scan, affine), wanted)
