"""What the values of a label map mean, from whatever stands beside it or in its header."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["class_names"]


def class_names(path: Path, header: Any) -> dict[int, str]:
    """Return value → name, the background first, or nothing where nobody says.

    The first that has an answer: the JSON file which `adawac predict` writes beside a label map, the classes which it
    writes into the header, and nnU-Net's dataset.json in the same folder or the one above.
    """
    stem = path.name.removesuffix(".gz").removesuffix(".nii")
    return _from_table(_read(path.with_name(f"{stem}.json"))) or _from_header(header) or _from_dataset(path)


def _read(path: Path) -> Any:
    """Return the content of a JSON file; None where there is none, or something else has that name."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _from_table(data: Any) -> dict[int, str]:
    """Read `{"classes": [{"index": 0, "value": 0, "name": "background"}, …]}`."""
    rows = data.get("classes") if isinstance(data, Mapping) else None
    try:
        ordered = sorted(rows or (), key=lambda row: int(row["index"]))
        return {int(row["value"]): str(row["name"]) for row in ordered}
    except (TypeError, KeyError, ValueError):
        return {}


def _from_header(header: Any) -> dict[int, str]:
    for extension in header.extensions:
        if extension.get_code() == 6:  # a comment
            try:
                return _from_table(json.loads(extension.get_content()))
            except (ValueError, TypeError, RecursionError):
                continue
    return {}


def _from_dataset(path: Path) -> dict[int, str]:
    """Read nnU-Net's `{"labels": {"background": 0, …}}`, or the Decathlon's `{"labels": {"0": "background", …}}`."""
    for folder in (path.parent, path.parent.parent):
        data = _read(folder / "dataset.json")
        labels = data.get("labels") if isinstance(data, Mapping) else None
        if isinstance(labels, Mapping):
            pairs = [(one, two) if isinstance(two, str) else (two, one) for one, two in labels.items()]
            try:
                return dict(sorted((int(value), str(name)) for value, name in pairs))
            except (TypeError, ValueError):
                return {}
    return {}
