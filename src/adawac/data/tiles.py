"""Large pictures in tiles: cut with an overlap, and blended into one picture again."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from adawac.data.cases import Array
from adawac.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """Where the tiles of a picture lie: from the top left, row by row, the last of each row flush with the border.

    All tiles of a picture have one size; where the picture is smaller than a tile, they have its size.

    Attributes:
        height, width: Of the picture.
        tile: Height and width of a tile.
        overlap: What neighbours share at least, in pixels.

    Examples:
        >>> import numpy as np
        >>> tiling = Tiling(height=5, width=8, tile=4, overlap=1)
        >>> tiling.origins
        ((0, 0), (0, 3), (0, 4), (1, 0), (1, 3), (1, 4))
        >>> picture = np.random.default_rng(0).random((3, 5, 8))
        >>> bands = tiling.blend(tiling.cut(picture))
        >>> np.allclose(np.concatenate(list(bands), axis=1), picture)
        True
    """

    height: int
    width: int
    tile: int
    overlap: int

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of each tile."""
        return min(self.tile, self.height), min(self.tile, self.width)

    @property
    def tops(self) -> tuple[int, ...]:
        """The first row of each row of tiles."""
        return self._starts(self.height)

    @property
    def lefts(self) -> tuple[int, ...]:
        """The first column of each column of tiles."""
        return self._starts(self.width)

    @property
    def origins(self) -> tuple[tuple[int, int], ...]:
        """The first row and column of each tile."""
        return tuple((top, left) for top in self.tops for left in self.lefts)

    def __len__(self) -> int:
        down, across = (self._count(length) for length in (self.height, self.width))
        return down * across

    def _count(self, length: int) -> int:
        return 1 + max(0, -(-(length - self.tile) // (self.tile - self.overlap)))

    def _starts(self, length: int) -> tuple[int, ...]:
        last = max(0, length - self.tile)
        return *range(0, last, self.tile - self.overlap), last

    def cut(self, picture: Array) -> Iterator[Array]:
        """Yield the tiles (..., h, w) of a picture (..., H, W), without a copy."""
        height, width = self.shape
        for top, left in self.origins:
            yield picture[..., top : top + height, left : left + width]

    def blend(self, tiles: Iterable[Array]) -> Iterator[Array]:
        """Yield the picture in bands of finished rows (..., rows, W), of tiles (..., h, w) that come in order.

        Where tiles overlap, each counts less towards its border: what is the same in all of them stays so. No more
        than one row of tiles is held.

        Args:
            tiles: Probabilities, or other numbers that may be averaged.
        """
        (height, width), stream = self.shape, iter(tiles)
        weight = np.multiply.outer(_ramp(height, self.overlap), _ramp(width, self.overlap))
        total: Array | None = None
        for number, top in enumerate(self.tops):
            for left in self.lefts:
                tile = self._checked(next(stream, None))
                if total is None:
                    weights = np.zeros((height, self.width), np.float32)
                    total = np.zeros((*tile.shape[:-2], *weights.shape), np.float32)
                total[..., left : left + width] += tile * weight
                weights[:, left : left + width] += weight
            assert total is not None  # there is a tile
            following = self.tops[number + 1] if number + 1 < len(self.tops) else top + height
            done = following - top
            yield total[..., :done, :] / weights[:done]
            total, weights = _scrolled(total, done), _scrolled(weights, done)

    def join(self, tiles: Array) -> Array:
        """Return the picture (..., H, W) of tiles (T, ..., h, w) of class indices: each pixel of the nearest tile."""
        if len(tiles) != len(self):
            raise DataError(f"Expected {len(self)} tiles of a picture, but got {len(tiles)}. Prepare the data again.")
        picture = np.empty((*tiles.shape[1:-2], self.height, self.width), tiles.dtype)
        rows, columns = _shares(self.tops, self.shape[0]), _shares(self.lefts, self.shape[1])
        for tile, (top, left), (height, width) in zip(tiles, self.origins, product(rows, columns), strict=True):
            part = slice(height.start - top, height.stop - top), slice(width.start - left, width.stop - left)
            picture[..., height, width] = self._checked(tile)[(..., *part)]
        return picture

    def _checked(self, tile: Array | None) -> Array:
        if tile is None or tile.shape[-2:] != self.shape:
            got = "no more" if tile is None else f"one of {tile.shape[-2:]}"
            raise DataError(f"Expected {len(self)} tiles of {self.shape}, but got {got}. Prepare the data again.")
        return tile


def _ramp(length: int, overlap: int) -> Array:
    """Return what a pixel of a tile counts: it falls from 1 to nearly 0 over the overlap on both sides."""
    near = np.minimum(np.arange(length), np.arange(length)[::-1])
    return np.minimum(1, (near + 1) / (overlap + 1)).astype(np.float32)


def _scrolled(band: Array, rows: int) -> Array:
    """Return a band whose first rows are gone, with as many empty ones at its end."""
    band[..., : band.shape[-2] - rows, :] = band[..., rows:, :].copy()
    band[..., band.shape[-2] - rows :, :] = 0
    return band


def _shares(starts: tuple[int, ...], length: int) -> list[slice]:
    """Return which pixels each tile gives: up to the middle of what it shares with its neighbours."""
    middles = [(start + length + following) // 2 for start, following in pairwise(starts)]
    return list(map(slice, [0, *middles], [*middles, starts[-1] + length]))
