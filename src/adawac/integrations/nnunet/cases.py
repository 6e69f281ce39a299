"""The samples of nnU-Net's training set: each case owns a row of β."""

import csv
import io
from collections.abc import Iterable, Mapping

from adawac.algorithm import SampleWeights

__all__ = ["beta_table", "case_rows"]


def case_rows(names: Iterable[str]) -> dict[str, int]:
    """Return each case's row, by the cases' sorted names: the same in every process and after every restart."""
    return {name: row for row, name in enumerate(sorted(map(str, names)))}


def beta_table(rows: Mapping[str, int], weights: SampleWeights) -> str:
    """Return `case,beta,log_odds` as CSV, a line a case; log-odds tell cases apart where β is all but 0 or 1."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["case", "beta", "log_odds"])
    beta, log_odds = weights.beta.tolist(), weights.log_odds.tolist()
    writer.writerows((case, f"{beta[row]:.6g}", f"{log_odds[row]:.6g}") for case, row in rows.items())
    return text.getvalue()
