"""Draw the pictures of docs/how-to/figures.md into docs/assets, from runs that were trained and evaluated.

python -m benchmarks.figures runs/baseline runs/adawac-1 runs/adawac-2
"""

import argparse
from pathlib import Path

from PIL import Image

from adawac.figures import draw

ASSETS = Path(__file__).parents[1] / "docs" / "assets"


def save(file, name, runs, **options):
    """Draw a figure with a palette of 256 colours, which takes a third of the space and moves no colour visibly."""
    path = draw(name, runs, ASSETS / f"{file}.png", **options)
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("baseline", type=Path)
    parser.add_argument("adawac", type=Path)
    parser.add_argument("others", type=Path, nargs="*")
    args = parser.parse_args()
    everyone = [args.baseline, args.adawac, *args.others]
    save("figure-curves", "curves", args.adawac, width="text")
    save("figure-weights", "weights", args.adawac, width="text")
    save("figure-overlays", "overlays", [args.baseline, args.adawac], pick="best", count=2)
    save("figure-scores", "scores", everyone)
    save("figure-separation", "separation", args.adawac)
    save("figure-separation-dark", "separation", args.adawac, theme="dark")


if __name__ == "__main__":
    main()
