"""What the viewer's page is told, and which bytes it gets."""

import gzip
import hashlib
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from adawac.data.task import class_colour
from adawac.errors import AdawacError, DataError, MissingFileError
from adawac.inference.label_files import class_table, write_labels, write_sidecar
from adawac.inference.volumes import Volume
from adawac.viewer import Scene, build_scene
from tests.data.scans import flip_bit
from tests.viewer.viewed_scans import AFFINE, BLOCK, SHAPE, block, make_scan, save


@pytest.fixture
def scan(tmp_path: Path) -> Path:
    return make_scan(tmp_path / "scan.nii.gz")


def volume(scene: Scene, number: int = 0) -> Any:
    """The volume that the page gets, as nibabel reads it."""
    body = scene.resources[scene.description["volumes"][number]].body
    data = body if isinstance(body, bytes) else body.read_bytes()
    return nib.Nifti1Image.from_bytes(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


# -- the scan ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["scan.nii", "scan.nii.gz", "SCAN.NII.GZ"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.float32, np.float64])
def test_a_plain_scan_is_given_as_it_is(tmp_path: Path, name: str, dtype: Any):
    path = save(tmp_path / name.lower(), np.ones(SHAPE, dtype)).rename(tmp_path / name)
    scene = build_scene(path)
    assert scene.description["scan"]["range"] == (1, 1)
    assert scene.resources[scene.description["volumes"][0]].body == path
    assert scene.notes == ()
    assert scene.description["scan"]["shape"] == SHAPE
    assert scene.description["scan"]["spacing"] == pytest.approx([2, 3, 4])
    assert scene.description["scan"]["millilitres"] == pytest.approx(0.024)
    assert np.linalg.inv(scene.description["scan"]["inverse"]) == pytest.approx(AFFINE)


def test_of_a_series_of_volumes_the_first_is_shown_and_that_is_said(tmp_path: Path):
    data = np.random.default_rng(0).integers(-1000, 1000, (*SHAPE, 5)).astype(np.int16)
    scene = build_scene(save(tmp_path / "cine.nii.gz", data))
    assert scene.notes == (f"cine.nii.gz has 5 volumes (shape {(*SHAPE, 5)}); this is the first of them.",)
    shown = volume(scene)
    assert (np.asarray(shown.dataobj) == data[..., 0]).all()
    assert shown.affine == pytest.approx(AFFINE)


@pytest.mark.parametrize(
    "data",
    [
        np.arange(np.prod(SHAPE), dtype=np.int32).reshape(SHAPE),  # NiiVue loses the last voxel of these
        np.arange(np.prod(SHAPE), dtype=np.uint32).reshape(SHAPE) * 7,
        np.linspace(0, 1, 24, dtype=np.float32).reshape(4, 6),
        np.linspace(0, 1, 24, dtype=np.float32).reshape(2, 3, 4, 1),
    ],
    ids=["int32", "uint32", "2D", "one volume of 4D"],
)
def test_what_niivue_would_misread_is_encoded_again(tmp_path: Path, data: Any):
    scene = build_scene(save(tmp_path / "scan.nii", data))
    assert np.asarray(volume(scene).dataobj).reshape(data.shape) == pytest.approx(data)
    assert scene.notes == ()


def test_what_is_not_finite_is_drawn_black(tmp_path: Path):
    data = np.full(SHAPE, 0.5, np.float32)
    data[0], data[1], data[2, 0, 0] = np.nan, np.inf, -3.25
    shown = np.asarray(volume(build_scene(save(tmp_path / "scan.nii", data))).dataobj)
    assert (shown[:2] == -3.25).all()
    assert (shown[3:] == 0.5).all()


def test_scale_factors_are_applied_once(tmp_path: Path):
    image = nib.Nifti1Image(np.full(SHAPE, 7, np.int32), AFFINE)
    image.header.set_slope_inter(2.0, -10.0)
    nib.save(image, tmp_path / "scan.nii")
    expected = np.asarray(nib.load(tmp_path / "scan.nii").dataobj)
    shown = volume(build_scene(tmp_path / "scan.nii"))
    assert np.asarray(shown.dataobj) == pytest.approx(expected)


def test_where_qform_and_sform_disagree_it_lies_where_nibabel_says(tmp_path: Path):
    image = nib.Nifti1Image(np.ones(SHAPE, np.int16), AFFINE)
    image.set_sform(AFFINE, code=1)
    moved = AFFINE.copy()
    moved[0, 3] += 50
    image.set_qform(moved, code=2)
    nib.save(image, tmp_path / "scan.nii")
    shown = volume(build_scene(tmp_path / "scan.nii"))
    assert shown.affine == pytest.approx(nib.load(tmp_path / "scan.nii").affine)
    assert shown.header["qform_code"] == 0


def test_a_label_map_can_be_looked_at_as_a_scan(tmp_path: Path):
    image = nib.Nifti1Image(block(), AFFINE)
    image.header.set_intent("label")
    nib.save(image, tmp_path / "labels.nii")
    assert volume(build_scene(tmp_path / "labels.nii")).header["intent_code"] == 0


@pytest.mark.parametrize("by_file", [False, True])
def test_a_dicom_series_by_its_folder_or_a_file(tmp_path: Path, by_file: bool):
    pytest.importorskip("pydicom")
    from tests.inference.series import write_series

    stored = np.random.default_rng(0).integers(-1000, 1000, SHAPE)
    paths = write_series(tmp_path / "series", stored[..., :1] if by_file else stored, backwards=True)
    scene = build_scene(paths[0] if by_file else tmp_path / "series")
    shown = volume(scene)
    assert (np.asarray(shown.dataobj) == stored[..., : shown.shape[2]]).all()
    assert shown.shape[2] == (1 if by_file else SHAPE[2])
    assert shown.header.get_zooms() == pytest.approx((0.7, 0.9, 2.5))
    assert shown.affine[:3, 3] == pytest.approx([31.5, -12.0, 40.0])  # right and front, where DICOM has left and back
    assert scene.description["scan"]["title"] == ("0001.dcm" if by_file else "series")


# -- label maps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.float32, np.float64])
def test_any_label_values_become_class_indices(tmp_path: Path, scan: Path, dtype: Any):
    data = np.zeros(SHAPE, dtype)
    data[:3], data[3:5], data[5] = 100, 20, 7
    scene = build_scene(scan, [save(tmp_path / "truth.nii.gz", data)])
    [layer] = scene.description["layers"]
    assert layer["values"] == (0, 7, 20, 100)
    assert layer["voxels"] == tuple(int((data == value).sum()) for value in layer["values"])
    shown = volume(scene, 1)
    assert (np.array(layer["values"])[np.asarray(shown.dataobj)] == data).all()
    assert shown.get_data_dtype() == np.uint8
    assert shown.affine == pytest.approx(AFFINE)
    assert [entry["value"] for entry in scene.description["classes"]] == [7, 20, 100]
    assert [entry["colour"] for entry in scene.description["classes"]] == [class_colour(k) for k in (1, 2, 3)]
    assert scene.notes == ()


def test_a_value_has_one_colour_in_all_layers(tmp_path: Path, scan: Path):
    both = block(2)
    both[0] = 9
    scene = build_scene(scan, [save(tmp_path / "a.nii", block(9)), save(tmp_path / "b.nii", both)])
    assert {entry["value"]: entry["colour"] for entry in scene.description["classes"]} == {
        2: class_colour(1),
        9: class_colour(2),
    }


def test_names_from_the_file_that_predict_writes(tmp_path: Path, scan: Path):
    path = save(tmp_path / "case.nii.gz", block(205))
    write_sidecar(tmp_path / "case.json", {"classes": class_table(["background", "heart", "lung"], [0, 205, 420])})
    scene = build_scene(scan, [path])
    assert [(entry["value"], entry["name"]) for entry in scene.description["classes"]] == [
        (205, "heart"),
        (420, "lung"),
    ]


def test_names_from_the_header_that_predict_writes(tmp_path: Path, scan: Path):
    image = nib.load(scan)
    where = Volume(shape=SHAPE, affine=AFFINE, channels=1, header=image.header, blocks=lambda: iter([]), files=(scan,))
    write_labels(
        tmp_path / "case.nii.gz", block(3), where, class_table(["background", "a", "b", "größe"], [0, 1, 2, 3])
    )
    scene = build_scene(scan, [tmp_path / "case.nii.gz"])
    assert [entry["name"] for entry in scene.description["classes"]] == ["a", "b", "größe"]
    assert scene.description["layers"][0]["values"] == (0, 3)
    assert volume(scene, 1).header["intent_code"] == 0


@pytest.mark.parametrize("labels", [{"background": 0, "liver": 1}, {"0": "background", "1": "liver"}])
def test_names_from_a_data_set(tmp_path: Path, scan: Path, labels: dict[str, Any]):
    path = save(tmp_path / "labelsTr" / "case.nii.gz", block())
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": labels}))
    assert [entry["name"] for entry in build_scene(scan, [path]).description["classes"]] == ["liver"]


@pytest.mark.parametrize(
    "text", ["{", "[]", "7", '{"classes": 7}', '{"classes": [{"index": "x"}]}', '{"classes": [1]}', "[" * 100_000]
)
def test_unrelated_json_beside_a_label_map_is_ignored(tmp_path: Path, scan: Path, text: str):
    path = save(tmp_path / "case.nii.gz", block())
    (tmp_path / "case.json").write_text(text)
    assert [entry["name"] for entry in build_scene(scan, [path]).description["classes"]] == [""]


def test_a_background_with_another_value_is_not_drawn(tmp_path: Path, scan: Path):
    path = save(tmp_path / "case.nii.gz", np.where(block() > 0, 1, 255).astype(np.uint8))
    write_sidecar(tmp_path / "case.json", {"classes": class_table(["background", "heart"], [255, 1])})
    scene = build_scene(scan, [path]).description
    assert [entry["value"] for entry in scene["classes"]] == [1]
    assert scene["layers"][0]["background"] == 255


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path, scan: Path):
    paths = [save(tmp_path / folder / "case.nii.gz", block()) for folder in ("a/truth", "b/truth", "a/predicted")]
    titles = [layer["title"] for layer in build_scene(scan, [*paths, paths[0]]).description["layers"]]
    assert titles == ["a/truth/case.nii.gz", "b/truth/case.nii.gz", "a/predicted/case.nii.gz", "a/truth/case.nii.gz"]
    assert [layer["title"] for layer in build_scene(scan, paths[1:2]).description["layers"]] == ["case.nii.gz"]


def test_it_opens_where_something_is_labelled(tmp_path: Path, scan: Path):
    empty, path = (save(tmp_path / f"{k}.nii", block(k)) for k in range(2))
    middle = [(extent.start + extent.stop - 1) / 2 for extent in BLOCK]
    assert build_scene(scan, [empty, path]).description["start"] == pytest.approx((AFFINE @ (*middle, 1))[:3])
    centre = [(side - 1) / 2 for side in SHAPE]
    assert build_scene(scan, [empty]).description["start"] == pytest.approx((AFFINE @ (*centre, 1))[:3])


def test_other_grids_are_noted(tmp_path: Path, scan: Path):
    moved = AFFINE.copy()
    moved[2, 3] += 12
    paths = [
        save(tmp_path / "same.nii", block()),
        save(tmp_path / "moved.nii", block(), moved),
        save(tmp_path / "half.nii", block()[::2], AFFINE @ np.diag([2, 1, 1, 1])),
    ]
    notes = build_scene(scan, paths).notes
    assert [note.split(";")[0] for note in notes] == [
        "moved.nii has another affine than the scan",
        "half.nii has another shape than the scan",
    ]


# -- what cannot be shown ---------------------------------------------------------------------------------------------


def truncate(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-40])
    return path


def test_a_missing_scan(tmp_path: Path):
    with pytest.raises(MissingFileError, match=r"nowhere\.nii does not exist"):
        build_scene(tmp_path / "nowhere.nii")


def test_a_broken_scan(tmp_path: Path):
    with pytest.raises(DataError, match=r"scan\.nii\.gz cannot be read .*truncated"):
        build_scene(truncate(save(tmp_path / "scan.nii.gz", np.random.default_rng(0).normal(size=SHAPE))))
    with pytest.raises(DataError, match=r"flipped\.nii\.gz cannot be read .*CRC"):
        build_scene(flip_bit(make_scan(tmp_path / "flipped.nii.gz")))
    (tmp_path / "text.nii").write_text("no NIfTI at all")
    with pytest.raises(DataError, match=r"text\.nii cannot be read"):
        build_scene(tmp_path / "text.nii")
    (tmp_path / "picture.png").write_bytes(b"png")
    with pytest.raises(AdawacError, match=r"Expected PNG in .*picture\.png"):
        build_scene(tmp_path / "picture.png")
    (tmp_path / "notes.txt").write_bytes(b"text")
    with pytest.raises(AdawacError, match=r"notes\.txt cannot be shown\. Expected a NIfTI file .* or a DICOM image"):
        build_scene(tmp_path / "notes.txt")


def test_rgb_images_are_not_scans(tmp_path: Path):
    data = np.zeros(SHAPE, np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")]))
    with pytest.raises(DataError, match=r"Expected numbers, but got voxels of type .* in .*colours\.nii"):
        build_scene(save(tmp_path / "colours.nii", data))


def test_a_folder_of_several_scans(tmp_path: Path):
    for name in ("one", "two"):
        make_scan(tmp_path / "scans" / f"{name}.nii.gz")
    with pytest.raises(DataError, match=r"Expected one scan, but .*scans has 2 \(one, two\)\. Give one of them"):
        build_scene(tmp_path / "scans")
    (tmp_path / "scans" / "two.nii.gz").unlink()
    assert build_scene(tmp_path / "scans").resources["volumes/0.nii.gz"].body == tmp_path / "scans" / "one.nii.gz"


@pytest.mark.parametrize("value", [0.5, np.nan, np.inf])
def test_fractions_in_a_label_map_are_refused(tmp_path: Path, scan: Path, value: float):
    data = block(dtype=np.float32)
    data[0, 0, 0] = value
    with pytest.raises(DataError, match=r"Expected whole numbers in a label map, but got fractions or NaN in .*l\.nii"):
        build_scene(scan, [save(tmp_path / "l.nii", data)])


def test_a_scan_is_no_label_map(tmp_path: Path, scan: Path):
    data = np.arange(np.prod(SHAPE), dtype=np.int16).reshape(SHAPE)
    with pytest.raises(DataError, match="at most 1000 classes, but got 12960 values"):
        build_scene(scan, [save(tmp_path / "other.nii", data)])


def test_other_bad_label_maps(tmp_path: Path, scan: Path):
    with pytest.raises(MissingFileError, match=r"nowhere\.nii is not there"):
        build_scene(scan, [tmp_path / "nowhere.nii"])
    with pytest.raises(DataError, match=r"Expected a 3D label map, but got shape \(30, 24, 18, 2\)"):
        build_scene(scan, [save(tmp_path / "two.nii", np.zeros((*SHAPE, 2), np.uint8))])
    (tmp_path / "labels.dcm").write_bytes(b"")
    with pytest.raises(DataError, match=r"Expected a NIfTI file \(\.nii, \.nii\.gz\), but got .*labels\.dcm"):
        build_scene(scan, [tmp_path / "labels.dcm"])


# -- what comes with the package --------------------------------------------------------------------------------------


def test_the_bundled_library_is_the_one_that_is_named():
    folder = files("adawac.viewer") / "vendor" / "niivue"
    version = (folder / "VERSION").read_text()
    assert re.match(r"@niivue/niivue \d+\.\d+\.\d+,", version)
    assert hashlib.sha256((folder / "niivue.umd.js").read_bytes()).hexdigest() in version
    assert "BSD 2-Clause" in (folder / "LICENSE").read_text()
    assert "gl-matrix" in (folder / "THIRD-PARTY.txt").read_text()


def test_the_page_has_no_inline_script_or_style_which_its_policy_would_stop():
    page = (files("adawac.viewer") / "page" / "page.html").read_text()
    assert not re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page)
    assert not re.findall(r"https?://", page)


def test_unreadable_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "closed.nii").write_text("no NIfTI at all")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(DataError, match=r"closed\.nii may not be read\. Change its permissions"):
        build_scene(tmp_path / "closed.nii")
