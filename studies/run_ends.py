"""Where the epochs of a run end, from its folder: the last batch may have few slices, and no other step follows.

How an epoch ended shows in the first batch of the next one, whose losses are those of the weights that it left behind.
Which slices that were is a function of (seed, epoch), and the history has each one's cross-entropy.
"""

from itertools import pairwise
from typing import Any

import numpy as np

from adawac.data.loader import batch_limits
from adawac.data.views import random_order, sample_keys
from adawac.runs import Run

NEIGHBOURS = 3  # epochs on either side that an epoch is held against
FAR = 5.0  # standard deviations, as the median absolute deviation estimates them

Floats = np.ndarray[Any, np.dtype[np.float64]]


def ends(run: Run) -> dict[str, Any]:
    """Return the size of the last batch, the empty slices in that of the last epoch, and how many epochs ended far off.

    An epoch counts as far off if the next one begins with a far larger cross-entropy than its neighbours do, or if it
    validated far below them.
    """
    table = run.samples
    assert table is not None  # it is complete
    order = _Order(run)
    ce = run.history["ell_ce"].astype(np.float64)
    epochs = run.history.epochs
    begins = np.array([_begin(ce, row, order.batch(int(epoch), 0)) for row, epoch in enumerate(epochs)])
    off = {int(epoch) - 1 for epoch in epochs[1:][far_off(begins[1:])]}
    if any("val_dice" in epoch for epoch in run.metrics):
        validated, dice = run.curve("val_dice")
        known = np.isfinite(dice)
        off |= set(validated[known][far_off(-dice[known])].tolist())
    last = order.batch(int(epochs[-1]), -1)
    return {
        "batch": order.size,
        "last_batch": len(last),
        "last_sparse": int(table.label_sparse[last].sum()),
        "epochs_off": len(off),
    }


class _Order:
    """The batches of a run's epochs, as its loader made them."""

    def __init__(self, run: Run):
        assert run.samples is not None
        config, hardware = run.settings, run.settings["hardware"]
        self.size, self._seed = config["data"]["batch_size"], config["seed"]
        self._keys = sample_keys(run.samples.id.tolist())
        limits = batch_limits(len(self._keys), self.size, hardware["devices"] * hardware["nodes"])
        self._batches = [slice(*pair) for pair in pairwise(limits)]

    def batch(self, epoch: int, step: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the rows of one of an epoch's batches; −1 is the last."""
        return random_order(self._seed, epoch, self._keys)[self._batches[step]].numpy()


def _begin(ce: Floats, epoch: int, rows: np.ndarray[Any, Any]) -> float:
    """Return how the cross-entropy of an epoch's first batch compares to these slices' own in the epochs around it."""
    around = [other for other in range(epoch - 2, epoch + 3) if other != epoch and 0 <= other < len(ce)]
    usual = np.nanmedian(ce[around][:, rows], axis=0).mean() if around else np.nan
    return float(np.log(ce[epoch, rows].mean() / usual))


def far_off(values: Floats) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Say which values lie far above their neighbours: above their running median, against the usual distance to it."""
    above = values - np.array([_usual(values, index) for index in range(len(values))])
    return (above > 0) & (above > FAR * 1.4826 * np.median(np.abs(above))) if len(values) else above > 0


def _usual(values: Floats, index: int) -> float:
    """Return the median of a value's neighbourhood; the first few have a smaller one, since a run begins steeply."""
    first = max(0, min(index, len(values) - 1 - NEIGHBOURS) - NEIGHBOURS)
    return float(np.median(values[first : first + 2 * min(index, NEIGHBOURS) + 1]))
