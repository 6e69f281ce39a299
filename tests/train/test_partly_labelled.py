"""Training on scans that are only partly annotated: what reaches the criterion, the run folder and the scores."""

import numpy as np
import pytest
import torch

import adawac
from adawac.data.cases import IGNORED, leave_out_ignored
from adawac.data.preparation import prepare
from adawac.errors import ConfigError, RunError
from adawac.evaluation.case_scores import Rules, score_case
from adawac.figures import draw
from adawac.metrics import score_volume
from adawac.report import collect
from adawac.runs import Run
from adawac.train import fit
from adawac.train.setup import set_up
from tests.data.partly_labelled import STATES, partly_labelled
from tests.data.scans import make_nnunet, scan, write_nifti
from tests.train.test_engine import Stop, assert_same


@pytest.fixture(scope="module")
def partly_store(tmp_path_factory):
    return prepare(partly_labelled(), dest=tmp_path_factory.mktemp("partly") / "store", workers=1)


@pytest.fixture
def changed(change, partly_store):
    settings = {"data__store": partly_store.path, "data__image_size": (16, 16), "validation__every": 0}
    return lambda **more: change(**{**settings, "validation__select": "last", "data__batch_size": 8, **more})


def test_unlabelled_samples_are_left_out_and_that_is_said(changed, caplog):
    trainer = set_up(changed())
    states = trainer.samples.table.state.tolist()
    everything = [state for case, states in STATES.items() if case != "tested" for state in states]
    assert sorted(states) == sorted(state for state in everything if state != "unlabelled")
    assert f"{everything.count('unlabelled')} of {len(everything)} training samples are unlabelled" in caplog.text
    assert trainer.criterion.objective.ignore_index == IGNORED
    table = trainer.samples.table
    assert trainer.criterion.objective.trim_ratio == pytest.approx(table.label_sparse.sum() / len(table))


def test_another_ignored_class_is_refused(changed):
    with pytest.raises(ConfigError, match=r"ignore_index=255 for partly ignored .* but got 2"):
        set_up(changed(method__options={"ignore_index": 2}))


def test_where_everything_is_labelled_nothing_is_ignored(config):
    assert set_up(config).criterion.objective.ignore_index is None


@pytest.mark.parametrize("method", ["baseline", "adawac"])
def test_partly_ignored_samples_train(changed, tmp_path, method):
    run = fit(changed(method__name=method), tmp_path / "run")
    assert run.status == "finished"
    assert np.isfinite(run.history["ell_ce"]).all()
    assert run.samples is not None
    assert set(run.samples.state) == {"labelled", "partly ignored"}


@pytest.mark.parametrize("residence", ["auto", "stream"])
def test_unlabelled_samples_train_and_are_resumed_exactly(changed, tmp_path, residence):
    config = changed(data__unlabelled_share=0.5, data__residence=residence, data__workers=0)
    whole = fit(config, tmp_path / "whole")
    assert whole.samples is not None
    unlabelled = whole.samples.unlabelled
    assert unlabelled.sum() == [state for case, states in STATES.items() if case != "tested" for state in states].count(
        "unlabelled"
    )
    history = {name: whole.history[name] for name in ("ell_ce", "ell_dice", "reg_ac", "beta")}
    seen = np.isfinite(history["reg_ac"])
    assert seen[:, ~unlabelled].all()
    assert seen[:, unlabelled].any()
    assert np.isnan(history["ell_ce"][:, unlabelled]).all()
    assert (history["beta"][:, unlabelled][seen[:, unlabelled]] == 0).all()
    assert np.isfinite(history["ell_ce"][:, ~unlabelled]).all()
    log_odds = whole.checkpoint("last", framework="torch").tensors["criterion.weights.log_odds"]
    assert (log_odds[torch.from_numpy(unlabelled)] == 0).all()
    assert (log_odds[torch.from_numpy(~unlabelled)] != 0).all()
    assert all(row["reg_ac_unlabelled"] > 0 for row in whole.metrics)
    with pytest.raises(KeyboardInterrupt):
        fit(config, tmp_path / "stopped", watch=Stop(2, 3))
    again = fit(config, tmp_path / "stopped", resume=True)
    assert_same(whole, again)


def test_the_share_may_not_change_within_an_epoch(changed, tmp_path):
    config = changed(data__unlabelled_share=0.5)
    with pytest.raises(KeyboardInterrupt):
        fit(config, tmp_path / "run", watch=Stop(2, 3))
    with pytest.raises(RunError, match="unlabelled=4"):
        fit(changed(data__unlabelled_share=0.25), tmp_path / "run", resume=True)


@pytest.mark.parametrize("method", ["baseline", "trim-ratio+acr", "adawac"])
def test_a_run_with_unlabelled_samples_has_all_its_pages(changed, tmp_path, method):
    run = fit(changed(data__unlabelled_share=0.5, method__name=method), tmp_path / "run")
    adawac.evaluate(run.folder, device="cpu", workers=0)
    adawac.write_report([run.folder], tmp_path / "report.html")
    for name in ("curves", "weights", "separation"):
        draw(name, [run.folder], tmp_path / f"{name}.png")
    headline = collect([run.folder]).data["runs"][0]["headline"]
    assert headline["unlabelled"] == Run(run.folder).samples.unlabelled.sum()


def test_ignored_pixels_count_in_no_score(changed, tmp_path, caplog, partly_store):
    run = fit(changed(epochs=1), tmp_path / "run")
    (evaluation,) = adawac.evaluate(run.folder, device="cpu", workers=0)
    states = STATES["tested"]
    share = (states.count("unlabelled") + states.count("partly ignored") / 2) / len(states)
    assert f"{100 * share:.1f} % of the voxels are ignored, in 1 of the cases" in caplog.text
    slices = evaluation.slices
    annotated = (partly_store.volume("tested").label != IGNORED).sum((0, 1))
    np.testing.assert_array_equal(slices.truth[:, 1:].sum(1) <= annotated, True)
    assert (slices.pred[states.index("unlabelled")][1:] == 0).all()
    gallery = [shown for name in Run(run.folder).galleries for shown in Run(run.folder).gallery(name).values()]
    assert gallery
    assert not any((shown.label == IGNORED).any() for shown in gallery if shown.label is not None)


def test_a_case_scores_as_if_ignored_voxels_were_background_in_both(partly_store):
    labels = partly_store.stack("tested")[1]
    prediction = np.random.default_rng(0).integers(0, 3, labels.shape).astype(np.uint8)
    result = score_case(partly_store.path, "tested", prediction, Rules())
    counted = labels != IGNORED
    volume = [np.moveaxis(np.where(counted, x, 0), 0, 2) for x in (prediction, labels)]
    assert result.rows == score_volume(*volume, 3, (1.0, 1.0, 1.0))
    for k in (1, 2):
        np.testing.assert_array_equal(result.truth[:, k], (labels == k).sum((1, 2)))
        np.testing.assert_array_equal(result.pred[:, k], ((prediction == k) & counted).sum((1, 2)))
    other = np.where(counted, prediction, (prediction + 1) % 3).astype(np.uint8)  # what nobody can judge
    assert score_case(partly_store.path, "tested", other, Rules()).rows == result.rows


def test_a_class_of_that_number_is_not_ignored():
    maps = np.array([[255, 3]]), np.array([[255, 2]])
    assert all(map(np.array_equal, leave_out_ignored(*maps, 300), maps))
    assert [part.tolist() for part in leave_out_ignored(*maps, 255)] == [[[0, 3]], [[0, 2]]]


@pytest.mark.parametrize("preset", ["paper", "official", "robust"])
@pytest.mark.parametrize("method", list(adawac.METHODS))
def test_a_step_looks_at_no_value(method, preset):
    """On the meta device there are shapes alone: what waits for a value, as a captured step must not, fails."""
    with torch.device("meta"):
        options = {"ignore_index": IGNORED, "trim_ratio": 0.3, "aligned": False}
        criterion = adawac.build_method(method, 9, preset, **options)
        logits, features = torch.zeros(8, 3, 6, 6, requires_grad=True), torch.zeros(8, 4, 2, 2, requires_grad=True)
        labels, index = torch.zeros(8, 6, 6, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    criterion._checked = True  # as after the first step
    out = criterion(logits, labels, logits if criterion.uses_teacher else features, index)
    out.loss.backward()
    assert out.beta.shape == (4,)


def test_from_nifti_to_scores_with_counts_at_every_station(change, tmp_path, caplog):
    """An ignored value and a missing label map: store, batches, run folder, evaluation."""
    root = make_nnunet(
        tmp_path / "scans", cases=4, labels={"background": 0, "organ": 1, "ignore": 2}, shape=(16, 16, 6)
    )
    (root / "labelsTr" / "case_01.nii.gz").unlink()
    image, label = scan((16, 16, 6), 3, seed=99)
    write_nifti(root / "imagesTs" / "test_0000.nii.gz", image)
    write_nifti(root / "labelsTs" / "test.nii.gz", label)
    slices = tmp_path / "slices.csv"
    slices.write_text("case,slice\ncase_00,0\ncase_00,2\ncase_02,all\ncase_03,4\ntest,all\n")
    store = prepare("nifti", root, tmp_path / "store", workers=1, unlabelled="keep", labelled_slices=slices)
    train = store.samples("train").table
    assert [int((train.state == state).sum()) for state in ("labelled", "partly ignored", "unlabelled")] == [3, 6, 15]
    assert int(train.label_sparse.sum()) == 3  # those that somebody looked at
    data = {
        "data__store": store.path,
        "data__image_size": (16, 16),
        "data__batch_size": 6,
        "data__unlabelled_share": 0.5,
    }
    run = fit(change(**data, validation__every=0, validation__select="last"), tmp_path / "run")
    assert run.samples is not None
    assert run.samples.state.tolist() == train.state.tolist()
    assert run.data["num_samples"] == 24
    assert (run.data["label_sparse"], run.data["unlabelled"]) == (3, 15)
    assert np.isfinite(run.history["ell_ce"]).sum(1).tolist() == [9] * 3
    seen = np.isfinite(run.history["reg_ac"]).sum(1)
    assert ((seen > 9) & (seen <= 18)).all()  # three batches with three of each; a round may end within an epoch
    assert np.isfinite(run.history["reg_ac"]).any(0).all()
    (evaluation,) = adawac.evaluate(run.folder, device="cpu", workers=0)
    assert f"{100 * (label == 2).mean():.1f} % of the voxels are ignored, in 1 of the cases" in caplog.text
    slices_of_test = evaluation.slices
    np.testing.assert_array_equal(slices_of_test.truth[:, 1], (label == 1).sum((0, 1)))
    assert (slices_of_test.pred[:, 1] <= (label != 2).sum((0, 1))).all()
    dice = next(score.value for score in evaluation.scores if score.metric == "dice")
    both, sizes = slices_of_test.both[:, 1].sum(), (slices_of_test.pred + slices_of_test.truth)[:, 1].sum()
    assert dice == pytest.approx(2 * both / sizes)
