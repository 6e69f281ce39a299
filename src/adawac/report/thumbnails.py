"""Thumbnails of gallery slices: the image in grey, the label as outline, the prediction as area."""

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.figures.style import class_colour
from adawac.report.atlas import Blobs
from adawac.runs import Slice

SIDE = 224
"""Longest side of a thumbnail."""

Array = npt.NDArray[Any]


def draw_picture(one: Slice, blobs: Blobs) -> dict[str, Any]:
    """Return a slice as numbers of blobs (PNG), with its display size: pixels need not be square."""
    height, width = one.image.shape[-2:]
    tall, broad = (max(float(spacing), 1e-6) for spacing in one.spacing)
    return {
        "id": one.id,
        "aspect": round(width * broad / (height * tall), 4),
        "size": [int(height), int(width)],
        "channels": int(one.image.shape[0]) if one.image.ndim == 3 else 1,
        "image": blobs.add(draw_image(one.image)),
        "label": None if one.label is None else blobs.add(draw_outline(one.label)),
        "empty": None if one.label is None else not bool((one.label > 0).any()),
        "prediction": None if one.prediction is None else blobs.add(draw_area(one.prediction)),
    }


def draw_image(image: Array) -> bytes:
    """Return a grey PNG of the first channel, from its 0.5th to its 99.5th percentile."""
    from PIL import Image

    plane = np.nan_to_num(np.asarray(image[0] if image.ndim == 3 else image, dtype=np.float64), posinf=0, neginf=0)
    low, high = np.percentile(plane, (0.5, 99.5)) if plane.size else (0.0, 1.0)
    grey = np.clip((plane - low) / max(high - low, 1e-12), 0, 1) * 255
    drawn = Image.fromarray(grey.round().astype(np.uint8))
    drawn.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return _png(drawn)


def draw_outline(label: Array) -> bytes:
    """Return an index PNG of the classes' borders, transparent elsewhere; small label maps are enlarged first."""
    labels = _shrink(label)
    factor = max(SIDE // max(*labels.shape, 1), 1)
    labels = labels.repeat(factor, axis=0).repeat(factor, axis=1)
    padded = np.pad(labels, 1, mode="edge")
    inside = np.ones(labels.shape, dtype=bool)
    for rows, columns in ((0, 1), (2, 1), (1, 0), (1, 2)):
        inside &= padded[rows : rows + labels.shape[0], columns : columns + labels.shape[1]] == labels
    return _index_png(np.where(inside, 0, labels))


def draw_area(prediction: Array) -> bytes:
    """Return an index PNG of the classes, transparent where there is none."""
    return _index_png(_shrink(prediction))


def _shrink(labels: Array) -> Array:
    """Return classes on the thumbnail's grid, by nearest neighbour; what no byte holds becomes 255."""
    height, width = labels.shape
    scale = min(1.0, SIDE / max(height, width, 1))
    rows = np.minimum(((np.arange(max(round(height * scale), 1)) + 0.5) / scale).astype(int), height - 1)
    columns = np.minimum(((np.arange(max(round(width * scale), 1)) + 0.5) / scale).astype(int), width - 1)
    return np.clip(labels[np.ix_(rows, columns)].astype(np.int64), 0, 255).astype(np.uint8)


def _index_png(classes: Array) -> bytes:
    from PIL import Image

    drawn = Image.frombytes("P", classes.shape[::-1], np.ascontiguousarray(classes, dtype=np.uint8).tobytes())
    top = int(classes.max()) if classes.size else 0
    palette = [0, 0, 0]
    for label in range(1, top + 1):
        palette += list(bytes.fromhex(class_colour(label)[1:]))
    drawn.putpalette(palette)
    return _png(drawn, transparency=0)


def _png(drawn: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    drawn.save(file, format="PNG", optimize=True, **options)
    return file.getvalue()
