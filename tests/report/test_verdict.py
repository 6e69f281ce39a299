from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from adawac.report.contents import read_curves
from adawac.report.verdict import describe_outcome, describe_weights
from adawac.runs import example_run


class Kept(dict[str, Any]):
    """A history of four samples and more epochs, as a run has it."""

    def __init__(self, beta: np.ndarray, ell_ce: Any = 0.2, reg_ac: Any = 0.1):
        super().__init__(beta=beta, ell_ce=np.full_like(beta, ell_ce), reg_ac=np.full_like(beta, reg_ac))
        self.epochs = np.arange(1, len(beta) + 1)

    def __len__(self) -> int:
        return len(self.epochs)


class Trained:
    def __init__(self, history: Kept):
        self.history = history


def describe(beta: Any, auc: float | None = None, **terms: Any) -> str | None:
    history = Kept(np.asarray(beta, dtype=np.float32), **terms)
    curves = {"series": {} if auc is None else {"beta_auc": [0.1, auc, None]}}
    said = describe_weights(Trained(history), curves)  # type: ignore[arg-type]
    return said and said.replace("\u00a0", " ")


def test_a_first_epoch_that_decides():
    said = describe([[0.01, 0.02, 0.001, 0.9], [0.02, 0.04, 0.01, 0.95]], auc=0.52)
    assert said is not None
    tells, since, now = said.split(". ")
    assert tells.endswith("hardly better than chance (AUC 0.52)")
    assert since.startswith("After the first epoch 75 % of the weights were below 0.05, after the last 75 %")
    assert since.endswith("nearly the same order (rank correlation 1.00): most was decided at the start")
    assert now == "By now cross-entropy is the larger term for 100 % of the samples."


def test_weights_that_fall_later():
    early, late = [0.4, 0.6, 0.45, 0.55], [0.01, 0.02, 0.04, 0.03]
    said = describe([early, late], ell_ce=[0.1, 0.1, 0.1, 0.3], reg_ac=0.2)
    assert said is not None
    assert "After the first epoch 0 % of the weights were below 0.05, after the last 100 %" in said
    assert f"in another order (rank correlation {spearmanr(early, late)[0]:.2f})." in said
    assert "decided" not in said
    assert said.endswith("By now consistency is the larger term for 75 % of the samples.")


def test_ties_share_their_rank():
    early, late = [0.0, 0.0, 0.0, 0.9], [0.0, 0.3, 0.2, 0.2]
    assert f"(rank correlation {spearmanr(early, late)[0]:.2f})" in str(describe([early, late]))
    assert "rank correlation" not in str(describe([[0.2] * 4, early]))  # all alike have no order


def test_held_weights_begin_where_they_move():
    said = str(describe([[0.5] * 4, [0.5] * 4, [0.01, 0.4, 0.6, 0.7], [0.01, 0.5, 0.7, 0.8]]))
    assert "After epoch 3, the first in which they moved, 25 % of the weights" in said


@pytest.mark.parametrize(
    ("auc", "words"),
    [
        (0.2, "the wrong way round"),
        (0.45, "no better than chance"),
        (0.6, "hardly better than chance"),
        (0.7, "somewhat"),
        (0.9, "well"),
        (1.0, "almost perfectly"),
    ],
)
def test_separation_in_words(auc: float, words: str):
    assert f"label-sparse samples {words} (AUC {auc:.2f})." in str(describe([[0.4] * 4, [0.1, 0.2, 0.3, 0.4]], auc=auc))


def test_samples_that_an_epoch_did_not_see():
    said = str(describe([[np.nan, 0.01, 0.6, 0.7], [0.3, 0.01, 0.7, np.nan]]))
    assert "After the first epoch 50 % of the weights" in said


@pytest.mark.parametrize(
    ("beta", "reg_ac"),
    [
        ([[1.0, 1.0, 1.0, 1.0]] * 3, 0.1),  # baseline
        ([[1.0, 0.0, 1.0, 0.0]] * 3, 0.1),  # given, not learned
        ([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0]], 0.1),  # trimming
        ([[0.1, 0.2, 0.3, 0.4], [0.2, 0.3, 0.4, 0.5]], 0.0),  # reweighting without consistency
        ([[np.nan] * 4] * 3, np.nan),
        (np.empty((0, 4)), 0.1),
    ],
)
def test_nothing_where_beta_does_not_move_between_the_two(beta: Any, reg_ac: float):
    assert describe(beta, auc=0.5, reg_ac=reg_ac) is None


def test_verdict_of_a_run(tmp_path):
    run = example_run(tmp_path / "run", slices=10)
    said = describe_weights(run, read_curves(run))
    assert said is not None
    assert said.startswith("β tells label-dense from label-sparse samples almost perfectly (AUC 1.00).")
    plain = example_run(tmp_path / "plain", slices=10, method="baseline")
    assert describe_weights(plain, read_curves(plain)) is None


def test_outcome_counts_both_ends_and_ranks_the_scores(tmp_path):
    run = example_run(tmp_path / "run", slices=10)
    plain = example_run(tmp_path / "plain", slices=10, method="baseline")
    said = describe_outcome({"adawac": run, "baseline": plain}, {"baseline": 0.712, "adawac": 0.65})
    beta, sparse = run.history["beta"][-2:].mean(0), run.samples.label_sparse
    low, high = int((beta[sparse] < 0.2).sum()), int((beta[~sparse] > 0.8).sum())
    assert low
    assert high
    assert said == (
        f"adawac: β ended near 0 (below 0.2) on {low} of {sparse.sum()} empty slices and near 1 (above 0.8) on {high} "
        f"of {(~sparse).sum()} label-dense slices. "
        "Mean DSC on the scored cases, highest first: baseline 71.2, adawac 65.0."
    )
    assert describe_outcome({"run": run}, {}).startswith("β ended near 0")
    assert describe_outcome({"plain": plain}, {"plain": 0.5}) == "Mean DSC on the scored cases: plain 50.0."
    assert describe_outcome({"plain": plain}, {}) == ""
    many = describe_outcome({}, {name: index / 10 for index, name in enumerate("abcde")})
    assert many == "Mean DSC on the scored cases, highest first: e 40.0, d 30.0, c 20.0 and 2 more."
