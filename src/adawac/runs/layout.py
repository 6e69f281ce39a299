"""Where things stand in a run folder, which version of that order this is, and its small text files."""

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from adawac.errors import RunError, reading
from adawac.files import write_text

FORMAT_VERSION = 1
"""Raised when a reader of the older version could no longer make sense of a folder."""

INFO = "run.json"
CONFIG = "config.yaml"
ENVIRONMENT = "environment.json"
DATA = "data.json"
SAMPLES = "samples.csv"
METRICS_FILE = "metrics.jsonl"
HISTORY = "history.bin"
CHECKPOINTS = "checkpoints"
SCORES = "scores"
CALIBRATION = "calibration.json"
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


def now() -> str:
    """Return the time, to the second, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_json(path: Path, advice: str = "Restore the file from a copy.") -> dict[str, Any]:
    """Read an object from a JSON file; a `RunError` with the advice if it is something else."""
    content = path.read_bytes()
    with reading(lambda reason: RunError(f"Expected JSON in {path}, but got: {reason}. {advice}")):
        data = json.loads(content)
    if not isinstance(data, dict):
        raise RunError(f"Expected a JSON object in {path}, but got {type(data).__name__}. {advice}")
    return data


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write an object to a JSON file in one step."""
    write_text(path, json.dumps(strict(data), indent=2, allow_nan=False) + "\n")


class MetricsLine(NamedTuple):
    """One line of `metrics.jsonl`, and where it ends in the file."""

    values: dict[str, Any]
    end: int


def encode_line(epoch: int, values: Mapping[str, Any]) -> bytes:
    """Return one line; a number that is not finite becomes null, which every reader of JSON knows."""
    written = {name: _written(name, value) for name, value in values.items()}
    return json.dumps({"epoch": epoch, **written}, allow_nan=False).encode("ascii") + b"\n"


def _written(name: str, value: Any) -> Any:
    """Return a metric as JSON holds it."""
    try:
        written = strict(value)
        json.dumps(written)
    except (TypeError, ValueError, RuntimeError) as error:  # an object, an array, a tensor of many elements
        raise RunError(
            f"Expected a number as metric {name!r}, but got {value!r} ({error}). Give one number."
        ) from error
    return written


def is_number(value: Any) -> bool:
    """Tell whether a metric is a number, and finite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read_lines(path: Path) -> list[MetricsLine]:
    """Return the whole lines of a file; a half-written one at its end does not count, nor does what follows damage."""
    lines: list[MetricsLine] = []
    end = 0
    content = path.read_bytes() if path.exists() else b""
    for text in content.splitlines(keepends=True):
        end += len(text)
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            break
        if not text.endswith(b"\n") or not isinstance(values, dict) or not isinstance(values.get("epoch"), int):
            break
        lines.append(MetricsLine(values, end))
    return lines


def check_rest(path: Path, end: int, mark: bytes) -> None:
    """Raise if more follows the whole records of a file, which end at `end`, than one that a kill left half-written.

    Every record begins or ends with `mark`.
    """
    rest = path.read_bytes()[end:] if path.is_file() else b""
    if 0 < rest.find(mark, 1) < len(rest) - len(mark):
        raise RunError(
            f"Expected whole records in {path}, but it is damaged after {end} bytes, and to go on would cut off all "
            "that follows. Restore it from a copy, or move it away to go on without it."
        )


def strict(value: Any) -> Any:
    """Return a value in JSON's own types: text for paths, null for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):  # a NumPy or torch scalar
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
