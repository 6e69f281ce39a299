"""Norms on our own kernels: torch's numbers in Triton's interpreter and on a GPU, and networks that stay themselves."""

import copy
import io
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import adawac
from adawac.kernels import availability, fuse, norms
from adawac.kernels.norms import BatchNorm2d, FusedNorm, GroupNorm
from adawac.models import build
from tests.kernels.fused_cases import CASES, EPS, HOW, Case, blocks, computed, expected, pass_through
from tests.kernels.interpreter import computed_by

RELU, RESIDUAL, PLAIN = (True, False), (True, True), (False, False)
# What the norms of each block are followed by, in the order in which they are called.
CALLS = {
    "sequential": [RELU, PLAIN],
    "smp Conv2dReLU": [RELU],
    "torchvision BasicBlock": [RELU, RESIDUAL],
    "torchvision BasicBlock, stride": [RELU, PLAIN, RESIDUAL],
    "torchvision Bottleneck": [RELU, RELU, PLAIN, RESIDUAL],
    "timm BasicBlock": [RELU, PLAIN, RESIDUAL],
    "timm Bottleneck": [RELU, RELU, RESIDUAL],
    "timm v2 Bottleneck": [PLAIN, RELU, RELU, RESIDUAL],
}
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
# Relative to the largest value: the last step to the output's type on top of float32's sums. To bf16 Triton's
# interpreter cuts off where a GPU rounds, which doubles the error.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 1e-3}


def assert_near(ours, theirs, tolerance):
    for tensor, other in zip(ours, theirs, strict=True):
        scale = max(1.0, other.abs().max().item())
        torch.testing.assert_close(tensor.double(), other.double(), rtol=0, atol=tolerance * scale)


# -- the kernels' numbers ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    """Everything that fused_cases.py computes in Triton's interpreter."""
    return computed_by("tests.kernels.fused_cases", tmp_path_factory.mktemp("interpreted"))


def check(case, results, device="cpu"):
    """Compare with torch in float64; a batch norm also counts its batches."""
    tolerance = TOLERANCE[case.dtype] if not case.offset else 1e-3
    wanted = expected(case, device)
    if not case.groups:
        *results, batches = results
        assert batches == 6
    assert results[0].dtype == results[1].dtype == case.dtype
    assert results[2].dtype == results[3].dtype == torch.float32
    assert results[0].is_contiguous(memory_format=torch.channels_last)
    assert_near(results, wanted, tolerance)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_kernels_give_torchs_numbers(interpreted, case):
    check(case, interpreted["cases"][str(case)])


def test_the_kernels_leave_their_counters_at_zero(interpreted):
    assert interpreted["counters"]
    assert not any(tensor.any() for tensor in interpreted["counters"])


@pytest.mark.parametrize("name", CALLS)
def test_fused_blocks_give_the_originals_numbers(interpreted, name):
    assert_near(interpreted["blocks"][name], pass_through(blocks()[name]), 1e-5)


@pytest.mark.parametrize("name", CALLS)
def test_fused_blocks_ask_for_what_follows_the_norm(interpreted, name):
    assert interpreted["calls"][name] == CALLS[name]


@pytest.mark.parametrize(
    ("rows", "channels", "samples", "groups"), [(50, 16, 48, 16), (10**7, 16, 1, 16), (7, 3, 2, 1)]
)
def test_every_row_is_in_one_chunk(rows, channels, samples, groups):
    plan = norms._plan(samples, rows, channels, groups)
    for size, (columns, chunks, _) in ((plan.chunk, plan.reduce), (plan.stretch, plan.stream)):
        assert (chunks - 1) * size < rows <= chunks * size
        assert columns * plan.tile["BLOCK_C"] >= channels
        assert chunks <= 65535
    assert plan.group["BLOCK_J"] >= plan.group["SIZE"] == channels // groups
    assert plan.reduce[0] * (plan.tile["BLOCK_C"] // plan.group["BLOCK_J"]) >= groups


# -- networks ----------------------------------------------------------------------------------------------------------

NETWORKS = {"unet": 46, "transunet-small": 31}  # norms


def network(name, seed=0, **options):
    if name.startswith("transunet"):
        options["dropout"] = 0.0
    built, tap = build(name, 4, image_size=64, seed=seed, **options)
    return built.to(memory_format=torch.channels_last).train(), tap


def images(rows=2, size=64):
    return torch.randn(rows, 1, size, size, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def recorded(monkeypatch):
    """Let norms think that they have a kernel, computed by torch; what they are asked for is listed."""
    calls = []

    def fused(self, x, residual=None, relu=False):
        calls.append((relu, residual is not None))
        y = nn.BatchNorm2d.forward(self, x) if isinstance(self, BatchNorm2d) else nn.GroupNorm.forward(self, x)
        y = y if residual is None else y + residual
        return F.relu(y) if relu else y

    for norm in (BatchNorm2d, GroupNorm):
        monkeypatch.setattr(norm, "fits", lambda self, x, residual=None: True)
        monkeypatch.setattr(norm, "fused", fused)
    return calls


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_on_the_cpu_stays_itself(name):
    plain, _ = network(name)
    fused, _ = network(name)
    assert fuse(fused) == NETWORKS[name]
    assert list(fused.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in fused.named_modules()] == [name for name, _ in plain.named_modules()]
    x = images()
    y = fused(x)
    assert torch.equal(y, plain(x))
    y.square().mean().backward()
    plain.load_state_dict(fused.state_dict())
    assert all(parameter.grad is not None for parameter in fused.parameters())
    assert torch.equal(fused.eval()(x), plain.eval()(x))
    assert fuse(fused) == 0  # they are already


@pytest.mark.parametrize(
    ("name", "calls"),
    [("unet", {RELU: 27, RESIDUAL: 16, PLAIN: 3}), ("transunet-small", {RELU: 22, RESIDUAL: 6, PLAIN: 3})],
)
def test_networks_are_fused_throughout(recorded, name, calls):
    plain, tap_name = network(name)
    fused, _ = network(name)
    fuse(fused)
    taps = [adawac.EncoderTap(model, tap_name) for model in (plain, fused)]
    wanted = plain(images())
    assert torch.equal(fused(images()), wanted)
    assert torch.equal(*(tap.pop() for tap in taps))
    assert {kind: recorded.count(kind) for kind in (RELU, RESIDUAL, PLAIN)} == calls
    assert len(recorded) == NETWORKS[name]


@pytest.mark.parametrize("encoder", ["resnet50", "tu-resnet18"])
def test_other_encoders_are_fused_as_well(recorded, encoder):
    plain, _ = network(f"smp:Unet/{encoder}")
    fused, _ = network(f"smp:Unet/{encoder}")
    fuse(fused)
    assert torch.equal(fused(images()), plain(images()))
    residuals = {"resnet50": 16, "tu-resnet18": 8}
    assert recorded.count(RESIDUAL) == residuals[encoder]


@pytest.mark.parametrize("name", ["encoder.layer1.0.bn1", "encoder.layer1.0.relu", "decoder.blocks.0.conv1.1"])
def test_a_hook_anywhere_sees_what_it_would_have_seen(recorded, name):
    seen = []
    for fused in (False, True):
        model, _ = network("unet")
        if fused:
            fuse(model)
        model.get_submodule(name).register_forward_hook(lambda module, inputs, output: seen.append(output.clone()))
        model(images())
    assert len(seen) % 2 == 0
    for before, after in zip(seen[: len(seen) // 2], seen[len(seen) // 2 :], strict=True):
        assert torch.equal(before, after)


def test_blocks_with_something_between_norm_and_relu_keep_their_forward():
    from timm.layers import SEModule
    from timm.models.resnet import BasicBlock

    between = BasicBlock(8, 8, attn_layer=SEModule)
    assert fuse(between) == 2
    assert type(between) is BasicBlock
    gelu = nn.Sequential(nn.BatchNorm2d(4), nn.GELU())
    fuse(gelu)
    assert type(gelu) is nn.Sequential


def test_fused_networks_can_be_copied_saved_and_loaded():
    fused, _ = network("transunet-small")
    fuse(fused)
    copied = copy.deepcopy(fused)
    file = io.BytesIO()
    torch.save(fused, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    x = images()
    for model in (copied, again):
        assert [type(module) for module in model.modules()] == [type(module) for module in fused.modules()]
        assert torch.equal(model.eval()(x), fused.eval()(x))


@pytest.mark.parametrize("name", ["torchvision BasicBlock, stride", "timm v2 Bottleneck", "sequential"])
def test_the_compiler_sees_torchs_own_functions_in_one_graph(monkeypatch, name):
    monkeypatch.setattr(availability, "INTERPRETED", True)  # so that nothing but the compiler keeps the kernels away
    monkeypatch.setattr(norms, "works", lambda device: True)
    block, plain = blocks()[name].train(), blocks()[name].train()
    fuse(block)
    x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)
    compiled = torch.compile(block.to(memory_format=torch.channels_last), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), plain(x))


def test_inputs_that_the_kernels_cannot_take_go_to_torch(monkeypatch):
    monkeypatch.setattr(availability, "INTERPRETED", True)
    monkeypatch.setattr(norms, "works", lambda device: True)
    x = torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last)
    group, batch = GroupNorm(2, 4), BatchNorm2d(4)
    assert group.fits(x, x)
    assert batch.fits(x, x)
    assert not group.fits(x.contiguous())
    assert not group.fits(x.double())
    assert not group.fits(x[:0])
    assert not group.fits(x, x.bfloat16())
    assert not group.fits(x, x.contiguous())
    assert not group.fits(x, x[:1])
    assert not GroupNorm(2, 4, affine=False).fits(x)
    assert not GroupNorm(2, 4).bfloat16().fits(x)
    assert not group.fits(torch.randn(2, 4, 3))
    assert not GroupNorm(4, 4).fits(x[:1, :, :1, :1])  # torch refuses one value for each group
    assert not batch.eval().fits(x)
    assert not BatchNorm2d(4, momentum=None).fits(x)
    assert not BatchNorm2d(4, track_running_stats=False).fits(x)
    assert not BatchNorm2d(4).fits(x[:1, :, :1, :1])
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not group.fits(x)


def test_without_triton_torch_does_the_work(monkeypatch, caplog):
    monkeypatch.setattr(availability, "_check_version", lambda: None)  # that of an installed one may be too old
    monkeypatch.setattr(availability, "INTERPRETED", True)
    monkeypatch.setitem(sys.modules, "adawac.kernels.norm_kernels", None)
    norms.works.cache_clear()
    try:
        x = torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last)
        norm = GroupNorm(2, 4)
        assert torch.equal(norm(x), F.group_norm(x, 2, norm.weight, norm.bias))
        assert "Everything runs on torch's own kernels" in caplog.text
        assert "ImportError" in caplog.text or "ModuleNotFoundError" in caplog.text
    finally:
        norms.works.cache_clear()


def test_where_triton_is_too_old_torch_does_the_work(monkeypatch, caplog):
    """As with torch 2.6, whose Triton 3.2 compiles what a trial runs, but not the convolutions."""
    monkeypatch.setattr(pytest.importorskip("triton"), "__version__", "3.2.0+git9220")
    assert not availability.succeeds(torch.device("cpu"), lambda: None)
    assert "Everything runs on torch's own kernels" in caplog.text
    assert "Expected Triton 3.3 or newer, but got 3.2.0" in caplog.text


def test_a_trial_that_fails_says_so(caplog):
    pytest.importorskip("triton", minversion="3.3")

    def trial():
        raise AssertionError("Tensor-likes are not close!\nMore.")

    assert not availability.succeeds(torch.device("cpu"), trial)
    assert "AssertionError: Tensor-likes are not close!)" in caplog.text


def test_a_trial_runs_once_and_leaves_triton_as_it_is():
    pytest.importorskip("triton", minversion="3.3")
    jit = pytest.importorskip("triton.runtime.jit")
    run, trials = jit.JITFunction.run, []
    assert availability.succeeds(torch.device("cpu"), lambda: trials.append(jit.JITFunction.run))
    assert trials == [run]
    assert jit.JITFunction.run is run


# -- on a GPU ----------------------------------------------------------------------------------------------------------


def gpu(test):
    for mark in on_gpu:
        test = mark(test)
    return test


@gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_on_a_gpu_the_kernels_give_torchs_numbers(case):
    check(case, computed(case, "cuda"), "cuda")


@gpu
@pytest.mark.parametrize("name", ["unet", "transunet"])
def test_on_a_gpu_all_shapes_of_the_networks_give_torchs_numbers(name):
    built, _ = build(name, 4, image_size=224, seed=0)
    built = built.to("cuda", memory_format=torch.channels_last)
    assert fuse(built) > 0
    shapes = set()
    for module in built.modules():
        if isinstance(module, FusedNorm):
            module.register_forward_pre_hook(
                lambda module, inputs: shapes.add((inputs[0].shape, getattr(module, "num_groups", 0)))
            )
    with torch.autocast("cuda", torch.bfloat16):
        built(images(2, 224).cuda())
    assert len(shapes) >= 7
    for shape, groups in shapes:
        for relu, residual in HOW[:3]:
            for dtype in (torch.float32, torch.bfloat16):
                case = Case(tuple(shape), groups, relu, residual, dtype)
                check(case, computed(case, "cuda"), "cuda")


@gpu
@pytest.mark.parametrize("groups", [0, 32])
@pytest.mark.filterwarnings("ignore::UserWarning")  # of the context that autograd's thread makes
def test_on_a_gpu_a_captured_norm_is_the_eager_one_to_the_bit(groups):
    x = torch.randn(8, 64, 56, 56, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    x.requires_grad_()
    norm = (GroupNorm(groups, 64, EPS) if groups else BatchNorm2d(64, EPS)).cuda()
    gradient = torch.randn_like(x)

    def step():
        y = norm.fused(x, residual=x, relu=True)
        return [y, *torch.autograd.grad(y, (x, norm.weight, norm.bias), gradient)]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        wanted = [tensor.clone() for tensor in step()]
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    for _ in range(3):  # again and again: no sum depends on the order in which programs end
        graph.replay()
        assert all(torch.equal(tensor, other) for tensor, other in zip(results, wanted, strict=True))
    if not groups:
        assert norm.num_batches_tracked == 4


@gpu
@pytest.mark.parametrize("name", ["unet", "transunet-small"])
def test_on_a_gpu_fused_networks_give_the_plain_ones_gradients(name, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    results = []
    for fused in (False, True):
        built, tap_name = network(name)
        built = built.cuda()
        if fused:
            fuse(built)
        tap = adawac.EncoderTap(built, tap_name)
        y = built(images(4).cuda())
        y.square().mean().backward()
        gradients = [parameter.grad for parameter in built.parameters()]
        running = [value.float() for key, value in built.state_dict().items() if "running" in key or "tracked" in key]
        results.append([y.detach(), tap.pop().detach(), *gradients, *running])
    for plain, fused in zip(*results, strict=True):
        error = (plain - fused).norm() / plain.norm().clamp(min=1e-6)
        assert error < 0.03  # float32 itself is 0.008 from float64 in the UNet: norms over 16 values amplify rounding
