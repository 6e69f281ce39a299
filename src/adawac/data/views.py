"""A₁ and A₂: random views of a sample as affine maps, with random numbers that belong to the sample."""

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import Dataset

from adawac.config import ViewConfig as ViewConfig  # part of this module, too
from adawac.data.resample import Ragged, warp
from adawac.errors import DataError, ShapeError

Word = int | Tensor
_STEP = 0x9E3779B97F4A7C15  # 2⁶⁴ over the golden ratio: consecutive words land far apart


def random_bits(sample: Int[Tensor, "..."], *words: Word) -> Int[Tensor, "..."]:
    """Return 64 random bits for each sample, a function of it and of `words` alone; they broadcast against it."""
    for word in words:
        following = word + 1  # 0 counts too
        step = _signed(following * _STEP) if isinstance(following, int) else following * _signed(_STEP)
        sample = _mix(sample + step)
    return sample


def _mix(state: Tensor) -> Tensor:
    """Return SplitMix64's output function of int64 words, whose products wrap around."""
    for right, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ ((state >> right) & ((1 << (64 - right)) - 1))) * _signed(factor)
    return state ^ ((state >> 31) & ((1 << 33) - 1))


def _signed(word: int) -> int:
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word


def sample_keys(ids: Iterable[str]) -> Int[Tensor, " n"]:
    """Return an integer for each stable id: randomness that follows it stays the same when rows move."""
    digests = b"".join(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in ids)
    return torch.from_numpy(np.frombuffer(digests, dtype="<i8").astype(np.int64))


def random_order(seed: int, epoch: int, sample: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Return the rows in the random order of an epoch, a function of (seed, epoch) and of which samples there are."""
    return random_bits(sample, seed, epoch, -2).argsort(stable=True)


#: No augmentation: a view is the resized image.
IDENTITY = ViewConfig(turn=0.0, rotate=0.0)


class ViewBatch(TypedDict):
    """The views of a batch: images, labels and the map of each to the resized untransformed image."""

    images: tuple[Float[Tensor, "B C *S"], ...]
    labels: tuple[Int[Tensor, "B *S"], ...]
    views: tuple[Float[Tensor, "B d d+1"], ...]


# -- what is drawn ----------------------------------------------------------------------------------------------------


class ViewDraws(NamedTuple):
    """What was drawn for a batch of views, one entry per sample.

    Attributes:
        turns: k of the turn by k·90°.
        flip: Array axis of the flip, or -1.
        angle: Degrees of the small rotation.
        zoom: Enlargement.
        shift: (B, 2) movement along x and y as a fraction of the image's size.
        power: Exponent for the intensities.
        sigma: Standard deviation of the noise.
        key: What the noise is derived from.
    """

    turns: Int[Tensor, " B"]
    flip: Int[Tensor, " B"]
    angle: Int[Tensor, " B"]
    zoom: Float[Tensor, " B"]
    shift: Float[Tensor, "B 2"]
    power: Float[Tensor, " B"]
    sigma: Float[Tensor, " B"]
    key: Int[Tensor, " B"]

    def theta(self, extent: Float[Tensor, "B d"]) -> Float[Tensor, "B d d+1"]:
        """Return the maps from a view to the resized untransformed image.

        Args:
            extent: Height and width ([depth,] height, width in 3D) of each native image, in pixels or in millimetres.
                In 3D the rotations are about the first axis.
        """
        dims = extent.shape[1]
        aspect = torch.where(self.flip >= 0, 1.0, extent[:, -2] / extent[:, -1])  # a turn moves the canvas too
        cosine, sine = (self._degrees(offset) for offset in (0, -90))
        theta = torch.zeros(len(extent), dims, dims + 1, device=extent.device)
        theta[:, 0, 0] = theta[:, 1, 1] = cosine
        theta[:, 0, 1] = -sine * aspect
        theta[:, 1, 0] = sine / aspect
        if dims == 3:
            theta[:, 2, 2] = 1
        theta = theta / self.zoom[:, None, None]
        for axis in range(dims):
            theta[:, :, dims - 1 - axis] *= torch.where(self.flip == axis, -1.0, 1.0)[:, None]
        theta[:, :2, dims] = 2 * self.shift
        return theta

    def _degrees(self, offset: int) -> Tensor:
        return _cosines(self.angle.device)[(90 * self.turns + self.angle + offset) % 360]


@functools.cache
def _cosines(device: torch.device) -> Tensor:
    """Return the cosine of each degree: one table, so that devices agree, and exact at right angles."""
    return torch.from_numpy(np.cos(np.deg2rad(np.arange(360))).round(12).astype(np.float32)).to(device)


def sample_views(
    config: ViewConfig, seed: int, epoch: Word, sample: Int[Tensor, " B"], view: Word, dims: int = 2
) -> ViewDraws:
    """Draw a view of each sample: a function of (seed, epoch, sample, view) alone.

    Args:
        config: The distribution.
        seed: The run's seed.
        epoch: A number, or a tensor of one element on the samples' device (for a captured CUDA graph).
        sample: An integer that names each sample: its row, or its `sample_keys`.
        view: 0 for A₁, 1 for A₂; or one such number per sample.
        dims: 2 or 3.
    """
    key = random_bits(sample, seed, epoch, view)
    counter = torch.arange(10, device=sample.device)[:, None]
    bits = (random_bits(key[None], counter) >> 40) & 0xFFFFFF  # 24 bits: a float32 holds them exactly
    uniform = bits.float() / (1 << 24)

    def integer(row: int, low: int, count: int) -> Tensor:
        return low + ((bits[row] * count) >> 24)

    turned = uniform[0] < config.turn
    rotated = ~turned & (uniform[1] < config.rotate)
    return ViewDraws(
        turns=torch.where(turned, integer(2, 0, 4), 0),
        flip=torch.where(turned, integer(3, 0, dims), -1),
        angle=torch.where(rotated, integer(4, -config.max_angle, 2 * config.max_angle), 0),
        zoom=1 + config.scale * (2 * uniform[5] - 1),
        shift=config.shift * (2 * uniform[6:8].T - 1),
        power=(1 + config.gamma) ** (2 * uniform[8] - 1),
        sigma=config.noise * uniform[9],
        key=key,
    )


# -- images -----------------------------------------------------------------------------------------------------------


def make_views(
    images: Ragged,
    labels: Ragged,
    *,
    config: ViewConfig,
    seed: int,
    epoch: Word,
    sample: Int[Tensor, " B"],
    size: Sequence[int],
    extent: Float[Tensor, "B d"] | None = None,
    num_views: int = 2,
) -> ViewBatch:
    """Return views of a batch, made on the device that it is on.

    Args:
        images: B native images.
        labels: Their label maps, one channel.
        config: The distribution of views.
        seed: The run's seed.
        epoch: The epoch, see `sample_views`.
        sample: An integer that names each sample.
        size: Size of the network's input.
        extent: Physical size of each image; its size in pixels where that is not known.
        num_views: 2 for A₁ and A₂, 1 for A₁ alone.
    """
    count, dims = len(images), len(size)
    rows = torch.arange(count, device=sample.device).repeat(num_views)
    view = torch.arange(num_views, device=sample.device).repeat_interleave(count)
    draws = sample_views(config, seed, epoch, sample[rows], view, dims)
    if config.mode == "released":
        from adawac.data.released import transform

        x, y, theta = transform(images.select(rows), labels.select(rows), draws, size)
    else:
        theta = draws.theta((images.shapes if extent is None else extent).float()[rows])
        x, read = warp(images.select(rows), labels.select(rows), theta, size, config.interpolation)
        assert read is not None  # labels were given
        x, y = _adjust(x, draws, config), read
    return ViewBatch(images=x.chunk(num_views), labels=y.chunk(num_views), views=theta.chunk(num_views))


def _adjust(x: Tensor, draws: ViewDraws, config: ViewConfig) -> Tensor:
    """Change intensities: gamma, then noise."""

    def column(values: Tensor) -> Tensor:
        return values.view(-1, *[1] * (x.ndim - 1))

    if config.gamma:
        axes = tuple(range(1, x.ndim))
        low, high = x.amin(axes, keepdim=True), x.amax(axes, keepdim=True)
        span = (high - low).clamp(min=torch.finfo(x.dtype).tiny)
        x = ((x - low) / span) ** column(draws.power) * span + low
    if config.noise:
        bits = random_bits(column(draws.key) + torch.arange(x[0].numel(), device=x.device).view(x[0].shape), 1, 1)
        radius = (((bits & 0xFFFFFF) + 1).to(x.dtype) / (1 << 24)).log().mul(-2).sqrt()
        phase = ((bits >> 40) & 0xFFFFFF).to(x.dtype) * (2 * torch.pi / (1 << 24))
        x = x + column(draws.sigma) * radius * phase.cos()  # Box and Muller
    return x


class PairDataset(Dataset[dict[str, Any]]):
    """Two random views of each item of any map-style dataset of (image, label), with the item's row.

    An item is `{"images": (x1, x2), "labels": (y1, y2), "index": i, "views": (theta1, theta2)}`; torch's default
    collate makes batches of them that go straight into the criterion.

    Views are a function of (seed, epoch, row, view). Call `set_epoch` before each epoch, as for a `DistributedSampler`;
    it reaches persistent workers too. If it is never called, every item counts how often it was read, so views differ
    from epoch to epoch all the same, but a resumed run does not continue them.

    Args:
        dataset: Items are (image, label) or `{"image": …, "label": …}`: an image (C, *S) or (*S) and class indices (*S)
            of any integer type, as tensors or as NumPy arrays, in 2D or 3D.
        size: Size of the views, or one number for all sides; each item's own by default.
        seed: Seed of the views.
        config: The distribution of views.
        spacing: Size of a pixel along each axis, if not the same for all.

    Example:
        >>> import adawac
        >>> from adawac.data.phantom import phantom_cases
        >>> case = next(phantom_cases(1, size=32, slices=(8, 8)))
        >>> slices = [(case.image[:, k], case.label[k]) for k in range(8)]
        >>> pairs = adawac.PairDataset(slices, size=24, seed=1)
        >>> item = pairs[5]
        >>> item["images"][0].shape, item["labels"][1].shape, item["index"]
        (torch.Size([1, 24, 24]), torch.Size([24, 24]), 5)
    """

    def __init__(
        self,
        dataset: Any,
        size: int | Sequence[int] | None = None,
        seed: int = 0,
        config: ViewConfig | None = None,
        spacing: Sequence[float] | None = None,
    ):
        self.dataset, self.size, self.seed = dataset, size, seed
        self.config = config or ViewConfig()
        self.spacing = spacing
        self._epoch = torch.full((1,), -1).share_memory_()
        self._reads = torch.zeros(len(dataset), dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch for this process and its workers, running ones included."""
        self._epoch.fill_(epoch)

    def __getitem__(self, index: int) -> dict[str, Any]:
        index = range(len(self))[index]
        image, label = _image_and_label(self.dataset[index], index)
        epoch = int(self._epoch)
        if epoch < 0:
            epoch = int(self._reads[index])
            self._reads[index] += 1
        extent = torch.tensor([label.shape]) * torch.tensor(self.spacing or [1.0] * label.ndim)
        views = make_views(
            Ragged.from_batch(image[None]),
            Ragged.from_batch(label[None, None]),
            config=self.config,
            seed=self.seed,
            epoch=epoch,
            sample=torch.tensor([index]),
            size=_view_size(self.size, label),
            extent=extent,
        )
        parts = {name: tuple(part[0] for part in views[name]) for name in ("images", "labels", "views")}
        return {"index": index, **parts}


def _view_size(size: int | Sequence[int] | None, label: Tensor) -> tuple[int, ...]:
    sides = label.shape if size is None else (size,) * label.ndim if isinstance(size, int) else tuple(size)
    if len(sides) != label.ndim or not all(isinstance(side, int) and side > 0 for side in sides):
        raise ShapeError(
            f"Expected a size of {label.ndim} positive whole numbers, or of one for all sides, but got {size!r}. "
            f"An item has the shape {tuple(label.shape)}."
        )
    return tuple(sides)


def _image_and_label(item: Any, index: int) -> tuple[Tensor, Tensor]:
    """Return an item as image (C, *S) and label (*S)."""
    try:
        pair = (item["image"], item["label"]) if isinstance(item, Mapping) else (item[0], item[1])
        image, label = (part if isinstance(part, Tensor) else torch.from_numpy(np.array(part)) for part in pair)
    except (LookupError, TypeError) as error:
        what = f"the keys {', '.join(map(str, item))}" if isinstance(item, Mapping) else type(item).__name__
        raise DataError(
            f'Expected (image, label) or {{"image": …, "label": …}} of tensors or arrays, but item {index} is not that '
            f"({what}: {error}). Wrap your dataset so that it returns them."
        ) from error
    shapes = f"an image of shape {tuple(image.shape)} and a label of shape {tuple(label.shape)}"
    if image.ndim == label.ndim > 2 and label.shape[0] == 1:
        label = label[0]
    if image.ndim == label.ndim:
        image = image[None]
    if image.shape[1:] != label.shape or label.ndim not in (2, 3) or label.is_floating_point():
        raise ShapeError(
            f"Expected an image (C, *S) and integer labels (*S) in 2D or 3D, but got {shapes} of type {label.dtype} "
            f"from item {index}. Return class indices on the image's grid."
        )
    # torch can index with few unsigned types: only the smallest is safe.
    return image, label.long() if label.dtype in (torch.uint16, torch.uint32, torch.uint64) else label
