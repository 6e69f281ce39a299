"""The paper's step size for n = 8 and n = 16, which need up to millions of steps to converge.

    python -m benchmarks.theory

Takes about ten minutes. Writes benchmarks/results/theory.json, which docs/concepts/theory.md quotes; what
`adawac theory` shows in a minute is not repeated here.
"""

import argparse
import logging
from pathlib import Path

from adawac.theory.experiments import convergence, slopes
from benchmarks.result_files import RESULTS, write_result

HORIZONS = {8: [100_000, 400_000, 1_600_000], 16: [1_200_000, 2_400_000]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "theory.json")
    parser.add_argument("--seeds", type=int, default=4)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    rows = []
    for size, horizons in HORIZONS.items():
        for horizon in horizons:
            logging.info("n = %d, T = %d", size, horizon)
            rows += convergence([size], [horizon], ["stated"], arguments.seeds)
            write_result(arguments.out, {"convergence": rows, "slopes": slopes(rows)})


if __name__ == "__main__":
    main()
