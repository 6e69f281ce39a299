"""A recorder on anybody's criterion: what it takes, and what it leaves alone."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import adawac
from adawac.errors import ConfigError
from adawac.integrations.recording import RunRecorder
from adawac.runs import Run


def step(criterion):
    generator = torch.Generator().manual_seed(0)
    logits, latents = (torch.randn(4, *shape, generator=generator) for shape in ((3, 8, 8), (5,)))
    return criterion(logits, torch.ones(4, 8, 8, dtype=torch.int64), latents, torch.tensor([0, 1]))


def test_copies_of_the_criterion_are_not_recorded(tmp_path):
    criterion = adawac.AdaWAC(2)
    with RunRecorder(tmp_path / "run", criterion) as recorder:
        step(criterion)
        for other in (copy.deepcopy(criterion), pickle.loads(pickle.dumps(criterion))):
            step(other)
            assert torch.equal(other.weights.log_odds, 2 * criterion.weights.log_odds)
        recorder.end_epoch(1)
    np.testing.assert_array_equal(Run(tmp_path / "run").history["beta"][0], criterion.weights.beta)


def test_settings_may_come_from_numpy_and_torch(tmp_path):
    settings = {"lr": np.float64(0.5), "sizes": (np.int64(1), torch.tensor(2)), "data": {"root": Path("scans")}}
    RunRecorder(tmp_path / "run", adawac.AdaWAC(2), settings=settings).close()
    assert Run(tmp_path / "run").settings["settings"] == {"lr": 0.5, "sizes": [1, 2], "data": {"root": "scans"}}


def test_it_wants_a_criterion(tmp_path):
    with pytest.raises(ConfigError, match=r"but got Linear\. Give what adawac\.AdaWAC"):
        RunRecorder(tmp_path / "run", torch.nn.Linear(1, 1))
    assert not (tmp_path / "run").exists()
