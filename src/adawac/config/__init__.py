"""Configuration: frozen dataclasses that are checked once and go to YAML and back.

`schema` is the machinery (`Config`, `load`, `save`, `override`), `training` the settings of a training run.
"""

from adawac.config.schema import (
    Config,
    Leaf,
    assignments,
    dumps,
    from_dict,
    leaves,
    load,
    override,
    save,
    section,
    setting,
    to_dict,
)
from adawac.config.settings import (
    DataConfig,
    HardwareConfig,
    MethodConfig,
    ModelConfig,
    OptimConfig,
    TrainConfig,
    ValidationConfig,
)

__all__ = [
    "Config",
    "DataConfig",
    "HardwareConfig",
    "Leaf",
    "MethodConfig",
    "ModelConfig",
    "OptimConfig",
    "TrainConfig",
    "ValidationConfig",
    "assignments",
    "dumps",
    "from_dict",
    "leaves",
    "load",
    "override",
    "save",
    "section",
    "setting",
    "to_dict",
]
