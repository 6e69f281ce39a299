"""Fabric comes without torchmetrics, which it would import for its version."""

import logging

import pytest

from adawac.train import devices, fit


def test_apples_gpu_is_chosen_by_name_alone(change, monkeypatch):
    monkeypatch.setattr(devices, "Fabric", lambda **options: options)
    monkeypatch.setattr(devices.torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(devices.torch.cuda, "is_available", lambda: False)
    asked = {name: devices.build_fabric(change(hardware__accelerator=name)) for name in ("auto", "cpu", "mps")}
    assert {name: options["accelerator"] for name, options in asked.items()} == {
        "auto": "cpu",
        "cpu": "cpu",
        "mps": "mps",
    }


@pytest.mark.parametrize("speaker", ["lightning_fabric", "pytorch_lightning"])
def test_a_training_does_not_pass_on_what_fabric_advises(config, tmp_path, caplog, monkeypatch, speaker):
    """On a GPU Fabric advises to lower torch's precision, which a setting of ours decides."""
    from lightning_fabric.accelerators import CPUAccelerator
    from lightning_fabric.utilities.rank_zero import rank_zero_info
    from lightning_utilities.core import rank_zero

    # Each part of Lightning makes itself the one that speaks when it is imported.
    monkeypatch.setattr(rank_zero, "log", logging.getLogger(f"{speaker}.utilities.rank_zero"))
    advised = []

    def setup_device(self, device):
        advised.append(device)
        rank_zero_info("You are using a device that has Tensor Cores.")

    monkeypatch.setattr(CPUAccelerator, "setup_device", setup_device)
    with caplog.at_level(logging.INFO):
        fit(config, tmp_path / "run")
        assert advised
        assert "Tensor Cores" not in caplog.text
        rank_zero_info("This is somebody else's.")
        assert "somebody else's" in caplog.text
