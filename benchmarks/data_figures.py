"""Draw the pictures of docs/concepts/phantom.md and docs/how-to/augmentation.md into docs/assets.

python -m benchmarks.data_figures [--size 384]
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import ListedColormap
from PIL import Image

from adawac.data.phantom.patient import CLASS_NAMES
from adawac.data.phantom.scanner import phantom_source
from adawac.data.resample import warp
from adawac.data.views import ViewConfig, sample_views

ASSETS = Path(__file__).parents[1] / "docs" / "assets"
# Okabe and Ito, with purple as the eighth: told apart by colour-blind readers, too.
COLOURS = ("#D55E00", "#009E73", "#E69F00", "#F0E442", "#56B4E9", "#CC79A7", "#0072B2", "#9A6FB0")
LABELS = ListedColormap(COLOURS)


def scan(modality, size, number=1):
    """Return a phantom patient as (image in [0, 1], label, case)."""
    source = phantom_source(number + 1, modality=modality, size=size, slices=(40, 40))
    case = source.load(source.cases()[number])
    return source.preprocessing.scale(case.image)[0], case.label, case


def show(axes, image, label=None, alpha=0.6):
    axes.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    if label is not None:
        masked = np.ma.masked_equal(label, 0)
        axes.imshow(masked, cmap=LABELS, vmin=0.5, vmax=8.5, alpha=alpha, interpolation="nearest")
    axes.set_axis_off()


def draw_phantom(size):
    figure, grid = plt.subplots(4, 5, figsize=(12, 9.9), layout="constrained")
    for pair, modality in zip((grid[:2], grid[2:]), ("ct", "mr"), strict=True):
        image, label, _ = scan(modality, size)
        dense = np.flatnonzero(label.any((1, 2)))
        rows = [dense[0] // 2, *np.linspace(dense[0] + 3, dense[-1] - 2, 4).astype(int)]
        for column, row in enumerate(rows):
            show(pair[0, column], image[row])
            show(pair[1, column], image[row], label[row])
            kind = "label-dense" if label[row].any() else "label-sparse"
            pair[0, column].set_title(f"{modality.upper()}, slice {row}: {kind}", fontsize=9)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS]
    figure.legend(handles, CLASS_NAMES[1:], loc="outside lower center", ncols=8, frameon=False, fontsize=9)
    save(figure, "phantom.png")


def draw_patients(size):
    figure, grid = plt.subplots(2, 6, figsize=(12, 4.1), layout="constrained")
    source = phantom_source(6, size=size, slices=(20, 20), sparse=0.0)
    for column, ref in enumerate(source.cases()):
        case = source.load(ref)
        image = source.preprocessing.scale(case.image)[0]
        for axes, row in zip(grid[:, column], (8, 12), strict=True):
            show(axes, image[row], case.label[row], alpha=0.3)
        grid[0, column].set_title(f"{ref.id} ({ref.group})", fontsize=9)
    save(figure, "phantom-patients.png")


def draw_views(size):
    """Show the views of one slice whose height and width differ, and that a disc stays round in its own aspect."""
    image, label, case = scan("ct", size)
    row = int(case.label.any((1, 2)).nonzero()[0].mean())
    height = size * 3 // 4
    top = (size - height) // 2
    image, label = image[row, top : top + height], label[row, top : top + height].astype(np.int64)
    picture, classes = torch.tensor(image)[None, None], torch.tensor(label)[None]
    extent = torch.tensor([[float(height), float(size)]])
    draws = sample_views(ViewConfig(), 0, 0, torch.arange(2000), 0)
    wanted = [int(torch.nonzero(test)[0]) for test in (draws.angle == -18, draws.angle == 14)]
    wanted += [int(torch.nonzero((draws.turns == k) & (draws.flip == axis))[0]) for k, axis in ((1, 0), (2, 1))]
    figure, grid = plt.subplots(1, 6, figsize=(14, 2.7), layout="constrained")
    show(grid[0], image, label, 0.3)
    grid[0].set_title(f"native slice, {height}×{size}", fontsize=9)
    identity = torch.eye(2, 3)[None]
    maps = [("the network's input, 224×224", identity)]
    for number in wanted:
        picked = type(draws)(*(field[number : number + 1] for field in draws))
        turn = f"{90 * int(picked.turns)}°, flipped" if picked.flip >= 0 else f"rotated by {int(picked.angle)}°"
        maps.append((turn, picked.theta(extent)))
    for axes, (title, theta) in zip(grid[1:], maps, strict=True):
        x, y = warp(picture, classes, theta, (224, 224))
        show(axes, x[0, 0], y[0], 0.3)
        axes.set_title(title, fontsize=9)
    save(figure, "views.png")


def save(figure, name, dpi=80):
    ASSETS.mkdir(parents=True, exist_ok=True)
    figure.savefig(ASSETS / name, dpi=dpi)
    plt.close(figure)
    with Image.open(ASSETS / name) as picture:  # half the size, and no colour moves visibly
        picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            ASSETS / name, optimize=True
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=384)
    args = parser.parse_args()
    draw_phantom(args.size)
    draw_patients(args.size // 2)
    draw_views(args.size)


if __name__ == "__main__":
    main()
