"""Smooth random functions, simple solids by their depth, and a canvas to paint them on: what the phantom is made of.

The depth at a point is the distance to a solid's surface, positive inside. Unions and cuts of solids are maxima and
minima of depths, and a depth that is less than half a pixel from 0 is a pixel that the solid fills in part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "Canvas", "Field", "Plane", "union"]

Array = npt.NDArray[np.float64]
FAR = 1e3


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
        scaled = [np.abs(one) / radius for one, radius in zip(along, radii, strict=True)]
        level = sum(one**power for one in scaled) ** (1 / power) + 1e-9
        slope = np.sqrt(sum((one ** (power - 1) / radius) ** 2 for one, radius in zip(scaled, radii, strict=True)))
        return np.asarray((1 - level) * level ** (power - 1) / (slope + 1e-9))

    def column(self, x: float, y: float, across: float, along: float | None = None, turn: float = 0.0) -> Array:
        """Return the depth in an upright elliptic cylinder."""
        return self.ellipsoid((x, y, self.z), (across, along or across, 1.0), turn)

    def chain(self, points: Array, radii: Sequence[float], steps: int = 9) -> Array:
        """Return the depth in a bent tube through `points` (n, 3), with a radius at each."""
        place = np.linspace(0, len(points) - 1, steps * (len(points) - 1) + 1)
        knots = np.arange(len(points))
        path = np.stack([np.interp(place, knots, points[:, axis]) for axis in range(3)], 1)
        depth = np.full_like(self.x, -FAR)
        for (x, y, z), radius in zip(path, np.interp(place, knots, radii), strict=True):
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
