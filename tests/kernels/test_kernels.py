"""Kernels on pixels: torch's numbers in Triton's interpreter and on a GPU; what they cannot take goes to torch."""

import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from adawac import losses
from adawac.kernels import availability, fuse, norms
from adawac.kernels.blocks import StdConv2d
from adawac.kernels.convolutions import CastWeights, Conv2d, can_convolve_gray, can_standardise, gray
from adawac.kernels.pixels import MaxPool2d, can_enlarge, can_sum, can_warp
from adawac.kernels.tokens import can_gelu, can_normalise
from adawac.models import build
from tests.kernels.interpreter import computed_by
from tests.kernels.kernel_cases import CASES, computed

LAST = torch.channels_last


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    """Everything that kernel_cases.py computes in Triton's interpreter."""
    return computed_by("tests.kernels.kernel_cases", tmp_path_factory.mktemp("interpreted"))


def assert_near(results, wanted):
    """Numbers agree to rounding, and labels all but those at which rounding decides."""
    for tensor, other in zip(results, wanted, strict=True):
        if not tensor.is_floating_point():
            assert (tensor == other).double().mean() > 0.99
            continue
        tolerance = 2e-3 if torch.float16 in (tensor.dtype, results[0].dtype) else 2e-5
        scale = max(1.0, other.abs().max().item())
        torch.testing.assert_close(tensor.double(), other.double(), rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("name", CASES)
def test_the_kernels_give_torchs_numbers(interpreted, name):
    assert_near(interpreted[name], computed(name, ours=False))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu_the_kernels_give_torchs_numbers(name, monkeypatch):
    for limit in ("PIXELS", "INPUTS", "OUTPUTS"):  # which the cases change
        monkeypatch.setattr(f"adawac.kernels.convolutions.{limit}", 1)
    first, again = computed(name, "cuda"), computed(name, "cuda")
    assert_near(first, computed(name, "cuda", ours=False))
    assert all(torch.equal(tensor, other) for tensor, other in zip(first, again, strict=True))


@pytest.mark.parametrize("name", ["gelu", "add", "add and layer norm"])
def test_dropout_drops_at_its_rate_and_the_same_on_the_way_back(interpreted, name):
    """What is kept is over the share that is kept, forward and backward; the rest is zero in both."""
    dropped = interpreted["dropout"][name]
    x, kept, other = dropped["x"], dropped["y"] != 0, dropped["again"] != 0
    assert abs(kept.double().mean() - 0.7) < 0.01
    assert 0.5 < (kept == other).double().mean() < 0.65  # 0.58 where two masks have nothing to do with each other
    assert torch.equal(dropped["same"], dropped["y"])
    x.requires_grad_()
    wanted = (F.gelu(x) if name == "gelu" else x) / 0.7
    (gradient,) = torch.autograd.grad(wanted.sum(), [x])
    for results, value in ((dropped["y"], wanted), (dropped["gradient"], gradient)):
        torch.testing.assert_close(results, torch.where(kept, value, 0).detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dropped["bias"], dropped["gradient"].sum(0), rtol=1e-4, atol=1e-3)
    for neighbours in ((kept[1:], kept[:-1]), (kept[:, 1:], kept[:, :-1])):
        assert abs(torch.eq(*neighbours).double().mean() - 0.58) < 0.015


@pytest.fixture
def willing(monkeypatch):
    """Let kernels take CPU tensors, as far as their questions go."""
    monkeypatch.setattr(availability, "INTERPRETED", True)
    monkeypatch.setattr(norms, "works", lambda device: True)
    monkeypatch.setattr("adawac.kernels.tokens.works", lambda device: True)
    monkeypatch.setattr("adawac.kernels.convolutions.works", lambda device: True)
    monkeypatch.setattr("adawac.kernels.pixels.works", lambda device: True)


def test_maps_that_cannot_be_enlarged_go_to_torch(willing):
    x, skip = torch.randn(2, 4, 3, 5).to(memory_format=LAST), torch.randn(2, 3, 6, 10).to(memory_format=LAST)
    assert can_enlarge(x, (6, 10), skip)
    assert can_enlarge(x, (6, 10))
    assert not can_enlarge(x, (6, 11))
    assert not can_enlarge(x.contiguous(), (6, 10))
    assert not can_enlarge(x, (6, 10), skip.contiguous())
    assert not can_enlarge(x, (6, 10), skip.bfloat16())
    assert not can_enlarge(x, (6, 10), skip[:1])
    assert not can_enlarge(x, (6, 10), skip[..., :9])
    assert not can_enlarge(x[:, :, :1], (2, 10))
    assert not can_enlarge(x.double(), (6, 10))


def test_tokens_that_the_kernels_cannot_take_go_to_torch(willing):
    x, norm = torch.randn(2, 5, 8), nn.LayerNorm(8)
    assert can_normalise(x, norm)
    assert not can_normalise(x, nn.LayerNorm(8, bias=False))
    assert not can_normalise(x, nn.LayerNorm(8, elementwise_affine=False))
    assert not can_normalise(x, nn.LayerNorm((5, 8)))
    assert not can_normalise(x, nn.LayerNorm(8).bfloat16())
    assert not can_normalise(x, nn.Identity())
    assert not can_normalise(x.transpose(0, 1), norm)
    assert not can_normalise(x.double(), norm)
    assert not can_normalise(torch.randn(1, 1, 5000), nn.LayerNorm(5000))
    assert not can_gelu(x[:0])


def test_weights_that_the_kernel_cannot_take_go_to_torch(willing):
    weight = torch.randn(4, 8, 3, 3).to(memory_format=LAST)
    assert can_standardise(weight)
    assert not can_standardise(weight.contiguous())
    assert not can_standardise(weight.bfloat16())
    assert not can_standardise(weight[0])
    assert not can_standardise(torch.randn(1, 20000, 1, 1))


def test_windows_that_the_kernel_does_not_know_go_to_torch(willing):
    x = torch.randn(1, 4, 8, 8).to(memory_format=LAST)
    assert MaxPool2d(3, 2, 1).fits(x)
    assert not MaxPool2d(3, 2, 1).fits(x.contiguous())
    for other in (MaxPool2d(2, 2), MaxPool2d(3, 1), MaxPool2d(3, 2, dilation=2), MaxPool2d(3, 2, return_indices=True)):
        assert not other.fits(x)


def test_convolutions_that_are_not_narrow_go_to_torch(willing, monkeypatch):
    monkeypatch.setattr("adawac.kernels.convolutions.PIXELS", 64)
    x = torch.randn(1, 16, 8, 8, dtype=torch.bfloat16).to(memory_format=LAST)
    assert Conv2d(16, 4, 3, padding=1).fits(x)
    assert not Conv2d(16, 4, 3, padding=1).fits(x.float())
    assert not Conv2d(16, 4, 3, padding=1).fits(x[..., :7])
    for other in (
        Conv2d(16, 64, 3, padding=1),
        Conv2d(16, 4, 1),
        Conv2d(16, 4, 3),
        Conv2d(16, 4, 3, 2, 1),
        Conv2d(16, 4, 3, padding=1, groups=2),
        Conv2d(16, 4, 3, padding=1, padding_mode="reflect"),
        Conv2d(16, 4, 3, padding="same"),
    ):
        assert not other.fits(x)


def test_images_that_the_stem_cannot_take_go_to_torch(willing, monkeypatch):
    monkeypatch.setattr("adawac.kernels.convolutions.PIXELS", 64)
    x = torch.randn(2, 1, 8, 8)
    half, plain = x.bfloat16(), Conv2d(1, 4, 7, 2, 3)
    assert can_convolve_gray(half, plain)
    assert not can_convolve_gray(x, plain)
    with torch.autocast("cpu", torch.bfloat16):
        assert can_convolve_gray(x, plain)
    assert not can_convolve_gray(half.clone().requires_grad_(), plain)
    assert not can_convolve_gray(half.expand(-1, 3, -1, -1), plain)
    assert not can_convolve_gray(half.transpose(2, 3), plain)
    assert not can_convolve_gray(half[..., :7], plain)
    for other in (
        Conv2d(1, 4, 9, 2, 3),
        Conv2d(1, 4, 1),
        Conv2d(1, 4, (7, 5), 2, 3),
        Conv2d(1, 4, 7, (2, 1), 3),
        Conv2d(1, 4, 7, 2, (3, 2)),
        Conv2d(1, 4, 7, 2, 3, dilation=2),
        Conv2d(1, 4, 7, padding="same"),
        Conv2d(1, 4, 7, 2, 3, padding_mode="reflect"),
        Conv2d(1, 256, 7, 2, 3),
    ):
        assert not can_convolve_gray(half, other)


def test_a_repeated_channel_is_recognised():
    x = torch.randn(2, 1, 4, 4)
    assert torch.equal(gray(x.expand(-1, 3, -1, -1)), x)
    assert gray(x.repeat(1, 3, 1, 1)).shape == (2, 3, 4, 4)


def test_logits_that_the_kernel_cannot_take_go_to_torch(willing):
    logits, labels = torch.randn(2, 4, 9), torch.zeros(2, 9, dtype=torch.long)
    assert can_sum(logits, labels)
    assert not can_sum(logits.double(), labels)
    assert not can_sum(logits[:, :1], labels)
    assert not can_sum(torch.randn(2, 65, 9), labels)
    assert not can_sum(logits, labels.float())
    assert not can_sum(logits, labels[:, :5])


def test_images_that_the_warp_cannot_take_go_to_torch(willing):
    values, starts, maps = torch.randn(24), torch.tensor([0, 12]), torch.zeros(2, 2, 3)
    labels, shapes = (torch.zeros(24, dtype=torch.uint8), starts), torch.tensor([[4, 3], [4, 3]])
    assert can_warp((values, starts), labels, shapes, maps, 1)
    assert can_warp((values.to(torch.int16), starts), None, shapes, maps, 1)
    assert not can_warp((values.double(), starts), labels, shapes, maps, 1)
    assert not can_warp((values, starts), labels, shapes, maps.double(), 1)
    assert not can_warp((values, starts), labels, torch.ones(2, 3), maps, 1)
    assert not can_warp((values, starts), labels, shapes, maps, 9)
    assert not can_warp((values.clone().requires_grad_(), starts), labels, shapes, maps, 1)
    assert not can_warp((values, starts.to("meta")), labels, shapes, maps, 1)


def test_without_triton_the_losses_are_torchs(monkeypatch, caplog):
    monkeypatch.setattr(availability, "INTERPRETED", True)
    monkeypatch.setitem(sys.modules, "adawac.kernels.norm_kernels", None)
    norms.works.cache_clear()
    try:
        logits, labels = torch.randn(2, 4, 5, 5), torch.randint(0, 4, (2, 5, 5))
        results = losses.cross_entropy(logits, labels)
        torch.testing.assert_close(results, F.cross_entropy(logits, labels, reduction="none").mean((1, 2)))
        assert "Everything runs on torch's own kernels" in caplog.text
    finally:
        norms.works.cache_clear()


@pytest.mark.parametrize(("name", "joins"), [("unet", 4), ("transunet-small", 3)])
def test_decoders_join_and_blocks_keep_their_numbers(willing, monkeypatch, name, joins):
    """The blocks' own work, with torch in the kernels' place."""
    asked = []

    def enlarge(x, skip=None, *, bilinear=False):
        asked.append((skip is not None, bilinear))
        mode = {"mode": "bilinear", "align_corners": True} if bilinear else {}
        up = F.interpolate(x, scale_factor=2, **mode)
        return up if skip is None else torch.cat([up, skip], 1)

    def biased(x, bias):
        return x if bias is None else x + bias - bias.detach()

    def add(x, branch):
        return x + biased(branch.value, branch.bias)

    def add_and_normalise(x, branch, norm):
        asked_norms.append(branch is not None)
        total = x if branch is None else add(x, branch)
        return total, norm(total)

    def gelu_and_drop(x, rate, seed, bias):
        asked_norms.append("gelu")
        return F.gelu(biased(x, bias))

    def split_heads(x, heads, bias):
        return biased(x, bias).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)

    def standardised(weight, eps, dtype):
        asked_weights.append(weight)
        return F.layer_norm(weight, weight.shape[1:], eps=eps)

    asked_norms, asked_weights = [], []
    for function in (enlarge, standardised):
        monkeypatch.setattr(f"adawac.kernels.blocks.{function.__name__}", function)
    for function in (add, add_and_normalise, gelu_and_drop, split_heads):
        monkeypatch.setattr(f"adawac.kernels.blocks.{function.__name__}", function)
    for kernel in ("norms.BatchNorm2d", "norms.GroupNorm", "pixels.MaxPool2d", "convolutions.Conv2d"):
        monkeypatch.setattr(f"adawac.kernels.{kernel}.fits", lambda self, x, residual=None: False)
    options = {"dropout": 0.0} if name.startswith("transunet") else {}
    plain, fused = (build(name, 4, image_size=64, seed=0, **options)[0].to(memory_format=LAST) for _ in range(2))
    fuse(fused)
    x = torch.randn(2, 1, 64, 64, generator=torch.Generator().manual_seed(1))
    results = []
    for network in (plain, fused):
        y = network(x)
        y.square().mean().backward()
        results.append([y.detach(), *(parameter.grad for parameter in network.parameters())])
    for tensor, other in zip(*results, strict=True):
        torch.testing.assert_close(other, tensor, rtol=1e-3, atol=1e-4 * max(1.0, tensor.abs().max().item()))
    assert [skip for skip, _ in asked].count(True) == joins
    assert all(bilinear == name.startswith("transunet") for _, bilinear in asked)
    depth = len(fused.encoder.blocks) if name.startswith("transunet") else 0
    assert asked_norms == [False, *([True, "gelu", True] * depth)[:-1]][: 3 * depth]
    assert len(asked_weights) == sum(isinstance(module, StdConv2d) for module in fused.modules())


# -- weights that are cast at once -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["unet", "transunet-small"])
def test_weights_cast_at_once_give_autocasts_numbers_to_the_bit(name):
    network, _ = build(name, 4, image_size=64, seed=0)
    network = network.to(memory_format=LAST)
    cast = CastWeights(network, torch.bfloat16)
    x = torch.randn(2, 1, 64, 64)
    results = []
    for at_once in (False, True):
        torch.manual_seed(1)  # dropout
        network.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.func.functional_call(network, cast(), (x,)) if at_once else network(x)
        y.float().square().mean().backward()
        results.append([y.detach(), *(parameter.grad for parameter in network.parameters())])
    assert all(torch.equal(tensor, other) for tensor, other in zip(*results, strict=True))
    assert all(parameter.dtype == torch.float32 for parameter in network.parameters())


def test_weights_that_take_no_part_get_no_gradient():
    network = nn.ModuleDict({"used": nn.Linear(3, 2), "unused": nn.Linear(3, 2), "frozen": nn.Linear(2, 2)})
    network["frozen"].requires_grad_(False)
    cast = CastWeights(network, torch.bfloat16)()
    assert set(cast) == {f"{name}.{kind}" for name in network for kind in ("weight", "bias")}
    hidden = F.linear(torch.ones(1, 3, dtype=torch.bfloat16), cast["used.weight"], cast["used.bias"])
    F.linear(hidden, cast["frozen.weight"], cast["frozen.bias"]).sum().backward()
    assert network["used"].weight.grad.dtype == torch.float32
    assert network["unused"].weight.grad is None
    assert network["frozen"].weight.grad is None
