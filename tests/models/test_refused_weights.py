"""Files of weights that are refused: damaged, malicious, or for another network."""

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from adawac.errors import MissingFileError
from adawac.models import WeightsError, build, load_weights, to_transunet

TINY = {"embed_dim": 48, "depth": 1, "num_heads": 4, "layers": (1, 1, 1), "width": 0.5}
TINY |= {"bridge": 32, "decoder_channels": (16, 16, 16, 8)}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def files():
    """Good files of each kind, as bytes, for a tiny TransUNet."""
    network, _ = build("transunet", 3, image_size=32, seed=0, **TINY)
    checkpoint, tensors = io.BytesIO(), io.BytesIO()
    torch.save(to_transunet(network.state_dict()), checkpoint)
    np.savez(tensors, **{name: tensor.numpy() for name, tensor in network.state_dict().items()})
    return {".pth": checkpoint.getvalue(), ".npz": tensors.getvalue(), ".safetensors": save(network.state_dict())}


def refused(path, match, **options):
    network, _ = build("transunet", 3, image_size=32, seed=0, **{**TINY, **options})
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(WeightsError, match=match) as caught:
        load_weights(network, path)
    assert same(network.state_dict(), before), "a refused file changes nothing"
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("kind", [".pth", ".npz", ".safetensors"])
@pytest.mark.parametrize("share", [0, 0.001, 0.5, 0.999])
def test_cut_off_files(tmp_path, files, kind, share):
    content = files[kind]
    (tmp_path / f"good{kind}").write_bytes(content)
    network, _ = build("transunet", 3, image_size=32, **TINY)
    assert load_weights(network, tmp_path / f"good{kind}").untouched == ()
    (tmp_path / f"bad{kind}").write_bytes(content[: int(share * len(content))])
    refused(tmp_path / f"bad{kind}", "damaged, cut off")


@pytest.mark.parametrize("kind", [".pth", ".npz", ".safetensors"])
def test_files_of_something_else(tmp_path, kind):
    (tmp_path / f"bad{kind}").write_bytes(b"<html>404: not found</html>" * 100)
    refused(tmp_path / f"bad{kind}", "damaged, cut off")


def test_a_flipped_byte_in_an_archive(tmp_path, files):
    content = bytearray(files[".npz"])
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "bad.npz").write_bytes(content)
    refused(tmp_path / "bad.npz", "damaged")


class Malicious:
    """Unpickling this creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nothing_in_a_file_is_executed(tmp_path):
    mark = tmp_path / "executed"
    trap = Malicious(mark)
    pickle.loads(pickle.dumps(trap))
    assert mark.exists(), "the trap works"
    mark.unlink()
    torch.save({"state_dict": {"weight": torch.zeros(2)}, "config": trap}, tmp_path / "archive.pth")
    torch.save(trap, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "pickle.ckpt").write_bytes(pickle.dumps({"state_dict": trap}))
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps(trap))
    np.savez(tmp_path / "objects.npz", weight=np.array([trap], dtype=object))
    with zipfile.ZipFile(tmp_path / "member.npz", "w") as archive:
        archive.writestr("weight.npy", pickle.dumps(trap))
    names = ("archive.pth", "legacy.pt", "pickle.ckpt", "pickle.npz", "objects.npz", "member.npz")
    for name in names:
        refused(tmp_path / name, "objects other than tensors, which are not loaded because they could run code")
        assert not mark.exists(), name


def test_files_without_tensors_and_with_nan(tmp_path):
    torch.save({"epoch": 3}, tmp_path / "empty.pth")
    refused(tmp_path / "empty.pth", "tensors by name in .* but found none")
    torch.save([torch.zeros(2)], tmp_path / "list.pth")
    refused(tmp_path / "list.pth", "but found none")
    torch.save({"weight": torch.tensor([1.0, torch.nan])}, tmp_path / "nan.pth")
    refused(tmp_path / "nan.pth", "finite numbers in .* but 'weight' has NaN")


def test_files_for_another_network(tmp_path):
    def saved(state, name="weights.pth"):
        torch.save(state, tmp_path / name)
        return tmp_path / name

    network, _ = build("transunet", 3, image_size=32, **TINY)
    theirs = to_transunet(network.state_dict())
    refused(saved(theirs), r"of shape \(64, 48\), but .* has \(192, 48\)", mlp_ratio=64 / 48)
    refused(saved(theirs), r"lacks 'transformer\.encoder\.layer\.1", depth=2)
    refused(saved(theirs), r"has others: .*unit", layers=(1, 1, 1), cnn=False, n_skip=0)
    refused(saved({**theirs, "transformer.encoder.layer.0.attn.key.weight": torch.zeros(3)}), r"to make \(144, 48\)")
    refused(saved({**theirs, "transformer.embeddings.position_embeddings": torch.zeros(1, 0, 48)}), r"has \(1, 0, 48\)")
    refused(saved({**theirs, "extra.weight": torch.zeros(2)}), r"has others: 'extra\.weight'")
    refused(saved({"conv1.weight": torch.zeros(2)}), r"names in .* are others, such as 'conv1\.weight'")
    unet, _ = build("unet", 3, image_size=64)
    with pytest.raises(WeightsError, match=r"of this network or of its encoder in .* lacks at least 'encoder\."):
        load_weights(unet, saved({"conv1.weight": torch.zeros(64, 1, 7, 7)}))
    state = {**unet.encoder.state_dict(), "conv1.weight": torch.zeros(64, 1, 5, 5)}
    with pytest.raises(
        WeightsError, match=r"'encoder\.conv1\.weight' of shape \(64, 1, 7, 7\), but .* \(64, 1, 5, 5\)"
    ):
        load_weights(unet, saved(state))


def test_layers_between_those_of_the_network(tmp_path):
    """A deeper encoder has all that a shallower one needs, but its blocks were trained to follow one another."""
    shallow, _ = build("smp:Unet/resnet18", 3, image_size=64)
    deep, _ = build("smp:Unet/resnet34", 3, image_size=64)
    for state in (deep.state_dict(), deep.encoder.state_dict()):
        torch.save(state, tmp_path / "deep.pth")
        before = {name: tensor.clone() for name, tensor in shallow.state_dict().items()}
        with pytest.raises(WeightsError, match=r"more of them in between: '(encoder\.)?layer1\.2\.conv1\.weight'"):
            load_weights(shallow, tmp_path / "deep.pth")
        assert all(torch.equal(tensor, before[name]) for name, tensor in shallow.state_dict().items())


def test_what_comes_after_or_beside_the_layers_is_left_out(tmp_path):
    """Later stages of an encoder that is cut off, a classifier, and the criterion that was saved along."""
    network, _ = build("smp:Unet/tu-convnext_atto", 3, image_size=64, encoder_depth=3, decoder_channels=(8, 8, 8))
    whole, _ = build("smp:Unet/tu-convnext_atto", 3, image_size=64)
    torch.save({**whole.encoder.state_dict(), "head.fc.weight": torch.zeros(2, 2)}, tmp_path / "encoder.pth")
    report = load_weights(network, tmp_path / "encoder.pth")
    assert report.layout == "encoder"
    assert any("stages_3" in name for name in report.left_out)
    torch.save({**network.state_dict(), "criterion.weights.log_odds": torch.zeros(2)}, tmp_path / "saved.pth")
    assert load_weights(network, tmp_path / "saved.pth").left_out == ("criterion.weights.log_odds",)


def test_a_file_that_is_not_there():
    with pytest.raises(MissingFileError, match=r"imagenet-offline, but there is no file 'R50\.npz'\. Check the path"):
        build("transunet", 3, image_size=32, pretrained="R50.npz", **TINY)
