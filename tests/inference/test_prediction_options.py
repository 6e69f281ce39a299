"""Ensembles, test-time augmentation, probabilities, clean-up, label values, channels and names."""

import json
import re
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adawac.data.preprocessing import READY
from adawac.errors import ConfigError, MissingFileError
from adawac.inference import volumes
from adawac.inference.label_files import keep_largest_components
from adawac.inference.prediction import predict
from adawac.inference.predictor import FULL, Ensemble, Predictor, nearest_rows
from adawac.inference.scan_search import find_scans
from adawac.inference.trained import load_trained
from adawac.runs import Run
from tests.inference.made_runs import logits_of, make_run, noise, save, softmax, thresholded

SIZE = (12, 10)


def read(path):
    return np.asarray(nib.load(path).dataobj)


@pytest.fixture
def scan(tmp_path):
    return save(tmp_path / "scan.nii.gz", noise())


@pytest.fixture
def runs(tmp_path):
    """Two runs, one of them with two checkpoints."""
    first = make_run(tmp_path / "first", "tests.networks.threshold_network:ramp", checkpoints=("last", "best"))
    return first, make_run(tmp_path / "second", "tests.networks.threshold_network:ramp", checkpoints=("other", "last"))


@pytest.mark.parametrize(
    ("preprocessing", "scaled", "doubted"),
    [(READY, False, True), (READY, True, False), (replace(READY, size=(8, 8)), False, True), (None, False, False)],
)
def test_a_scan_for_a_network_of_scaled_files_is_doubted(tmp_path, preprocessing, scaled, doubted, caplog):
    run = make_run(tmp_path / "run", "tests.networks.threshold_network:ramp", preprocessing=preprocessing)
    image = noise().astype(np.float32)
    scan = save(tmp_path / "scan.nii.gz", (image - image.min()) / np.ptp(image) if scaled else image)
    (done,) = predict(run, scan, tmp_path / "out")
    assert done.labels is not None
    assert bool(done.doubt) is doubted
    assert ("likely wrong" in caplog.text) is doubted


def slices_of(scan):
    image = np.clip(read(scan).astype(np.float32), 0, 1000) / 1000
    return np.moveaxis(image, 2, 0)[:, None]


def check(done, mean):
    """Compare label map and probabilities with (slices, K, H, W)."""
    shares = read(done.files[2])
    assert shares.shape == (12, 10, 6, 3)
    np.testing.assert_allclose(shares, mean.transpose(2, 3, 0, 1), atol=0.51 / 65535)
    labels = read(done.labels)
    np.testing.assert_array_equal(labels, np.moveaxis(mean.argmax(1), 0, 2))
    assert len(np.unique(labels)) > 1
    np.testing.assert_array_equal(nib.load(done.files[2]).affine, nib.load(done.labels).affine)


@pytest.mark.parametrize("at_once", [1, 1 << 23])
def test_probabilities_are_those_of_the_network(tmp_path, monkeypatch, scan, runs, at_once):
    monkeypatch.setattr(volumes, "BLOCK_VOXELS", at_once)  # a block of one slice, and one of all
    (done,) = predict(runs[0], scan, tmp_path / "out", probabilities=True, values="index", device="cpu")
    check(done, softmax(logits_of(load_trained(runs[0]), slices_of(scan))))
    assert json.loads(done.files[1].read_text())["probabilities"] == "scan_probabilities.nii.gz"


def test_test_time_augmentation_is_the_mean_over_flips(tmp_path, scan, runs):
    (done,) = predict(runs[0], scan, tmp_path / "out", tta=True, probabilities=True, values="index", device="cpu")
    trained, slices = load_trained(runs[0]), slices_of(scan)
    flips = [(), (2,), (3,), (2, 3)]
    parts = [np.flip(softmax(logits_of(trained, np.flip(slices, flip))), flip) for flip in flips]
    check(done, np.mean(parts, axis=0))
    assert np.abs(parts[0] - np.mean(parts, axis=0)).max() > 0.1


def test_an_ensemble_is_the_mean_over_networks(tmp_path, scan, runs):
    best = runs[0] / "checkpoints" / "best.safetensors"
    members = [runs[0], best, runs[1]]
    (done,) = predict(members, scan, tmp_path / "out", probabilities=True, values="index", device="cpu")
    parts = [softmax(logits_of(load_trained(member), slices_of(scan))) for member in members]
    assert np.abs(parts[0] - parts[1]).max() > 0.1
    check(done, np.mean(parts, axis=0))
    networks = json.loads(done.files[1].read_text())["networks"]
    assert [(network["from"], network["checkpoint"]) for network in networks] == [
        ("first", "last"),
        ("first", "best"),
        ("second", "last"),
    ]


def test_one_network_keeps_its_logits():
    network = torch.nn.Conv2d(1, 4, 1)
    images = torch.rand(2, 1, 5, 5)
    assert torch.equal(Ensemble([network])(images), network(images))


def test_deep_supervision_predicts_at_its_finest():
    class Deep(torch.nn.Conv2d):
        def forward(self, images):
            logits = super().forward(images)
            return [logits, logits[..., ::2, ::2]]

    network, images = Deep(1, 4, 1), torch.rand(2, 1, 6, 6)
    for networks in ([network], [network, network]):
        assert Ensemble(networks)(images).shape == (2, 4, 6, 6)


def test_what_a_resize_leaves_outside_is_surely_background():
    """The released code's resize may leave a last row or column without a value."""
    cpu = torch.device("cpu")
    rows = next(rows for rows in (nearest_rows(8, new, "released", cpu) for new in range(9, 99)) if 0 in rows).numpy()
    network = torch.nn.Conv2d(1, 3, 1)
    network.bias.data = torch.tensor([0.0, 0.0, 9.0])  # the last class everywhere else
    slices = np.random.default_rng(0).random((2, 1, len(rows), len(rows))).astype(np.float32)
    predictor = Predictor([network], (8, 8), "released", batch_size=2)
    ((labels, shares, _),) = predictor.run([slices], probabilities=True)
    outside = (rows == 0)[:, None] | (rows == 0)
    assert (labels == np.where(outside, 0, 2)).all()
    assert (shares[:, :, outside] == np.array([FULL, 0, 0])[:, None]).all()


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"classes": ("background", "liver", "spleen")}, "class names"),
        ({"values": ((0,), (1,), (2,))}, "label values"),
        ({"image_size": (16, 16)}, "image size"),
        ({"views": {"interpolation": "cubic"}}, "resize"),
        ({"channels": ("t1", "t2")}, "channels"),
    ],
)
def test_an_ensemble_must_agree(tmp_path, scan, other, what):
    members = [make_run(tmp_path / "a"), make_run(tmp_path / "b", **other)]
    with pytest.raises(ConfigError, match=f"one {what} for an ensemble, but .*a has .* and .*b "):
        predict(members, scan, tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


def test_no_network_of_an_ensemble_votes_twice(tmp_path, scan, runs):
    again = tmp_path / "elsewhere"
    again.symlink_to(runs[0])
    with pytest.raises(ConfigError, match=r"each network once, but got .*elsewhere twice: it would have two votes"):
        predict([Run(runs[0]), runs[1], str(again)], scan, tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


def test_label_values_are_the_data_sets_or_the_classes(tmp_path, scan):
    run = make_run(tmp_path / "run", values=((0,), (1000,), (-5, 6)))
    (dataset,) = predict(run, scan, tmp_path / "dataset", device="cpu")
    (index,) = predict(run, scan, tmp_path / "index", values="index", device="cpu")
    classes = thresholded(noise())
    np.testing.assert_array_equal(read(dataset.labels), np.array([0, 1000, -5])[classes])
    assert nib.load(dataset.labels).get_data_dtype() == np.int16
    np.testing.assert_array_equal(read(index.labels), classes)
    assert nib.load(index.labels).get_data_dtype() == np.uint8


# -- clean-up ---------------------------------------------------------------------------------------------------------


def flood(mask):
    """Face-connected parts as lists of voxels, by a plain search."""
    left, parts = {tuple(voxel) for voxel in np.argwhere(mask)}, []
    while left:
        stack, part = [min(left)], []
        left.discard(stack[0])
        while stack:
            voxel = stack.pop()
            part.append(voxel)
            for axis in range(3):
                for step in (-1, 1):
                    near = tuple(side + step * (k == axis) for k, side in enumerate(voxel))
                    if near in left:
                        left.discard(near)
                        stack.append(near)
        parts.append(part)
    return parts


@given(st.integers(0, 10_000))
def test_the_largest_components_stay(seed):
    generator = np.random.default_rng(seed)
    labels = generator.choice(4, (5, 6, 4), p=[0.4, 0.3, 0.2, 0.1]).astype(np.uint8)
    before = labels.copy()
    removed = keep_largest_components(labels)
    assert removed == np.count_nonzero(labels != before)
    assert (labels[labels != before] == 0).all()
    for index in np.unique(before[before > 0]):
        sizes = [len(part) for part in flood(before == index)]
        assert [len(part) for part in flood(labels == index)] == [max(sizes)]


def test_largest_component_of_a_scan(tmp_path):
    image = np.zeros((12, 10, 6), np.int16)
    image[1:5, 1:5, 1:4] = 1000
    image[8, 8, 0] = image[9, 1, 5] = 1000
    image[0, 0, 0] = 20
    scan = save(tmp_path / "scan.nii.gz", image)
    run = make_run(tmp_path / "run")
    (done,) = predict(run, scan, tmp_path / "out", largest_component=True, values="index", device="cpu")
    labels = read(done.labels)
    assert labels[1:5, 1:5, 1:4].all()
    assert np.count_nonzero(labels) == 4 * 4 * 3
    assert json.loads(done.files[1].read_text())["largest_component"] == {"removed_voxels": 2}


# -- channels ---------------------------------------------------------------------------------------------------------


def test_channels_are_found_by_patterns_as_for_training(tmp_path):
    run = make_run(tmp_path / "run", channels=("t1", "t2"))
    for seed, name in enumerate(["anna", "bert"]):
        save(tmp_path / "in" / name / "t1.nii.gz", noise(seed=seed))
        save(tmp_path / "in" / name / "t2.nii.gz", noise(seed=seed + 5))
    save(tmp_path / "in" / "cleo" / "t1.nii.gz", noise())
    patterns = ["*/t1.nii.gz", "*/t2.nii.gz"]
    out = tmp_path / "in" / "out"
    anna, bert, cleo = predict(run, tmp_path / "in", out, images=patterns, device="cpu")
    assert [done.labels for done in (anna, bert)] == [out / "anna.nii.gz", out / "bert.nii.gz"]
    assert anna.scan.files == (tmp_path / "in" / "anna" / "t1.nii.gz", tmp_path / "in" / "anna" / "t2.nii.gz")
    assert "nothing matches '*/t2.nii.gz'" in cleo.error
    stacked = save(tmp_path / "four.nii.gz", np.stack([noise(seed=0), noise(seed=5)], axis=-1))
    (four,) = predict(run, stacked, tmp_path / "four", device="cpu")
    first, second = (np.asarray(nib.load(done.labels).dataobj) for done in (anna, four))
    np.testing.assert_array_equal(first, second)
    (alone,) = predict(run, tmp_path / "in" / "bert", tmp_path / "alone", images=["*t1.nii.gz", "*t2.nii.gz"])
    assert alone.labels == tmp_path / "alone" / "bert.nii.gz"
    with pytest.raises(ConfigError, match=r"each of the 2 channels \(t1, t2\), but got 1"):
        predict(run, tmp_path / "in", out, images=patterns[:1])
    with pytest.raises(MissingFileError, match=r"match '\*/flair.nii.gz' in .*in, but got none"):
        predict(run, tmp_path / "in", out, images=["*/flair.nii.gz", "*/t2.nii.gz"])


def test_a_channel_that_is_missing_does_not_move_the_others_up(tmp_path):
    run = make_run(tmp_path / "run", channels=("t1", "t2"))
    for number in (0, 2):
        save(tmp_path / "in" / f"anna_{number:04d}.nii.gz", noise(seed=number))
    (done,) = predict(run, tmp_path / "in", tmp_path / "out", device="cpu")
    assert done.error.startswith("Expected the channels 0000, 0001 of case anna, but ")
    assert done.error.endswith("has 0000, 0002. Add the missing file, or rename these.")
    dated = save(tmp_path / "dated" / "anna_2021.nii.gz", np.stack([noise(seed=0), noise(seed=5)], axis=-1))
    (done,) = predict(run, dated, tmp_path / "out", device="cpu")
    assert done.error == ""


def test_channels_are_files_or_the_fourth_axis(tmp_path):
    run = make_run(tmp_path / "run", channels=("t1", "t2"))
    parts = [noise(seed=0), noise(seed=1)]
    for number, part in enumerate(parts):
        save(tmp_path / "in" / f"anna_{number:04d}.nii.gz", part)
    save(tmp_path / "in" / "bert.nii.gz", np.stack(parts, axis=-1))
    anna, bert = predict(run, tmp_path / "in", tmp_path / "out", values="index", device="cpu")
    assert [done.scan.name for done in (anna, bert)] == ["anna", "bert"]
    np.testing.assert_array_equal(read(anna.labels), read(bert.labels))
    mean = np.mean([part / np.float32(1000) for part in parts], axis=0)
    expected = np.abs(mean[..., None] - np.linspace(0, 1, 3)).argmin(-1)
    assert (read(anna.labels) != expected).mean() < 0.002  # voxels halfway between two centres


def test_one_channel_keeps_names_that_end_in_a_number(tmp_path):
    for number in range(2):
        save(tmp_path / f"anna_{number:04d}.nii.gz", noise())
    assert [scan.name for scan in find_scans([tmp_path])] == ["anna_0000", "anna_0001"]


# -- which scans, which names -----------------------------------------------------------------------------------------


def test_folders_and_patterns_are_searched(tmp_path, monkeypatch):
    for name in (
        "a/x.nii.gz",
        "a/deep/y.nii",
        "b/z.nii.gz",
        "b/.hidden.nii.gz",
        "b/._z.nii.gz",
        "b/note.txt",
        "out/x.nii.gz",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)

    def names(*words, leave_out=None):
        return [scan.name for scan in find_scans(words, leave_out=leave_out)]

    assert names("a", "b") == ["y", "x", "z"]
    assert names("*/*.nii.gz") == ["a_x", "z", "out_x"]
    assert names(str(tmp_path / "**" / "*.nii")) == ["y"]
    assert names("a/x.nii.gz", "a", tmp_path / "a" / "deep") == ["y", "x"]
    assert names(".", leave_out=tmp_path / "out") == ["y", "x", "z"]
    for word in ("absent.nii.gz", "absent/*.nii"):
        with pytest.raises(MissingFileError, match="matches nothing"):
            names("a", word)
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingFileError, match="neither NIfTI files nor DICOM"):
        names("a", "empty")


def test_linked_folders_are_searched_once_and_give_their_own_names(tmp_path):
    for name in ("0001", "0002"):
        save(tmp_path / "disk" / name / "ct.nii.gz", noise())
    (tmp_path / "in").mkdir()
    for name, target in (("anna", "disk/0001"), ("bert", "disk/0002"), ("bert-again", "disk/0002"), ("loop", "in")):
        (tmp_path / "in" / name).symlink_to(tmp_path / target)
    for searched in (tmp_path / "in", tmp_path / "in" / "**", tmp_path / "in" / "**" / "*.nii.gz"):
        assert [scan.name for scan in find_scans([searched])] == ["anna_ct", "bert_ct"]


def test_a_link_to_nothing_is_named_and_the_others_are_done(tmp_path):
    run = make_run(tmp_path / "run")
    save(tmp_path / "in" / "a.nii.gz", noise())
    for name in ("gone.nii.gz", "IM0001"):
        (tmp_path / "in" / name).symlink_to(tmp_path / "nothing" / name)
    done = {
        prediction.scan.files[0].name: prediction.error
        for prediction in predict(run, tmp_path / "in", tmp_path / "out", device="cpu")
    }
    assert done.pop("a.nii.gz") == ""
    assert len(done) == 2
    assert all(error.startswith("Expected a file, but it is a link to nothing") for error in done.values())


@pytest.mark.parametrize("searched", [".", "Dataset001", "Dataset001/**", "Dataset001/**/*.nii.gz"])
def test_the_label_maps_of_an_nnunet_folder_are_no_scans(tmp_path, monkeypatch, searched):
    for name in ("imagesTr/anna_0000", "labelsTr/anna", "imagesTs/bert_0000", "labelsTs/bert", "labels/cleo"):
        save(tmp_path / "Dataset001" / f"{name}.nii.gz", noise())
    monkeypatch.chdir(tmp_path)
    assert [scan.name for scan in find_scans([searched])] == ["anna_0000", "bert_0000", "cleo"]
    with pytest.raises(MissingFileError, match=r"labelsTr holds label maps\. Give .*Dataset001/imagesTr\.$"):
        find_scans(["Dataset001/labelsTr"])
    monkeypatch.chdir(tmp_path / "Dataset001" / "labelsTr")
    with pytest.raises(MissingFileError, match=r"holds label maps"):
        find_scans(["."])


def test_a_channel_under_two_endings_is_named_as_in_training(tmp_path):
    for ending in ("nii", "nii.gz"):
        save(tmp_path / f"anna_0000.{ending}", noise())
    (scan,) = find_scans([tmp_path], channels=2)
    assert "one file for each channel of case anna" in scan.problem
    assert scan.problem.endswith("anna_0000.nii.gz. Remove the copy.")


def test_no_two_scans_share_a_name(tmp_path):
    files = [
        "a/scan.nii.gz",
        "b/scan.nii.gz",
        "c/a_scan.nii.gz",
        "d/e/s.nii",
        "d/e/s.nii.gz",
        "f/S.nii",
        "g/scan[1].nii",
    ]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    scans = find_scans([tmp_path / name for name in files])
    names = {scan.name for scan in scans}
    assert len({name.casefold() for name in names}) == len(files)
    assert {"b_scan", "c_a_scan", "scan[1]"} <= names
    twins = sorted(scan.name for scan in scans if scan.path.parent == tmp_path / "d" / "e")
    assert all(re.fullmatch("e_s_[0-9a-f]{8}", name) for name in twins)  # no folder above could tell them apart


def test_scans_of_one_name_give_two_label_maps(tmp_path):
    run = make_run(tmp_path / "run")
    images = {name: noise(seed=seed) for seed, name in enumerate("ab")}
    scans = [save(tmp_path / name / "scan.nii.gz", image) for name, image in images.items()]
    done = predict(run, scans, tmp_path / "out", values="index", device="cpu")
    for prediction, (name, image) in zip(done, images.items(), strict=True):
        assert prediction.labels == tmp_path / "out" / f"{name}_scan.nii.gz"
        np.testing.assert_array_equal(read(prediction.labels), thresholded(image))
