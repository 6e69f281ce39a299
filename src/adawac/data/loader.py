"""From a store's samples to batches of views: out of device memory where they fit, otherwise streamed.

Either way a batch is the same, because order and views are functions of (seed, epoch) and of the samples' ids.
*Resident*: all native slices lie in the device's memory, and a batch is one gather that the host does not wait for.
*Streamed*: worker processes read the memory map ahead of time into pinned memory; views are made on the device that the
batch goes to (by the workers, if that is the CPU).
"""

import copy
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from adawac.config import ViewConfig
from adawac.data.resample import Ragged
from adawac.data.store import Samples
from adawac.data.views import ViewBatch, Word, make_views, random_order, sample_keys
from adawac.errors import ConfigError, DataError

# A reader lets go of the memory maps after this many bytes; else every page that it ever touched counts as its memory.
_MAPPED_BYTES = 16 << 20
# Samples that are copied to a device at once.
_CHUNK = 64


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


class _Steps(Sampler[tuple[int, list[int]]]):
    """The steps of one rank in one epoch, (epoch, rows) each: workers get the epoch with the rows and need no state."""

    def __init__(self, keys: Tensor, seed: int, limits: list[int], rank: int, world: int):
        self.keys, self.seed, self.limits, self.rank, self.world = keys, seed, limits, rank, world
        self.epoch = self.start = 0

    def __len__(self) -> int:
        return len(self.limits) - 1

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        for rows in self.split(self.order(self.epoch), self.start):
            yield self.epoch, rows.tolist()

    def order(self, epoch: int) -> Int[Tensor, " n"]:
        """Return the rows in the order of an epoch."""
        return random_order(self.seed, epoch, self.keys)

    def split(self, order: Int[Tensor, " n"], start: int) -> Iterator[Int[Tensor, " B"]]:
        """Yield this rank's part of each step, from step `start` on."""
        for low, high in list(pairwise(self.limits))[start:]:
            first, last = rank_limits(low, high, self.rank, self.world)
            yield order[first:last]


# -- what a batch is made of ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewMaker:
    """All that turns native samples into views, besides their pixels.

    Attributes:
        keys: (n,) what names each sample to the hash.
        extent: (n, d) physical size of each sample.
        config: The distribution of views.
        seed: The run's seed.
        size: Size of the network's input.
        num_views: 2 for A₁ and A₂, 1 for A₁ alone.
    """

    keys: Int[Tensor, " n"]
    extent: Float[Tensor, "n d"]
    config: ViewConfig
    seed: int
    size: tuple[int, ...]
    num_views: int = 2

    def to(self, device: torch.device) -> "ViewMaker":
        """Return the same on `device`."""
        return replace(self, keys=self.keys.to(device), extent=self.extent.to(device))

    def __call__(self, images: Ragged, labels: Ragged, index: Int[Tensor, " B"], epoch: Word) -> ViewBatch:
        """Return views of the samples in rows `index`, whose pixels are `images` and `labels`."""
        return make_views(
            images,
            labels,
            config=self.config,
            seed=self.seed,
            epoch=epoch,
            sample=self.keys[index],
            size=self.size,
            extent=self.extent[index],
            num_views=self.num_views,
        )


def _extents(samples: Samples) -> Float[Tensor, "n d"]:
    """Return each sample's physical size: its native shape times the spacing (ones where the format has lost it)."""
    table, store = samples.table, samples.store
    sliced = store.preprocessing.unit == "slice"
    axes = [axis for axis in range(3) if not (sliced and axis == store.preprocessing.axis)]
    spacing = {case: [store.case_info(case).spacing[axis] for axis in axes] for case in table.cases}
    return torch.from_numpy(table.shape * np.array([spacing[case] for case in table.case.tolist()])).float()


def _read(samples: Samples, rows: Sequence[int]) -> tuple[Ragged, Ragged]:
    """Copy some samples out of the memory map."""
    pairs = [samples[row] for row in rows]
    for row, (_, label) in zip(rows, pairs, strict=True):
        if label is None:
            raise DataError(
                f"Expected labelled samples, but {samples.ids[row]} of {samples.store.path} has none. "
                "Leave its case out of the training split."
            )
    # torch can index with few unsigned types: only the smallest is safe.
    labels = [label if label.dtype == np.uint8 else label.astype(np.int32) for _, label in pairs]
    return Ragged.from_arrays([image for image, _ in pairs]), Ragged.from_arrays([label[None] for label in labels])


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


def _reopened(samples: Samples) -> Samples:
    """Return the same samples with separate memory maps, which are not open yet."""
    samples = copy.copy(samples)
    samples.store = copy.copy(samples.store)
    return samples


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a device's memory."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    table = Path("/proc/meminfo")
    lines = table.read_text().splitlines() if table.is_file() else []
    available = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    if available:
        return available[0]
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
            parts = _read(_reopened(samples), range(start, stop))
            for whole, part in zip((self.images, self.labels), parts, strict=True):
                end = ends[stop - 1] * whole.channels
                whole.values[end - len(part.values) : end] = part.values.to(device)
        self.make = make.to(device)

    def __call__(self, index: Int[Tensor, " B"], epoch: Word) -> ViewBatch:
        """Return views of the rows `index`, which is on the device, as is `epoch` in a captured CUDA graph."""
        return self.make(self.images.select(index), self.labels.select(index), index, epoch)


class _Reader(Dataset[tuple[Tensor, Any]]):
    """Reads the samples of a step, and makes their views too where that is done on the host."""

    def __init__(self, samples: Samples, make: ViewMaker | None):
        self.samples, self.make, self.mapped = _reopened(samples), make, 0

    def __getitem__(self, step: tuple[int, list[int]]) -> tuple[Tensor, Any]:
        epoch, rows = step
        index = torch.tensor(rows)
        images, labels = _read(self.samples, rows)
        self.mapped += images.values.nbytes + labels.values.nbytes
        if self.mapped > _MAPPED_BYTES:
            self.samples, self.mapped = _reopened(self.samples), 0
        return index, (images, labels) if self.make is None else self.make(images, labels, index, epoch)


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
    ):
        self.samples, self.device = samples, torch.device(device)
        config = views or ViewConfig()
        keys = sample_keys(samples.ids)
        extent = _extents(samples)
        self._make = ViewMaker(
            keys=keys, extent=extent, config=config, seed=seed, size=tuple(size), num_views=num_views
        )
        self._steps = _Steps(keys, seed, batch_limits(len(samples), batch_size, world), rank, world)
        # SciPy's numbers come from the CPU, whatever device they go to.
        on_host = self.device.type == "cpu" or config.mode == "released"
        room = budget * free_memory(self.device) if budget <= 1 else budget
        self.resident: ResidentSamples | None = None
        if _bytes(samples) <= room and (self.device.type == "cpu" or not on_host):
            self.resident = ResidentSamples(samples, self._make, self.device)
        else:
            self._stream = self._open_stream(on_host, workers)
            self._make = self._make.to(self.device)

    def _open_stream(self, on_host: bool, workers: int) -> DataLoader[tuple[Tensor, Any]]:
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

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, from step `start` on for a run that is resumed there."""
        self._steps.epoch, self._steps.start = epoch, start
        parts = self._streamed(epoch) if self.resident is None else self._from_memory(self.resident)
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

    def _from_memory(self, resident: ResidentSamples) -> Iterator[tuple[Tensor, ViewBatch]]:
        epoch = self._steps.epoch
        for index in self.indices(epoch, self._steps.start):
            yield index, resident(index, epoch)

    def _streamed(self, epoch: int) -> Iterator[tuple[Tensor, ViewBatch]]:
        for index, payload in self._stream:
            index = index.to(self.device, non_blocking=True)
            if isinstance(payload, dict):  # the views are made
                moved = {
                    name: tuple(view.to(self.device, non_blocking=True) for view in views)
                    for name, views in payload.items()
                }
                yield index, ViewBatch(**moved)  # type: ignore[typeddict-item]
            else:
                images, labels = (part.to(self.device) for part in payload)
                yield index, self._make(images, labels, index, epoch)
