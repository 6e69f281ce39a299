"""The real Synapse labels, where they are at hand: the paper's slices, from BTCV's files and from TransUNet's."""

import os
import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest

from adawac.data.phantom.phantom_files import SYNAPSE_TRAINING
from adawac.data.preparation import prepare
from tests.data.scans import write_h5

TEST = {f"case{number:04d}" for number in (1, 2, 3, 4, 8, 22, 25, 29, 32, 35, 36, 38)}
# BTCV's values of the organs, as its challenge numbers them, and the paper's organs in the order of its tables.
BTCV = {"aorta": 8, "gallbladder": 4, "left kidney": 3, "right kidney": 2, "liver": 6, "pancreas": 11, "spleen": 1}
BTCV |= {"stomach": 7}
BLOCK = 8


@pytest.fixture(scope="module")
def folder():
    path = Path(os.environ.get("ADAWAC_SYNAPSE", ""))
    if len(list(path.glob("labels/case*.nii.gz"))) != 30:
        pytest.skip("Synapse is not here; set ADAWAC_SYNAPSE to a folder with its 30 scans in images/ and labels/")
    return path


def raw_label(folder, case):
    """Return a case's label map with BTCV's values, the slices last."""
    return np.asarray(nibabel.load(folder / "labels" / f"{case}.nii.gz").dataobj)


@pytest.fixture(scope="module")
def btcv(folder, tmp_path_factory):
    """A store of the labels where BTCV's release has them; images, which take long to read, are the labels again."""
    place = tmp_path_factory.mktemp("btcv")
    for theirs in ("img", "label"):
        (place / "RawData" / theirs).mkdir(parents=True)
        for path in (folder / "labels").iterdir():
            (place / "RawData" / theirs / path.name.replace("case", theirs)).symlink_to(path.absolute())
    yield prepare("synapse", place / "RawData", place / "store", workers=1)
    shutil.rmtree(place / "store")  # a gigabyte


@pytest.fixture(scope="module")
def transunet(folder, tmp_path_factory):
    """A store of the labels in TransUNet's files; a pixel is the largest of a block's values."""
    place = tmp_path_factory.mktemp("transunet")
    (place / "files" / "train_npz").mkdir(parents=True)
    eight = np.zeros(14, np.uint8)
    eight[list(BTCV.values())] = range(1, 9)
    for path in sorted((folder / "labels").iterdir()):
        case = path.name.removesuffix(".nii.gz")
        label = np.moveaxis(eight[raw_label(folder, case)], -1, 0)
        height, width = (side // BLOCK for side in label.shape[1:])
        label = label.reshape(-1, height, BLOCK, width, BLOCK).max((2, 4)).astype(np.float32)
        image = label / 8
        if case in TEST:
            write_h5(place / "files" / "test_vol_h5" / f"{case}.npy.h5", image, label)
            continue
        for number in range(len(label)):
            file = place / "files" / "train_npz" / f"{case}_slice{number:03d}.npz"
            np.savez(file, image=image[number], label=label[number])
    return prepare("synapse", place / "files", place / "store", workers=1)


@pytest.fixture(params=["btcv", "transunet"])
def store(request):
    return request.getfixturevalue(request.param)


def test_synapse_has_the_papers_slices(store):
    train = store.samples("train").table
    assert (len(train), int((~train.label_sparse).sum())) == (2211, 1280)
    sizes = {name: len(store.samples("train", name)) for name in ("half-slice", "half-vol", "half-sparse")}
    assert sizes == {"half-slice": 1111, "half-vol": 1088, "half-sparse": 1118}
    assert set(store.table.take(store.table.split == "test").cases) == TEST


def test_foreground_begins_and_ends_where_it_does_in_the_paper(store):
    train = store.samples("train").table
    found = {}
    for case in train.cases:
        rows = train.take(train.case == case)
        dense = rows.slice[~rows.label_sparse]
        found[int(case[4:])] = (len(rows), int(dense.min()), int(dense.max()))
    assert found == SYNAPSE_TRAINING


def test_eight_of_thirteen_organs_are_kept_where_they_are(btcv, folder):
    assert btcv.class_names == ("background", *BTCV)
    others = 0
    for case in ("case0001", "case0040"):
        raw, label = raw_label(folder, case), np.asarray(btcv.volume(case).label)
        for number, value in enumerate(BTCV.values(), 1):
            np.testing.assert_array_equal(label == number, raw == value)
        others += np.isin(raw, (5, 9, 10, 12, 13)).sum()
    assert others > 1000, "organs that the paper leaves out"
