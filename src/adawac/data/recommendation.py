"""Which method the labels suggest, and how to set it; `recommendations.json` has what a study found out about that."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from adawac.data.diagnosis_report import CaseReport, Recommendation

# A slice with less than this share of the usual foreground is nearly label-sparse, as in the paper's "few (if any)".
_FEW = 0.1
# Below this share of label-sparse and nearly label-sparse slices there is hardly anything to separate.
_HARDLY_ANY = 0.02


def recommend(training: Sequence[CaseReport]) -> Recommendation:
    """Return a hint from the training cases' label density; only a comparison on held-out data can settle it."""
    if not training:
        return Recommendation(method="none", reason="No readable case has a label map, so nothing can be said.")
    foreground = np.concatenate([case.foreground for case in training])
    sparse = sum(case.label_sparse or 0 for case in training)
    blank = sum(case.blank_sparse for case in training)
    share = sparse / len(foreground)
    dense = foreground[foreground > 0]
    if not len(dense):
        return Recommendation(
            method="none", reason="No training label has any foreground, so there is nothing to learn."
        )
    few = float((foreground < _FEW * np.median(dense)).mean())
    spread = [case.xi for case in training if case.xi is not None]
    counts = f"{sparse} of {len(foreground)} training slices ({share:.1%}) are label-sparse"
    if sparse and blank > sparse / 2:
        return Recommendation(
            method="trim-train",
            reason=f"{counts}, and {blank} of them show no structure at all, so their images teach nothing: "
            "dropping them (trim-train) may be enough. Compare with AdaWAC if you can.",
        )
    if few < _HARDLY_ANY:
        return Recommendation(
            method="baseline",
            reason=f"{counts}, and only {few:.1%} carry less than a tenth of the usual foreground, so there is hardly "
            "anything for sample weights to separate: start with the baseline. (Consistency alone may help: "
            f"{_alone()} Compare with acr-only.)",
        )
    return Recommendation(
        method="adawac",
        reason=f"{counts}, {few:.1%} carry less than a tenth of the usual foreground, and ξ ranges from "
        f"{min(spread):.2f} to {max(spread):.2f} between cases: AdaWAC is worth trying against the baseline. "
        "(The paper gained with 42 % label-sparse slices on Synapse and with 3 % on ACDC.)",
        **how_to_set(len(foreground)),
    )


@cache
def _study() -> dict[str, Any]:
    """Return what the study found, as studies/acdc/recommendations.py wrote it."""
    return dict(json.loads(Path(__file__).with_name("recommendations.json").read_text(encoding="utf-8")))


def _alone() -> str:
    gains = {name: runs["mean"] for name, runs in _study()["consistency_alone"].items()}
    return (
        f"on ACDC, with the preset official, it gained {gains['acr_only']:.1f} points of DSC, and AdaWAC "
        f"{gains['adawac']:.1f}."
    )


def how_to_set(slices: int) -> dict[str, Any]:
    """Return AdaWAC's settings and what they are based on: docs/results.md."""
    study = _study()
    no_gain = study["no_gain"]
    less = (
        "Expect less with a pretrained encoder, or with longer training and stronger augmentation (--config strong): "
        f"there AdaWAC gained {no_gain['pretrained']['mean']:+.1f} and {no_gain['strong']['mean']:+.1f} points over "
        "the baseline."
    )
    few, usual = study["few_slices"], study["usual"]
    if slices < few["below"]:
        these, defaults = few["evidence"]["these"], few["evidence"]["defaults"]
        by_seed = ", ".join(f"{gain:+.1f}" for gain in these["gains"])
        return {
            "settings": dict(few["settings"]),
            "basis": (
                f"With only {slices} training slices the first epochs, in which the network has learned nothing yet, "
                "decide where the weights go. Let them wait, with the released code's settings: with "
                f"{few['evidence']['slices']} slices of ACDC that gained {these['mean']:+.1f} points over the baseline "
                f"({len(these['seeds'])} seeds: {by_seed}), while the defaults, waiting as long, gained "
                f"{defaults['mean']:+.1f}.",
                less,
            ),
        }
    scores = usual["evidence"]
    best, worst = scores["best_cell"], scores["worst_cell"]
    return {
        "settings": dict(usual["settings"]),
        "basis": (
            "Start with the defaults, preset paper with η_β = 1 and λ = 1: on ACDC, a UNet from scratch, their DSC of "
            f"{scores['dice']:.1f} was {best['ahead']:.1f} points below the best of a grid over η_β and λ, while "
            f"λ = {worst['lambda_ac']:g} lost up to {worst['behind_best']:.0f}. With other seeds they lost "
            f"{scores['lost_by_other_seeds']:.1f} at most, while one of the grid's best cells lost "
            f"{scores['repeated_cell']['lost_by_other_seeds']:.1f}.",
            less,
        ),
    }
