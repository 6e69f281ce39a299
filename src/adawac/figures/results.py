"""What evaluation left in several runs: the scores or the gallery that they have in common."""

import logging
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from adawac.errors import RunError, near
from adawac.runs import Run

__all__ = ["with_results"]

log = logging.getLogger(__name__)


def with_results(runs: Sequence[Run], kind: Literal["scores", "gallery"], name: str | None) -> tuple[str, list[Run]]:
    """Return the name of scores or of a gallery, and the runs that have it; those that do not are warned of.

    Args:
        runs: The runs.
        kind: What is looked for.
        name: Which of them; by default one that most of the runs have, of test cases and strict scores if possible.
    """
    there = {id(run): run.evaluations if kind == "scores" else run.galleries for run in runs}
    names = sorted({one for found in there.values() for one in found})
    if not names:
        folders = shlex.join(str(run.folder) for run in runs)
        raise RunError(f"Expected {kind} in {folders}, but got none. Make them: adawac evaluate {folders}")
    if name is None:
        name = max(
            names,
            key=lambda one: (
                sum(one in found for found in there.values()),
                one.startswith("test-strict"),
                one.startswith("test"),
            ),
        )
    if name not in names:
        raise RunError(f"Expected the name of {kind}, but got {name!r}. Near names: {near(name, names)}.")
    for run in runs:
        if name not in there[id(run)]:
            log.warning("%s has no %s %r. Make them: adawac evaluate %s", run.folder, kind, name, run.folder)
    found = [run for run in runs if name in there[id(run)]]
    for run in found:
        for part, why in run.outdated.items():
            if Path(part).parent.name == kind and Path(part).stem == name:
                log.warning("%s/%s is %s. Make it again: adawac evaluate %s", run.folder, part, why, run.folder)
    return name, found
