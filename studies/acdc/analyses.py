"""The blocks of the page on ACDC that are made from files of their own: what the scripts here wrote into results/."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.pages import table
from studies.acdc.bright_scans import PICTURE, PICTURE_TEXT
from studies.layout import Layout
from studies.page import image, named

RESULTS = Path(__file__).with_name("results")


def gap(result: dict[str, Any], layout: Layout) -> str:
    """What separates the best results on ACDC from a perfect one."""
    grid, size = result["grid"], "×".join(map(str, result["size"]))
    bound = table(
        ["DSC, %", *named(grid)],
        [[f"true labels on {size} pixels and back", *(f"{value:.1f}" for value in grid.values())]],
    )
    rows = [
        [
            f"{layout.labels[row]} ({scores['seeds']})",
            f"{scores['all']:.1f}",
            ", ".join(f"{name} {value:.1f}" for name, value in scores["lowest"].items()),
            f"{scores['others']:.1f}",
        ]
        for row, scores in result["patients"].items()
    ]
    header = ["DSC, % (seeds)", "all patients", "the two that score lowest", "without these"]
    return f"{bound}\n\n{table(header, rows)}\n\n{result['cases']} test cases."


def ensemble(result: dict[str, Any], layout: Layout) -> str:
    """What several seeds of a row give together."""
    rows, classes = [], []
    for row, together in result["rows"].items():
        for name, scores in together["scores"].items():
            classes = named(scores["dice"])
            dice = [f"{value:.1f}" for value in scores["dice"].values()]
            rows.append(
                [
                    f"{layout.labels[row]}, {len(together['seeds'])} seeds, {name}",
                    *dice,
                    f"{scores['hd95']['mean']:.1f}",
                ]
            )
    return table(["DSC, %", *classes, "HD95, voxel"], rows)


def bright_scans(result: dict[str, Any], layout: Layout) -> str:
    """How scores go with the brightness of scans, and which runs are far below the other seeds of their row."""
    patient = f"DSC of {result['brightest']}"
    kinds = [
        [f"`{kind['network']}`", "yes" if kind["consistency"] else "no", kind["runs"]]
        + [f"{kind[key]:+.2f}" for key in ("median", "lowest", "highest")]
        + [f"{kind['brightest']:.0f}"]
        for kind in result["kinds"]
    ]
    header = ["network", "compares views", "runs", "rank correlation, median", "lowest", "highest", f"median {patient}"]
    forms = (".1f", ".1f", "+.2f", ".0f")
    far = [
        [f"`{run['name']}`"]
        + [f"{run[key]:{form}}" for key, form in zip(("dice", "others", "spearman", "brightest"), forms, strict=True)]
        for run in result["far"]
    ]
    below = ["runs far below their row's other seeds", "DSC, %", "the others' mean", "rank correlation", patient]
    return "\n\n".join([image(layout.page, PICTURE_TEXT, PICTURE), table(header, kinds), table(below, far)])


def norm_statistics(result: dict[str, Any], layout: Layout) -> str:
    """What runs score with their batch norms' own statistics, and with those of all training samples."""
    rows = [
        [f"`{run['name']}`, trained anew"]
        + [f"{run[kind]['dice']['mean']:.1f}" for kind in ("own", "of all samples")]
        + [f"{run['moved']:.2f}"]
        for run in result["runs"]
    ]
    moved = "means that moved farthest, in standard deviations"
    return table(["DSC, %", "statistics of the last batches", "statistics of all training samples", moved], rows)


_MAKERS: dict[str, Callable[[dict[str, Any], Layout], str]] = {
    "bright-scans": bright_scans,
    "ensemble": ensemble,
    "gap": gap,
    "norm-statistics": norm_statistics,
}


def blocks(layout: Layout) -> dict[str, str]:
    """Return the text of each of these blocks."""
    return {name: make(json.loads((RESULTS / f"{name}.json").read_text()), layout) for name, make in _MAKERS.items()}
