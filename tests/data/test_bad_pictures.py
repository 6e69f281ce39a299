"""Hostile and careless pictures: one message each, exit code 2, nothing half-written, little memory."""

import tracemalloc

import numpy as np
import pytest
import tifffile
from PIL import Image

from adawac.cli import run
from adawac.data.sources.picture_files import open_picture
from adawac.errors import DataError
from tests.data.picture_files import index_mask, make_folder, photo, png_header, save

IMAGE, MASK = "images/a1.png", "masks/a1.png"


def prepare_fails(root, capsys, *options):
    """Type the command, and return its one message."""
    store = root.with_name("store")
    assert run(["prepare", "pictures", str(root), str(store), "--workers", "1", *options]) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    assert not (store / "store.json").exists()
    assert not list(store.glob("cases/.*"))
    assert not (store / "cases" / "a1").exists()
    return " ".join(message.split())


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "in")


# -- images ------------------------------------------------------------------------------------------------------------


def swap(folder, path):
    """Put a file in the place of the second picture, under its own ending."""
    (folder / IMAGE).unlink()
    return folder / "images" / path


def truncated(folder):
    content = (folder / IMAGE).read_bytes()
    (folder / IMAGE).write_bytes(content[: len(content) // 2])


def no_header(folder):
    (folder / IMAGE).write_bytes((folder / IMAGE).read_bytes()[:20])


def bomb_png(folder):
    (folder / IMAGE).write_bytes(png_header((folder / IMAGE).read_bytes(), 10**6, 10**6))


def endless_png(folder):
    (folder / IMAGE).write_bytes(png_header((folder / IMAGE).read_bytes(), 2**31 - 1, 2**31 - 1))


def bomb_jpeg(folder):
    path = save(swap(folder, "a1.jpg"), photo())
    content = bytearray(path.read_bytes())
    start = content.index(b"\xff\xc0")
    content[start + 5 : start + 9] = b"\xff\xff\xff\xff"
    path.write_bytes(content)


def bomb_tiff(folder):
    path = swap(folder, "a1.tif")
    tifffile.imwrite(path, photo(), photometric="rgb", compression="zlib")
    with tifffile.TiffFile(path, mode="r+") as file:
        for tag in ("ImageWidth", "ImageLength"):
            file.pages[0].tags[tag].overwrite(10**6, dtype="I")


def wrong_ending(folder):
    save(folder / "b.jpg", photo()).rename(folder / IMAGE)


def text(folder):
    (folder / IMAGE).write_text("not a picture, but long enough to have a head")


def nothing(folder):
    (folder / IMAGE).write_bytes(b"")


def animated_png(folder):
    frames = [Image.fromarray(photo(seed=seed)) for seed in range(3)]
    frames[0].save(folder / IMAGE, save_all=True, append_images=frames[1:])


def animated_gif(folder):
    frames = [Image.fromarray(photo(seed=seed)) for seed in range(3)]
    frames[0].save(swap(folder, "a1.gif"), save_all=True, append_images=frames[1:])


def webp(folder):
    save(swap(folder, "a1.webp"), photo())


def zero_sized(folder):
    (folder / IMAGE).write_bytes(png_header((folder / IMAGE).read_bytes(), 0, 0))


def zero_sized_tiff(folder):
    path = swap(folder, "a1.tif")
    tifffile.imwrite(path, photo(), photometric="rgb")
    with tifffile.TiffFile(path, mode="r+") as file:
        for tag in ("ImageWidth", "ImageLength"):
            file.pages[0].tags[tag].overwrite(0)


def one_pixel(folder):
    save(folder / IMAGE, photo((1, 1, 3)))


def one_row(folder):
    save(folder / IMAGE, photo((1, 32, 3)))


def cmyk_jpeg(folder):
    save(swap(folder, "a1.jpg"), photo(), "CMYK")


def cmyk_tiff(folder):
    save(swap(folder, "a1.tif"), photo(), "CMYK")


def lab_tiff(folder):
    save(swap(folder, "a1.tif"), Image.frombytes("LAB", (32, 24), photo().tobytes()))


def five_channels(folder):
    tifffile.imwrite(swap(folder, "a1.tif"), photo((24, 32, 5)), photometric="minisblack", planarconfig="contig")


def signed(folder):
    tifffile.imwrite(swap(folder, "a1.tif"), photo((24, 32), "int16"))


def wide(folder):
    tifffile.imwrite(swap(folder, "a1.tif"), photo((24, 32), "uint32"))


def complex_(folder):
    tifffile.imwrite(swap(folder, "a1.tif"), photo((24, 32), "float32").astype("complex64"))


def nan(folder):
    pixels = photo((24, 32), "float32")
    pixels[3, 4] = np.nan
    tifffile.imwrite(swap(folder, "a1.tif"), pixels)


def pages_of_two_sizes(folder):
    with tifffile.TiffWriter(swap(folder, "a1.tif")) as file:
        file.write(photo((24, 32)))
        file.write(photo((12, 32)))


def cut_tiff(folder):
    path = swap(folder, "a1.tif")
    tifffile.imwrite(path, photo(), photometric="rgb", compression="zlib", rowsperstrip=4)
    path.write_bytes(path.read_bytes()[:-200])


def circle(folder):
    """Pages of which the last is followed by the second."""
    path = swap(folder, "a1.tif")
    tifffile.imwrite(path, photo((3, 24, 32)), photometric="minisblack")
    with tifffile.TiffFile(path) as file:
        second, last = file.pages[1].offset, file.pages[2].offset
    content = bytearray(path.read_bytes())
    tags = int.from_bytes(content[last : last + 2], "little")
    at = last + 2 + 12 * tags
    content[at : at + 4] = second.to_bytes(4, "little")
    path.write_bytes(content)


def pages_cut_off(folder):
    path = swap(folder, "a1.tif")
    with tifffile.TiffWriter(path) as file:
        for page in photo((3, 24, 32)):
            file.write(page, contiguous=False)
    path.write_bytes(path.read_bytes()[:1900])


def nonsense(folder):
    path = swap(folder, "a1.tif")
    tifffile.imwrite(path, photo((24, 32)))
    content = bytearray(path.read_bytes())
    content[12:180:3] = b"\xff" * len(content[12:180:3])
    path.write_bytes(content)


def link_to_nothing(folder):
    (folder / IMAGE).unlink()
    (folder / IMAGE).symlink_to("gone.png")


@pytest.mark.parametrize("tile", [None, 16])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (truncated, r"a1\.png cannot be read .*truncated: copy or download it again"),
        (no_header, r"a1\.png cannot be read"),
        (bomb_png, r"promises 1000000 × 1000000 pixels in \d+ bytes"),
        (endless_png, r"promises 2147483647 × 2147483647 pixels|cannot be read"),
        (bomb_jpeg, r"promises 65535 × 65535 pixels in \d+ bytes"),
        (bomb_tiff, r"promises 1000000 × 1000000 pixels in \d+ bytes"),
        (
            wrong_ending,
            r"Expected PNG in .*a1\.png, as its name ends, but it is a JPEG file\. Give it",
        ),
        (text, r"Expected PNG in .*a1\.png, as its name ends, but it is no picture that is known"),
        (nothing, r"a1\.png is empty"),
        (animated_png, r"a1\.png is an animation of 3"),
        (animated_gif, r"Expected PNG, JPEG, BMP or TIFF, but got .*a1\.gif\. Save it as PNG"),
        (webp, r"Expected PNG, JPEG, BMP or TIFF, but got .*a1\.webp"),
        (zero_sized, r"the header of .*a1\.png is damaged, or says that it has no pixels"),
        (zero_sized_tiff, r"a1\.tif"),
        (one_pixel, r"at least 2 × 2 pixels, but got 1 × 1 in .*a1\.png"),
        (one_row, r"at least 2 × 2 pixels, but got 1 × 32"),
        (cmyk_jpeg, r"grey picture or one in RGB, but got CMYK in .*a1\.jpg"),
        (cmyk_tiff, r"grey picture or one in RGB, but got SEPARATED in .*a1\.tif"),
        (lab_tiff, r"grey picture or one in RGB, but got CIELAB in .*a1\.tif"),
        (five_channels, r"got 5 values a pixel in .*Choose three of its channels"),
        (signed, r"8 or 16 bits without a sign.* int16 in .*a1\.tif"),
        (wide, r"8 or 16 bits, but got 32 in .*a1\.tif"),
        (complex_, r"complex64 in .*a1\.tif"),
        (nan, r"finite intensities, but got 3 NaN"),
        (pages_of_two_sizes, r"pages of one size and type, but .*a1\.tif has \(24, 32\).* and \(12, 32\)"),
        (cut_tiff, r"a1\.tif cannot be read"),
        (circle, r"a1\.tif cannot be read .*circular"),
        (pages_cut_off, r"a1\.tif cannot be read"),
        (nonsense, r"a1\.tif"),
        (link_to_nothing, r"a1\.png leads nowhere"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bad_picture_is_named_with_the_reason(folder, capsys, spoil, message, tile):
    import re

    spoil(folder)
    said = prepare_fails(folder, capsys, *(["--tile", str(tile)] if tile else []))
    assert re.search(message, said), said
    assert said.count("Expected") == 1, said
    assert "TiffTag" not in said


@pytest.mark.parametrize("spoil", [bomb_png, endless_png, bomb_jpeg, bomb_tiff], ids=lambda spoil: spoil.__name__)
def test_a_bomb_takes_no_memory(folder, spoil):
    spoil(folder)
    (path,) = (folder / "images").glob("a1.*")
    open_picture(folder / "images" / "a0.png").rows(0, 0, 24)  # what is imported late is imported now
    tracemalloc.start()
    with pytest.raises(DataError):
        open_picture(path).rows(0, 0, 24)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 24


# -- masks -------------------------------------------------------------------------------------------------------------


def jpeg_mask(folder):
    (folder / MASK).unlink()
    save(folder / "masks" / "a1.jpg", index_mask() * 255)


def other_size(folder):
    save(folder / MASK, index_mask((20, 32)))


def on_its_side(folder):
    save(folder / MASK, index_mask((32, 24)))


def many_colours(folder):
    save(folder / MASK, photo())


def many_values(folder):
    save(folder / MASK, photo((24, 32)))


def transparent(folder, colour):
    """Put the shape of a mask into its alpha."""
    pixels = np.dstack([*[index_mask() * 0 + colour] * 3, index_mask() * 255])
    save(folder / MASK, pixels)


def shape_in_alpha(folder):
    transparent(folder, 0)


def white_below_alpha(folder):
    transparent(folder, 1)


def fractions(folder):
    (folder / MASK).unlink()
    tifffile.imwrite(folder / "masks" / "a1.tif", index_mask().astype(np.float32))


@pytest.mark.parametrize("tile", [None, 16])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (jpeg_mask, r"mask without loss, but .*a1\.jpg is a JPEG, which changes values"),
        (other_size, r"pages, height and width of .*a1\.png \(1 × 24 × 32\), but got 1 × 20 × 32 in .*masks/a1\.png"),
        (on_its_side, r"It lies on its side"),
        (many_colours, r"class indices, but .*a1\.png is in colour"),
        (
            many_values,
            r"the values 0 \(background\), 1 \(crack\), but \d+ of \d+ pixels have others in .*a1\.png",
        ),
        (shape_in_alpha, r"a1\.png has its shape in the transparency alone\. Alpha is not read: make the background"),
        (white_below_alpha, r"a1\.png has \d+ transparent pixels that are not 0, or black\. Alpha is not read"),
        (fractions, r"whole numbers in a mask, but .*a1\.tif has floating-point ones"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bad_mask_is_named_with_the_reason(folder, capsys, spoil, message, tile):
    import re

    spoil(folder)
    said = prepare_fails(folder, capsys, "--classes", "crack=1", *(["--tile", str(tile)] if tile else []))
    assert re.search(message, said), said
    assert said.count("Expected") == 1, said


def test_a_mask_of_thousands_of_colours_is_a_photograph(folder, capsys):
    for number in range(3):
        save(folder / "masks" / f"a{number}.png", photo((24, 32, 3), seed=number))
    said = prepare_fails(folder, capsys)
    assert "None of the 3 masks can be used" in said
    assert "different values and more" in said
    assert "photograph" in said


def test_near_colours_are_counted(folder, capsys):
    for number in range(3):
        mask = np.zeros((24, 32, 3), dtype=np.uint8)
        mask[5:9, 5:9] = (255, 0, 0)
        if number == 1:
            mask[5, 5:9], mask[20, 20] = (254, 1, 3), (0, 0, 255)
        save(folder / "masks" / f"a{number}.png", mask)
    said = prepare_fails(folder, capsys, "--classes", "crack=#ff0000")
    assert "Expected the colours #000000 (background), #ff0000 (crack), but 5 of 768 pixels have others in" in said
    assert "such as #fe0103, #0000ff" in said
    assert "4 of them are near one of these" in said


def test_near_colours_are_no_classes_of_their_own(folder, capsys):
    for number in range(3):
        mask = np.zeros((24, 32, 3), dtype=np.uint8)
        mask[5:9, 5:9], mask[15, 5:9] = (255, 0, 0), (0, 255, 0)
        if number == 1:
            mask[5, 5:9] = (254, 1, 3)
        save(folder / "masks" / f"a{number}.png", mask)
    said = prepare_fails(folder, capsys)
    assert "4 pixels of the masks have #fe0103, which is near #ff0000: a lossy tool makes such colours" in said
    save(folder / MASK, Image.open(folder / "masks" / "a0.png"))
    assert run(["prepare", "pictures", str(folder), str(folder.with_name("good")), "--workers", "1"]) == 0


def test_thin_lines_with_soft_edges_are_no_class_indices(folder, capsys):
    for number in range(3):
        mask = np.zeros((24, 32), dtype=np.uint8)
        mask[5], mask[6], mask[7, :20], mask[7, 20:], mask[8, :9] = 60, 255, 120, 191, 30
        save(folder / "masks" / f"a{number}.png", mask)
    assert "soft edges (antialiasing)" in prepare_fails(folder, capsys)


def test_soft_edges_are_called_so(folder, capsys):
    for number in range(3):
        mask = np.zeros((24, 32), dtype=np.uint8)
        mask[5:15, 5:15] = 255
        if number == 1:
            mask[5, 5:15] = np.arange(20, 220, 20)
        save(folder / "masks" / f"a{number}.png", mask)
    said = prepare_fails(folder, capsys, "--classes", "crack=255")
    assert "10 of 768 pixels have others" in said
    assert "10 of them are near one of these, as a lossy tool or soft edges" in said
    said = prepare_fails(folder, capsys)
    assert "soft edges" in said


def test_all_masks_empty_needs_classes(folder, capsys):
    for number in range(3):
        save(folder / "masks" / f"a{number}.png", index_mask() * 0)
    assert "all 3 masks are empty. Give --classes" in prepare_fails(folder, capsys)


def test_a_picture_that_is_too_large_as_a_whole_asks_for_tiles(tmp_path, capsys, monkeypatch):
    from adawac.data.sources import pictures

    monkeypatch.setattr(pictures, "_MOST_WHOLE", 1000)
    folder = make_folder(tmp_path / "in")
    assert "Cut it into tiles: --tile 512" in prepare_fails(folder, capsys)
    assert run(["prepare", "pictures", str(folder), str(tmp_path / "tiles"), "--tile", "16", "--workers", "1"]) == 0
