"""The phantom's store in the user's cache: prepared once, whoever asks first."""

import os
import subprocess
import sys

from adawac.data.phantom.phantom_files import phantom_store
from adawac.data.store import Store
from tests.places import REPOSITORY

SMALL = {"size": 32, "slices": (6, 7)}


def test_the_phantom_is_prepared_once_and_by_its_options(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = phantom_store(2, **SMALL)
    assert first.parent == tmp_path / "adawac"
    assert len(Store(first).cases) == 2
    written = {path: path.stat().st_mtime_ns for path in first.rglob("*")}
    assert phantom_store(2, **SMALL) == first
    assert {path: path.stat().st_mtime_ns for path in first.rglob("*")} == written
    others = {phantom_store(3, **SMALL), phantom_store(2, seed=1, **SMALL), phantom_store(2, **SMALL, modality="mr")}
    assert len({first, *others}) == 4


def test_the_cache_is_below_home_by_default(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert phantom_store(1, **SMALL).parent == tmp_path / ".cache" / "adawac"


def test_two_processes_may_ask_at_once(tmp_path):
    code = """
from adawac.data.phantom.phantom_files import phantom_store
print(phantom_store(4, size=64, slices=(20, 24)))"""
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY / "src")}
    start = [sys.executable, "-c", code]
    processes = [subprocess.Popen(start, env=env, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    (folder,) = answers
    assert len(Store(folder).cases) == 4
