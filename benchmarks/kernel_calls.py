"""How steps of the usual networks call our kernels: makes src/adawac/train/kernel_calls.json, what is compiled ahead.

    python -m benchmarks.kernel_calls ACDC    # prepared; for the phantom's number of classes as well

On a GPU a step is taken. Without one it is only gone through: convolutions and matrix products return whatever lies in
memory, in the right shape, type and layout, and kernels are noted and not run.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from adawac import checks
from adawac.config import TrainConfig, override
from adawac.data import resample
from adawac.data.phantom.scanner import phantom_source
from adawac.data.preparation import prepare
from adawac.kernels import class_sums, convolutions, fuse, norms, tokens
from adawac.kernels.weight_cast import CastWeights
from adawac.train import ahead
from adawac.train.record import EpochRecord
from adawac.train.setup import Trainer, set_up
from adawac.train.step import TrainStep

MODELS = ("unet", "transunet")
PRESETS = ("paper", "official")
HEAVY = ("convolution", "mm", "addmm", "bmm", "baddbmm", "scaled_dot_product")
TRIALS = (norms.works, tokens.works, convolutions.works, class_sums._works, resample._works)


class Unworked(TorchDispatchMode):
    """Lets what takes long return without having computed anything."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, function.overloadpacket.__name__.lstrip("_")
        if not name.startswith(HEAVY):
            return function(*args, **kwargs)
        args, kwargs = tree_map_only(torch.Tensor, lambda one: one.to("meta"), (args, kwargs))

        def unworked(one):
            turned = one.dim() == 4 and name.startswith("convolution")  # as a GPU's libraries leave it
            layout = torch.channels_last if turned else torch.preserve_format
            return torch.empty_like(one, device="cpu", memory_format=layout)

        return tree_map_only(torch.Tensor, unworked, function(*args, **kwargs))


@contextmanager
def noted(run: bool) -> Iterator[dict[str, dict]]:
    """Note each variant of a kernel that is called, by what Triton knows it by, and run it if so wanted."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    calls: dict[str, dict] = {}
    original = JITFunction.run

    def note(kernel, *arguments, grid, warmup, **options):
        *_, binder = kernel.device_caches[driver.active.get_current_device()]
        _, specialised, others = binder(*arguments, **options)
        name = {"module": kernel.fn.__module__, "kernel": kernel.fn.__name__}
        given = {"arguments": [_plain(one) for one in arguments], "options": options}
        calls.setdefault(json.dumps([*name.values(), str(specialised), str(others)]), {**name, **given})
        return original(kernel, *arguments, grid=grid, warmup=warmup, **options) if run else None

    with patch.object(JITFunction, "run", note):
        yield calls


def _plain(value):
    if not isinstance(value, torch.Tensor):
        return value
    return str(value.dtype).removeprefix("torch.") + (" unaligned" if value.data_ptr() % 16 else "")


@contextmanager
def pretended() -> Iterator[None]:
    """Let tensors on the CPU pass for such that our kernels take, and trials of kernels for successful."""
    from triton.runtime import driver

    driver.set_active(ahead.Compiler(90))
    with ExitStack() as stack:
        stack.enter_context(patch.object(gpu, "INTERPRETED", True))
        stack.enter_context(patch.object(torch.testing, "assert_close", lambda *_, **__: None))
        stack.enter_context(patch.object(checks, "batch", lambda *_, **__: None))  # labels are not there either
        stack.enter_context(Unworked())
        yield


def step_calls(model: str, store: Path, preset: str) -> dict[str, dict]:
    """Return the calls of the first step of a training with AdaWAC's defaults."""
    there = torch.cuda.is_available()
    for trial in TRIALS:
        trial.cache_clear()  # each process makes them once
    changes = {"data.store": store, "data.residence": "device", "model.name": model, "method.preset": preset}
    config = override(TrainConfig(), {**changes, "hardware.precision": "bf16"})
    with noted(run=there) as calls:
        trainer = set_up(config)
        if there:
            step = TrainStep(trainer, EpochRecord(len(trainer.samples), trainer.fabric.device))
            step(next(iter(step.inputs(1, 0))), 1, 0)
            torch.cuda.synchronize()
        else:
            with pretended():
                go_through(trainer)
    return calls


def go_through(trainer: Trainer) -> None:
    """Do on the CPU what a first step does on a GPU."""
    fuse(trainer.network.to(memory_format=torch.channels_last))
    step = TrainStep(trainer, EpochRecord(len(trainer.samples), trainer.fabric.device))
    step._weights = CastWeights(trainer.views, torch.bfloat16)
    step._learn(next(iter(step.inputs(1, 0))), 1, 0)


def phantom(path: Path) -> Path:
    """Make a small store with the phantom's classes."""
    prepare(phantom_source(6, 0, size=32), None, path, progress=False)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="*", type=Path)
    args = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        stores = [*args.stores, phantom(Path(folder) / "phantom")]
        for model in MODELS:
            calls: dict[str, dict] = {}
            for store in stores:
                for preset in PRESETS:
                    calls |= step_calls(model, store, preset)
                    print(f"{model}, {preset}, {store.name}: {len(calls)} variants", flush=True)
            found[model] = list(calls.values())
    lines = (json.dumps(model) + ": [\n" + ",\n".join(map(json.dumps, calls)) + "\n]" for model, calls in found.items())
    ahead.CALLS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
