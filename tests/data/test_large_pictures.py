"""Pictures that do not fit into memory: cut into tiles part by part."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import tifffile
from PIL import Image

from adawac.data.preparation import prepare
from adawac.data.sources import picture_files
from adawac.data.store import Store

_PREPARE = """
import resource, sys
from adawac.data.preparation import prepare
prepare("pictures", sys.argv[1], sys.argv[2], tile=512, overlap=64, workers=1, progress=False, classes={"spot": 1})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def pattern(row, column):
    """Return values that tell where they stand."""
    return (row * 7 + column * 3) % 251


def write_large(folder, side, compression):
    """Write images/a.tif in colour, in tiles, part by part, and masks/a.png with a spot."""
    (folder / "images").mkdir(parents=True)
    (folder / "masks").mkdir()
    step = 256
    columns = np.arange(-(-side // step) * step)

    def tiles():
        for top in range(0, side, step):
            rows = pattern(np.arange(top, top + step)[:, None], columns).astype(np.uint8)
            for left in range(0, side, step):
                yield np.repeat(rows[:, left : left + step, None], 3, axis=2)

    path = folder / "images" / "a.tif"
    options = {"tile": (step, step), "compression": compression, "photometric": "rgb"}
    tifffile.imwrite(path, tiles(), shape=(side, side, 3), dtype=np.uint8, **options)
    mask = np.zeros((side, side), dtype=np.uint8)
    mask[side // 2 : side // 2 + 40, 10:50] = 1
    Image.fromarray(mask).save(folder / "masks" / "a.png", compress_level=1)
    return folder


def check(store, side):
    """Compare some tiles with what was written."""
    tiling, position = store.tiling("a"), 0
    assert (tiling.height, tiling.width) == (side, side)
    for position in {0, len(tiling) // 2, len(tiling) - 1}:
        image, label = store.read("a", position)
        top, left = tiling.origins[position]
        rows, columns = np.mgrid[top : top + 512, left : left + 512]
        np.testing.assert_array_equal(np.rint(image[1] * 255), pattern(rows, columns))
        assert label.shape == (512, 512)
    table = store.table
    assert table.label_dense.sum() in (1, 2, 4)
    assert len(table) == len(tiling)


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_tiles_are_cut_with_little_memory(tmp_path, compression):
    side = 3000
    folder = write_large(tmp_path / "in", side, compression)
    prepare("pictures", folder, tmp_path / "warm", workers=1, tile=512, overlap=64)
    tracemalloc.start()
    store = prepare("pictures", folder, tmp_path / "s", workers=1, tile=512, overlap=64)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    check(store, side)
    assert peak < 3 * side * side * 4 / 1.5  # the picture as it is in other stores


@pytest.mark.slow
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_20000_pixels_a_side_take_less_than_2_gib(tmp_path, compression):
    side = 20_000
    folder = write_large(tmp_path / "in", side, compression)
    line = [sys.executable, "-c", _PREPARE, str(folder), str(tmp_path / "s")]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    check(Store(tmp_path / "s"), side)
    assert int(done.stdout) * 1024 < 2 << 30


def test_a_preview_holds_a_band_of_the_picture_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(picture_files, "_PREVIEWED", 1 << 16)
    side = 2048
    picture = picture_files.open_picture(write_large(tmp_path, side, None) / "images" / "a.tif")
    tracemalloc.start()
    try:
        shown = picture.preview(0, 16, 3)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(shown[0], pattern(np.arange(0, side, 16)[:, None], np.arange(0, side, 16)))
    assert most < side * side * 3 / 2
