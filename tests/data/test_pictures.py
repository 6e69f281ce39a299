"""Folders of pictures: pairs, classes, groups, and what a store of them holds."""

import json
import re

import numpy as np
import pytest
import tifffile
from PIL import Image

from adawac.cli import run
from adawac.data.cases import IGNORED
from adawac.data.diagnosis import diagnose
from adawac.data.preparation import prepare
from adawac.data.preprocessing import PICTURES, Preprocessing
from adawac.data.sources import build_source, detect_source
from adawac.errors import ConfigError, DataError
from tests.data.picture_files import GREEN, RED, index_mask, make_folder, photo, save
from tests.data.scans import make_nnunet


def painted(colours, shape=(24, 32)):
    """Return a mask in colours, whose classes are those of `index_mask`."""
    return np.array([(0, 0, 0), *colours], dtype=np.uint8)[index_mask(shape, len(colours) + 1)]


def load(root, name="a", **options):
    source = build_source("pictures", root, **options)
    return source.load(next(ref for ref in source.cases() if ref.id == name))


# -- pairs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "mask", "patterns"),
    [
        ("images/a.png", "masks/a.png", {}),
        ("Images/a.jpg", "labels/a_mask.png", {}),
        ("images/a_image.png", "masks/a_mask.tif", {}),
        ("a.jpg", "a_gt.png", {}),
        ("a_image.png", "a_seg.png", {}),
        ("x/a.JPG", "y/a.PNG", {"images": "x/*", "labels": "y/*"}),
        ("x/a.jpg", "y/a_mask.png", {"images": "x/*", "labels": "y/*"}),
        ("x/a.jpg", "x/a.png", {"images": "x/*.jpg", "labels": "x/*.png"}),
        ("x/a.png", "x/a_truth.png", {"images": "x/*.png", "labels": "x/*_truth.png"}),
        ("a/photo.png", "a/defects.png", {"images": "*/photo.png", "labels": "*/defects.png"}),
    ],
)
def test_pictures_find_their_masks(tmp_path, image, mask, patterns):
    for name in ("a", "b"):
        save(tmp_path / re.sub(r"\ba(?=[/_.])", name, image), photo())
        save(tmp_path / re.sub(r"\ba(?=[/_.])", name, mask), index_mask())
    (tmp_path / "notes.txt").write_text("no picture")
    source = build_source("pictures", tmp_path, **patterns)
    refs = source.cases()
    assert [ref.id.removesuffix("_image") for ref in refs] == ["a", "b"]
    assert all(len(ref.labels) == 1 for ref in refs)
    case = source.load(refs[0])
    assert case.image.shape == (3, 1, 24, 32)
    np.testing.assert_array_equal(case.label, index_mask()[None])


def test_two_masks_of_one_picture_are_refused(tmp_path):
    make_folder(tmp_path)
    save(tmp_path / "masks" / "a0_gt.png", index_mask())
    with pytest.raises(DataError, match=r"one file per case, but got .*a0\.png and .*a0_gt\.png"):
        build_source("pictures", tmp_path)


def test_a_folder_of_neither_layout_says_what_it_needs(tmp_path):
    save(tmp_path / "photos" / "a.png", photo())
    with pytest.raises(DataError, match=r"folders called images and masks.*Give the patterns"):
        build_source("pictures", tmp_path)
    with pytest.raises(ConfigError, match="both `images` and `labels`"):
        build_source("pictures", tmp_path, images="photos/*")


def test_a_pattern_finds_endings_in_upper_case(tmp_path):
    for name in ("images/a.png", "images/b.PNG", "masks/a.PNG", "masks/b.png"):
        save(tmp_path / name, photo() if name.startswith("images") else index_mask())
    source = build_source("pictures", tmp_path, images="images/*.png", labels="masks/*.png")
    assert [(ref.id, len(ref.labels)) for ref in source.cases()] == [("a", 1), ("b", 1)]
    with pytest.raises(DataError, match="none"):  # other parts of a name are as they are written
        build_source("pictures", tmp_path, images="images/B*.png", labels="masks/*.png")


def test_files_that_systems_leave_behind_are_no_pictures(tmp_path):
    make_folder(tmp_path)
    for folder in ("images", "masks"):
        for name in (".DS_Store", "._a0.png", "Thumbs.db", "desktop.ini"):
            (tmp_path / folder / name).write_bytes(b"no picture")
    for patterns in ({}, {"images": "images/*", "labels": "masks/*"}, {"images": "images/**", "labels": "masks/**"}):
        assert [ref.id for ref in build_source("pictures", tmp_path, **patterns).cases()] == ["a0", "a1", "a2"]


def test_the_source_is_recognised(tmp_path):
    make_folder(tmp_path)
    assert detect_source(tmp_path).class_names == ("background", "class 1")
    patterns = {"images": "images/*", "labels": "masks/*", "classes": {"crack": 1}}
    assert detect_source(tmp_path, **patterns).class_names == ("background", "crack")
    with pytest.raises(DataError, match=r"is a picture\. Use the source pictures"):
        build_source("nifti", tmp_path, **patterns)


@pytest.mark.parametrize("taken", ["images", "masks"])
def test_pictures_in_deeper_folders_are_left_out_with_a_warning(tmp_path, caplog, taken):
    root = make_folder(tmp_path, count=2)
    build_source("pictures", root)
    assert not caplog.records
    save(root / taken / "more" / "b.png", photo())
    assert len(build_source("pictures", root).cases()) == 2
    assert ("1 pictures in folders below" in caplog.text) == (taken == "images")


def test_pictures_in_deeper_folders_are_taken_by_patterns(tmp_path, caplog):
    root = make_folder(tmp_path, count=2)
    save(root / "images" / "more" / "b.png", photo())
    save(root / "masks" / "more" / "b.png", index_mask())
    patterns = {"images": "images/**/*", "labels": "masks/**/*"}
    assert [ref.id for ref in build_source("pictures", root, **patterns).cases()] == ["a0", "a1", "more_b"]
    assert not caplog.records


def test_groups_are_found_by_an_expression_and_series_are_noticed(tmp_path, caplog):
    for series in ("roll7", "roll8", "roll9"):
        for number in range(2):
            save(tmp_path / "images" / f"{series}_{number:03d}.png", photo())
            save(tmp_path / "masks" / f"{series}_{number:03d}.png", index_mask())
    (hint,) = build_source("pictures", tmp_path).hints(PICTURES)
    assert "series (roll7, roll8, roll9, …)" in hint
    prepare("pictures", tmp_path, tmp_path / "s", workers=1)
    assert "series" in caplog.text
    source = build_source("pictures", tmp_path, patient=r"^(roll\d)_")
    assert [ref.patient for ref in source.cases()] == ["roll7", "roll7", "roll8", "roll8", "roll9", "roll9"]
    assert source.hints(PICTURES) == []


def test_numbered_pictures_are_no_series(tmp_path):
    assert build_source("pictures", make_folder(tmp_path)).hints(PICTURES) == []


# -- pictures without a mask -------------------------------------------------------------------------------------------


def test_pictures_without_a_mask_are_what_the_user_says(tmp_path):
    make_folder(tmp_path)
    save(tmp_path / "images" / "b.png", photo())
    with pytest.raises(DataError, match=r"label map for each of the 4 scans .* 1 has none .*images/b\.png"):
        prepare("pictures", tmp_path, tmp_path / "s", workers=1)
    assert not (tmp_path / "s").exists()
    assert len(build_source("pictures", tmp_path, unlabelled="skip").cases()) == 3
    kept = prepare("pictures", tmp_path, tmp_path / "kept", workers=1, unlabelled="keep").table
    empty = prepare("pictures", tmp_path, tmp_path / "empty", workers=1, unlabelled="empty").table
    assert kept.state.tolist() == ["labelled"] * 3 + ["unlabelled"]
    assert empty.state.tolist() == ["labelled"] * 4
    assert empty.label_sparse.tolist() == [False] * 3 + [True]
    with pytest.raises(DataError, match="differ: source_options"):
        prepare("pictures", tmp_path, tmp_path / "empty", workers=1, unlabelled="keep")
    with pytest.raises(ConfigError, match="one of keep, skip, refuse, but got 'empty'"):
        build_source("nifti", make_nnunet(tmp_path / "scans", cases=1), unlabelled="empty")


# -- classes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "names", "values"),
    [
        (index_mask(classes=3), ("class 1", "class 2"), (1, 2)),
        (index_mask() * 255, ("foreground",), (255,)),
        (index_mask().astype(bool), ("class 1",), (1,)),
        (index_mask().astype(np.uint16) * 300, ("class 300",), (300,)),
        (np.repeat(index_mask()[..., None] * 255, 3, 2), ("foreground",), (255,)),
        (painted([RED, GREEN]), ("#00ff00", "#ff0000"), (0xFF00FF00, 0xFFFF0000)),
    ],
)
def test_classes_are_what_occurs(tmp_path, mask, names, values):
    save(tmp_path / "a.png", photo())
    save(tmp_path / "a_mask.png", mask)
    source = build_source("pictures", tmp_path)
    assert source.class_names == ("background", *names)
    assert tuple(value for group in source.classes.values() for value in group)[1:] == values


@pytest.mark.parametrize("kind", ["RGB", "RGBA", "P"])
def test_colours_name_classes(tmp_path, kind):
    save(tmp_path / "a.png", photo())
    mask = Image.fromarray(painted([RED, GREEN]))
    save(tmp_path / "a_mask.png", mask.quantize(4) if kind == "P" else mask.convert(kind))
    case = load(tmp_path, classes={"dent": "#00ff00", "crack": "#FF0000"})
    assert case.class_names == ("background", "dent", "crack")
    np.testing.assert_array_equal(case.label[0], np.array([0, 2, 1])[index_mask(classes=3)])
    store = prepare("pictures", tmp_path, tmp_path / "s", workers=1, classes={"dent": "#00ff00", "crack": "#ff0000"})
    packed = 0xFF000000 + np.array([0, 0xFF0000, 0x00FF00])[index_mask(classes=3)]
    np.testing.assert_array_equal(store.native_label("a")[0], packed)


def test_a_palette_is_read_as_indices_and_255_may_be_ignored(tmp_path):
    save(tmp_path / "a.png", photo())
    mask = index_mask()
    mask[0] = 255
    image = Image.frombytes("P", (32, 24), mask.tobytes())
    image.putpalette([0, 0, 0, 128, 0, 0, *[255] * 762])
    save(tmp_path / "a_mask.png", image)
    case = load(tmp_path, ignore=255)
    assert case.class_names == ("background", "class 1")
    np.testing.assert_array_equal(case.label[0], np.where(mask == 255, IGNORED, mask))
    with pytest.raises(DataError, match=r"1 of 1 have 255, .* occur, too: 1\..*--ignore 255.*--classes defect=1,255"):
        build_source("pictures", tmp_path)


def test_mixed_masks_need_an_answer(tmp_path, capsys):
    make_folder(tmp_path)
    save(tmp_path / "masks" / "a1.png", index_mask() * 255)
    with pytest.raises(DataError, match=r"1 of 3 have 255, such as .*a1\.png, and these values occur, too: 1\."):
        build_source("pictures", tmp_path)
    assert run(["diagnose", str(tmp_path), "--workers", "1"]) == 2
    said = capsys.readouterr().err
    assert said.count("Expected") == 1  # not what other sources say of the folder
    assert "1 of 3 have 255" in said
    source = build_source("pictures", tmp_path, classes={"defect": (1, 255)})
    for ref in source.cases():
        np.testing.assert_array_equal(source.load(ref).label[0], index_mask())


def test_classes_are_colours_or_values_not_both(tmp_path):
    with pytest.raises(ConfigError, match="each class by colours, or each by values"):
        build_source("pictures", make_folder(tmp_path), classes={"crack": "#ff0000", "dent": 3})
    with pytest.raises(ConfigError, match="a colour such as #ff0000, but got '#red'"):
        build_source("pictures", tmp_path, classes={"crack": "#red"})


# -- pixels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pixels", "stored"),
    [
        ("a.png", photo((24, 32)), "uint8"),
        ("a.png", photo((24, 32, 3)), "uint8"),
        ("a.png", photo((24, 32), "uint16"), "uint16"),
        ("a.tif", photo((24, 32, 3), "uint16"), "uint16"),
        ("a.tif", photo((24, 32, 3), "float32"), "float32"),
    ],
)
@pytest.mark.parametrize("tile", [None, 16])
def test_a_store_keeps_the_values_of_the_files(tmp_path, name, pixels, stored, tile):
    path = tmp_path / "in" / "images" / name
    path.parent.mkdir(parents=True)
    tifffile.imwrite(path, pixels, photometric="rgb") if name == "a.tif" else save(path, pixels)
    save(tmp_path / "in" / "masks" / "a.png", index_mask())
    store = prepare("pictures", tmp_path / "in", tmp_path / "s", workers=1, tile=tile)
    assert np.load(tmp_path / "s" / "cases" / "a" / "image.npy").dtype == stored
    images, _ = store.stack("a")
    assert images.dtype == np.float32
    whole = np.concatenate(list(store.tiling("a").blend(images)), axis=1)
    full = 1 if pixels.dtype.kind == "f" else np.iinfo(pixels.dtype).max
    expected = np.moveaxis(pixels.reshape(24, 32, -1), 2, 0).astype(np.float32) / np.float32(full)
    np.testing.assert_allclose(whole, expected, atol=1e-7)
    np.testing.assert_array_equal(store.tiling("a").join(images), expected)
    np.testing.assert_array_equal(store.native_label("a"), index_mask()[None])
    assert store.info["format_version"] == 3
    image, label = store.samples(None)[0]
    assert image.shape[1:] == label.shape == ((16, 16) if tile else (24, 32))


def test_grey_and_colour_and_sizes_may_be_mixed(tmp_path):
    make_folder(tmp_path)
    save(tmp_path / "images" / "a1.png", photo((40, 20)))
    save(tmp_path / "masks" / "a1.png", index_mask((40, 20)))
    store = prepare("pictures", tmp_path, tmp_path / "s", workers=1)
    assert store.channels == ("red", "green", "blue")
    assert store.table.shape.tolist() == [[24, 32], [40, 20], [24, 32]]
    image, _ = store.stack("a1")
    np.testing.assert_array_equal(image[0], np.repeat(photo((40, 20))[None].astype(np.float32) / np.float32(255), 3, 0))
    with pytest.raises(DataError, match=r"Expected grey pictures, but .* is in colour"):
        load(tmp_path, "a0", channels=["grey"])


def test_alpha_is_dropped_and_said_so(tmp_path, caplog):
    make_folder(tmp_path)
    save(tmp_path / "images" / "a1.png", Image.fromarray(photo((24, 32, 4))))
    prepare("pictures", tmp_path, tmp_path / "s", workers=1)
    assert "1 pictures have transparency (alpha), which is not read" in caplog.text


def test_a_window_scales_all_pictures_alike(tmp_path, caplog):
    path = tmp_path / "in" / "images" / "a.tif"
    path.parent.mkdir(parents=True)
    pixels = np.linspace(0, 5000, 24 * 32, dtype=np.float32).reshape(24, 32)
    tifffile.imwrite(path, pixels)
    save(tmp_path / "in" / "masks" / "a.png", index_mask())
    for tile in (None, 16):
        store = prepare("pictures", tmp_path / "in", tmp_path / f"s{tile}", workers=1, window=(0, 4000), tile=tile)
        whole = store.tiling("a").join(store.stack("a")[0])
        np.testing.assert_allclose(whole[0], np.clip(pixels, 0, 4000) / 4000, atol=1e-7)
    assert "--window" not in caplog.text
    prepare("pictures", tmp_path / "in", tmp_path / "plain", workers=1)
    assert "Values of a.tif reach from 0 to 5000, where 0 is black and 1 is white" in caplog.text


def test_12_bits_in_a_file_of_16_are_noticed(tmp_path, caplog):
    make_folder(tmp_path)
    save(tmp_path / "images" / "a0.png", photo((24, 32), "uint16") // 16)
    (hint,) = build_source("pictures", tmp_path).hints(PICTURES)
    assert "reach from 0 to 0.06232" in hint
    save(tmp_path / "images" / "a0.png", photo((24, 32), "uint16"))
    assert build_source("pictures", tmp_path).hints(PICTURES) == []


@pytest.mark.parametrize("normalisation", ["min-max", "z-score"])
def test_tiles_are_scaled_by_the_numbers_of_the_whole_picture(tmp_path, normalisation):
    make_folder(tmp_path / "in")
    whole = prepare("pictures", tmp_path / "in", tmp_path / "whole", workers=1, normalisation=normalisation)
    tiles = prepare("pictures", tmp_path / "in", tmp_path / "tiles", workers=1, normalisation=normalisation, tile=16)
    joined = tiles.tiling("a0").join(tiles.stack("a0")[0])
    np.testing.assert_allclose(joined, whole.stack("a0")[0][0], atol=1e-6)


def test_pages_are_slices_of_which_some_may_be_annotated(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    for name in ("a", "b"):
        tifffile.imwrite(tmp_path / "images" / f"{name}.tif", photo((3, 24, 32)), photometric="minisblack")
        tifffile.imwrite(tmp_path / "masks" / f"{name}.tif", np.stack([index_mask()] * 3), photometric="minisblack")
    (tmp_path / "slices.csv").write_text("case,slice\na,1\nb,all\n")
    for tile, each in ((None, 1), (16, 6)):
        store = prepare(
            "pictures", tmp_path, tmp_path / f"s{tile}", workers=1, tile=tile, labelled_slices=tmp_path / "slices.csv"
        )
        state = store.table.state.reshape(2, 3, each)
        assert (state[0] == "unlabelled").all(axis=1).tolist() == [True, False, True]
        assert (state[1] == "labelled").all()
        assert store.native_label("b").shape == (3, 24, 32)
    (tmp_path / "slices.csv").write_text("case,slice\na,3\nb,all\n")
    for tile in (None, 16):
        with pytest.raises(DataError, match="annotated slices from 0 to 2, but got 3"):
            prepare(
                "pictures", tmp_path, tmp_path / "bad", workers=1, tile=tile, labelled_slices=tmp_path / "slices.csv"
            )
        assert not (tmp_path / "bad" / "cases" / "a").exists()


# -- tiles -------------------------------------------------------------------------------------------------------------


def test_tiles_are_samples_with_stable_ids(tmp_path):
    make_folder(tmp_path / "in")
    store = prepare("pictures", tmp_path / "in", tmp_path / "s", workers=1, tile=16, overlap=4)
    assert store.preprocessing == Preprocessing(axis=0, normalisation="range", tile=16, overlap=4)
    assert store.table.id[:7].tolist() == [*(f"in/a0/a0/tile16-4/{k}" for k in range(6)), "in/a1/a1/tile16-4/0"]
    assert store.tiling("a0").origins == ((0, 0), (0, 12), (0, 16), (8, 0), (8, 12), (8, 16))
    assert store.table.label_sparse.any()
    assert not store.table.label_sparse.all()
    before = (tmp_path / "s" / "cases" / "a0" / "case.json").stat().st_mtime_ns
    prepare("pictures", tmp_path / "in", tmp_path / "s", workers=1, tile=16, overlap=4)  # nothing is redone
    assert (tmp_path / "s" / "cases" / "a0" / "case.json").stat().st_mtime_ns == before
    with pytest.raises(DataError, match="tile"):
        prepare("pictures", tmp_path / "in", tmp_path / "s", workers=1, tile=20, overlap=4)


def test_copies_of_tiles_and_other_sources_of_pictures(tmp_path):
    from adawac.data.phantom import texture_source

    store = prepare(texture_source(8, size=(40, 50)), dest=tmp_path / "s", workers=1, tile=24, size=(16, 16))
    images, labels = store.stack(store.cases[0], (16, 16))
    assert (images.shape, labels.shape) == ((6, 3, 16, 16), (6, 16, 16))
    whole = prepare(texture_source(8, size=(40, 50)), dest=tmp_path / "w", workers=1)
    case = store.cases[0]
    np.testing.assert_array_equal(store.tiling(case).join(store.stack(case)[0]), whole.stack(case)[0][0])


def test_tiles_do_not_go_with_turning_or_resampling():
    for options in ({"axis": 2}, {"orientation": "RAS"}, {"spacing": (1, 1, 1)}, {"unit": "volume"}):
        with pytest.raises(ConfigError, match="with tiles"):
            Preprocessing(**{"axis": 0, "tile": 64} | options)
    with pytest.raises(ConfigError, match="`overlap` to be less than `tile`"):
        Preprocessing(axis=0, tile=64, overlap=64)
    with pytest.raises(ConfigError, match="`tile` to be 16 pixels or more"):
        Preprocessing(axis=0, tile=4)


def test_stores_of_scans_are_recorded_as_before():
    assert set(Preprocessing().to_dict()) == {
        "axis", "orientation", "spacing", "window", "clip_quantile", "normalisation", "size", "unit",
    }  # fmt: skip
    tiles = Preprocessing(axis=0, tile=64, overlap=8)
    assert Preprocessing.from_dict(tiles.to_dict()) == tiles
    assert PICTURES.override(tile=64, overlap=8).normalisation == "range"


def test_diagnosis_counts_tiles_of_a_store_and_pictures_of_a_folder(tmp_path):
    make_folder(tmp_path / "in")
    save(tmp_path / "in" / "masks" / "a2.png", index_mask() * 0)
    report = diagnose(tmp_path / "in", workers=1)
    assert (report.summary["training_slices"], report.summary["training_label_sparse"]) == (3, 1)
    store = prepare("pictures", tmp_path / "in", tmp_path / "s", workers=1, tile=16)
    report = diagnose(store, workers=1)
    assert report.summary["training_slices"] == 18
    assert report.summary["training_label_sparse"] == int(store.table.label_sparse.sum())


def test_diagnosis_in_parts_says_what_it_says_of_the_whole(tmp_path, monkeypatch):
    from adawac.data import diagnosis

    make_folder(tmp_path)
    whole = diagnose(tmp_path, workers=1).to_dict()
    monkeypatch.setattr(diagnosis, "_LARGE", 100)
    parts = diagnose(tmp_path, workers=1).to_dict()
    for one in (whole, parts):
        for case in one["cases"]:
            case["intensity"] = (case["intensity"][0], case["intensity"][-1])
        del one["summary"]["intensity_range"]
    assert parts == whole


def test_copies_are_noticed_before_a_split_separates_them(tmp_path):
    make_folder(tmp_path, count=4)
    save(tmp_path / "images" / "a3.png", photo(seed=0))
    (copies,) = [text for text in diagnose(tmp_path, workers=1).warnings if text.startswith("Copies")]
    assert "1 of 4 cases share slices with others (a3 = a0)" in copies
    assert not [text for text in diagnose(tmp_path, workers=1, patient="^(a)").warnings if text.startswith("Copies")]


def test_diagnose_says_sizes_channels_empty_ones_and_colours(tmp_path, capsys):
    for name, colours in (("a", [RED, GREEN]), ("b", [])):
        save(tmp_path / f"{name}.png", photo(seed=ord(name)))
        save(tmp_path / f"{name}_mask.png", painted(colours))
    save(tmp_path / "c.png", photo((40, 20, 3)))
    save(tmp_path / "c_mask.png", painted([], (40, 20)))
    classes = ["--classes", "crack=#ff0000", "dent=#00ff00"]
    assert run(["diagnose", str(tmp_path), "--workers", "1", *classes]) == 0
    said = capsys.readouterr().out
    assert "Pictures: 24 × 32, 40 × 20 pixels; channels red, green, blue; 66.7% of the labelled ones are empty." in said
    assert "#00ff00" in said
    assert "the most label-sparse first" not in said
    assert run(["diagnose", str(tmp_path), "--workers", "1", *classes, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [part["values"] for part in report["classes"]] == [["#ff0000"], ["#00ff00"]]
    assert report["summary"]["empty_share"] == pytest.approx(2 / 3)


def test_prepare_as_it_is_typed(tmp_path, capsys):
    make_folder(tmp_path / "in")
    save(tmp_path / "in" / "images" / "b.png", photo())
    line = ["prepare", "pictures", str(tmp_path / "in"), str(tmp_path / "s"), "--images", "images/*"]
    line += ["--labels", "masks/*", "--unlabelled", "empty", "--tile", "16", "--workers", "1"]
    assert run(line) == 0
    said = capsys.readouterr().out
    assert "4 cases, 24 samples" in said
    assert "These are the label values that occur" in said
    assert run([*line, "--overlap", "16"]) == 2
    assert "Expected --overlap to be less than --tile" in capsys.readouterr().err


def test_scans_in_space_are_not_cut_into_tiles(tmp_path):
    root = make_nnunet(tmp_path / "in", cases=1)
    with pytest.raises(DataError, match=r"a picture to cut into tiles, but .* is a scan in space"):
        prepare("nifti", root, tmp_path / "s", workers=1, axis=0, tile=16)
    assert not (tmp_path / "s").exists()
