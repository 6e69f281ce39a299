"""What all tests share: shapes are checked, one thread, one hypothesis profile, and where the outside data lies."""

import multiprocessing
import os
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

from tests.places import REPOSITORY

# Shape annotations are checked here and nowhere else; the hook must come before adawac's modules are imported.
# (Not in adawac.objective, which gives its own messages for options of a wrong type.)
install_import_hook(["adawac.losses", "adawac.algorithm", "adawac.methods"], "beartype.beartype")

# A shell that starts the tests in the background lets them ignore Ctrl-C, and so would every process that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Torch's inductor warms up slowly, and the first example of a property pays for it.
settings.register_profile(
    "adawac", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("adawac")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
    # Where a process compiles or exports before its first pass back, torch lets none of its forks go back any more.
    torch.ones(1, requires_grad=True).sum().backward()


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder with all golden numbers, which are too large for the repository."""
    folder = Path(os.environ.get("ADAWAC_GOLDEN", REPOSITORY.parent / "shared" / "golden"))
    if not folder.is_dir():
        pytest.skip("the golden numbers are not here; set ADAWAC_GOLDEN to their folder")
    return folder


AXE = "axe-core@4.10.3"


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The accessibility checker, from npm; it is kept in the user's cache and is no part of this repository."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "adawac-tests" / AXE.replace("@", "-")
    script = cache / "package" / "axe.min.js"
    if not script.is_file():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("npm, which fetches axe-core, is not installed")
        place = tmp_path_factory.mktemp("axe")
        try:
            subprocess.run([npm, "pack", AXE], cwd=place, check=True, capture_output=True, timeout=60)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"npm could not fetch axe-core: {error}")
        cache.mkdir(parents=True, exist_ok=True)
        [packed] = place.glob("*.tgz")
        shutil.unpack_archive(packed, cache, filter="data")
    return script.read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _switches():
    """Put back what a run with hardware.deterministic sets for its whole process."""
    yield
    import torch

    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> Path:
    """A small phantom store."""
    from adawac.data.phantom import phantom_source
    from adawac.data.preparation import prepare

    path = tmp_path_factory.mktemp("phantom") / "store"
    prepare(phantom_source(8, seed=0, size=32, slices=(8, 10)), None, path, workers=1)
    return path


@pytest.fixture
def config(store):
    """A configuration that a core trains in moments."""
    from adawac.config import DataConfig, HardwareConfig, MethodConfig, ModelConfig, TrainConfig

    return TrainConfig(
        epochs=3,
        seed=1,
        data=DataConfig(store=store, image_size=(32, 32), batch_size=12),
        model=ModelConfig(name="tests.networks.small_network:small"),
        method=MethodConfig(name="adawac"),
        hardware=HardwareConfig(accelerator="cpu", precision="fp32"),
    )


@pytest.fixture
def change(config):
    """The configuration with some settings changed."""
    from adawac.config import override

    return lambda **changes: override(config, {name.replace("__", "."): value for name, value in changes.items()})


@pytest.fixture(scope="session")
def small_store(tmp_path_factory) -> Path:
    """An even smaller one, for grids of runs."""
    from adawac.data.phantom import phantom_source
    from adawac.data.preparation import prepare

    path = tmp_path_factory.mktemp("reproduction") / "store"
    prepare(phantom_source(8, seed=0, size=32, slices=(6, 7)), None, path, workers=1)
    return path


@pytest.fixture
def two_machines(monkeypatch):
    """A Ray cluster of two machines with a processor each, and the second of them; both can import the tests."""
    from tests.places import REPOSITORY
    from tests.ray_cluster import started

    paths = [str(REPOSITORY / "src"), str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    with started() as cluster:
        yield cluster, cluster.add_node(num_cpus=1)


@pytest.fixture(scope="session")
def job_server():
    """A process that has imported all that a job of a grid needs, and of which each job is a fork."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["adawac.train.engine", "adawac.evaluation.evaluator", "adawac.reproduction.engines", "tests.networks"]
    )
    return SimpleNamespace(get_context=lambda method: context)


@pytest.fixture(scope="module")
def forked_jobs(job_server):
    """Spare every job of a grid the import of torch, which takes seconds: else each starts Python anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("adawac.reproduction.engines.multiprocessing", job_server)
        yield


@pytest.fixture
def small_phantom(tmp_path, monkeypatch):
    """A smaller phantom where no store is named, in a cache of its own; returns the cache."""
    from adawac.data.phantom.phantom_files import phantom_store
    from adawac.train import setup

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(setup, "phantom_store", partial(phantom_store, 8, size=32, slices=(6, 7)))
    return tmp_path / "cache" / "adawac"


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory):
    """A store with a case for every outcome."""
    from tests.evaluation.drawn_cases import outcome_cases, training_cases
    from tests.networks.lookup_network import make_store

    return make_store(tmp_path_factory.mktemp("outcomes") / "store", outcome_cases() | training_cases())


@pytest.fixture(scope="session")
def varied(tmp_path_factory):
    """A store with cases of several sizes."""
    from tests.evaluation.drawn_cases import random_cases, training_cases
    from tests.networks.lookup_network import make_store

    return make_store(tmp_path_factory.mktemp("varied") / "store", random_cases() | training_cases())


@pytest.fixture
def outcome_run(outcomes, tmp_path):
    """A run on the store with a case for every outcome."""
    from tests.networks.lookup_network import make_run

    return make_run(tmp_path / "run", outcomes)
