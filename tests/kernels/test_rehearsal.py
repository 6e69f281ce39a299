"""Kernels are compiled and loaded together before they run: each variant once, in threads, without being run.

The compiler is Triton's own; of the driver there is only what it asks for, so that no GPU is needed.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from adawac.kernels import availability
from adawac.kernels.rehearsal import performance, rehearsal

pytest.importorskip("triton.runtime._async_compile")

CPU = torch.device("cpu")
PROGRAM = """
import json, threading
from types import SimpleNamespace

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import MockTensor

from adawac.kernels.rehearsal import rehearsal


compiled, loaded = [], []


def load_binary(name, kernel, shared, device, *rest):
    loaded.append(threading.current_thread().name)
    return object(), object(), 32, 0, 1024


class Driver:
    get_current_target = lambda self: GPUTarget("cuda", 80, 32)
    get_current_device = lambda self: 0
    get_current_stream = lambda self, device: 0
    launcher_cls = lambda self, source, metadata: lambda *arguments: None
    utils = SimpleNamespace(get_device_properties=lambda device: {"max_shared_mem": 2**16}, load_binary=load_binary)


driver.set_active(Driver())
knobs.compilation.listener = lambda src, cache_hit, **rest: compiled.append(threading.current_thread().name)


@triton.jit
def double(x, y, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(y + at, 2 * tl.load(x + at))


@triton.jit
def broken(x, SIZE: tl.constexpr):
    tl.store(x, tl.arange(0, SIZE) + tl.arange(0, 2 * SIZE))


def call(kernel, *sizes):
    for size in sizes:
        kernel[(1,)](*[MockTensor(torch.float32, [size])] * (2 if kernel is double else 1), SIZE=size)


def call_elsewhere(*arguments):
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    thread.join()


with rehearsal(torch.device("cpu")):
    call(double, 16, 32, 16)
    call_elsewhere(double, 64, 32)
    call(broken, 16)
threads, loaders = list(compiled), list(loaded)
for size in (16, 32, 64):
    double.warmup(*[MockTensor(torch.float32, [size])] * 2, SIZE=size, grid=(1,)).run
try:
    broken.warmup(MockTensor(torch.float32, [16]), SIZE=16, grid=(1,))
    problem = None
except Exception as error:
    problem = type(error).__name__
later = len(compiled) - len(threads), len(loaded) - len(loaders)
print(json.dumps({"compiled": threads, "loaded": loaders, "later": later, "problem": problem}))
"""


def test_every_variant_is_compiled_and_loaded_once_and_in_threads(tmp_path):
    import json

    program = tmp_path / "program.py"  # Triton wants to read the kernels' source
    program.write_text(PROGRAM)
    source = str(Path(availability.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for threads in (found["compiled"], found["loaded"]):
        assert len(threads) == 3  # 16, 32 and 64, the last in the thread of a pass back
        assert all(name.startswith("ThreadPoolExecutor") for name in threads)
    assert found["later"] == [0, 0]
    assert found["problem"] == "CompilationError"  # not in the rehearsal, but where it would run


@pytest.fixture
def calls(monkeypatch):
    """Every call of a Triton kernel: with what, and whether it only is compiled."""
    jit = pytest.importorskip("triton.runtime.jit")
    calls = []

    def run(kernel, *arguments, grid, warmup, **options):
        calls.append((*arguments, "compiled" if warmup else "run"))

    monkeypatch.setattr(jit.JITFunction, "run", run)
    return calls


@pytest.fixture
def kernel():
    jit = pytest.importorskip("triton.runtime.jit")

    def same(x):
        return x

    return jit.JITFunction(same)


def test_kernels_run_again_after_a_rehearsal(calls, kernel):
    with rehearsal(CPU):
        kernel[(1,)](1)
        with performance():
            kernel[(1,)](2)
            with rehearsal(CPU):
                kernel[(1,)](3)
        kernel[(1,)](4)
    kernel[(1,)](5)
    assert calls == [(1, "compiled"), (2, "run"), (3, "compiled"), (4, "compiled"), (5, "run")]


def test_a_trial_compiles_its_kernels_together_and_then_runs_them(calls, kernel):
    def trial():
        kernel[(1,)](1)
        kernel[(1,)](2)
        assert (1, "run") in calls

    assert availability.succeeds("Something", CPU, trial)
    assert calls == [(1, "compiled"), (2, "compiled"), (1, "run"), (2, "run")]
    del calls[:]
    with rehearsal(CPU):  # in which a trial has to run as well
        assert availability.succeeds("Something", CPU, trial)
        kernel[(1,)](3)
    assert calls[-2:] == [(2, "run"), (3, "compiled")]


def test_a_trial_that_fails_says_so(calls, kernel, caplog):
    def trial():
        kernel[(1,)](1)
        raise AssertionError("Tensor-likes are not close!\nMore.")

    assert not availability.succeeds("Something", CPU, trial)
    assert "Something run on torch's own kernels" in caplog.text
    assert "AssertionError: Tensor-likes are not close!)" in caplog.text


def test_an_error_ends_a_rehearsal(calls, kernel):
    with pytest.raises(ValueError, match="no"), rehearsal(CPU):
        raise ValueError("no")
    kernel[(1,)](7)
    assert calls == [(7, "run")]
