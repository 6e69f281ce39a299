"""From a store's samples to batches of views: out of device memory where they fit, otherwise streamed.

Either way a batch is the same, because order and views are functions of (seed, epoch) and of the samples' ids.
*Resident*: all native slices lie in the device's memory, and a batch is one gather that the host does not wait for.
*Streamed*: worker processes read the store ahead of time into pinned memory; views are made on the device that the
batch goes to (by the workers, if that is the CPU).
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, Sampler

from adawac.config import ViewConfig
from adawac.data.cases import IGNORED
from adawac.data.resample import Ragged
from adawac.data.store import Samples
from adawac.data.views import ViewBatch, Word, check_channels, make_views, random_order, sample_keys
from adawac.errors import AdawacError, ConfigError, DataError

# Samples that are copied to a device at once.
_CHUNK = 64
# Bytes that are taken to be free where the system does not say.
_UNKNOWN_MEMORY = 4 << 30


class Batch(ViewBatch):
    """One rank's part of a global batch: the views, and which samples they are of.

    Attributes:
        index: (B,) rows of beta.
        global_size: Samples in the global batch, over all ranks.
    """

    index: Int[Tensor, " B"]
    global_size: int


# -- which samples, when ----------------------------------------------------------------------------------------------


def batch_limits(num_samples: int, batch_size: int, world: int = 1) -> list[int]:
    """Return where the global batches of an epoch begin, and where the last one ends.

    The last batch may be smaller. If it has fewer samples than there are ranks, it joins the one before it, so that no
    rank is ever without a sample and all take the same number of steps.
    """
    if not 0 < world <= batch_size:
        raise ConfigError(
            f"Expected a global batch of at least one sample per rank, but got {batch_size} for {world} ranks. "
            "Raise batch_size or use fewer devices."
        )
    if num_samples < world:
        raise DataError(
            f"Expected at least one sample per rank, but got {num_samples} for {world} ranks. Use fewer devices."
        )
    limits = [*range(0, num_samples, batch_size), num_samples]
    if len(limits) > 2 and limits[-1] - limits[-2] < world:
        del limits[-2]
    return limits


def rank_limits(start: int, stop: int, rank: int, world: int) -> tuple[int, int]:
    """Return which part of the global batch [start, stop) is one rank's; parts differ by one sample at most."""
    size = stop - start
    return start + size * rank // world, start + size * (rank + 1) // world


def unlabelled_in_batch(batch_size: int, share: float) -> int:
    """Return how many samples of a batch are unlabelled ones: one at least where there is a share, and never all."""
    return min(max(round(share * batch_size), 1), batch_size - 1) if share else 0


class _Steps(Sampler[tuple[int, list[int]]]):
    """The steps of one rank in one epoch, (epoch, rows) each: workers get the epoch with the rows and need no state.

    An epoch has each labelled sample once. With a `share` of unlabelled ones, every batch has its part of them, evenly
    spread: they come round in an order of their own, which goes on from epoch to epoch.
    """

    def __init__(
        self, keys: Tensor, unlabelled: Tensor, share: float, batch_size: int, seed: int, rank: int, world: int
    ):
        self.keys, self.seed, self.rank, self.world = keys, seed, rank, world
        self.labelled, self.unlabelled = (~unlabelled).nonzero().flatten(), unlabelled.nonzero().flatten()
        extra = unlabelled_in_batch(batch_size, share)
        fixed = batch_size - extra
        limits = batch_limits(len(self.labelled), fixed, world if not extra else min(world, fixed))
        slots = [_spread(high - low, round(extra * (high - low) / fixed)) for low, high in pairwise(limits)]
        self.slots = torch.tensor([slot for step in slots for slot in step])  # true: of an unlabelled sample
        self.limits = [0, *accumulate(len(step) for step in slots)]
        self.epoch = self.start = 0

    def __len__(self) -> int:
        return len(self.limits) - 1

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        for rows in self.split(self.order(self.epoch), self.start):
            yield self.epoch, rows.tolist()

    def order(self, epoch: int) -> Int[Tensor, " n"]:
        """Return the rows in the order of an epoch."""
        order = self.labelled[random_order(self.seed, epoch, self.keys[self.labelled])]
        count = int(self.slots.sum())
        if not count:
            return order
        first, size = epoch * count, len(self.unlabelled)
        rounds = range(first // size, (first + count - 1) // size + 1)
        others = torch.cat([random_order(self.seed, number, self.keys[self.unlabelled]) for number in rounds])
        rows = torch.empty(len(self.slots), dtype=torch.int64)
        rows[~self.slots] = order
        rows[self.slots] = self.unlabelled[others[first % size :][:count]]
        return rows

    def split(self, order: Int[Tensor, " n"], start: int) -> Iterator[Int[Tensor, " B"]]:
        """Yield this rank's part of each step, from step `start` on."""
        for low, high in list(pairwise(self.limits))[start:]:
            first, last = rank_limits(low, high, self.rank, self.world)
            yield order[first:last]


def _spread(labelled: int, unlabelled: int) -> list[bool]:
    """Return the places in a batch, true for those of unlabelled samples, so that ranks get their part of both."""
    size = labelled + unlabelled
    return [(place + 1) * unlabelled // size > place * unlabelled // size for place in range(size)]


# -- what a batch is made of ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewMaker:
    """All that turns native samples into views, besides their pixels.

    Attributes:
        keys: (n,) what names each sample to the hash.
        extent: (n, d) physical size of each sample.
        make: `make_views` with all that is the same for every batch.
        unlabelled: (n,) the samples of whose label maps every view is ignored as a whole, also beyond the image's
            border; None if there are none.
    """

    keys: Int[Tensor, " n"]
    extent: Float[Tensor, "n d"]
    make: Callable[..., ViewBatch]
    unlabelled: Bool[Tensor, " n"] | None = None

    def to(self, device: torch.device) -> "ViewMaker":
        """Return the same on `device`."""
        unlabelled = None if self.unlabelled is None else self.unlabelled.to(device)
        return replace(self, keys=self.keys.to(device), extent=self.extent.to(device), unlabelled=unlabelled)

    def __call__(self, images: Ragged, labels: Ragged, index: Int[Tensor, " B"], epoch: Word) -> ViewBatch:
        """Return views of the samples in rows `index`, whose pixels are `images` and `labels`."""
        views = self.make(images, labels, epoch=epoch, sample=self.keys[index], extent=self.extent[index])
        if self.unlabelled is not None:
            hidden = self.unlabelled[index].view(-1, *[1] * self.extent.shape[1])
            views["labels"] = tuple(part.masked_fill(hidden, IGNORED) for part in views["labels"])
        return views


def _extents(samples: Samples) -> Float[Tensor, "n d"]:
    """Return each sample's physical size: its native shape times the spacing (ones where the format has lost it)."""
    table, store = samples.table, samples.store
    sliced = store.preprocessing.unit == "slice"
    axes = [axis for axis in range(3) if not (sliced and axis == store.preprocessing.axis)]
    spacing = {case: [store.case_info(case).spacing[axis] for axis in axes] for case in table.cases}
    return torch.from_numpy(table.shape * np.array([spacing[case] for case in table.case.tolist()])).float()


def _read(samples: Samples, rows: Sequence[int]) -> tuple[Ragged, Ragged]:
    """Copy some samples into buffers."""
    images, labels = [], []
    for image, label in (samples[row] for row in rows):
        if label is None:
            label = np.full(image.shape[1:], IGNORED, dtype=np.uint8)
        # torch can index with few unsigned types: only the smallest is safe.
        labels.append((label if label.dtype == np.uint8 else label.astype(np.int32))[None])
        images.append(image)
    return Ragged.from_arrays(images), Ragged.from_arrays(labels)


def _leave_signals_to_the_parent(worker: int) -> None:
    """Go on reading when all processes get a signal to stop: the one that trains may have a step to finish."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # elsewhere torch lets workers die of it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """Obey SIGTERM from the parent alone, which sends it to workers that it still has when it ends."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a device's memory."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    table = Path("/proc/meminfo")
    lines = table.read_text().splitlines() if table.is_file() else []
    if available := [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]:
        return available[0]
    if not hasattr(os, "sysconf"):  # Windows
        return _UNKNOWN_MEMORY
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) // 2


def _bytes(samples: Samples) -> int:
    image, label = samples[0]
    per_pixel: int = len(image) * image.itemsize + (1 if label is None or label.itemsize == 1 else 4)
    return per_pixel * int(samples.shapes.prod(1).sum())


class ResidentSamples:
    """All samples in a device's memory; views of any of them without the host."""

    def __init__(self, samples: Samples, make: ViewMaker, device: torch.device):
        shapes = torch.from_numpy(samples.shapes)
        self.images, self.labels = (
            Ragged.empty(shapes, channels=first.channels, dtype=first.values.dtype, device=device)
            for first in _read(samples, [0])
        )
        ends = shapes.prod(1).cumsum(0).tolist()
        for start in range(0, len(samples), _CHUNK):
            stop = min(start + _CHUNK, len(samples))
            parts = _read(samples, range(start, stop))
            for whole, part in zip((self.images, self.labels), parts, strict=True):
                end = ends[stop - 1] * whole.channels
                whole.values[end - len(part.values) : end] = part.values.to(device)
        self.make = make.to(device)

    def __call__(self, index: Int[Tensor, " B"], epoch: Word) -> ViewBatch:
        """Return views of the rows `index`, which is on the device, as is `epoch` in a captured CUDA graph."""
        return self.make(self.images.select(index), self.labels.select(index), index, epoch)


class _Reader(Dataset[tuple[Tensor, Any] | AdawacError]):
    """Reads the samples of a step, and makes their views too where that is done on the host."""

    def __init__(self, samples: Samples, make: ViewMaker | None):
        self.samples, self.make = samples, make

    def __getitem__(self, step: tuple[int, list[int]]) -> tuple[Tensor, Any] | AdawacError:
        """Return a step's batch, or what is wrong with the store: torch would put a traceback before it."""
        epoch, rows = step
        index = torch.tensor(rows)
        try:
            images, labels = _read(self.samples, rows)
        except AdawacError as error:
            return error
        return index, (images, labels) if self.make is None else self.make(images, labels, index, epoch)


def _check_states(samples: Samples, unlabelled_share: float) -> None:
    """Check that unlabelled samples are there if they are asked for, and only then."""
    unlabelled, where = samples.table.unlabelled, samples.store.path
    if unlabelled.any() and not unlabelled_share:
        raise DataError(
            f"Expected labelled samples, but {samples.ids[int(unlabelled.argmax())]} of {where} has none. "
            "Leave its case out of the training split, or give the share of unlabelled samples in a batch "
            "(data.unlabelled_share)."
        )
    if unlabelled_share and (unlabelled.all() or not unlabelled.any()):
        lacking = "labelled" if unlabelled.all() else "unlabelled"
        raise DataError(
            f"Expected labelled and unlabelled samples for data.unlabelled_share={unlabelled_share:g}, but {where} has "
            f"no {lacking} ones to train on. Set it to 0, or prepare scans of both kinds (--unlabelled keep)."
        )
    if unlabelled_share and samples.store.num_classes > IGNORED:
        raise DataError(
            f"Expected at most {IGNORED} classes with unlabelled samples, but {where} has {samples.store.num_classes}."
        )


# -- the loader -------------------------------------------------------------------------------------------------------


class Loader:
    """Batches of views of a store's samples, on the device that trains.

    Args:
        samples: What to train on (`Store.samples`); row i of it is row i of beta.
        size: Size of the network's input.
        batch_size: Samples in a global batch.
        views: The distribution of views.
        seed: Decides order and views.
        device: Where batches go.
        budget: Hold all samples in the device's memory if they take at most this fraction of what is free there (or,
            above 1, this many bytes); 0 always streams.
        workers: Processes that read ahead when streaming; 0 reads in this one.
        rank: This process among `world`.
        world: Processes that share each global batch.
        num_views: 2 for A₁ and A₂, 1 for A₁ alone.
        unlabelled_share: Share of unlabelled samples in each batch; an epoch has every labelled one once.

    Attributes:
        resident: The samples in the device's memory, or None when streaming.
    """

    def __init__(
        self,
        samples: Samples,
        size: Sequence[int],
        *,
        batch_size: int = 24,
        views: ViewConfig | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        budget: float = 0.5,
        workers: int = 2,
        rank: int = 0,
        world: int = 1,
        num_views: int = 2,
        unlabelled_share: float = 0.0,
    ):
        _check_states(samples, unlabelled_share)
        self.samples, self.device = samples, torch.device(device)
        config, keys = views or ViewConfig(), sample_keys(samples.ids)
        check_channels(config, len(samples.store.channels))
        make = partial(make_views, config=config, seed=seed, size=tuple(size), num_views=num_views)
        unlabelled = torch.from_numpy(samples.table.unlabelled)
        hidden = unlabelled if unlabelled_share else None
        self._make = ViewMaker(keys=keys, extent=_extents(samples), make=make, unlabelled=hidden)
        batch_limits(len(samples), batch_size, world)  # which checks them
        self._steps = _Steps(keys, unlabelled, unlabelled_share, batch_size, seed, rank, world)
        # SciPy's numbers come from the CPU, whatever device they go to.
        on_host = self.device.type == "cpu" or config.mode == "released"
        room = budget * free_memory(self.device) if budget <= 1 else budget
        self.resident: ResidentSamples | None = None
        if _bytes(samples) <= room and (self.device.type == "cpu" or not on_host):
            self.resident = ResidentSamples(samples, self._make, self.device)
        else:
            self._stream = self._open_stream(on_host, workers)
            self._make = self._make.to(self.device)

    def _open_stream(self, on_host: bool, workers: int) -> DataLoader[tuple[Tensor, Any] | AdawacError]:
        return DataLoader(
            _Reader(self.samples, self._make if on_host else None),
            batch_size=None,
            sampler=self._steps,
            num_workers=workers,
            persistent_workers=workers > 0,
            prefetch_factor=2 if workers else None,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # not torch's: a draw from that would change what dropout draws next
            worker_init_fn=_leave_signals_to_the_parent,
        )

    def __len__(self) -> int:
        """Return the steps of an epoch, the same on every rank."""
        return len(self._steps)

    @property
    def drawn(self) -> int:
        """How many samples an epoch draws: the labelled ones, and those without label that go with them."""
        return self._steps.limits[-1]

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, from step `start` on for a run that is resumed there."""
        self._steps.epoch, self._steps.start = epoch, start
        parts = self._streamed(epoch)
        if resident := self.resident:
            parts = ((index, resident(index, epoch)) for index in self.indices(epoch, start))
        for step, (index, views) in enumerate(parts, start):
            low, high = self._steps.limits[step : step + 2]
            yield Batch(**views, index=index, global_size=high - low)

    def indices(self, epoch: int, start: int = 0) -> Iterator[Int[Tensor, " B"]]:
        """Return the rows of an epoch's steps, on the device; the host talks to it once, for the whole epoch."""
        return self._steps.split(self._steps.order(epoch).to(self.device), start)

    def rows(self, epoch: int, step: int) -> list[int]:
        """Return the rows of the whole global batch of a step, as a message may want to name them."""
        low, high = self._steps.limits[step : step + 2]
        rows: list[int] = self._steps.order(epoch)[low:high].tolist()
        return rows

    def _read(self) -> Iterator[tuple[Tensor, Any] | AdawacError]:
        try:
            yield from self._stream
        except (ConnectionError, EOFError) as error:  # a worker that died after it had announced a batch
            raise RuntimeError(f"DataLoader worker is gone ({error})") from error

    def _streamed(self, epoch: int) -> Iterator[tuple[Tensor, ViewBatch]]:
        for batch in self._read():
            if isinstance(batch, AdawacError):
                raise batch
            index, payload = batch
            index = index.to(self.device, non_blocking=True)
            if isinstance(payload, dict):  # the views are made
                yield index, tree_map(lambda view: view.to(self.device, non_blocking=True), payload)
            else:
                images, labels = (part.to(self.device) for part in payload)
                yield index, self._make(images, labels, index, epoch)
