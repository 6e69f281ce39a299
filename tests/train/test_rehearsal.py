"""Kernels are compiled together before the first step: without being run, and without a trace."""

import threading

import pytest
import torch

from adawac import gpu
from adawac.train import rehearsal


@pytest.fixture
def calls(monkeypatch):
    """Every call of a Triton kernel: which, how, and in which thread."""
    jit = pytest.importorskip("triton.runtime.jit")
    calls = []

    def run(kernel, *arguments, grid, warmup, **options):
        calls.append((kernel, arguments, warmup, threading.current_thread().name))

    monkeypatch.setattr(jit.JITFunction, "run", run)
    monkeypatch.setattr(
        rehearsal, "_on_device", lambda device, call, *arguments, **options: call(*arguments, **options)
    )
    return calls


@pytest.fixture
def kernels():
    jit = pytest.importorskip("triton.runtime.jit")

    def first(x):
        return x

    def second(x):
        return x

    return [jit.JITFunction(one) for one in (first, second)]


def test_kernels_are_compiled_in_threads_of_their_own(calls, kernels):
    one, other = kernels
    with rehearsal.rehearsal(torch.device("cpu")):
        one[(1,)](1)
        other[(1,)](2)
        one[(1,)](3)
    assert [(arguments, warmup) for kernel, arguments, warmup, _ in calls if kernel is one] == [
        ((1,), True),
        ((3,), True),
    ]
    threads = {(kernel is one, name) for kernel, _, _, name in calls}
    assert len(threads) == len({name for _, name in threads}) == 2
    assert threading.current_thread().name not in {name for _, name in threads}
    one[(1,)](4)
    assert calls[-1] == (one, (4,), False, threading.current_thread().name)  # from now on they run


def test_a_trial_runs_its_kernels_in_a_rehearsal_as_well(calls, kernels):
    with rehearsal.rehearsal(torch.device("cpu")):
        assert gpu.succeeds("Something", torch.device("cpu"), lambda: kernels[0][(1,)](5))
        kernels[0][(1,)](6)
    assert [(arguments, warmup) for _, arguments, warmup, _ in calls] == [((5,), False), ((6,), True)]


def test_an_error_ends_a_rehearsal(calls, kernels):
    with pytest.raises(ValueError, match="no"), rehearsal.rehearsal(torch.device("cpu")):
        raise ValueError("no")
    kernels[0][(1,)](7)
    assert [warmup for _, _, warmup, _ in calls] == [False]
