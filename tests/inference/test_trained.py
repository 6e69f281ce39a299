"""Networks that are built to be given their weights."""

import pytest
import torch
from torch import nn

from adawac.config import ModelConfig
from adawac.errors import RunError
from adawac.inference.trained_network import _Unfilled, build_network, load_tensors
from adawac.models import build

SIZE = (64, 64)


def empty(name: str) -> nn.Module:
    return build_network(ModelConfig(name=name), None, SIZE, ["background", "heart"], ["image"])


@pytest.mark.parametrize("name", ["unet", "transunet-small", "smp:Unet/tu-tf_efficientnet_lite0", "monai:UNETR"])
def test_a_network_without_random_weights_is_the_same_once_it_has_its_own(name: str) -> None:
    trained, _ = build(name, 2, 1, SIZE, seed=3)
    network = empty(name)
    load_tensors(network, trained.state_dict(), "a test")
    for (_, buffer), (_, other) in zip(trained.named_buffers(), network.named_buffers(), strict=True):
        assert torch.equal(buffer, other)
    images = torch.randn(2, 1, *SIZE)
    with torch.no_grad():
        assert torch.equal(trained.eval()(images), network.eval()(images))


def test_no_random_numbers_are_drawn_for_weights_that_are_replaced() -> None:
    before = torch.random.get_rng_state()
    empty("monai:BasicUNet")
    assert torch.equal(before, torch.random.get_rng_state())
    build("monai:BasicUNet", 2, 1, SIZE)
    assert not torch.equal(before, torch.random.get_rng_state())


def test_who_draws_until_the_numbers_fit_gets_numbers() -> None:
    """As `torch.nn.init.trunc_normal_` does: with what lies in memory it would never end."""
    with _Unfilled():
        weight = torch.full((3, 3), 9.0)
        assert nn.init.kaiming_uniform_(weight) is weight
        assert weight.eq(9).all()
        assert weight.normal_().ne(9).all()
        assert weight.uniform_().lt(1).all()


def test_weights_that_are_missing_are_never_what_lay_in_memory() -> None:
    weights = build("unet", 2, 1, SIZE)[0].state_dict()
    name = next(iter(weights))
    del weights[name]
    with pytest.raises(RunError, match=name):
        load_tensors(empty("unet"), weights, "a test")
