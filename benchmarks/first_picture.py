"""Draw the first pages' picture into docs/assets: what became of β on each slice of one scan of the demonstration.

python -m benchmarks.first_picture demo
"""

import argparse
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import ConnectionPatch

from adawac.figures.style import Style, gradient
from adawac.reproduction.demo import DEMO
from adawac.runs import Run
from benchmarks.data_figures import save, show

CASE = "0000-010"
STYLE = Style(width="text")
FINER = 8
"""The pictures of slices have this many times the network's pixels a side."""


def weights(run):
    """Return the slices of the case and their β, (epochs, slices)."""
    rows = np.flatnonzero(run.samples.case == CASE)
    rows = rows[np.argsort(run.samples.slice[rows])]
    return run.samples.slice[rows], run.history.read("beta", rows=rows)


def scan():
    """Return the case as (image in [0, 1], label)."""
    size = tuple(FINER * side for side in DEMO.phantom["size"])
    source = replace(DEMO.source(**DEMO.phantom), size=size)
    case = source.load(next(ref for ref in source.cases() if ref.id == CASE))
    return source.preprocessing.scale(case.image)[0], case.label


def draw(run):
    slices, beta = weights(run)
    image, label = scan()
    labelled = np.flatnonzero(label.any((1, 2)))
    shown = {
        (labelled[-1] + len(image)) // 2: "no label",
        labelled[len(labelled) // 2]: "many labels",
        labelled[0] // 2: "no label",
    }
    with STYLE.applied():
        figure = plt.figure(figsize=(STYLE.inches, 2.9))
        grid = figure.add_gridspec(
            3, 2, width_ratios=[1, 3.4], left=0.005, right=0.835, top=0.93, bottom=0.13, wspace=0.24, hspace=0.3
        )
        axes = figure.add_subplot(grid[:, 1])
        drawn = axes.imshow(
            beta.T,
            cmap=gradient("diverging"),
            vmin=0,
            vmax=1,
            aspect="auto",
            origin="lower",
            interpolation="none",
            extent=(0.5, len(beta) + 0.5, slices[0] - 0.5, slices[-1] + 0.5),
        )
        axes.grid(visible=False)
        axes.set(xlabel="epoch", yticks=[])
        axes.set_title("β of every slice of this scan, while the network trains", loc="left")
        for place, (row, words) in enumerate(shown.items()):
            panel = figure.add_subplot(grid[place, 0])
            show(panel, image[row], label[row])
            panel.set_title(f"a slice with {words}", fontsize=7.5, pad=3)
            line = ConnectionPatch((1.0, 0.5), (0.5, row), "axes fraction", "data", axesA=panel, axesB=axes)
            line.set(color=STYLE.muted, linewidth=0.9)
            figure.add_artist(line)
        bar = figure.colorbar(drawn, cax=figure.add_axes((0.855, 0.13, 0.02, 0.8)))
        bar.set_ticks([0, 0.5, 1], labels=["0: learn from\nconsistency", "½", "1: learn from\nthe label"])
        bar.outline.set_linewidth(0.4)
        save(figure, "beta.png", dpi=200)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path, help="the folder that `adawac demo` wrote")
    folder = next(parser.parse_args().demo.glob("adawac-seed*"))
    draw(Run(folder))


if __name__ == "__main__":
    main()
