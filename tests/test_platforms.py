"""Other platforms: nothing of POSIX that Windows lacks is needed, from `import adawac` to the report."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import REPOSITORY

PROGRAM = """
import contextlib
import multiprocessing
import os

from adawac import files
from adawac.cli import run
from adawac.data.phantom.phantom_files import write_nifti_layout

def main():
    assert not hasattr(files.os, "fork")
    with open("open", "w"), contextlib.suppress(PermissionError):
        os.replace("program.py", "open")
        raise AssertionError("an open file was replaced")
    assert multiprocessing.get_start_method() == "spawn"
    scans = write_nifti_layout("scans", 8, size=32, slices=(4, 5))
    settings = "image_size=[32,32] batch_size=12 residence=stream workers=1"
    changes = [word for setting in settings.split() for word in ("--set", f"data.{setting}")]
    changes += ["--set", "hardware.accelerator=cpu"]
    here = ["--set", "data.workers=0"]  # a process that reads samples is started once
    network = "tests.networks.small_network:small"
    for words in (
        ["prepare", "nifti", str(scans), "store", "--workers", "2"],
        ["prepare", "nifti", str(scans), "store", "--workers", "1", "--normalisation", "z-score", "--overwrite"],
        ["train", "store", "--split", "stratified", "--model", network, "--epochs", "2", "--out", "run", *changes],
        ["train", "--out", "run", "--resume", "--epochs", "3", *here],
        ["evaluate", "run", "--workers", "1"],
        ["predict", "run", "scans/imagesTr", "--out", "labels"],
        ["report", "run", "--out", "report.html"],
        ["bench", "store", "--split", "stratified", "--model", network, "--steps", "1", *changes, *here],
    ):
        assert run(words) == 0, words

if __name__ == "__main__":
    main()
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc to see what is open")
def test_all_steps_work_without_fork_locks_signals_or_replacing_open_files(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    paths = [str(REPOSITORY / "tests" / "bare_platform"), str(REPOSITORY / "src"), str(REPOSITORY)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "has no locks" in done.stderr
    assert (tmp_path / "report.html").stat().st_size > 50_000
