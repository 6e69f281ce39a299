"""What makes one patient differ from another: build, intensities, where organs lie, and smooth random functions."""

from typing import Literal

import numpy as np

from adawac.data.abdomen.shapes import Array, Field, Plane

__all__ = ["CLASS_NAMES", "GROUPS", "Modality", "Patient"]

Modality = Literal["ct", "mr"]

#: The eight organs of the Synapse experiments, in their order; index 0 is the background.
CLASS_NAMES = (
    "background",
    "aorta",
    "gallbladder",
    "left kidney",
    "right kidney",
    "liver",
    "pancreas",
    "spleen",
    "stomach",
)
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
    """

    def __init__(self, rng: np.random.Generator, modality: Modality):
        self.modality = modality
        build = int(rng.integers(3))
        self.group = GROUPS[build]
        self.scale = float(rng.uniform(0.9, 1.1))
        self.fat = float(rng.uniform(*((6, 12), (13, 22), (24, 38))[build]))
        self.top = float(248 * self.scale * rng.uniform(0.96, 1.04))
        self.width = float(128 * self.scale * rng.uniform(0.94, 1.06) + self.fat + 14)
        self.depth = float(86 * self.scale * rng.uniform(0.92, 1.08) + 0.9 * self.fat + 14)
        self.tissue = {name: float(rng.normal(*spread)) for name, spread in TISSUES[modality].items()}
        self.tilt = float(np.deg2rad(rng.normal(0, 2.5)))
        self.centre = rng.normal(0, 5, 2)
        self.jitter = rng.standard_normal((12, 3))
        self.size = np.exp(rng.normal(0, 0.1, 12))
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
