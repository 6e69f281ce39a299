"""Do runs score lower on scans in which the heart is bright?

    python -m studies.acdc.bright_scans STORE

Intensities are scaled to each volume's own range, so that the heart is brighter in some scans than in others. The rank
correlation of each run's DSC by patient, from the collected results, with how bright the labelled voxels of these test
patients are; of all runs on the paper's split but those with seven patients. Writes results/bright-scans.json and its
picture; the page is made by render.py.
"""

import argparse
import json
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from matplotlib.figure import Figure
from scipy.stats import spearmanr

from adawac.data.store import Store
from adawac.figures.picture import Picture
from adawac.reproduction import Grid, load_grid
from adawac.reproduction.collected_results import read_entries, run_name
from studies.layout import ASSETS, uses_consistency
from studies.overview import STYLE, save_small
from studies.page import mean_dice, other_seeds

GRID = Path(__file__).with_name("grid.yaml")
RESULTS = Path(__file__).with_name("results")
NAME = "bright-scans.json"
FAR = 5.0  # points of DSC below the mean of the other seeds
PICTURE = ASSETS / "acdc-bright-scans.png"
PICTURE_TEXT = (
    "DSC of each test patient of ACDC by how bright its heart is: flat for the median UNet run, and falling with "
    "brightness in the runs that went wrong"
)


class Kind(NamedTuple):
    """What runs have in common."""

    network: str
    consistency: bool
    """Whether two views are compared."""


def brightness(store: Store) -> dict[str, float]:
    """Return the mean intensity of the labelled voxels of each test patient, a mean over the cases."""
    table, values = store.table.take(store.table.split == "test"), {}
    patients = dict(zip(table.case.tolist(), table.patient.tolist(), strict=True))
    for case in table.cases:
        images, labels = store.stack(case)
        values.setdefault(patients[case], []).append(float(images[:, 0][labels > 0].mean()))
    return {patient: mean(of_cases) for patient, of_cases in values.items()}


def describe(entries: list[dict], bright: dict[str, float], grid: Grid) -> dict:
    """Return how scores go with brightness, by network and by whether views are compared, and which runs are far off.

    Of each kind of runs the rank correlations, and the median DSC in % of the brightest patient; the same of each run
    that is far below its row's other seeds.
    """
    brightest, kinds, far = max(bright, key=bright.__getitem__), {}, []
    listed = _listed(entries, bright, grid)
    for entry, kind in listed:
        scores = [entry["patients"][patient] for patient in bright]
        numbers = {
            "spearman": float(spearmanr(scores, list(bright.values())).statistic),
            "brightest": 100 * entry["patients"][brightest],
        }
        kinds.setdefault(kind, []).append(numbers)
        others = other_seeds(entry, (run for run, _ in listed))
        if others and mean_dice(entry) < mean(others) - FAR:
            far.append({"name": entry["name"], "dice": mean_dice(entry), "others": mean(others), **numbers})
    return {
        "patients": len(bright),
        "brightest": brightest,
        "kinds": [
            {"network": kind.network, "consistency": kind.consistency, "runs": len(runs), **_summary(runs)}
            for kind, runs in kinds.items()
        ],
        "far": sorted(far, key=lambda run: run["dice"] - run["others"]),
    }


def _summary(runs: list[dict[str, float]]) -> dict[str, float]:
    correlations = [run["spearman"] for run in runs]
    return {
        "median": median(correlations),
        "lowest": min(correlations),
        "highest": max(correlations),
        "brightest": median(run["brightest"] for run in runs),
    }


def _listed(entries: list[dict], bright: dict[str, float], grid: Grid) -> list[tuple[dict, Kind]]:
    """Return the runs that count, and what kind each of them is."""
    rows = {run_name(row, seed): row for row in grid.rows() for seed in row.seeds}
    return [
        (entry, Kind(row.config.model.name, uses_consistency(row)))
        for entry in entries
        if (row := rows.get(entry["name"]))
        and row.config.data.split == "paper"
        and set(entry["patients"]) == set(bright)
    ]


def draw(entries: list[dict], result: dict, grid: Grid, path: Path = PICTURE) -> None:
    """Draw the DSC of each patient by its brightness: medians of the UNet's runs, and the runs that went wrong."""
    bright = result["brightness"]
    patients = sorted(bright, key=bright.__getitem__)
    intensities = [bright[patient] for patient in patients]
    listed = _listed(entries, bright, grid)
    with STYLE.applied():
        figure = Figure(figsize=(STYLE.inches, 0.45 * STYLE.inches), layout="constrained")
        axes = figure.subplots()
        for consistency, colour in ((False, STYLE.muted), (True, STYLE.ce)):
            runs = [entry["patients"] for entry, kind in listed if kind == Kind("unet", consistency)]
            if not runs:
                continue
            label = f"median of {len(runs)} UNet runs {'that compare' if consistency else 'that do not compare'} views"
            medians = [100 * median(run[patient] for run in runs) for patient in patients]
            axes.plot(intensities, medians, "o-", color=colour, label=label)
        scores = {entry["name"]: entry["patients"] for entry, _ in listed}
        failing = [run["name"] for run in result["far"] if run["spearman"] < 0]
        for name, marker in zip(failing, "vsDx", strict=False):
            values = [100 * scores[name][patient] for patient in patients]
            axes.plot(intensities, values, marker, color=STYLE.acr, fillstyle="none", label=name)
        axes.set_xlabel("mean intensity of the labelled voxels, a test patient each")
        axes.set_ylabel("DSC, %")
        axes.legend(loc="lower left")
        save_small(Picture(figure=figure, title="DSC by brightness", alt=PICTURE_TEXT, style=STYLE), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    args = parser.parse_args()
    bright = brightness(Store(args.store))
    entries, (_, grid) = read_entries(RESULTS / "runs.json"), load_grid(GRID)
    result = {"brightness": bright, **describe(entries, bright, grid)}
    print(json.dumps(result, indent=2))
    (RESULTS / NAME).write_text(json.dumps(result, indent=2) + "\n")
    draw(entries, result, grid)


if __name__ == "__main__":
    main()
