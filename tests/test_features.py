"""Taps on the networks people use, and under what wraps and copies them."""

import copy
import gc
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import adawac
from adawac.errors import ShapeError, TapError, UnknownNameError


class Network(nn.Module):
    """A hand-written encoder and decoder."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU())
        self.decoder = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(4, 3, 3, 1, 1))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def images(size=16, channels=1, rows=4, dims=2):
    return torch.randn(rows, channels, *[size] * dims, generator=torch.Generator().manual_seed(0))


def gradients(model, tap, x, network=None):
    """Gradients of a loss that sees logits and latent, as a training step has it."""
    network = network or model
    network.zero_grad()
    (model(x).square().mean() + tap.pop().float().square().mean()).backward()
    return [p.grad.clone() for p in network.parameters()]


def smp_unet():
    import segmentation_models_pytorch as smp

    return smp.Unet("resnet18", encoder_weights=None, in_channels=1, classes=3)


def timm_vit():
    import timm

    return timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=32, in_chans=1)


def monai_net(name, **options):
    import monai.networks.nets

    return getattr(monai.networks.nets, name)(**options)


NETWORKS = {
    "hand-written": (Network, "encoder", {}, images(16), (4, 4, 8, 8)),
    "smp Unet": (smp_unet, "encoder", {}, images(64), (4, 512, 2, 2)),
    "smp Unet, a shallower map": (smp_unet, "encoder", {"output": -2}, images(64), (4, 256, 4, 4)),
    "timm ViT tokens": (timm_vit, "norm", {}, images(32), (4, 5, 192)),
    "timm ViT as a map": (timm_vit, "norm", {"grid": (2, 2)}, images(32), (4, 192, 2, 2)),
    "MONAI BasicUNet 3D": (
        lambda: monai_net("BasicUNet", spatial_dims=3, in_channels=1, out_channels=2, features=(4, 4, 8, 8, 16, 4)),
        "down_4",
        {},
        images(32, rows=2, dims=3),
        (2, 16, 2, 2, 2),
    ),
    "MONAI DynUNet": (
        lambda: monai_net(
            "DynUNet",
            spatial_dims=2,
            in_channels=1,
            out_channels=2,
            kernel_size=[3, 3, 3],
            strides=[1, 2, 2],
            upsample_kernel_size=[2, 2],
            filters=[4, 8, 16],
        ),
        "bottleneck",
        {},
        images(32),
        (4, 16, 8, 8),
    ),
    "MONAI SwinUNETR": (
        lambda: monai_net(
            "SwinUNETR",
            spatial_dims=2,
            in_channels=1,
            out_channels=2,
            feature_size=12,
            depths=(1, 1, 1, 1),
            num_heads=(1, 1, 2, 2),
        ),
        "swinViT",
        {},
        images(64, rows=2),
        (2, 192, 2, 2),
    ),
    "MONAI SegResNet": (
        lambda: monai_net("SegResNet", spatial_dims=2, in_channels=1, out_channels=2, init_filters=8),
        "down_layers.3",
        {},
        images(32),
        (4, 64, 4, 4),
    ),
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.filterwarnings("ignore")  # MONAI and timm use what torch has deprecated
def test_the_latent_of(network):
    build, name, options, x, shape = NETWORKS[network]
    torch.manual_seed(0)
    model = build()
    tap = adawac.EncoderTap(model, name, **options)
    out = model(x)
    latent = tap.pop()
    assert latent.shape == shape
    latent.square().mean().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.get_submodule(name).parameters())
    assert out.shape[0] == len(x)


def test_several_forwards_are_concatenated():
    model = Network()
    tap = adawac.EncoderTap(model, "encoder")
    first, second = images(), images() + 1
    model(torch.cat([first, second]))
    joint = tap.pop()
    model(first)
    model(second)
    torch.testing.assert_close(tap.pop(), joint)


def test_several_taps_with_coefficients():
    model = Network()
    tap = adawac.EncoderTap(model, {"encoder.0": 0.25, "encoder": 1.0})
    model(images())
    (low, before), (high, after) = tap.pop()
    assert (low, high) == (0.25, 1.0)
    torch.testing.assert_close(before.relu(), after)


def test_gradients_must_be_on():
    model = Network()
    tap = adawac.EncoderTap(model, "encoder")
    with torch.no_grad():
        model(images())
    with pytest.raises(TapError, match=r"forward pass through 'encoder'.*Call the model first"):
        tap.pop()


def test_pop_takes_everything():
    model = Network()
    tap = adawac.EncoderTap(model, "encoder")
    model(images())
    tap.pop()
    with pytest.raises(TapError, match="saw none"):
        tap.pop()
    model(images())
    tap.clear()
    with pytest.raises(TapError, match="saw none"):
        tap.pop()


def test_forgetting_to_pop_is_an_error_before_memory_runs_out():
    model = nn.Sequential(nn.Linear(1, 1))
    tap = adawac.EncoderTap(model, "0")
    for _ in range(256):
        model(torch.zeros(1, 1))
    with pytest.raises(TapError, match=r"256 forwards went by.*no_grad"):
        model(torch.zeros(1, 1))
    tap.remove()


def test_a_removed_tap_sees_nothing():
    model = Network()
    with adawac.EncoderTap(model, "encoder"):
        assert len(model.encoder._forward_hooks) == 1
    assert len(model.encoder._forward_hooks) == 0


def test_a_forgotten_tap_goes_idle():
    """A tap that went out of scope must not keep latents alive."""
    model = Network()
    adawac.EncoderTap(model, "encoder")
    gc.collect()
    model(images())
    (hook,) = model.encoder._forward_hooks.values()
    assert hook.latents == []


def test_a_wrong_name_lists_the_near_ones():
    with pytest.raises(UnknownNameError, match=r"submodule of Network, but got 'encodr'.*'encoder'"):
        adawac.EncoderTap(Network(), "encodr")


@pytest.mark.parametrize("name", [None, ["encoder", "decoder"], nn.Linear(1, 1), {}])
def test_what_is_no_name_is_explained(name):
    with pytest.raises(UnknownNameError, match=r"name of a submodule, or several.*model\.named_modules\(\)"):
        adawac.EncoderTap(Network(), name)


def test_a_wrong_name_among_several_leaves_no_hook_behind():
    model = Network()
    with pytest.raises(UnknownNameError, match="'nowhere'"):
        adawac.EncoderTap(model, {"encoder": 1.0, "nowhere": 1.0})
    assert not model.encoder._forward_hooks


def test_a_submodule_that_is_never_called_is_explained():
    class ByMethod(Network):
        def forward(self, x):
            return self.decoder(self.encoder.forward(x))

    model = ByMethod()
    tap = adawac.EncoderTap(model, "encoder")
    model(images())
    with pytest.raises(TapError, match=r"called as such.*forward_features"):
        tap.pop()


def test_outputs_that_are_mappings():
    class Pyramid(nn.Module):
        def forward(self, x):
            return {"fine": x, "deep": x.mean((2, 3), keepdim=True)}

    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = Pyramid()
            self.head = nn.Conv2d(1, 2, 1)

        def forward(self, x):
            return self.head(self.backbone(x)["fine"])

    model = Wrapper()
    deepest, fine = adawac.EncoderTap(model, "backbone"), adawac.EncoderTap(model, "backbone", output="fine")
    model(images())
    assert deepest.pop().shape == (4, 1, 1, 1)
    assert fine.pop().shape == (4, 1, 16, 16)
    wrong = adawac.EncoderTap(model, "backbone", output="coarse")
    with pytest.raises(TapError, match=r"output='coarse'.*\['fine', 'deep'\]"):
        model(images())
    wrong.remove()


@dataclass
class Output:
    """What a module returns that gives an object."""

    feature_maps: tuple
    attentions: tuple
    pooled: torch.Tensor | None = None


class Giving(nn.Module):
    """Returns what `output` makes of x; it stands for the encoders of other libraries."""

    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, x):
        return self.output(x)


def small(x):
    return x[..., ::2, ::2]


NESTED = {
    "a list within a list": (lambda x: [x, [x, small(x)]], None, (4, 1, 8, 8)),
    "maps and class tokens": (lambda x: ([x, small(x)], [x.flatten(2), None]), None, (4, 1, 8, 8)),
    "a pooled vector behind the maps": (lambda x: (x, small(x), x.mean((2, 3))), None, (4, 1, 8, 8)),
    "that vector": (lambda x: (x, small(x), x.mean((2, 3))), -1, (4, 1)),
    "a path": (lambda x: {"maps": (x, small(x))}, "maps.0", (4, 1, 16, 16)),
    "a path from the end": (lambda x: {"maps": (x, small(x))}, "maps.-1", (4, 1, 8, 8)),
    "the deepest at a path": (lambda x: {"maps": (x, small(x)), "last": x}, "maps", (4, 1, 8, 8)),
    "a key with a dot": (lambda x: {"layer.1": x, "layer.2": small(x)}, "layer.1", (4, 1, 16, 16)),
    "a key that is a number": (lambda x: {"1": x, "0": [small(x)]}, "0.0", (4, 1, 8, 8)),
    "a position of a mapping": (lambda x: {"fine": x, "deep": small(x)}, 0, (4, 1, 16, 16)),
    "an object": (lambda x: Output((x, small(x)), (x,)), None, (4, 1, 8, 8)),
    "an attribute": (lambda x: Output((x, small(x)), (x,)), "feature_maps.0", (4, 1, 16, 16)),
    "attention, asked for": (lambda x: Output((small(x),), (x,)), "attentions", (4, 1, 16, 16)),
}


@pytest.mark.parametrize("case", NESTED)
def test_a_tap_reaches_into_an_output(case):
    output, path, shape = NESTED[case]
    model = nn.Sequential(Giving(output))
    with adawac.EncoderTap(model, "0", output=path) as tap:
        model(images())
        assert tap.pop().shape == shape


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("feature_maps.2", r"one at output='feature_maps\.2', but got a Output with feature_maps, attentions, pooled"),
        ("hidden_states", r"one at output='hidden_states'"),
        ("pooled", r"one at output='pooled'"),
        (0, r"one at output=0"),
    ],
)
def test_an_entry_that_is_no_tensor_is_explained(path, message):
    model = nn.Sequential(Giving(lambda x: Output((x, x), (x,))))
    with adawac.EncoderTap(model, "0", output=path), pytest.raises(TapError, match=message):
        model(images())


def test_an_output_without_tensors_is_explained():
    model = nn.Sequential(Giving(lambda x: [None, "text"]))
    with adawac.EncoderTap(model, "0"), pytest.raises(TapError, match=r"or several with one, but got a list of 2"):
        model(images())


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_is_not_broken_up_by_a_tap_in_a_nested_output():
    model = nn.Sequential(Giving(lambda x: [x, (small(x), None)]), Giving(lambda maps: maps[0]))
    tap = adawac.EncoderTap(model, "0")
    torch.compile(model, backend="eager", fullgraph=True)(images())
    assert tap.pop().shape == (4, 1, 8, 8)


@pytest.mark.filterwarnings("ignore")
def test_the_encoder_of_smp_dpt_by_its_name():
    import segmentation_models_pytorch as smp

    model = smp.DPT("tu-vit_tiny_patch16_224", encoder_weights=None, in_channels=1, dynamic_img_size=True)
    with adawac.EncoderTap(model, "encoder") as deepest, adawac.EncoderTap(model, "encoder", output="0.1") as second:
        model(images(64, rows=2))
        first, second = deepest.pop(), second.pop()
    assert first.shape == second.shape == (2, 192, 4, 4)  # maps, not the class tokens that come with them
    assert not torch.equal(first, second)


def hugging_face(name):
    transformers = pytest.importorskip("transformers")
    sizes, depths = [8, 8, 16, 32], [1, 1, 1, 1]
    if name == "Segformer":
        config = transformers.SegformerConfig(
            num_labels=3, hidden_sizes=sizes, decoder_hidden_size=8, depths=depths, num_attention_heads=[1, 1, 2, 2]
        )
        return transformers.SegformerForSemanticSegmentation(config), "segformer"
    stages = ["stage1", "stage2", "stage3", "stage4"]
    backbone = transformers.ConvNextConfig(hidden_sizes=sizes, depths=depths, out_features=stages)
    config = transformers.UperNetConfig(
        backbone_config=backbone, num_labels=3, hidden_size=8, use_auxiliary_head=False, pool_scales=[1, 2]
    )
    return transformers.UperNetForSemanticSegmentation(config), "backbone"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "path"), [("Segformer", "hidden_states"), ("UperNet", "feature_maps")])
def test_the_encoders_of_hugging_face_by_their_names(name, path):
    model, submodule = hugging_face(name)
    x = torch.zeros(4, 3, 64, 64)
    with (
        adawac.EncoderTap(model, submodule) as deepest,
        adawac.EncoderTap(model, submodule, output=f"{path}.1") as map1,
    ):
        logits = model(x, output_hidden_states=True).logits
        latent = deepest.pop()
        assert latent.shape == (4, 32, 2, 2)
        assert map1.pop().shape == (4, 8, 8, 8)
    labels = torch.zeros(4, 64, 64, dtype=torch.int64)
    if name == "Segformer":
        with pytest.raises(ShapeError, match=r"quarter-size logits.*interpolate"):
            adawac.AdaWAC(2)(logits, labels, latent, torch.arange(2))
        logits = nn.functional.interpolate(logits, size=labels.shape[1:], mode="bilinear")
    adawac.AdaWAC(2)(logits, labels, latent, torch.arange(2)).loss.backward()
    assert any(parameter.grad is not None for parameter in model.get_submodule(submodule).parameters())


def test_what_a_tap_is_shown_as():
    model = Network()
    assert repr(adawac.EncoderTap(model, "encoder")) == "EncoderTap(Network: 'encoder')"
    several = adawac.EncoderTap(model, {"encoder": 1.0, "encoder.0": 0.5}, output=0, grid=(2, 2))
    assert repr(several) == "EncoderTap(Network: {'encoder': 1.0, 'encoder.0': 0.5}, output=0, grid=(2, 2))"


def test_wrappers_of_data_parallel_are_looked_through():
    model = Network()
    tap = adawac.EncoderTap(nn.DataParallel(model), "encoder")
    model(images())
    assert len(tap.pop()) == len(images())


@pytest.mark.parametrize("attribute", ["_orig_mod", "_original_module"])  # torch.compile's, Fabric's
def test_a_wrapper_is_looked_through(attribute):
    wrapper, model = nn.Module(), Network()
    setattr(wrapper, attribute, nn.DataParallel(model))
    tap = adawac.EncoderTap(wrapper, "encoder")
    model(images())
    assert tap.pop().shape == (4, 4, 8, 8)


def test_a_grid_that_does_not_fit_is_named():
    model = nn.Sequential(nn.Linear(3, 3))
    tap = adawac.EncoderTap(model, "0", grid=(4, 4))
    with pytest.raises(TapError, match=r"N ≥ 16.*\(2, 9, 3\)"):
        model(torch.zeros(2, 9, 3))
    tap.remove()


def test_autocast():
    model = Network()
    tap = adawac.EncoderTap(model, "encoder")
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(images())
        latent = tap.pop()
        out = adawac.AdaWAC(num_samples=2)(logits, torch.zeros(4, 16, 16, dtype=torch.int64), latent, torch.arange(2))
    assert logits.dtype == latent.dtype == torch.bfloat16
    assert out.loss.dtype == out.reg_ac.dtype == torch.float32


@pytest.mark.filterwarnings("ignore")
def test_compiled_with_inductor():
    torch.manual_seed(0)
    model = Network()
    tap = adawac.EncoderTap(model, "encoder")
    compiled = torch.compile(model)
    expected = gradients(model, tap, images())
    for _ in range(2):
        for ours, plain in zip(gradients(compiled, tap, images(), model), expected, strict=True):
            torch.testing.assert_close(ours, plain)
    compiled(images())
    compiled(images())
    assert len(tap.pop()) == 8
    assert adawac.EncoderTap(compiled, "encoder")  # the compiled wrapper is looked through


@pytest.mark.filterwarnings("ignore")
def test_a_tap_that_comes_after_a_compiled_models_first_call_is_explained():
    model = Network()
    compiled = torch.compile(model, backend="eager")
    compiled(images())
    tap = adawac.EncoderTap(compiled, "encoder")
    compiled(images())
    with pytest.raises(TapError, match=r"before a compiled model's first call"):
        tap.pop()
    model(images())  # the same network, not compiled
    assert len(tap.pop()) == 4


def test_checkpointing_records_once():
    class Checkpointed(Network):
        def forward(self, x):
            return self.decoder(checkpoint(self.encoder, x, use_reentrant=False))

    torch.manual_seed(0)
    plain = Network()
    model = Checkpointed()
    model.load_state_dict(plain.state_dict())
    tap = adawac.EncoderTap(model, "encoder")
    expected = gradients(plain, adawac.EncoderTap(plain, "encoder"), images())
    for ours, theirs in zip(gradients(model, tap, images()), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    with pytest.raises(TapError, match="saw none"):  # the recomputation in the backward pass was not recorded
        tap.pop()


def test_reentrant_checkpointing_is_explained():
    class Checkpointed(Network):
        def forward(self, x):
            return self.decoder(checkpoint(self.encoder, x, use_reentrant=True))

    model = Checkpointed()
    tap = adawac.EncoderTap(model, "encoder")
    model(images().requires_grad_()).sum().backward()
    with pytest.raises(TapError, match="use_reentrant=False"):
        tap.pop()


def test_a_deep_copy_of_the_network_is_untapped():
    model = Network()
    tap = adawac.EncoderTap(model, "encoder")
    model(images())  # the tap holds a latent with a graph, which could not be copied
    average = copy.deepcopy(model)
    average(images())
    (hook,) = average.encoder._forward_hooks.values()
    assert hook.latents == []
    assert len(tap.pop()) == 4


def test_network_and_tap_copied_together_stay_together():
    model = Network()
    tap = adawac.EncoderTap(model, "encoder")
    model(images())
    other, other_tap = copy.deepcopy((model, tap))
    other(images(rows=2))
    assert len(other_tap.pop()) == 2
    assert len(tap.pop()) == 4
    other_tap.remove()
    assert len(other.encoder._forward_hooks) == 0
    assert len(model.encoder._forward_hooks) == 1


def test_a_tapped_network_can_be_pickled():
    model = Network()
    tap = adawac.EncoderTap(model, "encoder")
    model(images())
    other, other_tap = pickle.loads(pickle.dumps((model, tap)))
    other(images())
    assert len(other_tap.pop()) == 4


def test_the_five_lines_of_the_readme_train_a_network():
    torch.manual_seed(0)
    model = Network()
    criterion = adawac.AdaWAC(num_samples=8, eta_beta=1.0, lambda_ac=1.0)
    tap = adawac.EncoderTap(model, "encoder")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x, y = torch.randn(8, 1, 16, 16), torch.zeros(8, 16, 16, dtype=torch.int64)
    y[4:, 4:12, 4:12] = 1
    x[4:, :, 4:12, 4:12] += 3
    history = []
    for _ in range(30):
        for index in torch.randperm(8).split(4):
            batch = {
                "images": (x[index], x[index].flip(-1)),
                "labels": (y[index], y[index].flip(-1)),
                "index": index,
            }
            logits = model(torch.cat(batch["images"]))
            labels = torch.cat(batch["labels"])
            step = criterion(logits, labels, tap.pop(), batch["index"])
            step.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            history.append(step.loss.item())
    assert history[-1] < 0.6 * history[0]
    assert criterion.weights.beta.shape == (8,)


def test_encode_stops_behind_the_encoder():
    """The latent and its gradient are those of a whole pass, and the decoder is not run."""
    torch.manual_seed(0)
    model = Network()
    tap = adawac.EncoderTap(model, "encoder")
    ran = []
    model.decoder.register_forward_hook(lambda *_: ran.append(True))
    model(images())
    whole = tap.pop()
    assert ran.pop()
    tap.encode(model, images())
    latent = tap.pop()
    assert not ran
    torch.testing.assert_close(latent, whole, rtol=0, atol=0)
    latent.square().sum().backward()
    assert model.encoder[0].weight.grad.abs().sum() > 0
    assert model.decoder[1].weight.grad is None
    model(images())  # the next pass is a whole one again
    assert ran


def test_encode_waits_for_all_of_several_taps():
    model = Network()
    tap = adawac.EncoderTap(model, {"encoder.0": 1.0, "encoder.1": 1.0})
    tap.encode(model, images())
    assert [len(latent) for _, latent in tap.pop()] == [4, 4]


@pytest.mark.parametrize("model", ["encoder", None, torch.relu])
def test_what_is_no_network_is_explained(model):
    with pytest.raises(TapError, match=r"Expected a network.*EncoderTap\(model, 'encoder'\)"):
        adawac.EncoderTap(model, "encoder")


def test_coefficients_are_numbers():
    with pytest.raises(UnknownNameError, match=r"several with their coefficients"):
        adawac.EncoderTap(Network(), {"encoder": "1.0"})
    assert adawac.EncoderTap(Network(), {"encoder": 2}).coefficients == {"encoder": 2}
    assert adawac.EncoderTap(Network(), "encoder").coefficients == {"encoder": 1}


def test_tokens_lie_on_the_grid_row_by_row():
    maps = torch.randn(3, 5, 2, 4)
    tokens = torch.cat([torch.zeros(3, 1, 5), maps.flatten(2).transpose(1, 2)], dim=1)  # a class token comes first
    model = nn.Sequential(nn.Identity())
    tap = adawac.EncoderTap(model, "0", grid=(2, 4))
    model(tokens.requires_grad_())
    torch.testing.assert_close(tap.pop(), maps, rtol=0, atol=0)


@pytest.mark.parametrize("grid", [14, "44", (), (0, 4), (4.0, 4.0)])
def test_what_is_no_grid_is_explained(grid):
    with pytest.raises(TapError, match=r"sides of the token grid, but got .*\(14, 14\)"):
        adawac.EncoderTap(Network(), "encoder", grid=grid)


@pytest.mark.parametrize(
    ("side", "tokens", "fits"), [(14, 201, True), (4, 25, True), (7, 196, False), (13, 196, False)]
)
def test_a_grid_that_is_too_small_is_no_grid_with_many_class_tokens(side, tokens, fits):
    """Its latent would be a corner of the image's: wrong, and of the right shape."""
    model = nn.Sequential(nn.Identity())
    with adawac.EncoderTap(model, "0", grid=[np.int64(side), side]) as tap:
        if fits:
            model(torch.zeros(2, tokens, 3))
            assert tap.pop().shape == (2, 3, side, side)
        else:
            with pytest.raises(TapError, match=rf"for the grid .*\(2, {tokens}, 3\)"):
                model(torch.zeros(2, tokens, 3))
