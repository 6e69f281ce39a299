"""Pictures for tests: files of every kind, and folders of them."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

RED, GREEN = (255, 0, 0), (0, 255, 0)


def photo(shape: tuple[int, ...] = (24, 32, 3), dtype: str = "uint8", seed: int = 0) -> Any:
    """Return values over the full range of a type, all of them different from their neighbours'."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return rng.random(shape).astype(dtype)
    return rng.integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)


def index_mask(shape: tuple[int, int] = (24, 32), classes: int = 2) -> Any:
    """Return a mask with a block of each class, mostly background."""
    mask = np.zeros(shape, dtype=np.uint8)
    for value in range(1, classes):
        mask[2 : 2 + 3 * value, 4 * value : 4 * value + 3] = value
    return mask


def save(path: Path, pixels: Any, mode: str | None = None, **options: Any) -> Path:
    """Write a picture with Pillow, in another mode if one is given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(path, **options)
    return path


def make_folder(root: Path, count: int = 3, **options: Any) -> Path:
    """Write images/a0.png, … in colour and masks/a0.png, … with the classes 0 and 1."""
    for number in range(count):
        save(root / "images" / f"a{number}.png", photo(seed=number), **options)
        save(root / "masks" / f"a{number}.png", index_mask())
    return root


def with_png_chunk(content: bytes, name: bytes, data: bytes) -> bytes:
    """Return a PNG with a chunk before its pixels."""
    import zlib

    chunk = len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")
    return content[:33] + chunk + content[33:]


def png_header(content: bytes, width: int, height: int) -> bytes:
    """Return a PNG whose header promises another size, with the right checksum."""
    import zlib

    body = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + content[24:29]
    return content[:12] + body + zlib.crc32(body).to_bytes(4, "big") + content[33:]


def deep_png(pixels: Any) -> bytes:
    """Return a PNG of 16 bits, in colour or with alpha: Pillow writes none."""
    import struct
    import zlib

    height, width, samples = pixels.shape
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[samples]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)), (b"IDAT", zlib.compress(rows))]
    content = b"\x89PNG\r\n\x1a\n"
    for name, data in [*parts, (b"IEND", b"")]:
        content += len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")
    return content
