"""Put the results of `studies.label_errors.compare` into docs/how-to/label-errors.md.

python -m studies.label_errors.render
"""

from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.pages import each_result, fill, table
from benchmarks.result_files import ROOT
from studies.label_errors.planting import KINDS

RESULTS = Path(__file__).with_name("results")
PAGE = ROOT / "docs" / "how-to" / "label-errors.md"
NAMES = {"missed": "missed organ", "swapped": "swapped classes"}
GOAL = ("emptied", "swapped")
GOAL_FACTOR = 2.0


def block() -> str:
    """Return the tables of all results, one for each data set."""
    return each_result(RESULTS, _section)


def _section(result: dict[str, Any], name: str) -> str:
    seeds = list(result["seeds"].values())
    ways = list(seeds[0]["ways"])
    wrong = [seed["ways"][ways[0]]["all"]["wrong"] for seed in seeds]
    dice = 100 * mean(seed["dice"] for seed in seeds)
    about = (
        f"Average precision on the {name}, the mean of {len(seeds)} seeds ({', '.join(result['seeds'])}), each with "
        f"{seeds[0]['slices']} slices or about as many, {wrong[0]} of them wrong; {result['folds']} folds, "
        f"{result['epochs']} epochs of {result['model']}, DSC {dice:.1f} % out of fold."
    )
    kinds = ("all", *KINDS)
    rows = [[way, *(f"{_average(seeds, way, kind):.2f}" for kind in kinds)] for way in ways]
    shown = table(["ranked by", *(NAMES.get(kind, kind) for kind in kinds)], rows)
    first = table(
        ["precision of the first", *(str(count) for count in _counts(seeds))],
        [[way, *(f"{_precision(seeds, way, count):.2f}" for count in _counts(seeds))] for way in ways],
    )
    return f"{about}\n\n{shown}\n\n{_goal(seeds)}\n\n{first}\n\nMeasured at commit {result['commit']}."


def _average(seeds: list[dict[str, Any]], way: str, kind: str) -> float:
    return mean(seed["ways"][way][kind]["average_precision"] for seed in seeds)


def _counts(seeds: list[dict[str, Any]]) -> list[int]:
    """Return how many of the first slices all seeds and ways have a precision for."""
    lists = [{top["count"] for top in way["all"]["first"]} for seed in seeds for way in seed["ways"].values()]
    return sorted(set.intersection(*lists))


def _precision(seeds: list[dict[str, Any]], way: str, count: int) -> float:
    tops = [top for seed in seeds for top in seed["ways"][way]["all"]["first"] if top["count"] == count]
    return mean(top["precision"] for top in tops)


def _goal(seeds: list[dict[str, Any]]) -> str:
    """Say whether the goal was reached: twice the average precision of cleanlab."""
    parts = []
    for kind in GOAL:
        ours, theirs = (_average(seeds, way, kind) for way in ("adawac crossval", "cleanlab"))
        reached = "reached" if ours >= GOAL_FACTOR * theirs else "not reached"
        ceiling = f"; a perfect ranking would have {1 / theirs:.1f} times" if 1 / theirs < GOAL_FACTOR else ""
        parts.append(f"{NAMES.get(kind, kind)} {ours / theirs:.1f} times ({reached}{ceiling})")
    return f"The goal was twice cleanlab's average precision on two kinds: {', '.join(parts)}."


def rendered(page: str) -> str:
    """Return the page with the present results."""
    return fill(page, {"label-errors": block})


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
