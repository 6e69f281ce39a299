"""What all networks share: what building one yields, the registry, and how other libraries are imported."""

import importlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import nn

from adawac.errors import MissingDependencyError
from adawac.registry import Registry

Size = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Built:
    """A network with random weights, and where things are in it.

    Attributes:
        network: the network.
        tap: the submodule that gives its latent; empty where it must be named.
        encoder: the submodule that an encoder's weights belong to; empty where there is none.
        imagenet: whose ImageNet weights fit: a file of Google's, or an encoder of smp (`tu-…` for timm's); or empty.
    """

    network: nn.Module
    tap: str
    encoder: str = ""
    imagenet: str = ""


# Factories: each is called with those of num_classes, in_channels and image_size that it has parameters for, and with
# options. Those of other packages may return a network alone or (network, tap) instead of a `Built`.
MODELS: Registry[Callable[..., Any]] = Registry("model")


@contextmanager
def quietly() -> Iterator[None]:
    """Import or build without the warnings about what these libraries use of one another: a user cannot mend them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def library(name: str, install: str) -> ModuleType:
    """Import a library, or say what to install."""
    try:
        with quietly():
            return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependencyError(
            f"Expected {name!r} to be installed, but importing it failed ({error}). Run: pip install '{install}'."
        ) from error
