"""Runs a module of these tests in Triton's interpreter, which has to be chosen before Triton is imported."""

import os
import subprocess
import sys

import pytest
import torch

from tests.places import REPOSITORY


def computed_by(module, folder):
    """Return what `python -m module FILE` writes to its file there; skip the test where Triton is too old."""
    pytest.importorskip("triton", minversion="3.3")  # an older one's kernels are not called
    path = folder / "results.pt"
    paths = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, str(path)],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return torch.load(path)
