"""Time the metrics beside medpy and MONAI, on one core, and on the worst masks that we know.

    python -m benchmarks.metrics                     everything, about five minutes
    python -m benchmarks.metrics --medpy-classes 1   medpy on one of the CT's organs

Seconds are CPU seconds of one process, so that other work on the machine does not count. adawac computes all of its
metrics (Dice, both HD95, ASSD, surface Dice); medpy Dice and HD95; MONAI its HD95.
"""

import argparse
import platform
import time
import tracemalloc
import warnings
from importlib.metadata import version
from pathlib import Path
from unittest.mock import patch

import numpy as np
from scipy import ndimage

from adawac.metrics import hd95, score_volume, surfaces
from benchmarks.result_files import RESULTS, show_result

OUT = RESULTS / "metrics.json"
CT, ACDC = (150, 512, 512), (10, 256, 216)
# Centre as a share of the volume, radii in voxels: aorta, gallbladder, kidneys, liver, pancreas, spleen, stomach.
ABDOMEN = [
    ((0.50, 0.56, 0.52), (60, 14, 14)),
    ((0.55, 0.45, 0.40), (13, 25, 20)),
    ((0.40, 0.60, 0.66), (20, 40, 33)),
    ((0.40, 0.60, 0.36), (20, 40, 33)),
    ((0.60, 0.45, 0.35), (28, 110, 90)),
    ((0.50, 0.50, 0.50), (10, 20, 65)),
    ((0.60, 0.55, 0.72), (20, 50, 40)),
    ((0.60, 0.42, 0.58), (20, 50, 60)),
]
# Right ventricle, left ventricle, and the myocardium around it.
HEART = [((0.5, 0.5, 0.32), (5, 26, 24)), ((0.5, 0.5, 0.5), (5, 26, 26)), ((0.5, 0.5, 0.5), (6, 37, 37))]


def smooth(rng, shape, knots):
    """Return smooth noise through a grid of random knots."""
    zoom = [size / count for size, count in zip(shape, knots, strict=True)]
    return ndimage.zoom(rng.standard_normal(knots), zoom, order=3, grid_mode=True, mode="nearest")


def organs(shape, places, seed=0):
    """Return a prediction and a truth: wobbly ellipsoids, and the same with a surface that is a little off."""
    rng = np.random.default_rng(seed)
    truth, pred = np.zeros((2, *shape), dtype=np.uint8)
    for label, (share, radii) in enumerate(places, start=1):
        centre = np.multiply(share, shape)
        box = tuple(
            slice(max(0, int(at - 1.6 * radius)), min(size, int(at + 1.6 * radius) + 1))
            for at, radius, size in zip(centre, radii, shape, strict=True)
        )
        offsets = zip(np.ogrid[box], centre, radii, strict=True)
        away = np.sqrt(sum(((grid - at) / radius) ** 2 for grid, at, radius in offsets))
        away = away + 0.12 * smooth(rng, away.shape, (4, 5, 5))
        for labels, error in ((truth, 0.0), (pred, 0.06)):
            inside = away + error * smooth(rng, away.shape, (6, 9, 9)) < 1
            labels[box][inside & (labels[box] == 0)] = label
    return pred, truth


def speckles(rng, shape, count, classes=1, within=None):
    """Return a label map of single voxels, anywhere or within a mask."""
    labels = np.zeros(shape, dtype=np.uint8)
    places = np.arange(labels.size) if within is None else np.flatnonzero(within)
    labels.ravel()[rng.choice(places, count, replace=False)] = rng.integers(1, classes + 1, count)
    return labels


def seconds(call, repeats=3):
    """Return the fewest CPU seconds of a call, and its result."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        result = call()
        times.append(time.process_time() - start)
    return min(times), result


def medpy_scores(pred, truth, label):
    from medpy.metric import binary

    first, other = pred == label, truth == label
    return binary.dc(first, other), binary.hd95(first, other)


def monai_hd95(pred, truth, label):
    import torch
    from monai.metrics import compute_hausdorff_distance

    first, other = (torch.from_numpy(labels == label)[None, None] for labels in (pred, truth))
    return compute_hausdorff_distance(first, other, include_background=True, percentile=95).item()


def beside_others(pred, truth, num_classes, spacing, medpy_classes, repeats):
    """Time adawac, medpy and MONAI on the same volume, and compare their numbers."""
    own, rows = seconds(lambda: score_volume(pred, truth, num_classes), repeats)
    labels = [row.label for row in sorted(rows, key=lambda row: -row.truth_voxels)][:medpy_classes]
    medpy, found = seconds(lambda: [medpy_scores(pred, truth, label) for label in labels], repeats if own < 0.1 else 1)
    monai, directed = seconds(lambda: [monai_hd95(pred, truth, row.label) for row in rows], repeats if own < 0.1 else 1)
    by_label = {row.label: row for row in rows}
    differences = [
        max(abs(by_label[label].dice - dsc), abs(by_label[label].hd95 - distance))
        for label, (dsc, distance) in zip(labels, found, strict=True)
    ]
    all_classes = medpy / len(labels) * len(rows)
    wide = pred.astype(np.int64), truth.astype(np.int64)
    tracemalloc.start()
    score_volume(pred, truth, num_classes)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    with patch.object(surfaces, "_REACH", 0):
        tree_alone, _ = seconds(lambda: score_volume(pred, truth, num_classes), repeats)
    return {
        "shape": list(truth.shape),
        "classes": len(rows),
        "mean_dice": round(float(np.mean([row.dice for row in rows])), 4),
        "mean_hd95_voxels": round(float(np.mean([row.hd95 for row in rows])), 3),
        "adawac_s": round(own, 5),
        "adawac_with_spacing_s": round(seconds(lambda: score_volume(pred, truth, num_classes, spacing), repeats)[0], 5),
        "adawac_int64_s": round(seconds(lambda: score_volume(*wide, num_classes), repeats)[0], 5),
        "adawac_tree_alone_s": round(tree_alone, 5),
        "adawac_peak_mib": round(peak / 2**20, 1),
        "medpy_s": round(medpy, 3),
        "medpy_classes_timed": len(labels),
        "monai_hd95_s": round(monai, 3),
        "times_faster_than_medpy": round(all_classes / own, 1),
        "times_faster_than_monai": round(monai / own, 1),
        "largest_difference_to_medpy": max(differences),
        "largest_difference_to_monai_float32": max(
            abs(row.hd95_max_directed - value) for row, value in zip(rows, directed, strict=True)
        ),
    }


def worst_cases():
    """Time what a search tree, a distance transform or a look around likes least."""
    rng = np.random.default_rng(0)
    _, abdomen = organs(CT, ABDOMEN)
    z, y, x = np.ogrid[tuple(slice(size) for size in CT)]
    from_axis = (y - 256) ** 2 + (x - 256) ** 2
    pipe = np.broadcast_to((from_axis < 200**2) & (from_axis > 195**2), CT)
    core = (from_axis < 14**2) & ((x + y + z) % 2 == 0)
    ball = (z - 75) ** 2 + (y - 256) ** 2 + (x - 256) ** 2 < 74**2
    first, other, mixed = speckles(rng, CT, 300_000), speckles(rng, CT, 300_000), speckles(rng, CT, 300_000, 8)
    inside = speckles(rng, CT, 300_000, within=ball) == 1
    noise = rng.integers(0, 9, CT).astype(np.uint8)
    cases = {
        "300,000 speckles against 300,000": lambda: score_volume(first, other, 2),
        "300,000 speckles of 8 classes against 8 organs": lambda: score_volume(mixed, abdomen, 9),
        "300,000 speckles in a ball": lambda: hd95(inside, ball),
        "a porous core in a pipe": lambda: hd95(core, pipe),
        "noise in every voxel against 8 organs": lambda: score_volume(noise, abdomen, 9),
    }
    results = {name: {"adawac_s": round(seconds(call, 1)[0], 3)} for name, call in cases.items()}
    # What the third way is for: the same without it.
    with patch.object(surfaces, "_VISITS_PER_VOXEL", float("inf")):
        for name in ("300,000 speckles in a ball", "a porous core in a pipe"):
            results[name]["without_transform_s"] = round(seconds(cases[name], 1)[0], 3)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--medpy-classes", type=int, default=8, help="classes of the CT to time medpy on, largest first"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # MONAI warns of its own arguments
    libraries = {name: version(name) for name in ("numpy", "scipy", "medpy", "monai")}
    result = {
        "machine": f"{platform.machine()} CPU, one core, CPU seconds",
        "python": platform.python_version(),
        **libraries,
        "ct": beside_others(*organs(CT, ABDOMEN), 9, (3.0, 0.7, 0.7), args.medpy_classes, args.repeats),
        "acdc": beside_others(*organs(ACDC, HEART), 4, (10.0, 1.5, 1.5), 3, 4 * args.repeats),
        "worst": worst_cases(),
    }
    show_result(result, args.out)


if __name__ == "__main__":
    main()
