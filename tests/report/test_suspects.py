import numpy as np
import pytest

from adawac.report.suspects import KINDS, examine_samples, find_suspects, late_epochs, late_mean

EPOCHS = np.arange(1, 31)


def histories(share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Thirty epochs in which beta and CE do what the labels say: nothing to suspect."""
    progress = np.linspace(0, 1, len(EPOCHS))[:, None]
    dense = share > 0
    beta = np.where(dense, 0.5 + 0.45 * progress, 0.5 - 0.45 * progress)
    ell_ce = np.where(dense, 1 - 0.5 * progress, 1 - 0.98 * progress)
    return beta, ell_ce


def share_of(dense: int = 10, sparse: int = 10) -> np.ndarray:
    return np.concatenate([np.linspace(0.01, 0.2, dense), np.zeros(sparse)])


def test_a_run_as_it_should_be_has_no_suspects():
    share = share_of()
    assert find_suspects(share, EPOCHS, *histories(share)) == []


def test_dense_samples_that_beta_sent_to_consistency_come_by_how_dense_they_are():
    share = share_of()
    beta, ell_ce = histories(share)
    beta[:, [2, 8]] = np.linspace(0.5, 0.1, 30)[:, None]
    suspects = find_suspects(share, EPOCHS, beta, ell_ce)
    assert [(suspect.row, suspect.kind) for suspect in suspects] == [
        (8, "dense-to-consistency"),
        (2, "dense-to-consistency"),
    ]
    late = beta[-3:, 8].mean()
    assert suspects[0].score == pytest.approx((1 - 2 * late) * 9 / 10)
    assert "17.89\u00a0% of it is foreground (10\u00a0% of the label-dense samples have more)" in suspects[0].reason
    assert f"β was {late:.2f} over the last 3 epochs" in suspects[0].reason


def test_hardly_any_foreground_is_no_suspect():
    share = np.concatenate([[1e-4], np.full(99, 0.1), np.zeros(5)])
    beta, ell_ce = histories(share)
    beta[:, 0] = np.linspace(0.5, 0.01, 30)
    assert find_suspects(share, EPOCHS, beta, ell_ce) == []


def test_empty_samples_with_a_high_cross_entropy():
    share = share_of()
    beta, ell_ce = histories(share)
    ell_ce[:, :10] = np.linspace(0.1, 1, 10)
    ell_ce[:, 15], ell_ce[:, 16], ell_ce[:, 17] = 0.75, 2.0, 0.15
    suspects = find_suspects(share, EPOCHS, beta, ell_ce)
    assert [(suspect.row, suspect.kind, suspect.score) for suspect in suspects] == [
        (16, "empty-high-ce", 1),
        (15, "empty-high-ce", 0.7),
    ]
    assert "CE was 2 over the last 3 epochs, above that of 100\u00a0% of the label-dense samples" in suspects[0].reason


def test_a_jump_is_found_where_it_is():
    share = share_of()
    beta, ell_ce = histories(share)
    beta[:20, 3] = 0.1
    beta[20:, 3] = 0.95
    [suspect] = find_suspects(share, EPOCHS, beta, ell_ce)
    assert (suspect.row, suspect.kind, suspect.epoch) == (3, "beta-jump", 20)
    assert "β rose from 0.10 to 0.95 between epochs 20 and 21, while 0.02 was usual" in suspect.reason


def test_a_jump_of_all_samples_or_at_the_beginning_is_not_reported():
    share = share_of()
    beta, ell_ce = histories(share)
    beta[:3] = 0.5
    beta[3:, :10], beta[3:, 10:] = 0.95, 0.05  # settling
    assert find_suspects(share, EPOCHS, beta, ell_ce) == []
    beta[20:, :10], beta[20:, 10:] = 0.55, 0.45  # for example a warm restart
    assert find_suspects(share, EPOCHS, beta, ell_ce) == []


def test_a_method_that_leaves_beta_alone_says_nothing_by_it():
    share = share_of()
    _, ell_ce = histories(share)
    for constant in (1.0, 0.0, np.nan):
        assert find_suspects(share, EPOCHS, np.full_like(ell_ce, constant), ell_ce) == []


@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_short_histories_and_samples_without_labels(epochs: int):
    share = np.array([np.nan, 0.1, 0.0, np.nan])
    values = np.full((epochs, 4), 0.4)
    values[:, 0] = 0.9
    values[:, 3] = np.nan
    suspects = find_suspects(share, np.arange(epochs), values, values)
    assert {suspect.row for suspect in suspects} <= {1}


def test_unseen_samples_are_ignored():
    share = share_of()
    beta, ell_ce = histories(share)
    rng = np.random.default_rng(0)
    unseen = rng.random(beta.shape) < 0.5
    beta[unseen] = ell_ce[unseen] = np.nan
    assert find_suspects(share, EPOCHS, beta, ell_ce) == []
    assert set(KINDS) == {"dense-high-ce", "dense-to-consistency", "empty-high-ce", "beta-jump"}


@pytest.mark.parametrize(("sent", "crowd"), [(4, False), (5, True), (30, True)])
def test_a_crowd_that_beta_sent_to_consistency_speaks_of_the_run(sent: int, crowd: bool):
    share = share_of(dense=40)
    beta, ell_ce = histories(share)
    beta[:, 40 - sent : 40] = np.linspace(0.5, 0.1, 30)[:, None]
    findings = examine_samples(share, EPOCHS, beta, ell_ce)
    assert [suspect.row for suspect in findings.suspects] == ([] if crowd else [39, 38, 37, 36])
    if not crowd:
        assert findings.remark == ""
        return
    assert (
        f"β sent {sent} of 40 label-dense samples ({100 * sent / 40:.0f}\u00a0%) plainly to consistency"
        in findings.remark
    )
    for advice in ("method.hold_epochs=3", "eta_beta", "lambda_ac"):
        assert advice in findings.remark
    held = examine_samples(share, EPOCHS, beta, ell_ce, held=3).remark
    assert "Try more than method.hold_epochs=3, or a smaller" in held  # what the run did already is no advice


def test_crowds_of_the_other_kinds():
    share = share_of(dense=20, sparse=40)
    beta, ell_ce = histories(share)
    ell_ce[:, 30:50] = 1.0
    beta[15:, ::3] = 1 - beta[15:, ::3]
    findings = examine_samples(share, EPOCHS, beta, ell_ce)
    assert "  " not in findings.remark
    assert "empty-high-ce" not in {suspect.kind for suspect in findings.suspects}
    assert (
        "20 of 40 samples without foreground (50\u00a0%) have a cross-entropy like label-dense ones" in findings.remark
    )
    assert "beta-jump" not in {suspect.kind for suspect in findings.suspects}
    assert "β of 20 of 60 samples (33\u00a0%) jumped" in findings.remark
    two_kinds = np.tile([0.01, 0.01, 0.01, 0.01, 2.0], 8)
    findings = examine_samples(
        share_of(dense=40, sparse=0), EPOCHS, np.full((30, 40), 0.5), np.tile(two_kinds, (30, 1))
    )
    assert findings.suspects == []
    assert "8 of 40 label-dense samples (20\u00a0%) have a cross-entropy far above" in findings.remark


def test_one_crowd_does_not_hide_the_suspects_of_another_kind():
    share = share_of(dense=40)
    beta, ell_ce = histories(share)
    beta[:, :30] = np.linspace(0.5, 0.1, 30)[:, None]
    ell_ce[:, 45] = 3.0
    findings = examine_samples(share, EPOCHS, beta, ell_ce)
    assert [(suspect.row, suspect.kind) for suspect in findings.suspects] == [(45, "empty-high-ce")]
    assert "to consistency" in findings.remark


def test_a_label_that_is_not_learned_stands_out_among_its_like():
    share = share_of(dense=100)
    beta, ell_ce = histories(share)
    rng = np.random.default_rng(0)
    ell_ce[:, :100] = share[:100] * np.exp(rng.normal(0, 0.2, 100))  # CE grows with the foreground
    usual = ell_ce[0, 10]
    ell_ce[:, 10] = 4 * share[10]
    assert usual < ell_ce[0, 10] < ell_ce[0, :100].max()  # high for so little foreground, but not the highest of all
    [suspect] = find_suspects(share, EPOCHS, beta, ell_ce)
    assert (suspect.row, suspect.kind, suspect.epoch) == (10, "dense-high-ce", 29)
    assert 0.5 < suspect.score < 1
    assert f"Its CE was {ell_ce[0, 10]:.3g} over the last 3 epochs" in suspect.reason
    assert "times the median of samples with about as much foreground" in suspect.reason
    ell_ce[:, 10] = 40 * share[10]
    [further] = find_suspects(share, EPOCHS, beta, ell_ce)
    assert suspect.score < further.score < 1


def test_unlearned_labels_do_not_hide_each_other():
    share = share_of(dense=100)
    beta, ell_ce = histories(share)
    ell_ce[:, :100] = 0.1 * np.exp(np.random.default_rng(0).normal(0, 0.2, 100))
    wrong = [3, 14, 15, 16, 17, 50, 80, 90]
    ell_ce[:, wrong] = 3.0  # the standard deviation of all is several times the spread of the right ones
    assert {suspect.row for suspect in find_suspects(share, EPOCHS, beta, ell_ce)} == set(wrong)


def test_small_differences_between_similar_samples_are_not_reported():
    share = share_of(dense=50)
    beta, ell_ce = histories(share)
    ell_ce[:, 7] *= 1.3
    assert find_suspects(share, EPOCHS, beta, ell_ce) == []


def test_suspects_about_labels_come_before_jumps():
    share = share_of(dense=40)
    beta, ell_ce = histories(share)
    ell_ce[:, 5] = 8.0
    beta[:20, 3], beta[20:, 3] = 0.0, 1.0
    suspects = find_suspects(share, EPOCHS, beta, ell_ce)
    assert [(suspect.row, suspect.kind) for suspect in suspects] == [(5, "dense-high-ce"), (3, "beta-jump")]
    assert all(0 <= suspect.score <= 1 for suspect in suspects)


def test_without_a_consistency_term_nothing_is_sent_there():
    share = share_of()
    beta, ell_ce = histories(share)
    beta[:, 8] = np.linspace(0.5, 0.1, 30)
    reg_ac = np.zeros_like(beta)
    assert find_suspects(share, EPOCHS, beta, ell_ce, reg_ac) == []
    assert [suspect.row for suspect in find_suspects(share, EPOCHS, beta, ell_ce, reg_ac + 0.1)] == [8]


def test_late_epochs_are_a_tenth():
    assert [late_epochs(count) for count in (0, 1, 9, 10, 150, 360)] == [1, 1, 1, 1, 15, 20]
    values = np.array([[1.0, np.nan], [3.0, np.nan]])
    np.testing.assert_array_equal(late_mean(values), [3, np.nan])
