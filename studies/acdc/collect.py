"""Add finished runs of grid.yaml to results/runs.json, from run folders of whatever machine, and draw what they show.

    adawac reproduce studies/acdc/grid.yaml --data STORE --out OUT --seconds 550   # the next runs of the grid
    python -m studies.acdc.collect OUT [OTHER …] --store STORE              # here, or where OUT was copied to

`adawac reproduce --collect` does the same with scores alone; this keeps what the weights follow and where epochs end
as well, and draws the overview and the pictures of weights. With --store, also whether weights follow brightness.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

from adawac.data.store import Store
from adawac.reproduction import Grid
from adawac.reproduction.collected_results import collect, read_entries
from studies.acdc.entries import describe
from studies.acdc.layout import find_runs, read_layout
from studies.acdc.overview import draw_overview
from studies.acdc.page import PICTURES


def mean_intensity(store: Store) -> dict[str, float]:
    """Return the mean intensity of each case."""
    return {case: float(store.stack(case)[0].mean()) for case in store.table.cases}


def collect_runs(grid: Grid, folders: list[Path], brightness: Mapping[str, float] | None = None) -> list[str]:
    """Add the complete runs below some folders to the grid's results; return their names."""
    return collect(grid, folders, lambda run, row: describe(run, brightness))


def draw_weights(grid: Grid, folders: list[Path]) -> None:
    """Draw what became of the weights, into the documentation, of those of the page's runs that are there."""
    from PIL import Image

    from adawac.figures import draw

    runs = find_runs(grid, folders)
    for picture in PICTURES:
        if picture.run not in runs:
            continue
        draw(picture.figure, [runs[picture.run].folder], picture.path, width="text")
        with Image.open(
            picture.path
        ) as drawn:  # a million pixels of noise: a quarter of the bytes is enough for a page
            small = drawn.convert("RGB").resize((1400, 1400 * drawn.height // drawn.width), Image.Resampling.LANCZOS)
        small.quantize(128).save(picture.path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="where run folders lie")
    parser.add_argument("--store", type=Path, help="to see whether the weights follow the images' brightness")
    args = parser.parse_args()
    layout = read_layout()
    names = collect_runs(layout.grid, args.folders, None if args.store is None else mean_intensity(Store(args.store)))
    draw_overview(layout, read_entries(layout.grid.results))
    draw_weights(layout.grid, args.folders)
    print(f"{len(names)} runs into {layout.grid.results}: {', '.join(names)}")


if __name__ == "__main__":
    main()
