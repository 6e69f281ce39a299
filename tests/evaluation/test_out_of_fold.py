"""What is kept of cases that a network was not trained on, against plain NumPy."""

import numpy as np
import pytest
from scipy.special import log_softmax

import adawac
from adawac.errors import RunError
from adawac.evaluation.out_of_fold import Doubts, plan_fold, predict_out_of_fold, read_doubts, read_losses
from adawac.inference.predictor import Predictor
from adawac.runs import Run
from tests.networks.lookup_network import DrawnCase, make_run, make_store

SLICES = 11  # more than are in memory at a time


@pytest.fixture
def drawn():
    """Two patients, one to train on and one held out, the latter with ignored pixels and a slice of nothing else."""
    rng = np.random.default_rng(3)
    cases = {}
    for name, split in (("a", "train"), ("b", "val")):
        prediction, label = rng.integers(0, 3, (2, SLICES, 8, 8)).astype(np.uint8)
        if split == "val":
            label[0, :3] = 255
            label[1] = 255
        cases[name] = DrawnCase(prediction=prediction, label=label, patient=name, split=split)
    return cases


def logits_of(image):
    """What the lookup network gives for an image (P, H, W)."""
    return -((image[:, None] - np.arange(3)[None, :, None, None]) ** 2.0)


def test_maps_and_losses_are_those_of_the_formulas(drawn, tmp_path):
    store = make_store(tmp_path / "store", drawn)
    run = make_run(tmp_path / "run", store)
    predict_out_of_fold(run, tmp_path / "kept")
    assert plan_fold(run).cases == ("b",)
    doubts, label = read_doubts(tmp_path / "kept", "b"), drawn["b"].label
    log_p = log_softmax(logits_of(drawn["b"].prediction.astype(float)), axis=1)
    annotated = label != 255
    classes = np.where(annotated, label, 0)
    of_label = np.take_along_axis(log_p, classes[:, None].astype(int), axis=1)[:, 0]
    np.testing.assert_array_equal(doubts.prediction, np.where(annotated, log_p.argmax(axis=1), 0))
    np.testing.assert_allclose(doubts.confidence, np.where(annotated, 255 * np.exp(of_label), 255), atol=0.6)
    np.testing.assert_allclose(doubts.certainty, np.where(annotated, 255 * np.exp(log_p.max(axis=1)), 255), atol=0.6)
    losses = read_losses(tmp_path / "kept")
    assert [loss.id for loss in losses] == store.table.id[store.table.case == "b"].tolist()
    for number, loss in enumerate(losses):
        if number == 1:
            assert np.isnan([loss.ell_ce, loss.ell_dice]).all()
            continue
        seen = annotated[number]
        assert loss.ell_ce == pytest.approx(-of_label[number][seen].mean(), rel=1e-3)
        shares = np.exp(log_p[number])[:, seen]
        truth = np.arange(3)[:, None] == label[number][seen]
        dice = 2 * (shares * truth).sum(axis=1) / (shares.sum(axis=1) + truth.sum(axis=1))
        assert loss.ell_dice == pytest.approx(1 - dice.mean(), rel=1e-3)


def test_one_pass_also_fits_the_temperature_that_calibrate_fits(drawn, tmp_path, monkeypatch):
    seen, compute = [], Predictor._compute

    def counted(predictor, images):
        seen.append(len(images))
        return compute(predictor, images)

    monkeypatch.setattr(Predictor, "_compute", counted)
    store = make_store(tmp_path / "store", drawn)
    run, other = (make_run(tmp_path / name, store) for name in ("run", "other"))
    predict_out_of_fold(run, tmp_path / "kept")
    assert sum(seen) == SLICES
    fitted = adawac.calibrate(other)
    assert Run(run.folder).calibration == fitted
    assert 0 < fitted.pixels < SLICES * 64  # without ignored ones


def test_an_earlier_answer_goes_and_damage_is_told(drawn, tmp_path):
    run = make_run(tmp_path / "run", make_store(tmp_path / "store", drawn))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "gone.npz").write_bytes(b"")
    predict_out_of_fold(run, tmp_path / "kept")
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["b.npz", "samples.csv"]
    assert isinstance(read_doubts(tmp_path / "kept", "b"), Doubts)
    (tmp_path / "kept" / "b.npz").write_bytes(b"PK")
    with pytest.raises(RunError, match="Expected maps of b in"):
        read_doubts(tmp_path / "kept", "b")
    (tmp_path / "kept" / "samples.csv").write_text("id,case\n1,2\n")
    with pytest.raises(RunError, match="Expected losses in"):
        read_losses(tmp_path / "kept")
