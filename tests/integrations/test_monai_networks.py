"""The encoder's output of MONAI's networks, by the names that the documentation gives."""

import pytest
import torch

import adawac

nets = pytest.importorskip("monai.networks.nets")

NETWORKS = {
    "UNet": (
        lambda d: nets.UNet(d, 1, 3, channels=(4, 8, 16), strides=(2, 2), num_res_units=1),
        {"name": "model.1.submodule.1.submodule"},
        (16, 8),
    ),
    "AttentionUnet": (
        lambda d: nets.AttentionUnet(d, 1, 3, channels=(4, 8, 16), strides=(2, 2)),
        {"name": "model.1.submodule.1.submodule"},
        (16, 8),
    ),
    "BasicUNet": (lambda d: nets.BasicUNet(d, 1, 3, features=(4, 4, 8, 8, 16, 4)), {"name": "down_4"}, (16, 2)),
    "BasicUNetPlusPlus": (
        lambda d: nets.BasicUNetPlusPlus(d, 1, 3, features=(4, 4, 8, 8, 16, 4)),
        {"name": "conv_4_0"},
        (16, 2),
    ),
    "SegResNet": (lambda d: nets.SegResNet(d, 8, 1, 3), {"name": "down_layers.3"}, (64, 4)),
    "SegResNetDS": (
        lambda d: nets.SegResNetDS(d, init_filters=4, in_channels=1, out_channels=3, blocks_down=(1, 1, 1)),
        {"name": "encoder"},
        (16, 8),
    ),
    "DynUNet": (
        lambda d: nets.DynUNet(d, 1, 3, [3, 3, 3], [1, 2, 2], [2, 2], filters=[4, 8, 16]),
        {"name": "bottleneck"},
        (16, 8),
    ),
    "VNet": (lambda d: nets.VNet(d, 1, 3), {"name": "down_tr256"}, (256, 2)),
    "UNETR": (
        lambda d: nets.UNETR(1, 3, (32,) * d, 4, hidden_size=24, mlp_dim=32, num_heads=2, spatial_dims=d),
        {"name": "vit.norm", "grid": 2},
        (24, 2),
    ),
    "SwinUNETR": (
        lambda d: nets.SwinUNETR(
            in_channels=1, out_channels=3, feature_size=12, depths=(1,) * 4, num_heads=(1, 1, 2, 2), spatial_dims=d
        ),
        {"name": "swinViT"},
        (192, 2),
    ),
}


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_latent_of_monais_networks(name, dims):
    build, where, (channels, side) = NETWORKS[name]
    if name == "SwinUNETR":
        pytest.importorskip("einops")
    size = (64 if name == "SwinUNETR" else 32,) * dims
    model = build(dims)
    tap = adawac.EncoderTap(model, **{**where, **({"grid": (where["grid"],) * dims} if "grid" in where else {})})
    logits = model(torch.randn(2, 1, *size))
    latent = tap.pop()
    assert latent.shape == (2, channels, *[side] * dims)
    criterion = adawac.AdaWAC(1)
    first = logits[0] if isinstance(logits, list | tuple) else logits
    step = criterion(first, torch.zeros(2, *first.shape[2:], dtype=torch.int64), latent, torch.tensor([0]))
    assert step.reg_ac.item() > 0
