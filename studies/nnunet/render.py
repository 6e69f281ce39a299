"""Put the results of `studies.nnunet.compare` into docs/how-to/nnunet.md.

python -m studies.nnunet.render
"""

from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.pages import each_result, fill, table
from benchmarks.result_files import ROOT

RESULTS = Path(__file__).with_name("results")
PAGE = ROOT / "docs" / "how-to" / "nnunet.md"
NAMES = {
    "stock": "nnU-Net",
    "stock-double": "nnU-Net, twice the batch",
    "pair": "nnUNetTrainerAdaWACPair",
    "adawac": "nnUNetTrainerAdaWAC",
}
AS_MANY_FORWARDS = "stock-double"
HEADER = ["trainer", "DSC in %", "each seed", "a step in ms", "an epoch in s", "β label-sparse", "label-dense", "AUC"]

Row = dict[str, dict[str, Any]]
"""What a trainer came to, by seed."""


def block(results: Path = RESULTS) -> str:
    """Return the tables of all results, one for each data set."""
    return each_result(results, _section)


def _section(result: dict[str, Any], name: str) -> str:
    rows: dict[str, Row] = result["rows"]
    seeds = sorted({seed for row in rows.values() for seed in row}, key=int)
    about = (
        f"{name}, {result['configuration']}, fold 0, {result['epochs']} epochs of {result['iterations']} steps, seeds "
        f"{', '.join(seeds)}, on {result['device']}. DSC is that of nnU-Net's own validation."
    )
    shown = table(HEADER, [_line(NAMES[row], rows[row]) for row in NAMES if row in rows])
    return "\n\n".join(filter(None, [about, shown, _time(rows), f"Measured at commit {result['commit']}."]))


def _line(name: str, row: Row) -> list[str]:
    runs = list(row.values())
    dice = [f"{100 * run['dice']:.1f}" for run in runs]
    cells = [name, f"{100 * mean(run['dice'] for run in runs):.1f}", ", ".join(dice)]
    cells += [f"{mean(run[key] for run in runs):.1f}" for key in ("step_ms", "epoch_s")]
    weighted = all(run.get("seen") for run in runs)
    keys = ("beta_sparse", "beta_dense", "auc")
    return cells + [f"{mean(run[key] for run in runs):.2f}" if weighted else "–" for key in keys]


def _time(rows: dict[str, Row]) -> str:
    """Say how a step of AdaWAC compares with one of nnU-Net's that has as many forwards."""
    if not {"adawac", AS_MANY_FORWARDS} <= rows.keys():
        return ""
    ours, theirs = (mean(run["step_ms"] for run in rows[row].values()) for row in ("adawac", AS_MANY_FORWARDS))
    return f"With as many forwards, a step with AdaWAC takes {ours / theirs:.2f} times that of nnU-Net's own trainer."


def rendered(page: str) -> str:
    """Return the page with the present results."""
    return fill(page, {"nnunet-study": block})


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
