"""Textures: seeded, mostly without a defect, alike in each split, and the same from a folder of files."""

import numpy as np
import pytest
from scipy.ndimage import binary_dilation

from adawac.data.phantom import texture_source, write_pictures
from adawac.data.preparation import prepare
from adawac.errors import ConfigError

SPLITS = ("train", "val", "test")


def pixels(source, number):
    return source.picture(number)[0].astype(float)


def test_one_in_ten_shows_a_defect_in_each_split():
    source = texture_source(160, size=(32, 32))
    empty = {split: [] for split in SPLITS}
    for ref in source.cases():
        empty[ref.split].append(not source.load(ref).label.any())
    assert {split: len(each) for split, each in empty.items()} == {"train": 100, "val": 20, "test": 40}
    assert {split: np.mean(each) for split, each in empty.items()} == dict.fromkeys(SPLITS, 0.9)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.8])
def test_the_share_can_be_chosen(share):
    source = texture_source(80, size=(32, 32), empty=share)
    assert np.mean([not source.picture(number)[1].any() for number in range(80)]) == pytest.approx(share, abs=0.05)


def test_both_defects_occur_and_are_visible():
    source, seen = texture_source(40, empty=0.0), set()
    for number in range(40):
        image, label = source.picture(number)
        for value in set(np.unique(label).tolist()) - {0}:
            defect = label == value
            around = binary_dilation(defect, iterations=4) & (label == 0)
            contrast = np.abs(image[defect].mean(axis=0) - image[around].mean(axis=0)).max()
            assert contrast > 12, (number, value)
            assert defect.mean() < 0.1
            seen.add(value)
    assert seen == {1, 2}


def test_pictures_depend_on_the_seed_and_their_number_alone():
    small, large = texture_source(4, seed=3), texture_source(30, seed=3)
    np.testing.assert_array_equal(pixels(small, 2), pixels(large, 2))
    assert (pixels(small, 2) != pixels(texture_source(4, seed=4), 2)).any()
    assert (pixels(small, 2) != pixels(small, 1)).any()
    assert small.options() == large.options()


def test_shift_is_another_camera_for_the_test_pictures():
    plain, shifted = texture_source(40), texture_source(40, shift=1.0)
    splits = [ref.split for ref in plain.cases()]
    train, test = splits.index("train"), splits.index("test")
    np.testing.assert_array_equal(pixels(plain, train), pixels(shifted, train))
    np.testing.assert_array_equal(plain.picture(test)[1], shifted.picture(test)[1])
    red, _, blue = (pixels(shifted, test) - pixels(plain, test)).mean(axis=(0, 1))
    assert red > blue + 10


def test_a_folder_of_files_gives_the_same_store(tmp_path):
    write_pictures(tmp_path / "files", 8, empty=0.3, size=(32, 48))
    from_files = prepare("pictures", tmp_path / "files", tmp_path / "a", workers=1)
    computed = prepare(texture_source(8, empty=0.3, size=(32, 48)), dest=tmp_path / "b", workers=1)
    assert from_files.cases == computed.cases
    for case in computed.cases:
        for one, other in zip(from_files.stack(case), computed.stack(case), strict=True):
            np.testing.assert_array_equal(one, other)
    lists = {split: (tmp_path / "files" / "splits" / f"{split}.txt").read_text().split() for split in SPLITS}
    assert {name: split for split, names in lists.items() for name in names} == dict(
        zip(computed.table.case.tolist(), computed.table.split.tolist(), strict=True)
    )


@pytest.mark.parametrize("options", [{"size": (8, 8)}, {"empty": 1.0}, {"noise": -1}, {"shift": 3}])
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError, match=f"Expected {next(iter(options))} to be"):
        texture_source(4, **options)
