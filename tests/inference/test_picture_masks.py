"""`adawac.predict` on pictures: masks of their own size, tiles stitched, palettes, overlays, and what is refused."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import adawac
from adawac.cli import run as command
from adawac.data.store import Store
from adawac.errors import ConfigError, MissingFileError
from adawac.evaluation import evaluate
from adawac.evaluation.evaluation_record import SLICE_METRICS
from adawac.inference.picture_masks import PictureInput, write_mask
from adawac.metrics import dice
from tests.networks.lookup_network import make_run
from tests.places import REPOSITORY

SPLIT = {"train": 2, "test": 2}


def drawn_picture(rng, size):
    """Coarse blocks in which one channel is the strongest: (H, W, 3) and the classes."""
    height, width = size
    coarse = rng.integers(0, 3, (-(-height // 7), -(-width // 7)))
    classes = coarse.repeat(7, axis=0).repeat(7, axis=1)[:height, :width].astype(np.uint8)
    picture = rng.integers(0, 100, (height, width, 3), dtype=np.uint8)
    np.put_along_axis(picture, classes[..., None].astype(np.int64), 180, axis=2)
    return picture, classes


def write_folder(folder, sizes, values=(0, 1, 2), seed=0):
    """Write images/NAME.png and masks/NAME.png; return the classes by name."""
    rng, every = np.random.default_rng(seed), {}
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True)
    for number, size in enumerate(sizes):
        picture, classes = drawn_picture(rng, size)
        name = f"p{number}"
        Image.fromarray(picture).save(folder / "images" / f"{name}.png")
        Image.fromarray(np.array(values, dtype=np.uint8)[classes]).save(folder / "masks" / f"{name}.png")
        every[name] = classes
    return every


def split_folder(folder, names):
    """Write a split in which the first two cases train and the others are for testing."""
    folder.mkdir()
    for part, of_part in {"train": names[:2], "test": names[2:]}.items():
        (folder / f"{part}.txt").write_text("".join(f"{name}\n" for name in of_part))
    return folder


def prepared_run(tmp_path, sizes, size, values=(0, 1, 2), classes=None, options=None, **prepare):
    """Prepare pictures and write a run whose network finds the strongest channel."""
    every = write_folder(tmp_path / "data", sizes, values)
    store = adawac.prepare(
        "pictures", tmp_path / "data", tmp_path / "store", workers=1, progress=False, classes=classes, **prepare
    )
    split = split_folder(tmp_path / "split", list(every))
    run = make_run(tmp_path / "run", store, size=size, network="strongest", network_options=options, split=str(split))
    return run, every


def masks_in(folder):
    return {path.stem: np.asarray(Image.open(path)) for path in sorted(folder.glob("*.png"))}


def test_a_mask_has_its_pictures_size_and_a_palette(tmp_path):
    run, every = prepared_run(tmp_path, [(28, 35)] * 4, (28, 35))
    predictions = adawac.predict(run, tmp_path / "data", tmp_path / "out")
    assert [prediction.error for prediction in predictions] == [""] * 4  # the masks beside them are passed over
    for name, mask in masks_in(tmp_path / "out").items():
        np.testing.assert_array_equal(mask, every[name])
    image = Image.open(tmp_path / "out" / "p0.png")
    assert image.mode == "P"
    table = json.loads((tmp_path / "out" / "p0.json").read_text())
    assert [row["name"] for row in table["classes"]] == ["background", "class 1", "class 2"]
    for row in table["classes"]:
        where = np.asarray(image) == row["value"]
        assert set(map(tuple, np.asarray(image.convert("RGB"))[where])) == {tuple(bytes.fromhex(row["colour"][1:]))}


def test_pictures_of_other_sizes_are_resized_to_the_network_and_back(tmp_path):
    run, _ = prepared_run(tmp_path, [(28, 28)] * 4, (28, 28))
    wide = np.zeros((60, 90, 3), dtype=np.uint8)
    wide[:, :45, 1], wide[:, 45:, 2] = 200, 200
    Image.fromarray(wide).save(tmp_path / "wide.png")
    adawac.predict(run, tmp_path / "wide.png", tmp_path / "out")
    mask = masks_in(tmp_path / "out")["wide"]
    assert mask.shape == (60, 90)
    assert (mask[:, :43] == 1).all()
    assert (mask[:, 47:] == 2).all()


@pytest.mark.parametrize("overlap", [0, 5])
def test_tiles_of_a_pointwise_network_are_stitched_to_the_whole_pictures_mask(tmp_path, overlap):
    run, every = prepared_run(tmp_path, [(40, 51), (16, 70), (33, 16), (47, 47)], (16, 16), tile=16, overlap=overlap)
    adawac.predict(run, tmp_path / "data" / "images", tmp_path / "out")
    masks = masks_in(tmp_path / "out")
    assert set(masks) == set(every)
    for name, mask in masks.items():
        np.testing.assert_array_equal(mask, every[name])


def test_a_temperature_changes_no_mask_where_tiles_overlap(tmp_path, monkeypatch):
    run, every = prepared_run(
        tmp_path, [(40, 51), (33, 47), (40, 51), (40, 51)], (16, 16), tile=16, overlap=8, options={"tilt": 12.0}
    )
    adawac.predict(run, tmp_path / "data", tmp_path / "plain")
    for temperature in (0.2, 6.0):
        monkeypatch.setattr("adawac.inference.prediction.find_temperature", lambda *_, value=temperature: value)
        adawac.predict(run, tmp_path / "data", tmp_path / f"{temperature}")
        for name, mask in masks_in(tmp_path / "plain").items():
            np.testing.assert_array_equal(masks_in(tmp_path / f"{temperature}")[name], mask)
    assert set(masks_in(tmp_path / "plain")) == set(every)


def shares_of(path):
    """Shares of 65535 as numbers from 0 to 1."""
    tifffile = pytest.importorskip("tifffile", reason="needs pip install 'adawac[pictures]'")
    return tifffile.imread(path).astype(np.float64) / 65535


@pytest.mark.parametrize("tile", [{}, {"tile": 16, "overlap": 8}])
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_probabilities_and_uncertainty_of_pictures(tmp_path, tile, temperature, monkeypatch):
    run, _ = prepared_run(tmp_path, [(40, 51), (33, 47)] * 2, (16, 16), options={"tilt": 12.0}, **tile)
    wanted = ["--out", str(tmp_path / "out"), "--values", "index", "--device", "cpu"]
    adawac.predict(run, tmp_path / "data", tmp_path / "plain", values="index", device="cpu", probabilities=True)
    monkeypatch.setattr("adawac.inference.prediction.find_temperature", lambda *_: temperature)
    words = ["predict", str(run.folder), str(tmp_path / "data"), "--probabilities", "--uncertainty", *wanted]
    assert command(words) == 0
    for name, mask in masks_in(tmp_path / "plain").items():
        np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "out" / f"{name}.png")), mask)
        plain, shares = (shares_of(tmp_path / out / f"{name}_probabilities.tif") for out in ("plain", "out"))
        assert shares.shape == (3, *mask.shape)
        np.testing.assert_allclose(shares.sum(axis=0), 1, atol=1e-4)
        np.testing.assert_allclose(np.take_along_axis(shares, mask[None], axis=0)[0], shares.max(axis=0), atol=1e-4)
        scaled = np.maximum(plain, 1e-9) ** (1 / temperature)
        likely = (plain > 1e-3).all(axis=0)
        np.testing.assert_allclose(shares[:, likely], (scaled / scaled.sum(axis=0))[:, likely], atol=5e-3)
        entropy = np.asarray(Image.open(tmp_path / "out" / f"{name}_entropy.png")) / 65535
        expected = -(shares * np.log(np.maximum(shares, 1e-30))).sum(axis=0) / np.log(3)
        np.testing.assert_allclose(entropy, expected, atol=1e-3)
        facts = json.loads((tmp_path / "out" / f"{name}.json").read_text())["uncertainty"]
        assert [row["volume"] for row in facts["volumes_pixels"]] == [(mask == k).sum() for k in (1, 2)]
        assert [row["expected"] for row in facts["volumes_pixels"]] == pytest.approx(
            shares[1:].sum(axis=(1, 2)).tolist(), rel=1e-3
        )
    header, *rows = (tmp_path / "out" / "review.csv").read_text().splitlines()
    assert header.startswith("scan,expected_dice,mean_entropy,disagreement,")
    assert "class 1: volume, pixels" in header
    assert len(rows) == 4


def test_members_of_an_ensemble_disagree_about_pictures(tmp_path):
    run, _ = prepared_run(tmp_path, [(40, 51)] * 4, (16, 16), tile=16, overlap=8, options={"tilt": 12.0})
    store, split = Store(tmp_path / "store"), str(tmp_path / "split")
    options = {"tilt": -12.0}
    other = make_run(tmp_path / "b", store, size=(16, 16), network="strongest", network_options=options, split=split)
    pictures = {"scans": tmp_path / "data", "device": "cpu", "values": "index"}
    (done, *_) = adawac.predict([run, other], out=tmp_path / "out", uncertainty=True, **pictures)
    alone = [
        adawac.predict(network, out=tmp_path / network.folder.name / "alone", **pictures)[0] for network in (run, other)
    ]
    mask, *others = (np.asarray(Image.open(prediction.labels)) for prediction in (done, *alone))
    against = np.mean([member != mask for member in others], axis=0)
    written = np.asarray(Image.open(tmp_path / "out" / f"{done.scan.name}_disagreement.png")) / 65535
    np.testing.assert_allclose(written, against, atol=1e-4)
    assert 0 < against.mean() < 1
    foreground = (mask > 0) | (others[0] > 0) | (others[1] > 0)
    assert done.uncertainty.disagreement == pytest.approx((against > 0).sum() / foreground.sum())


def test_probabilities_of_pages(tmp_path):
    tifffile = pytest.importorskip("tifffile", reason="needs pip install 'adawac[pictures]'")
    run, every = prepared_run(tmp_path, [(28, 28)] * 4, (16, 16), tile=16, overlap=4)
    pages = [np.asarray(Image.open(tmp_path / "data" / "images" / f"p{k}.png")) for k in (0, 1)]
    tifffile.imwrite(tmp_path / "stack.tif", np.stack(pages), photometric="rgb")
    options = {"probabilities": True, "uncertainty": True, "values": "index", "device": "cpu"}
    (done,) = adawac.predict(run, tmp_path / "stack.tif", tmp_path / "out", **options)
    shares = shares_of(tmp_path / "out" / "stack_probabilities.tif").reshape(2, 3, 28, 28)
    np.testing.assert_array_equal(shares.argmax(axis=1), [every["p0"], every["p1"]])
    assert tifffile.imread(tmp_path / "out" / "stack_entropy.tif").shape == (2, 28, 28)
    assert not done.error


def test_what_is_scored_on_tiles_is_the_stitched_mask_that_predict_writes(tmp_path):
    # The network sees where in its tile a pixel lies, so neighbouring tiles disagree and blending decides.
    run, every = prepared_run(
        tmp_path, [(40, 51), (20, 24), (33, 40), (47, 30)], (16, 16), tile=16, overlap=8, options={"tilt": 12.0}
    )
    (evaluation,) = evaluate(run, workers=0, gallery=4)
    adawac.predict(run, tmp_path / "data" / "images", tmp_path / "out")
    masks = masks_in(tmp_path / "out")
    scored = {(score.case, score.label): score.value for score in evaluation.scores if score.metric == "dice"}
    assert {case for case, _ in scored} == {"p2", "p3"}
    assert not np.array_equal(masks["p2"], every["p2"])  # this test can tell
    for (case, label), value in scored.items():
        assert value == pytest.approx(dice(masks[case] == label, every[case] == label))
    assert run.galleries  # tiles to look at


@pytest.mark.parametrize("tile", [{}, {"tile": 16, "overlap": 8}])
def test_masks_that_predict_writes_score_as_evaluate_scores_them(tmp_path, tile):
    run, _ = prepared_run(tmp_path, [(40, 51), (20, 24), (33, 40), (47, 30)], (16, 16), options={"tilt": 12.0}, **tile)
    (evaluation,) = evaluate(run, workers=0, gallery=0)
    adawac.predict(run, tmp_path / "data" / "images", tmp_path / "out")
    result = adawac.score(tmp_path / "data" / "masks", tmp_path / "out", workers=0)
    assert result.faults == []
    scored = {
        (score.case, score.label, score.metric): score.value
        for score in result.evaluations[0].scores
        if score.metric not in SLICE_METRICS or not tile
    }
    expected = {
        (score.case, score.label, score.metric): score.value
        for score in evaluation.scores
        if score.metric not in SLICE_METRICS or not tile
    }
    assert {case for case, *_ in expected} == {"p2", "p3"}
    np.testing.assert_equal({key: scored[key] for key in expected}, expected)


@pytest.mark.parametrize("values", [(0, 255, 7), (3, 0, 9)])
def test_masks_have_the_data_sets_own_values(tmp_path, values):
    classes = {"background": values[0], "crack": values[1], "dent": values[2]}
    run, every = prepared_run(tmp_path, [(28, 28)] * 4, (28, 28), values, classes)
    adawac.predict(run, tmp_path / "data" / "images", tmp_path / "out")
    for name, mask in masks_in(tmp_path / "out").items():
        np.testing.assert_array_equal(mask, np.array(values)[every[name]])
    adawac.predict(run, tmp_path / "data" / "images", tmp_path / "index", values="index")
    np.testing.assert_array_equal(masks_in(tmp_path / "index")["p1"], every["p1"])


def test_classes_by_colour_come_back_as_these_colours(tmp_path):
    every = write_folder(tmp_path / "data", [(28, 28)] * 4)
    colours = {"background": "#000000", "crack": "#ff0000", "dent": "#00ff40"}
    palette = np.array([list(bytes.fromhex(colour[1:])) for colour in colours.values()], dtype=np.uint8)
    for name, classes in every.items():
        Image.fromarray(palette[classes]).save(tmp_path / "data" / "masks" / f"{name}.png")
    store = adawac.prepare(
        "pictures", tmp_path / "data", tmp_path / "store", classes=colours, workers=1, progress=False
    )
    split = split_folder(tmp_path / "split", list(every))
    run = make_run(tmp_path / "run", store, size=(28, 28), network="strongest", split=str(split))
    adawac.predict(run, tmp_path / "data" / "images", tmp_path / "data" / "found")
    for name in every:
        shown = Image.open(tmp_path / "data" / "found" / f"{name}.png").convert("RGB")
        np.testing.assert_array_equal(np.asarray(shown), palette[every[name]])
    # What predict writes, prepare reads.
    again = adawac.prepare(
        "pictures", tmp_path / "data", tmp_path / "again", images="images/*", labels="found/*.png",
        classes=colours, workers=1, progress=False,
    )  # fmt: skip
    np.testing.assert_array_equal(again.volume("p2").label, store.volume("p2").label)


def test_a_phones_picture_has_a_mask_as_it_is_shown(tmp_path):
    run, _ = prepared_run(tmp_path, [(28, 28)] * 4, (14, 14), tile=None)
    upright = np.zeros((30, 20, 3), dtype=np.uint8)
    upright[:15, :, 1], upright[15:, :, 2] = 220, 220
    exif = Image.Exif()
    exif[274] = 6  # lies on its side in the file
    Image.fromarray(np.rot90(upright)).save(tmp_path / "phone.jpg", quality=95, exif=exif)
    adawac.predict(run, tmp_path / "phone.jpg", tmp_path / "out")
    mask = masks_in(tmp_path / "out")["phone"]
    assert mask.shape == (30, 20)
    assert (mask[:12] == 1).all()
    assert (mask[18:] == 2).all()


def test_pages_of_a_tiff_become_pages_of_a_mask(tmp_path):
    tifffile = pytest.importorskip("tifffile", reason="needs pip install 'adawac[pictures]'")
    run, _ = prepared_run(tmp_path, [(28, 28)] * 4, (16, 16), tile=16, overlap=4)
    drawn = [drawn_picture(np.random.default_rng(seed), (30, 41)) for seed in range(3)]
    tifffile.imwrite(tmp_path / "stack.tif", np.stack([picture for picture, _ in drawn]), photometric="rgb")
    (prediction,) = adawac.predict(run, tmp_path / "stack.tif", tmp_path / "out", overlay=True)
    assert prediction.labels == tmp_path / "out" / "stack.tif"
    with tifffile.TiffFile(prediction.labels) as file:
        assert [page.photometric.name for page in file.pages] == ["PALETTE"] * 3
        np.testing.assert_array_equal(np.stack([page.asarray() for page in file.pages]), [c for _, c in drawn])


def test_an_overlay_shows_the_picture_with_its_classes(tmp_path):
    run, every = prepared_run(tmp_path, [(28, 35)] * 4, (28, 35))
    (prediction,) = adawac.predict(run, tmp_path / "data" / "images" / "p0.png", tmp_path / "out", overlay=True)
    assert tmp_path / "out" / "p0_overlay.jpg" in prediction.files
    overlay = np.asarray(Image.open(tmp_path / "out" / "p0_overlay.jpg")).astype(float)
    picture = np.asarray(Image.open(tmp_path / "data" / "images" / "p0.png")).astype(float)
    colours = {
        row["index"]: list(bytes.fromhex(row["colour"][1:]))
        for row in json.loads((tmp_path / "out" / "p0.json").read_text())["classes"]
    }
    expected = picture.copy()
    for index in (1, 2):
        expected[every["p0"] == index] = (picture[every["p0"] == index] + colours[index]) / 2
    assert np.abs(overlay - expected).mean() < 12  # JPEG of noise
    assert np.abs(overlay - picture).mean() > 25


def test_an_overlay_of_a_large_picture_is_small(tmp_path):
    run, _ = prepared_run(tmp_path, [(28, 28)] * 4, (28, 28))
    Image.fromarray(np.zeros((20, 500, 3), dtype=np.uint8)).save(tmp_path / "long.png")
    shown = PictureInput(tmp_path / "long.png", run.task).shown(most=100)
    assert shown.shape == (4, 100, 3)


def test_a_grey_picture_suits_a_network_for_colours_and_not_the_other_way_round(tmp_path):
    run, _ = prepared_run(tmp_path, [(28, 28)] * 4, (28, 28))
    Image.fromarray(np.full((28, 28), 90, dtype=np.uint8)).save(tmp_path / "grey.png")
    (prediction,) = adawac.predict(run, tmp_path / "grey.png", tmp_path / "out")
    assert not prediction.error
    for number in range(4):
        path = tmp_path / "data" / "images" / f"p{number}.png"
        Image.open(path).convert("L").save(path)
    grey = adawac.prepare("pictures", tmp_path / "data", tmp_path / "greys", workers=1, progress=False)
    other = make_run(tmp_path / "other", grey, size=(28, 28), split=str(tmp_path / "split"))
    colour = np.zeros((28, 28, 3), dtype=np.uint8)
    colour[..., 0] = 200
    Image.fromarray(colour).save(tmp_path / "colour.png")
    (prediction,) = adawac.predict(other, tmp_path / "colour.png", tmp_path / "out")
    assert "Expected a grey picture, as the network was trained on, but it is in colour" in prediction.error


def test_a_bad_picture_does_not_stop_the_others(tmp_path):
    run, every = prepared_run(tmp_path, [(28, 28)] * 4, (28, 28))
    content = (tmp_path / "data" / "images" / "p1.png").read_bytes()
    (tmp_path / "data" / "images" / "p1.png").write_bytes(content[: len(content) // 2])
    (tmp_path / "data" / "images" / "notes.txt").write_text("not a picture")
    predictions = adawac.predict(run, tmp_path / "data" / "images", tmp_path / "out")
    errors = {prediction.scan.name: prediction.error for prediction in predictions}
    assert set(errors) == set(every)
    assert [name for name, error in errors.items() if error] == ["p1"]
    assert "p1.png" in errors["p1"]
    assert sorted(masks_in(tmp_path / "out")) == ["p0", "p2", "p3"]
    again = adawac.predict(run, tmp_path / "data" / "images" / "p0.png", tmp_path / "out")
    assert "exists" in again[0].error


def test_what_does_not_suit_pictures_is_refused(tmp_path):
    run, _ = prepared_run(tmp_path, [(28, 28)] * 4, (28, 28))
    images = tmp_path / "data" / "images"
    for options, message in (
        ({"format": "nifti"}, "Expected png as format, since the network was trained on pictures, but got nifti"),
        ({"images": ("a*", "b*")}, "Expected one pattern of pictures"),
    ):
        with pytest.raises(ConfigError, match=message):
            adawac.predict(run, images, tmp_path / "out", **options)
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingFileError, match="no PNG, JPEG, BMP or TIFF files"):
        adawac.predict(run, tmp_path / "empty", tmp_path / "out")
    with pytest.raises(ConfigError, match="is a scan itself"):
        adawac.predict(run, images, images)
    named = adawac.predict(run, images, tmp_path / "out", images=("*.png",))
    assert [prediction.scan.name for prediction in named] == ["p0", "p1", "p2", "p3"]


def test_scans_have_neither_png_nor_overlays(varied, tmp_path):
    run = make_run(tmp_path / "run", varied, size=(9, 9))
    for options, message in (({"format": "png"}, "Expected nifti or seg"), ({"overlay": True}, "Expected pictures")):
        (tmp_path / "scan.nii.gz").touch()
        with pytest.raises(ConfigError, match=message):
            adawac.predict(run, tmp_path / "scan.nii.gz", tmp_path / "out", **options)


def test_label_values_beyond_8_bits_have_16_and_no_palette(tmp_path):
    labels = np.array([[[0, 1], [2, 0]]], dtype=np.uint8)
    classes = [{"index": k, "value": v, "name": str(k), "colour": "#000000"} for k, v in enumerate((0, 300, 65535))]
    write_mask(tmp_path / "mask.png", labels, classes)
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "mask.png")), [[0, 300], [65535, 0]])


def test_a_model_folder_takes_pictures_as_its_run_does(tmp_path):
    run, every = prepared_run(tmp_path, [(40, 51)] * 4, (16, 16), tile=16, overlap=4)
    adawac.export_model(run, tmp_path / "model")
    card = json.loads((tmp_path / "model" / "model.json").read_text())
    assert card["channels"] == ["red", "green", "blue"]
    assert (card["preprocessing"]["tile"], card["preprocessing"]["overlap"]) == (16, 4)
    assert "0 to 1" in card["input"]
    assert "mean of the probabilities" in card["postprocessing"]["tiles"]
    adawac.predict(tmp_path / "model", tmp_path / "data" / "images", tmp_path / "out", trust_code=True)
    np.testing.assert_array_equal(masks_in(tmp_path / "out")["p3"], every["p3"])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured as on Linux")
def test_a_picture_of_20000_pixels_a_side_is_segmented_within_2_gb(tmp_path):
    tifffile = pytest.importorskip("tifffile", reason="needs pip install 'adawac[pictures]'")
    run, _ = prepared_run(tmp_path, [(600, 600)] * 4, (512, 512), tile=512, overlap=64)
    side = 20_000
    mapped = tifffile.memmap(tmp_path / "large.tif", shape=(side, side, 3), dtype=np.uint8, photometric="rgb")
    for start in range(0, side, 1000):
        mapped[start : start + 1000, :, 1] = 200
    mapped[9000:9100, 9000:9100] = (0, 0, 250)
    mapped.flush()
    del mapped
    script = (
        "import adawac, sys; (p,) = adawac.predict(sys.argv[1], sys.argv[2], sys.argv[3], overlay=True); "
        "assert not p.error, p.error; import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    arguments = [str(run.folder), str(tmp_path / "large.tif"), str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    assert int(done.stdout.split()[-1]) < 2 << 20  # KB
    Image.MAX_IMAGE_PIXELS = None
    mask = Image.open(tmp_path / "out" / "large.png")
    assert mask.size == (side, side)
    assert np.asarray(mask.crop((8990, 8990, 9110, 9110))).sum() == 120 * 120 + 100 * 100
