"""Add finished runs to a study's results, from run folders of whatever machine, and draw what they show.

    adawac reproduce studies/acdc/grid.yaml --data STORE --out OUT --seconds 550   # the next runs of the grid
    python -m studies.collect acdc OUT [OTHER …] --store STORE              # here, or where OUT was copied to

STUDY is a folder in studies/ or a single grid's YAML file. `adawac reproduce --collect` does the same with scores
alone; this keeps what the weights follow and where epochs end as well, and draws the overview and the pictures of
weights. With --store, also whether weights follow brightness.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

from adawac.data.store import Store
from adawac.reproduction import Grid
from adawac.reproduction.collected_results import collect
from studies.entries import describe
from studies.layout import FOLDER, PAGE, Layout, find_runs, read_grids, read_layout
from studies.overview import draw_overview


def mean_intensity(store: Store) -> dict[str, float]:
    """Return the mean intensity of each case."""
    return {case: float(store.stack(case)[0].mean()) for case in store.table.cases}


def collect_runs(grid: Grid, folders: list[Path], brightness: Mapping[str, float] | None = None) -> list[str]:
    """Add the complete runs below some folders to the grid's results; return their names."""
    return collect(grid, folders, lambda run, row: describe(run, brightness))


def draw_pictures(layout: Layout, folders: list[Path]) -> None:
    """Draw the study's pictures of those of its runs that are there, into the documentation."""
    from PIL import Image

    from adawac.figures import draw

    runs = {
        prefix + name: run
        for prefix, grid in layout.grids.items()
        for name, run in (find_runs(grid, folders) if layout.pictures else {}).items()
    }
    for picture in layout.pictures:
        if picture.run not in runs:
            continue
        draw(picture.figure, [runs[picture.run].folder], picture.path, width="text", **picture.options)
        with Image.open(picture.path) as drawn:  # noise: a quarter of the bytes is enough for a page
            small = drawn.convert("RGB").resize((1400, 1400 * drawn.height // drawn.width), Image.Resampling.LANCZOS)
        small.quantize(128).save(picture.path, optimize=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="a folder in studies/, or a grid's YAML file")
    parser.add_argument("folders", type=Path, nargs="+", help="where run folders lie")
    parser.add_argument("--store", type=Path, help="to see whether the weights follow the images' brightness")
    args = parser.parse_args(arguments)
    study = args.study if args.study.exists() else FOLDER / args.study
    brightness = None if args.store is None else mean_intensity(Store(args.store))
    for grid in read_grids(study).values():
        names = collect_runs(grid, args.folders, brightness)
        print(f"{len(names)} runs into {grid.results}: {', '.join(names)}")
    if (study / PAGE).is_file():
        layout = read_layout(study)
        draw_overview(layout, layout.entries())
        draw_pictures(layout, args.folders)


if __name__ == "__main__":
    main()
