"""Picture files: every mode and bit depth comes back as it was written."""

import numpy as np
import pytest
import tifffile
from PIL import Image

from adawac.data.preprocessing import as_shares
from adawac.data.sources.picture_files import open_picture
from tests.data.picture_files import deep_png, index_mask, photo, save, with_png_chunk


def read(path):
    """Return all pages of a picture as (pages, rows, width, samples)."""
    picture = open_picture(path)
    pages, height, _ = picture.shape
    pixels = np.stack([picture.rows(page, 0, height) for page in range(pages)])
    assert pixels.shape == (*picture.shape, picture.samples)
    for page in range(pages):  # in parts, too
        parts = [picture.rows(page, start, min(start + 7, height)) for start in range(0, height, 7)]
        np.testing.assert_array_equal(np.concatenate(parts), pixels[page])
    return picture, pixels


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "levels"),
    [
        ("a.png", (24, 32), "uint8", 255),
        ("a.png", (24, 32), "uint16", 65535),
        ("a.png", (24, 32), "bool", 1),
        ("a.png", (24, 32, 3), "uint8", 255),
        ("a.bmp", (24, 32), "uint8", 255),
        ("a.bmp", (24, 32, 3), "uint8", 255),
        ("a.bmp", (24, 32), "bool", 1),
        ("a.tif", (24, 32), "uint8", 255),
        ("a.tif", (24, 32, 3), "uint8", 255),
        ("a.tiff", (24, 32), "uint16", 65535),
        ("a.tif", (24, 32, 3), "uint16", 65535),
        ("a.tif", (24, 32), "float32", None),
        ("a.tif", (24, 32, 3), "float64", None),
        ("a.tif", (24, 32, 3), "float16", None),
    ],
)
def test_every_type_comes_back(tmp_path, name, shape, dtype, levels):
    pixels = photo(shape, "uint8") > 99 if dtype == "bool" else photo(shape, dtype)
    if name.startswith("a.tif"):
        tifffile.imwrite(tmp_path / name, pixels, photometric="rgb" if len(shape) == 3 else "minisblack")
    else:
        save(tmp_path / name, pixels)
    picture, values = read(tmp_path / name)
    np.testing.assert_array_equal(values[0], pixels.reshape(24, 32, -1))
    assert (picture.levels, picture.alpha, picture.is_colour) == (levels, False, len(shape) == 3)


@pytest.mark.parametrize("samples", [2, 3, 4])
def test_16_bits_in_colour_or_with_alpha_lose_nothing(tmp_path, samples):
    pixels = photo((24, 32, samples), "uint16")
    (tmp_path / "a.png").write_bytes(deep_png(pixels))
    picture, values = read(tmp_path / "a.png")
    assert values.dtype == np.uint16
    np.testing.assert_array_equal(values[0], pixels[..., : 3 if samples > 2 else 1])
    assert (picture.levels, picture.alpha) == (65535, samples in (2, 4))


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_a_grey_png_of_few_bits_has_its_own_values(tmp_path, bits):
    values = photo((24, 32)) % 2**bits
    (tmp_path / "a.png").write_bytes(_grey_png(values, bits))
    picture, read_values = read(tmp_path / "a.png")
    np.testing.assert_array_equal(read_values[0, ..., 0], values)
    assert picture.levels == 2**bits - 1


def _grey_png(values, bits):
    import struct
    import zlib

    height, width = values.shape
    packed = np.packbits(
        np.unpackbits(values[..., None].astype(np.uint8), axis=-1)[..., -bits:].reshape(height, -1), axis=1
    )
    rows = b"".join(b"\0" + row.tobytes() for row in packed)
    content = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    for name, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
        content += len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")
    return content


@pytest.mark.parametrize(("name", "mode"), [("a.png", "LA"), ("a.png", "RGBA"), ("a.tif", "RGBA")])
def test_alpha_is_not_read_and_noted(tmp_path, name, mode):
    pixels = photo((24, 32, len(mode)))
    save(tmp_path / name, Image.frombytes(mode, (32, 24), pixels.tobytes()))
    picture, values = read(tmp_path / name)
    np.testing.assert_array_equal(values[0], pixels[..., : len(mode) - 1])
    assert picture.alpha


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.tif"])
def test_a_palette_gives_indices_to_masks_and_colours_to_images(tmp_path, name):
    indices = index_mask(classes=4)
    image = Image.frombytes("P", (32, 24), indices.tobytes())
    colours = [(0, 0, 0), (250, 10, 20), (30, 240, 40), (50, 60, 230)]
    image.putpalette([value for colour in colours for value in colour])
    save(tmp_path / name, image)
    picture, values = read(tmp_path / name)
    np.testing.assert_array_equal(values[0, ..., 0], indices)
    shown = picture.image_rows(0, 0, 24, 3)
    np.testing.assert_array_equal(np.moveaxis(shown, 0, 2), np.array(colours, dtype=np.uint8)[indices])
    assert picture.is_colour
    assert picture.full_range == 255


def test_a_transparent_palette_has_alpha(tmp_path):
    image = Image.frombytes("P", (32, 24), index_mask().tobytes())
    image.putpalette([0, 0, 0, 255, 0, 0])
    save(tmp_path / "a.png", image, transparency=0)
    assert open_picture(tmp_path / "a.png").alpha


def test_a_jpeg_is_what_pillow_shows(tmp_path):
    for mode in ("L", "RGB"):
        save(tmp_path / "a.jpg", photo(), mode, quality=90)
        picture, values = read(tmp_path / "a.jpg")
        np.testing.assert_array_equal(values[0].squeeze(), np.asarray(Image.open(tmp_path / "a.jpg")))
        assert (picture.kind, picture.samples) == ("JPEG", len(mode))


# -- how they lie ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.tif", "late.png"])
def test_exif_says_how_a_picture_lies(tmp_path, name, turn):
    from PIL import ImageOps

    exif = Image.Exif()
    exif[274] = turn
    path = tmp_path / name
    if name == "a.tif":
        tifffile.imwrite(path, photo(), extratags=[(274, "H", 1, turn, True)])
        reference = Image.fromarray(photo())
        reference.getexif()[274] = turn
        expected = np.asarray(ImageOps.exif_transpose(reference))
    else:
        save(path, photo(), exif=exif)
        if name == "late.png":  # behind the pixels
            content = path.read_bytes()
            start = content.index(b"eXIf") - 4
            stop = start + 12 + int.from_bytes(content[start : start + 4], "big")
            path.write_bytes(content[:start] + content[stop:-12] + content[start:stop] + content[-12:])
        expected = np.asarray(ImageOps.exif_transpose(Image.open(path)))
    picture, values = read(path)
    assert picture.shape == (1, *expected.shape[:2])
    np.testing.assert_array_equal(values[0], expected)


# -- TIFF --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rowsperstrip": 5},
        {"compression": "zlib", "rowsperstrip": 5},
        {"compression": "zlib", "predictor": True},
        {"tile": (16, 16)},
        {"tile": (16, 32), "compression": "zlib"},
        {"planarconfig": "separate"},
        {"planarconfig": "separate", "compression": "zlib", "rowsperstrip": 7},
        {"planarconfig": "separate", "tile": (16, 16)},
        {"byteorder": ">"},
        {"byteorder": ">", "compression": "zlib"},
        {"bigtiff": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_every_layout_of_a_tiff_comes_back_in_parts(tmp_path, options, dtype):
    if options.get("predictor") and dtype == "float32":
        pytest.skip("needs imagecodecs")
    pixels = photo((3, 40, 50) if "planarconfig" in options else (40, 50, 3), dtype)
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="rgb", **options)
    _, values = read(tmp_path / "a.tif")
    assert values.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(values[0], np.moveaxis(pixels, 0, 2) if "planarconfig" in options else pixels)


@pytest.mark.parametrize("compression", ["tiff_lzw", "jpeg", "packbits"])
def test_a_compression_of_libtiff(tmp_path, compression):
    if compression != "packbits":
        pytest.importorskip("imagecodecs")
    save(tmp_path / "a.tif", photo(), compression=compression)
    _, values = read(tmp_path / "a.tif")
    np.testing.assert_allclose(values[0], np.asarray(Image.open(tmp_path / "a.tif")), atol=2)


def test_pages_are_a_stack_and_thumbnails_are_left_out(tmp_path):
    pixels = photo((5, 24, 32), "uint16")
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        for page in pixels:
            file.write(page, contiguous=False)
        file.write(photo((6, 8), "uint16"), subfiletype=1)
    picture, values = read(tmp_path / "a.tif")
    assert picture.shape == (5, 24, 32)
    np.testing.assert_array_equal(values[..., 0], pixels)


def test_white_may_be_zero_and_12_bits_have_their_own_range(tmp_path):
    pixels = photo((24, 32))
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="miniswhite")
    np.testing.assert_array_equal(read(tmp_path / "a.tif")[1][0, ..., 0], 255 - pixels)
    save(tmp_path / "b.tif", pixels > 99, "1")
    picture, values = read(tmp_path / "b.tif")
    np.testing.assert_array_equal(values[0, ..., 0], pixels > 99)
    assert picture.levels == 1


def test_shares_are_of_the_full_range():
    np.testing.assert_array_equal(as_shares(np.array([0, 255], np.uint8), 255), np.float32([0, 1]))
    np.testing.assert_array_equal(as_shares(np.array([0.25, 7.0], np.float64), None), np.float32([0.25, 7]))


def test_chunks_that_are_unknown_are_passed_over(tmp_path):
    path = save(tmp_path / "a.png", photo())
    path.write_bytes(with_png_chunk(path.read_bytes(), b"abCd", b"nothing"))
    np.testing.assert_array_equal(read(path)[1][0], photo())
