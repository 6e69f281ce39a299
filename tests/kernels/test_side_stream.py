"""Gradients of weights on a stream of their own: the same numbers, and awaited before anybody reads them."""

import pytest
import torch
from torch import nn

from adawac.kernels import fuse, side_stream
from adawac.kernels.weight_cast import CastWeights
from adawac.models import build

HOW = {
    "plain": {"padding": 1},
    "stride": {"padding": 1, "stride": 2},
    "dilation": {"dilation": 2, "bias": False},
    "groups": {"groups": 2},
}


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_a_convolution_has_torchs_gradients(how):
    torch.manual_seed(0)
    module = nn.Conv2d(4, 6, 3, **how).double()
    x = torch.randn(2, 4, 9, 8, dtype=torch.float64, requires_grad=True)
    wanted = (x, *module.parameters())
    result, expected = (
        [y, *torch.autograd.grad(y.square().sum(), wanted)]
        for y in (side_stream.convolve(x, module.weight, module, side_stream.Uses()), module(x))
    )
    torch.testing.assert_close(result, expected)


def test_only_a_single_use_comes_late(monkeypatch):
    def late(compute, *inputs):
        return compute(*inputs) + 100

    monkeypatch.setattr(side_stream, "on_the_side", late)
    uses = side_stream.Uses()
    results = []
    for _ in range(3):
        results.append(uses.gradient(torch.neg, torch.zeros(1)).item())
        uses.count += 1
    assert results == [0, 100, 0]


def test_on_the_cpu_nothing_comes_late():
    weight = torch.ones(1)
    side_stream.mark_late([weight])
    assert side_stream.used(weight) is None
    side_stream.await_gradients(weight.device)  # there is nothing to wait for


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore::UserWarning")  # of the context that autograd's thread makes
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("name", ["unet", "transunet-small"])
def test_on_a_gpu_late_gradients_are_the_same_to_the_bit(name, passes, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    options = {"dropout": 0.0} if name.startswith("transunet") else {}
    network, _ = build(name, 4, image_size=64, seed=0, **options)
    network = network.cuda().to(memory_format=torch.channels_last).train()
    fuse(network)
    weights = CastWeights(network, torch.bfloat16)
    images = torch.randn(passes, 4, 1, 64, 64, device="cuda")
    called = []
    original = side_stream.on_the_side
    monkeypatch.setattr(side_stream, "on_the_side", lambda *arguments: called.append(1) or original(*arguments))

    def gradients(late):
        with torch.autocast("cuda", torch.bfloat16):
            cast = weights()
            if not late:
                for weight in cast.values():
                    del weight.uses
            loss = sum(torch.func.functional_call(network, cast, (image,)).float().square().mean() for image in images)
        return torch.autograd.grad(loss, list(network.parameters()))

    expected = gradients(late=False)
    assert not called
    for _ in range(5):
        results = gradients(late=True)
        assert all(torch.equal(tensor, other) for tensor, other in zip(results, expected, strict=True))
    assert bool(called) == (passes == 1)  # with two, each weight has two gradients to add up
