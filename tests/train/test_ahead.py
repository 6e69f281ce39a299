"""Kernels are compiled before the training asks for them: the right ones, where it looks for them, and without torch.

The compiler is Triton's own. There is no GPU: where CUDA's driver is asked, a library of four functions answers.
"""

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from adawac.config import TrainConfig, override
from adawac.train import ahead, fit
from tests.places import REPOSITORY

pytest.importorskip("triton")

DRIVER = """
int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int number) { *device = 7; return 0; }
int cuDeviceGetAttribute(int *value, int what, int device) { *value = device != 7 ? 1 : what == 75 ? 9 : 0; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(long)device; return 0; }
"""
MAIN = """
import sys
from pathlib import Path
from adawac.train import ahead

ahead.CALLS = Path(sys.argv[1])
ahead._main("unet")
assert not hasattr(sys.modules["torch"], "nn")  # a stand-in
"""
# What the training does, up to running the kernels: with tensors, and with what lies around the kernels.
ASK = """
import json, sys
import torch
from triton import knobs
from triton.runtime import driver
from adawac.train import ahead

driver.set_active(ahead.Compiler(90))
found = []
knobs.compilation.listener = lambda src, cache_hit, **rest: found.append(cache_hit)
for call in json.loads(sys.argv[1]):
    module = __import__(call["module"], fromlist=["kernels"])
    given = [torch.zeros(64, dtype=getattr(torch, one)) if isinstance(one, str) else one for one in call["arguments"]]
    getattr(module, call["kernel"]).warmup(*given, grid=(1,), **call["options"])
print(json.dumps(found))
"""
STEP = """
import json, sys
from pathlib import Path
from triton import knobs

compiled = []
knobs.compilation.listener = lambda src, cache_hit, **rest: None if cache_hit else compiled.append(src.name)
import kernel_calls

kernel_calls.step_calls(sys.argv[1], kernel_calls.phantom(Path(sys.argv[2])), "official")
print(json.dumps(compiled))
"""
LISTED = """
import json, sys
from pathlib import Path
import kernel_calls
from adawac.train import ahead

store = kernel_calls.phantom(Path(sys.argv[1]))
missing = {}
for model in kernel_calls.MODELS:
    called = kernel_calls.step_calls(model, store, "official")
    with kernel_calls.noted(run=False) as listed, kernel_calls.pretended():
        for call in ahead.known_calls(model):
            ahead._compiled(call)
    missing[model] = [len(called), sorted(set(called) - set(listed))]
print(json.dumps(missing))
"""


def run(code, *arguments, **environment):
    """Run code in a process of its own and return what it prints last."""
    before = os.environ.get("PYTHONPATH", "")
    source = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY / "benchmarks"), before])
    whole = {**os.environ, "PYTHONPATH": source, **environment}
    whole.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=whole, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout else None


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A folder with a driver that knows one GPU, of compute capability 9.0."""
    compiler = shutil.which("gcc") or pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", folder / "driver.c"], check=True)
    return folder


@pytest.fixture
def few():
    """Three calls of different kernels that are quickly compiled."""
    wanted = {"apply", "join", "input_gradient"}
    return list({call["kernel"]: call for call in ahead.known_calls("unet") if call["kernel"] in wanted}.values())


def test_a_training_finds_what_was_compiled_ahead(tmp_path, driver, few):
    pytest.importorskip("triton.knobs", reason="this Triton does not tell what its cache had")
    unknown = {**few[0], "module": "adawac.kernels.no_kernels"}  # that one fails does not stop the others
    calls = tmp_path / "calls.json"
    calls.write_text(json.dumps({"unet": [unknown, *few]}))
    cache = {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    run(MAIN, calls, LD_LIBRARY_PATH=str(driver), **cache)
    other = {**few[0], "options": {**few[0]["options"], "num_warps": 8}}
    assert run(ASK, json.dumps([*few, other]), **cache) == [True, True, True, False]


def test_the_list_has_every_kernel_that_a_step_calls(tmp_path):
    """After a change of kernels: `python benchmarks/kernel_calls.py ACDC`."""
    pytest.importorskip("triton", minversion="3.3", reason="an older Triton's are not called")
    found = run(LISTED, tmp_path / "store", CUDA_VISIBLE_DEVICES="")
    assert found.keys() == {"unet", "transunet"}
    for called, missing in found.values():
        assert called > 40
        assert missing == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("model", ["unet", "transunet"])
def test_on_a_gpu_nothing_is_left_to_compile(tmp_path, model):
    cache = {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    run("import sys\nfrom adawac.train import ahead\nahead._main(sys.argv[1])", model, **cache)
    assert run(STEP, model, tmp_path / "store", **cache) == []


def test_what_several_kernels_need_is_built_by_one_process(tmp_path):
    signatures = (["pointer", "i32"], ["pointer"], ["pointer", "i32"])
    assert [ahead._is_first(tmp_path, one) for one in signatures] == [True, True, False]


def test_a_training_waits_for_its_kernels_before_the_first_step(monkeypatch, tmp_path, config):
    happened = []
    monkeypatch.setattr(ahead, "wait", lambda: happened.append("waited"))
    watch = SimpleNamespace(
        start=lambda *_: happened.append("start"),
        step=lambda *_: happened.append("step"),
        epoch=lambda *_: None,
    )
    fit(override(config, {"epochs": 1}), tmp_path / "run", watch=watch)
    assert happened[:3] == ["start", "waited", "step"]


def test_waiting_ends_with_the_process(monkeypatch, tmp_path):
    code = "import pathlib, sys, time\ntime.sleep(1)\npathlib.Path(sys.argv[1]).touch()"
    process = subprocess.Popen([sys.executable, "-c", code, tmp_path / "done"])
    monkeypatch.setattr(ahead, "_begun", [process])
    ahead.wait()
    assert (tmp_path / "done").exists()
    ahead.wait()  # there is nothing left to wait for


def test_waiting_has_an_end(monkeypatch):
    process = subprocess.Popen([sys.executable, "-c", "import time\ntime.sleep(600)"])
    monkeypatch.setattr(ahead, "_begun", [process])
    monkeypatch.setattr(ahead, "PATIENCE", 0.1)
    ahead.wait()
    assert process.poll() is None
    process.kill()
    process.wait()


@pytest.fixture
def begun(monkeypatch):
    """The commands that are begun, on a machine with a driver."""
    commands = []
    monkeypatch.setattr(ahead, "_driver", object)
    monkeypatch.setattr(ahead, "_wake", lambda driver: commands.append("wake"))
    monkeypatch.setattr(ahead, "_process", commands.append)
    monkeypatch.setattr(ahead, "_begun", [])
    return commands


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["wake", "unet"]),
        ({"model.name": "transunet"}, ["wake", "transunet"]),
        ({"model.name": "smp:Unet/resnet18"}, ["wake"]),  # what its kernels are is not known
        ({"hardware.precision": "fp32"}, ["wake"]),  # they are others
        ({"hardware.fused": False}, ["wake"]),
        ({"hardware.compile": True}, ["wake"]),
        ({"hardware.accelerator": "cpu"}, []),
        ({"hardware.devices": 2}, ["unet"]),  # each rank has a GPU of its own
    ],
)
def test_only_what_a_training_needs_is_begun(begun, changes, expected):
    ahead.begin(override(TrainConfig(), changes))
    assert sorted(begun) == sorted(expected)


@pytest.mark.parametrize(("rank", "expected"), [("0", ["unet"]), ("1", [])])
def test_one_of_several_ranks_has_kernels_compiled(begun, monkeypatch, rank, expected):
    monkeypatch.setenv("LOCAL_RANK", rank)
    ahead.begin(TrainConfig())
    assert begun == expected


def test_nothing_is_begun_without_a_driver(monkeypatch):
    monkeypatch.setattr(ahead.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError("no such library")))
    monkeypatch.setattr(ahead, "_process", lambda model: pytest.fail("a process was begun"))
    assert not ahead.begin(TrainConfig())


def test_a_driver_without_a_gpu_has_nothing_compiled(monkeypatch):
    class Driver:
        def cuInit(self, flags):
            return 100  # no device

    monkeypatch.setattr(ahead, "_driver", Driver)
    monkeypatch.setattr(ahead, "compile_calls", lambda *_: pytest.fail("kernels were compiled"))
    ahead._main("unet")


def test_the_command_begins_before_it_imports_torch():
    code = (
        "import sys\nfrom adawac.train import ahead\nfrom adawac.cli import run\n"
        "ahead.begin = lambda config: (print(str('torch' in sys.modules).lower()), sys.exit(0))\n"
        "run(['train', 'store', '--out', 'out'])"
    )
    assert run(code) is False
