"""What runs out: memory that must not grow, a device that is too small, a disk that is full."""

import errno
import gc
import multiprocessing
import resource

import numpy as np
import pytest
import torch

from adawac.errors import ConfigError, RunError
from adawac.runs import Run
from adawac.train import fit
from adawac.train.step import TrainStep
from tests.networks.small_network import Small


class Memory:
    """Notes the process's memory after each epoch."""

    def __init__(self):
        self.bytes, self.objects, self.tensors, self.steps = [], [], [], 0

    def start(self, *_):
        pass

    def step(self, *_):
        self.steps += 1

    def epoch(self, *_):
        gc.collect()
        objects = gc.get_objects()
        self.objects.append(len(objects))
        self.tensors.append(sum(issubclass(type(item), torch.Tensor) for item in objects))
        self.bytes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)


@pytest.mark.slow
def test_a_run_of_2000_steps_does_not_grow(change, tmp_path):
    memory = Memory()
    fit(change(epochs=500, checkpoint_every=50), tmp_path / "run", watch=memory)
    assert memory.steps >= 2000
    assert memory.tensors[-1] == memory.tensors[10]
    # What is written (the numbers of epochs) is all that may be kept: the peak settles in the first tenth.
    assert memory.bytes[-1] - memory.bytes[40] < 4 << 20


@pytest.mark.parametrize("residence", ["device", "stream"])
def test_nothing_piles_up(change, tmp_path, residence):
    """Neither loader nor recorder, checkpoints nor validation keep anything of an epoch."""
    memory = Memory()
    stream = {"data__residence": residence, "data__workers": 0}
    gc.freeze()  # what is there before is not looked at: a million objects of torch's
    try:
        fit(change(epochs=8, validation__every=1, validation__select="best", **stream), tmp_path / "run", watch=memory)
    finally:
        gc.unfreeze()
    assert len(set(memory.tensors[2:])) == 1
    assert memory.objects[-1] - memory.objects[2] < 10 * 5  # a leak of ten objects an epoch would show


def test_too_little_device_memory_says_what_to_change(config, tmp_path, monkeypatch):
    step, calls = TrainStep.__call__, []

    def hungry(self, *args):
        calls.append(args)
        if len(calls) == 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nMore text.")
        step(self, *args)

    monkeypatch.setattr(TrainStep, "__call__", hungry)
    with pytest.raises(RunError, match=r"Tried to allocate 20.00 GiB.*Lower data.batch_size.*residence=stream"):
        fit(config, tmp_path / "run")
    run = Run(tmp_path / "run")
    assert run.status == "interrupted"
    assert run.checkpoint("last").state["epoch"] == 1


def test_a_network_that_is_too_large_for_the_device_says_what_to_change(config, tmp_path, monkeypatch):
    def huge(*args, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore text.")

    monkeypatch.setattr("adawac.train.setup.build", huge)
    with pytest.raises(RunError, match=r"Tried to allocate 2.00 GiB.*Lower data.batch_size"):
        fit(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Greedy(Small):
    """Asks for more memory than there is in its eighth pass, and for more than NumPy has in its sixteenth."""

    passes = 0

    def forward(self, x):
        Greedy.passes += 1
        if Greedy.passes == 8:
            torch.empty(1 << 60)
        if Greedy.passes == 12:
            np.empty(1 << 58)
        return super().forward(x)


def greedy(num_classes, in_channels):
    return Greedy(num_classes, in_channels), "encoder"


def test_too_little_memory_of_the_cpu_says_what_to_change_and_the_run_goes_on(change, tmp_path):
    config = change(model__name="tests.train.test_resources:greedy")
    for resume in (False, True):
        with pytest.raises(RunError, match=r"allocate.*Lower data.batch_size.*optim.accumulate.*Then go on with --res"):
            fit(config, tmp_path / "run", resume=resume)
        assert Run(tmp_path / "run").status == "interrupted"
    assert Greedy.passes == 12
    again = change(model__name="tests.train.test_resources:greedy", data__batch_size=6, optim__accumulate=2)
    assert fit(again, tmp_path / "run", resume=True).status == "finished"


def test_a_killed_worker_is_named_and_the_run_goes_on(change, tmp_path):
    class Killer(Memory):
        def step(self, epoch, step):
            if (epoch, step) == (2, 1):
                for worker in multiprocessing.active_children():
                    worker.kill()

    config = change(data__residence="stream", data__workers=1)
    with pytest.raises(RunError, match=r"processes that read samples.*worker.*lower data.workers.*with --resume"):
        fit(config, tmp_path / "run", watch=Killer())
    assert Run(tmp_path / "run").checkpoint("last").state["epoch"] == 1
    assert fit(config, tmp_path / "run", resume=True).status == "finished"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("capture", ["auto", "never"])
def test_a_gpu_that_is_too_small_says_what_to_change(change, tmp_path, capture):
    torch.cuda.set_per_process_memory_fraction(0.002)
    try:
        with pytest.raises(RunError, match=r"fit into the device's memory.*Lower data.batch_size"):
            fit(
                change(
                    hardware__accelerator="cuda",
                    hardware__capture=capture,
                    data__image_size=[512, 512],
                    model__name="unet",
                    data__batch_size=40,
                ),
                tmp_path / "run",
            )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert Run(tmp_path / "run").status == "interrupted"


def test_a_disk_that_fills_up_leaves_the_last_good_checkpoint(config, tmp_path, monkeypatch):
    from adawac.runs import checkpoints

    whole = fit(config, tmp_path / "whole")
    write, calls = checkpoints._write, []

    def full(path, *args):
        calls.append(path)
        write(path, *args)
        if len(calls) == 2:
            with path.open("r+b") as file:
                file.truncate(100)
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "_write", full)
        with pytest.raises(RunError, match=r"No space left on device.*Checkpoints that are safe: last"):
            fit(config, tmp_path / "run")
    run = Run(tmp_path / "run")
    assert (run.status, run.checkpoint("last").state["epoch"]) == ("interrupted", 1)
    again = fit(None, tmp_path / "run", resume=True)
    for name, tensor in whole.checkpoint("last", "torch").tensors.items():
        assert torch.equal(tensor, again.checkpoint("last", "torch").tensors[name]), name


def test_a_last_batch_of_one_sample_and_batch_norm_at_one_pixel_is_explained(change, tmp_path, store):
    """At 32×32 a ResNet's deepest map is one pixel: BatchNorm has nothing to average if the batch is one sample."""
    with pytest.raises(ConfigError, match=r"Expected more than 1 value per channel.*data.batch_size"):
        fit(change(model__name="unet", method__name="baseline", data__batch_size=1), tmp_path / "run")
