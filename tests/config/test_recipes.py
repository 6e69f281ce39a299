"""The recipes have the paper's settings, and where the text is silent those of the released code."""

import pytest

from adawac.config import TrainConfig, ViewConfig, load, recipe_names, recipe_path
from adawac.objective import PRESETS

# η_β of the text is the same for both networks; the released code has another one for UNet.
ETA_BETA = {
    ("paper", "transunet"): 1.0,
    ("paper", "unet"): 1.0,
    ("official", "transunet"): 2.0,
    ("official", "unet"): 8.0,
}


@pytest.mark.parametrize("name", [name for name in recipe_names() if name != "strong"])
def test_every_setting_of_a_recipe(name):
    dataset, network, *official = name.split("-")
    preset = "official" if official else "paper"
    config = load(TrainConfig, recipe_path(name))
    optim, data, validation = config.optim, config.data, config.validation
    assert (config.method.name, config.method.preset) == ("adawac", preset)
    assert config.method.options == {
        "eta_beta": ETA_BETA[preset, network],
        "lambda_ac": PRESETS[preset].lambda_ac,
    }
    assert (config.model.name, config.model.pretrained, config.model.tap) == (network, "imagenet", None)
    assert (optim.optimizer, optim.lr, optim.momentum, optim.weight_decay) == ("sgd", 0.01, 0.9, 1e-4)
    assert (optim.schedule, optim.warmup_epochs, optim.clip_norm, optim.ema_decay) == ("constant", 0, None, None)
    assert (config.seed, data.batch_size, data.image_size, data.split) == (1234, 24, (224, 224), "paper")
    assert (data.subset, optim.accumulate) == ("full", 1)
    assert config.epochs == {"synapse": 150, "acdc": 360}[dataset]
    assert (validation.every, validation.select) == {"synapse": (0, "last"), "acdc": (10, "best")}[dataset]
    assert (validation.metric, validation.convention) == ("dice", "adawac")
    assert config.forward == {"paper": "joint", "official": "separate"}[preset]
    views = ViewConfig(**data.views)
    assert (views.turn, views.rotate, views.max_angle) == (0.5, 1.0, 20)
    assert (views.scale, views.shift, views.gamma, views.noise) == (0, 0, 0, 0)
    assert views.mode == {"paper": "affine", "official": "released"}[preset]
