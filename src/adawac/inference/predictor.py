"""A network on whole volumes, slice by slice: resized to the network's input, classified, resized back.

Slices of several volumes, of whatever sizes, share a batch. On a GPU nothing waits for anything: while it computes one
batch, the host packs the next one into pinned memory, and label maps come back a batch later.
"""

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from adawac.data.resample import Ragged, warp
from adawac.errors import ConfigError

Array = npt.NDArray[Any]
Resize = Literal["bilinear", "cubic", "released"]


def resize_of(views: Mapping[str, Any]) -> Resize:
    """Return how slices are resized for a network that was trained with these options of `data.views`."""
    return "released" if views.get("mode") == "released" else views.get("interpolation", "bilinear")


def segment(
    network: nn.Module,
    slices: Array,
    size: Sequence[int],
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 24,
    resize: Resize = "bilinear",
) -> Array:
    """Return the class of every pixel of a stack of slices, on the slices' own grid.

    Args:
        network: The network, on `device`, in the mode that is wanted (evaluation, as a rule).
        slices: (P, C, H, W), as a store has them.
        size: Size of the network's input.
        device: Where to compute.
        batch_size: Slices at a time.
        resize: How images are resized: as in training (see `resize_of`). `released` has SciPy's numbers, both ways.
    """
    (labels,) = segment_stacks(network, [slices], size, device=device, batch_size=batch_size, resize=resize)
    return labels


@torch.inference_mode()
def segment_stacks(
    network: nn.Module,
    stacks: Iterable[Array],
    size: Sequence[int],
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 24,
    resize: Resize = "bilinear",
) -> Iterator[Array]:
    """Yield the label map of each of many stacks of slices, in their order; see `segment`.

    Stacks are read no earlier than a batch needs them, and label maps leave as soon as they are whole.
    """
    device = torch.device(device)
    ahead = 1 if device.type == "cuda" else 0  # batches that are under way while the next one is packed
    under_way: deque[tuple[list[_Piece], Callable[[], Array]]] = deque()
    unfinished = _Assembly()
    for pieces in _batches(stacks, batch_size):
        images = _images([piece.slices for piece in pieces], size, device, resize)
        classes = _finest(network(images))
        classes = classes.argmax(1).to(torch.uint8 if classes.shape[1] <= 256 else torch.int32)
        under_way.append((pieces, _fetch(_native(classes, pieces, resize))))
        while len(under_way) > ahead:
            yield from unfinished.add(*under_way.popleft())
    for pieces, fetched in under_way:
        yield from unfinished.add(pieces, fetched)


class _Piece(NamedTuple):
    """Slices of one stack that share a batch with others; `last` says that they end their stack."""

    slices: Array
    last: bool


def _batches(stacks: Iterable[Array], batch_size: int) -> Iterator[list[_Piece]]:
    if batch_size < 1:  # slices that are never used up would be packed for ever
        raise ConfigError(f"Expected at least one slice at a time, but got batch_size={batch_size}. Give 1 or more.")
    batch: list[_Piece] = []
    room = batch_size
    for stack in stacks:
        start = 0
        while start < len(stack):
            stop = min(start + room, len(stack))
            batch.append(_Piece(stack[start:stop], last=stop == len(stack)))
            room -= stop - start
            start = stop
            if not room:
                yield batch
                batch, room = [], batch_size
    if batch:
        yield batch


class _Assembly:
    """Puts the label maps of pieces together to those of stacks."""

    def __init__(self) -> None:
        self._parts: list[Array] = []

    def add(self, pieces: list[_Piece], fetched: Callable[[], Array]) -> Iterator[Array]:
        """Take the labels of a batch, end to end, and yield the stacks that are whole now."""
        labels, start = fetched(), 0
        for piece in pieces:
            shape = (len(piece.slices), *piece.slices.shape[2:])
            stop = start + int(np.prod(shape))
            self._parts.append(labels[start:stop].reshape(shape))
            start = stop
            if piece.last:
                yield np.concatenate(self._parts)
                self._parts = []


# -- to the network's input and back ----------------------------------------------------------------------------------


def _images(stacks: list[Array], size: Sequence[int], device: torch.device, resize: Resize) -> Tensor:
    """Return all slices as the network's input, (B, C, *size)."""
    if resize == "released":
        from adawac.data.released import cubic_zoom

        zoomed = [[cubic_zoom(channel, size) for channel in image] for stack in stacks for image in stack]
        return torch.from_numpy(np.array(zoomed, dtype=np.float32)).to(device)
    packed = _packed(stacks, pinned=device.type == "cuda").to(device)
    identity = torch.eye(2, 3, device=device).expand(len(packed), 2, 3)
    return warp(packed, None, identity, size, resize)[0]


def _packed(stacks: list[Array], pinned: bool) -> Ragged:
    """Lay slices end to end: one copy, out of the memory map and into pinned memory for a GPU."""
    values = torch.empty(sum(stack.size for stack in stacks), pin_memory=pinned)
    np.concatenate([stack.reshape(-1) for stack in stacks], out=values.numpy())
    shapes = np.concatenate([np.tile(stack.shape[2:], (len(stack), 1)) for stack in stacks])
    channels = stacks[0].shape[1]
    sizes = torch.from_numpy(shapes.prod(axis=1) * channels)
    return Ragged(values=values, offsets=sizes.cumsum(0) - sizes, shapes=torch.from_numpy(shapes), channels=channels)


def _native(classes: Tensor, pieces: list[_Piece], resize: Resize) -> Tensor:
    """Return class maps (B, H, W) on the slices' own grids, end to end."""
    padded = nn.functional.pad(classes, (1, 0, 1, 0))  # row and column 0 are background, for what SciPy fills
    parts, start = [], 0
    for piece in pieces:
        height, width = piece.slices.shape[2:]
        rows = nearest_rows(classes.shape[1], height, resize, classes.device)
        columns = nearest_rows(classes.shape[2], width, resize, classes.device)
        part = padded[start : start + len(piece.slices)]
        parts.append(part.index_select(1, rows).index_select(2, columns).flatten())
        start += len(piece.slices)
    return torch.cat(parts)


@functools.lru_cache(maxsize=512)
def nearest_rows(old: int, new: int, resize: Resize, device: torch.device) -> Tensor:
    """Return which of the old rows, counted from 1, each new row shows; 0 is none.

    Whoever resizes says so himself: he moves the rows' numbers.
    """
    if resize == "released":
        from adawac.data.released import nearest_zoom

        zoomed = nearest_zoom(np.arange(1, old + 1)[:, None], (new, 1))[:, 0]
        return torch.from_numpy(zoomed.astype(np.int64)).to(device)
    numbers = torch.arange(1, old + 1).view(1, old, 1)
    _, moved = warp(torch.zeros(1, 1, old, 1), numbers, torch.eye(2, 3)[None], (new, 1), "nearest")
    assert moved is not None  # labels were given
    return moved[0, :, 0].to(device)


def _fetch(labels: Tensor) -> Callable[[], Array]:
    """Start the copy to the host; what is returned waits for it."""
    if labels.device.type != "cuda":
        return lambda: labels.cpu().numpy()
    host = torch.empty(labels.shape, dtype=labels.dtype, pin_memory=True)
    host.copy_(labels, non_blocking=True)
    done = torch.cuda.Event()
    done.record()

    def wait() -> Array:
        done.synchronize()
        return host.numpy()

    return wait


def _finest(logits: Tensor | Sequence[Tensor]) -> Tensor:
    return logits if isinstance(logits, Tensor) else logits[0]
