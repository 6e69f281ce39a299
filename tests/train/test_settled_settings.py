"""What a machine decides about a run: the precision that `auto` stands for."""

import pytest
import torch

from adawac.config import HardwareConfig, TrainConfig
from adawac.train import fit
from adawac.train.devices import settled


@pytest.mark.parametrize(
    ("accelerator", "gpu", "computes_bf16", "precision"),
    [
        ("auto", True, True, "bf16"),
        ("cuda", True, True, "bf16"),
        ("auto", True, False, "fp32"),
        ("auto", False, False, "fp32"),
        ("cpu", True, True, "fp32"),
    ],
)
def test_auto_is_bf16_where_a_gpu_computes_in_it(monkeypatch, accelerator, gpu, computes_bf16, precision):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: computes_bf16)
    config = TrainConfig(hardware=HardwareConfig(accelerator=accelerator))
    assert settled(config).hardware == HardwareConfig(accelerator=accelerator, precision=precision)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_a_precision_that_was_asked_for_stays(precision):
    config = TrainConfig(hardware=HardwareConfig(precision=precision))
    assert settled(config) is config


def test_a_run_folder_says_what_was_settled(change, tmp_path):
    """So that it goes on as it began, on whatever machine."""
    run = fit(change(hardware__precision="auto", epochs=1), tmp_path / "run")
    assert run.config.hardware.precision == "fp32"
    assert run.metrics == fit(change(hardware__precision="fp32", epochs=1), tmp_path / "same").metrics
