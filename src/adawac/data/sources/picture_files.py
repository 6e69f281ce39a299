"""Picture files to arrays: PNG, JPEG, BMP and TIFF, whole or row by row, with errors that name the file and the fix."""

import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adawac.data.cases import Array
from adawac.data.sources.scan_files import check_file
from adawac.errors import DataError, reading
from adawac.lazy import library

#: The endings of the files that are read, and what must be inside.
ENDINGS = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".bmp": "BMP",
    ".tif": "TIFF",
    ".tiff": "TIFF",
}
_REFUSED = (".gif", ".webp", ".jp2", ".j2k", ".heic", ".avif", ".svs", ".ndpi", ".mrxs")
_MAGIC = {
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",
    b"MM\0+": "TIFF",
    b"GIF8": "GIF",
    b"RIFF": "WebP",
    b"%PDF": "PDF",
}
_FORMATS = "PNG, JPEG, BMP or TIFF"
# A file that promises more bytes than this, and than compression can make of it, is damaged or hostile.
_SMALL, _BEST_RATIO = 1 << 28, {"PNG": 1032, "BMP": 128}
_BEST_OF_OTHERS = 1 << 15
# What is decoded as a whole, twice of which lies in memory: a picture, or a strip or tile of a TIFF.
_MOST_BITS = 1 << 32
_MOST_PAGES = 1 << 14
# Pixels that are read at once for a preview.
_PREVIEWED = 1 << 22
_LONGEST_SIDE = 1 << 20
_LONGEST_EXIF = 1 << 16
# From how a picture lies in its file (EXIF) to how it is shown.
_TURNS: dict[int, Callable[[Array], Array]] = {
    2: lambda rows: rows[:, ::-1],
    3: lambda rows: rows[::-1, ::-1],
    4: lambda rows: rows[::-1],
    5: lambda rows: rows.swapaxes(0, 1),
    6: lambda rows: rows[::-1].swapaxes(0, 1),
    7: lambda rows: rows[::-1, ::-1].swapaxes(0, 1),
    8: lambda rows: rows[:, ::-1].swapaxes(0, 1),
}
_SIDEWAYS = (5, 6, 7, 8)
_ORIENTATION = 274  # the tag of EXIF and of TIFF


@dataclass(frozen=True, kw_only=True)
class PictureFile:
    """A picture that has been opened.

    Attributes:
        path: The file.
        kind: PNG, JPEG, BMP or TIFF.
        shape: Pages, height and width, as it is shown.
        samples: Values of a pixel: 1 for grey, and for indices of a palette; 3 for colour.
        levels: The largest value of its type, such as 255; None for floating-point numbers.
        alpha: Whether the file has transparency, which is not read.
        palette: (256, 3) the colours that its values stand for; None for other pictures.
        read: Reads rows of a page, (rows, width, values of a pixel), given the page, the first row and the one
            behind the last; alpha, where it is a value of its own, comes behind the samples.
    """

    path: Path
    kind: str
    shape: tuple[int, int, int]
    samples: int
    levels: int | None
    alpha: bool
    palette: Array | None
    read: Callable[[int, int, int], Array]

    @property
    def is_colour(self) -> bool:
        """Whether it needs three channels."""
        return self.samples == 3 or (self.palette is not None and bool(np.ptp(self.palette, axis=1).any()))

    def rows(self, page: int, start: int, stop: int) -> Array:
        """Return rows of a page without alpha, (rows, width, samples)."""
        return self.read(page, start, stop)[..., : self.samples]

    def image_rows(self, page: int, start: int, stop: int, channels: int) -> Array:
        """Return rows as an image, (channels, rows, width), in the file's own type; a palette's colours are 8 bit."""
        rows = self.rows(page, start, stop)
        if self.palette is not None:
            rows = self.palette[rows[..., 0]]
        if channels == 3 and rows.shape[2] == 1:
            rows = np.repeat(rows, 3, axis=2)
        return np.ascontiguousarray(np.moveaxis(rows[..., :channels], 2, 0))

    def preview(self, page: int, step: int, channels: int) -> Array:
        """Return every `step`-th row and column of a page as an image, (channels, h, w), reading a band at a time."""
        _, height, width = self.shape
        band = max(step, _PREVIEWED // width // step * step)
        bands = ((start, min(start + band, height)) for start in range(0, height, band))
        kept = [self.image_rows(page, *ends, channels)[:, ::step, ::step].copy() for ends in bands]  # not all of it
        return np.concatenate(kept, axis=1)

    @property
    def full_range(self) -> int | None:
        """What stands for 1 in `image_rows`; None for floating-point numbers."""
        return 255 if self.palette is not None else self.levels


def is_picture(path: Path) -> bool:
    """Say whether a file is called as pictures are, also those of formats that are refused with the reason."""
    return path.suffix.lower() in {*ENDINGS, *_REFUSED}


def picture_stem(name: str) -> str:
    """Return a file's name without the ending of a picture."""
    return Path(name).stem if is_picture(Path(name)) else name


def open_picture(path: Path) -> PictureFile:
    """Open a picture and look at its header; pixels are read when they are asked for."""
    check_file(path, "a picture")
    kind = _check_kind(path)
    with _readable(path):
        return _open_tiff(path) if kind == "TIFF" else _open_with_pillow(path, kind)


def _check_kind(path: Path) -> str:
    with _readable(path), path.open("rb") as file:
        head = file.read(16)
    inside = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")
    expected = ENDINGS.get(path.suffix.lower())
    if not head:
        raise DataError(f"Expected a picture, but {path} is empty. Copy or download it again.")
    if expected is None:
        raise DataError(f"Expected {_FORMATS}, but got {path}. Save it as PNG, or change the pattern.")
    if inside != expected:
        what = f"a {inside} file" if inside else "no picture that is known"
        advice = "Give it the right ending" if inside in ENDINGS.values() else "Save it as PNG"
        raise DataError(f"Expected {expected} in {path}, as its name ends, but it is {what}. {advice}.")
    return expected


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what a library raises on a broken file into a `DataError`."""
    with reading(
        lambda reason: DataError(
            f"Expected a picture, but {path} cannot be read ({reason}). It may be truncated: copy or download it again."
        )
    ):
        yield


def _check_size(
    path: Path, kind: str, height: int, width: int, bits_a_pixel: int, pages: int = 1, whole: bool = True
) -> None:
    """Refuse what no picture is, and what its file cannot hold, before memory is taken for it."""
    if min(height, width) < 2:
        raise DataError(
            f"Expected a picture of at least 2 × 2 pixels, but got {height} × {width} in {path}. Leave it out."
        )
    size, promised = path.stat().st_size, height * width * bits_a_pixel * pages // 8
    ratio = _BEST_RATIO.get(kind, _BEST_OF_OTHERS)
    if promised > max(_SMALL, ratio * size) or max(height, width) > _LONGEST_SIDE:
        raise DataError(
            f"Expected a picture that its file can hold, but {path} promises {height} × {width} pixels in {size} "
            "bytes. It is damaged, or made to fill the memory: leave it out."
        )
    if whole and height * width * bits_a_pixel > _MOST_BITS:
        raise DataError(
            f"Expected at most {_MOST_BITS // bits_a_pixel} pixels in a file that is decoded as a whole, but got "
            f"{height} × {width} in {path}. Save it as TIFF in tiles or strips, which is read in parts."
        )


# -- PNG, JPEG and BMP -------------------------------------------------------------------------------------------------

# Types of colours in a PNG.
_PNG_GREY, _PNG_RGB, _PNG_GREY_ALPHA = 0, 2, 4
# The modes of Pillow that are read: how many values of a pixel count.
_MODES = {"1": 1, "L": 1, "P": 1, "I;16": 1, "I;16B": 1, "I": 1, "LA": 1, "PA": 1, "RGB": 3, "RGBA": 3}


def _open_with_pillow(path: Path, kind: str) -> PictureFile:
    with _pillow_file(path, kind) as image:
        mode, (width, height) = image.mode, image.size
        _check_pillow(path, image)
        depth, colour = _png_type(path) if kind == "PNG" else (1 if mode == "1" else 8, _PNG_GREY)
        samples = 1 if colour == _PNG_GREY_ALPHA else _MODES[mode]
        _check_size(path, kind, height, width, samples * depth)
        turn = _exif_turn(image, path)
        return PictureFile(
            path=path,
            kind=kind,
            shape=(1, width, height) if turn in _SIDEWAYS else (1, height, width),
            samples=samples,
            levels=1 if mode == "1" else 255 if mode in ("P", "PA") else 2**depth - 1,
            alpha=mode in ("LA", "PA", "RGBA") or "transparency" in image.info,
            palette=_palette(image.getpalette("RGB")) if mode in ("P", "PA") else None,
            read=_PillowRows(path, kind, (depth, colour), turn),
        )


def _check_pillow(path: Path, image: Any) -> None:
    if image.mode not in _MODES:
        raise DataError(
            f"Expected a grey picture or one in RGB, but got {image.mode} in {path}. Convert it to RGB and save it as "
            "PNG."
        )
    if image.format == "PNG" and image.is_animated:
        raise DataError(
            f"Expected one picture, but {path} is an animation of {image.n_frames}. Save its frames one by one."
        )


def _png_type(path: Path) -> tuple[int, int]:
    """Return bits of a value, and the type of colours."""
    with path.open("rb") as file:
        depth, colour = struct.unpack("BB", file.read(26)[24:26])
    return depth, colour


class _PillowRows:
    """Decodes a picture when rows of it are asked for first, and keeps it."""

    def __init__(self, path: Path, kind: str, type_: tuple[int, int], turn: int):
        self._path, self._kind, self._turn = path, kind, turn
        self._depth, self._colour = type_
        self._pixels: Array | None = None

    def __call__(self, page: int, start: int, stop: int) -> Array:
        if self._pixels is None:
            with _readable(self._path):
                self._pixels = _turned(self._decode(), self._turn)
        return self._pixels[start:stop]

    def _decode(self) -> Array:
        if self._depth == 16 and self._colour != _PNG_GREY:
            return _decode_deep(self._path, self._colour)
        with _pillow_file(self._path, self._kind) as image:
            return _decode(image, self._depth)


def _pillow_file(path: Path, kind: str) -> Any:
    """Open a file with the plugin of its format alone: `Image.open` tries others, and warns of large pictures."""
    from PIL.BmpImagePlugin import BmpImageFile
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile

    plugins: dict[str, Any] = {"PNG": PngImageFile, "JPEG": JpegImageFile, "BMP": BmpImageFile}
    try:
        return plugins[kind](path)
    except SyntaxError as error:
        raise DataError(
            f"Expected a {kind} file, but the header of {path} is damaged, or says that it has no pixels. Copy or "
            "download it again."
        ) from error


def _exif_turn(image: Any, path: Path) -> int:
    """Return how a picture is to be turned; in a PNG that may stand behind the pixels, which are not read for it."""
    from PIL.Image import Exif

    if image.format == "PNG":
        exif = Exif()
        exif.load(_png_chunk(path, b"eXIf"))
    else:
        exif = image.getexif()
    turn = exif.get(_ORIENTATION, 1)
    return turn if isinstance(turn, int) else 1


def _png_chunk(path: Path, name: bytes) -> bytes:
    """Return what the first chunk of this name holds."""
    with path.open("rb", buffering=0) as file:  # which would read all that is passed over
        file.seek(8)
        while len(head := file.read(8)) == 8:
            length = int.from_bytes(head[:4], "big")
            if head[4:] == name:
                return file.read(min(length, _LONGEST_EXIF))
            file.seek(length + 4, 1)
    return b""


def _decode(image: Any, depth: int) -> Array:
    """Return (H, W, values of a pixel); a grey PNG of few bits as its file has it."""
    pixels = np.asarray(image)
    if image.mode in ("I", "I;16", "I;16B"):
        pixels = pixels.astype(np.uint16)
    if image.mode == "1":
        pixels = pixels.astype(np.uint8)
    if depth < 8 and image.mode == "L":  # Pillow has spread them over 8 bits
        pixels = pixels // (255 // (2**depth - 1))
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _decode_deep(path: Path, colour: int) -> Array:
    """Return a PNG of 16 bits, in colour or with alpha, of which Pillow decodes 8 at a time: the upper or the lower."""
    if colour == _PNG_GREY_ALPHA:  # two bytes of grey, two of alpha
        return _decode_as(path, "RGBA", "RGBA").view(">u2").astype(np.uint16)
    mode = "RGB" if colour == _PNG_RGB else "RGBA"
    upper, lower = (_decode_as(path, mode, f"{mode};16{order}").astype(np.uint16) for order in "BL")
    return upper << np.uint16(8) | lower


def _decode_as(path: Path, mode: str, raw_mode: str) -> Array:
    """Return the pixels of a PNG that are taken for those of another type with as many bits."""
    with _pillow_file(path, "PNG") as image:
        image._mode = mode
        image.tile = [(*tile[:3], raw_mode) for tile in image.tile]
        return np.asarray(image)


def _palette(colours: Sequence[int] | Array | None) -> Array:
    """Return (256, 3) colours; those that a file does not have are black."""
    table = np.zeros((256, 3), dtype=np.uint8)
    known = np.array([] if colours is None else colours, dtype=np.uint8).reshape(-1, 3)[:256]
    table[: len(known)] = known
    return table


def _turned(pixels: Array, turn: int) -> Array:
    return _TURNS[turn](pixels) if turn in _TURNS else pixels


# -- TIFF --------------------------------------------------------------------------------------------------------------

_GREY_INVERTED, _GREY, _RGB, _PALETTE, _YCBCR = 0, 1, 2, 3, 6  # photometric interpretations


@contextmanager
def _tifffile(path: Path) -> Iterator[Any]:
    """Open a TIFF; tifffile logs every tag that it does not understand, which is dropped, and pages that it misses."""
    missed: list[str] = []

    def note(record: logging.LogRecord) -> bool:
        missed.extend([text] if "TiffPages" in (text := record.getMessage()) else [])
        return False

    tifffile, logger = library("tifffile", "adawac[pictures]"), logging.getLogger("tifffile")
    logger.addFilter(note)
    try:
        with tifffile.TiffFile(path) as file:
            yield file
        if missed:
            raise ValueError(missed[0])
    finally:
        logger.removeFilter(note)


def _open_tiff(path: Path) -> PictureFile:
    with _tifffile(path) as file:
        pages = _full_pages(path, file)
        first = pages[0]
        height, width = int(first.imagelength), int(first.imagewidth)
        samples, alpha = _tiff_samples(path, first)
        chunk = max(1, int(np.prod([int(side) for side in first.chunks])))
        contiguous = bool(first.is_memmappable)
        turn = int(first.tags.valueof(_ORIENTATION, 1))
        whole = (not contiguous and chunk * max(_bits(first)) > _MOST_BITS) or turn in _TURNS
        _check_size(path, "TIFF", height, width, sum(_bits(first)), len(pages), whole=whole)
        numbers = [page.index for page in pages]
        colours = first.colormap if first.photometric == _PALETTE else None
        palette = None if colours is None else _palette((colours.T >> 8 if colours.max() > 255 else colours.T).ravel())
    kind = first.dtype.kind
    levels = None if kind == "f" else 1 if kind == "b" else 2 ** _bits(first)[0] - 1
    return PictureFile(
        path=path,
        kind="TIFF",
        shape=(len(pages), width, height) if turn in _SIDEWAYS else (len(pages), height, width),
        samples=samples,
        levels=levels,
        alpha=alpha,
        palette=palette,
        read=_TiffRows(path, tuple(numbers), levels, turn),
    )


def _full_pages(path: Path, file: Any) -> list[Any]:
    """Return the pages of a TIFF without its thumbnails; they must be alike."""
    if len(file.pages) > _MOST_PAGES:  # counting them notices pages that follow one another in a circle
        raise DataError(f"Expected at most {_MOST_PAGES} pages, but {path} has {len(file.pages)}. Split it.")
    pages = [page for number, page in enumerate(file.pages) if not number or not page.is_reduced]
    first = pages[0]
    for page in pages[1:]:
        if (page.shape, page.dtype, page.photometric) != (first.shape, first.dtype, first.photometric):
            raise DataError(
                f"Expected pages of one size and type, but {path} has {first.shape} ({first.dtype}) and {page.shape} "
                f"({page.dtype}). Save the pages as separate files."
            )
    return pages


def _tiff_samples(path: Path, page: Any) -> tuple[int, bool]:
    """Return how many values of a pixel count, and whether there is alpha beside them."""
    if page.dtype is None or page.dtype.kind not in "buf" or page.imagedepth > 1:
        raise DataError(
            f"Expected 8 or 16 bits without a sign, or floating-point numbers, but got {page.dtype} in {path}. "
            "Convert it."
        )
    colours = {_GREY_INVERTED: 1, _GREY: 1, _PALETTE: 1, _RGB: 3, _YCBCR: 3}.get(page.photometric)
    if colours is None:
        name = getattr(page.photometric, "name", page.photometric)
        raise DataError(f"Expected a grey picture or one in RGB, but got {name} in {path}. Convert it to RGB.")
    extra = page.samplesperpixel - colours
    if extra not in (0, 1):
        raise DataError(
            f"Expected grey or RGB, with alpha or without, but got {page.samplesperpixel} values a pixel in {path}. "
            "Choose three of its channels, and save them as RGB."
        )
    return colours, extra == 1


def _bits(page: Any) -> tuple[int, ...]:
    """Return the bits of each value of a pixel."""
    bits = page.bitspersample
    return (bits,) * int(page.samplesperpixel) if isinstance(bits, int) else tuple(bits)


@dataclass(frozen=True)
class _TiffRows:
    """Reads rows of a TIFF: mapped where its pixels lie one behind the other, else by strips or tiles."""

    path: Path
    pages: tuple[int, ...]
    levels: int | None
    turn: int

    def __call__(self, page: int, start: int, stop: int) -> Array:
        with _readable(self.path), _tifffile(self.path) as file:
            ifd = file.pages[self.pages[page]]
            if self.turn in _TURNS:
                rows = _turned(self._read(ifd, 0, int(ifd.imagelength)), self.turn)[start:stop]
            else:
                rows = self._read(ifd, start, stop)
            if ifd.photometric == _GREY_INVERTED:
                rows = np.array(self.levels or 1, dtype=rows.dtype) - rows[..., :1]
        return rows.astype(rows.dtype.newbyteorder("="), copy=False)

    def _read(self, page: Any, start: int, stop: int) -> Array:
        rows = self._mapped(page, start, stop) if page.is_memmappable else _decode_rows(page, start, stop)
        return rows.astype(np.uint8) if rows.dtype.kind == "b" else rows

    def _mapped(self, page: Any, start: int, stop: int) -> Array:
        mapped = np.memmap(self.path, page.parent.byteorder + page.dtype.char, "r", page.dataoffsets[0], page.shape)
        if page.axes == "SYX":
            return np.array(np.moveaxis(mapped[:, start:stop], 0, 2))
        rows = np.array(mapped[start:stop])
        return rows[..., None] if rows.ndim == 2 else rows


def _decode_rows(page: Any, start: int, stop: int) -> Array:
    """Decode the strips or tiles that rows lie in; (rows, width, values of a pixel)."""
    rows = np.zeros((stop - start, int(page.imagewidth), int(page.samplesperpixel)), page.dtype)
    length = int(page.tilelength or page.rowsperstrip)
    across = -(-int(page.imagewidth) // int(page.tilewidth)) if page.is_tiled else 1
    down = -(-int(page.imagelength) // length)
    planes = int(page.samplesperpixel) if page.planarconfig == 2 else 1
    for plane in range(planes):
        for index in range(start // length * across, min(down, -(-stop // length)) * across):
            _decode_segment(page, plane * down * across + index, rows, start)
    return rows


def _decode_segment(page: Any, index: int, rows: Array, start: int) -> None:
    """Decode a strip or tile into the rows that begin at `start`."""
    file = page.parent.filehandle
    file.seek(page.dataoffsets[index])
    content = file.read(page.databytecounts[index])
    try:
        segment, (plane, _, top, left, _), _ = page.decode(content, index, jpegtables=page.jpegtables)
    except ValueError as error:
        if "imagecodecs" in str(error):  # tifffile decodes some ways of compression alone
            library("imagecodecs", "adawac[pictures]")
        raise
    if segment is None:
        return
    width = min(segment.shape[2], rows.shape[1] - left)  # a tile may reach beyond the border
    first, last = max(start, top), min(start + len(rows), top + segment.shape[1])
    part = segment[0, first - top : last - top, :width]
    channels = slice(plane, plane + 1) if page.planarconfig == 2 else slice(None)
    rows[first - start : last - start, left : left + width, channels] = part
