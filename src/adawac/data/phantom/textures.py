"""Textures: procedural pictures of surfaces, most of them without a defect, for the demo and for tests.

A picture shows cloth, brushed metal or stone in a colour of its own, under uneven light, with a camera's noise and 8
bits a channel. About one in ten has a scratch or a stain. With `shift`, those for testing come from another camera:
warmer light, less contrast, some blur.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adawac.data.cases import Case, CaseRef
from adawac.data.phantom.patient import Array, smooth
from adawac.data.phantom.scanner import SPLITS
from adawac.data.preprocessing import PICTURES
from adawac.data.sources.source import Source, as_classes
from adawac.errors import ConfigError

CLASS_NAMES = ("background", "scratch", "stain")


@dataclass(frozen=True, kw_only=True)
class TextureSource(Source):
    """A generator of pictures that `prepare` takes like a folder; see `texture_source` for the options."""

    num_pictures: int = 160
    seed: int = 0
    size: tuple[int, int] = (96, 96)
    empty: float = 0.9
    noise: float = 1.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        checks = {
            "num_pictures": (self.num_pictures > 0, "at least 1"),
            "size": (len(self.size) == 2 and min(self.size) >= 16, "height and width of at least 16"),
            "empty": (0 <= self.empty < 1, "a share in [0, 1)"),
            "noise": (self.noise >= 0, "0 or more"),
            "shift": (0 <= self.shift <= 2, "from 0 to 2"),
        }
        for name, (fine, wanted) in checks.items():
            if not fine:
                raise ConfigError(f"Expected {name} to be {wanted}, but got {getattr(self, name)!r}.")

    def cases(self) -> list[CaseRef]:
        """List the pictures; each is of another piece."""
        names = [f"{self.seed:04d}-{number:04d}" for number in range(self.num_pictures)]
        return [
            CaseRef(
                dataset=self.dataset,
                patient=name,
                id=name,
                group=list(_MATERIALS)[number % len(_MATERIALS)],
                split=SPLITS[number % len(SPLITS)],
            )
            for number, name in enumerate(names)
        ]

    def load(self, ref: CaseRef) -> Case:
        """Compute one case: a function of the options and of the picture's number."""
        pixels, label = self.picture(int(ref.id.rpartition("-")[2]))
        image = np.moveaxis(pixels, 2, 0).astype(np.float32) / np.float32(255)
        return ref.with_voxels(image[:, None], label[None], None, CLASS_NAMES)

    def options(self) -> dict[str, Any]:
        """Return what decides a case's voxels: not how many others there are, so that a store can grow."""
        return {name: value for name, value in super().options().items() if name != "num_pictures"}

    def picture(self, number: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """Return a picture (H, W, 3) and its mask (H, W) of class indices."""
        rng = np.random.default_rng([self.seed, number])
        surface = list(_MATERIALS.values())[number % len(_MATERIALS)](rng, self.size)
        label = np.zeros(self.size, dtype=np.uint8)
        if self._has_defect(number):
            surface = _add_defect(rng, surface, label)
        shift = self.shift if SPLITS[number % len(SPLITS)] == "test" else 0.0
        return _photograph(rng, surface, self.noise, shift), label

    def _has_defect(self, number: int) -> bool:
        """Say whether a picture shows a defect: their share is the same in each split, as nearly as can be."""
        split = SPLITS[number % len(SPLITS)]
        before = SPLITS[: number % len(SPLITS)].count(split)
        row = number // len(SPLITS) * SPLITS.count(split) + before
        phase = (0.5 + 0.2 * list(dict.fromkeys(SPLITS)).index(split) + row * (1 - self.empty)) % 1
        return phase >= self.empty


def texture_source(num_pictures: int = 160, seed: int = 0, **options: Any) -> TextureSource:
    """Return a source of pictures of surfaces for `prepare`.

    Args:
        num_pictures: How many.
        seed: Other seeds are other pictures.
        **options: `size` in pixels (height, width), `empty` (share of pictures without a defect), `noise` (1 is that of
            a fair camera), `shift` (how far the camera of the test pictures differs).

    Examples:
        >>> from adawac.data.phantom import texture_source
        >>> source = texture_source(20, size=(32, 32))
        >>> case = source.load(source.cases()[0])
        >>> case.image.shape, case.class_names
        ((3, 1, 32, 32), ('background', 'scratch', 'stain'))
    """
    return TextureSource(
        dataset="textures",
        classes=as_classes({name: value for value, name in enumerate(CLASS_NAMES)}),
        channels=("red", "green", "blue"),
        preprocessing=PICTURES,
        num_pictures=num_pictures,
        seed=seed,
        **options,
    )


def write_pictures(dest: Path | str, num_pictures: int = 40, seed: int = 0, **options: Any) -> Path:
    """Write textures as a folder of PNG files: images/NAME.png, masks/NAME.png (class indices), splits/train.txt, ….

    Args:
        dest: The folder.
        num_pictures: How many.
        seed: Other seeds are other pictures.
        **options: Further options of `texture_source`.

    Returns:
        The folder.
    """
    from PIL import Image

    dest, source = Path(dest), texture_source(num_pictures, seed, **options)
    for folder in ("images", "masks", "splits"):
        (dest / folder).mkdir(parents=True, exist_ok=True)
    refs = source.cases()
    for number, ref in enumerate(refs):
        for folder, pixels in zip(("images", "masks"), source.picture(number), strict=True):
            Image.fromarray(pixels).save(dest / folder / f"{ref.id}.png")
    for split in dict.fromkeys(SPLITS):
        names = [ref.id for ref in refs if ref.split == split]
        (dest / "splits" / f"{split}.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    return dest


# -- surfaces ----------------------------------------------------------------------------------------------------------


def _grid(size: tuple[int, int]) -> tuple[Array, Array]:
    """Return rows and columns of the pixels."""
    rows, columns = np.mgrid[: size[0], : size[1]].astype(np.float64)
    return rows, columns


def _cloth(rng: np.random.Generator, size: tuple[int, int]) -> Array:
    """Threads over and under one another, a little uneven; (H, W, 3)."""
    rows, columns = _grid(size)
    pitch, bend = rng.uniform(4, 7), 0.6 * smooth(rng, size, 8)
    over = np.sin(2 * np.pi * (columns + bend) / pitch) * np.sin(2 * np.pi * (rows + bend) / pitch)
    colour = rng.uniform((0.25, 0.25, 0.35), (0.55, 0.5, 0.65))
    return np.asarray(colour * (1 + 0.18 * over + 0.04 * smooth(rng, size, 1))[..., None])


def _metal(rng: np.random.Generator, size: tuple[int, int]) -> Array:
    """Brushed in one direction; (H, W, 3)."""
    along = (0.4, 14.0) if rng.random() < 0.5 else (14.0, 0.4)
    colour = rng.uniform((0.5, 0.5, 0.5), (0.65, 0.65, 0.7))
    return np.asarray(colour * (1 + 0.07 * smooth(rng, size, along) + 0.03 * smooth(rng, size, 12))[..., None])


def _stone(rng: np.random.Generator, size: tuple[int, int]) -> Array:
    """Grains of several sizes in two colours; (H, W, 3)."""
    grain = smooth(rng, size, 1.2) + 0.8 * smooth(rng, size, 3) + 0.6 * smooth(rng, size, 9)
    share = 1 / (1 + np.exp(-1.5 * grain))[..., None]
    light, dark = rng.uniform((0.6, 0.55, 0.45), (0.75, 0.7, 0.6)), rng.uniform((0.35, 0.3, 0.25), (0.5, 0.45, 0.4))
    return np.asarray(share * light + (1 - share) * dark)


_MATERIALS: dict[str, Callable[[np.random.Generator, tuple[int, int]], Array]] = {
    "cloth": _cloth,
    "metal": _metal,
    "stone": _stone,
}


# -- defects -----------------------------------------------------------------------------------------------------------


def _add_defect(rng: np.random.Generator, surface: Array, label: npt.NDArray[np.uint8]) -> Array:
    """Return the surface with a scratch, a stain or both, and write these into the mask."""
    kind = rng.random()
    if kind > 0.45:
        surface = _add_stain(rng, surface, label)
    if kind < 0.55:
        surface = _add_scratch(rng, surface, label)
    return surface


def _add_scratch(rng: np.random.Generator, surface: Array, label: npt.NDArray[np.uint8]) -> Array:
    """Add a thin line, bent a little, bright or dark."""
    height, width = label.shape
    short = min(height, width)
    steps, angle = np.linspace(-0.5, 0.5, 8 * short), rng.uniform(0, np.pi)
    length, bend = rng.uniform(0.35, 0.8) * short, rng.uniform(-0.15, 0.15) * short
    middle = rng.uniform(0.25, 0.75, 2) * (height, width)
    across = bend * (4 * steps**2 - 0.5)
    rows = middle[0] + length * steps * np.sin(angle) + across * np.cos(angle)
    columns = middle[1] + length * steps * np.cos(angle) - across * np.sin(angle)
    line = np.ones((height, width))
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    line[rows[inside].astype(int), columns[inside].astype(int)] = 0
    from scipy.ndimage import distance_transform_edt

    distance, half = distance_transform_edt(line), rng.uniform(0.8, 1.6) * max(1.0, short / 128)
    label[distance <= half] = 1
    share = np.clip(half + 0.5 - distance, 0, 1)[..., None]
    return np.asarray(surface + share * rng.choice((-0.22, 0.25)))


def _add_stain(rng: np.random.Generator, surface: Array, label: npt.NDArray[np.uint8]) -> Array:
    """Add a blot with an uneven border that takes some of the light, more of one colour."""
    size = label.shape
    rows, columns = _grid((size[0], size[1]))
    middle, radius = rng.uniform(0.2, 0.8, 2) * size, rng.uniform(0.06, 0.14) * min(size)
    distance = np.hypot(rows - middle[0], (columns - middle[1]) * rng.uniform(0.7, 1.4))
    edge = radius * (1 + 0.25 * smooth(rng, (size[0], size[1]), radius / 2)) - distance
    label[edge > 0] = 2
    share = np.clip(edge / 2 + 0.5, 0, 1)[..., None]
    return np.asarray(surface * (1 - share * rng.uniform((0.15, 0.25, 0.35), (0.3, 0.45, 0.6))))


def _photograph(rng: np.random.Generator, surface: Array, noise: float, shift: float) -> npt.NDArray[np.uint8]:
    """Add what a camera adds: uneven light, its own colours and blur where it is another one, noise, 8 bits."""
    from scipy.ndimage import gaussian_filter

    size = surface.shape[:2]
    rows, columns = (axis / axis.max() - 0.5 for axis in _grid((size[0], size[1])))
    slope = rng.normal(0, 0.15, 2)
    light = rng.uniform(0.85, 1.1) * (1 + slope[0] * rows + slope[1] * columns)
    image = surface * light[..., None]
    if shift:
        image = 0.5 + (image - 0.5) * (1 - 0.2 * shift) + 0.05 * shift
        image = image * (1 + shift * np.array((0.12, 0.0, -0.15)))
        image = gaussian_filter(image, (0.5 * shift, 0.5 * shift, 0))
    image = image + 0.015 * noise * (1 + 0.5 * shift) * rng.standard_normal(image.shape)
    return np.asarray(np.rint(np.clip(image, 0, 1) * 255), dtype=np.uint8)
