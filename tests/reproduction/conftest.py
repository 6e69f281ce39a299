"""What the tests of the reproduction share: a small store, made once, and a network that every process can import."""

import pytest

from tests.places import REPOSITORY


@pytest.fixture(scope="module", autouse=True)
def _networks_can_be_imported(forked_jobs):
    """Let the processes that a test starts, and Ray's, find `tests.networks`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{REPOSITORY / 'src'}:{REPOSITORY}")
        yield
