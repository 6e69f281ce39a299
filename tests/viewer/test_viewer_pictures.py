"""Pictures in the viewer: in their colours, the right way round, with PNG masks over them."""

import gzip

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from adawac.errors import DataError
from adawac.inference.label_files import class_table, write_sidecar
from adawac.viewer import build_scene, layers
from tests.viewer.viewer_page import Reader

CORNERS = {(0, 0): (200, 20, 20), (0, 1): (20, 200, 20), (1, 0): (20, 20, 200), (1, 1): (230, 230, 40)}


@pytest.fixture
def picture(tmp_path):
    """A picture of 24 × 40 pixels with a colour in each corner, and a mask of its lower left."""
    pixels = np.zeros((24, 40, 3), dtype=np.uint8)
    for (row, column), colour in CORNERS.items():
        pixels[12 * row : 12 * row + 12, 20 * column : 20 * column + 20] = colour
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    mask = np.zeros((24, 40), dtype=np.uint8)
    mask[14:22, 3:15] = 255
    (tmp_path / "masks").mkdir()
    Image.fromarray(mask).save(tmp_path / "masks" / "photo.png")
    write_sidecar(tmp_path / "masks" / "photo.json", {"classes": class_table(["background", "crack"], [0, 255])})
    return tmp_path / "photo.png", tmp_path / "masks" / "photo.png", pixels, mask


def volume(scene, name):
    return nib.Nifti1Image.from_bytes(gzip.decompress(scene.resources[name].body))


def test_a_picture_is_a_volume_of_colours_with_its_mask(picture):
    photo, mask, pixels, classes = picture
    scene = build_scene(photo, [mask])
    image = np.asarray(volume(scene, "volumes/0.nii.gz").dataobj)
    assert image.shape == (40, 24, 1)
    for number, channel in enumerate("RGB"):
        np.testing.assert_array_equal(image[..., 0][channel].T, pixels[..., number])
    labels = np.asarray(volume(scene, "volumes/1.nii.gz").dataobj)
    np.testing.assert_array_equal(labels[..., 0].T, classes == 255)
    (layer,), (row,) = scene.description["layers"], scene.description["classes"]
    assert (layer["values"], layer["voxels"]) == ((0, 255), (24 * 40 - 96, 96))
    assert (row["value"], row["name"]) == (255, "crack")
    assert scene.description["scan"]["picture"]
    assert not scene.notes


def test_a_mask_in_colours_and_one_of_another_size(picture, tmp_path):
    photo, _, pixels, _ = picture
    Image.fromarray(np.where(pixels == 200, 255, 0).astype(np.uint8)).save(tmp_path / "colours.png")
    Image.fromarray(np.zeros((20, 40), dtype=np.uint8)).save(tmp_path / "small.png")
    scene = build_scene(photo, [tmp_path / "colours.png", tmp_path / "small.png"])
    black, *values = scene.description["layers"][0]["values"]
    assert (black, values) == (0, [0xFF0000FF, 0xFF00FF00, 0xFFFF0000])
    shown = [(row["name"], row["colour"]) for row in scene.description["classes"]]
    assert shown == [(colour, colour) for colour in ("#0000ff", "#00ff00", "#ff0000")]
    assert scene.notes == ("small.png has another shape than the scan; it is drawn where its own affine says.",)


def test_a_large_picture_is_shown_smaller_with_its_mask(picture, monkeypatch):
    photo, mask, pixels, classes = picture
    monkeypatch.setattr(layers, "_MOST_SIDE", 20)
    scene = build_scene(photo, [mask])
    image = np.asarray(volume(scene, "volumes/0.nii.gz").dataobj)
    np.testing.assert_array_equal(image[..., 0]["B"].T, pixels[::2, ::2, 2])
    np.testing.assert_array_equal(
        np.asarray(volume(scene, "volumes/1.nii.gz").dataobj)[..., 0].T, classes[::2, ::2] > 0
    )
    assert scene.notes == ("photo.png is large: one in 2 rows and columns is shown.",)


def test_a_scans_label_map_is_refused_for_a_picture_and_the_other_way_round(picture, tmp_path):
    photo, mask, _, _ = picture
    path = tmp_path / "scan.nii.gz"
    nib.save(nib.Nifti1Image(np.zeros((4, 4, 4), dtype=np.uint8), np.eye(4)), path)
    with pytest.raises(DataError, match="Expected a PNG or TIFF mask for a picture"):
        build_scene(photo, [path])
    with pytest.raises(DataError, match="Expected a NIfTI label map for a scan"):
        build_scene(path, [mask])


def test_corners_lie_where_the_picture_has_them_in_their_colours(browser, picture):
    photo, mask, _, _ = picture
    reader = Reader(browser, photo, [mask])
    try:
        shown = reader.picture()
        for (row, column), colour in CORNERS.items():
            if (row, column) != (1, 0):  # the mask is over it
                y, x = reader.canvas_place((-(10 + 20 * column), -(3 + 18 * row), 0), 0)
                np.testing.assert_allclose(shown[y, x], colour, atol=12)
        left, right = (reader.canvas_place((-x, -12, 0), 0)[1] for x in (2, 38))
        top, bottom = (reader.canvas_place((-20, -y, 0), 0)[0] for y in (2, 22))
        assert left < right
        assert top < bottom
        assert not any(reader.page.locator(part).is_visible() for part in ("#display", "#window"))
        assert "Pixels, by layer" in reader.page.locator("#classes").inner_text()
        assert "96" in reader.page.locator("#classes td").first.inner_text()
        assert "20, 200, 20" in reader.page.evaluate("adawac.stage.valueAt([-30, -4, 0]).values.join(', ')")
        assert reader.complaints == []
    finally:
        reader.close()
