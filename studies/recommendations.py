"""Write what `adawac diagnose` recommends, with its evidence: `python -m studies.recommendations`.

The settings are those of rows of the grids on ACDC and Synapse, and the numbers are computed from their results; both
go into src/adawac/data/recommendations.json, which `diagnose` reads.
"""

import json
from collections.abc import Callable
from statistics import mean
from typing import Any

from adawac.config import TrainConfig
from adawac.reproduction import Grid, load_grid
from adawac.reproduction.collected_results import Entry, read_entries
from studies.layout import FOLDER, ROOT
from studies.page import by_row, mean_dice, pairs_of, validated

FILE = ROOT / "src" / "adawac" / "data" / "recommendations.json"
# With fewer slices than this an epoch has so few steps that the first ones decide where the weights go.
FEW_SLICES = 240
# From this share of label-sparse slices on, half of Synapse's, a data set is more like Synapse than like ACDC.
MANY_SPARSE = 0.2


class Study:
    """Rows and results of a grid."""

    def __init__(self, grid: Grid, entries: list[Entry], score: Callable[[Entry], float] = mean_dice):
        self.rows = {row.name: row.config for row in grid.rows()}
        self.runs = by_row(entries)
        self.score = score

    def dice(self, row: str) -> float:
        """Return the DSC of a row's first seed."""
        return self.score(self.runs[row][0])

    def gains(self, row: str, baseline: str) -> dict[str, Any]:
        """Return how far a row is above another one."""
        pairs = pairs_of(self.runs, row, baseline)
        by_seed = [round(self.score(run) - self.score(other), 2) for run, other in pairs]
        seeds = [run["seed"] for run, _ in pairs]
        return {"row": row, "baseline": baseline, "seeds": seeds, "gains": by_seed, "mean": round(mean(by_seed), 2)}

    def label_sparse(self, row: str) -> float:
        """Return the share of a row's training slices that are label-sparse."""
        run = self.runs[row][0]
        return round(run["label_sparse"] / run["samples"], 2)

    def lost(self, row: str) -> float:
        """Return how much worse the other seeds are than the first."""
        first, *others = map(self.score, self.runs[row])
        return round(max(first - other for other in others), 2)


def recommendations(acdc: Study, synapse: Study, lgg: Study) -> dict[str, Any]:
    """Return settings and evidence, as plain data; DSC in points."""
    rows, dice, lost, gains = acdc.rows, acdc.dice, acdc.lost, acdc.gains
    # A grid over η_β and λ, with the first seed.
    cells = {row: dice(row) for row in acdc.runs if row.startswith("unet-eta") or row == "unet-adawac"}
    best, worst = max(cells, key=cells.__getitem__), min(cells, key=cells.__getitem__)
    repeated = max((row for row in cells if len(acdc.runs[row]) > 1 and row != "unet-adawac"), key=cells.__getitem__)
    return {
        "study": "ACDC and Synapse, docs/results",
        "many_sparse": {
            "from": MANY_SPARSE,
            "settings": _settings(synapse.rows["unet-full-adawac"]),
            "evidence": {
                "label_sparse": synapse.label_sparse("unet-full-adawac"),
                "over_baseline": synapse.gains("unet-full-adawac", "unet-full-baseline"),
                "over_pair": synapse.gains("unet-full-adawac", "unet-full-pair"),
                "lgg": {"label_sparse": lgg.label_sparse("official"), **lgg.gains("official", "baseline")},
            },
        },
        "few_slices": {
            "below": FEW_SLICES,
            "settings": _settings(rows["ten-percent-hold"]),
            "evidence": {
                "slices": acdc.runs["ten-percent-hold"][0]["samples"],
                "these": gains("ten-percent-hold", "ten-percent-baseline"),
                "defaults": gains("ten-percent-paper-hold", "ten-percent-baseline"),
            },
        },
        "usual": {
            "settings": _settings(rows["unet-paper"]),
            "evidence": {
                "dice": round(dice("unet-paper"), 2),
                "lost_by_other_seeds": lost("unet-paper"),
                "best_cell": {"row": best, "ahead": round(cells[best] - dice("unet-paper"), 2)},
                "worst_cell": {
                    "row": worst,
                    "lambda_ac": rows[worst].method.options["lambda_ac"],
                    "behind_best": round(cells[best] - cells[worst], 2),
                },
                "repeated_cell": {"row": repeated, "lost_by_other_seeds": lost(repeated)},
            },
        },
        "consistency_alone": {
            "acr_only": gains("unet-acr-only", "unet-baseline"),
            "adawac": gains("unet-adawac", "unet-baseline"),
        },
        "no_gain": {
            "pretrained": gains("lite0-paper", "lite0-baseline"),
            "strong": gains("final-long-paper", "final-long-baseline"),
        },
    }


def _settings(config: TrainConfig) -> dict[str, Any]:
    """Return what sets the method, by dotted path."""
    method = config.method
    settings = {"method.preset": method.preset}
    settings |= {f"method.options.{name}": value for name, value in method.options.items()}
    return settings | ({"method.hold_epochs": method.hold_epochs} if method.hold_epochs else {})


def read_study(path: str, score: Callable[[Entry], float] = mean_dice) -> Study:
    """Read a grid of a study and what was collected."""
    _, grid = load_grid(FOLDER / path)
    return Study(grid, read_entries(grid.results), score)


if __name__ == "__main__":
    lgg = read_study("defaults/lgg.yaml", validated(4))
    found = recommendations(read_study("acdc/grid.yaml"), read_study("synapse/grid.yaml"), lgg)
    FILE.write_text(json.dumps(found, indent=2) + "\n")
