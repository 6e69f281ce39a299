"""A₁ and A₂: random views of a sample as affine maps, with random numbers that belong to the sample."""

import functools
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from adawac.config import ViewConfig as ViewConfig  # part of this module, too
from adawac.data.resample import Ragged, column, released_views, warp
from adawac.errors import ConfigError, DataError, ShapeError

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
        brightness: What is added to all channels.
        contrast: Factor of the differences from the middle of the intensities' range.
        saturation: Factor of the colours' saturation.
        hue: Degrees that hues are turned by.
        blur: Standard deviation of the Gaussian that blurs, in pixels.
    """

    turns: Int[Tensor, " B"]
    flip: Int[Tensor, " B"]
    angle: Int[Tensor, " B"]
    zoom: Float[Tensor, " B"]
    shift: Float[Tensor, "B 2"]
    power: Float[Tensor, " B"]
    sigma: Float[Tensor, " B"]
    key: Int[Tensor, " B"]
    brightness: Float[Tensor, " B"]
    contrast: Float[Tensor, " B"]
    saturation: Float[Tensor, " B"]
    hue: Int[Tensor, " B"]
    blur: Float[Tensor, " B"]

    def theta(self, extent: Float[Tensor, "B d"]) -> Float[Tensor, "B d d+1"]:
        """Return the maps from a view to the resized untransformed image.

        Args:
            extent: Height and width ([depth,] height, width in 3D) of each native image, in pixels or in millimetres.
                In 3D the rotations are about the first axis.
        """
        dims = extent.shape[1]
        aspect = torch.where(self.flip >= 0, 1.0, extent[:, -2] / extent[:, -1])  # a turn moves the canvas too
        degrees = 90 * self.turns + self.angle
        cosine, sine = (_cosines(degrees.device)[(degrees + offset) % 360] for offset in (0, -90))
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
    counter = torch.arange(15, device=sample.device)[:, None]
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
        brightness=config.brightness * (2 * uniform[10] - 1),
        contrast=(1 + config.contrast) ** (2 * uniform[11] - 1),
        saturation=1 + config.saturation * (2 * uniform[12] - 1),
        hue=integer(13, -config.hue, 2 * config.hue),
        blur=config.blur * uniform[14],
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
    outside: float | Sequence[float] = 0,
    outside_label: int = 0,
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
        outside: What views show beyond the image, one value or one for each channel; `released` has 0.
        outside_label: The label there.
    """
    check_channels(config, images.channels)
    count, dims = len(images), len(size)
    rows = torch.arange(count, device=sample.device).repeat(num_views)
    view = torch.arange(num_views, device=sample.device).repeat_interleave(count)
    draws = sample_views(config, seed, epoch, sample[rows], view, dims)
    if config.mode == "released":
        x, y, theta = released_views(images.select(rows), labels.select(rows), draws, size)
    else:
        theta = draws.theta((images.shapes if extent is None else extent).float()[rows])
        both = images.select(rows), labels.select(rows)
        x, read = warp(*both, theta, size, config.interpolation, outside, outside_label)
        assert read is not None  # labels were given
        x, y = _adjust(x, draws, config), read
    return ViewBatch(images=x.chunk(num_views), labels=y.chunk(num_views), views=theta.chunk(num_views))


def check_channels(config: ViewConfig, channels: int) -> None:
    """Refuse to change the colours of images that have none."""
    if (config.hue or config.saturation) and channels != len(_LUMA):
        raise ConfigError(
            f"Expected images of {len(_LUMA)} channels, red, green and blue, for views with hue or saturation, but got "
            f"{channels}. Leave both out: brightness, contrast, gamma, blur and noise suit any channels."
        )


def _adjust(x: Tensor, draws: ViewDraws, config: ViewConfig) -> Tensor:
    """Change intensities: gamma, contrast and brightness, colours, blur, then noise."""
    dims = x.ndim - 2
    if config.gamma or config.contrast:
        axes = tuple(range(1, x.ndim))
        low, high = x.amin(axes, keepdim=True), x.amax(axes, keepdim=True)
    if config.gamma:
        span = (high - low).clamp(min=torch.finfo(x.dtype).tiny)
        x = ((x - low) / span) ** column(draws.power, dims) * span + low
    if config.contrast:
        middle = (low + high) / 2
        x = (x - middle) * column(draws.contrast, dims) + middle
    if config.brightness:
        x = x + column(draws.brightness, dims)
    if config.hue or config.saturation:
        x = (_colour_maps(draws)[:, :, :, None] * x.flatten(2)[:, None]).sum(2).view(x.shape)
    if config.blur:
        x = _blur(x, draws.blur, config.blur)
    if config.noise:
        pixels = torch.arange(x[0].numel(), device=x.device).view(x[0].shape)
        bits = random_bits(column(draws.key, dims) + pixels, 1, 1)
        radius = (((bits & 0xFFFFFF) + 1).to(x.dtype) / (1 << 24)).log().mul(-2).sqrt()
        phase = ((bits >> 40) & 0xFFFFFF).to(x.dtype) * (2 * torch.pi / (1 << 24))
        x = x + column(draws.sigma, dims) * radius * phase.cos()  # Box and Muller
    return x


# How bright red, green and blue are, and two axes of colour, as in NTSC's signal; all three change hue and saturation
# without a change of brightness.
_LUMA = (0.299, 0.587, 0.114)
_COLOURS = (_LUMA, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312))


@functools.cache
def _colour_parts(device: torch.device) -> Tensor:
    """Return three maps of colours (3, 3, 3): to grey, to what is left, and that turned by a quarter."""
    there = np.array(_COLOURS)
    there[1:] -= there[1:].mean(axis=1, keepdims=True)  # grey has no colour at all
    back = np.linalg.inv(there)
    quarter = np.array([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]])
    parts = [back @ np.diag([1.0, 0, 0]) @ there, back @ np.diag([0.0, 1, 1]) @ there, back @ quarter @ there]
    return torch.from_numpy(np.stack(parts).astype(np.float32)).to(device)


def _colour_maps(draws: ViewDraws) -> Float[Tensor, "B 3 3"]:
    """Return the matrix that turns the hue of each view and changes its saturation."""
    table = _cosines(draws.hue.device)
    cosine, sine = (draws.saturation * table[(draws.hue + offset) % 360] for offset in (0, -90))
    factors = torch.stack([torch.ones_like(cosine), cosine, sine], 1)
    return (factors[:, :, None, None] * _colour_parts(draws.hue.device)).sum(1)


def _blur(x: Tensor, sigma: Float[Tensor, " B"], largest: float) -> Tensor:
    """Blur each image with a Gaussian along each axis; the border pixels go on.

    The sum over neighbours is written out, since a GPU's convolutions would round to TF32.
    """
    dims, radius = x.ndim - 2, math.ceil(3 * largest)
    steps = torch.arange(-radius, radius + 1, device=x.device)
    weights = torch.exp(-0.5 * (steps / sigma[:, None].clamp(min=1e-3)) ** 2).to(x.dtype)
    weights = weights / weights.sum(1, keepdim=True)
    for axis in range(2, x.ndim):
        size = x.shape[axis]
        places = torch.arange(size, device=x.device)
        x = sum(
            (
                column(weights[:, number], dims) * x.index_select(axis, (places + number - radius).clamp(0, size - 1))
                for number in range(len(steps))
            ),
            start=torch.zeros_like(x),
        )
    return x


class PairDataset(Dataset[dict[str, Any]]):
    """Two random views of each item of any map-style dataset of (image, label), with the item's row.

    An item is `{"images": (x1, x2), "labels": (y1, y2), "index": i, "views": (theta1, theta2)}`; torch's default
    collate makes batches of them that go straight into the criterion.

    Views are a function of (seed, epoch, row, view). Call `set_epoch` before each epoch, as for a `DistributedSampler`;
    it reaches persistent workers too. If it is never called, every item counts how often it was read, so views differ
    from epoch to epoch all the same, but a resumed run does not continue them.

    Args:
        dataset: Items are (image, label), `{"image": …, "label": …}` or `{"image": …, "mask": …}`: an image `(C, *S)`,
            `(*S, C)` or `(*S)` and class indices `(*S)`, with an axis of one channel or without, as tensors, NumPy
            arrays or PIL images, in 2D or 3D. Values stay as they are: scale images before. With `ignore_index`, the
            label map of an unlabelled sample may be None.
        size: Size of the views, or one number for all sides; each item's own by default.
        seed: Seed of the views.
        config: The distribution of views.
        spacing: Size of a pixel along each axis, if not the same for all.
        ignore_index: Label of pixels that count nowhere. Views of a label map that has no others have no others either,
            also where they show what lies beyond the image: the sample stays unlabelled.
        outside: What views show beyond the image: the value of air after your normalisation, for example; one number,
            or one for each channel.
        ignore_outside: Label it `ignore_index` there, not background.

    Examples:
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
        ignore_index: int | None = None,
        outside: float | Sequence[float] = 0.0,
        ignore_outside: bool = False,
    ):
        if isinstance(dataset, IterableDataset) or not (
            hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        ):
            raise DataError(
                "Expected a map-style data set, dataset[i] and len(dataset), since a sample has the same row in each "
                f"epoch, but got a {type(dataset).__name__}. Give PairDataset(list(…)) of (image, label) where that "
                "fits into memory, or a data set that reads item i; wrap it before the DataLoader."
            )
        self.dataset, self.size, self.seed = dataset, size, seed
        self.config = config or ViewConfig()
        self.spacing, self.ignore_index = spacing, ignore_index
        self.outside, self.ignore_outside = _outside(outside), ignore_outside
        if ignore_outside and ignore_index is None:
            raise ConfigError("Expected ignore_index with ignore_outside=True, but got none. Give both.")
        if self.config.mode == "released" and (self.outside != 0 or ignore_outside):
            raise ConfigError(
                "Expected outside=0 for views of mode 'released', which are the released code's own, but got "
                f"outside={outside!r}, ignore_outside={ignore_outside}. Use mode 'affine'."
            )
        self._epoch = torch.full((1,), -1).share_memory_()
        self._reads = torch.zeros(len(dataset), dtype=torch.int64).share_memory_()

    def __repr__(self) -> str:
        given = {"size": self.size, "seed": self.seed, "spacing": self.spacing, "ignore_index": self.ignore_index}
        settings = [f"{name}={value!r}" for name, value in given.items() if value is not None]
        if changed := [f"{k}={v!r}" for k, v in vars(self.config).items() if v != getattr(ViewConfig, k)]:
            settings.append(f"config=ViewConfig({', '.join(changed)})")
        return f"PairDataset({len(self)} samples of {type(self.dataset).__name__}, {', '.join(settings)})"

    def __len__(self) -> int:
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch for this process and its workers, running ones included.

        Args:
            epoch: Its number, from 0 or 1.
        """
        self._epoch.fill_(epoch)

    def __getitem__(self, index: int) -> dict[str, Any]:
        index = range(len(self))[index]
        image, label = _image_and_label(self.dataset[index], index, self.ignore_index)
        if not isinstance(self.outside, float) and len(self.outside) != len(image):
            raise ShapeError(
                f"Expected one number outside, or one for each channel, but got {len(self.outside)} values for "
                f"{len(image)} channel(s) of item {index}. Give as many."
            )
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
            outside=self.outside,
            outside_label=self.ignore_index if self.ignore_outside and self.ignore_index is not None else 0,
        )
        if self.ignore_index is not None and bool((label == self.ignore_index).all()):
            views["labels"] = tuple(torch.full_like(part, self.ignore_index) for part in views["labels"])
        parts = {name: tuple(part[0] for part in views[name]) for name in ("images", "labels", "views")}
        return {"index": index, **parts}

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the items of a batch, as `DataLoader` asks for them."""
        items = [self[index] for index in indices]
        if len(sizes := {tuple(item["labels"][0].shape) for item in items}) > 1:
            raise ShapeError(
                "Expected samples of one size in a batch, since views have their sample's size by default, but got "
                f"{', '.join(map(str, sorted(sizes)))}. Give the views one: PairDataset(…, size=224)."
            )
        return items


def _outside(value: Any) -> float | tuple[float, ...]:
    """Return the value beyond the image as a number, or as one for each channel."""
    values = [value] if isinstance(value, Real) else list(value) if isinstance(value, list | tuple) else []
    if not values or not all(type(part) is not bool and isinstance(part, Real) and part == part for part in values):
        raise ConfigError(f"Expected outside to be a number, or one for each channel, but got {value!r}.")
    return float(value) if isinstance(value, Real) else tuple(map(float, value))


def _view_size(size: int | Sequence[int] | None, label: Tensor) -> tuple[int, ...]:
    sides = label.shape if size is None else (size,) * label.ndim if isinstance(size, int) else tuple(size)
    if len(sides) != label.ndim or not all(isinstance(side, int) and side > 0 for side in sides):
        raise ShapeError(
            f"Expected a size of {label.ndim} positive whole numbers, or of one for all sides, but got {size!r}. "
            f"An item has the shape {tuple(label.shape)}."
        )
    return tuple(sides)


def _image_and_label(item: Any, index: int, ignore_index: int | None) -> tuple[Tensor, Tensor]:
    """Return an item as image (C, *S) and label (*S)."""
    image, label = _pair(item, index, ignore_index)
    shapes = f"an image of shape {tuple(image.shape)} and a label of shape {tuple(label.shape)}"
    if label.is_floating_point():
        if bool((label != label.round()).any()):
            raise ShapeError(
                f"Expected class indices, but got {shapes} of type {label.dtype} with values between classes from item "
                f"{index}. Give (mask > 0.5) of probabilities; ToTensor() divides masks by 255: leave them out of it."
            )
        label = label.long()
    if image.shape == label.shape and label.ndim == 3 and label.shape[-1] in (3, 4):
        raise ShapeError(
            f"Expected class indices (*S), but got {shapes} from item {index}, which look like colours (*S, C). Give "
            "each pixel its class's number; give volumes as (1, D, H, W) and (D, H, W)."
        )
    flat = [label.squeeze(axis) for axis in (0, -1) if label.ndim > 2 and label.shape[axis] == 1]
    for classes in (*flat, label):
        for channels in (image, image.movedim(-1, 0), image[None]) if classes.ndim in (2, 3) and image.ndim else ():
            if channels.shape[1:] == classes.shape:
                return _readable(channels), _readable(classes)
    raise ShapeError(
        f"Expected an image (C, *S), (*S, C) or (*S) and class indices (*S) in 2D or 3D, but got {shapes} from item "
        f"{index}. Return class indices on the image's grid."
    )


def _readable(values: Tensor) -> Tensor:
    """Return values of a type that every torch can take from a tensor: of the unsigned ones only the smallest is."""
    return values.long() if values.dtype in (torch.uint16, torch.uint32, torch.uint64) else values


def _pair(item: Any, index: int, ignore_index: int | None) -> list[Tensor]:
    """Return an item's image and label as tensors; a label map that is None is ignored everywhere."""
    try:
        image, label = _named(item) if isinstance(item, Mapping) else (item[0], item[1])
        if getattr(image, "mode", None) == "P":  # a PIL image whose pixels are numbers of colours
            image = image.convert("RGB")
        image = image if isinstance(image, Tensor) else torch.from_numpy(np.array(image))
        if label is None and ignore_index is not None:
            return [image, torch.full(_grid(image), ignore_index)]
        return [image, label if isinstance(label, Tensor) else torch.from_numpy(np.array(label))]
    except (LookupError, TypeError) as error:
        what = f"the keys {', '.join(map(str, item))}" if isinstance(item, Mapping) else type(item).__name__
        raise DataError(
            'Expected (image, label), {"image": …, "label": …} or {"image": …, "mask": …} of tensors, arrays or PIL '
            f"images, but item {index} is not that ({what}: {error}). Wrap your dataset so that it returns them; the "
            "label map of a sample that has none may be None with PairDataset(…, ignore_index=255)."
        ) from error


def _grid(image: Tensor) -> tuple[int, ...]:
    """Return the size of an image (C, *S), of a picture (H, W, C), or of one without channels, (H, W)."""
    if image.ndim < 3:
        return tuple(image.shape)
    last = image.ndim == 3 and image.shape[-1] in (3, 4) and image.shape[0] > 4
    return tuple(image.shape[:-1] if last else image.shape[1:])


def _named(item: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return an item's image and label by their keys."""
    if "label" in item and "mask" in item:
        raise LookupError("'label' and 'mask' could both be the label map; leave one out")
    return item["image"], item["mask" if "mask" in item else "label"]
