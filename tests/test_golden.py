"""The released code's numbers, reproduced by the preset `official`."""

import json
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
WEIGHTED = ("adawac", "reweight_only", "pm_dro")
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

    def near(ours: torch.Tensor, key: str, column: int | None = None) -> None:
        theirs = numbers[key] if column is None else numbers[key][:, column]
        np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=1e-10, atol=1e-10, err_msg=key)

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
        if criterion.objective.views == "both":  # the released code logs two-view means also where it trains on one
            near(out.ell_ce, f"{here}/ce")
            near(out.ell_dice, f"{here}/dice")
        if name.startswith(WEIGHTED):
            near(out.beta, f"{here}/weights", column=0)
            near(criterion.weights.beta, f"{here}/all_weights", column=0)
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
    ours = adawac.build_method(CASES[name], 2, preset="official", trim_ratio=0.5).objective
    assert (ours.eta_beta, ours.lambda_ac) == (theirs["eta"], theirs["lam"])
    assert name != "pm_dro" or ours.entropy_max == theirs["entropy"]
