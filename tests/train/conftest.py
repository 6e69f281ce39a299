"""A small phantom store, made once, and a configuration that a core trains in moments."""

from pathlib import Path

import pytest
import torch

from adawac.config import DataConfig, HardwareConfig, MethodConfig, ModelConfig, TrainConfig, override
from adawac.data.phantom.scanner import phantom_source
from adawac.data.preparation import prepare


@pytest.fixture(autouse=True)
def switches():
    """Put back what a run with hardware.deterministic sets for its whole process."""
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("phantom") / "store"
    prepare(phantom_source(8, seed=0, size=32, slices=(8, 10)), None, path, workers=1)
    return path


@pytest.fixture
def config(store) -> TrainConfig:
    return TrainConfig(
        epochs=3,
        seed=1,
        data=DataConfig(store=store, image_size=(32, 32), batch_size=12),
        model=ModelConfig(name="small_network:small"),
        method=MethodConfig(name="adawac"),
        hardware=HardwareConfig(accelerator="cpu", precision="fp32"),
    )


@pytest.fixture
def change(config):
    """Return the configuration with some settings changed."""
    return lambda **changes: override(config, {name.replace("__", "."): value for name, value in changes.items()})
