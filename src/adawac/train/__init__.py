"""Training: `adawac.fit` runs a configuration and leaves a run folder."""

from typing import TYPE_CHECKING

from adawac.lazy import lazy_names

__all__ = ["Watch", "fit"]

if TYPE_CHECKING:
    from adawac.train.engine import Watch, fit

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Watch": "engine:Watch",
        "fit": "engine:fit",
    },
)
