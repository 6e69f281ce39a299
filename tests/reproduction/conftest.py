"""What the tests of the reproduction share: a small store, made once, and a network that every process can import."""

import sys
from pathlib import Path

import pytest

from adawac.data.phantom.scanner import phantom_source
from adawac.data.preparation import prepare

NETWORKS = Path(__file__).parents[1] / "train"  # small_network.py


@pytest.fixture(scope="session")
def small_store(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("reproduction") / "store"
    prepare(phantom_source(8, seed=0, size=32, slices=(6, 7)), None, path, workers=1)
    return path


@pytest.fixture(scope="module", autouse=True)
def _networks_can_be_imported():
    """Let this process, the processes that it starts and Ray's find `small_network`."""
    source = Path(__file__).parents[2] / "src"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(NETWORKS))
        patch.setenv("PYTHONPATH", f"{source}:{NETWORKS}")
        sys.modules.pop("small_network", None)
        yield
