"""The weights atlas as data: beta, CE and ACR of every sample and epoch, in 16 bits with a scale."""

import base64
import gzip
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.runs import Run


@dataclass
class Blobs:
    """Base64 texts by number; equal contents are kept once."""

    texts: list[str] = field(default_factory=list)
    _places: dict[bytes, int] = field(default_factory=dict)

    def add(self, content: bytes) -> int:
        """Keep bytes and return their number."""
        if content not in self._places:
            self._places[content] = len(self.texts)
            self.texts.append(base64.b64encode(content).decode("ascii"))
        return self._places[content]

    def add_compressed(self, content: bytes) -> int:
        """Keep bytes as gzip, without a time stamp: the same bytes give the same file."""
        return self.add(gzip.compress(content, compresslevel=6, mtime=0))


FIELDS = ("beta", "ell_ce", "reg_ac")
MISSING = 65535
"""The code of a cell that was not seen, or not finite."""

_TOP = MISSING - 1
_FLOOR = 1e-9  # of the largest value; below it a loss counts as zero
_MOST_ROWS = 16_000  # a browser's canvas is not much higher
_FEWEST_EPOCHS = 30

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


def late_epochs(count: int) -> int:
    """Return how many epochs at the end say where a sample ended up: a tenth of them, from 1 to 20."""
    return min(max(count // 10, 1), 20)


def late_mean(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return (n,) the mean of (E, n) over the late epochs; NaN for a sample that none of them saw."""
    last = np.asarray(values[-late_epochs(len(values)) :], dtype=np.float64)
    seen = np.isfinite(last)
    count = seen.sum(axis=0)
    return np.where(count > 0, np.where(seen, last, 0).sum(axis=0) / np.maximum(count, 1), np.nan)


def has_consistency(reg_ac: npt.NDArray[Any]) -> bool:
    """Return whether a run had a consistency term, which is what beta near 0 sends a sample to."""
    return bool((reg_ac > 0).any())


def quantise(values: npt.NDArray[Any], kind: str) -> tuple[npt.NDArray[np.uint16], dict[str, Any]]:
    """Return codes of 16 bits, and the scale that turns them back.

    `linear`: value = low + (high - low) · code / 65534. `log`: value = low · (high / low)^((code - 1) / 65533), and
    code 0 is zero, so that the relative error is the same for large and small losses. 65535 is a missing value.
    """
    finite = np.isfinite(values)
    there = values[finite].astype(np.float64)
    if kind == "log" and there.size and there.min() >= 0 and there.max() > 0:
        high = float(there.max())
        low = float(max(there[there > 0].min(), high * _FLOOR))
        span = max(np.log(high / low), 1e-12)
        coded = np.where(there < low, 0, 1 + np.log(np.maximum(there, low) / low) / span * (_TOP - 1))
    else:
        kind, low, high = "linear", 0.0, 1.0
        if there.size and not 0 <= there.min() <= there.max() <= 1:
            low, high = float(there.min()), float(there.max())
        coded = (there - low) / (max(high - low, 1e-12)) * _TOP
    codes = np.full(values.shape, MISSING, dtype=np.uint16)
    codes[finite] = np.clip(np.rint(coded), 0, _TOP)
    return codes, {"kind": kind, "low": low, "high": high}


def thin(samples: int, epochs: int, cells: int, keep: npt.ArrayLike = ()) -> tuple[Ints, Ints]:
    """Return the rows and the epochs (by position) to show, so that there are about `cells` at most.

    Epochs go first, down to 30, then samples; the first and the last epoch and the rows in `keep` stay.
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


def encode_atlas(run: Run, rows: Ints, epochs: Ints, blobs: Blobs) -> dict[str, Any] | None:
    """Return the heat maps of a run for the chosen rows and epochs; None where there is no history."""
    if not len(rows) or not len(epochs):
        return None
    fields: dict[str, Any] = {}
    for name in FIELDS:
        values = run.history[name][epochs][:, rows].T  # (samples, epochs): a row of the picture is contiguous
        if not np.isfinite(values).any():
            continue
        codes, scale = quantise(values, "linear" if name == "beta" else "log")
        moves = bool(np.ptp(values[np.isfinite(values)]) > 1e-6)
        fields[name] = {**scale, "blob": blobs.add_compressed(codes.astype("<u2").tobytes()), "moves": moves}
    if not fields:
        return None
    return {"epochs": run.history.epochs[epochs].tolist(), "fields": fields, "late": late_epochs(len(epochs))}
