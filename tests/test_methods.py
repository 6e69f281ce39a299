"""Every method: the preset `paper` against plain loops, and what holds for all of them."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

import adawac
from adawac.errors import ConfigError, ShapeError, UnknownNameError
from adawac.objective import resolve
from tests import reference

NAMES = [
    "baseline",
    "pair",
    "trim-train",
    "trim-train+acr",
    "trim-ratio",
    "trim-ratio+acr",
    "pseudo-adawac",
    "acr-only",
    "reweight-only",
    "pm-dro",
    "adawac",
]
IN_THE_PAPER = [name for name in NAMES if name != "pm-dro"]


def random_batch(seed: int, size: int = 3, classes: int = 3, shape=(4, 3), num_samples: int = 6, steps: int = 1):
    """Steps of (logits, labels, features, index), float64; some label maps are empty, some rows come twice."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        logits = rng.normal(scale=2, size=(2 * size, classes, *shape))
        labels = rng.integers(0, classes, size=(2 * size, *shape))
        labels[rng.random(2 * size) < 0.4] = 0
        features = rng.normal(size=(2 * size, 4, 2, 2))
        yield logits, labels, features, rng.integers(0, num_samples, size=size)


def tensors(logits, labels, features, index):
    return (
        torch.from_numpy(logits).requires_grad_(),
        torch.from_numpy(labels),
        torch.from_numpy(features).requires_grad_(),
        torch.from_numpy(index),
    )


def test_the_methods_in_the_order_of_the_design():
    assert list(adawac.METHODS) == [*NAMES, "mean-teacher"]


@pytest.mark.parametrize("method", IN_THE_PAPER)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 5),
    eta_beta=st.floats(0, 8),
    lambda_ac=st.floats(0, 4),
    rho=st.sampled_from(["rms", "euclidean", "mse", "cosine", "local-cosine"]),
    trim_ratio=st.floats(0, 0.95),
)
def test_paper_equals_plain_loops(method, seed, size, eta_beta, lambda_ac, rho, trim_ratio):
    options = {"eta_beta": eta_beta, "lambda_ac": lambda_ac, "rho": rho, "trim_ratio": trim_ratio}
    criterion = adawac.build_method(method, 6, **options).double()
    beta = [0.5] * 6
    for batch in random_batch(seed, size, steps=2):
        out = criterion(*tensors(*batch))
        expected = reference.paper_loss(method, beta, *batch, **options)
        np.testing.assert_allclose(out.loss.item(), expected, rtol=1e-9)
        np.testing.assert_allclose(criterion.weights.beta.numpy(), beta, rtol=1e-9, atol=1e-12)


@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 5),
    eta_beta=st.floats(0, 4),
    lambda_ac=st.floats(0.1, 4),
    rho=st.sampled_from(["rms", "mse", "cosine", "local-cosine"]),
    bound=st.floats(0.1, 6),
)
def test_robust_equals_plain_loops(seed, size, **options):
    criterion = adawac.build_method("adawac", 6, "robust", **options).double()
    plain = reference.RelativeAdaWAC(6, **options)
    for batch in random_batch(seed, size, steps=4):
        out = criterion(*tensors(*batch))
        np.testing.assert_allclose(out.loss.item(), plain.loss(*batch), rtol=1e-9)
        np.testing.assert_allclose(criterion.weights.beta.numpy(), plain.beta, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rho", ["rms", "mse", "euclidean", "cosine", "local-cosine"])
def test_in_relative_units_the_size_of_latents_does_not_matter(rho):
    """What a network's features are multiplied by changes neither weights nor loss; in absolute units it does."""
    for preset, same in (("robust", True), ("official", rho.endswith("cosine"))):
        criteria = [adawac.build_method("adawac", 6, preset, rho=rho).double() for _ in range(2)]
        for logits, labels, features, index in random_batch(5, steps=5):
            outs = [
                criterion(*tensors(logits, labels, factor * features, index))
                for criterion, factor in zip(criteria, (1, 10), strict=True)
            ]
        betas = [criterion.weights.beta for criterion in criteria]
        assert torch.allclose(*betas, rtol=1e-9) == torch.allclose(outs[0].loss, outs[1].loss, rtol=1e-9) == same


def test_bounded_weights_come_back():
    """A million updates in one direction are undone by a few in the other."""
    weights = adawac.SampleWeights(3, bound=4.0)
    index, high, low = torch.tensor([0, 2]), torch.full((2,), 12.0), torch.zeros(2)
    for _ in range(1000):
        weights.ascend(index.repeat(500), high.repeat(500), low.repeat(500), 8.0)
    assert weights.log_odds.tolist() == [4.0, 0.0, 4.0]
    weights.ascend(index, low, high, 0.5)
    assert weights.log_odds.tolist() == [-2.0, 0.0, -2.0]
    weights.ascend(index, low, high, 0.5)
    assert weights.log_odds.tolist() == [-4.0, 0.0, -4.0]


def test_running_means_follow_training_alone():
    criterion = adawac.build_method("adawac", 6, "robust").double()
    (first, second) = (tensors(*batch) for batch in random_batch(3, steps=2))
    criterion(*first)
    means = {name: value.clone() for name, value in criterion.means.named_buffers()}
    assert means["batches"] == 1
    criterion.eval()(*second)
    criterion.train()
    broken = (first[0].detach().clone().fill_(torch.nan), *first[1:])
    criterion(*broken)  # not finite: it counts nowhere
    assert {name: value.item() for name, value in means.items()} == {
        name: value.item() for name, value in criterion.means.named_buffers()
    }
    criterion.held = True  # the network learns on, and with it what is usual
    criterion(*second)
    assert criterion.means.batches == 2
    assert criterion.means.ce != means["ce"]


def test_running_means_are_saved_and_keep_their_precision():
    criterion, other = (adawac.build_method("adawac", 6, "robust") for _ in range(2))
    logits, labels, features, index = tensors(*next(random_batch(3)))
    criterion(logits.float(), labels, features.float(), index)
    other.load_state_dict(criterion.half().state_dict())
    for name in ("ce", "ac", "batches"):
        mean = getattr(other.means, name)
        assert mean.dtype == torch.float32
        assert mean == getattr(criterion.means, name) != 0
    assert adawac.build_method("adawac", 6, "official").means is None


@pytest.mark.parametrize("preset", ["paper", "official", "robust"])
@pytest.mark.parametrize("method", NAMES)
def test_the_loss_is_differentiated_correctly(method, preset):
    """Central differences of the loss with the weights held: those are constants of the network's step."""
    criterion = adawac.build_method(method, 6, preset, trim_ratio=0.4).double()
    (batch,) = random_batch(7)
    logits, labels, features, index = tensors(*batch)
    criterion(logits.detach(), labels, features.detach(), index)
    criterion.eval()

    def loss(logits, features):
        return criterion(logits, labels, features, index).loss

    assert torch.autograd.gradcheck(loss, (logits, features), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("preset", ["paper", "official", "robust"])
@pytest.mark.parametrize("method", NAMES)
def test_batch_order_does_not_matter(method, preset):
    (batch,) = random_batch(3, size=5, num_samples=20)
    logits, labels, features, _ = tensors(*batch)
    index = torch.tensor([4, 17, 0, 9, 12])
    order = torch.tensor([3, 0, 4, 2, 1])
    both = torch.cat([order, order + 5])
    criteria = [adawac.build_method(method, 20, preset, trim_ratio=0.4).double() for _ in range(2)]
    plain = criteria[0](logits, labels, features, index)
    shuffled = criteria[1](logits[both], labels[both], features[both], index[order])
    torch.testing.assert_close(shuffled.loss, plain.loss)
    torch.testing.assert_close(shuffled.beta, plain.beta[order])
    torch.testing.assert_close(criteria[1].weights.beta, criteria[0].weights.beta)


@pytest.mark.parametrize("method", ["baseline", "pair", "trim-train", "trim-ratio", "reweight-only", "pm-dro"])
def test_methods_without_consistency_need_no_features(method):
    criterion = adawac.build_method(method, 6, trim_ratio=0.4)
    (batch,) = random_batch(1)
    logits, labels, _, index = tensors(*batch)
    assert criterion(logits.float(), labels, None, index).loss.isfinite()


def test_unused_options_are_ignored_and_unknown_ones_are_not():
    baseline = adawac.build_method("baseline", 6, eta_beta=3.0, trim_ratio=0.4, entropy_max=0.1, views="both")
    assert baseline.objective.views == "first"  # what makes a method what it is cannot be changed
    assert adawac.build_method("pair", 6, views="first").objective.views == "both"
    assert adawac.build_method("adawac", 6, "official", eta_beta=None).objective.eta_beta == 2.0  # the preset's
    with pytest.raises(ConfigError, match=r"eta_bta.*'eta_beta'"):
        adawac.build_method("adawac", 6, eta_bta=3.0)
    with pytest.raises(ConfigError, match="one of rms, mse, euclidean, cosine"):
        adawac.build_method("adawac", 6, rho="manhattan")
    with pytest.raises(ConfigError, match="eta_beta: expected a number ≥ 0"):
        adawac.build_method("adawac", 6, eta_beta=-1.0)
    with pytest.raises(ConfigError, match="lambda_ac: expected a number, but got inf"):
        adawac.build_method("adawac", 6, lambda_ac=float("inf"))
    with pytest.raises(ConfigError, match="lambda_ac: expected a number, but got 'large'"):
        adawac.build_method("adawac", 6, lambda_ac="large")
    with pytest.raises(UnknownNameError, match="'adawac'"):
        adawac.build_method("adawak", 6)
    with pytest.raises(UnknownNameError, match="paper, official"):
        resolve("papers", {})  # `build_method` itself has a typed preset, which is checked in tests
    with pytest.raises(ConfigError, match="adawac diagnose"):
        adawac.build_method("trim-ratio", 6)
    with pytest.raises(ConfigError, match="trim_ratio: expected a number ≥ 0 and < 1"):
        adawac.build_method("trim-ratio", 6, trim_ratio=1.0)


@pytest.mark.parametrize("preset", ["paper", "official"])
def test_a_trim_ratio_of_zero_is_a_ratio(preset):
    criterion = adawac.build_method("trim-ratio", 6, preset, trim_ratio=0.0).double()
    assert criterion(*tensors(*next(random_batch(1)))).loss.isfinite()


@pytest.mark.parametrize("method", ["trim-train", "trim-train+acr"])
def test_nothing_kept(method):
    """A batch of empty slices: the paper's Dice (and ACR) go on; the released code's loss is 0."""
    logits, labels, features, index = tensors(*next(random_batch(5)))
    labels = torch.zeros_like(labels)
    paper = adawac.build_method(method, 6).double()(logits, labels, features, index)
    torch.testing.assert_close(paper.loss, paper.ell_dice.mean() + paper.reg_ac.mean())
    official = adawac.build_method(method, 6, "official").double()(logits, labels, features, index)
    assert official.loss.item() == 0
    assert torch.autograd.grad(official.loss, logits)[0].abs().max() == 0


def test_deep_supervision_weighs_the_resolutions():
    rng = np.random.default_rng(0)
    logits = [torch.from_numpy(rng.normal(size=(4, 3, side, side))) for side in (8, 4)]
    labels = torch.from_numpy(rng.integers(0, 3, size=(4, 8, 8)))
    index = torch.tensor([0, 1])
    features = torch.zeros(4, 2, 1, 1, dtype=torch.float64)
    options = {"supervision": (3.0, 1.0)}
    whole = adawac.build_method("adawac", 2, **options).double()(logits, labels, features, index)
    coarse = labels[:, 1::2, 1::2]  # nearest-exact takes the pixel at the middle of each 2 x 2 block
    parts = [
        adawac.build_method("adawac", 2).double()(scale, target, features, index)
        for scale, target in zip(logits, (labels, coarse), strict=True)
    ]
    torch.testing.assert_close(whole.ell_ce, (3 * parts[0].ell_ce + parts[1].ell_ce) / 4)
    torch.testing.assert_close(whole.ell_dice, (3 * parts[0].ell_dice + parts[1].ell_dice) / 4)
    given_both = adawac.build_method("adawac", 2, **options).double()(logits, [labels, coarse], features, index)
    torch.testing.assert_close(given_both.loss, whole.loss)
    halving = adawac.build_method("adawac", 2).double()(logits, labels, features, index)
    torch.testing.assert_close(halving.ell_ce, (2 * parts[0].ell_ce + parts[1].ell_ce) / 3)
    empty = [labels, torch.zeros_like(coarse)]  # label-dense is what the finest map says
    assert adawac.build_method("pseudo-adawac", 2).double()(logits, empty, features, index).beta.tolist() == [1, 1]


def test_ignored_pixels_and_the_threshold_decide_what_is_label_dense():
    labels = torch.zeros(6, 16, 16, dtype=torch.int64)
    labels[0, 0, 0], labels[1, :2], labels[2] = 1, 1, 255
    call = torch.zeros(6, 2, 16, 16), labels, torch.zeros(6, 3), torch.arange(3)
    for options, dense in (({}, [1, 1, 0]), ({"sparse_threshold": 0.1}, [0, 1, 0])):
        criterion = adawac.build_method("pseudo-adawac", 3, ignore_index=255, **options)
        assert criterion(*call).beta.tolist() == dense


def test_ignored_pixels_and_smoothing_reach_the_loss():
    logits, labels, features, index = tensors(*next(random_batch(7)))
    ignored = labels.clone()
    ignored[..., 2:] = 255
    cropped = adawac.AdaWAC(6, smooth=0.5).double()(logits[..., :2], labels[..., :2], features, index)
    masked = adawac.AdaWAC(6, smooth=0.5, ignore_index=255).double()(logits, ignored, features, index)
    torch.testing.assert_close(masked, cropped)
    rough = adawac.AdaWAC(6).double()(logits[..., :2], labels[..., :2], features, index)
    assert (rough.ell_dice - cropped.ell_dice).abs().min() > 1e-3


def test_one_supervised_view_is_enough():
    """B rows of logits with 2B latents: the second view passed the encoder alone."""
    (batch,) = random_batch(2)
    logits, labels, features, index = tensors(*batch)
    for preset in ("paper", "official", "robust"):
        criterion = adawac.build_method("adawac", 6, preset).double()
        out = criterion(logits[:3], labels[:3], features, index)
        assert out.loss.isfinite()
    paper_both = adawac.build_method("adawac", 6).double()(logits, labels, features, index)
    paper_one = adawac.build_method("adawac", 6).double()(logits[:3], labels[:3], features, index)
    torch.testing.assert_close(paper_one.loss, paper_both.loss, rtol=0, atol=0)


def test_aligned_consistency_of_an_equivariant_encoder_is_zero():
    """Latents that turn with the image: unaligned they differ, aligned they agree exactly."""
    latent = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 3, 5, 5)))
    quarter = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64).expand(2, 2, 3)
    identity = torch.eye(2, 3, dtype=torch.float64).expand(2, 2, 3)
    grid = torch.nn.functional.affine_grid(quarter, [2, 3, 5, 5], align_corners=False)
    turned = torch.nn.functional.grid_sample(latent, grid, align_corners=False)
    features, views = torch.cat([latent, turned]), torch.cat([identity, quarter])
    logits, labels = torch.zeros(4, 2, 5, 5, dtype=torch.float64), torch.zeros(4, 5, 5, dtype=torch.int64)
    index = torch.tensor([0, 1])
    plain = adawac.AdaWAC(2).double()(logits, labels, features, index)
    aligned = adawac.AdaWAC(2, aligned=True).double()(logits, labels, features, index, views)
    assert plain.reg_ac.min() > 0.5
    assert aligned.reg_ac.max() < 1e-12
    unused = adawac.AdaWAC(2).double()(logits, labels, features, index, views)  # maps alone align nothing
    torch.testing.assert_close(unused.reg_ac, plain.reg_ac)


def test_aligned_latents_are_compared_where_both_views_show_them():
    """The second view is moved by two of four columns, so that it shows the right half alone; there they agree."""
    latent = torch.ones(1, 1, 4, 4)
    moved = torch.eye(2, 3).unsqueeze(0)
    moved[0, 0, 2] = 1.0
    features, views = torch.cat([latent, latent]), torch.cat([torch.eye(2, 3).unsqueeze(0), moved])
    features[0, :, :, :2] = 9.0  # what the second view does not show
    logits, labels = torch.zeros(2, 2, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64)
    criterion = adawac.AdaWAC(1, aligned=True)
    assert criterion(logits, labels, features, torch.tensor([0]), views).reg_ac.item() == 0
    features[0, :, :, 2:] = 4.0
    assert criterion(logits, labels, features, torch.tensor([0]), views).reg_ac.item() == pytest.approx(3.0)


def test_several_latents_have_coefficients():
    (batch,) = random_batch(4)
    logits, labels, features, index = tensors(*batch)
    single = adawac.AdaWAC(6).double()(logits, labels, features, index)
    double = adawac.AdaWAC(6).double()(logits, labels, [(1.0, features), (0.5, 2 * features)], index)
    torch.testing.assert_close(double.reg_ac, 2 * single.reg_ac)


def test_non_finite_values_leave_the_weights_alone():
    for method, preset in (("adawac", "paper"), ("reweight-only", "official"), ("reweight-only", "paper")):
        criterion = adawac.build_method(method, 4, preset).double()
        logits, labels, features, _ = tensors(*next(random_batch(6, size=2)))
        logits = logits.detach().clone()
        logits[0, 0, 0, 0] = torch.inf
        before = criterion.weights.beta.clone()
        criterion(logits, labels, features, torch.tensor([2, 1]))
        assert criterion.weights.beta[2] == before[2]
        assert criterion.weights.beta.isfinite().all()
        assert criterion.weights.skipped == 1
        if (method, preset) == ("reweight-only", "official"):  # normalised over those that are finite
            assert criterion.weights.beta[1] == 1


def test_a_batch_of_one_keeps_batch_normalised_weights_finite():
    criterion = adawac.build_method("reweight-only", 4, "official")
    logits, labels, features, _ = tensors(*next(random_batch(8, size=1)))
    for _ in range(50):
        out = criterion(logits.float(), labels, features, torch.tensor([3]))
    assert out.beta.item() == 1
    assert criterion.weights.log_odds.isfinite().all()


def test_a_repeated_row_of_batch_normalised_weights_grows_twice():
    logits, labels, features, _ = tensors(*next(random_batch(9)))
    criterion = adawac.build_method("reweight-only", 4, "official", eta_beta=0.5).double()
    out = criterion(logits, labels, features, torch.tensor([1, 1, 2]))
    ce = out.ell_ce
    grown = (0.5 * torch.stack([ce[0] + ce[1], ce[0] + ce[1], ce[2]])).exp()
    torch.testing.assert_close(out.beta, grown / grown.sum())


def test_pm_dro_draws_the_weights_towards_uniform():
    """Starting from 1/2 and 3/4 in the same step: the power of the old weights is 1 - eta_beta ε."""
    criterion = adawac.build_method("pm-dro", 2, eta_beta=0.5, entropy_max=0.4).double()
    criterion.weights.ascend(torch.tensor([1]), torch.tensor([3.0]).log().double(), torch.zeros(1), 1.0)
    logits, labels, _, _ = tensors(*next(random_batch(10, size=2)))
    out = criterion(logits, labels, None, torch.tensor([0, 1]))
    grown = torch.tensor([0.5, 0.75], dtype=torch.float64) ** 0.8 * (0.5 * out.ell_ce).exp()
    torch.testing.assert_close(out.beta, grown / grown.sum())


@pytest.mark.parametrize("method", ["adawac", "reweight-only"])
def test_training_moves_the_weights_by_the_papers_line(monkeypatch, method):
    updates = []
    monkeypatch.setattr(adawac.SampleWeights, "ascend", lambda self, *update: updates.append(update))
    criterion = adawac.build_method(method, 6, eta_beta=0.7).double()
    batch = tensors(*next(random_batch(11)))
    out = criterion(*batch)
    ((index, ell_ce, reg_ac, eta_beta),) = updates
    assert torch.equal(index, batch[3])
    assert torch.equal(ell_ce, out.ell_ce)
    assert torch.equal(reg_ac, out.reg_ac)
    assert eta_beta == 0.7
    assert (criterion.weights.log_odds == 0).all()  # nothing else moves them


@pytest.mark.parametrize("method", NAMES)
def test_evaluation_moves_no_methods_weights(method):
    criterion = adawac.build_method(method, 6, trim_ratio=0.4).double().eval()
    criterion(*tensors(*next(random_batch(11))))
    assert (criterion.weights.beta == 0.5).all()


@pytest.mark.parametrize("preset", ["paper", "official", "robust"])
@pytest.mark.parametrize("method", ["adawac", "reweight-only", "pm-dro"])
def test_held_weights_stay_in_training_mode_until_released(method, preset):
    criterion = adawac.build_method(method, 6, preset).double()
    batch = tensors(*next(random_batch(11)))
    criterion.held = True
    for mode in (True, False, True):  # as training loops of other packages switch modules
        held = criterion.train(mode)(*batch)
        assert criterion.training is mode
        assert (criterion.weights.beta == 0.5).all()
        assert (held.beta == 0.5).all()
    assert criterion.weights.skipped == 0
    criterion.held = False
    criterion(*batch)
    assert (criterion.weights.beta[batch[3]] != 0.5).all()


def test_whether_weights_are_held_is_not_saved():
    criterion, other = (adawac.build_method("adawac", 6) for _ in range(2))
    assert not criterion.held
    criterion.held = True
    assert set(criterion.state_dict()) == set(other.state_dict()) == {"weights.log_odds", "weights.skipped"}
    other.load_state_dict(criterion.state_dict())
    assert not other.held


def test_trimming_by_quantile_keeps_what_is_above_it():
    """With three samples the median is one of them, and that one is dropped, too."""
    criterion = adawac.build_method("trim-ratio", 6, "official", trim_ratio=0.5).double()
    out = criterion(*tensors(*next(random_batch(12))))
    assert out.beta.tolist() == (out.ell_ce == out.ell_ce.max()).double().tolist()


# -- mean-teacher: it compares predictions, those of two networks ------------------------------------------------------


def predictions(logits):
    """(2B, K, H, W) -> probabilities, pixel by pixel."""
    rows = [np.array(reference.probabilities(row)).T.reshape(row.shape) for row in logits]
    return np.stack(rows)


@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 4),
    lambda_ac=st.floats(0, 40),
    ramp_epochs=st.sampled_from([0.0, 0.7, 5.0]),
)
def test_mean_teacher_equals_plain_loops(seed, size, lambda_ac, ramp_epochs):
    """Its reference: CE + Dice + ACR of probabilities, with the weight of Tarvainen and Valpola's ramp."""
    criterion = adawac.build_method("mean-teacher", 6, lambda_ac=lambda_ac, ramp_epochs=ramp_epochs, aligned=False)
    taught = np.random.default_rng(seed + 1).normal(scale=2, size=(4, 2 * size, 3, 4, 3))
    for step, (logits, labels, _, index) in enumerate(random_batch(seed, size, steps=4)):
        both = np.concatenate([logits[:size], taught[step][:size]])
        out = criterion.double()(*tensors(logits, labels, both, index))
        reached = 1.0 if ramp_epochs == 0 else min(1.0, step * size / (6 * ramp_epochs))
        expected = reference.paper_loss(
            "acr-only", [], logits, labels, predictions(both), index,
            eta_beta=1.0, lambda_ac=lambda_ac * np.exp(-5 * (1 - reached) ** 2), rho="mse", trim_ratio=0.0,
        )  # fmt: skip
        np.testing.assert_allclose(out.loss.item(), expected, rtol=1e-9)
        assert out.beta.tolist() == [1] * size
    assert (criterion.weights.log_odds == 0).all()


def turned(size):
    """Maps of first views that are the image, and of second ones that are mirrored left to right."""
    maps = torch.eye(2, 3, dtype=torch.float64).repeat(2 * size, 1, 1)
    maps[size:, 0, 0] = -1
    return maps


def test_mean_teacher_compares_what_both_views_show_of_the_same_tissue():
    logits, labels, _, index = tensors(*next(random_batch(3)))
    criterion = adawac.build_method("mean-teacher", 6, ramp_epochs=0).double()
    both = torch.cat([logits[:3], logits[:3].flip(-1)])
    assert criterion(logits, labels, both, index, turned(3)).reg_ac.abs().max() < 1e-12
    assert criterion(logits, labels, both.flip(-1), index, turned(3)).reg_ac.abs().max() < 1e-12
    assert criterion(logits, labels, torch.cat([logits[:3], logits[:3]]), index, turned(3)).reg_ac.min() > 0.01
    with pytest.raises(ShapeError, match=r"affine maps of the views.*but got none"):
        criterion(logits, labels, both, index)


def test_only_the_network_learns_from_its_teacher():
    logits, labels, _, index = tensors(*next(random_batch(3)))
    both = torch.randn(6, 3, 4, 3, dtype=torch.float64, requires_grad=True)
    criterion = adawac.build_method("mean-teacher", 6, ramp_epochs=0, aligned=False).double()
    criterion(logits, labels, both, index).loss.backward()
    assert (both.grad[:3] != 0).any((1, 2, 3)).all()
    assert (both.grad[3:] == 0).all()
    assert (logits.grad[3:] == 0).all()


def test_unlabelled_samples_cost_mean_teacher_consistency_alone():
    criterion = adawac.build_method("mean-teacher", 6, lambda_ac=3.0, ramp_epochs=0, aligned=False, ignore_index=255)
    logits, labels, _, index = tensors(*next(random_batch(3)))
    both = torch.randn(6, 3, 4, 3, dtype=torch.float64)
    labelled = criterion(logits, labels, both, index)
    labels[[1, 4]] = 255
    out = criterion(logits, labels, both, index)
    rest = [0, 2]
    supervised = (labelled.ell_ce + labelled.ell_dice)[rest].mean()
    torch.testing.assert_close(out.loss.detach(), supervised + labelled.reg_ac.mean())
    assert out.beta.tolist() == [1, 0, 1]


def test_the_ramp_is_saved_and_rises_in_training_mode_alone():
    criterion, other = (adawac.build_method("mean-teacher", 6, aligned=False) for _ in range(2))
    logits, labels, _, index = tensors(*next(random_batch(3)))
    criterion(logits, labels, logits, index)
    criterion.eval()(logits, labels, logits, index)
    assert int(criterion.seen) == 3
    other.load_state_dict(criterion.state_dict())
    assert int(other.seen) == 3


@pytest.mark.parametrize(
    "features", [None, torch.zeros(6, 5, 2, 2), torch.zeros(3, 3, 4, 3), [(1.0, torch.zeros(6, 5))]]
)
def test_mean_teacher_refuses_latents(features):
    logits, labels, _, index = tensors(*next(random_batch(3)))
    with pytest.raises(ShapeError, match=r"logits of the network and of its teacher, \(6, 3, 4, 3\).*teacher\(x2\)"):
        adawac.build_method("mean-teacher", 6)(logits, labels, features, index)


def test_mean_teacher_takes_the_finest_of_several_resolutions():
    logits, labels, _, index = tensors(*next(random_batch(3)))
    criterion = adawac.build_method("mean-teacher", 6, aligned=False).double()
    assert criterion([logits, logits[..., ::2, ::2]], labels, logits, index).loss.isfinite()


@pytest.mark.parametrize("name", ["reweight-only", "pm-dro"])
def test_a_sample_that_occurs_twice_grows_by_what_is_finite(name):
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(3, 3, 4, 4, generator=generator), torch.randint(0, 3, (3, 4, 4), generator=generator)
    logits[0] = torch.nan
    once, twice = (adawac.build_method(name, 4, preset="official", eta_beta=0.3) for _ in range(2))
    once(torch.cat([logits[1:]] * 2), torch.cat([labels[1:]] * 2), None, torch.tensor([2, 1]))
    twice(torch.cat([logits] * 2), torch.cat([labels] * 2), None, torch.tensor([2, 2, 1]))
    torch.testing.assert_close(twice.weights.log_odds, once.weights.log_odds)
    assert twice.weights.skipped == 1
