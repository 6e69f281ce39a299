"""Scores of one case: pictures in tiles are scored as whole pictures; a store that was prepared again is read again."""

import shutil

import numpy as np

from adawac.data.preparation import prepare
from adawac.evaluation.case_scores import Rules, score_case
from adawac.metrics import dice
from tests.data.picture_files import index_mask, make_folder, save
from tests.networks.lookup_network import DrawnCase, make_store


def test_tiles_are_scored_as_the_picture_they_come_from(tmp_path):
    make_folder(tmp_path / "in", count=1)
    store = prepare("pictures", tmp_path / "in", tmp_path / "tiles", workers=1, tile=16, overlap=8)
    truth = index_mask()
    predicted = np.roll(truth, 1, axis=0)
    tiles = np.stack(list(store.tiling("a0").cut(predicted)))
    result = score_case(store.path, "a0", tiles, Rules(unit="voxel"))
    assert result.rows[0].dice == dice(predicted == 1, truth == 1)
    assert len(result.pred) == len(tiles)


def test_ignored_pixels_of_tiles_count_nowhere(tmp_path):
    make_folder(tmp_path / "in", count=1)
    mask = index_mask()
    mask[10:] = 7
    save(tmp_path / "in" / "masks" / "a0.png", mask)
    store = prepare("pictures", tmp_path / "in", tmp_path / "s", workers=1, tile=16, ignore=7, classes={"crack": 1})
    predicted = np.ones((24, 32), dtype=np.uint8) * (np.arange(24) >= 10)[:, None] + index_mask()
    tiles = np.stack(list(store.tiling("a0").cut(np.minimum(predicted, 1).astype(np.uint8))))
    assert score_case(store.path, "a0", tiles, Rules(unit="voxel")).rows[0].dice == 1


def test_a_store_that_was_prepared_again_in_the_same_folder_is_read_again(tmp_path):
    truth = np.ones((2, 8, 8), dtype=np.uint8)
    for name, label in (("first", truth), ("second", truth - 1)):
        store = make_store(tmp_path / "store", {name: DrawnCase(prediction=truth, label=label, patient=name)})
        assert score_case(store.path, name, truth, Rules(unit="voxel")).rows[0].dice == label.max()
        shutil.rmtree(store.path)
