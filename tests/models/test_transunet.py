"""TransUNet: the original's numbers, every size and option, and what training does to it."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import adawac
from adawac.errors import ConfigError, ShapeError
from adawac.models import build, list_models
from adawac.models.transunet import Enlarge

TINY = {
    "embed_dim": 48,
    "depth": 2,
    "num_heads": 4,
    "layers": (1, 1, 1),
    "width": 0.5,
    "bridge": 32,
    "decoder_channels": (32, 16, 16, 8),
}


def images(*size, channels=1, rows=2, seed=0):
    return torch.randn(rows, channels, *size, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def small(golden, tmp_path_factory):
    """The golden network, saved as its authors save theirs, and what to build for it."""
    numbers = np.load(golden / "transunet_small.npz")
    config = json.loads(str(numbers["config"]))
    state = {name[6:]: torch.from_numpy(numbers[name]) for name in numbers.files if name.startswith("state/")}
    path = tmp_path_factory.mktemp("golden") / "synapse.pth"
    torch.save({"state_dict": {f"model.{name}": tensor for name, tensor in state.items()}, "epoch": 3}, path)
    options = {
        "embed_dim": config["hidden_size"],
        "depth": config["num_layers"],
        "num_heads": config["num_heads"],
        "mlp_ratio": config["mlp_dim"] / config["hidden_size"],
        "layers": config["resnet_layers"],
        "width": config["resnet_width_factor"],
        "decoder_channels": config["decoder_channels"],
        "num_classes": config["num_classes"],
        "image_size": config["img_size"],
    }
    return numbers, state, path, options


def test_golden_numbers_through_the_importer(small):
    numbers, state, path, options = small
    network, tap_name = build("transunet", pretrained=str(path), **options)
    tap = adawac.EncoderTap(network, tap_name)
    logits = network.eval()(torch.from_numpy(numbers["x"]))
    torch.testing.assert_close(logits, torch.from_numpy(numbers["logits"]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(tap.pop(), torch.from_numpy(numbers["encoder_output"]), atol=1e-5, rtol=1e-5)
    assert network.faithful
    assert network.load_report.layout == "transunet"
    assert not network.load_report.left_out + network.load_report.untouched
    back = adawac.models.to_transunet(network.state_dict())
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_gradients_are_those_of_the_straightforward_implementation():
    from benchmarks.transunet import QUICK, PlainTransUNet

    network, _ = build("transunet", 9, image_size=32, seed=0, faithful=True, dropout=0.0, **QUICK)
    plain = PlainTransUNet(32, **QUICK)
    plain.load_state_dict(adawac.models.to_transunet(network.state_dict()))
    for module in plain.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    x = images(32, 32).double()
    ours, theirs = network.double()(x), plain.double()(x)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    for logits in (ours, theirs):
        logits.square().sum().backward()
    grads = adawac.models.to_transunet({name: one.grad for name, one in network.named_parameters()})
    for name, parameter in plain.named_parameters():
        largest = parameter.grad.abs().max()  # the upsampling's matrices are kept in float32
        assert (grads[name] - parameter.grad).abs().max() <= 1e-5 * largest + 1e-9, name


def test_the_default_differs_from_the_original_at_the_border_alone(small):
    numbers, _, path, options = small
    faithful, _ = build("transunet", pretrained=str(path), **options)
    default, _ = build("transunet", pretrained=str(path), faithful=False, **options)
    assert not default.faithful
    x = torch.from_numpy(numbers["x"]).expand(-1, 3, -1, -1)
    with torch.no_grad():
        (theirs, theirs_4, _, _), (ours, ours_4, _, _) = (net.eval().encoder(x[:, :1]) for net in (faithful, default))
        pooled = [F.max_pool2d(ours, 3, 2, ceil_mode=ceil) for ceil in (False, True)]
    assert torch.equal(theirs, ours)
    assert torch.equal(pooled[1][..., :-1, :-1], pooled[0])
    assert theirs_4[..., -1, :].count_nonzero() == theirs_4[..., -1].count_nonzero() == 0
    assert ours_4.shape == theirs_4.shape
    assert ours_4[..., -1, :].count_nonzero() > 0


def test_full_size_has_the_papers_number_of_parameters():
    (row,) = list_models("transunet")
    assert row.parameters == 105_277_081
    assert row.millions == 105.28


def test_full_size_runs_and_gives_the_latent_of_the_paper():
    network, tap_name = build("transunet", num_classes=9, seed=0)
    tap = adawac.EncoderTap(network, tap_name)
    assert network(images(224, 224, rows=1)).shape == (1, 9, 224, 224)
    assert tap.pop().shape == (1, 768, 14, 14)


@pytest.mark.parametrize(
    ("size", "channels"), [((16, 16), 1), ((64, 64), 3), ((48, 96), 1), ((80, 32), 2), ((32, 48), 5)]
)
def test_any_size_and_any_channels(size, channels):
    network, tap_name = build("transunet", 4, channels, size, **TINY)
    tap = adawac.EncoderTap(network, tap_name)
    logits = network(images(*size, channels=channels))
    assert logits.shape == (2, 4, *size)
    latent = tap.pop()
    assert latent.shape == (2, 48, size[0] // 16, size[1] // 16)
    (logits.square().mean() + latent.square().mean()).backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("n_skip", [0, 1, 2, 3])
@pytest.mark.parametrize("faithful", [False, True])
def test_any_number_of_skips_deepest_first(n_skip, faithful):
    network, _ = build("transunet", 3, image_size=32, faithful=faithful, n_skip=n_skip, **TINY)
    inputs = [block.conv1[0].in_channels for block in network.decoder.blocks]
    skips = [256, 128, 32]
    assert inputs == [32 + skips[0] * (n_skip > 0), 32 + skips[1] * (n_skip > 1), 16 + skips[2] * (n_skip > 2), 16]
    assert network(images(32, 32)).shape == (2, 3, 32, 32)


def test_without_the_cnn():
    options = {name: value for name, value in TINY.items() if name not in ("layers", "width")}
    network, tap_name = build("transunet-vit", 3, image_size=(32, 48), **options)
    assert network.encoder.cnn is None
    tap = adawac.EncoderTap(network, tap_name)
    network(images(32, 48)).mean().backward()
    assert tap.pop().shape == (2, 48, 2, 3)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (14, 14)])
def test_enlarging_is_torchs_bilinear_upsampling_with_aligned_corners(size):
    x = images(*size, channels=4).double().requires_grad_()
    y = images(*size, channels=4).double().requires_grad_()
    ours = Enlarge(size).double()(x)
    theirs = F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=True)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)  # the matrices are kept in float32
    weights = torch.randn_like(theirs)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, atol=1e-6, rtol=0)


def test_activations_stay_channels_last_and_in_autocasts_precision():
    network, _ = build("transunet", 3, image_size=32, **TINY)
    seen = {}
    for name, module in network.named_modules():
        module.register_forward_hook(lambda _, __, output, name=name: seen.update({name: output}))
    with torch.autocast("cpu", torch.bfloat16):
        network(images(32, 32))
    for name, output in seen.items():
        if isinstance(output, torch.Tensor) and ".norm" in name and name != "encoder.norm":
            assert output.dtype == torch.bfloat16, name
        if name.startswith("decoder") and isinstance(output, torch.Tensor):
            assert output.is_contiguous(memory_format=torch.channels_last), name
    assert seen["encoder.norm"].dtype == torch.float32


def test_dropout_is_the_originals():
    network, _ = build("transunet", 3, image_size=32, **TINY)
    rates = {name: module.p for name, module in network.named_modules() if isinstance(module, torch.nn.Dropout)}
    dropped = {name for name, rate in rates.items() if rate}
    assert dropped == {"encoder.pos_drop"} | {
        f"encoder.blocks.{block}.mlp.drop{which}" for block in (0, 1) for which in (1, 2)
    }
    assert {rates[name] for name in dropped} == {0.1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 225}, r"divisible by 16 for TransUNet, but got 225×225\. Choose .* 224"),
        ({"image_size": (32, 48), "faithful": True}, r"square .* but got 32×48\. Set faithful=False"),
        ({"image_size": 32, "n_skip": 4}, r"n_skip from 0 to 3, but got 4"),
        ({"image_size": 32, "num_heads": 5}, r"embed_dim divisible by num_heads, but got 48 and 5"),
        ({"image_size": 32, "decoder_channels": (8, 8)}, r"four decoder_channels .* but got \(8, 8\)"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        build("transunet", 3, **{**TINY, **options})


def test_skips_without_a_cnn_are_refused():
    with pytest.raises(ConfigError, match="n_skip from 0: without the CNN there are none, but got 1"):
        build("transunet-vit", 3, image_size=32, n_skip=1, embed_dim=48, depth=1, num_heads=4)


def test_images_of_another_shape_are_refused():
    network, _ = build("transunet", 3, image_size=32, **TINY)
    with pytest.raises(ShapeError, match=r"images \(B, 1, 32, 32\), but got \(2, 1, 48, 48\)"):
        network(images(48, 48))
    with pytest.raises(ShapeError, match=r"but got \(2, 3, 32, 32\)"):
        network(images(32, 32, channels=3))


@pytest.mark.parametrize(("name", "options"), [("smp:Unet/resnet18", {}), ("transunet", TINY)])
@pytest.mark.filterwarnings("ignore")  # torch.export warns about its own internals
def test_export(name, options):
    network, _ = build(name, 3, image_size=32, seed=0, **options)
    network.eval()
    x = images(32, 32)
    exported = torch.export.export(network, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},)).module()
    x = images(32, 32, rows=3)
    torch.testing.assert_close(exported(x), network(x), atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_compiling_makes_one_graph():
    network, _ = build("transunet", 3, image_size=32, seed=0, **TINY)
    network.eval()
    x = images(32, 32)
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), network(x), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unet", "transunet-small"])
@pytest.mark.filterwarnings("ignore")
def test_inductor_trains_the_same(name):
    network, tap_name = build(name, 9, image_size=64, seed=0, **({} if name == "unet" else {"dropout": 0.0}))
    tap = adawac.EncoderTap(network, tap_name)
    x = images(64, 64)
    expected, latent = network(x), tap.pop()
    compiled = torch.compile(network, fullgraph=True)
    logits = compiled(x)
    torch.testing.assert_close(logits, expected, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(tap.pop(), latent, atol=1e-3, rtol=1e-3)
    logits.square().mean().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in network.parameters())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_export_at_full_size():
    network, _ = build("transunet", 9, seed=0)
    x = images(224, 224, rows=1)
    exported = torch.export.export(network.eval(), (x,)).module()
    torch.testing.assert_close(exported(x), network(x), atol=1e-5, rtol=1e-5)
