"""`calibrate`: a temperature that was put in is found, and what it may change is probabilities alone."""

import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch

import adawac
from adawac.cli import run as command
from adawac.data.preparation import prepare
from adawac.errors import DataError, RunError
from adawac.evaluation.calibration import cross_entropy, fit_temperature, may_be_foreground, measure_reliability
from adawac.inference import predict
from adawac.inference.confidence import UncertaintyMeter, entropy_of
from adawac.inference.predictor import FULL, Ensemble
from adawac.runs import Run
from tests.data.scans import AFFINES, make_nnunet
from tests.inference.made_runs import trained_on

TEXTURE = "tests.networks.threshold_network:texture"
RAMP = "tests.networks.threshold_network:ramp"


def drawn(temperature, count=40_000, classes=4, seed=0):
    """Logits, and classes that are as probable as the logits say at a temperature."""
    rng = np.random.default_rng(seed)
    logits = (3 * rng.standard_normal((count, classes))).astype(np.float32)
    labels = (logits / temperature + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return logits, labels


@pytest.mark.parametrize("temperature", [0.4, 1.0, 1.7, 6.0])
def test_a_known_temperature_is_recovered(temperature):
    logits, labels = drawn(temperature)
    found = fit_temperature(logits, labels)
    assert found == pytest.approx(temperature, rel=0.03)
    foreground = may_be_foreground(logits)
    before, after = (measure_reliability(part, labels, foreground) for part in (logits, logits / np.float32(found)))
    assert after.ece < 0.01
    assert after.ece_foreground < 0.015
    assert after.cross_entropy <= before.cross_entropy + 1e-6
    assert after.ece <= before.ece + 0.002


def test_cross_entropy_is_torchs():
    logits, labels = drawn(2.0, 100)
    expected = torch.nn.functional.cross_entropy(torch.from_numpy(logits).double(), torch.from_numpy(labels))
    assert cross_entropy(logits, labels) == pytest.approx(expected.item(), rel=1e-6)


def test_reliability_is_that_of_a_loop():
    logits, labels = drawn(3.0, 2_000, classes=3)
    probabilities = torch.from_numpy(logits).double().softmax(1).numpy()
    sure, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    gaps = 0.0
    for k in range(15):
        inside = [n for n in range(len(sure)) if k / 15 <= sure[n] < (k + 1) / 15 or (k == 14 and sure[n] == 1)]
        if inside:
            gaps += len(inside) * abs(np.mean(sure[inside]) - np.mean(right[inside]))
    foreground = may_be_foreground(logits)
    np.testing.assert_array_equal(foreground, probabilities[:, 0] < 0.975)
    reliability = measure_reliability(logits, labels, foreground)
    assert reliability.ece == pytest.approx(gaps / len(sure), rel=1e-5)
    assert sum(entry.count for entry in reliability.bins) == foreground.sum()


def test_without_errors_the_limit_is_said(caplog):
    logits = np.eye(3, dtype=np.float32)[np.arange(300) % 3]
    fit_temperature(logits, np.arange(300) % 3)
    assert "no errors" in caplog.text


@pytest.mark.parametrize(("networks", "tta"), [(1, False), (1, True), (3, False)])
def test_a_temperature_never_changes_the_most_probable_class(networks, tta):
    torch.manual_seed(0)
    ensemble = Ensemble([torch.nn.Conv2d(1, 5, 3, padding=1) for _ in range(networks)], tta)
    scores = ensemble(torch.randn(4, 1, 16, 16)).detach()
    for temperature in (0.3, 1.0, 4.0):
        probabilities = ensemble.probabilities(scores, temperature)
        of_class = probabilities.gather(1, scores.argmax(1, keepdim=True))[:, 0]
        assert torch.equal(of_class, probabilities.amax(1))  # rounding may make two equal
        torch.testing.assert_close(probabilities.sum(1), torch.ones(4, 16, 16))


# -- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def scans(tmp_path):
    return make_nnunet(tmp_path / "scans", cases=3, affine=AFFINES["anisotropic"], shape=(21, 17, 9))


@pytest.fixture
def store(scans, tmp_path):
    return prepare("nifti", scans, tmp_path / "store", workers=1, progress=False, clip_quantile=0.95)


def test_predict_uses_the_temperature_for_probabilities_alone(scans, store, tmp_path):
    run = trained_on(store, tmp_path / "run")
    predict(run, scans, tmp_path / "plain", probabilities=True, device="cpu")
    calibration = adawac.calibrate(run, data=store.path, part="train", device="cpu")
    assert Run(run).calibration == calibration
    assert (calibration.cases, calibration.checkpoint, calibration.epoch, calibration.tta) == (3, "last", 1, False)
    assert calibration.after.cross_entropy < calibration.before.cross_entropy
    assert abs(calibration.temperature - 1) > 0.05
    done = predict(run, scans, tmp_path / "calibrated", probabilities=True, device="cpu")
    for prediction in done:
        name = prediction.labels.name
        assert prediction.labels.read_bytes() == (tmp_path / "plain" / name).read_bytes()
        probable = f"{prediction.scan.name}_probabilities.nii.gz"
        plain, other = (nib.load(tmp_path / out / probable).get_fdata() for out in ("plain", "calibrated"))
        logits = np.log(np.maximum(plain, 1e-9)) / calibration.temperature
        expected = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
        likely = (plain > 0.01).all(axis=-1)
        np.testing.assert_allclose(other[likely], expected[likely], atol=2e-3)
        assert json.loads((tmp_path / "calibrated" / f"{prediction.scan.name}.json").read_text())["temperature"] == (
            calibration.temperature
        )


def test_a_temperature_of_other_weights_or_flips_is_not_used(scans, store, tmp_path, caplog):
    run = trained_on(store, tmp_path / "run", checkpoints=("last", "best"))
    adawac.calibrate(run, data=store.path, part="train", device="cpu")
    for number, options in enumerate(({"checkpoint": "best"}, {"tta": True})):
        out = tmp_path / f"out{number}"
        predict(run, scans, out, device="cpu", **options)
        assert {json.loads(path.read_text())["temperature"] for path in out.glob("*.json")} == {1.0}
        assert "is not used" in caplog.text
        caplog.clear()


def test_an_exported_model_folder_keeps_the_temperature(scans, store, tmp_path, caplog):
    run = trained_on(store, tmp_path / "run", checkpoints=("last", "best"))
    calibration = adawac.calibrate(run, data=store.path, part="train", device="cpu")
    outs = {"run": run, "model": adawac.export_model(run, tmp_path / "model").path}
    for name, network in outs.items():
        predict(network, scans, tmp_path / name / "out", probabilities=True, device="cpu", trust_code=True)
    for path in (tmp_path / "run" / "out").glob("*.nii.gz"):
        assert path.read_bytes() == (tmp_path / "model" / "out" / path.name).read_bytes()
    predict(outs["model"], scans, tmp_path / "flipped", tta=True, device="cpu", trust_code=True)
    assert {json.loads(path.read_text())["temperature"] for path in (tmp_path / "flipped").glob("*.json")} == {1.0}
    assert "fitted with tta False, and this is True" in caplog.text
    card = json.loads((tmp_path / "model" / "model.json").read_text())
    assert (card["temperature"], card["temperature_tta"]) == (calibration.temperature, False)
    other = adawac.export_model(run, tmp_path / "other", checkpoint="best").path
    assert json.loads((other / "model.json").read_text())["temperature"] is None


def test_what_cannot_be_calibrated_is_one_message(store, tmp_path, capsys):
    run = trained_on(store, tmp_path / "run")
    with pytest.raises(DataError, match="Expected val cases"):
        adawac.calibrate(run, data=store.path)
    assert command(["calibrate", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (run / "calibration.json").write_text("{}")
    with pytest.raises(RunError, match="Calibrate it again"):
        predict(run, tmp_path / "scans", tmp_path / "out")


def test_the_command_says_what_it_found(store, tmp_path, capsys):
    run = trained_on(store, tmp_path / "run")
    words = ["calibrate", str(run), "--data", str(store.path), "--split-part", "train", "--device", "cpu"]
    assert command(words) == 0
    out = capsys.readouterr().out
    temperature = Run(run).calibration.temperature
    assert f"temperature {temperature:.3f}, from " in out
    assert command([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["temperature"] == temperature


# -- uncertainty ------------------------------------------------------------------------------------------------------


def test_entropy_goes_from_0_to_1():
    sure, unsure = np.zeros((4, 1, 1), np.float32), np.full((4, 1, 1), 0.25, np.float32)
    sure[2] = 1
    assert (entropy_of(sure).item(), entropy_of(unsure).item()) == (0.0, pytest.approx(1.0))
    half = np.array([0.5, 0.5, 0, 0], np.float32)[:, None, None]
    assert entropy_of(half).item() == pytest.approx(0.5)


def test_uncertainty_is_that_of_the_probabilities(scans, store, tmp_path):
    run = trained_on(store, tmp_path / "run")
    done = predict(run, scans, tmp_path / "out", probabilities=True, uncertainty=True, device="cpu")
    voxel = np.prod(nib.affines.voxel_sizes(AFFINES["anisotropic"])) / 1000
    for prediction in done:
        name = prediction.scan.name
        probabilities = nib.load(tmp_path / "out" / f"{name}_probabilities.nii.gz").get_fdata()
        entropy = nib.load(tmp_path / "out" / f"{name}_entropy.nii.gz")
        expected = -(probabilities * np.log(np.maximum(probabilities, 1e-30))).sum(axis=-1) / np.log(3)
        np.testing.assert_allclose(entropy.get_fdata(), expected, atol=1e-4)
        np.testing.assert_array_equal(entropy.affine, nib.load(prediction.labels).affine)
        maybe = probabilities[..., 0] < 0.975
        assert prediction.uncertainty.mean_entropy == pytest.approx(expected[maybe].mean(), abs=1e-3)
        assert prediction.uncertainty.disagreement is None
        labels = np.asarray(nib.load(prediction.labels).dataobj)
        shares = [probabilities[..., k] for k in (1, 2)]
        dice = [2 * share[labels == k].sum() / (share.sum() + (labels == k).sum()) for k, share in enumerate(shares, 1)]
        assert prediction.uncertainty.expected_dice == pytest.approx(np.mean(dice), abs=1e-3)
        for k, volume in enumerate(prediction.uncertainty.volumes, start=1):
            assert volume.volume == pytest.approx((labels == k).sum() * voxel)
            assert volume.expected == pytest.approx(probabilities[..., k].sum() * voxel, rel=1e-3)
            for tail, bound in ((0.975, volume.low), (0.025, volume.high)):
                assert bound == pytest.approx((probabilities[..., k] > tail).sum() * voxel, abs=2 * voxel)
            assert volume.low <= volume.expected <= volume.high or volume.high == 0
    facts = json.loads((tmp_path / "out" / f"{done[0].scan.name}.json").read_text())["uncertainty"]
    assert facts == json.loads(json.dumps(done[0].uncertainty.facts()))


def test_expected_dice_is_the_mean_dice_of_truths_that_are_as_probable():
    """By simulation: truths drawn voxel by voxel; and a class that is not found counts as far as it is not there."""
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet([0.4, 0.3, 0.3], (4, 30, 30)).transpose(0, 3, 1, 2)
    probabilities[:, 2] = np.minimum(probabilities[:, 2], 0.2)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    labels = probabilities[:, :2].argmax(axis=1)
    meter = UncertaintyMeter((4, 30, 30), 3)
    meter.add(0, labels, np.rint(probabilities * FULL).astype(np.uint16))
    drawn = [(probabilities.cumsum(axis=1) < rng.random((4, 1, 30, 30))).sum(axis=1) for _ in range(300)]
    organs = [truth == 1 for truth in drawn]
    dice = np.mean([2 * organ[labels == 1].sum() / (organ.sum() + (labels == 1).sum()) for organ in organs])
    result = meter.result(labels, ("background", "organ", "lesion"), None)
    assert result.expected_dice == pytest.approx((dice + 1 - probabilities[:, 2].max()) / 2, abs=2e-3)
    assert result.volumes[0].expected == pytest.approx(np.mean([organ.sum() for organ in organs]), rel=0.01)


def test_members_of_an_ensemble_disagree_where_their_labels_do(scans, store, tmp_path):
    runs = [trained_on(store, tmp_path / name, model) for name, model in (("a", TEXTURE), ("b", RAMP), ("c", TEXTURE))]
    other = trained_on(store, tmp_path / "other", checkpoints=("first", "last"))  # which has another seed
    weights = Path("checkpoints", "last.safetensors")
    (runs[2] / weights).write_bytes((other / weights).read_bytes())
    done = predict(runs, scans, tmp_path / "out", uncertainty=True, device="cpu")
    alone = [predict(run, scans, tmp_path / f"alone-{run.name}", device="cpu") for run in runs]
    voxel = np.prod(nib.affines.voxel_sizes(AFFINES["anisotropic"])) / 1000
    for number, prediction in enumerate(done):
        labels = np.asarray(nib.load(prediction.labels).dataobj)
        others = np.stack([np.asarray(nib.load(of_run[number].labels).dataobj) for of_run in alone])
        against = (others != labels).mean(axis=0)
        written = nib.load(tmp_path / "out" / f"{prediction.scan.name}_disagreement.nii.gz").get_fdata()
        np.testing.assert_allclose(written, against, atol=1e-4)
        assert 0 < against.mean() < 1
        foreground = (others > 0).any(axis=0) | (labels > 0)
        assert prediction.uncertainty.disagreement == pytest.approx((against > 0).sum() / foreground.sum())
        for k, volume in enumerate(prediction.uncertainty.volumes, start=1):
            sizes = (others == k).sum(axis=(1, 2, 3)) * voxel
            assert volume.members == pytest.approx((sizes.min(), sizes.max()))


def test_scans_to_review_are_listed_the_least_sure_first(scans, store, tmp_path, capsys):
    run = trained_on(store, tmp_path / "run")
    out = tmp_path / "out"
    assert command(["predict", str(run), str(scans), "--out", str(out), "--uncertainty", "--device", "cpu"]) == 0
    rows = [line.split(",") for line in (out / "review.csv").read_text().splitlines()]
    assert rows[0][:3] == ["scan", "expected_dice", "mean_entropy"]
    assert len(rows) == 4
    scores = [float(row[1]) for row in rows[1:]]
    assert scores == sorted(scores)
    assert f"Review first: {', '.join(row[0] for row in rows[1:])}." in capsys.readouterr().out
    words = ["predict", str(run), str(scans), "--out", str(tmp_path / "seg"), "--uncertainty", "--format", "seg"]
    assert command(words) == 2


def test_labels_do_not_depend_on_uncertainty(scans, store, tmp_path):
    run = trained_on(store, tmp_path / "run")
    plain = predict(run, scans, tmp_path / "plain", device="cpu")
    measured = predict(run, scans, tmp_path / "measured", uncertainty=True, device="cpu")
    for first, second in zip(plain, measured, strict=True):
        assert first.labels.read_bytes() == second.labels.read_bytes()
        assert first.uncertainty is None
