"""The right voxel at the right place, in the right colour: the viewer's picture, pixel by pixel."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.viewer.viewed_scans import AFFINE, SHAPE, block, save, world_box
from tests.viewer.viewer_page import Reader, like, opaque, rgb

WHOLE = tuple(slice(0, side) for side in SHAPE)

# NiiVue's number of the plane (axial, coronal, sagittal), and the axes of the world that run across and down; the
# patient's right is on the left, the front and the head are on top.
PLANES = [(0, 0, 1), (1, 0, 2), (2, 1, 2)]


def drawn(reader: Reader, plane: int, colour: Any) -> tuple[list[float], list[float]]:
    """The first and last column and row of a colour in a plane, as shares of that plane's width and height."""
    left, top, width, height = reader.tile(plane)
    inside = reader.picture()[round(top) : round(top + height), round(left) : round(left + width)]
    rows, columns = np.nonzero(like(inside, colour))
    assert len(rows) > 0.7 * (np.ptp(rows) + 1) * (np.ptp(columns) + 1)  # all of it, but for the crosshair
    return [columns.min() / width, (columns.max() + 1) / width], [rows.min() / height, (rows.max() + 1) / height]


def expected(across: int, down: int, plane: int) -> tuple[list[float], list[float]]:
    """The same from the affine alone, without a word of NiiVue's."""
    (low, high), (first, last) = world_box(), world_box(WHOLE)
    from_top = [(last - end) / (last - first) for end in (high, low)]
    from_bottom = [(end - first) / (last - first) for end in (low, high)]
    sideways = from_bottom if plane == 2 else from_top  # seen from the side, the front is on the right
    return [float(point[across]) for point in sideways], [float(point[down]) for point in from_top]


@pytest.mark.parametrize(("plane", "across", "down"), PLANES)
def test_a_label_is_drawn_where_it_lies(reader: Reader, plane: int, across: int, down: int):
    opaque(reader)
    columns, rows = drawn(reader, plane, rgb(2))
    assert columns == pytest.approx(expected(across, down, plane)[0], abs=0.015)
    assert rows == pytest.approx(expected(across, down, plane)[1], abs=0.015)


def test_in_all_planes_at_once_and_not_when_it_is_off(reader: Reader):
    opaque(reader)
    world = (AFFINE @ (5, 14, 9, 1))[:3]  # in the block, beside the crosshair
    for plane in range(3):
        assert like(reader.picture()[reader.canvas_place(world, plane)], rgb(2))
    reader.page.get_by_role("checkbox", name="1 truth.nii.gz").uncheck()
    picture = reader.picture()
    assert not like(picture, rgb(2), 30).any()
    for plane in range(3):  # the bright block of the scan itself
        red, green, blue = picture[reader.canvas_place(world, plane)]
        assert red == green == blue > 230
    reader.page.get_by_role("checkbox", name="1 truth.nii.gz").check()
    assert like(reader.picture()[reader.canvas_place(world, 0)], rgb(2))


def test_a_class_can_be_hidden(reader: Reader):
    opaque(reader)
    reader.show("axial")
    reader.page.get_by_role("checkbox", name="heart 1").uncheck()
    assert like(reader.picture(), rgb(2)).any()
    reader.page.get_by_role("checkbox", name="lung 2").uncheck()
    assert not like(reader.picture(), rgb(2), 30).any()


def test_opacity_mixes_label_and_scan(reader: Reader):
    reader.show("axial")
    world = (AFFINE @ (5, 14, 9, 1))[:3]
    pixel = reader.canvas_place(world, 0)
    reader.page.get_by_label("Opacity of truth.nii.gz").fill("40")
    assert reader.picture()[pixel] == pytest.approx(0.4 * rgb(2) + 0.6 * 255, abs=6)
    assert reader.page.locator(".slider output").inner_text() == "40 %"


def test_an_outline_leaves_the_middle_free(reader: Reader):
    opaque(reader)
    reader.show("axial")
    middle, border = ((AFFINE @ (*voxel, 9, 1))[:3] for voxel in ((7, 15), (4, 14)))
    reader.page.get_by_label("Outline of truth.nii.gz").check()
    picture = reader.picture()
    assert not like(picture[reader.canvas_place(middle, 0)], rgb(2), 30)
    assert like(picture[reader.canvas_place(border, 0)], rgb(2))


def test_a_label_map_on_another_grid_is_drawn_where_its_affine_says(browser: Any, folder: Path, tmp_path: Path):
    # The same block in other axes, in half voxels, with a large label value, as 64-bit floats.
    fine = block().repeat(2, axis=0).transpose(2, 0, 1)[:, ::-1].astype(np.float64) * 3000
    finer = AFFINE @ np.array([[0.5, 0, 0, -0.25], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    turn = np.array([[0, -1, 0, 2 * SHAPE[0] - 1], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1]])
    path = save(tmp_path / "other.nii.gz", fine, finer @ turn)
    opened = Reader(browser, folder / "scan.nii.gz", [path])
    opaque(opened)
    for plane, across, down in PLANES:
        for measured, wanted in zip(drawn(opened, plane, rgb(1)), expected(across, down, plane), strict=True):
            assert measured == pytest.approx(wanted, abs=0.02)
    assert "another shape than the scan" in opened.page.locator("#notes").inner_text()
    assert opened.complaints == []
    opened.close()


def test_hundreds_of_classes_keep_their_colours(browser: Any, folder: Path, tmp_path: Path):
    data = np.zeros(SHAPE, np.int16)
    data[2:, :, 9] = (np.arange(28 * 24).reshape(28, 24) // 2) * 7  # 336 values, from 0 to 2345
    opened = Reader(browser, folder / "scan.nii.gz", [save(tmp_path / "many.nii", data)])
    opaque(opened)
    opened.show("axial")
    picture = opened.picture()
    for voxel in [(2, 2), (2, 6), (2, 21), (10, 3), (29, 23)]:
        pixel = opened.canvas_place((AFFINE @ (*voxel, 9, 1))[:3], 0)
        assert like(picture[pixel], rgb(int(data[(*voxel, 9)]) // 7)), voxel
    red, green, blue = picture[opened.canvas_place((AFFINE @ (2, 0, 9, 1))[:3], 0)]
    assert red == green == blue  # the background shows the scan
    assert opened.complaints == []
    opened.close()


def test_the_side_of_the_patient_can_be_swapped(reader: Reader):
    opaque(reader)
    reader.show("axial")
    before = np.nonzero(like(reader.picture(), rgb(2)))[1].mean()
    reader.page.get_by_label("Patient's right on the left").uncheck()
    after = np.nonzero(like(reader.picture(), rgb(2)))[1].mean()
    left, _, width, _ = reader.tile(0)
    assert before + after == pytest.approx(2 * left + width, abs=3)
    assert abs(before - after) > 40


def test_three_dimensions_show_the_label_too(reader: Reader):
    opaque(reader)
    reader.show("3d")
    red, green, _ = np.moveaxis(reader.picture(), -1, 0)
    assert (green > red + 25).sum() > 200  # shaded and mixed with the scan, but green
    reader.page.get_by_role("checkbox", name="1 truth.nii.gz").uncheck()
    red, green, _ = np.moveaxis(reader.picture(), -1, 0)
    assert not (green > red + 5).any()
    assert green.max() > 60
