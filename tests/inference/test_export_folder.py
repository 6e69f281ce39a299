"""The model folder: complete, checked, and harmless."""

import json
import shutil
import sys

import nibabel as nib
import numpy as np
import pytest

from adawac.cli import run as command
from adawac.config import ModelConfig
from adawac.data.preprocessing import Preprocessing
from adawac.errors import AdawacError, ConfigError, MissingFileError, RunError
from adawac.inference.model_export import export_model
from adawac.inference.prediction import predict
from adawac.inference.trained import load_trained
from adawac.inference.trained_network import check_harmless, seal
from adawac.runs import save_checkpoint
from tests.inference.made_runs import NAMES, make_run, noise, save

NETWORK = "smp:Unet/tu-mobilenetv3_small_050"
SMALL = {"encoder_depth": 3, "decoder_channels": [8, 8, 8]}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    preparation = Preprocessing(orientation="RAS", axis=1, window=(0.0, 900.0))
    return make_run(
        tmp_path_factory.mktemp("runs") / "run",
        NETWORK,
        (16, 16),
        preparation,
        checkpoints=("last", "best"),
        views={"interpolation": "cubic"},
        options=SMALL,
    )


@pytest.fixture(scope="module")
def exported(tmp_path_factory, run):
    return export_model(run, tmp_path_factory.mktemp("models") / "model").path


@pytest.fixture
def model(tmp_path, exported):
    return shutil.copytree(exported, tmp_path / "model")


def rewrite(folder, /, **changes):
    """Change a description as somebody would who knows how it is sealed."""
    card = json.loads((folder / "model.json").read_text()) | changes
    card = {key: value for key, value in card.items() if key not in ("weights_sha256", "description_sha256")}
    (folder / "model.json").write_text(json.dumps(seal(card, folder / "weights.safetensors")))


def test_the_folder_is_all_that_prediction_needs(tmp_path, run):
    copy = shutil.copytree(run, tmp_path / "copy")
    scan = save(tmp_path / "scan.nii.gz", noise())
    (before,) = predict(copy, scan, tmp_path / "before", checkpoint="best", probabilities=True, device="cpu")
    export_model(copy, tmp_path / "model", checkpoint="best")
    shutil.rmtree(copy)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.json", "weights.safetensors"]
    moved = shutil.move(tmp_path / "model", tmp_path / "elsewhere")
    (after,) = predict(moved, scan, tmp_path / "after", probabilities=True, device="cpu")
    for file, other in zip(before.files, after.files, strict=True):
        if file.name.endswith(".nii.gz"):
            assert file.read_bytes() == other.read_bytes()
    assert len(np.unique(np.asarray(nib.load(before.labels).dataobj))) > 1


def test_everything_about_the_network_is_kept(model, run):
    trained, other = load_trained(run), load_trained(model)
    names = ("faithful", "image_size", "resize", "class_names", "channels", "label_values", "preprocessing", "dataset")
    for name in (*names, "checkpoint"):
        assert getattr(trained, name) == getattr(other, name), name
    assert other.class_names == NAMES
    assert other.resize == "cubic"
    assert not other.network.training
    for key, tensor in trained.network.state_dict().items():
        assert tensor.equal(other.network.state_dict()[key]), key


def test_a_model_folder_can_be_exported_again(tmp_path, model):
    export_model(model, tmp_path / "again")
    assert (tmp_path / "again" / "model.json").read_bytes() == (model / "model.json").read_bytes()


def test_nothing_of_the_user_is_in_it(run, model):
    assert str(run.parent).encode() not in (model / "model.json").read_bytes()


@pytest.mark.parametrize("name", ["model.json", "weights.safetensors"])
def test_a_missing_file(model, name):
    (model / name).unlink()
    with pytest.raises(MissingFileError, match=name):
        load_trained(model)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.99])
def test_altered_weights(model, share):
    weights = model / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[int(share * len(data))] ^= 1
    weights.write_bytes(data)
    with pytest.raises(RunError, match=r"weights\.safetensors as it was exported, but it was changed"):
        load_trained(model)


def test_weights_of_another_network_with_a_digest_that_fits(model):
    tensors = dict(load_trained(model).network.state_dict())
    tensors.pop(next(iter(tensors)))
    save_checkpoint(model / "weights.safetensors", tensors, {})
    rewrite(model)
    with pytest.raises(RunError, match="Expected weights of this network"):
        load_trained(model)


@pytest.mark.parametrize("change", [("liver", "spleen"), ("900.0", "90.0"), ('"cubic"', '"bilinear"')])
def test_an_altered_description(model, change):
    path = model / "model.json"
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change))
    with pytest.raises(RunError, match=r"model\.json as it was exported, but it was changed"):
        load_trained(model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 99}, "format version 2 or older, but .* has 99. Upgrade adawac"),
        ({"format_version": "1"}, "has '1'"),
        ({"image_size": [0, 16]}, "image_size: expected a height and a width"),
        ({"image_size": "wide"}, "image_size: expected a whole number for both, or a list of 2"),
        ({"class_names": ["background"]}, "class_names: expected a channel and two classes"),
        ({"label_values": [[0], [1]]}, "label_values: expected values for 3 classes"),
        ({"label_values": [[0], [1], []]}, "label_values: expected values for 3 classes"),
        ({"resize": "sinc"}, "resize: expected one of bilinear, cubic, released"),
        ({"preprocessing": {"axis": 7}}, "preprocessing: Expected `axis` to be 0, 1 or 2"),
        ({"preprocessing": {"spacing": 3}}, "preprocessing: "),
        ({"preprocessing": {"windows": [0, 1]}}, "preprocessing: Expected a preprocessing option, but got 'windows'"),
        ({"extra": 1}, "extra: unknown key"),
        ({"model": "unet"}, "model: expected settings"),
    ],
)
def test_wrong_fields(model, changes, message):
    rewrite(model, **changes)
    with pytest.raises(AdawacError, match=message):
        load_trained(model)


def test_a_field_that_is_missing_and_no_json(model):
    path = model / "model.json"
    card = json.loads(path.read_text())
    del card["channels"], card["description_sha256"], card["weights_sha256"]
    path.write_text(json.dumps(seal(card, model / "weights.safetensors")))
    with pytest.raises(ConfigError, match="channels: is missing"):
        load_trained(model)
    for text in ("{", "[]", "\xff"):
        path.write_text(text, encoding="latin-1")
        with pytest.raises(RunError, match="Copy the folder again"):
            load_trained(model)


HOSTILE = {
    "a factory": {"name": "hostile_code:factory"},
    "the standard library": {"name": "subprocess:check_output", "options": {"args": "touch pwned", "shell": True}},
    "another of MONAI's": {"name": "monai:CellSamWrapper"},
    "a timm hub": {"name": "timm:hf-hub:someone/model"},
    "weights by address": {"name": "monai:UNet", "options": {"pretrained_url": "http://x"}},
    "a download": {"name": "monai:FlexibleUNet", "options": {"backbone": "resnet34", "pretrained": True}},
    "a pickle": {"name": "smp:Unet/tu-resnet18", "options": {"checkpoint_path": "evil.pt"}},
    "a path": {"name": "monai:UNet", "options": {"norm": ["GROUP", {"name": "../evil.pt"}]}},
    "a nested overlay": {"name": "smp:Unet/tu-resnet18", "options": {"pretrained_cfg_overlay": {"file": "evil.pt"}}},
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_description_imports_nothing(tmp_path, model, attack, monkeypatch):
    (tmp_path / "hostile_code.py").write_text("from pathlib import Path\nPath('pwned').touch()\ndef factory(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    rewrite(model, model={"pretrained": None, "tap": None, "options": {}, **HOSTILE[attack]})
    before = set(sys.modules)
    with pytest.raises(RunError, match=r"Nothing of it was imported.*`trust_code=True`"):
        load_trained(model)
    assert set(sys.modules) - before == set()
    assert not (tmp_path / "pwned").exists()


def test_harmless_options_pass():
    check_harmless(ModelConfig(name="unet", options={"decoder_attention_type": "scse"}), "here")
    check_harmless(ModelConfig(name="monai:UNet", options={"norm": ["GROUP", {"num_groups": 2}]}), "here")
    check_harmless(ModelConfig(name="monai:SwinUNETR", options={"use_checkpoint": True, "drop_path_rate": 0.1}), "here")
    check_harmless(ModelConfig(name="transunet", options={"pretrained": False}), "here")


def test_code_that_is_trusted_is_imported(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    scan = save(tmp_path / "scan.nii.gz", noise())
    assert command(["export", str(run), "--out", str(tmp_path / "model")]) == 0
    assert capsys.readouterr().out.endswith("SCAN --out FOLDER --trust-code\n")
    words = ["predict", str(tmp_path / "model"), str(scan), "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert command(words) == 2
    assert (
        "names 'tests.networks.threshold_network:threshold', which would be imported and run" in capsys.readouterr().err
    )
    assert command([*words, "--trust-code"]) == 0


def test_what_is_there_is_not_replaced(tmp_path, run, model):
    with pytest.raises(ConfigError, match="Give `overwrite=True`, or another `out`"):
        export_model(run, model)
    before = (model / "model.json").read_bytes()
    export_model(run, model, checkpoint="best", overwrite=True)
    assert (model / "model.json").read_bytes() != before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="mine is something else"):
        export_model(run, tmp_path / "mine", overwrite=True)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is something else"):
        export_model(run, tmp_path / "file", overwrite=True)
    with pytest.raises(ConfigError, match=r"Expected to write .*Not a directory"):
        export_model(run, tmp_path / "file" / "model")
    with pytest.raises(RunError, match="the only one in"):
        load_trained(model, "last")


def test_json_of_a_folder(tmp_path, run, capsys):
    assert command(["export", str(run), "--out", str(tmp_path / "model"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {
        "path": str(tmp_path / "model"),
        "format": "folder",
        "dynamic": [],
        "reason": "",
        "difference": 0.0,
        "trust_code": False,
    }


def test_export_as_a_user_types_it(tmp_path, run, capsys):
    assert command(["export", str(run), "--out", str(tmp_path / "model")]) == 0
    assert capsys.readouterr().out.endswith(f"use it with adawac predict {tmp_path / 'model'} SCAN --out FOLDER\n")
    assert command(["export", str(run), "--out", str(tmp_path / "my model")]) == 0
    assert f"use it with adawac predict '{tmp_path / 'my model'}' SCAN" in capsys.readouterr().out
    assert command(["export", str(run), "--out", str(tmp_path / "model")]) == 2
    assert "Give --overwrite" in capsys.readouterr().err
    assert command(["export", str(tmp_path / "absent"), "--out", str(tmp_path / "other")]) == 2


def test_a_folder_of_the_first_format_is_read(model):
    card = json.loads((model / "model.json").read_text())
    assert (card.pop("orientation"), card.pop("modality")) == (None, None)
    for digest in ("weights_sha256", "description_sha256"):
        del card[digest]
    (model / "model.json").write_text(json.dumps(seal(card | {"format_version": 1}, model / "weights.safetensors")))
    assert load_trained(model).orientation is None
