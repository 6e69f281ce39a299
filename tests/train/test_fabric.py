"""Fabric comes without torchmetrics, which it would import for its version."""

import logging
import subprocess
import sys

import pytest

from adawac.train import fit
from adawac.train.fabric import _in_name_only


def test_torchmetrics_is_not_imported_and_still_can_be():
    pytest.importorskip("torchmetrics")
    code = """
import sys
import adawac.train.engine
assert "lightning_fabric" in sys.modules
assert not any(name.startswith("torchmetrics") for name in sys.modules)
import torchmetrics
print(torchmetrics.Metric.__name__)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["Metric"], done.stderr


def test_a_package_that_is_there_stays():
    with _in_name_only("pytest"):
        assert sys.modules["pytest"] is pytest
    assert sys.modules["pytest"] is pytest


def test_a_package_that_is_missing_stays_missing():
    with _in_name_only("no-such-package"):
        assert "no-such-package" not in sys.modules


def test_the_stand_in_knows_its_version_and_goes_when_an_import_fails(monkeypatch):
    monkeypatch.delitem(sys.modules, "pytest")

    def importing():
        with _in_name_only("pytest"):
            raise ImportError(sys.modules["pytest"].__version__)

    with pytest.raises(ImportError, match=pytest.__version__):
        importing()
    assert "pytest" not in sys.modules


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
