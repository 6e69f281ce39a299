"""Training: `adawac.fit` runs a configuration and leaves a run folder."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Where each public name lives; it is imported when it is first used, since figures want the numbers without torch.
_HOMES = {"Watch": "engine", "fit": "engine", "separation": "summary", "summarise": "summary"}

__all__ = ["Watch", "fit", "separation", "summarise"]

if TYPE_CHECKING:
    from adawac.train.engine import Watch, fit
    from adawac.train.summary import separation, summarise


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"adawac.train.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'adawac.train' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
