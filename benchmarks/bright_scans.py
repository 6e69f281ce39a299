"""Do runs score lower on scans in which the heart is bright?

    python benchmarks/bright_scans.py STORE

Intensities are scaled to each volume's own range, so that the heart is brighter in some scans than in others. The rank
correlation of each run's DSC by patient, from acdc.json, with how bright the labelled voxels of these test patients
are; of all runs on the paper's split but those with seven patients. Writes benchmarks/results/bright-scans.json; the
page is made by benchmarks/render.py.
"""

import argparse
import json
from pathlib import Path
from statistics import mean, median

from acdc_list import LIST, read_list, uses_consistency
from results_page import RESULTS, mean_dice, read_results
from scipy.stats import spearmanr

from adawac.data.store import Store

NAME = "bright-scans.json"
FAR = 5.0  # points of DSC below the mean of the other seeds


def brightness(store: Store) -> dict[str, float]:
    """Return the mean intensity of the labelled voxels of each test patient, a mean over the cases."""
    table, found = store.table.take(store.table.split == "test"), {}
    patients = dict(zip(table.case.tolist(), table.patient.tolist(), strict=True))
    for case in table.cases:
        images, labels = store.stack(case)
        found.setdefault(patients[case], []).append(float(images[:, 0][labels > 0].mean()))
    return {patient: mean(values) for patient, values in found.items()}


def describe(entries: list[dict], bright: dict[str, float], path: Path = LIST) -> dict:
    """Return how scores go with brightness, by network and by whether views are compared, and which runs are far off.

    Of each kind of runs the rank correlations, and the median DSC in % of the brightest patient; the same of each run
    that is far below its row's other seeds.
    """
    planned = {run.name: run.config(None) for run in read_list(path).runs}
    brightest, kinds, far = max(bright, key=bright.__getitem__), {}, []
    listed = [
        entry
        for entry in entries
        if (config := planned.get(entry["name"]))
        and config.data.split == "paper"
        and set(entry["patients"]) == set(bright)
    ]
    for entry in listed:
        config = planned[entry["name"]]
        scores = [entry["patients"][patient] for patient in bright]
        found = {
            "spearman": float(spearmanr(scores, list(bright.values())).statistic),
            "brightest": 100 * entry["patients"][brightest],
        }
        kinds.setdefault((config.model.name, uses_consistency(config)), []).append(found)
        others = [mean_dice(one) for one in listed if one["row"] == entry["row"] and one["seed"] != entry["seed"]]
        if others and mean_dice(entry) < mean(others) - FAR:
            far.append({"name": entry["name"], "dice": mean_dice(entry), "others": mean(others), **found})
    return {
        "patients": len(bright),
        "brightest": brightest,
        "kinds": [
            {"network": name, "consistency": compared, "runs": len(runs), **_summary(runs)}
            for (name, compared), runs in kinds.items()
        ],
        "far": sorted(far, key=lambda one: one["dice"] - one["others"]),
    }


def _summary(runs: list[dict[str, float]]) -> dict[str, float]:
    correlations = [one["spearman"] for one in runs]
    return {
        "median": median(correlations),
        "lowest": min(correlations),
        "highest": max(correlations),
        "brightest": median(one["brightest"] for one in runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    args = parser.parse_args()
    bright = brightness(Store(args.store))
    result = {"brightness": bright, **describe(read_results(), bright)}
    print(json.dumps(result, indent=2))
    (RESULTS.parent / NAME).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
