"""A step that is replayed as a CUDA graph: the same bits as an eager one, and eager steps where that cannot be."""

import logging

import numpy as np
import pytest
import torch
from torch import nn

from adawac.config import override
from adawac.kernels.convolutions import CastWeights
from adawac.runs import Run
from adawac.train import fit
from adawac.train.setup import set_up
from adawac.train.step import TrainStep, why_eager

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def with_batch_norm(num_classes, in_channels, image_size):
    """By the name `tests.train.test_capture:with_batch_norm`."""
    encoder = nn.Sequential(nn.Conv2d(in_channels, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.1))
    decoder = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(16, num_classes, 3, 1, 1))
    return nn.Sequential(encoder, decoder), "0"


class Nosy(nn.Module):
    """Looks at a value in every forward, which no graph can hold."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) * (1.0 if x.sum().item() < 1e9 else 0.5)


def nosy(num_classes, in_channels, image_size):
    """By the name `tests.train.test_capture:nosy`."""
    return Nosy(with_batch_norm(num_classes, in_channels, image_size)[0]), "inner.0"


def test_a_cpu_runs_eagerly_and_says_why(config):
    assert why_eager(set_up(config)) == "the device is no GPU"


def outcome(run: Run):
    saved = run.checkpoint("last", framework="torch").tensors
    return {name: value for name, value in saved.items() if not name.startswith("random")}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method.name": "pair", "method.preset": "official"},
        {"method.preset": "robust"},
        {"method.preset": "official", "forward": "encoder", "method.options": {"views": "first"}},
        {"optim.clip_norm": 0.5, "optim.ema_decay": 0.9, "optim.schedule": "poly", "optim.warmup_epochs": 1},
        {"optim.optimizer": "adamw", "optim.lr": 0.001},
        {"data.residence": "stream", "data.workers": 0},
    ],
    ids=str,
)
@pytest.mark.gpu
@on_a_gpu
def test_captured_steps_give_the_bits_of_eager_ones(config, changes, tmp_path):
    """Over 200 steps, the last batch of each epoch smaller, dropout and BatchNorm included."""
    base = {
        "model.name": "tests.train.test_capture:with_batch_norm",
        "hardware.accelerator": "cuda",
        "hardware.deterministic": True,
        "data.batch_size": 9,
        "epochs": 34,
        "checkpoint_every": 34,
        **changes,
    }
    runs = [fit(override(config, {**base, "hardware.capture": how}), tmp_path / how) for how in ("auto", "never")]
    captured, eager = map(outcome, runs)
    assert captured.keys() == eager.keys()
    for name in captured:
        assert torch.equal(captured[name], eager[name]), name
    for name in ("ell_ce", "reg_ac", "beta"):
        np.testing.assert_array_equal(runs[0].history[name], runs[1].history[name])
    assert runs[0].metrics == runs[1].metrics


def test_weights_that_are_cast_at_once_change_nothing(config):
    """Steps as a GPU takes them, on the CPU: the network keeps its parameters, and they move as autocast moves them."""
    settings = {"model.name": "tests.train.test_capture:with_batch_norm", "hardware.precision": "bf16"}
    trainers = [set_up(override(config, settings)) for _ in range(2)]
    steps = [TrainStep(trainer) for trainer in trainers]
    steps[0]._weights = CastWeights(trainers[0].views, torch.bfloat16)
    parameters = [dict(trainer.network.named_parameters()) for trainer in trainers]
    for number, index in enumerate(list(trainers[0].loader.indices(1))[:3]):
        for step in steps:
            torch.manual_seed(number)  # dropout
            step(index, 1, number)
    assert steps[0]._weights is not None
    assert all(parameter is parameters[0][name] for name, parameter in trainers[0].network.named_parameters())
    assert all(torch.equal(parameter, parameters[1][name]) for name, parameter in parameters[0].items())


class OwnPrecision(nn.Module):
    """Switches autocast off in between, where weights of another type do not fit."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            return self.inner(x.float())


def own_precision(num_classes, in_channels, image_size):
    """By the name `tests.train.test_capture:own_precision`."""
    return OwnPrecision(with_batch_norm(num_classes, in_channels, image_size)[0]), "inner.0"


def test_a_network_with_a_precision_of_its_own_casts_its_weights_itself(config):
    settings = {"model.name": "tests.train.test_capture:own_precision", "hardware.precision": "bf16"}
    trainer = set_up(override(config, settings))
    step = TrainStep(trainer)
    step._weights = CastWeights(trainer.views, torch.bfloat16)
    before = [parameter.detach().clone() for parameter in trainer.network.parameters()]
    step(next(iter(trainer.loader.indices(1))), 1, 0)
    assert step._weights is None
    assert not any(
        torch.equal(parameter, other) for parameter, other in zip(before, trainer.network.parameters(), strict=True)
    )


@pytest.mark.gpu
@on_a_gpu
def test_a_captured_bf16_step_is_an_eager_one_up_to_rounding(config):
    """From the same state: train one of two to there, copy it, take a step with each."""
    settings = {"model.name": "tests.train.test_capture:with_batch_norm", "hardware.accelerator": "cuda"}
    changed = override(config, {**settings, "hardware.precision": "bf16"})
    trainers = [set_up(override(changed, {"hardware.capture": how})) for how in ("auto", "never")]
    for trainer in trainers:  # both draw from one generator: dropout would differ
        trainer.network[0][3].p = 0.0
    steps = [TrainStep(trainer) for trainer in trainers]
    captured, eager = trainers
    for number, index in enumerate(list(captured.loader.indices(1))[:5]):
        eager.state.restore(captured.state.tensors(), captured.state.plain())
        for step in steps:
            step(index, 1, number)
        for (name, parameter), other in zip(
            captured.network.named_parameters(), eager.network.parameters(), strict=True
        ):
            torch.testing.assert_close(
                parameter, other, rtol=1e-2, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
            )
        torch.testing.assert_close(captured.criterion.weights.beta, eager.criterion.weights.beta, rtol=1e-3, atol=1e-4)
    assert steps[0]._captured._graphs, "nothing was captured"


@pytest.mark.gpu
@on_a_gpu
def test_a_network_that_cannot_be_captured_trains_eagerly_and_the_reason_is_logged(config, tmp_path, caplog):
    changed = override(config, {"model.name": "tests.train.test_capture:nosy", "hardware.accelerator": "cuda"})
    with caplog.at_level(logging.WARNING, "adawac.train.engine"):
        run = fit(changed, tmp_path / "run")
    assert run.status == "finished"
    assert "cannot be captured" in caplog.text


@pytest.mark.gpu
@on_a_gpu
def test_a_captured_run_that_is_interrupted_goes_on_as_if_nothing_had_happened(config, tmp_path):
    settings = {"hardware.accelerator": "cuda", "hardware.deterministic": True, "epochs": 4}
    changed = override(config, settings)

    class Stop:
        def start(self, *_):
            pass

        def epoch(self, *_):
            pass

        def step(self, epoch, step):
            if (epoch, step) == (3, 3):
                raise KeyboardInterrupt

    whole = fit(changed, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fit(changed, tmp_path / "run", watch=Stop())
    again = fit(None, tmp_path / "run", resume=True)
    for name, value in outcome(whole).items():
        assert torch.equal(value, outcome(again)[name]), name
