"""Networks by name: each family runs, has its latent, and says what is wrong with a name."""

import json
import subprocess
import sys
import types

import pytest
import torch
from torch import nn

import adawac
from adawac.errors import ConfigError, MissingDependencyError, UnknownNameError
from adawac.models import MODELS, build, list_models
from adawac.models.networks import MONAI_DEFAULTS, smp_architectures, smp_encoders

SMP = ["Unet", "UnetPlusPlus", "MAnet", "Linknet", "FPN", "PSPNet", "DeepLabV3", "DeepLabV3Plus", "PAN", "UPerNet"]
TRANSFORMER = {"embed_dim": 48, "depth": 1, "num_heads": 4}
# Small members of each family: the listed ones differ in width and depth alone.
NETWORKS = {
    "unet": {},
    "transunet": {**TRANSFORMER, "layers": (1, 1, 1), "width": 0.5},
    "transunet-vit": TRANSFORMER,
    "transunet-small": {},
    **{f"smp:{architecture}/resnet18": {} for architecture in SMP},
    "smp:Segformer/mit_b0": {},
    "smp:DPT/tu-vit_tiny_patch16_224": {
        "decoder_fusion_channels": 16,
        "decoder_intermediate_channels": (16, 16, 32, 32),
    },
    "timm:convnext_atto": {},
    "monai:AttentionUnet": {"channels": (8, 16, 32), "strides": (2, 2)},
    "monai:BasicUNet": {},
    "monai:DynUNet": {"filters": (8, 8, 16, 16, 32, 32)},
    "monai:FlexibleUNet": {"backbone": "resnet18"},
    "monai:MedNeXt": {"init_filters": 8},
    "monai:SegResNet": {"blocks_down": (1, 1, 1), "blocks_up": (1, 1)},
    "monai:SegResNetDS": {"init_filters": 8},
    "monai:SwinUNETR": {"feature_size": 12},
    "monai:UNETR": {"hidden_size": 48, "mlp_dim": 96, "num_heads": 4},
    "monai:UNet": {"channels": (8, 16, 32), "strides": (2, 2)},
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of the libraries about torch
def test_forward_backward_and_latent(name):
    if name.startswith("monai:"):
        pytest.importorskip("monai")
    larger = 2 if "PAN" in name else 1  # it pools its deepest map three times more
    for channels, size in ((1, (64 * larger, 64 * larger)), (3, (64 * larger, 96 * larger))):
        network, tap_name = build(name, 4, channels, size, seed=0, **NETWORKS[name])
        tap = adawac.EncoderTap(network, tap_name)
        x = torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(0))
        logits = network(x)
        latent = tap.pop()
        assert logits.shape == (2, 4, *size)
        positions = latent.shape[1] if latent.dim() == 3 else latent[0, 0].numel()
        assert positions <= size[0] * size[1] / 16, "the deepest features are coarse"
        (logits.square().mean() + latent.square().mean()).backward()
        grads = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
        assert grads
        assert all(torch.isfinite(grad).all() for grad in grads)


def test_every_architecture_of_smp_is_tested_above():
    assert {*SMP, "Segformer", "DPT"} == set(smp_architectures())
    assert {f"monai:{name}" for name in MONAI_DEFAULTS} == {name for name in NETWORKS if name.startswith("monai:")}


def test_unet_is_the_papers():
    network, tap_name = build("unet", num_classes=9)
    assert tap_name == "encoder"
    assert type(network).__name__ == "Unet"
    tap = adawac.EncoderTap(network, tap_name)
    network(torch.zeros(1, 1, 224, 224))
    assert tap.pop().shape == (1, 512, 7, 7)
    assert network.load_report is None


@pytest.mark.parametrize("name", ["unet", "transunet-small", "monai:BasicUNet"])
def test_construction_follows_from_the_seed(name):
    if name.startswith("monai:"):
        pytest.importorskip("monai")
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (build(name, 3, image_size=64, seed=seed)[0].state_dict() for seed in (7, 7, 8))
    assert torch.equal(torch.get_rng_state(), before), "a seed of its own leaves torch's generator alone"
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)
    torch.manual_seed(7)
    unseeded = build(name, 3, image_size=64)[0].state_dict()
    assert all(torch.equal(first[key], unseeded[key]) for key in first)


# -- the user's own ----------------------------------------------------------------------------------------------------


class Own(nn.Module):
    def __init__(self, inputs, outputs, width=4):
        super().__init__()
        self.body = nn.Conv2d(inputs, width, 3, padding=1)
        self.head = nn.Conv2d(width, outputs, 1)

    def forward(self, x):
        return self.head(self.body(x))


@pytest.fixture
def own_module(monkeypatch):
    module = types.ModuleType("own_networks")
    module.plain = lambda num_classes, in_channels, width=4: Own(in_channels, num_classes, width)
    module.with_tap = lambda **given: (Own(given["in_channels"], given["num_classes"]), "body")
    module.sized = lambda num_classes, in_channels, image_size: (Own(in_channels, num_classes, image_size[0]), "body")
    module.wrong = lambda num_classes: "a network"
    module.number = 3
    monkeypatch.setitem(sys.modules, "own_networks", module)


@pytest.mark.usefixtures("own_module")
def test_a_factory_of_ones_own():
    network, tap_name = build("own_networks:with_tap", 5, 2, 32)
    assert tap_name == "body"
    assert network(torch.zeros(1, 2, 32, 32)).shape == (1, 5, 32, 32)
    network, _ = build("own_networks:plain", 5, 2, tap="body", width=7)
    assert network.body.out_channels == 7
    assert build("own_networks:sized", 5, 2, (6, 8))[0].body.out_channels == 6


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("own_networks:plain", {}, ConfigError, r"none is known\. Set tap= .* body, head"),
        ("own_networks:plain", {"tap": "bodi"}, UnknownNameError, r"as tap, but got 'bodi'\. Near names: 'body'"),
        ("own_networks:plain", {"tap": "body", "depth": 3}, ConfigError, r"to take depth=3, but it refused"),
        ("own_networks:wrong", {}, ConfigError, r"to return a torch\.nn\.Module.* but got a str"),
        ("own_networks:number", {}, ConfigError, r"a factory at 'own_networks:number', but got a int"),
        ("own_networks:nothing", {}, UnknownNameError, r"could not import 'own_networks:nothing'"),
        ("no_such_package:net", {}, UnknownNameError, r"could not import .* PYTHONPATH"),
        ("own_networks:with_tap", {"faithful": True}, ConfigError, r"faithful for a TransUNet only"),
        ("own_networks:with_tap", {"pretrained": "imagenet"}, ConfigError, r"whose ImageNet weights are known"),
    ],
)
def test_what_is_wrong_with_a_factory(name, options, error, message):
    with pytest.raises(error, match=message):
        build(name, 3, **options)


def test_another_package_can_register_one():
    @MODELS.register("test-network")
    def factory(num_classes, in_channels, image_size):
        """A network of a test."""
        return Own(in_channels, num_classes), "body"

    try:
        assert build("test-network", 3)[1] == "body"
        (row,) = list_models("test-network")
        assert (row.parameters, row.tap, row.note) == (40 + 45, "body", "A network of a test.")
    finally:
        del MODELS._entries["test-network"]


# -- names and options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unett", r"the name of a model, but got 'unett'\. Near names: 'unet'"),
        ("smp:Unett/resnet34", r"one of smp's architectures, but got 'Unett'\. Near names: 'Unet'"),
        ("smp:Unet/resnet35", r"one of smp's encoders .* but got 'resnet35'\. Near names: .*'resnet34'"),
        ("smp:Unet/tu-resnet35", r"but got 'tu-resnet35'\. Near names: 'tu-resnet"),
        ("timm:convnext_ato", r"but got 'tu-convnext_ato'\. Near names: 'tu-convnext_atto'"),
    ],
)
def test_unknown_names_come_with_near_ones(name, message):
    with pytest.raises(UnknownNameError, match=message):
        build(name, 3)


def test_unknown_and_untapped_networks_of_monai():
    pytest.importorskip("monai")
    with pytest.raises(UnknownNameError, match=r"MONAI's networks, but got 'SwinUNETTR'\. Near names: 'SwinUNETR'"):
        build("monai:SwinUNETTR", 3)
    with pytest.raises(ConfigError, match=r"none is known\. Set tap= .* down_tr256"):
        build("monai:VNet", 3, dropout_dim=2)
    assert build("monai:VNet", 3, dropout_dim=2, tap="down_tr256")[1] == "down_tr256"


def test_a_library_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "monai.networks.nets", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'adawac\[monai\]'"):
        build("monai:UNet", 3)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("smp:Linknet/resnet18", {"image_size": 100}, r"divisible by 32 for smp:Linknet/resnet18, but got 100×100"),
        ("unet", {"encoder_dept": 4}, r"option of unet, but got 'encoder_dept'\. Near names: 'encoder_depth'"),
        ("unet", {"faithful": False}, r"faithful for a TransUNet only, but got it for 'unet'"),
        ("unet", {"num_classes": 0}, r"at least one class .* num_classes=0"),
        ("smp:UnetPlusPlus/mit_b0", {}, r"it refused: "),
        ("transunet-small", {"size": 3}, r"option of transunet-small, but got 'size'\. Near names"),
        ("transunet-vit", {"cnn": True}, r"option of transunet-vit, but got 'cnn'"),
        ("transunet-small", {"pretrained": "imagenet"}, r"whose ImageNet weights are known"),
    ],
)
def test_impossible_options(name, options, message):
    with pytest.raises(ConfigError, match=message):
        build(name, **{"num_classes": 3, **options})


def test_other_libraries_load_only_when_a_network_needs_them():
    code = """
import sys
import adawac.models
assert 'torch' not in sys.modules
adawac.models.build, adawac.models.TransUNet, adawac.models.load_weights
print([name for name in ('timm', 'segmentation_models_pytorch', 'monai', 'huggingface_hub') if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- the list ----------------------------------------------------------------------------------------------------------


def test_listing_names_sizes_and_taps_without_allocating():
    rows = {row.name: row for row in list_models("*unet*")}
    assert rows["transunet"].millions == 105.28
    assert rows["unet"].parameters == sum(p.numel() for p in build("unet", 9)[0].parameters())
    assert {row.tap for row in rows.values()} == {"encoder"}
    assert rows["transunet"].note.startswith("The paper's TransUNet")
    assert set(rows) == {"unet", "transunet", "transunet-vit", "transunet-small"}


def test_listing_by_default_names_each_family():
    from adawac.models.networks import _names

    names = set(_names())
    assert {"unet", "smp:FPN/resnet34", "smp:DPT/tu-vit_base_patch16_224", "monai:DynUNet"} <= names
    (row,) = list_models("smp:UnetPlusPlus/mit_b0")
    assert row.parameters is None
    assert "mit_b0" in row.note


def test_listing_without_monai(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (row,) = list_models("monai:UNet")
    assert row.parameters is None
    assert "adawac[monai]" in row.note


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_encoder_of_smp_builds():
    rows = list_models("smp:Unet/*")
    assert {row.name for row in rows} == {f"smp:Unet/{encoder}" for encoder in smp_encoders()}
    assert {row.name: row.note for row in rows if not row.parameters or row.tap != "encoder"} == {}


def test_what_a_network_needs_besides_its_library_is_named(monkeypatch):
    def needy(num_classes, in_channels, image_size):
        raise ImportError("No module named 'einops'.\nAnd a long story.")

    monkeypatch.setitem(sys.modules, "needy_package", types.SimpleNamespace(needy=needy))
    with pytest.raises(MissingDependencyError, match=r"'needy_package:needy' needs.*No module named 'einops'"):
        build("needy_package:needy", 4)


def test_the_command_lists_names_sizes_and_taps(capsys):
    from adawac.cli import run

    assert run(["models", "transunet*", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["transunet"]["parameters"] == 105_277_081
    assert rows["transunet"]["tap"] == "encoder"
    assert run(["models", "transunet*"]) == 0
    out = capsys.readouterr().out
    assert "transunet-small" in out
    assert "105.3" in out
    assert run(["models", "nothing*"]) == 2
    assert "matches none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "size", "stride", "nearest"),
    [("UNet", 50, 16, 48), ("SwinUNETR", (48, 64), 32, 64), ("SegResNet", 60, 8, 64), ("UNETR", 40, 16, 32)],
)
def test_sizes_that_monai_refuses_in_the_forward_pass_only(name, size, stride, nearest):
    pytest.importorskip("monai")
    state = torch.get_rng_state()
    with pytest.raises(ConfigError, match=rf"divisible by {stride} for monai:{name}, .*such as {nearest}\."):
        build(f"monai:{name}", 3, image_size=size, seed=1)
    assert torch.equal(torch.get_rng_state(), state)


def test_sizes_that_monai_takes_draw_the_same_weights():
    pytest.importorskip("monai")
    following = []
    for size in (50, 64):  # 64 is not tried out
        torch.manual_seed(0)
        network, _ = build("monai:BasicUNet", 3, image_size=size)
        following.append((network(torch.zeros(1, 1, size, size)).shape[-1], torch.rand(1)))
    assert [side for side, _ in following] == [50, 64]
    assert following[0][1] == following[1][1]
