"""Write what `adawac diagnose` recommends, with its evidence: `python -m studies.acdc.recommendations`.

The settings are those of rows of grid.yaml, and the numbers are computed from results/runs.json; both go into
src/adawac/data/recommendations.json, which `diagnose` reads.
"""

import json
from statistics import mean
from typing import Any

from adawac.config import TrainConfig
from adawac.reproduction import Grid, load_grid
from adawac.reproduction.collected_results import Entry, read_entries
from studies.acdc.layout import GRID, ROOT
from studies.acdc.page import mean_dice

FILE = ROOT / "src" / "adawac" / "data" / "recommendations.json"
# With fewer slices than this an epoch has so few steps that the first ones decide where the weights go.
FEW_SLICES = 240


def recommendations(grid: Grid, entries: list[Entry]) -> dict[str, Any]:
    """Return settings and evidence, as plain data; DSC in points."""
    dice = {(entry["row"], entry["seed"]): mean_dice(entry) for entry in entries}
    samples = {entry["row"]: entry["samples"] for entry in entries}
    seeds_of: dict[str, list[int]] = {}
    for row, seed in sorted(dice):
        seeds_of.setdefault(row, []).append(seed)

    def gains(row: str, baseline: str) -> dict[str, Any]:
        seeds = [seed for seed in seeds_of[row] if seed in seeds_of[baseline]]
        by_seed = [round(dice[row, seed] - dice[baseline, seed], 2) for seed in seeds]
        return {"row": row, "baseline": baseline, "seeds": seeds, "gains": by_seed, "mean": round(mean(by_seed), 2)}

    def lost(row: str) -> float:
        """Return how much worse the other seeds are than the first."""
        first, *others = [dice[row, seed] for seed in seeds_of[row]]
        return round(max(first - other for other in others), 2)

    # A grid over η_β and λ, with the first seed.
    cells = {row: dice[row, 1] for row in seeds_of if row.startswith("unet-eta") or row == "unet-adawac"}
    best, worst = max(cells, key=cells.__getitem__), min(cells, key=cells.__getitem__)
    repeated = max((row for row in cells if len(seeds_of[row]) > 1 and row != "unet-adawac"), key=cells.__getitem__)
    rows = {row.name: row.config for row in grid.rows()}
    return {
        "study": "ACDC, docs/results.md",
        "few_slices": {
            "below": FEW_SLICES,
            "settings": _settings(rows["ten-percent-hold"]),
            "evidence": {
                "slices": samples["ten-percent-hold"],
                "these": gains("ten-percent-hold", "ten-percent-baseline"),
                "defaults": gains("ten-percent-paper-hold", "ten-percent-baseline"),
            },
        },
        "usual": {
            "settings": _settings(rows["unet-paper"]),
            "evidence": {
                "dice": round(dice["unet-paper", 1], 2),
                "lost_by_other_seeds": lost("unet-paper"),
                "best_cell": {"row": best, "ahead": round(cells[best] - dice["unet-paper", 1], 2)},
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


if __name__ == "__main__":
    _, grid = load_grid(GRID)
    FILE.write_text(json.dumps(recommendations(grid, read_entries(grid.results)), indent=2) + "\n")
