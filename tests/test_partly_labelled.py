"""Labelled, unlabelled and partly ignored samples in one batch: what each of them costs."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

import adawac
from adawac.objective import PRESETS
from tests import reference
from tests.reference import IGNORED
from tests.test_methods import NAMES, random_batch, tensors

ONE_VIEW = [name for name in NAMES if name not in ("pair", "pm-dro")]
SKIPPING = [name for name in NAMES if name not in ("adawac", "acr-only", "pseudo-adawac")]
CONSISTENT = ["adawac", "acr-only", "pseudo-adawac"]


def partly_labelled(seed, size=5, steps=1, unlabelled=0.4, **options):
    """Batches as `random_batch` gives them, of which some samples are unlabelled and others partly ignored."""
    rng = np.random.default_rng(seed + 1)
    for logits, labels, features, index in random_batch(seed, size, steps=steps, **options):
        labels[rng.random(labels.shape) < 0.3] = IGNORED
        labels[:, 0, 0] = np.where(labels[:, 0, 0] == IGNORED, 0, labels[:, 0, 0])  # every view has one pixel at least
        labels[np.tile(rng.random(size) < unlabelled, 2)] = IGNORED
        yield logits, labels, features, index


def build(method, preset="paper", n=6, **options):
    return adawac.build_method(method, n, preset, ignore_index=IGNORED, **{"trim_ratio": 0.4, **options}).double()


@pytest.mark.parametrize("method", ONE_VIEW)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 6),
    eta_beta=st.floats(0, 8),
    lambda_ac=st.floats(0, 4),
    rho=st.sampled_from(["rms", "mse", "cosine"]),
    trim_ratio=st.floats(0, 0.95),
)
def test_paper_equals_plain_loops(method, seed, size, **options):
    criterion, beta = build(method, **options), [0.5] * 6
    for batch in partly_labelled(seed, size, steps=2):
        out = criterion(*tensors(*batch))
        expected = reference.partly_labelled_loss(method, beta, *batch, **options)
        np.testing.assert_allclose(out.loss.item(), expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(criterion.weights.beta.numpy(), beta, rtol=1e-9, atol=1e-12)


@given(seed=st.integers(0, 10**6), size=st.integers(1, 5), eta_beta=st.floats(0, 4), bound=st.floats(0.1, 6))
def test_robust_equals_plain_loops(seed, size, **options):
    options |= {"lambda_ac": 0.7, "rho": "local-cosine"}
    criterion, plain = build("adawac", "robust", **options), reference.RelativeAdaWAC(6, **options)
    for batch in partly_labelled(seed, size, steps=4):
        np.testing.assert_allclose(criterion(*tensors(*batch)).loss.item(), plain.loss(*batch), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(criterion.weights.beta.numpy(), plain.beta, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", NAMES)
def test_unlabelled_samples_leave_the_others_as_they_are(method, preset):
    """Batch Dice, quantiles, normalised weights and running means included."""
    whole, alone = build(method, preset), build(method, preset)
    for logits, labels, features, index in partly_labelled(3, 6, steps=3, num_samples=40):
        rows = np.flatnonzero((labels[:6] != IGNORED).any((1, 2)))
        assert 0 < len(rows) < 6
        index = np.random.default_rng(int(index[0])).permutation(6)
        both = np.concatenate([rows, 6 + rows])
        out = whole(*tensors(logits, labels, features, index))
        part = alone(*tensors(logits[both], labels[both], features[both], index[rows]))
        for name in ("ell_ce", "ell_dice", "reg_ac", "beta"):
            torch.testing.assert_close(getattr(out, name)[rows], getattr(part, name), msg=name)
        rest = np.setdiff1d(np.arange(6), rows)
        assert out.beta[rest].tolist() == out.ell_ce[rest].tolist() == out.ell_dice[rest].tolist() == [0] * len(rest)
        if method in SKIPPING:
            torch.testing.assert_close(out.loss, part.loss)
        torch.testing.assert_close(whole.weights.log_odds, alone.weights.log_odds)
    assert int(whole.weights.skipped) == 0
    for name in ("ce", "ac", "batches"):
        if whole.means is not None:
            torch.testing.assert_close(getattr(whole.means, name), getattr(alone.means, name))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", CONSISTENT)
def test_the_gradient_of_an_unlabelled_sample_is_that_of_its_consistency(method, preset):
    criterion = build(method, preset)
    for batch in partly_labelled(5, 6, steps=2, num_samples=6):
        logits, labels, features, _ = tensors(*batch)
        index = torch.arange(6)
        before = criterion.weights.log_odds.clone()
        criterion(logits, labels, features, index).loss.backward()
        unlabelled = (labels == IGNORED).flatten(1).all(1)
        rows = unlabelled[:6].nonzero().flatten()
        assert 0 < len(rows) < 6
        assert (logits.grad[unlabelled] == 0).all()
        assert (logits.grad[~unlabelled] != 0).flatten(1).any(1)[: 6 - len(rows)].all()
        again = features.detach().clone().requires_grad_()
        criterion.eval()
        reg_ac = criterion(logits.detach(), labels, again, index)
        objective = criterion.objective
        terms = objective.consistency(again)
        if criterion.means is not None:
            terms = objective.lambda_ac * criterion.means.ce / criterion.means.ac * terms
        torch.testing.assert_close(terms.detach(), reg_ac.reg_ac)
        (objective.scale * terms[rows].sum() / 6).backward()
        torch.testing.assert_close(features.grad[unlabelled], again.grad[unlabelled])
        assert (again.grad[unlabelled] != 0).any()
        assert torch.equal(criterion.weights.log_odds[rows], before[rows])
        criterion.train()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", NAMES)
def test_a_batch_of_unlabelled_samples_alone_is_finite_and_moves_nothing(method, preset):
    criterion = build(method, preset)
    logits, labels, features, _ = tensors(*next(random_batch(1)))
    out = criterion(logits, torch.full_like(labels, IGNORED), features, torch.arange(3))
    out.loss.backward()
    assert out.loss.isfinite()
    assert (logits.grad == 0).all()
    assert out.beta.tolist() == [0, 0, 0]
    assert (criterion.weights.log_odds == 0).all()
    wanted = out.reg_ac.mean() * criterion.objective.scale if method in CONSISTENT else torch.zeros(()).double()
    torch.testing.assert_close(out.loss.detach(), wanted)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", NAMES)
def test_where_every_pixel_is_labelled_an_ignore_index_changes_no_bit(method, preset):
    plain = adawac.build_method(method, 6, preset, trim_ratio=0.4)
    ready = adawac.build_method(method, 6, preset, trim_ratio=0.4, ignore_index=IGNORED)
    for batch in random_batch(11, 5, steps=3):
        results = []
        for criterion in (plain, ready):
            logits, labels, features, index = (x.float() if x.is_floating_point() else x for x in tensors(*batch))
            logits, features = logits.detach().requires_grad_(), features.detach().requires_grad_()
            out = criterion(logits, labels, features, index)
            out.loss.backward()
            gradient = torch.zeros(()) if features.grad is None else features.grad
            results.append([*(part.detach() for part in out), logits.grad, gradient, criterion.weights.log_odds])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_view_whose_pixels_are_all_ignored_counts_nowhere():
    logits, labels, features, index = tensors(*next(random_batch(13)))
    half = labels.clone()
    half[3:] = IGNORED  # the second views
    for dice in ("sample", "batch"):
        both = build("adawac", views="both", dice=dice)(logits, half, features, index)
        first = build("adawac", views="first", dice=dice)(logits, half, features, index)
        torch.testing.assert_close(both, first)


def test_a_slice_whose_only_pixels_are_ignored_is_not_empty():
    labels = torch.zeros(4, 4, 4, dtype=torch.int64)
    labels[[0, 2]] = IGNORED
    criterion = build("trim-train")
    out = criterion(torch.zeros(4, 3, 4, 4).double(), labels, None, torch.arange(2))
    assert out.ell_ce.tolist() == [0, pytest.approx(np.log(3))]
    terms = criterion.objective.terms(torch.zeros(4, 3, 4, 4).double(), labels, None, torch.arange(2))
    assert terms.labelled is not None
    assert terms.labelled.tolist() == [False, True]
    assert terms.dense.tolist() == [False, False]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", NAMES)
def test_samples_that_are_said_to_be_unlabelled_are_ignored_as_a_whole(method, preset):
    labelled = torch.tensor([True, False, True, True, False])
    results = []
    for said in (True, False):
        criterion = build(method, preset)
        logits, labels, features, index = tensors(*next(random_batch(17, 5)))
        if said:
            out = criterion(logits, labels.byte(), features, index, labelled=labelled)
        else:
            out = criterion(logits, labels.where(labelled.repeat(2)[:, None, None], IGNORED), features, index)
        out.loss.backward()
        results.append([*(part.detach() for part in out), logits.grad, criterion.weights.log_odds])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert (results[0][4][~labelled] == 0).all()


def test_deep_supervision_ignores_unlabelled_samples_at_each_resolution():
    logits, labels, features, index = tensors(*next(random_batch(19, 3)))
    labelled = torch.tensor([False, True, True])
    levels = [labels[:3], labels[:3, ::2, ::2]]
    scales = [logits[:3], logits[:3, :, ::2, ::2]]
    out = build("adawac")(scales, levels, features, index, labelled=labelled)
    hidden = [level.where(labelled[:, None, None], IGNORED) for level in levels]
    assert torch.equal(out.loss, build("adawac")(scales, hidden, features, index).loss)


@pytest.mark.parametrize(
    ("ignore_index", "labelled", "message"),
    [
        (None, torch.ones(3, dtype=torch.bool), "ignore_index=255"),
        (255, torch.ones(6, dtype=torch.bool), "each of 3 samples"),
        (255, torch.ones(3), "each of 3 samples"),
    ],
)
def test_states_that_do_not_suit_are_named(ignore_index, labelled, message):
    criterion = adawac.AdaWAC(6, ignore_index=ignore_index)
    logits, labels, features, index = tensors(*next(random_batch(23, 3)))
    with pytest.raises(ValueError, match=message):
        criterion(logits.float(), labels, features.float(), index, labelled=labelled)
