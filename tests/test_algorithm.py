"""Algorithm 1's weights: its properties, and that no checkpoint or cast loses them."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

import adawac
from adawac import checks
from adawac.errors import ConfigError, ShapeError
from tests import reference

LOSS = st.floats(0, 12)


def ascend(weights, index, ell_ce, reg_ac, eta_beta=1.0):
    dtype = weights.log_odds.dtype
    weights.ascend(torch.tensor(index), torch.tensor(ell_ce, dtype=dtype), torch.tensor(reg_ac, dtype=dtype), eta_beta)


@given(ell_ce=LOSS, reg_ac=LOSS, eta_beta=st.floats(0.01, 8))
def test_beta_rises_iff_ce_exceeds_acr(ell_ce, reg_ac, eta_beta):
    weights = adawac.SampleWeights(3).double()
    ascend(weights, [1], [ell_ce], [reg_ac], eta_beta)
    change = weights.beta[1].item() - 0.5
    # Exact where the difference of the losses is above rounding of a number around 1/2.
    assert (change > 0) == (ell_ce > reg_ac) or abs(eta_beta * (ell_ce - reg_ac)) < 1e-14
    assert weights.beta[0] == weights.beta[2] == 0.5


@given(
    steps=st.lists(st.tuples(st.integers(0, 3), st.floats(0, 2), st.floats(0, 2)), max_size=12),
    eta_beta=st.floats(0, 1),
)
def test_log_odds_equal_the_multiplicative_form(steps, eta_beta):
    weights, beta = adawac.SampleWeights(4).double(), [0.5] * 4
    for i, ell_ce, reg_ac in steps:
        ascend(weights, [i], [ell_ce], [reg_ac], eta_beta)
        beta[i] = reference.mirror_ascent(beta[i], ell_ce, reg_ac, eta_beta)
    torch.testing.assert_close(weights.beta, torch.tensor(beta, dtype=torch.float64), rtol=1e-10, atol=1e-12)


def test_no_graph_grows_in_the_weights():
    weights = adawac.SampleWeights(3)
    weights.ascend(torch.tensor([0]), torch.tensor([2.0], requires_grad=True), torch.tensor([1.0]), 1.0)
    assert not weights.log_odds.requires_grad


def test_repeated_indices_add_up():
    together, apart = adawac.SampleWeights(3).double(), adawac.SampleWeights(3).double()
    ascend(together, [1, 2, 1], [0.3, 0.1, 0.9], [0.2, 0.4, 0.1])
    for i, ell_ce, reg_ac in ((1, 0.3, 0.2), (2, 0.1, 0.4), (1, 0.9, 0.1)):
        ascend(apart, [i], [ell_ce], [reg_ac])
    torch.testing.assert_close(together.beta, apart.beta)


def test_frozen_losses_drive_beta_to_the_saddle_point():
    """Proposition 1: with the network at rest, beta_i goes to 1[ell_ce > reg_ac]."""
    generator = torch.Generator().manual_seed(0)
    ell_ce, reg_ac = torch.rand(50, generator=generator), torch.rand(50, generator=generator)
    weights = adawac.SampleWeights(50)
    for _ in range(20_000):
        index = torch.randint(0, 50, (8,), generator=generator)
        weights.ascend(index, ell_ce[index], reg_ac[index], 1.0)
    torch.testing.assert_close(weights.beta, (ell_ce > reg_ac).float(), atol=1e-3, rtol=0)


def test_a_million_extreme_updates_stay_finite_and_can_be_undone():
    """The released code's weights stick at 1 and turn into NaN here (eta_beta = 8, CE = 12)."""
    weights = adawac.SampleWeights(2)
    index, high, low = torch.zeros(1000, dtype=torch.int64), torch.full((1000,), 12.0), torch.zeros(1000)
    for _ in range(1000):
        weights.ascend(index, high, low, 8.0)
    assert weights.log_odds.isfinite().all()
    assert weights.beta[0] == 1
    for _ in range(1001):
        weights.ascend(index, low, high, 8.0)
    assert weights.log_odds.isfinite().all()
    assert weights.beta[0] < 1e-6
    assert weights.skipped == 0

    b = [0.5, 0.5]  # the multiplicative form on the same losses, in the same precision
    for _ in range(20):
        grown = torch.tensor(b) * torch.tensor([8.0 * 12.0, 0.0]).exp()
        b = (grown / grown.sum()).tolist()
    assert math.isnan(b[0])


def test_evaluation_mode_leaves_beta_alone():
    criterion = adawac.AdaWAC(num_samples=4)
    batch = (torch.randn(4, 3, 4, 4), torch.randint(0, 3, (4, 4, 4)), torch.randn(4, 2, 2, 2), torch.tensor([0, 2]))
    criterion.eval()(*batch)
    assert (criterion.weights.beta == 0.5).all()
    out = criterion.train()(*batch)
    assert (criterion.weights.beta[[0, 2]] != 0.5).all()
    torch.testing.assert_close(out.beta, criterion.weights.beta[[0, 2]])  # the network's step uses the moved weight


def test_the_step_is_detached_except_for_the_loss():
    criterion = adawac.AdaWAC(num_samples=4)
    logits, features = torch.randn(4, 3, 4, 4, requires_grad=True), torch.randn(4, 2, 2, 2, requires_grad=True)
    out = criterion(logits, torch.randint(0, 3, (4, 4, 4)), features, torch.tensor([0, 2]))
    assert out.loss.requires_grad
    for name in ("ell_ce", "ell_dice", "reg_ac", "beta"):
        assert not getattr(out, name).requires_grad
        assert getattr(out, name).shape == (2,)


def moved(num_samples=5):
    criterion = adawac.AdaWAC(num_samples=num_samples)
    ascend(criterion.weights, [0, 3], [1.1, 0.2], [0.3, 0.7])
    return criterion


def test_beta_is_in_the_state_dict(tmp_path):
    criterion = moved()
    other = adawac.AdaWAC(num_samples=5)
    other.load_state_dict(criterion.state_dict())
    assert torch.equal(other.weights.log_odds, criterion.weights.log_odds)
    torch.save(criterion.state_dict(), tmp_path / "criterion.pt")
    again = adawac.AdaWAC(num_samples=5)
    again.load_state_dict(torch.load(tmp_path / "criterion.pt", weights_only=True))
    assert torch.equal(again.weights.log_odds, criterion.weights.log_odds)


def test_loading_other_samples_weights_fails_with_a_message():
    for strict in (True, False):
        with pytest.raises(ShapeError, match=r"7 samples.*those of 5.*by sample id"):
            adawac.AdaWAC(num_samples=7).load_state_dict(moved().state_dict(), strict=strict)


@pytest.mark.parametrize("cast", [torch.nn.Module.half, torch.nn.Module.bfloat16])
def test_casting_down_keeps_beta_exactly(cast):
    criterion = moved()
    before = criterion.weights.log_odds.clone()
    cast(criterion)
    assert criterion.weights.log_odds.dtype == torch.float32
    assert torch.equal(criterion.weights.log_odds, before)
    assert criterion.to(torch.bfloat16).weights.log_odds.dtype == torch.float32
    assert criterion.double().weights.log_odds.dtype == torch.float64
    assert criterion.float().weights.log_odds.dtype == torch.float32


def test_fabric_checkpoints_keep_beta(tmp_path):
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    criterion = moved()
    fabric.save(tmp_path / "state.ckpt", {"criterion": criterion})
    other = adawac.AdaWAC(num_samples=5)
    fabric.load(tmp_path / "state.ckpt", {"criterion": other})
    assert torch.equal(other.weights.log_odds, criterion.weights.log_odds)


@pytest.mark.filterwarnings("ignore")
def test_lightning_checkpoints_keep_beta(tmp_path):
    """A LightningModule with the criterion inside: trained, saved, loaded."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.Conv2d(4, 3, 1))
            self.criterion = adawac.AdaWAC(num_samples=8)
            self.tap = adawac.EncoderTap(self.network, "0")

        def training_step(self, batch, _):
            images, labels, index = batch
            logits = self.network(torch.cat([images, images.flip(-1)]))
            return self.criterion(logits, torch.cat([labels, labels.flip(-1)]), self.tap.pop(), index).loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(8, 1, 8, 8), torch.randint(0, 3, (8, 8, 8)), torch.arange(8))
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    other = Module.load_from_checkpoint(tmp_path / "last.ckpt")
    assert (module.criterion.weights.beta != 0.5).all()
    assert torch.equal(other.criterion.weights.log_odds, module.criterion.weights.log_odds)


@pytest.mark.parametrize("count", [0, -3, 2.5, True, "many"])
def test_the_number_of_samples_must_be_a_count(count):
    with pytest.raises(ConfigError, match=r"num_samples.*len\(train_set\)"):
        checks.positive("num_samples", count)
    with pytest.raises(ConfigError, match="num_samples"):
        adawac.AdaWAC(num_samples=0)
    assert type(checks.positive("num_samples", np.int64(3))) is int


def test_a_criterion_is_shown_by_its_preset_and_what_differs_from_it():
    assert repr(adawac.AdaWAC(100)) == "AdaWAC(num_samples=100, preset='paper')"
    official = adawac.AdaWAC(6, preset="official", eta_beta=1.0, ignore_index=255)
    assert repr(official) == "AdaWAC(num_samples=6, preset='official', eta_beta=1.0, ignore_index=255)"
    assert repr(official.weights) == "SampleWeights(num_samples=6)"
    assert repr(adawac.AdaWAC(6, preset="robust").weights) == "SampleWeights(num_samples=6, bound=4.0)"
    assert repr(adawac.METHODS).startswith("Registry('method': baseline, pair, ")
