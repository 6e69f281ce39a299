"""`evaluate` scores the network that `predict` uses: the same labels, voxel for voxel, and the same errors."""

import nibabel as nib
import numpy as np
import pytest
import torch
from lightning_fabric import Fabric

from adawac.config import DataConfig, TrainConfig
from adawac.data.preparation import prepare
from adawac.errors import RunError
from adawac.evaluation import evaluate, score
from adawac.evaluation.evaluation_record import SLICE_METRICS
from adawac.evaluation.scorers import Scorers
from adawac.inference import load_trained, predict
from adawac.train.engine import validate
from tests.data.scans import AFFINES, make_nnunet
from tests.inference.made_runs import trained_on

PREPARATIONS = {
    "native": {"clip_quantile": 0.95},
    "turned": {"orientation": "SAR", "axis": 0, "normalisation": "z-score"},
    "resampled": {"orientation": "RAS", "spacing": (1.0, 0.9, 0.0)},
}


@pytest.fixture
def scans(tmp_path):
    return make_nnunet(tmp_path / "scans", cases=3, affine=AFFINES["oblique and flipped"], shape=(21, 17, 9))


def evaluated(run, store, monkeypatch, **options):
    """The label maps that `evaluate` scores, on the scans' own grids, by case."""
    label_maps, submit = {}, Scorers.submit

    def note(self, score, path, case, prediction, rules):
        label_maps[case] = store.native_label(case, store.preprocessing.join(prediction))
        return submit(self, score, path, case, prediction, rules)

    with monkeypatch.context() as patch:
        patch.setattr(Scorers, "submit", note)
        evaluate(run, data=store.path, part="train", workers=0, gallery=0, **options)
    return label_maps


def check_same(scans, tmp_path, monkeypatch, prepared, **options):
    store = prepare("nifti", scans, tmp_path / "store", workers=1, progress=False, **prepared)
    run = trained_on(store, tmp_path / "run")
    label_maps = evaluated(run, store, monkeypatch, **options)
    done = predict(run, scans, tmp_path / "out", values="index", **options)
    assert len(done) == len(label_maps) == 3
    for prediction in done:
        labels = np.asarray(nib.load(prediction.labels).dataobj)
        assert len(np.unique(labels)) == 3
        np.testing.assert_array_equal(label_maps[prediction.scan.name.removesuffix("_0000")], labels)


@pytest.mark.parametrize("preparation", PREPARATIONS)
@pytest.mark.parametrize("tta", [False, True])
def test_labels_are_the_same_voxel_for_voxel(scans, tmp_path, monkeypatch, preparation, tta):
    check_same(scans, tmp_path, monkeypatch, PREPARATIONS[preparation], tta=tta, device="cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("tta", [False, True])
def test_labels_are_the_same_on_a_gpu(scans, tmp_path, monkeypatch, precision, tta):
    options = {"tta": tta, "device": "cuda", "precision": precision, "batch_size": 9}  # a batch is a case: same kernels
    check_same(scans, tmp_path, monkeypatch, PREPARATIONS["native"], **options)


@pytest.mark.parametrize("preparation", PREPARATIONS)
def test_scores_of_predicted_files_are_those_of_evaluate(scans, tmp_path, preparation):
    """Bit for bit where the store has the files' own voxels; of a resampled one, the slices are others."""
    prepared = PREPARATIONS[preparation]
    store = prepare("nifti", scans, tmp_path / "store", workers=1, progress=False, **prepared)
    run = trained_on(store, tmp_path / "run")
    predict(run, scans, tmp_path / "out", device="cpu")
    (evaluation,) = evaluate(run, data=store.path, part="train", workers=0, gallery=0, device="cpu")
    slicing = {name: prepared[name] for name in ("orientation", "axis") if name in prepared}
    result = score(scans / "labelsTr", tmp_path / "out", workers=0, **({} if "spacing" in prepared else slicing))
    assert result.faults == []
    expected, scored = (
        {(number.case, number.class_name, number.metric): number.value for number in scores}
        for scores in (evaluation.scores, result.evaluations[0].scores)
    )
    assert len(expected) == 3 * 2 * 16
    if "spacing" not in prepared:
        assert repr(scored) == repr(expected)  # NaN too
        of_files, of_run = result.evaluations[0].slices, evaluation.slices
        for name in ("pred", "truth", "both", "sparse", "area", "case"):
            np.testing.assert_array_equal(getattr(of_files, name), getattr(of_run, name))
    for key, value in expected.items():
        if key[2] not in SLICE_METRICS:
            assert scored[key] == pytest.approx(value, rel=1e-12), key


def test_labels_differ_with_flips_and_precision(scans, tmp_path, monkeypatch):
    """The comparison above can fail."""
    store = prepare("nifti", scans, tmp_path / "store", workers=1, progress=False)
    run = trained_on(store, tmp_path / "run")
    plain = evaluated(run, store, monkeypatch, device="cpu")
    for options in ({"tta": True}, {"precision": "bf16"}):
        other = evaluated(run, store, monkeypatch, device="cpu", **options)
        assert any((other[case] != plain[case]).any() for case in plain)


@pytest.mark.parametrize("tta", [False, True])
def test_nan_is_the_same_error(scans, tmp_path, monkeypatch, tta):
    store = prepare("nifti", scans, tmp_path / "store", workers=1, progress=False)
    run = trained_on(store, tmp_path / "run", "tests.networks.threshold_network:broken")
    with pytest.raises(RunError, match=r"Expected finite numbers from the network of .*run, checkpoint last") as caught:
        evaluated(run, store, monkeypatch, tta=tta, device="cpu")
    done = predict(run, scans, tmp_path / "out", tta=tta, device="cpu")
    assert {prediction.error for prediction in done} == {str(caught.value)}


def validated(run, store):
    """What validation during training would say, and the network."""
    network = load_trained(run).network.train()
    config = TrainConfig(data=DataConfig(image_size=(16, 16), batch_size=4))
    return validate(network, store, store.cases, config, Fabric(accelerator="cpu", devices=1)), network


def test_validation_scores_what_evaluate_does(scans, tmp_path):
    store = prepare("nifti", scans, tmp_path / "store", workers=1, progress=False)
    run = trained_on(store, tmp_path / "run")
    (evaluation,) = evaluate(run, data=store.path, part="train", workers=0, gallery=0, device="cpu")
    numbers, network = validated(run, store)
    assert numbers["val_dice"] == pytest.approx(evaluation.summaries["dice"][-1].mean)
    assert network.training


def test_validation_notices_nan(scans, tmp_path):
    store = prepare("nifti", scans, tmp_path / "store", workers=1, progress=False)
    run = trained_on(store, tmp_path / "run", "tests.networks.threshold_network:broken")
    with pytest.raises(RunError, match="Expected finite numbers from the network of this training"):
        validated(run, store)
