"""Views on the CPU against SciPy's rotate and zoom, and how faithful each interpolation is. Prints JSON.

    python -m benchmarks.views [--threads N] [--repeats N] [--out FILE]

Both sides make one view of a batch of 24 slices with their labels, 224 x 224, in the same run. `rotation` is the
comparison that the project's target names: every slice is rotated by a small angle. `mixture` has the paper's
distribution, where half of the views are quarter turns, which cost SciPy's side no rotation.
"""

import argparse
import platform
import statistics
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy import ndimage

from adawac.data.phantom.scanner import phantom_cases
from adawac.data.resample import Ragged, warp
from adawac.data.views import ViewConfig, make_views, sample_views
from benchmarks.result_files import show_result

BATCH, SIZE = 24, (224, 224)
SHAPES = ((512, 512), (256, 216))


def fastest(functions, repeats):
    """Return each function's shortest time, in turns: what else the machine does then hits all of them alike."""
    times = {name: [] for name in functions}
    for turn in range(repeats + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if turn:  # the first one warms up
                times[name].append(time.perf_counter() - start)
    return {name: min(values) for name, values in times.items()}


def scipy_views(images, labels, draws):
    """Make the same views as the released code does, slice by slice."""
    for image, label, turns, flip, angle in zip(images, labels, *(draw.tolist() for draw in draws[:3]), strict=True):
        for array, order in ((image, 3), (label, 0)):
            if flip >= 0:
                moved = np.flip(np.rot90(array, turns), flip)
            else:
                moved = ndimage.rotate(array, angle, order=0, reshape=False)
            ndimage.zoom(moved, [new / old for new, old in zip(SIZE, moved.shape, strict=True)], order=order)


def compare(shape, repeats):
    """Return milliseconds per batch of each way to make one view, and how many times faster than SciPy ours is."""
    rng = np.random.default_rng(0)  # no side's time depends on what the slices show
    images = rng.random((BATCH, *shape), dtype=np.float32)
    labels = rng.integers(0, 9, (BATCH, *shape), dtype=np.uint8)
    ragged = Ragged.from_arrays(images[:, None]), Ragged.from_arrays(labels[:, None])
    settings = {"seed": 0, "epoch": 0, "sample": torch.arange(BATCH), "size": SIZE, "num_views": 1}
    results = {}
    for name, turn in (("rotation", 0.0), ("mixture", 0.5)):
        kinds = {
            "bilinear": ViewConfig(turn=turn),
            "cubic": ViewConfig(turn=turn, interpolation="cubic"),
            "released": ViewConfig(turn=turn, mode="released"),
        }
        draws = sample_views(kinds["bilinear"], 0, 0, settings["sample"], 0)
        ways = {kind: partial(make_views, *ragged, config=config, **settings) for kind, config in kinds.items()}
        times = fastest({"scipy": partial(scipy_views, images, labels, draws), **ways}, repeats)
        results[name] = {
            **{f"{kind}_ms": round(1e3 * value, 1) for kind, value in times.items()},
            **{f"{kind}_times_faster": round(times["scipy"] / times[kind], 2) for kind in kinds},
        }
    return results


def fidelity(angle=13, side=256):
    """Return the error of a rotated and resized slice against a spline of order 5, relative to the slice's spread."""
    case = next(phantom_cases(1, size=side, slices=(6, 6), sparse=0.0))
    radians = np.deg2rad(angle)
    turn = np.array([[np.cos(radians), -np.sin(radians)], [np.sin(radians), np.cos(radians)]])
    theta = torch.tensor(np.c_[turn, np.zeros(2)], dtype=torch.float32)[None]
    y, x = np.meshgrid(*((2 * np.arange(new) + 1) / new - 1 for new in SIZE), indexing="ij")
    turned = (turn[1, 0] * x + turn[1, 1] * y, turn[0, 0] * x + turn[0, 1] * y)
    resized, place = ([(axis + 1) * side / 2 - 0.5 for axis in way] for way in ((y, x), turned))
    known = np.all([(axis > 3) & (axis < side - 4) for axis in place], axis=0)
    errors = {"bilinear": [], "cubic": [], "nearest rotation, cubic resize (released)": []}
    for image in np.clip(case.image[0], -125, 275):
        truth = ndimage.map_coordinates(image.astype(np.float64), place, order=5)
        given = torch.tensor(image)[None, None]
        made = {kind: warp(given, None, theta, SIZE, kind)[0][0, 0].numpy() for kind in ("bilinear", "cubic")}
        rotated = ndimage.rotate(image, angle, order=0, reshape=False)
        made["nearest rotation, cubic resize (released)"] = ndimage.map_coordinates(rotated, resized, order=3)
        for kind, result in made.items():
            errors[kind].append(float(np.sqrt(np.mean((result - truth)[known] ** 2)) / image.std()))
    return {kind: round(statistics.mean(values), 4) for kind, values in errors.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result = {
        "machine": platform.machine(),
        "threads": args.threads,
        "torch": torch.__version__,
        "batch": BATCH,
        "relative_error": fidelity(),
        **{"x".join(map(str, shape)): compare(shape, args.repeats) for shape in SHAPES},
    }
    show_result(result, args.out)


if __name__ == "__main__":
    main()
