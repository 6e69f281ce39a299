"""The released code's numbers, reproduced by the preset `official`."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import adawac

CASES = {
    "adawac": "adawac",
    "adawac_eta8": "adawac",
    "adawac_eta0.02": "adawac",
    "baseline": "baseline",
    "pair": "pair",
    "pseudo": "pseudo-adawac",
    "trim_train": "trim-train",
    "trim_train_acr": "trim-train+acr",
    "trim_ratio": "trim-ratio",
    "trim_ratio_acr": "trim-ratio+acr",
    "acr_only": "acr-only",
    "reweight_only": "reweight-only",
    "pm_dro": "pm-dro",
}
BATCH_NORMALISED = ("reweight_only", "pm_dro")
EXCERPT = Path(__file__).parent / "fixtures" / "official_losses_excerpt.npz"


def check(file: Path, name: str) -> None:
    """Follow the released code step by step and compare everything it computed, to 1e-10 in float64."""
    numbers = np.load(file, allow_pickle=False)
    meta = json.loads(str(numbers["meta"]))
    stride = meta.get("stride", 1)  # the excerpt holds every 97th entry of the gradients
    case = next(case for case in meta["cases"] if case["name"] == name)
    criterion = adawac.build_method(
        CASES[name],
        meta["n"],
        preset="official",
        eta_beta=case["eta"],
        lambda_ac=case["lam"],
        trim_ratio=case["trim_ratio"],
        entropy_max=case["entropy"],
    ).double()

    def near(ours: torch.Tensor, key: str, atol: float = 1e-10) -> None:
        np.testing.assert_allclose(ours.detach().numpy(), numbers[key], rtol=1e-10, atol=atol, err_msg=key)

    for step in range(meta["steps"]):
        first, second = (
            {part: torch.from_numpy(numbers[f"step{step}/{part}{view}"]) for part in ("logits", "labels", "features")}
            for view in (1, 2)
        )
        logits, features = (torch.cat([first[part], second[part]]).requires_grad_() for part in ("logits", "features"))
        labels = torch.cat([first["labels"], second["labels"]]).long()
        index = torch.from_numpy(numbers[f"step{step}/index"])
        out = criterion(logits, labels, features, index)
        out.loss.backward()
        here = f"{name}/step{step}"
        near(out.loss, f"{here}/loss")
        near(out.reg_ac, f"{here}/consistency")
        # The released code logs two-view means also where it trains on one.
        both = replace(criterion.objective, views="both").supervised(logits, labels, len(index))
        for ours, meant, key in zip((out.ell_ce, out.ell_dice), both, ("ce", "dice"), strict=True):
            near(meant, f"{here}/{key}")
            if criterion.objective.views == "both":
                near(ours, f"{here}/{key}")
        # Both weights of every row, the small ones to as many digits; what stays at one half has moved in neither.
        log_odds = criterion.weights.log_odds
        second = torch.full_like(log_odds, 0.5) if name in BATCH_NORMALISED else (-log_odds).sigmoid()
        weights = torch.stack([log_odds.sigmoid(), second], dim=1)
        near(weights, f"{here}/all_weights", atol=0)
        near(weights[index], f"{here}/weights", atol=0)
        if name.startswith(("adawac", *BATCH_NORMALISED)):
            assert torch.equal(out.beta, criterion.weights.beta[index])
        for part, tensor in (("logits", logits), ("features", features)):
            gradient = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            for view, half in enumerate(gradient.chunk(2), start=1):
                ours = half if stride == 1 else half.flatten()[::stride]
                near(ours, f"{here}/grad_{part}{view}")


@pytest.mark.parametrize("name", CASES)
def test_excerpt(name):
    check(EXCERPT, name)


@pytest.mark.parametrize("name", CASES)
def test_all_golden_numbers(golden, name):
    check(golden / "official_losses.npz", name)


def test_every_golden_case_is_checked(golden):
    meta = json.loads(str(np.load(golden / "official_losses.npz")["meta"]))
    assert [case["name"] for case in meta["cases"]] == list(CASES)


@pytest.mark.parametrize("name", [name for name in CASES if "eta" not in name])
def test_the_presets_defaults_are_the_released_codes(name):
    meta = json.loads(str(np.load(EXCERPT, allow_pickle=False)["meta"]))
    theirs = next(case for case in meta["cases"] if case["name"] == name)
    criterion = adawac.build_method(CASES[name], 2, preset="official", trim_ratio=0.5)
    ours = criterion.objective
    assert (ours.eta_beta, ours.lambda_ac) == (theirs["eta"], theirs["lam"])
    assert criterion.uses_latents is theirs["dac"]
    assert name != "pm_dro" or ours.entropy_max == theirs["entropy"]


def test_the_excerpt_is_of_the_golden_numbers(golden):
    whole, part = (np.load(file, allow_pickle=False) for file in (golden / "official_losses.npz", EXCERPT))
    assert set(part.files) == set(whole.files)
    stride = json.loads(str(part["meta"]))["stride"]
    for key in set(part.files) - {"meta"}:
        expected = whole[key].flatten()[::stride] if "/grad_" in key else whole[key]
        np.testing.assert_array_equal(part[key], expected, err_msg=key)
