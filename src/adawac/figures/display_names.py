"""Names as figures show them: those of runs, cases and classes are other people's text."""

import functools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from adawac.figures.style import families
from adawac.runs import Run
from adawac.runs.layout import HISTORY

METRIC_NAMES = {
    "loss": "loss",
    "ell_ce": "CE",
    "ell_dice": "Dice",
    "reg_ac": "ACR",
    "beta_sparse": "β sparse",
    "beta_dense": "β dense",
    "beta_auc": "AUC of β",
    "val_dice": "val DSC",
    "slices_per_second": "slices/s",
}
"""What a line about an epoch calls its numbers."""
_TELLING = ("preset", "model", "subset", "seed")


def plain(text: object, most: int = 28) -> str:
    """Return a text that can stand in a figure: one line, printable, shortened in its middle.

    What has no glyph and control characters (line ends, changes of direction) are shown escaped.
    """
    shown = "".join(
        letter if letter.isprintable() and ord(letter) in _glyphs() else letter.encode("unicode_escape").decode("ascii")
        for letter in str(text)
    )
    if len(shown) <= most:
        return shown
    tail = (most - 1) * 2 // 5
    return f"{shown[: most - 1 - tail]}…{shown[len(shown) - tail :]}"


def lines(text: str, most: int) -> list[str]:
    """Break a name into two lines after a separator if both are then short enough, else shorten it."""
    if len(text) <= most:
        return [text]
    breaks = [index + 1 for index, letter in enumerate(text) if letter in "_-. /"]
    fitting = [index for index in breaks if index <= most and len(text) - index <= most]
    if not fitting:
        return [plain(text, most)]
    middle = min(fitting, key=lambda index: abs(index - len(text) / 2))
    return [text[:middle], text[middle:]]


@functools.cache
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import findfont, get_font

    return frozenset().union(*(get_font(findfont(family)).get_charmap() for family in families()))


def run_labels(runs: Sequence[Run], most: int = 28) -> list[str]:
    """Return the shortest labels that tell the runs apart: the method, and what else differs."""
    parts = [[str(_about(run).get("method") or run.folder.resolve().name)] for run in runs]
    for key in _TELLING:
        values = [_about(run).get(key) for run in runs]
        for group in _alike(parts):
            if len({values[index] for index in group}) > 1:
                for index in group:
                    parts[index].append(f"seed {values[index]}" if key == "seed" else str(values[index]))
    for group in _alike(parts):
        for index in group:
            parts[index].append(runs[index].folder.resolve().name)
    for group in _alike(parts):
        for count, index in enumerate(group, 1):
            parts[index].append(f"#{count}")
    return numbered([plain(", ".join(words), most) for words in parts])


def numbered(labels: Sequence[str]) -> list[str]:
    """Return the labels, with numbers after those that are the same after shortening."""
    twice = {label for label, count in Counter(labels).items() if count > 1}
    seen: Counter[str] = Counter()
    result = []
    for label in labels:
        seen[label] += 1
        result.append(f"{label} #{seen[label]}" if label in twice else label)
    return result


def folder_names(paths: Sequence[Path]) -> list[str]:
    """Return as few of the last parts of the paths as it takes to tell different ones apart."""
    parts = [path.resolve().parts for path in paths]
    depth = 1
    while len({path[-depth:] for path in parts}) < len(set(parts)):
        depth += 1
    return ["/".join(path[-depth:]) for path in parts]


def _about(run: Run) -> dict[str, object]:
    """Return what tells a run from others; without a summary, as far as its configuration says it."""
    method, model = (run.settings.get(part) for part in ("method", "model"))
    known = {
        "method": method.get("name") if isinstance(method, dict) else method,
        "model": model.get("name") if isinstance(model, dict) else model,
        "seed": run.settings.get("seed"),
    }
    return known | run.summary


def _alike(parts: list[list[str]]) -> list[list[int]]:
    """Return the groups of indices whose parts are the same, where there is more than one."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, words in enumerate(parts):
        groups.setdefault(tuple(words), []).append(index)
    return [group for group in groups.values() if len(group) > 1]


def progress(run: Run) -> str:
    """Return the status and epoch of an unfinished run, and where its history is damaged; nothing for a whole one."""
    status = "" if run.status == "finished" else f"{run.status}, epoch {run.epoch} of {run.info.get('epochs') or '?'}"
    damage = f"{HISTORY} is damaged after epoch {run.history.epochs[-1]}" if HISTORY in run.damaged else ""
    return "; ".join(filter(None, (status, damage)))


def class_name(runs: Sequence[Run], label: int, most: int = 18) -> str:
    """Return the name of a class, from the first run that knows it."""
    for run in runs:
        names = run.data.get("class_names") or (run.samples.class_names if run.samples is not None else ())
        if isinstance(names, list | tuple) and 0 <= label < len(names):
            return plain(names[label], most)
    return f"class {label}"


def slice_name(run: Run, sample: str, most: int = 16) -> tuple[str, str]:
    """Return the case and the number of a sample, from the table or from its id (`dataset/patient/case/axis/slice`)."""
    if run.samples is not None:
        for row in (run.samples.id == sample).nonzero()[0][:1]:
            return plain(run.samples.case[row], most), f"slice {run.samples.slice[row]}"
    head, *rest = sample.split("/", 4)
    if len(rest) == 4:
        return plain(rest[1], most), f"slice {plain(rest[3], most)}"
    return plain(head if not rest else sample, most), ""
