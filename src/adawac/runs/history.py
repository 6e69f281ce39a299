"""What each sample went through: CE, Dice, ACR and beta by sample and epoch.

`history.bin` is a row of blocks, one per epoch, each an ordinary `.npy` array with the fields `epoch` and, for the n
samples known by then, `ell_ce`, `ell_dice`, `reg_ac` and `beta` as float32; column i belongs to row i of `samples.csv`.
So it only grows at its end, the data set may grow from one epoch to the next, and a reader takes what it wants: one
field of one epoch is contiguous. The last block may be half-written; it does not count until it is whole.
"""

import io
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from adawac.errors import RunError, check_known

log = logging.getLogger(__name__)

FIELDS = ("ell_ce", "ell_dice", "reg_ac", "beta")
BLOCK_MARK = np.lib.format.MAGIC_PREFIX
"""What every block begins with."""

Floats = npt.NDArray[np.float32]
Rows = slice | npt.NDArray[Any] | list[int]


class Block(NamedTuple):
    """Where one epoch stands in the file."""

    epoch: int
    start: int
    data: int
    end: int
    dtype: np.dtype[Any]

    @property
    def samples(self) -> int:
        """How many samples were known in this epoch."""
        return max((part[0].shape[0] for name, part in self.parts.items() if name != "epoch"), default=0)

    @property
    def parts(self) -> Mapping[str, tuple[np.dtype[Any], int]]:
        """Type and offset of each field."""
        return {name: (part[0], part[1]) for name, part in (self.dtype.fields or {}).items()}


def encode(epoch: int, fields: Mapping[str, npt.ArrayLike]) -> bytes:
    """Return the block of one epoch; every field has one value per sample."""
    columns = {name: np.asarray(values, dtype="<f4") for name, values in fields.items()}
    block = np.zeros((), dtype=[("epoch", "<i4"), *((name, "<f4", values.shape) for name, values in columns.items())])
    block["epoch"] = epoch
    for name, values in columns.items():
        block[name] = values
    file = io.BytesIO()
    np.lib.format.write_array(file, block, allow_pickle=False)
    return file.getvalue()


def scan(path: Path) -> list[Block]:
    """Return the whole blocks of a file, reading their headers only."""
    blocks: list[Block] = []
    with suppress(FileNotFoundError), path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        while block := _read_block(file, blocks[-1].end if blocks else 0, size):
            blocks.append(block)
    return blocks


def _read_block(file: BinaryIO, start: int, size: int) -> Block | None:
    file.seek(start)
    try:
        if np.lib.format.read_magic(file) != (1, 0):
            return None
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        data = file.tell()
        names = dtype.names or ("",)
        columns = all(dtype[name].base == np.float32 and dtype[name].ndim == 1 for name in names[1:])
        if (
            shape != ()
            or names[0] != "epoch"
            or dtype["epoch"] != np.int32
            or not columns
            or data + dtype.itemsize > size
        ):
            return None
        epoch = int(np.frombuffer(file.read(4), "<i4")[0])
    except Exception:  # the end of the file, or the end of what is whole: NumPy fails in many ways there
        return None
    return Block(epoch, start, data, data + dtype.itemsize, dtype)


class History:
    """The per-sample history of a run, as far as it was written when this object was made.

    Attributes:
        epochs: (E,) the epochs that are there, rising.
        num_samples: n, the number of columns.
    """

    def __init__(self, path: Path, num_samples: int = 0):
        self._path = path
        self._blocks = scan(path)
        self.epochs = np.array([block.epoch for block in self._blocks], dtype=np.int64)
        self.num_samples = max([num_samples, *(block.samples for block in self._blocks)])

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, field: str) -> Floats:
        """Return (E, n) of one field; NaN where a sample was not seen."""
        return self.read(field)

    def read(self, field: str, epochs: slice = slice(None), rows: Rows = slice(None)) -> Floats:
        """Return part of a field, reading no more of the file than it needs.

        Args:
            field: `ell_ce`, `ell_dice`, `reg_ac` or `beta`.
            epochs: Which of the epochs that are there, by position.
            rows: Which samples, by their row in the table.

        Returns:
            (epochs, rows) float32; NaN where a sample was not seen.
        """
        known = {*FIELDS, *(name for block in self._blocks for name in block.parts if name != "epoch")}
        check_known(field, known, "a field of the history", RunError)
        columns = np.arange(self.num_samples)[rows]
        blocks = self._blocks[epochs]
        values = np.full((len(blocks), len(columns)), np.nan, dtype=np.float32)
        if not values.size:
            return values
        low, high = int(columns.min()), int(columns.max()) + 1
        with self._path.open("rb") as file:
            for row, block in zip(values, blocks, strict=True):
                span = np.full(high - low, np.nan, dtype=np.float32)
                if field in block.parts and low < block.samples:
                    file.seek(block.data + block.parts[field][1] + 4 * low)
                    stop = min(high, block.samples) - low
                    span[:stop] = np.frombuffer(file.read(4 * stop), "<f4")
                row[:] = span[columns - low]
        return values


# -- what an epoch was like: means, and how well beta separates --------------------------------------------------------

OFF = 0.05
"""A weight below this has switched the cross-entropy of its sample off."""

_TOO_MANY = 0.75  # of the weights, for one epoch


def summarise(fields: dict[str, Floats], sparse: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Return the means of an epoch, all samples together and label-sparse and label-dense ones apart."""
    numbers: dict[str, Any] = {name: _mean(values) for name, values in fields.items()}
    for group, members in (("sparse", sparse), ("dense", ~sparse)):
        numbers |= {f"{name}_{group}": _mean(values[members]) for name, values in fields.items()}
    return numbers | separation(fields["ell_ce"], fields["reg_ac"], fields["beta"], sparse)


def separation(ell_ce: Floats, reg_ac: Floats, beta: Floats, sparse: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Return how far the epoch is from the paper's n-separation (Assumption 1), and how well beta tells the groups.

    Returns:
        separated_sparse: share of label-sparse samples with CE < ACR (Assumption 1, i).
        separated_dense: share of label-dense samples with CE > ACR (Assumption 1, ii).
        beta_auc: the probability that a label-dense sample has the larger beta of a random pair; ties count half.
        spread_ce, spread_ac: standard deviation over mean, of all samples; the paper's observation is that
            consistency is the more uniform of the two.
    """
    return {
        "separated_sparse": _mean(ell_ce[sparse] < reg_ac[sparse]),
        "separated_dense": _mean(ell_ce[~sparse] > reg_ac[~sparse]),
        "beta_auc": _auc(beta[~sparse], beta[sparse]),
        "spread_ce": _spread(ell_ce),
        "spread_ac": _spread(reg_ac),
    }


def warn_of_rush(
    fields: dict[str, Floats], epoch: int, hold: str = "method.hold_epochs=3", eta: str = "method.options.eta_beta"
) -> None:
    """Warn if the first epoch in which weights move has sent nearly all of them to consistency.

    A network's features are large and unsettled in its first steps, whatever the samples. Weights add up what they
    see, so that a few hundred of such steps may outweigh the rest of the run. `hold` says how to let the network settle
    first, where the training is set up, and `eta` what the step size of the weights is called there.
    """
    off = float(np.mean(fields["beta"] < OFF))
    if off > _TOO_MANY:
        ce, ac = (float(np.median(fields[name])) for name in ("ell_ce", "reg_ac"))
        log.warning(
            "Weights of %.0f %% of the samples fell below %g in epoch %d, in which the median consistency was %.2g and "
            "the median cross-entropy %.2g. That may switch their labels off for good: lower %s or lambda_ac, or let "
            "the network settle first (%s).",
            100 * off,
            OFF,
            epoch,
            ac,
            ce,
            eta,
            hold,
        )


def _auc(high: Floats, low: Floats) -> float | None:
    """Return the share of pairs in the right order (Mann and Whitney), in n log n."""
    if not len(high) or not len(low):
        return None
    ordered = np.sort(low)
    below = np.searchsorted(ordered, high, "left")
    upto = np.searchsorted(ordered, high, "right")
    return float((below + upto).mean() / 2 / len(low))


def _mean(values: npt.NDArray[Any]) -> float | None:
    return float(np.mean(values, dtype=np.float64)) if len(values) else None


def _spread(values: Floats) -> float | None:
    mean = _mean(values)
    return float(np.std(values, dtype=np.float64)) / mean if mean else None
