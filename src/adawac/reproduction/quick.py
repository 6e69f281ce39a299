"""The same grid on phantom scans, small enough for a laptop: it shows that all works, and no number of the paper."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adawac.config import yamlfile
from adawac.data.phantom import phantom_source
from adawac.data.phantom_files import write_synapse_layout
from adawac.data.prepare import prepare
from adawac.data.store import is_store
from adawac.data.writing import writing
from adawac.errors import ConfigError
from adawac.reproduction.grids import Grid

__all__ = ["MARK", "phantom_store", "quick_seeds", "quick_settings"]

MARK = "QUICK: phantom scans, a small network, few epochs. These are not the paper's numbers, nor comparable to them."
"""Stands in everything that a quick grid writes."""

_FILE = Path(__file__).with_name("quick.yaml")


def quick_settings(grid: Grid) -> dict[str, Any]:
    """Return the settings that make the runs of a grid small."""
    given = _read()
    return {**given["settings"], **_data(given, grid).get("settings", {})}


def quick_seeds(grid: Grid) -> tuple[int, ...]:
    """Return as many of the grid's seeds as a quick grid runs."""
    return grid.seeds[: int(_read()["seeds"])]


def phantom_store(grid: Grid, folder: Path) -> Path:
    """Return the store that a quick grid trains on; it is drawn and prepared once."""
    which = _data(_read(), grid)
    name = grid.dataset or "synapse"
    store = folder / f"{name}-store"
    if is_store(store):
        return store
    if which.get("layout") == "synapse":
        training = {int(number): (one[0], one[1], one[2]) for number, one in which["training"].items()}
        files = folder / f"{name}-files"
        with writing(files, "the phantom"):
            write_synapse_layout(files, size=which["size"], training=training, test=which["test"])
        prepare("synapse", files, store, workers=1, progress=False)
    else:
        prepare(phantom_source(**which["phantom"]), None, store, workers=1, progress=False)
    return store


def _read() -> dict[str, Any]:
    return dict(yamlfile.parse(_FILE.read_bytes()))


def _data(given: Mapping[str, Any], grid: Grid) -> dict[str, Any]:
    name = grid.dataset or "synapse"
    if name not in given["data"]:
        known = ", ".join(given["data"])
        raise ConfigError(f"Expected the dataset of a quick grid to be one of {known}, but got {name!r}. Change it.")
    return dict(given["data"][name])
