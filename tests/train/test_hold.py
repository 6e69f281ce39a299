"""Weights that stay at one half until the network has settled, and a warning where they should have."""

import logging

import numpy as np
import pytest
import torch

from adawac.errors import ConfigError
from adawac.runs.history import warn_of_rush
from adawac.train import fit
from tests.train.test_engine import assert_same, interrupt_and_compare

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def held(change):
    return change(method__hold_epochs=2, epochs=4)


def assert_held(run):
    beta = run.history["beta"]
    np.testing.assert_array_equal(beta[:2], 0.5)
    assert (beta[2:] != 0.5).all()


def test_weights_stay_at_one_half_and_then_move(held, tmp_path):
    assert_held(fit(held, tmp_path / "run"))


@pytest.mark.parametrize("capture", ["auto", "never"])
@pytest.mark.gpu
@on_a_gpu
def test_weights_stay_and_move_on_a_gpu(change, tmp_path, capture):
    """A step that was captured while they stayed would hold them for ever."""
    gpu = {"hardware__accelerator": "cuda", "hardware__capture": capture}
    assert_held(fit(change(method__hold_epochs=2, epochs=4, **gpu), tmp_path / "run"))


@pytest.mark.parametrize("at", [(2, 1), (3, 1), (4, 2)], ids=str)
def test_an_interrupted_run_holds_them_as_long(held, tmp_path, at):
    interrupt_and_compare(held, tmp_path, at)


def test_a_network_learns_from_held_weights_as_from_a_loop_that_does_not_move_them(held, change, tmp_path):
    """Both begin with η_β = 0 in all but name, so the first two epochs are the same."""
    run = fit(held, tmp_path / "run")
    still = fit(change(method__options={"eta_beta": 1e-30}, epochs=2), tmp_path / "still")
    np.testing.assert_array_equal(run.history["ell_ce"][:2], still.history["ell_ce"])


def test_without_a_hold_nothing_changes(change, tmp_path):
    assert_same(fit(change(method__hold_epochs=0), tmp_path / "run"), fit(change(), tmp_path / "same"))


def test_a_hold_that_never_ends_is_refused(change):
    with pytest.raises(ConfigError, match=r"method.hold_epochs: expected fewer than the 3 epochs.*never move"):
        change(method__hold_epochs=3)


def fields(low):
    """Return an epoch of 100 samples, `low` of which were switched off."""
    beta = np.full(100, 0.6, np.float32)
    beta[:low] = 0.01
    return {"beta": beta, "ell_ce": np.full(100, 0.48, np.float32), "reg_ac": np.full(100, 3.5, np.float32)}


@pytest.mark.parametrize(("low", "said"), [(0, False), (75, False), (86, True)])
def test_a_rush_to_consistency_is_told(caplog, low, said):
    with caplog.at_level(logging.WARNING):
        warn_of_rush(fields(low), 1)
    assert ("Weights of 86 % of the samples fell below 0.05 in epoch 1" in caplog.text) == said
    assert ("consistency was 3.5 and the median cross-entropy 0.48" in caplog.text) == said


def test_a_run_warns_once(change, tmp_path, caplog):
    """A consistency that is much too strong sends all weights down at once; the network may not follow it."""
    options = {"eta_beta": 50.0, "lambda_ac": 100.0}
    with caplog.at_level(logging.WARNING):
        fit(change(method__options=options, optim__lr=1e-6), tmp_path / "run")
    assert caplog.text.count("of the samples fell below") == 1
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        fit(change(method__name="pair", method__preset="official"), tmp_path / "pair")
    assert "fell below" not in caplog.text
