"""Jobs of one process do not reach each other: what a job may leave behind is put back."""

import logging
import os
import random
import warnings

import numpy as np
import pytest
import torch

from adawac.reproduction import load_grid
from adawac.reproduction.isolation import as_if_new
from adawac.reproduction.jobs import Outcome, make_jobs
from adawac.reproduction.worker import can_serve_again
from tests.reproduction.grid_files import write_grid


def switches():
    return {
        "dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "benchmark": torch.backends.cudnn.benchmark,
        "tf32": torch.backends.cudnn.allow_tf32,
        "environment": dict(os.environ),
        "filters": list(warnings.filters),
        "level": logging.getLogger("adawac.train").level,
    }


def leave_traces():
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_float32_matmul_precision("medium")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
    torch.backends.cudnn.allow_tf32 = not torch.backends.cudnn.allow_tf32
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
    os.environ.pop("HOME")
    warnings.simplefilter("ignore")
    logging.getLogger("adawac.train").setLevel(logging.CRITICAL)


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_job_changes_is_put_back(fails):
    before = switches()
    try:
        with as_if_new(1):
            leave_traces()
            assert all(value != before[name] for name, value in switches().items())
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    assert switches() == before


def test_generators_are_a_function_of_the_seed():
    def draw(seed):
        with as_if_new(seed):
            return random.random(), float(np.random.rand()), float(torch.rand(()))

    first = draw(7)
    assert draw(7) == first
    assert all(one != other for one, other in zip(draw(2**40), first, strict=True))


def test_a_process_is_kept_unless_its_job_may_have_left_something(tmp_path, small_store):
    def job(**last):
        _, grid = load_grid(write_grid(tmp_path / "grid.yaml"))
        return make_jobs(grid.rows(last=last), [1], small_store, tmp_path, "adawac")[0][1][0]

    assert can_serve_again(job(), Outcome(status="done"))
    assert not can_serve_again(job(), Outcome(status="failed", reason="CUDA error"))
    assert not can_serve_again(job(), Outcome(status="interrupted"))
    assert not can_serve_again(job(**{"hardware.devices": 2}), Outcome(status="done"))
