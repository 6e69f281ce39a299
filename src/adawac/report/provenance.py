"""Where a run comes from: its settings, what it ran on, how to repeat it, and what its folder lacks."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from adawac.runs import Run
from adawac.runs.environment import scrub

__all__ = ["list_commands", "list_environments", "list_missing", "list_settings"]

_RESULTS = (
    "checkpoints",
    "scores",
    "gallery",
)  # what a sound folder may do without: nobody asked for it yet, or it was removed
_REMEDIES = {
    "config.yaml": "Without it the run cannot be repeated from its folder.",
    "environment.json": "Versions and hardware are unknown.",
    "data.json": "Class names come from the table of samples, if that is there.",
    "samples.csv": "Without it no atlas can be drawn: it says which slice each weight belongs to.",
    "metrics.jsonl": "There are no training curves before the first epoch is over.",
    "history.bin": "There is no atlas before the first epoch is over.",
    "checkpoints": "There are no weights to evaluate or predict with.",
    "scores": "Evaluate the run to get scores: adawac evaluate RUN.",
    "gallery": "Evaluate the run to get pictures: adawac evaluate RUN.",
}


def list_settings(run: Run) -> list[list[str]]:
    """Return every setting as its path and its value, without the user's home and name."""
    return [[path, _text(value)] for path, value in _flatten(run.settings)]


def list_environments(run: Run) -> list[list[list[str]]]:
    """Return name and value of what the run was made with, for each time it was started."""
    return [[[path, _text(value)] for path, value in _flatten(one)] for one in run.environments]


def list_commands(run: Run) -> list[dict[str, str]]:
    """Return command lines with what each is for."""
    name = shlex.quote(run.folder.resolve().name)
    started = [
        {"why": "as it was started" if not place else "and resumed", "command": shlex.join(map(str, one["command"]))}
        for place, one in enumerate(run.environments)
        if one.get("command")
    ]
    again = [
        {
            "why": "train it again from its own configuration",
            "command": f"adawac train --config {name}/config.yaml --out {name}-again",
        },
        {"why": "score it on its test cases", "command": f"adawac evaluate {name}"},
    ]
    own = "loop" not in run.settings  # what was trained by somebody else's loop, only that can train again
    return [*started, *(again if own else [])]


def list_missing(run: Run, more: list[str]) -> list[dict[str, Any]]:
    """Return the parts that the folder does not give, why, what that means or what to do, and if that is `normal`."""
    young = run.status == "running" and not run.epoch
    found = [
        {
            "part": part,
            "why": _text(why),
            "remedy": _REMEDIES.get(part, ""),
            "normal": part in _RESULTS or (young and part in ("metrics.jsonl", "history.bin")),
        }
        for part, why in run.missing.items()
    ]
    return found + [{"part": "a result", "why": _text(why), "remedy": "", "normal": False} for why in more]


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, one in value.items():
            yield from _flatten(one, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, value


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return ", ".join(_text(one) for one in value) or "none"
    if isinstance(value, Mapping):
        return "none"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return scrub(["", text])[1] if isinstance(value, str | Path) else text
