"""A phantom patient: build, intensities and organ positions, made of smooth random functions and simple solids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
FAR = 1e3


def smooth(rng: np.random.Generator, shape: tuple[int, ...], sigma: float | tuple[float, ...]) -> Array:
    """Return smooth noise of standard deviation 1, correlated over `sigma` pixels."""
    from scipy.ndimage import gaussian_filter

    noise: Array = gaussian_filter(rng.standard_normal(shape), sigma, mode="wrap")
    return np.asarray(noise / noise.std())


class Field:
    """A smooth random function of space with mean 0 and standard deviation 1: a sum of plane waves."""

    def __init__(self, rng: np.random.Generator, shortest: float, longest: float, waves: int = 24):
        direction = rng.standard_normal((3, waves))
        length = np.exp(rng.uniform(np.log(shortest), np.log(longest), waves))
        self.k = 2 * np.pi * direction / np.linalg.norm(direction, axis=0) / length
        self.phase = rng.uniform(0, 2 * np.pi, waves)

    def __call__(self, x: Array, y: Array, z: float) -> Array:
        """Return (len(y), len(x)) values on a grid: the cosine of a sum splits into two matrix products."""
        rows = np.outer(y, self.k[1]) + self.k[2] * z + self.phase
        columns = np.outer(self.k[0], x)
        waves = np.cos(rows) @ np.cos(columns) - np.sin(rows) @ np.sin(columns)
        return np.asarray(waves * np.sqrt(2 / len(self.phase)))


@dataclass(frozen=True)
class Plane:
    """A slice: where its pixels are in the patient, and the patient's random functions there.

    Attributes:
        x, y: (H, W) coordinates of each pixel.
        z: Height of the slice.
        pixel: Size of a pixel.
        fields: (H, W) values of each random function.
    """

    x: Array
    y: Array
    z: float
    pixel: float
    fields: dict[str, Array]

    def ellipsoid(
        self, centre: Sequence[float] | Array, radii: Sequence[float], turn: float = 0.0, power: float = 2.0
    ) -> Array:
        """Return the depth in an ellipsoid turned about z, to first order."""
        if abs(self.z - centre[2]) > radii[2] + 3 * self.pixel:
            return np.full_like(self.x, -FAR)
        x, y = self.x - centre[0], self.y - centre[1]
        cosine, sine = np.cos(turn), np.sin(turn)
        along = [cosine * x + sine * y, cosine * y - sine * x, np.array(self.z - centre[2])]
        scaled = [np.abs(distance) / radius for distance, radius in zip(along, radii, strict=True)]
        level = sum(part**power for part in scaled) ** (1 / power) + 1e-9
        slope = np.sqrt(sum((part ** (power - 1) / radius) ** 2 for part, radius in zip(scaled, radii, strict=True)))
        return np.asarray((1 - level) * level ** (power - 1) / (slope + 1e-9))

    def column(self, x: float, y: float, across: float, along: float | None = None, turn: float = 0.0) -> Array:
        """Return the depth in an upright elliptic cylinder."""
        return self.ellipsoid((x, y, self.z), (across, along or across, 1.0), turn)

    def chain(self, points: Array, radii: Sequence[float], steps: int = 9) -> Array:
        """Return the depth in a bent tube through `points` (n, 3), with a radius at each."""
        positions = np.linspace(0, len(points) - 1, steps * (len(points) - 1) + 1)
        knots = np.arange(len(points))
        path = np.stack([np.interp(positions, knots, points[:, axis]) for axis in range(3)], 1)
        depth = np.full_like(self.x, -FAR)
        for (x, y, z), radius in zip(path, np.interp(positions, knots, radii), strict=True):
            if abs(self.z - z) < radius + 4 * self.pixel:
                depth = np.maximum(depth, radius - np.sqrt((self.x - x) ** 2 + (self.y - y) ** 2 + (self.z - z) ** 2))
        return depth


def union(*depths: Array, blend: float = 8.0) -> Array:
    """Return the depth in several shapes together, their seams rounded."""
    total = depths[0]
    for depth in depths[1:]:
        weight = np.clip(0.5 + 0.5 * (total - depth) / blend, 0, 1)
        total = depth + (total - depth) * weight + blend * weight * (1 - weight)
    return total


class Canvas:
    """An image and a label map that structures are painted on, one over the other."""

    def __init__(self, plane: Plane, value: float):
        self.image = np.full_like(plane.x, value)
        self.label = np.zeros(plane.x.shape, dtype=np.uint8)
        self.pixel = plane.pixel

    def paint(self, depth: Array, value: Array | float, label: int | None = None, soft: float = 1.0) -> None:
        """Paint where `depth` is positive; a pixel on the surface gets its share of both sides (partial volume)."""
        share = np.clip(0.5 + depth / (self.pixel * soft), 0, 1)
        self.image += share * (value - self.image)
        if label is not None:
            self.label[depth > 0] = label


Modality = Literal["ct", "mr"]

#: The eight organs of the Synapse experiments, in their order; index 0 is the background.
_ORGANS = ("aorta", "gallbladder", "left kidney", "right kidney", "liver", "pancreas", "spleen", "stomach")
CLASS_NAMES = ("background", *_ORGANS)
GROUPS = ("slim", "average", "heavy")

# Mean and spread between patients of each tissue's intensity.
TISSUES: dict[Modality, dict[str, tuple[float, float]]] = {
    "ct": {  # HU, portal venous phase
        "air": (-1000, 0), "skin": (10, 10), "fat": (-102, 5), "muscle": (58, 6), "visceral": (-97, 8),
        "lung": (-840, 25), "bone": (240, 40), "marrow": (165, 35), "disc": (85, 10), "cord": (28, 6),
        "vessel": (142, 24), "vein": (128, 20), "liver": (106, 12), "spleen": (116, 12), "kidney": (158, 22),
        "pancreas": (92, 12), "wall": (62, 8), "content": (24, 14), "bile": (10, 7), "bowel": (52, 14),
        "urine": (8, 5), "heart": (112, 18), "couch": (-150, 30),
    },
    "mr": {  # arbitrary units: fat is bright, blood dark or grey
        "air": (0, 0), "skin": (330, 30), "fat": (820, 60), "muscle": (270, 25), "visceral": (760, 60),
        "lung": (40, 10), "bone": (120, 25), "marrow": (480, 60), "disc": (230, 40), "cord": (330, 30),
        "vessel": (180, 60), "vein": (260, 60), "liver": (420, 35), "spleen": (330, 35), "kidney": (370, 45),
        "pancreas": (440, 40), "wall": (300, 30), "content": (230, 60), "bile": (250, 70), "bowel": (320, 45),
        "urine": (180, 50), "heart": (290, 40), "couch": (0, 0),
    },
}  # fmt: skip
# How another hospital's intensities differ: CT in a late arterial phase, MR from another sequence.
SHIFTS: dict[Modality, dict[str, float]] = {
    "ct": {
        "vessel": 80, "vein": -35, "liver": -18, "spleen": 16, "kidney": 25, "pancreas": 16, "heart": 60, "bowel": 12,
        "content": 20,
    },
    "mr": {
        "fat": -180, "visceral": -170, "liver": -70, "spleen": 70, "kidney": 60, "pancreas": -40, "bile": 250,
        "urine": 300, "content": 150, "vessel": 60,
    },
}  # fmt: skip
# Shortest and longest wave of each random function, in mm.
WAVES = {
    "warp_x": (70, 260), "warp_y": (70, 260), "coat": (90, 240), "rough": (28, 90), "lobes": (13, 26), "grain": (9, 40),
    "mottle": (7, 16), "loops": (26, 50), "filling": (30, 80), "tree_a": (30, 70), "tree_b": (30, 70),
}  # fmt: skip


class Patient:
    """What makes one patient differ from the others, drawn from a generator.

    Attributes:
        group: Build, by the thickness of the fat.
        top: Height of the last slice with a label; the first is at 0.
        width, depth: Half axes of the body.
        tissue: Intensity of each tissue.
        fields: Smooth random functions, for shapes and textures.
        shift: How far this patient is from the others, as one of another hospital: 0 is one of theirs.
    """

    def __init__(self, rng: np.random.Generator, modality: Modality, shift: float = 0.0):
        self.modality = modality
        self.shift = shift
        build = int(rng.integers(3))
        self.group = GROUPS[build]
        self.scale = float(rng.uniform(0.9, 1.1))
        self.fat = float(rng.uniform(*((6, 12), (13, 22), (24, 38))[build]) + 8 * shift)
        self.top = float(248 * self.scale * rng.uniform(0.96, 1.04))
        self.width = float(128 * self.scale * rng.uniform(0.94, 1.06) + self.fat + 14)
        self.depth = float(86 * self.scale * rng.uniform(0.92, 1.08) + 0.9 * self.fat + 14)
        self.tissue = {
            name: float(rng.normal(*spread) + shift * SHIFTS[modality].get(name, 0))
            for name, spread in TISSUES[modality].items()
        }
        self.tilt = float(np.deg2rad(rng.normal(0, 2.5)))
        self.centre = rng.normal(0, 5, 2) + shift * np.array([8, -6])
        self.jitter = rng.standard_normal((12, 3)) * (1 + 0.4 * shift)
        self.size = np.exp(rng.normal(0, 0.1, 12) - 0.06 * shift)
        self.gas = float(rng.uniform(0.1, 0.5))
        self.lesions = [
            (*rng.uniform((-130, -45, 90), (-30, 40, 215)), rng.uniform(5, 13)) for _ in range(rng.integers(4))
        ]
        self.plaque = float(rng.uniform(0, 2 * np.pi))
        self.fields = {name: Field(rng, shortest, longest) for name, (shortest, longest) in WAVES.items()}

    def plane(self, columns: Array, rows: Array, z: float, pixel: float) -> Plane:
        """Return a slice, tilted and deformed as this patient is."""
        fields = {name: field(columns, rows, z) for name, field in self.fields.items()}
        x, y = np.meshgrid(columns - self.centre[0], rows - self.centre[1])
        cosine, sine = np.cos(self.tilt), np.sin(self.tilt)
        x, y = cosine * x - sine * y, sine * x + cosine * y
        return Plane(x + 5.0 * fields["warp_x"], y + 4.0 * fields["warp_y"], z, pixel, fields)

    def at(self, organ: int, x: float, y: float, z: float, spread: float = 5.0) -> Array:
        """Return where an organ's landmark lies in this patient."""
        return np.asarray(np.array([x, y, z]) * self.scale + self.jitter[organ] * (spread, spread, 1.2 * spread))

    def contrast(self, share: float) -> float:
        """Return a share of the contrast between fat and muscle."""
        return share * abs(self.tissue["muscle"] - self.tissue["fat"])

    def spine(self, z: float) -> float:
        """Return the y of the vertebral bodies: the back is hollow at the waist and round below it."""
        hollow = 8 * np.cos(z / 75) - 10 * np.exp(-(((z - 60) / 90) ** 2))
        return float(50 * self.scale + hollow + 0.16 * max(-40 - z, 0))
