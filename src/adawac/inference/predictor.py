"""Networks on stacks of slices: one rule for device, precision, memory, test-time augmentation and NaN.

Validation, `evaluate`, `predict` and the check of an ONNX export all compute here. Slices are resized to the network's
input, classified, and their classes resized back. Slices of several volumes, of whatever sizes, share a batch. On a GPU
nothing waits for anything: while it computes one batch, the host packs the next one into pinned memory, and label maps
come back a batch later.
"""

import functools
import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import combinations
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from adawac.data.cases import Array
from adawac.data.resample import Ragged, cubic_zoom, nearest_zoom, warp
from adawac.data.tiles import Tiling
from adawac.errors import ConfigError, RunError, lacks_memory
from adawac.inference.trained_network import Resize, Trained, to_device

log = logging.getLogger(__name__)

Shares = npt.NDArray[np.uint16]
Precision = Literal["fp32", "bf16"]
PixelLogits = Callable[[Array], npt.NDArray[np.float32]]
"""From flat pixels (n,) of a slice, on its own grid, to their logits (n, K)."""

#: Probability 1 as it is stored: NIfTI knows no half-precision numbers, but 16-bit integers with a factor.
FULL = 65535
_TINY = torch.finfo(torch.float32).tiny
_FLIPS: tuple[tuple[int, ...], ...] = ((), (2,), (3,), (2, 3))
# Slices of 224×224 at a time, fewer of larger ones: a GPU wants large batches; a processor's cache wants small ones.
_BATCH = {"cuda": 128, "cpu": 2}


def find_device(name: torch.device | str) -> torch.device:
    """Return the device of this name; `auto` is a GPU of CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0]  # torch lists all devices that there are anywhere
        raise ConfigError(
            f"Expected a device that torch can use, but got {str(name)!r} ({reason.rstrip('.')}). "
            "Use auto, cpu, cuda, cuda:1 or mps."
        ) from error
    return device


def default_batch(kind: str, image_size: Sequence[int]) -> int:
    """Return how many slices of this size a device of a kind (`cpu`, `cuda`) takes at a time."""
    return min(max(1, _BATCH.get(kind, 16) * 224 * 224 // math.prod(image_size)), 512)


def check_agreement(members: Sequence[Trained]) -> None:
    """Raise a `ConfigError` unless networks can vote on one scan: same input, same classes."""
    for first, other in combinations(members, 2):
        for name in ("class_names", "label_values", "channels", "preprocessing", "orientation", "image_size", "resize"):
            unknown = name == "orientation" and None in (first.orientation, other.orientation)
            if getattr(first, name) != getattr(other, name) and not unknown:
                raise ConfigError(
                    f"Expected networks with one {name.replace('_', ' ')} for an ensemble, but {first.source} has "
                    f"{getattr(first, name)} and {other.source} {getattr(other, name)}. Leave one of them out."
                )


class Ensemble(nn.Module):
    """The mean of the probabilities of several networks, each also on flipped images (test-time augmentation).

    One network without flips gives its logits as they are: their largest is that of the probabilities.
    """

    def __init__(self, networks: Iterable[nn.Module], tta: bool = False):
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.flips = _FLIPS if tta else _FLIPS[:1]

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, K, H, W), of which the largest of each pixel is its class."""
        if len(self.networks) == len(self.flips) == 1:
            return _finest(self.networks[0](images))
        total: Tensor | float = 0.0
        for network in self.networks:
            for flip in self.flips:
                total = _finest(network(images.flip(flip))).flip(flip).float().softmax(1) + total
        assert isinstance(total, Tensor)  # there is a network
        return total / (len(self.networks) * len(self.flips))

    def logits(self, scores: Tensor) -> Tensor:
        """Return what `forward` gave in a form whose softmax are the probabilities."""
        return scores.float() if len(self.networks) == len(self.flips) == 1 else scores.clamp_min(_TINY).log()

    def probabilities(self, scores: Tensor, temperature: float = 1.0) -> Tensor:
        """Return what `forward` gave as probabilities; a temperature changes no pixel's most probable class."""
        if temperature != 1.0 or len(self.networks) == len(self.flips) == 1:
            return (self.logits(scores) / temperature).softmax(1)
        return scores


def _finest(logits: Tensor | Sequence[Tensor]) -> Tensor:
    return logits if isinstance(logits, Tensor) else logits[0]


class Answer(NamedTuple):
    """What networks say of a stack of slices, on its own grid.

    Attributes:
        labels: (P, H, W) classes.
        shares: (P, K, H, W) probabilities in parts of `FULL`; None where they were not asked for.
        logits: One function for each slice; none where they were not asked for.
    """

    labels: Array
    shares: Shares | None
    logits: list[PixelLogits]


class Predictor:
    """Finds the class of every pixel of slices, with one network or the mean of several.

    - Networks compute in float32, on a GPU without TF32's rounding; `bf16` is autocast to bfloat16. On the CPU, and on
      a GPU with `bf16`, their weights become channels-last.
    - If a batch does not fit into the device's memory, it is computed in halves, and later batches are as small.
    - NaN or infinity in what the networks give is a `RunError`.

    Args:
        networks: The networks; they are put into evaluation mode and onto the device.
        image_size: Size of their input.
        resize: How images are resized to it: as in training. `released` has SciPy's numbers, both ways.
        name: Whose networks they are, for messages.
        device: `auto`, `cpu`, `cuda`, …
        precision: What the networks compute in.
        autocast: Replaces `precision`: what the networks compute under, as they are. Validation during training
            computes as the training does.
        tta: Average the probabilities over flipped images, too.
        batch_size: Slices at a time; by default what suits the device.
        temperature: Divides the logits of the probabilities; labels do not depend on it.
    """

    def __init__(
        self,
        networks: Iterable[nn.Module],
        image_size: Sequence[int],
        resize: Resize = "bilinear",
        *,
        name: str = "",
        device: torch.device | str = "cpu",
        precision: Precision = "fp32",
        autocast: Callable[[], AbstractContextManager[Any]] | None = None,
        tta: bool = False,
        batch_size: int | None = None,
        temperature: float = 1.0,
    ):
        self.temperature = temperature
        if precision not in get_args(Precision):
            raise ConfigError(f"Expected a precision of fp32 or bf16, but got {precision!r}. Give one of them.")
        if batch_size is not None and batch_size < 1:  # slices that are never used up would be packed forever
            raise ConfigError(f"Expected one slice or more at a time, but got batch_size={batch_size}. Raise it.")
        self.device, self.image_size, self.resize, self.name = find_device(device), image_size, resize, name
        self.ensemble = Ensemble(networks, tta).eval()
        self.batch_size = batch_size or default_batch(self.device.type, image_size)
        half = functools.partial(torch.autocast, self.device.type, torch.bfloat16)
        self._context = autocast or (half if precision == "bf16" else self._float32)
        if autocast is None:
            to_device(self.ensemble, self.device)
            if self.device.type == "cpu" or (precision == "bf16" and self.device.type == "cuda"):
                self.ensemble.to(memory_format=torch.channels_last)  # what oneDNN and the tensor cores want

    @classmethod
    def of(cls, members: Sequence[Trained], **options: Any) -> "Predictor":
        """Return the predictor of trained networks, which must agree; `options` are those of the class."""
        check_agreement(members)
        name = " or ".join(f"{trained.source}, checkpoint {trained.checkpoint}" for trained in members)
        networks = [trained.network for trained in members]
        return cls(networks, members[0].image_size, members[0].resize, name=name, **options)

    def predict(self, stacks: Iterable[Array]) -> Iterator[Array]:
        """Yield the label map (P, H, W) of each stack of slices (P, C, H, W), in their order and on their own grid."""
        return (answer.labels for answer in self.run(stacks))

    def run(self, stacks: Iterable[Array], *, probabilities: bool = False, logits: bool = False) -> Iterator[Answer]:
        """Yield the label map of each stack, and its probabilities and logits if they are wanted.

        Stacks are read no earlier than a batch needs them, and label maps leave as soon as they are whole.
        Probabilities come to the slices' grid as classes do, by nearest neighbour: at every pixel the class is the most
        probable one. Logits stay on the device, as large as the network gives them, until somebody asks for pixels.
        """
        return self._run(stacks, self.temperature if probabilities else None, logits)

    @torch.inference_mode()
    def _run(self, stacks: Iterable[Array], temperature: float | None, logits: bool = False) -> Iterator[Answer]:
        """Yield what `run` does, with probabilities at this temperature; without any for None."""
        ahead = 1 if self.device.type == "cuda" else 0  # batches that are under way while the next one is packed
        under_way: deque[_Pending] = deque()
        parts: list[Answer] = []
        for pieces in self._batches(stacks):
            try:
                under_way.append(self._start(pieces, temperature, logits))
            except (RuntimeError, MemoryError) as error:
                if not lacks_memory(error):
                    raise
                raise self._too_large(sum(len(piece.slices) for piece in pieces)) from error
            while len(under_way) > ahead:
                yield from self._finish(under_way.popleft(), parts)
        for batch in under_way:
            yield from self._finish(batch, parts)

    def blend(self, tiles: Iterable[Array], tiling: Tiling) -> Iterator[Array]:
        """Yield the label maps of pictures in bands (rows, W), top down, of their tiles (C, h, w) in order.

        Where tiles overlap, the mean of their probabilities decides. No more than a row of tiles is held. A picture of
        one tile has the label map that `predict` gives.
        """
        stacks = (tile[None] for tile in tiles)
        if len(tiling) == 1:
            yield from (labels[0] for labels in self.predict(stacks))
            return
        for band in self._blended(stacks, tiling):
            yield _classes(band)

    def blend_shares(self, tiles: Iterable[Array], tiling: Tiling) -> Iterator[tuple[Array, Shares]]:
        """Yield what `blend` does, and the probabilities of each band, (K, rows, W) in parts of `FULL`."""
        stacks = (tile[None] for tile in tiles)
        if len(tiling) == 1:
            for labels, shares, _ in self.run(stacks, probabilities=True):
                assert shares is not None  # they were asked for
                yield labels[0], shares[0]
            return
        for band in self._blended(stacks, tiling):
            logits = torch.from_numpy(band / FULL).clamp_min(_TINY).log() / self.temperature
            yield _classes(band), (logits.softmax(0) * FULL).round().int().numpy().astype(np.uint16)

    def _blended(self, stacks: Iterable[Array], tiling: Tiling) -> Iterator[Array]:
        """Yield bands (K, rows, W) of the mean probabilities.

        Not calibrated: a temperature would weigh the tiles differently, and change classes where they overlap.
        """
        shares = (share[0] for _, share, _ in self._run(stacks, temperature=1.0) if share is not None)
        for first in shares:
            yield from tiling.blend(itertools.chain([first], shares))

    @torch.inference_mode()
    def scores(self, images: Tensor) -> Tensor:
        """Return what the networks give for their input (B, C, *image_size): logits, or mean probabilities."""
        scores = self._compute(images.to(self.device))
        self._check_finite(bool(torch.isfinite(scores).all()))
        return scores

    # -- batches ------------------------------------------------------------------------------------------------------

    def _batches(self, stacks: Iterable[Array]) -> Iterator[list["_Piece"]]:
        batch: list[_Piece] = []
        room = self.batch_size
        for stack in stacks:
            start = 0
            while start < len(stack):
                stop = min(start + room, len(stack))
                batch.append(_Piece(stack[start:stop], last=stop == len(stack)))
                room -= stop - start
                start = stop
                if not room:
                    yield batch
                    batch, room = [], self.batch_size
        if batch:
            yield batch

    def _start(self, pieces: list["_Piece"], temperature: float | None, logits: bool) -> "_Pending":
        """Compute a batch; on a GPU, begin to."""
        images = network_input([piece.slices for piece in pieces], self.image_size, self.device, self.resize)
        scores = self._compute(images)
        classes = scores.argmax(1).to(torch.uint8 if scores.shape[1] <= 256 else torch.int32)
        finite = torch.isfinite(scores).all().to(classes.dtype).view(1)  # comes along: asking for it would wait
        shares = None
        if temperature is not None:
            probabilities = self.ensemble.probabilities(scores, temperature)
            shares = (probabilities * FULL).round().int().cpu().numpy().astype(np.uint16)
        labels = _fetch(torch.cat([*_native(classes, pieces, self.resize), finite]))
        return _Pending(pieces, labels, shares, self.ensemble.logits(scores) if logits else None)

    def _finish(self, batch: "_Pending", parts: list[Answer]) -> Iterator[Answer]:
        """Yield the stacks that are whole now; `parts` keeps those of the one that is not."""
        labels = batch.labels()
        self._check_finite(bool(labels[-1]))
        pixel = row = 0
        for piece in batch.pieces:
            count, plane = len(piece.slices), piece.slices.shape[2:]
            stop = pixel + count * math.prod(plane)
            of_piece = slice(row, row + count)
            shares = None if batch.shares is None else _native_shares(batch.shares[of_piece], plane, self.resize)
            logits = [] if batch.logits is None else self._at_pixels(batch.logits[of_piece], plane)
            parts.append(Answer(labels[pixel:stop].reshape(count, *plane), shares, logits))
            pixel, row = stop, row + count
            if piece.last:
                yield Answer(
                    np.concatenate([part.labels for part in parts]),
                    None
                    if shares is None
                    else np.concatenate([part.shares for part in parts if part.shares is not None]),
                    [function for part in parts for function in part.logits],
                )
                parts.clear()

    def _at_pixels(self, logits: Tensor, plane: Sequence[int]) -> list[PixelLogits]:
        """Return for each slice of a piece the function from its pixels to their logits."""
        rows, columns = (
            nearest_rows(old, new, self.resize, logits.device).sub(1).clamp_min(0)
            for old, new in zip(self.image_size, plane, strict=True)
        )
        return [functools.partial(_at_pixels, of_slice, rows, columns) for of_slice in logits]

    def _compute(self, images: Tensor) -> Tensor:
        parts, start = [], 0
        while start < len(images):
            part = images[start : start + self.batch_size]
            try:
                with self._context():
                    parts.append(self.ensemble(part))
                start += len(part)
            except (RuntimeError, MemoryError) as error:
                if not lacks_memory(error):
                    raise
                if len(part) == 1:
                    raise self._too_large(1) from error
                self.batch_size = len(part) // 2
                log.warning("%d slices do not fit into the device's memory: it gets %d.", len(part), self.batch_size)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _too_large(self, slices: int) -> RunError:
        advice = "Lower `batch_size`." if slices > 1 else "Use another device, or `device='cpu'`."
        return RunError(
            f"Expected a batch of {slices} to fit into the memory of {self.device}, but it did not. {advice}"
        )

    def _check_finite(self, finite: bool) -> None:
        if not finite:
            raise RunError(
                f"Expected finite numbers from the network{self.name and f' of {self.name}'}, but got NaN or infinity. "
                "Its training may have diverged: take another checkpoint, or train with a lower learning rate."
            )

    @contextmanager
    def _float32(self) -> Iterator[None]:
        """Compute in float32 as such: cuDNN rounds to TF32, unless somebody switched that off, as training does."""
        convolutions, products = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
        torch.backends.cudnn.allow_tf32 = False
        torch.set_float32_matmul_precision("highest")
        try:
            with torch.autocast(self.device.type, enabled=False):
                yield
        finally:
            torch.backends.cudnn.allow_tf32 = convolutions
            torch.set_float32_matmul_precision(products)


class _Piece(NamedTuple):
    """Slices of one stack that share a batch with others; `last` says that they end their stack."""

    slices: Array
    last: bool


class _Pending(NamedTuple):
    """A batch under way: `labels` waits for those of all pieces, end to end; the others are of the network's size."""

    pieces: list[_Piece]
    labels: Callable[[], Array]
    shares: Shares | None
    logits: Tensor | None


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


def _classes(probabilities: Array) -> Array:
    classes: Array = probabilities.argmax(0).astype(np.uint8 if len(probabilities) <= 256 else np.int32)
    return classes


# -- to the network's input and back ----------------------------------------------------------------------------------


def _at_pixels(logits: Tensor, rows: Tensor, columns: Tensor, pixels: Array) -> npt.NDArray[np.float32]:
    chosen = torch.from_numpy(pixels).to(logits.device)
    found: npt.NDArray[np.float32] = (
        logits[:, rows[chosen // len(columns)], columns[chosen % len(columns)]].T.cpu().numpy()
    )
    return found


def network_input(stacks: list[Array], size: Sequence[int], device: torch.device, resize: Resize) -> Tensor:
    """Return all slices as the network's input, (B, C, *size)."""
    if resize == "released":
        zoomed = [[cubic_zoom(channel, size) for channel in image] for stack in stacks for image in stack]
        return torch.from_numpy(np.array(zoomed, dtype=np.float32)).to(device)
    packed = _packed(stacks, pinned=device.type == "cuda").to(device)
    identity = torch.eye(2, 3, device=device).expand(len(packed), 2, 3)
    return warp(packed, None, identity, size, resize)[0]


def _packed(stacks: list[Array], pinned: bool) -> Ragged:
    """Lay slices end to end: one copy, into pinned memory for a GPU."""
    values = torch.empty(sum(stack.size for stack in stacks), pin_memory=pinned)
    np.concatenate([stack.reshape(-1) for stack in stacks], out=values.numpy())
    shapes = np.concatenate([np.tile(stack.shape[2:], (len(stack), 1)) for stack in stacks])
    channels = stacks[0].shape[1]
    sizes = torch.from_numpy(shapes.prod(axis=1) * channels)
    return Ragged(values=values, offsets=sizes.cumsum(0) - sizes, shapes=torch.from_numpy(shapes), channels=channels)


def _native(classes: Tensor, pieces: list[_Piece], resize: Resize) -> Iterator[Tensor]:
    """Yield class maps (B, H, W) on the slices' own grids, flattened."""
    padded = nn.functional.pad(classes, (1, 0, 1, 0))  # row and column 0 are background, for what SciPy fills
    start = 0
    for piece in pieces:
        height, width = piece.slices.shape[2:]
        rows = nearest_rows(classes.shape[1], height, resize, classes.device)
        columns = nearest_rows(classes.shape[2], width, resize, classes.device)
        part = padded[start : start + len(piece.slices)]
        yield part.index_select(1, rows).index_select(2, columns).flatten()
        start += len(piece.slices)


def _native_shares(shares: Shares, plane: Sequence[int], resize: Resize) -> Shares:
    """Return probabilities (P, K, h, w) on the slices' own grid; what SciPy fills is background."""
    rows, columns = (
        nearest_rows(old, new, resize, torch.device("cpu")).numpy() - 1
        for old, new in zip(shares.shape[2:], plane, strict=True)
    )
    native = np.empty((*shares.shape[:2], *plane), dtype=np.uint16)
    for new, old in zip(native, shares, strict=True):
        new[:] = old[:, np.maximum(rows, 0)][:, :, np.maximum(columns, 0)]
    outside = (rows < 0)[:, None] | (columns < 0)
    native[:, :, outside] = 0
    native[:, 0, outside] = FULL
    return native


@functools.lru_cache(maxsize=512)
def nearest_rows(old: int, new: int, resize: Resize, device: torch.device) -> Tensor:
    """Return the number of the old row, from 1, that each new row shows; 0 where it shows none.

    The resize itself says so: it moves the rows' numbers.
    """
    if resize == "released":
        zoomed = nearest_zoom(np.arange(1, old + 1)[:, None], (new, 1))[:, 0]
        return torch.from_numpy(zoomed.astype(np.int64)).to(device)
    numbers = torch.arange(1, old + 1).view(1, old, 1)
    _, moved = warp(torch.zeros(1, 1, old, 1), numbers, torch.eye(2, 3)[None], (new, 1), "nearest")
    assert moved is not None  # there are labels
    return moved[0, :, 0].to(device)
