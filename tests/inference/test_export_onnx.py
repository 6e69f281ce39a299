"""ONNX: torch's numbers through onnxruntime, free sides where the network allows, and all that is needed to use it."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from adawac.cli import run as command
from adawac.data.preprocessing import PICTURES, Preprocessing
from adawac.errors import ConfigError, MissingDependencyError, MissingFileError, RunError
from adawac.inference import model_export
from adawac.inference.model_export import export_model
from adawac.inference.trained import load_trained
from tests.inference.made_runs import NAMES, make_run

onnxruntime = pytest.importorskip("onnxruntime")
exporting = pytest.mark.skipif(torch.__version__ < "2.7", reason="ONNX needs torch 2.7")


def compare(path, run, sizes):
    """Compare ONNX with torch for batches of 1 and 3, with images that the exporter has not seen."""
    trained = load_trained(run)
    network, channels = trained.network, len(trained.channels)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for size in sizes:
        for batch in (1, 3):
            images = torch.rand(batch, channels, *size, generator=torch.Generator().manual_seed(batch)) * 2 - 1
            (got,) = session.run(["logits"], {"image": images.numpy()})
            with torch.inference_mode():
                wanted = network(images).numpy()
            np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4 * max(1, np.abs(wanted).max()))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    preparation = Preprocessing(orientation="RAS", window=(0.0, 900.0))
    return make_run(
        tmp_path_factory.mktemp("runs") / "run", "tests.inference.test_export_onnx:plain", (16, 24), preparation
    )


class Plain(nn.Module):
    """Down and up again, for any size that can be halved."""

    def __init__(self, num_classes, in_channels):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(in_channels, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Conv2d(4, num_classes, 1)

    def forward(self, x):
        return nn.functional.interpolate(self.head(self.encoder(x)), scale_factor=2, mode="bilinear")


def plain(num_classes, in_channels, image_size):
    """By the name `tests.inference.test_export_onnx:plain`."""
    return Plain(num_classes, in_channels), "encoder"


@exporting
def test_a_small_network_with_every_side_free(tmp_path, run, capsys):
    path = tmp_path / "model.onnx"
    assert command(["export", str(run), "--out", str(path)]) == 0
    assert "free sides: batch, height, width. Its logits are torch's, within" in capsys.readouterr().out
    compare(path, run, [(16, 24), (32, 16)])
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    session = onnxruntime.InferenceSession(str(path))
    assert session.get_inputs()[0].shape == ["batch", 1, "height", "width"]
    card = json.loads(session.get_modelmeta().custom_metadata_map["adawac"])
    assert card["preprocessing"]["window"] == [0.0, 900.0]
    assert card["preprocessing"]["orientation"] == "RAS"
    assert card["image_size"] == [16, 24]
    assert card["resize"] == "bilinear"
    assert card["channels"] == ["image"]
    assert card["class_names"] == list(NAMES)
    assert card["label_values"] == [[0], [7], [3, 4]]
    assert "argmax" in card["postprocessing"]["classes"]
    assert "nearest" in card["postprocessing"]["resize"]
    with pytest.raises(ConfigError, match="Give `overwrite=True`"):
        export_model(run, path)


@exporting
def test_a_network_for_pictures_in_colour(tmp_path):
    colours = ("red", "green", "blue")
    run = make_run(tmp_path / "run", "tests.inference.test_export_onnx:plain", (16, 24), PICTURES, channels=colours)
    made = export_model(run, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(made.path))
    assert session.get_inputs()[0].shape == ["batch", 3, "height", "width"]
    card = json.loads(session.get_modelmeta().custom_metadata_map["adawac"])
    assert card["channels"] == list(colours)
    assert card["input"].startswith("red, green and blue of a picture as shares")
    compare(made.path, run, [(16, 24), (32, 16)])


class Fixed(nn.Module):
    """A network that takes one size only, and gives its output at two resolutions."""

    def __init__(self, num_classes):
        super().__init__()
        self.encoder = nn.Conv2d(1, num_classes, 1)
        self.offsets = nn.Parameter(torch.rand(1, num_classes, 8, 8))

    def forward(self, x):
        logits = self.encoder(x) + self.offsets
        return [logits, logits[:, :, ::2, ::2]]


def fixed(num_classes, in_channels, image_size):
    """By the name `tests.inference.test_export_onnx:fixed`."""
    return Fixed(num_classes), "encoder"


@exporting
def test_a_network_of_one_size_says_why(tmp_path, capsys):
    run = make_run(tmp_path / "run", "tests.inference.test_export_onnx:fixed", (8, 8))
    path = tmp_path / "model.onnx"
    assert command(["export", str(run), "--out", str(path)]) == 0
    out = capsys.readouterr().out
    assert "Height and width are fixed, as other sizes do not work: " in out
    assert "free sides: batch. " in out
    session = onnxruntime.InferenceSession(str(path))
    assert session.get_inputs()[0].shape == ["batch", 1, 8, 8]
    network = load_trained(run).network
    images = torch.rand(3, 1, 8, 8)
    (got,) = session.run(None, {"image": images.numpy()})
    np.testing.assert_allclose(got, network(images)[0].detach().numpy(), atol=1e-4)


class Unsteady(Fixed):
    """A network whose export cannot be right: torch draws what ONNX has as a constant, or draws anew."""

    def forward(self, x):
        return self.encoder(x) + torch.rand(1)


def unsteady(num_classes, in_channels, image_size):
    """By the name `tests.inference.test_export_onnx:unsteady`."""
    return Unsteady(num_classes), "encoder"


@exporting
@pytest.mark.slow
def test_a_network_that_draws_is_refused(tmp_path, capsys):
    run = make_run(tmp_path / "run", "tests.inference.test_export_onnx:unsteady", (8, 8))
    assert command(["export", str(run), "--out", str(tmp_path / "model.onnx")]) == 2
    assert "Expected ONNX to give torch's logits within 0.0001, but they differ by" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@exporting
def test_what_is_not_torchs_is_not_written(tmp_path, run, monkeypatch):
    class Program:
        model = SimpleNamespace(metadata_props={})

        def save(self, path, external_data):
            path.write_bytes(b"something else")

    monkeypatch.setattr(model_export.torch.onnx, "export", lambda *_, **__: Program())
    monkeypatch.setattr(model_export, "_differences", lambda *_: iter([1e-6, 2e-4]))
    with pytest.raises(RunError, match=r"torch's logits within 0\.0001, but they differ by 0\.0002"):
        export_model(run, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@exporting
def test_what_cannot_be_exported_is_said(tmp_path, run, monkeypatch):
    def fail(*_, **__):
        raise ValueError("no such operator")

    monkeypatch.setattr(model_export.torch.onnx, "export", fail)
    with pytest.raises(RunError, match=r"cannot \(ValueError: no such operator\). Export a model folder instead"):
        export_model(run, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@exporting
@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_library_is_named_with_its_extra(tmp_path, run, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingDependencyError, match=rf"{missing}.*adawac\[export\]"):
        export_model(run, tmp_path / "model.onnx")


def test_onnx_alone_needs_a_newer_torch(tmp_path, run, monkeypatch, capsys):
    if torch.__version__ >= "2.7":
        monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.6.0"))
    assert command(["export", str(run), "--out", str(tmp_path / "model.onnx")]) == 2
    message = capsys.readouterr().err
    assert f"Expected torch 2.7 or newer to write {tmp_path / 'model.onnx'}, but got {torch.__version__}" in message
    assert "Run: pip install 'torch>=2.7' 'torchvision>=0.22', or export a model folder instead" in message
    assert not list(tmp_path.iterdir())
    assert command(["export", str(run), "--out", str(tmp_path / "model")]) == 0
    assert (tmp_path / "model" / "model.json").is_file()


def test_the_folder_needs_no_onnx(tmp_path, run, monkeypatch):
    for name in ("onnx", "onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)
    export_model(run, tmp_path / "model")
    assert (tmp_path / "model" / "model.json").is_file()


@exporting
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "options", "free"),
    [
        ("unet", {}, True),
        ("transunet-small", {}, False),
        ("monai:BasicUNet", {"features": [4, 4, 8, 8, 16, 4]}, True),
    ],
)
def test_networks_of_every_family(tmp_path, model, options, free):
    run = make_run(tmp_path / "run", model, (64, 64), options=options)
    made = export_model(run, tmp_path / "model.onnx")
    assert made.difference <= 1e-4
    assert ("height" in made.dynamic) == free
    assert bool(made.reason) == (not free)
    compare(made.path, run, [(64, 64), (96, 128)] if free else [(64, 64)])


@exporting
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder in which nobody can make files")
def test_a_folder_that_cannot_be_written_to_is_no_fault_of_the_network(run):
    with pytest.raises(ConfigError, match=r"Expected to write /proc/model\.onnx"):
        export_model(run, "/proc/model.onnx")


@exporting
def test_a_full_disk_is_no_fault_of_the_network(tmp_path, run, monkeypatch):
    def save(path, **_):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    model = SimpleNamespace(metadata_props={})
    monkeypatch.setattr("torch.onnx.export", lambda *_, **__: SimpleNamespace(model=model, save=save))
    with pytest.raises(
        ConfigError, match=r"Expected to write .*model\.onnx, but got: No space left on device\. Make room"
    ):
        export_model(run, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_predict_says_that_an_onnx_file_is_for_other_programs(tmp_path):
    """It is what `adawac export` had as --out, so that asking for that would lead nowhere."""
    (tmp_path / "model.onnx").touch()
    with pytest.raises(MissingFileError, match=r"model\.onnx is a network for other programs.*--out model, and give"):
        load_trained(tmp_path / "model.onnx")
