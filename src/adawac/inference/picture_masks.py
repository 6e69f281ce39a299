"""Pictures in, masks out: read whole or tile by tile, written as PNG with a palette, or as TIFF where there are pages.

Neither the picture nor its probabilities are ever held as a whole where the network was trained on tiles: a row of
tiles is read, segmented and blended, and only the label map stays.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.data.cases import Array, CaseRef
from adawac.data.preprocessing import as_shares
from adawac.data.sources.picture_files import open_picture
from adawac.data.sources.pictures import PictureSource
from adawac.data.sources.source import COLOUR
from adawac.data.store_writer import PictureBands, picture_tiles
from adawac.data.task import Task, class_colour
from adawac.errors import DataError
from adawac.files import beside
from adawac.inference.label_files import class_table
from adawac.inference.predictor import Predictor, Shares
from adawac.lazy import library

#: Sides of an overlay at most; larger pictures are shown smaller.
OVERLAY_SIDE = 4096
_FILL = 0.5  # how opaque a class is in an overlay


class PictureInput:
    """A picture as a network takes it, tile by tile; a whole picture is one tile.

    Attributes:
        shape: Pages, height and width.
        tiling: Where the tiles of a page lie.
    """

    def __init__(self, path: Path, task: Task):
        self._picture = open_picture(path)
        if self._picture.is_colour and len(task.channels) == 1:
            raise DataError(
                "Expected a grey picture, as the network was trained on, but it is in colour. Convert it to grey."
            )
        classes = dict(zip(task.class_names, task.label_values, strict=True))
        source = PictureSource(
            root=path.parent,
            dataset=task.dataset,
            classes=classes,
            channels=task.channels,
            preprocessing=task.preprocessing,
            refs=(),
        )
        self._task = task
        self._case = source.open(CaseRef(dataset=task.dataset, patient="", id=path.stem, images=(path,)))
        if not task.preprocessing.tile:
            self._case.check_whole("Train a network on tiles: adawac prepare pictures … --tile 512.")
        self.shape = self._case.shape
        self.tiling = task.preprocessing.tiling(self.shape)

    def tiles(self) -> Iterator[Array]:
        """Yield the tiles (C, h, w) as they are prepared for training, page by page."""
        options = self._task.preprocessing
        scalings = [options.fit_scaling(PictureBands(self._case, k)) for k in range(len(self._task.channels))]
        for image, _ in picture_tiles(self._case, self.tiling):
            if not np.isfinite(image).all():
                raise DataError("Expected finite values, but got NaN or infinity. Export the picture again.")
            yield np.stack([scale(channel) for scale, channel in zip(scalings, image[:, 0], strict=True)])

    def shown(self, page: int = 0, most: int = OVERLAY_SIDE) -> npt.NDArray[np.uint8]:
        """Return a page as it is looked at, (h, w, 3): rows and columns are left out until it fits."""
        image = self._picture.preview(page, math.ceil(max(self.shape[1:]) / most), 3)
        shares = as_shares(np.moveaxis(image, 0, 2), self._picture.full_range)
        return np.asarray((shares.clip(0, 1) * 255).round().astype(np.uint8))


#: Called with the first row of a band, its classes (rows, W) and its probabilities (K, rows, W) in parts of `FULL`.
BandWatch = Callable[[int, Array, Shares], None]


def segment(
    predictor: Predictor, picture: PictureInput, watch: Callable[[int, int], None], measure: BandWatch | None = None
) -> Array:
    """Return the classes of every pixel, (pages, H, W); `watch` is told rows, done and in all, of all pages."""
    pages, height, width = picture.shape
    labels: Array | None = None
    done = 0
    watch(done, pages * height)
    for band, shares in _bands(predictor, picture, measure is not None):
        if labels is None:
            labels = np.empty((pages * height, width), band.dtype)
        labels[done : done + len(band)] = band
        if measure is not None and shares is not None:
            measure(done, band, shares)
        done += len(band)
        watch(done, pages * height)
    assert labels is not None  # a picture has a tile
    return labels.reshape(pages, height, width)


def _bands(predictor: Predictor, picture: PictureInput, probabilities: bool) -> Iterator[tuple[Array, Shares | None]]:
    if probabilities:
        yield from predictor.blend_shares(picture.tiles(), picture.tiling)
    else:
        yield from ((band, None) for band in predictor.blend(picture.tiles(), picture.tiling))


def band_rows(predictor: Predictor, picture: PictureInput) -> Iterator[Array]:
    """Yield the classes of a picture as slices of one row each, (rows, 1, W)."""
    return (band[:, None] for band in predictor.blend(picture.tiles(), picture.tiling))


@contextmanager
def probability_pages(path: Path, shape: Sequence[int], num_classes: int) -> Iterator[BandWatch]:
    """Yield what writes the probabilities of a picture (pages, H, W) band by band.

    The file is a TIFF with a page for each class, and so on for each page of the picture, of 16-bit shares.
    """
    tifffile = library("tifffile", "adawac[pictures]")
    pages, height, width = shape
    with beside(path) as temporary:
        stored = tifffile.memmap(
            temporary, shape=(pages * num_classes, height, width), dtype=np.uint16, photometric="minisblack"
        )

        def write(start: int, labels: Array, shares: Shares) -> None:
            page, row = divmod(start, height)
            stored[page * num_classes : (page + 1) * num_classes, row : row + len(labels)] = shares

        try:
            yield write
            stored.flush()
        finally:
            del stored  # Windows replaces no file that is mapped


def write_picture_shares(path: Path, shares: Shares) -> None:
    """Write 16-bit shares (pages, H, W), such as entropies: 65535 stands for 1."""
    with beside(path) as temporary:
        (_write_tiff if path.suffix == ".tif" else _write_png)(temporary, shares, None)


# -- masks -------------------------------------------------------------------------------------------------------------


def mask_ending(path: Path) -> str:
    """Return how the mask of a picture ends: a stack of pages is TIFF, anything else PNG."""
    try:
        return ".tif" if open_picture(path).shape[0] > 1 else ".png"
    except DataError:  # it is named when the picture's turn comes
        return ".png"


def mask_classes(task: Task, values: Sequence[int]) -> list[dict[str, Any]]:
    """Return index, value in the mask, name and colour of each class.

    Where the data set names classes by colours, these are the mask's palette, and its values are indices into it.
    """
    coloured = any(value >= COLOUR for value in values)
    table = class_table(task.class_names, range(len(values)) if coloured else values)
    for row, value in zip(table, values, strict=True):
        row["colour"] = (
            f"#{value - COLOUR:06x}" if coloured else class_colour(row["index"]) if row["index"] else "#000000"
        )
    return table


def write_mask(path: Path, labels: Array, classes: Sequence[Mapping[str, Any]]) -> None:
    """Write label maps (pages, H, W) with the values of the classes, as a palette of their colours where 8 bits do."""
    values = np.array([row["value"] for row in classes])
    if values.min() < 0 or values.max() > np.iinfo(np.uint16).max:
        raise DataError(
            f"Expected label values from 0 to 65535 for a mask, but got {values.min()} to {values.max()}. Write class "
            "indices: `values='index'`."
        )
    small = values.max() <= np.iinfo(np.uint8).max
    table = values.astype(np.uint8 if small else np.uint16)
    pages = labels if np.array_equal(table, np.arange(len(table))) and labels.dtype == table.dtype else table[labels]
    with beside(path) as temporary:
        (_write_tiff if path.suffix == ".tif" else _write_png)(temporary, pages, _palette(classes) if small else None)


def _palette(classes: Sequence[Mapping[str, Any]]) -> npt.NDArray[np.uint8]:
    """Return (256, 3) the colours of the values."""
    palette = np.zeros((256, 3), dtype=np.uint8)
    for row in classes:
        palette[row["value"]] = list(bytes.fromhex(row["colour"][1:]))
    return palette


def _write_png(path: Path, pages: Array, palette: npt.NDArray[np.uint8] | None) -> None:
    from PIL import Image

    (page,) = pages
    if palette is None:
        drawn = Image.fromarray(page)
    else:
        drawn = Image.frombuffer("P", page.shape[::-1], np.ascontiguousarray(page), "raw", "P", 0, 1)
        drawn.putpalette(palette.tobytes())
    drawn.save(path, format="PNG")


def _write_tiff(path: Path, pages: Array, palette: npt.NDArray[np.uint8] | None) -> None:
    tifffile = library("tifffile", "adawac[pictures]")
    colours = {} if palette is None else {"colormap": palette.T.astype(np.uint16) * 257}
    kind = "minisblack" if palette is None else "palette"
    with tifffile.TiffWriter(path) as file:
        for page in pages:
            file.write(page, photometric=kind, metadata=None, contiguous=False, **colours)


def write_overlay(path: Path, picture: PictureInput, labels: Array, classes: Sequence[Mapping[str, Any]]) -> None:
    """Write the first page with its classes in colour over it, as a JPEG to look at."""
    from PIL import Image

    image = picture.shown()
    step = math.ceil(max(picture.shape[1:]) / OVERLAY_SIDE)
    shown = labels[0, ::step, ::step]
    for row in classes[1:]:
        colour = np.array(list(bytes.fromhex(row["colour"][1:])))
        inside = shown == row["index"]
        image[inside] = ((1 - _FILL) * image[inside] + _FILL * colour).round()
    with beside(path) as temporary:
        Image.fromarray(image).save(temporary, format="JPEG", quality=92, subsampling=0)
