"""The large parts of a report: heat maps of every sample and epoch in 16 bits, and thumbnails of gallery slices."""

import base64
import gzip
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.data.task import class_colour
from adawac.errors import AdawacError
from adawac.figures.overlays import edges
from adawac.figures.style import Array
from adawac.report.suspects import Findings, late_epochs, varies
from adawac.runs import Gallery, Run, Slice

MISSING = 65535
"""The code of a cell that was not seen, or is not finite."""
SIDE = 224
"""Longest side of a thumbnail."""

_FIELDS = ("beta", "ell_ce", "reg_ac")
_TOP = MISSING - 1
_FLOOR = 1e-9  # of the largest value; below it a loss counts as zero
_MOST_ROWS = 16_000  # a browser's canvas is not much higher
_FEWEST_EPOCHS = 30

Ints = npt.NDArray[np.int64]


@dataclass
class Blobs:
    """Base64 texts by number; equal contents are kept once."""

    texts: list[str] = field(default_factory=list)
    _numbers: dict[bytes, int] = field(default_factory=dict)

    def add(self, content: bytes) -> int:
        """Keep bytes and return their number."""
        if content not in self._numbers:
            self._numbers[content] = len(self.texts)
            self.texts.append(base64.b64encode(content).decode("ascii"))
        return self._numbers[content]


# -- heat maps --------------------------------------------------------------------------------------------------------


def encode_atlas(run: Run, rows: Ints, epochs: Ints, blobs: Blobs) -> dict[str, Any] | None:
    """Return the heat maps of a run for the chosen rows and epochs; None where there is no history."""
    if not len(rows) or not len(epochs):
        return None
    fields: dict[str, Any] = {}
    for name in _FIELDS:
        values = run.history[name][epochs][:, rows].T  # (samples, epochs): a row of the picture is contiguous
        if not np.isfinite(values).any():
            continue
        codes, scale = quantise(values, "linear" if name == "beta" else "log")
        content = gzip.compress(codes.astype("<u2").tobytes(), compresslevel=6, mtime=0)  # no time stamp: reproducible
        fields[name] = {**scale, "blob": blobs.add(content), "moves": varies(values)}
    if not fields:
        return None
    return {"epochs": run.history.epochs[epochs].tolist(), "fields": fields, "late": late_epochs(len(epochs))}


def quantise(values: Array, kind: str) -> tuple[npt.NDArray[np.uint16], dict[str, Any]]:
    """Return codes of 16 bits, and the scale that turns them back.

    `linear`: value = low + (high - low) · code / 65534. `log`: value = low · (high / low)^((code - 1) / 65533), and
    code 0 is zero, so that the relative error is the same for large and small losses. 65535 is a missing value.
    """
    finite = np.isfinite(values)
    numbers = values[finite].astype(np.float64)
    if kind == "log" and numbers.size and numbers.min() >= 0 and numbers.max() > 0:
        high = float(numbers.max())
        low = float(max(numbers[numbers > 0].min(), high * _FLOOR))
        span = max(np.log(high / low), 1e-12)
        coded = np.where(numbers < low, 0, 1 + np.log(np.maximum(numbers, low) / low) / span * (_TOP - 1))
    else:
        kind, low, high = "linear", 0.0, 1.0
        if numbers.size and not 0 <= numbers.min() <= numbers.max() <= 1:
            low, high = float(numbers.min()), float(numbers.max())
        coded = (numbers - low) / (max(high - low, 1e-12)) * _TOP
    codes = np.full(values.shape, MISSING, dtype=np.uint16)
    codes[finite] = np.clip(np.rint(coded), 0, _TOP)
    return codes, {"kind": kind, "low": low, "high": high}


def thin(samples: int, epochs: int, cells: int, keep: npt.ArrayLike = ()) -> tuple[Ints, Ints]:
    """Return the rows and the epochs (by position) to show, so that there are about `cells` at most.

    Epochs are dropped first, down to 30, then samples; the first and the last epoch and the rows in `keep` stay.
    """
    most_rows = min(_MOST_ROWS, max(cells // min(max(epochs, 1), _FEWEST_EPOCHS), 1))
    rows = np.arange(samples)
    if samples > most_rows:
        even = np.linspace(0, samples - 1, most_rows).round()
        rows = np.unique(np.concatenate([even, np.asarray(keep, dtype=np.float64)])).astype(np.int64)
    most_epochs = max(cells // max(len(rows), 1), 2)
    chosen = np.arange(epochs)
    if epochs > most_epochs:
        chosen = np.unique(np.linspace(0, epochs - 1, most_epochs).round()).astype(np.int64)
    return rows, chosen


# -- thumbnails: the image in grey or colour, the label as outline, the prediction as area -----------------------------


def draw_picture(shown: Slice, blobs: Blobs) -> dict[str, Any]:
    """Return a slice as numbers of blobs (PNG; JPEG in colour), with its display size: pixels need not be square."""
    height, width = shown.image.shape[-2:]
    tall, broad = (max(float(spacing), 1e-6) for spacing in shown.spacing)
    return {
        "id": shown.id,
        "aspect": round(width * broad / (height * tall), 4),
        "size": [int(height), int(width)],
        "channels": int(shown.image.shape[0]) if shown.image.ndim == 3 and shown.colours is None else 1,
        "image": blobs.add(draw_image(shown.image) if shown.colours is None else draw_colours(shown.colours)),
        "label": None if shown.label is None else blobs.add(draw_outline(shown.label)),
        "empty": None if shown.label is None else not bool((shown.label > 0).any()),
        "prediction": None if shown.prediction is None else blobs.add(draw_area(shown.prediction)),
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


def draw_colours(image: npt.NDArray[np.uint8]) -> bytes:
    """Return a JPEG of (H, W, 3), which takes a tenth of a PNG's bytes."""
    from PIL import Image

    drawn = Image.fromarray(image)
    drawn.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    drawn.save(file, format="JPEG", quality=90, subsampling=0)
    return file.getvalue()


def draw_outline(label: Array) -> bytes:
    """Return an indexed PNG of the classes' borders, transparent elsewhere; small label maps are enlarged first."""
    labels = _shrink(label)
    factor = max(SIDE // max(*labels.shape, 1), 1)
    labels = labels.repeat(factor, axis=0).repeat(factor, axis=1)
    return _indexed_png(np.where(edges(labels), labels, 0))


def draw_area(prediction: Array) -> bytes:
    """Return an indexed PNG of the classes, transparent where there is background."""
    return _indexed_png(_shrink(prediction))


def _shrink(labels: Array) -> Array:
    """Return classes on the thumbnail's grid, by nearest neighbour; those above 255 become 255."""
    scale = min(1.0, SIDE / max(*labels.shape, 1))
    rows, columns = (
        np.minimum(((np.arange(max(round(length * scale), 1)) + 0.5) / scale).astype(int), length - 1)
        for length in labels.shape
    )
    return np.clip(labels[np.ix_(rows, columns)].astype(np.int64), 0, 255).astype(np.uint8)


def _indexed_png(classes: Array) -> bytes:
    from PIL import Image

    drawn = Image.frombytes("P", classes.shape[::-1], np.ascontiguousarray(classes, dtype=np.uint8).tobytes())
    colours = [class_colour(label) for label in range(1, int(classes.max(initial=0)) + 1)]
    drawn.putpalette(bytes(3) + bytes.fromhex("".join(colour[1:] for colour in colours)))
    return _png(drawn, transparency=0)


def _png(drawn: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    drawn.save(file, format="PNG", optimize=True, **options)
    return file.getvalue()


# -- pictures ---------------------------------------------------------------------------------------------------------


def collect_pictures(
    runs: Sequence[Run], findings: Sequence[Findings], most: int, blobs: Blobs, faults: list[list[str]]
) -> list[dict[str, Any]]:
    """Return the slices of all galleries by sample id, each with the prediction of every run that has one."""
    sources = _gallery_sources(runs, faults)
    galleries = {id(gallery): gallery for pairs in sources.values() for _, gallery in pairs}.values()
    wanted = dict.fromkeys(
        str(run.samples.id[suspect.row])
        for run, of_run in zip(runs, findings, strict=True)
        if run.samples is not None
        for suspect in of_run.suspects
    )
    # Slices that several runs have can be compared; after these the runs take turns, each in its gallery's order.
    ranks = {name: rank for gallery in galleries for rank, name in enumerate(gallery)}
    rest = sorted((name for name in sources if name not in wanted), key=lambda name: (-len(sources[name]), ranks[name]))
    order = [*(name for name in wanted if name in sources), *rest]
    shown = []
    for name in order[: max(most, 0)]:
        drawn: dict[str, Any] = {}
        for index, gallery in sources[name]:
            try:
                picture = draw_picture(gallery[name], blobs)
            except (AdawacError, OSError, ValueError, LookupError, TypeError) as error:
                faults[index].append(f"{name!r} of {gallery.path.name}: {error}")
                continue
            prediction = picture.pop("prediction")
            drawn = drawn or {**picture, "predictions": {}}
            drawn["label"] = picture["label"] if drawn["label"] is None else drawn["label"]
            if prediction is not None:
                drawn["predictions"].setdefault(str(index), prediction)
        if drawn:
            shown.append(drawn)
    return shown


def _gallery_sources(runs: Sequence[Run], faults: list[list[str]]) -> dict[str, list[tuple[int, Gallery]]]:
    """Return for each sample id the runs and galleries that show it."""
    sources: dict[str, list[tuple[int, Gallery]]] = {}
    for index, run in enumerate(runs):
        for title in run.galleries:
            try:
                gallery = run.gallery(title)
                for name in gallery:
                    sources.setdefault(name, []).append((index, gallery))
            except (AdawacError, OSError) as error:
                faults[index].append(str(error))
    return sources
