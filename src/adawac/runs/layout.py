"""Where things stand in a run folder, and which version of that order this is."""

import re
from pathlib import Path

from adawac.errors import RunError

__all__ = [
    "CHECKPOINTS",
    "CONFIG",
    "DATA",
    "ENVIRONMENT",
    "FORMAT_VERSION",
    "GALLERY",
    "HISTORY",
    "INFO",
    "METRICS",
    "SAMPLES",
    "SCORES",
    "checkpoint_path",
    "gallery_path",
    "scores_path",
]

FORMAT_VERSION = 1
"""Raised when a reader of the older version could no longer make sense of a folder."""

INFO = "run.json"
CONFIG = "config.yaml"
ENVIRONMENT = "environment.json"
DATA = "data.json"
SAMPLES = "samples.csv"
METRICS = "metrics.jsonl"
HISTORY = "history.bin"
CHECKPOINTS = "checkpoints"
SCORES = "scores"
GALLERY = "gallery"

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


def checkpoint_path(folder: Path, name: str) -> Path:
    """Return where the checkpoint `name` stands."""
    return folder / CHECKPOINTS / f"{_plain(name)}.safetensors"


def scores_path(folder: Path, name: str) -> Path:
    """Return where the scores of the evaluation `name` stand."""
    return folder / SCORES / f"{_plain(name)}.csv"


def gallery_path(folder: Path, name: str) -> Path:
    """Return where the gallery `name` stands."""
    return folder / GALLERY / f"{_plain(name)}.npz"


def _plain(name: str) -> str:
    """Return a name that becomes part of a path. Names from the data never do: they are content."""
    if not _PLAIN.fullmatch(name):
        raise RunError(f"Expected a plain name, but got {name!r}. Use up to 100 letters, digits, dots and dashes.")
    return name
