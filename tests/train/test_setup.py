"""Set-up: the fast layout and optimiser; a warning of epochs that end with a step on very few samples."""

import logging

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from adawac.config import OptimConfig
from adawac.data.diagnosis import diagnose
from adawac.data.loader import batch_limits
from adawac.errors import ConfigError, DataError
from adawac.train import fit
from adawac.train.setup import _nearest, build_optimizer, set_up, warn_of_short_end
from tests.networks.lookup_network import DrawnCase, make_store
from tests.train.test_engine import Stop


def last_batch(num_samples, size, world=1):
    limits = batch_limits(num_samples, size, world)
    return limits[-1] - limits[-2]


@pytest.mark.parametrize(
    ("num_samples", "size", "world", "accumulate", "said"),
    [
        (1324, 24, 1, 1, ("56 batches", "4 of 24", "data.batch_size=23 the last batch has 13")),  # ACDC
        (1324, 24, 4, 1, ("56 batches", "4 of 24", "data.batch_size=23 the last batch has 13")),
        (1324, 24, 8, 1, None),  # fewer than ranks: they join the batch before
        (1324, 24, 1, 2, None),  # shares its step with a whole batch
        (1324, 24, 1, 5, ("4 of 24",)),  # the 56th batch is alone again
        (24 * 9 + 8, 24, 1, 1, None),
        (24 * 9 + 7, 24, 1, 1, ("7 of 24",)),
        (12 * 9 + 4, 12, 1, 1, None),  # few, but not much fewer than the others
        (12 * 9 + 3, 12, 1, 1, ("3 of 12",)),
        (24 * 9, 24, 1, 1, None),
        (24, 24, 1, 1, None),  # the only batch
        (3, 3, 1, 1, None),
        (25, 24, 1, 1, ("2 batches", "1 of 24", "data.batch_size=25 the last batch has 25")),
        (9, 4, 1, 1, ("1 of 4", "data.batch_size=3 the last batch has 3")),
        (10, 3, 1, 1, None),  # noisy steps all along
        (7, 2, 1, 1, None),
        (7, 1, 1, 1, None),
    ],
)
def test_the_end_of_an_epoch_is_looked_at(caplog, num_samples, size, world, accumulate, said):
    with caplog.at_level(logging.WARNING):
        warn_of_short_end(num_samples, size, world, accumulate)
    assert bool(caplog.text) == bool(said)
    assert all(part in caplog.text for part in said or ())


@given(st.integers(1, 400), st.integers(1, 64), st.integers(1, 4))
def test_the_size_that_is_named_is_one_that_can_be_trained_with_and_ends_well(num_samples, size, world):
    size = min(size, num_samples)
    if world > size:
        return
    better = _nearest(num_samples, size, world)
    assert world <= better <= num_samples
    assert 2 * last_batch(num_samples, better, world) >= better
    nearer = range(size - abs(size - better) + 1, size + abs(size - better))
    nearer = [other for other in nearer if world <= other <= num_samples]
    assert not [other for other in nearer if 2 * last_batch(num_samples, other, world) >= other]


def test_a_run_says_it_once_and_goes_on_in_silence(change, tmp_path, caplog):
    config = change(data__batch_size=47, epochs=2)  # 48 samples
    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt):
        fit(config, tmp_path / "run", watch=Stop(1, 1))
    assert caplog.text.count("The last of the 2 batches of an epoch has 1 of 47 samples") == 1
    assert "data.batch_size=48 the last batch has 48" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        fit(None, tmp_path / "run", resume=True)
        fit(change(), tmp_path / "even")
    assert "batches of an epoch" not in caplog.text


def painted_store(folder, **values):
    """A store of cases that are of one class throughout; their names begin with their split."""
    noise = np.random.default_rng(0).random((6, 8, 8))
    cases = {
        name: DrawnCase(
            prediction=noise, label=np.full(noise.shape, value, np.uint8), patient=name, split=name.split("_")[0]
        )
        for name, value in values.items()
    }
    return make_store(folder, cases, classes=("liver", "spleen", "aorta")).path


@pytest.mark.parametrize("method", ["adawac", "trim-ratio"])
def test_training_labels_without_any_foreground_are_refused(change, tmp_path, method):
    store = painted_store(tmp_path / "painted", train_1=0, train_2=0, test_1=1)
    with pytest.raises(DataError, match=r"12 training samples .*painted are empty"):
        fit(change(data__store=store, method__name=method, data__batch_size=2), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_class_that_only_others_than_training_cases_have_is_said(change, tmp_path, caplog):
    store = painted_store(tmp_path / "painted", train_1=1, val_1=1, test_1=2, test_2=3)
    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt):
        fit(change(data__store=store, data__batch_size=2), tmp_path / "run", watch=Stop(1, 1))
    assert "No training sample has spleen, aorta" in caplog.text
    [warning] = [text for text in diagnose(store, workers=1).warnings if "training" in text]
    assert "spleen, aorta" in warning


def test_what_is_refused_is_not_advised(change, tmp_path, caplog):
    (tmp_path / "other.txt").touch()
    with caplog.at_level(logging.WARNING), pytest.raises(ValueError, match="Expected an empty folder"):
        fit(change(data__batch_size=47), tmp_path)
    assert "batches of an epoch" not in caplog.text


def test_convolutions_have_the_fast_layout_on_every_device(config):
    network = set_up(config).network
    layouts = {
        weight.is_contiguous(memory_format=torch.channels_last) for weight in network.parameters() if weight.dim() == 4
    }
    assert layouts == {True}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_cpu_has_the_fused_optimiser_with_the_plain_ones_numbers(optimizer):
    config = OptimConfig(optimizer=optimizer, lr=0.1, weight_decay=0.01)
    weights = [torch.linspace(-1, 1, 12).requires_grad_() for _ in range(2)]
    fused, plain = (build_optimizer(config, [weight], torch.device("cpu")) for weight in weights)
    assert fused.defaults["fused"]
    plain.param_groups[0]["fused"] = False
    for step in range(3):
        for weight, optimiser in zip(weights, (fused, plain), strict=True):
            optimiser.zero_grad()
            ((weight - step) ** 2).sum().backward()
            optimiser.step()
    torch.testing.assert_close(*weights)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_first_gradients_that_overflow_leave_no_trace(optimizer):
    """As those of fp16 often do; torch's fused SGD would go on with momentum that nobody has set."""
    config = OptimConfig(optimizer=optimizer, momentum=0.9)
    weights = [nn.Parameter(torch.ones(1000)) for _ in range(2)]
    for weight, gradients in zip(weights, [(torch.inf, 1.0, 1.0), (1.0, 1.0)], strict=True):
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        made = build_optimizer(config, [weight], torch.device("cpu"), scaled=True)
        for gradient in gradients:
            scaler.scale((weight * gradient).sum()).backward()
            scaler.step(made)
            scaler.update()
            made.zero_grad()
    assert torch.equal(*weights)
    assert weights[0].isfinite().all()


@pytest.mark.parametrize("forward", ["encoder", "encoder-detached"])
def test_pair_does_not_lose_its_second_view(change, forward):
    with pytest.raises(ConfigError, match="pair supervises both views"):
        set_up(change(method__name="pair", forward=forward))
