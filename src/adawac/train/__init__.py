"""Training: `adawac.fit` runs a configuration and leaves a run folder."""

from typing import TYPE_CHECKING

from adawac.lazy import lazy_names

__all__ = ["TrainingProgress", "Watch", "fit"]

if TYPE_CHECKING:
    from adawac.train.engine import TrainingProgress, fit

    Watch = TrainingProgress  # its former name

__getattr__, __dir__ = lazy_names(
    __name__, {"engine": "TrainingProgress fit"}, former={"Watch": "engine:TrainingProgress"}
)
