"""Tiles: where they lie, and pictures from them again."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adawac.data.tiles import Tiling
from adawac.errors import DataError

sizes = st.integers(1, 70)
tilings = st.builds(
    lambda height, width, tile, share: Tiling(height=height, width=width, tile=tile, overlap=int(share * (tile - 1))),
    sizes,
    sizes,
    st.integers(2, 30),
    st.floats(0, 1),
)


@settings(max_examples=200, deadline=None)
@given(tilings)
def test_what_is_the_same_in_all_tiles_stays_so(tiling):
    rng = np.random.default_rng(0)
    picture = rng.random((2, tiling.height, tiling.width), dtype=np.float32)
    pointwise = [np.tanh(3 * tile - 1) for tile in tiling.cut(picture)]
    assert {tile.shape for tile in pointwise} == {(2, *tiling.shape)}
    blended = np.concatenate(list(tiling.blend(pointwise)), axis=1)
    np.testing.assert_allclose(blended, np.tanh(3 * picture - 1), atol=4e-6)
    labels = rng.integers(0, 5, (tiling.height, tiling.width), dtype=np.uint8)
    joined = tiling.join(np.stack(list(tiling.cut(labels))))
    np.testing.assert_array_equal(joined, labels)
    assert len(tiling) == len(tiling.origins) == len(pointwise)


@settings(max_examples=100, deadline=None)
@given(tilings)
def test_neighbours_share_the_overlap_and_no_pixel_is_left_out(tiling):
    covered = np.zeros((tiling.height, tiling.width), dtype=int)
    height, width = tiling.shape
    for top, left in tiling.origins:
        covered[top : top + height, left : left + width] += 1
        assert top + height <= tiling.height
        assert left + width <= tiling.width
    assert covered.min() >= 1
    for starts, side in ((tiling.tops, height), (tiling.lefts, width)):
        assert all(a + side - b >= tiling.overlap for a, b in pairwise(starts))
        assert list(starts) == sorted(set(starts))


def test_tiles_that_disagree_count_less_towards_their_border():
    tiling = Tiling(height=4, width=10, tile=6, overlap=2)
    left, right = np.zeros((1, 4, 6)), np.ones((1, 4, 6))
    (band,) = tiling.blend([left, right])
    np.testing.assert_allclose(band[0, 0], [0, 0, 0, 0, 1 / 3, 2 / 3, 1, 1, 1, 1], atol=1e-6)


def test_bands_leave_as_soon_as_they_are_finished():
    tiling = Tiling(height=100, width=20, tile=10, overlap=2)
    taken = []

    def tiles():
        for number, tile in enumerate(tiling.cut(np.zeros((1, 100, 20)))):
            taken.append(number)
            yield tile

    bands = tiling.blend(tiles())
    assert next(bands).shape == (1, 8, 20)
    assert len(taken) == len(tiling.lefts)


def test_another_number_or_size_of_tiles_is_refused():
    tiling = Tiling(height=20, width=20, tile=10, overlap=0)
    with pytest.raises(DataError, match="4 tiles of a picture, but got 3"):
        tiling.join(np.zeros((3, 10, 10)))
    with pytest.raises(DataError, match=r"4 tiles of \(10, 10\), but got one of \(9, 10\)"):
        list(tiling.blend([np.zeros((1, 9, 10))]))
    with pytest.raises(DataError, match="but got no more"):
        list(tiling.blend([np.zeros((1, 10, 10))] * 3))
