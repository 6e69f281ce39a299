"""The engine's parts: learning rates, the epoch's numbers, recipes."""

import numpy as np
import pytest
import torch
from torch import nn

from adawac.config import OptimConfig, TrainConfig, load
from adawac.config.settings import recipe_names, recipe_path
from adawac.errors import MissingFileError
from adawac.objective import PRESETS
from adawac.runs.history import separation, summarise
from adawac.train.setup import average, build_optimizer
from adawac.train.step import Views, learning_rate


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [1.0, 1.0, 1.0]), ("poly", [1.0, 0.5**0.9, 0.01**0.9]), ("cosine", [1.0, 0.5, 0.000246720])],
)
def test_schedules(schedule, expected):
    config = OptimConfig(lr=1.0, schedule=schedule)
    rates = [learning_rate(config, step, 100, 0) for step in (0, 50, 99)]
    np.testing.assert_allclose(rates, expected, rtol=1e-5)
    assert learning_rate(config, 101, 100, 0) == learning_rate(config, 100, 100, 0)


def test_warm_up_rises_to_the_learning_rate():
    config = OptimConfig(lr=1.0, schedule="poly")
    rates = [learning_rate(config, step, 14, 4) for step in range(14)]
    np.testing.assert_allclose(rates[:5], [0.2, 0.4, 0.6, 0.8, 1.0])
    np.testing.assert_allclose(rates[5:], [(1 - k / 10) ** 0.9 for k in range(1, 10)])


def test_the_optimiser_gets_what_the_configuration_says():
    given = {"lr": 0.3, "momentum": 0.7, "betas": (0.6, 0.8), "weight_decay": 0.02}
    for optimizer, told in (("sgd", ("lr", "momentum", "weight_decay")), ("adamw", ("lr", "betas", "weight_decay"))):
        config = OptimConfig(optimizer=optimizer, **given)
        (group,) = build_optimizer(config, [nn.Parameter(torch.zeros(2))], torch.device("cpu")).param_groups
        assert {name: group[name] for name in told} == {name: given[name] for name in told}


def test_the_average_of_weights_and_buffers_decays():
    network = nn.BatchNorm1d(1)
    averaged = average(network, 0.75)
    for value in (0.0, 4.0):
        with torch.no_grad():
            network.weight.fill_(value)
            network.running_mean.fill_(value)
        averaged.update_parameters(network)
    assert averaged.module.weight.item() == 1.0
    assert averaged.module.running_mean.item() == 1.0


def test_separation_against_a_count_of_pairs():
    rng = np.random.default_rng(0)
    ce, ac, beta = rng.random((3, 40)).astype(np.float32)
    beta[::5] = 0.5  # ties
    sparse = rng.random(40) < 0.4
    found = separation(ce, ac, beta, sparse)
    pairs = [(d > s) + 0.5 * (d == s) for d in beta[~sparse] for s in beta[sparse]]
    assert found["beta_auc"] == pytest.approx(np.mean(pairs))
    assert found["separated_sparse"] == pytest.approx(
        np.mean([c < a for c, a in zip(ce[sparse], ac[sparse], strict=True)])
    )
    assert found["separated_dense"] == pytest.approx(np.mean(ce[~sparse] > ac[~sparse]))
    assert found["spread_ce"] == pytest.approx(ce.std() / ce.mean(), rel=1e-5)
    assert found["spread_ac"] == pytest.approx(ac.std() / ac.mean(), rel=1e-5)
    tied = separation(ce, ce, beta, sparse)  # Assumption 1 is strict
    assert (tied["separated_sparse"], tied["separated_dense"]) == (0, 0)


def test_an_epoch_without_label_sparse_samples_has_no_numbers_for_them():
    ones = {name: np.ones(3, dtype=np.float32) for name in ("ell_ce", "ell_dice", "reg_ac", "beta")}
    found = summarise(ones, np.zeros(3, dtype=bool))
    assert found["beta_sparse"] is None
    assert found["beta_auc"] is None
    assert found["beta_dense"] == 1


def test_the_recipes_of_the_papers_experiments():
    papers = [
        f"{data}-{model}{preset}"
        for data in ("acdc", "synapse")
        for model in ("transunet", "unet")
        for preset in ("", "-official")
    ]
    assert recipe_names() == sorted([*papers, "strong"])
    for name in papers:
        config = load(TrainConfig, recipe_path(name))
        assert config.method.preset == ("official" if name.endswith("-official") else "paper")
        assert config.epochs == (360 if name.startswith("acdc") else 150)
        assert (config.optim.lr, config.optim.momentum, config.optim.weight_decay) == (0.01, 0.9, 1e-4)
        assert config.data.batch_size == 24
        assert config.model.options == ({"faithful": True} if "transunet" in name else {})
        assert config.validation.select == ("best" if name.startswith("acdc") else "last")
    official = load(TrainConfig, recipe_path("synapse-unet-official")).method.options
    assert official == {"eta_beta": 8.0, "lambda_ac": PRESETS["official"].lambda_ac}


@pytest.mark.parametrize(("mode", "kept"), [("nearest", True), ("bilinear", False)])
def test_repeated_pixels_keep_their_precision_under_autocast(mode, kept):
    network = nn.Sequential(nn.Conv2d(1, 4, 3, 1, 1), nn.Upsample(scale_factor=2, mode=mode))
    image = torch.randn(2, 1, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, _ = Views(network, None, "joint")(image)
        usual = network(image)
    assert (logits.dtype == torch.bfloat16) == (kept or usual.dtype == torch.bfloat16)
    assert torch.equal(logits.float(), usual.float())


def test_a_wrong_recipe_names_the_near_ones():
    with pytest.raises(MissingFileError, match=r"'acdc-unett'.*'acdc-unet'"):
        recipe_path("acdc-unett")
    assert str(recipe_path("mine.yaml")) == "mine.yaml"
