"""What runs out: memory that must not grow, a device that is too small, a disk that is full."""

import errno
import gc
import resource

import pytest
import torch

from adawac.errors import ConfigError, RunError
from adawac.runs import Run
from adawac.train import fit
from adawac.train.step import TrainStep


class Memory:
    """Notes the process's memory after each epoch."""

    def __init__(self):
        self.bytes, self.tensors, self.steps = [], [], 0

    def start(self, *_):
        pass

    def step(self, *_):
        self.steps += 1

    def epoch(self, *_):
        gc.collect()
        self.tensors.append(sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects()))
        self.bytes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)


@pytest.mark.slow
def test_a_run_of_2000_steps_does_not_grow(change, tmp_path):
    memory = Memory()
    fit(change(epochs=500, checkpoint_every=50), tmp_path / "run", watch=memory)
    assert memory.steps >= 2000
    assert memory.tensors[-1] == memory.tensors[10]
    # What is written (the numbers of epochs) is all that may be kept: the peak settles in the first tenth.
    assert memory.bytes[-1] - memory.bytes[40] < 4 << 20


def test_tensors_do_not_pile_up(change, tmp_path):
    memory = Memory()
    fit(change(epochs=6), tmp_path / "run", watch=memory)
    assert len(set(memory.tensors[1:])) == 1


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
