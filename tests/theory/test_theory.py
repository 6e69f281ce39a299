"""Propositions 1 and 2, run: where they hold, where they do not, and that the tools that say so can be trusted."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import approx_fprime

from adawac import losses, theory
from adawac.algorithm import SampleWeights
from adawac.errors import AdawacError
from adawac.theory import experiments
from adawac.theory.descent import _Rows
from adawac.theory.guarantee import Steps
from adawac.theory.instance import theta_star_of
from tests.places import REPOSITORY
from tests.reference import mirror_ascent

SEEDS = st.integers(0, 2**32 - 1)


def somewhere_in(instance, random):
    """A point of F_γ, on its surface half of the time."""
    direction = random.normal(size=4)
    return instance.theta_star + direction / np.linalg.norm(direction) * instance.gamma * min(1, 2 * random.random())


# --- the instance ---------------------------------------------------------------------------------------------------


def test_its_terms_are_the_losses_that_training_uses():
    instance = theory.build_instance(5, lambda_ac=0.7)
    theta = somewhere_in(instance, np.random.default_rng(0))
    scores = torch.from_numpy(instance.pixels @ theta)
    logits = torch.stack([torch.zeros_like(scores), scores], 1)  # a sigmoid is a softmax over two classes
    first, second = torch.from_numpy(instance.views @ theta[:3])
    terms = instance.terms(theta)
    np.testing.assert_allclose(terms.ell_ce, losses.cross_entropy(logits, torch.from_numpy(instance.labels).long()))
    np.testing.assert_allclose(terms.reg_ac, 0.7 * losses.consistency(first, second, "rms"))


def test_its_gradients_are_those_of_its_terms():
    instance = theory.build_instance(3)
    theta = instance.theta_star + 0.03
    terms = instance.terms(theta)
    for sample in range(3):
        np.testing.assert_allclose(
            terms.grad_ce[sample], approx_fprime(theta, lambda x, i=sample: instance.terms(x).ell_ce[i]), atol=1e-6
        )
        np.testing.assert_allclose(
            terms.grad_ac[sample], approx_fprime(theta, lambda x, i=sample: instance.terms(x).reg_ac[i]), atol=1e-6
        )


@given(SEEDS)
def test_both_terms_are_convex(seed):
    random = np.random.default_rng(seed)
    instance = theory.build_instance(4, seed=seed)
    a, b = random.normal(size=(2, 4)) * 3
    middle, ends = instance.terms((a + b) / 2), (instance.terms(a), instance.terms(b))
    for key in ("ell_ce", "reg_ac"):
        assert (getattr(middle, key) <= (getattr(ends[0], key) + getattr(ends[1], key)) / 2 + 1e-12).all()


def test_the_mixture_is_what_was_asked_for():
    instance = theory.build_instance(40, xi=0.3, num_pixels=500)
    assert instance.dense.sum() == 12
    assert instance.labels[~instance.dense].mean() == pytest.approx(0.006, abs=0.002)
    assert 0.4 < instance.labels[instance.dense].mean() < 0.6
    same = theory.build_instance(40, xi=0.3, num_pixels=500, separation=0)
    assert abs(same.labels[same.dense].mean() - same.labels[~same.dense].mean()) < 0.01
    assert not np.array_equal(instance.labels, theory.build_instance(40, xi=0.3, num_pixels=500, seed=1).labels)


def test_theta_star_is_the_teacher_where_there_is_no_mixture_and_depends_on_xi_where_there_is():
    np.testing.assert_allclose(theta_star_of(0.25, 0.0), [2, -1, 1, -6], atol=1e-4)
    np.testing.assert_allclose(theta_star_of(1.0, 6.0), [2, -1, 1, 0], atol=1e-4)
    assert np.linalg.norm(theta_star_of(0.1, 6.0) - theta_star_of(0.5, 6.0)) > 1


@pytest.mark.parametrize("wrong", [{"num_samples": 1}, {"xi": 0.0}, {"xi": 1.0}, {"gamma": 0.0}, {"num_pixels": 3}])
def test_impossible_instances_are_refused(wrong):
    with pytest.raises(AdawacError, match="Expected num_samples >= 2"):
        theory.build_instance(**{"num_samples": 4} | wrong)


# --- what is bounded over the ball ----------------------------------------------------------------------------------


@given(SEEDS)
def test_margins_hold_all_over_the_ball(seed):
    random = np.random.default_rng(seed)
    instance = theory.build_instance(4, seed=seed, gamma=random.choice([0.1, 0.5]), separation=random.choice([1, 6]))
    terms = instance.terms(somewhere_in(instance, random))
    towards_its_side = np.where(instance.dense, 1, -1) * (terms.ell_ce - terms.reg_ac)
    assert (towards_its_side >= theory.margins(instance) - 1e-12).all()


def test_cross_entropy_stays_in_its_range_where_it_rises_fastest():
    """At the end of its gradient a convex loss lies above its tangent: the range must leave room for that."""
    instance = theory.build_instance(6, gamma=0.5)
    centre = instance.terms(instance.theta_star)
    for sample, gradient in enumerate(centre.grad_ce):
        step = instance.gamma * gradient / np.linalg.norm(gradient)
        high, low = (instance.terms(instance.theta_star + sign * step).ell_ce[sample] for sign in (1, -1))
        assert high > centre.ell_ce[sample] + gradient @ step
        assert instance.ranges.ce_low[sample] <= low < high <= instance.ranges.ce_high[sample]


def test_the_range_of_lambda_ends_where_the_margin_does():
    for end, inwards in zip(theory.lambda_range(theory.build_instance(8)), (1.001, 0.999), strict=True):
        assert theory.margins(theory.build_instance(8, lambda_ac=end * inwards)).min() > 0
        assert theory.margins(theory.build_instance(8, lambda_ac=end / inwards)).min() < 0


@pytest.mark.parametrize("size", [2, 16])
def test_constants_are_upper_bounds_and_tight_to_a_tenth(size):
    instance = theory.build_instance(size)
    for bounded, met in zip(theory.bounded_constants(instance), theory.sampled_constants(instance), strict=True):
        assert met <= bounded <= 1.1 * met


# --- the duality gap ------------------------------------------------------------------------------------------------


def test_the_inner_maximum_is_that_over_all_vertices():
    instance = theory.build_instance(5)
    terms = instance.terms(instance.theta_star)
    values = [np.mean(np.where(b, terms.ell_ce, terms.reg_ac)) for b in itertools.product([True, False], repeat=5)]
    assert theory.inner_maximum(instance, instance.theta_star) == pytest.approx(max(values), abs=1e-15)


@pytest.mark.parametrize("gamma", [0.1, 1.0])  # the minimum is on the surface, and inside
def test_the_inner_minimum_is_certified_and_another_method_finds_it_too(gamma):
    instance = theory.build_instance(6, gamma=gamma)
    beta = np.array([1, 0.7, 0.9, 0.2, 0.6, 0.8]) if gamma < 1 else np.ones(6)
    minimum = theory.inner_minimum(instance, beta)
    assert minimum.certificate <= 1e-8
    assert (np.linalg.norm(minimum.theta - instance.theta_star) < 0.99 * gamma) == (gamma == 1)

    def loss(theta):
        terms = instance.terms(theta)
        return np.mean(beta * terms.ell_ce + (1 - beta) * terms.reg_ac)

    theta = instance.theta_star
    for _ in range(3000):  # projected gradient descent, which shares nothing with SLSQP
        terms = instance.terms(theta)
        offset = theta - (beta @ terms.grad_ce + (1 - beta) @ terms.grad_ac) / len(beta) - instance.theta_star
        theta = instance.theta_star + offset / max(1, np.linalg.norm(offset) / gamma)
    assert minimum.value == pytest.approx(loss(minimum.theta), abs=1e-15)
    assert minimum.value == pytest.approx(loss(theta), abs=1e-8)


@given(SEEDS)
def test_no_point_of_the_ball_lies_below_the_certified_minimum(seed):
    random = np.random.default_rng(seed)
    instance = theory.build_instance(4, seed=seed, gamma=random.choice([0.1, 1.0]))
    beta = random.random(4)
    minimum = theory.inner_minimum(instance, beta)
    for _ in range(20):
        terms = instance.terms(somewhere_in(instance, random))
        assert np.mean(beta * terms.ell_ce + (1 - beta) * terms.reg_ac) >= minimum.value - minimum.certificate


def test_an_impossible_tolerance_is_said_to_be_so():
    with pytest.raises(AdawacError, match="Expected the inner minimum to"):
        theory.inner_minimum(theory.build_instance(4, gamma=1.0), np.ones(4), tolerance=-1.0)


# --- Proposition 1 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_the_saddle_point_separates_separated_samples(size):
    instance = theory.build_instance(size)
    assert theory.margins(instance).min() > 0
    saddle = theory.saddle_point(instance)
    np.testing.assert_array_equal(saddle.beta, instance.dense)
    assert theory.duality_gap(instance, saddle.theta, saddle.beta) == pytest.approx(0, abs=2e-8)


def test_without_separation_no_vertex_need_be_a_saddle_point():
    crossing = theory.build_instance(4, gamma=1.0)
    assert theory.margins(crossing).min() < 0
    saddle = theory.saddle_point(crossing)
    assert saddle.gap < 1e-6
    assert ((saddle.beta > 0.1) & (saddle.beta < 0.9)).any()
    assert theory.vertex_shortfall(crossing) > 1e-3  # against the proof of Proposition 1
    assert theory.vertex_shortfall(theory.build_instance(4)) == pytest.approx(0, abs=1e-8)


def test_bringing_the_distributions_together_ends_the_separation():
    apart, together = experiments.violation([6.0, 0.0], num_instances=4)
    assert apart["certified"] == apart["right_at_saddle"] == apart["right_by_algorithm"] == 1
    assert together["certified"] == 0
    assert together["right_at_saddle"] < 0.9


# --- Algorithm 1 ----------------------------------------------------------------------------------------------------


def algorithm_1_in_plain_loops(run, draws):
    """As printed, in float64 NumPy: multiplied weights, one sample a step, projection, means over t = 1, …, T."""
    instance, (eta_theta, eta_beta) = run
    theta, beta = instance.theta_star.copy(), np.full(instance.num_samples, 0.5)
    thetas, betas = [], []
    for i in draws:
        terms = instance.terms(theta)
        beta[i] = mirror_ascent(beta[i], terms.ell_ce[i], terms.reg_ac[i], eta_beta)
        offset = (
            theta - eta_theta * (beta[i] * terms.grad_ce[i] + (1 - beta[i]) * terms.grad_ac[i]) - instance.theta_star
        )
        theta = instance.theta_star + offset / max(1, np.linalg.norm(offset) / instance.gamma)
        thetas.append(theta)
        betas.append(beta.copy())
    return np.mean(thetas, 0), np.mean(betas, 0), np.array(betas)


def test_rows_of_seeds_and_sizes_are_the_algorithm_as_printed():
    runs = [
        theory.Trajectory(theory.build_instance(size, gamma=gamma), Steps(eta_theta, eta_beta))
        for size, gamma, eta_theta, eta_beta in [(2, 0.1, 0.05, 0.02), (5, 0.5, 0.01, 0.1)]
    ]
    results = theory.run_algorithm(runs, 300, num_seeds=3, seed=7, record_every=100)
    draws = torch.stack(list(_Rows(runs, 3).draws(300, 7))).numpy()
    assert [set(draws[:, row]) for row in (0, 3)] == [set(range(2)), set(range(5))]
    for row, (number, seed) in enumerate(itertools.product(range(2), range(3))):
        theta, beta, path = algorithm_1_in_plain_loops(runs[number], draws[:, row])
        np.testing.assert_allclose(results[number].theta[seed], theta, atol=1e-12)
        np.testing.assert_allclose(results[number].beta[seed], beta, atol=1e-12)
        np.testing.assert_allclose(results[number].path[:, seed], path[[99, 199, 299]], atol=1e-12)


def test_the_weights_are_those_that_training_uses(monkeypatch):
    sizes = []
    ascend = SampleWeights.ascend
    monkeypatch.setattr(
        SampleWeights, "ascend", lambda self, *update: (sizes.append(len(self.log_odds)), ascend(self, *update))
    )
    theory.run_algorithm([theory.Trajectory(theory.build_instance(3), Steps(0.1, 0.1))], 10, num_seeds=4)
    assert sizes == [12] * 10


def test_draws_are_uniform_and_the_seeds_differ():
    rows = _Rows([theory.Trajectory(theory.build_instance(4), Steps(0.1, 0.1))], 2)
    draws = torch.stack(list(rows.draws(8000, 0)))
    assert (draws[:, 0] != draws[:, 1]).any()
    assert torch.bincount(draws.flatten()) == pytest.approx([4000] * 4, rel=0.1)


def test_instances_of_several_pixel_counts_do_not_run_together():
    runs = [theory.Trajectory(theory.build_instance(2, num_pixels=d), Steps(0.1, 0.1)) for d in (8, 9)]
    with pytest.raises(AdawacError, match="Expected instances of one num_pixels"):
        theory.run_algorithm(runs, 1)


# --- Proposition 2 --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured():
    """Mean gaps for n = 2, 4, 8, 16 and two T, from where on the paper's step size has converged for n ≤ 4."""
    rows = experiments.convergence([2, 4, 8, 16], [13_000, 26_000], num_seeds=4)
    assert all(row["T"] >= row["converges_from"] for row in rows if row["rule"] == "balanced" or row["n"] <= 4)
    return rows


def test_the_gap_stays_below_the_stated_bound_at_the_stated_step_size_up_to_five_samples(measured):
    for row in measured:
        if row["rule"] == "stated" and row["n"] <= 5:
            assert row["gap"] <= row["stated_bound"]
            assert row["gap"] == pytest.approx(row["n"] * math.log(2) / 4 * row["stated_bound"], rel=0.03)


def test_the_gap_exceeds_the_stated_bound_at_the_stated_step_size_from_six_samples_on(measured):
    """Against Proposition 2: the gap is at least what the weights still lack, n·log 2/(η_β·T) = n·log 2/4 bounds."""
    exceeding = [row for row in measured if row["rule"] == "stated" and row["n"] >= 6 and row["T"] == 26_000]
    assert len(exceeding) == 2
    for row in exceeding:
        assert row["gap"] > 1.1 * row["stated_bound"]
        assert row["gap_spread"] < 0.01 * row["gap"]  # not by chance


def test_the_gap_stays_below_both_bounds_at_balanced_step_sizes(measured):
    balanced = [row for row in measured if row["rule"] == "balanced"]
    assert {row["n"] for row in balanced} == {2, 4, 8, 16}
    for row in balanced:
        assert row["gap"] <= min(row["stated_bound"], row["provable_bound"])


def test_the_gap_stays_below_the_provable_bound_at_any_step_size(measured):
    assert all(row["gap"] <= row["provable_bound"] for row in measured)
    instance = theory.build_instance(8, gamma=1.0)  # not separated, which Proposition 2 does not ask for
    runs = [
        theory.Trajectory(instance, Steps(eta_theta, eta_beta))
        for eta_theta in (0.01, 0.3)
        for eta_beta in (0.01, 0.3, 3)
    ]
    for run, result in zip(runs, theory.run_algorithm(runs, 2000, num_seeds=4), strict=True):
        gap = np.mean([theory.duality_gap(instance, *pair) for pair in zip(result.theta, result.beta, strict=True)])
        assert 0 < gap <= theory.provable_bound(instance, 2000, run.steps)


def test_the_gap_falls_as_one_over_the_root_of_t(measured):
    slopes = {(fit["rule"], fit["n"]): fit["slope"] for fit in experiments.slopes(measured)}
    assert {key for key, slope in slopes.items() if slope is None} == {("stated", 8), ("stated", 16)}
    assert all(slope <= -0.45 for slope in slopes.values() if slope is not None), slopes


@pytest.mark.slow
def test_the_gap_falls_as_one_over_the_root_of_t_for_eight_samples_at_the_stated_step_size():
    rows = experiments.convergence([8], [100_000, 400_000], ["stated"], num_seeds=2)
    (fit,) = experiments.slopes(rows)
    assert fit["points"] == 2
    assert fit["slope"] <= -0.45


def test_the_averaged_weights_separate_all_samples(measured):
    for row in measured:
        assert row["right"] == 1
        if row["rule"] == "balanced":
            assert row["confident"] == 1
    assert [row["confident"] for row in measured if row["rule"] == "stated" and row["n"] == 16] == [0, 0]


def test_step_sizes_and_bounds_are_those_of_the_formulas():
    instance, T = theory.build_instance(6), 5000
    c_theta, c_beta = theory.bounded_constants(instance)
    stated = 0.1**2 * c_theta**2 + 2 * 6 * c_beta**2
    assert theory.stated_steps(instance, T) == pytest.approx([2 / math.sqrt(5 * T * stated)] * 2)
    assert theory.stated_bound(instance, T) == pytest.approx(2 * math.sqrt(5 * stated / T))
    steps = theory.balanced_steps(instance, T)
    bound = 2 * math.sqrt(5 / T) * (0.1 * c_theta / math.sqrt(2) + math.sqrt(6 * math.log(2)) * c_beta)
    extra = 0.1 * steps.eta_beta * c_theta * c_beta + (0.1 * c_theta + c_beta / 2) / T
    assert theory.provable_bound(instance, T, steps) == pytest.approx(bound + extra)
    assert bound + extra < theory.stated_bound(instance, T)
    for name, factor in itertools.product(Steps._fields, (0.7, 1.4)):  # no other step sizes have a smaller bound
        moved = steps._replace(**{name: getattr(steps, name) * factor})
        assert theory.provable_bound(instance, T, moved) > bound + extra


def test_the_rule_of_thumb_is_the_balanced_step_size():
    instance = theory.build_instance(16)
    rule = theory.eta_beta_for(theory.bounded_constants(instance).c_beta, num_epochs=150)
    assert rule == pytest.approx(theory.balanced_steps(instance, 150 * 16).eta_beta)


def test_convergence_at_the_stated_step_size_takes_n_cubed():
    instance = theory.build_instance(8)
    stated = 25 * 8**3 * (theory.bounded_constants(instance).c_beta / theory.margins(instance).min()) ** 2
    assert theory.steps_to_converge(instance) == pytest.approx(stated, rel=0.01)
    assert theory.steps_to_converge(instance, theory.balanced_steps) < stated / 50
    assert theory.steps_to_converge(theory.build_instance(8, gamma=1.0)) == math.inf


# --- the update of β ------------------------------------------------------------------------------------------------


@given(SEEDS)
def test_the_update_is_the_papers_multiplicative_one(seed):
    random = np.random.default_rng(seed)
    eta_beta = float(random.choice([0.01, 0.3, 1.0]))
    weights, multiplied, index = (
        SampleWeights(1).double(),
        torch.full((1,), 0.5, dtype=torch.float64),
        torch.tensor([0]),
    )
    for _ in range(100):
        ell_ce, reg_ac = torch.from_numpy(random.exponential(size=(2, 1)))
        if abs(float(weights.log_odds) + eta_beta * float(ell_ce - reg_ac)) > 6:
            continue
        looped = mirror_ascent(float(multiplied), float(ell_ce), float(reg_ac), eta_beta)
        multiplied = theory.multiplicative_update(multiplied, ell_ce, reg_ac, eta_beta)
        weights.ascend(index, ell_ce, reg_ac, eta_beta)
        assert float(multiplied) == pytest.approx(looped, abs=1e-15)
        assert float(weights.beta) == pytest.approx(float(multiplied), abs=1e-12)


@pytest.mark.parametrize(("dtype", "returns", "sticks"), [(torch.float32, 14, 18), (torch.float64, 33, 37)])
def test_the_multiplicative_form_sticks_at_one_and_log_odds_come_back(dtype, returns, sticks):
    assert theory.returns_from(returns, dtype) == pytest.approx(0.5, abs=0.05)
    assert theory.returns_from(sticks, dtype) == 1
    weights, index, high, low = SampleWeights(1).to(dtype), torch.tensor([0]), torch.ones(1), torch.zeros(1)
    for ell_ce, reg_ac in [(high, low)] * 1000 + [(low, high)] * 1000:
        weights.ascend(index, ell_ce, reg_ac, 1.0)
    assert float(weights.beta) == 0.5


def test_the_multiplicative_form_overflows_and_log_odds_do_not():
    loss, none, half = torch.tensor([12.0]), torch.tensor([0.0]), torch.tensor([0.5])
    assert theory.multiplicative_update(half, loss, none, eta_beta=8.0).isnan().all()
    weights = SampleWeights(1)
    weights.ascend(torch.tensor([0]), loss, none, 8.0)
    assert float(weights.log_odds) == 96


# --- what does not hold as stated, and hard thresholding ------------------------------------------------------------


@pytest.mark.parametrize("num_pixels", [16, 36])
def test_the_papers_example_is_not_convex(num_pixels):
    example = theory.bilinear_example(num_pixels)
    assert example.norms == pytest.approx((1, 1))
    assert example.gamma == num_pixels**-0.5
    assert example.eigenvalue < -0.1
    assert example.eigenvalue_on_spheres < -0.1
    assert example.midpoint_excess > 1e-3
    middle, ends = example.profile[example.offsets == 0].item(), example.profile[[0, -1]]
    assert example.midpoint_excess == pytest.approx(middle - ends.mean(), abs=1e-15)
    assert example.midpoint_norm == pytest.approx(1 - example.gamma**2 / 2)  # cos of the angle whose chord is γ
    assert example.missing_term < 1e-14  # the Hessian is the proof's plus the term that it leaves out


def test_hard_thresholding_picks_the_dense_samples_only_if_told_their_number():
    instance = theory.build_instance(8)
    few, right, many, all_of_them = theory.hard_thresholding(instance, [1, 2, 4, 8], 200, 0.05, num_seeds=3)
    np.testing.assert_array_equal(right.kept, np.tile(instance.dense, (3, 1)))
    np.testing.assert_allclose([x.kept.sum(1).mean() for x in (few, right, many, all_of_them)], [1, 2, 4, 8])
    assert few.kept[:, ~instance.dense].max() == 0
    assert many.kept[:, ~instance.dense].sum() > 0


def test_hard_thresholding_forgets_consistency_unless_it_is_added():
    instance = theory.build_instance(8)

    def reg_ac(result):
        return np.mean([instance.terms(theta).reg_ac.mean() for theta in result.theta])

    (without,) = theory.hard_thresholding(instance, [2], 300, 0.05, num_seeds=3)
    (added,) = theory.hard_thresholding(instance, [2], 300, 0.05, acr=True, num_seeds=3)
    start = instance.terms(instance.theta_star).reg_ac.mean()
    assert reg_ac(without) > start > reg_ac(added)
    assert np.linalg.norm(without.theta - instance.theta_star, axis=1).max() <= instance.gamma * (1 + 1e-12)


# --- the page -------------------------------------------------------------------------------------------------------

ROOT = REPOSITORY


def table_of_the_page(first, columns):
    """The rows, as cells, of the table of docs/concepts/theory.md whose first cell is `first` and that is so wide."""
    tables, lines = [], (ROOT / "docs/concepts/theory.md").read_text().splitlines()
    for is_table, block in itertools.groupby(lines, lambda line: line.startswith("|")):
        if is_table:
            tables.append([[cell.strip() for cell in line.strip("|").split("|")] for line in block])
    (table,) = [rows for rows in tables if rows[0][0] == first and len(rows[0]) == columns]
    return [table[0], *table[2:]]


def assert_says(cell, value):
    """The number in a cell is the value, rounded to as many places (a little more leeway, for other machines)."""
    number = cell.split(" (")[0].replace(" ", "")
    decimals = len(number.partition(".")[2])
    assert float(number) == pytest.approx(value, abs=0.6 * 10**-decimals), (cell, value)


def test_the_page_describes_the_instances():
    _, *rows = table_of_the_page("n", 7)
    assert [row[0] for row in rows] == ["2", "4", "8", "16"]
    for size, range_of_lambda, *cells in rows:
        facts = experiments.describe(theory.build_instance(int(size)))
        for cell, value in zip(range_of_lambda.split(" – "), facts["lambda_range"], strict=True):
            assert_says(cell, value)
        steps = facts["converges_from"]
        values = facts["margin"], facts["c_theta"], facts["c_beta"], steps["stated"], steps["balanced"]
        for cell, value in zip(cells, values, strict=True):
            assert_says(cell, value)


def test_the_page_has_the_longest_runs_as_they_were_recorded():
    (_, *sizes), (_, *predicted), _, (_, *longest) = table_of_the_page("n", 5)
    recorded = json.loads((ROOT / "benchmarks/results/theory.json").read_text())["convergence"]
    for size, law, cell in zip(map(int, sizes), predicted, longest, strict=True):
        assert_says(law, size * math.log(2) / 4)
        of_size = [row for row in recorded if row["n"] == size]
        assert bool(of_size) == bool(cell)
        if of_size:
            last = max(of_size, key=lambda row: row["T"])
            assert_says(cell, last["gap"] / last["stated_bound"])
            assert cell.endswith(f"(T = {last['T'] / 1e6:g}·10⁶)")


@pytest.mark.slow
def test_the_page_has_the_gaps_over_their_bounds():
    (_, *sizes), _, (_, *cells), _ = table_of_the_page("n", 5)
    measured = experiments.convergence([int(size) for size in sizes], [32_000], ["stated"], num_seeds=2)
    for row, cell in zip(measured, cells, strict=True):
        assert_says(cell, row["gap"] / row["stated_bound"])


@pytest.mark.slow
def test_the_page_has_the_sweep_of_eta_beta():
    (_, *etas), (_, *distances), (_, *gaps) = table_of_the_page("η_β", 8)
    measured = experiments.eta_sweep([4.0**power for power in range(-5, 2)])["separated"]["rows"]
    for row, eta, distance, gap in zip(measured, etas, distances, gaps, strict=True):
        assert_says(eta, row["eta_beta"])
        assert_says(distance, row["distance"])
        assert_says(gap, row["gap"])


@pytest.mark.slow
def test_the_page_has_the_comparison_with_hard_thresholding():
    _, *rows = table_of_the_page("", 7)
    measured = experiments.thresholding([1, 2, 4, 6, 8, 12, 16])
    shown = [row for row in measured["rows"] if row["keep"] in (None, 4, 8)]
    for (_, kept, right, *cells), row in zip(rows, shown, strict=True):
        assert row["keep"] is None or kept.startswith(f"k = {row['keep']}")
        assert right == ("–" if row["method"] == "start" else f"{row['right']:.0%}".replace("%", " %"))
        for cell, key in zip(cells, ("excess", "ce_sparse", "ce_dense", "reg_ac"), strict=True):
            assert_says(cell, row[key])
    page = (ROOT / "docs/concepts/theory.md").read_text()
    low, high = measured["lambda_range"]
    assert f"({low:.2f} to {high:.2f} here)" in page


# --- all of it ------------------------------------------------------------------------------------------------------


def test_a_quick_run_writes_the_numbers_and_the_figures(tmp_path):
    out = tmp_path / "new" / "folder"
    begun = []
    results = theory.run(out, quick=True, seed=3, watch=lambda what, done, total: begun.append((what, done, total)))
    assert [(done, total) for _, done, total in begun] == [(done, len(begun)) for done in range(len(begun))]
    assert begun[-1][0] == "the figures"
    assert json.loads((out / "theory.json").read_text()) == json.loads(json.dumps(results))
    figures = {"convergence", "separation", "eta-beta", "lambda", "thresholding", "example"}
    assert {path.name for path in out.iterdir()} == {"theory.json"} | {f"theory-{name}.png" for name in figures}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in out.glob("*.png"))
    right = {row["lambda_ac"]: row["right"] for row in results["lambda_ac"]["rows"]}
    assert [right[key] for key in sorted(right)] == [0.25, 1.0, 0.75]  # too small: all dense; too large: all sparse


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(AdawacError, match="Expected a folder for the figures"):
        theory.run(tmp_path / "file")
    with pytest.raises(AdawacError, match=r"file.below cannot be made"):
        theory.run(tmp_path / "file" / "below")


def test_a_seed_below_zero_is_an_error(tmp_path):
    with pytest.raises(AdawacError, match="Expected a seed of 0 or more, but got -1"):
        theory.run(tmp_path / "folder", quick=True, seed=-1)
    assert not (tmp_path / "folder").exists()


@pytest.mark.slow
def test_the_command_writes_figures_and_numbers(tmp_path, capsys):
    import json

    from adawac.cli import run

    assert run(["theory", "--out", str(tmp_path / "theory"), "--quick", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    written = json.loads((tmp_path / "theory" / "theory.json").read_text())
    assert printed == written
    assert len(list((tmp_path / "theory").glob("*.png"))) == 6
