"""Configuration: frozen dataclasses that are checked once and go to YAML and back.

`schema` is the machinery (`Config`, `load`, `save`, `override`), `settings` those of a training run.
"""

from adawac.config.objective_options import ObjectiveOptions
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
    ViewConfig,
    recipe_names,
    recipe_path,
)

__all__ = [
    "Config",
    "DataConfig",
    "HardwareConfig",
    "Leaf",
    "MethodConfig",
    "ModelConfig",
    "ObjectiveOptions",
    "OptimConfig",
    "TrainConfig",
    "ValidationConfig",
    "ViewConfig",
    "assignments",
    "dumps",
    "from_dict",
    "leaves",
    "load",
    "override",
    "recipe_names",
    "recipe_path",
    "save",
    "section",
    "setting",
    "to_dict",
]
