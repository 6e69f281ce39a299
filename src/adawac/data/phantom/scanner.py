"""The phantom: procedural abdominal scans that ship with the package, for the demo, for tests and for first steps.

A patient is drawn from a seed (`abdomen`), sliced, and given what a scanner adds: slice thickness, blur and
correlated noise for CT; a bias field and Rician noise for MR. Organs carry labels from the height where the aorta
divides to the dome of the diaphragm. The slices below, and in some patients those above, carry none: these are the
label-sparse ones, 42 % of all by default, as in the Synapse training set. The defaults were fixed before any method was
compared on them.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from adawac.data.cases import Case, CaseRef
from adawac.data.phantom.abdomen import render_slice
from adawac.data.phantom.patient import CLASS_NAMES, Array, Modality, Patient, smooth
from adawac.data.preprocessing import CT, MR
from adawac.data.sources.source import SOURCES, Source, as_classes
from adawac.errors import ConfigError, DataError, LayoutError

_GOLDEN = (5**0.5 - 1) / 2
_OPTIONS_FILE = "phantom.json"
#: Of eight patients, in this order: a data set that grows keeps its splits.
SPLITS = ("train", "train", "train", "test", "train", "val", "train", "test")


@dataclass(frozen=True, kw_only=True)
class PhantomSource(Source):
    """A generator of cases that `prepare` takes like a folder of scans; see `phantom_source` for the options."""

    num_patients: int = 16
    seed: int = 0
    modality: Modality = "ct"
    size: tuple[int, int] = (96, 96)
    slices: tuple[int, int] = (28, 44)
    sparse: float = 0.42
    noise: float = 1.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        checks = {
            "num_patients": (self.num_patients > 0, "at least 1"),
            "modality": (self.modality in get_args(Modality), "ct or mr"),
            "size": (len(self.size) == 2 and min(self.size) >= 8, "height and width of at least 8"),
            "slices": (len(self.slices) == 2 and 0 < self.slices[0] <= self.slices[1], "lowest and highest number"),
            "sparse": (0 <= self.sparse < 1, "a share in [0, 1)"),
            "noise": (self.noise >= 0, "0 or more"),
            "shift": (0 <= self.shift <= 2, "from 0 to 2"),
        }
        for name, (fine, wanted) in checks.items():
            if not fine:
                raise ConfigError(f"Expected {name} to be {wanted}, but got {getattr(self, name)!r}.")

    def cases(self) -> list[CaseRef]:
        """List the patients, one scan each."""
        return [
            CaseRef(
                dataset=self.dataset,
                patient=f"{self.seed:04d}-{number:03d}",
                id=f"{self.seed:04d}-{number:03d}",
                group=self._patient(number)[0].group,
                split=SPLITS[number % len(SPLITS)],
            )
            for number in range(self.num_patients)
        ]

    def load(self, ref: CaseRef) -> Case:
        """Compute one case: a function of the options and of the patient's number."""
        number = int(ref.id.rpartition("-")[2])
        patient, rng = self._patient(number)
        count, first, last = self._range(number, rng)
        return make_case(patient, rng, ref, (count, *self.size), first, last, self.noise)

    def options(self) -> dict[str, Any]:
        """Return what decides a case's voxels: not how many others there are, so that a store can grow."""
        skipped = {"num_patients"} if self.shift else {"num_patients", "shift"}  # older stores know no shift
        options = {**super().options(), "modality": self.modality}
        return {name: value for name, value in options.items() if name not in skipped}

    def _patient(self, number: int) -> tuple[Patient, np.random.Generator]:
        rng = np.random.default_rng([self.seed, number])
        elsewhere = SPLITS[number % len(SPLITS)] == "test"
        return Patient(rng, self.modality, self.shift if elsewhere else 0.0), rng

    def _range(self, number: int, rng: np.random.Generator) -> tuple[int, int, int]:
        """Return how many slices there are, and the first and last with a label."""
        count = int(rng.integers(self.slices[0], self.slices[1] + 1))
        # The share differs from patient to patient as it does in Synapse, evenly enough that few have the wanted mean.
        spread = min(self.sparse, 1 - self.sparse, 0.2)
        share = self.sparse + spread * (2 * ((number + 0.5) * _GOLDEN % 1) - 1)
        empty = min(round(share * count), count - 1)
        above = round(empty * rng.uniform(0.1, 0.4)) if rng.random() < 0.25 else 0
        return count, empty - above, count - 1 - above


def phantom_source(
    num_patients: int = 16,
    seed: int = 0,
    *,
    modality: Modality = "ct",
    size: int | tuple[int, int] = 96,
    slices: tuple[int, int] = (28, 44),
    sparse: float = 0.42,
    noise: float = 1.0,
    shift: float = 0.0,
) -> PhantomSource:
    """Return the phantom as a source for `adawac.data.preparation.prepare`.

    Args:
        num_patients: How many patients; of each eight, five are for training, one for validation and two for testing.
        seed: Other seeds are other patients.
        modality: `ct` (HU) or `mr` (arbitrary units).
        size: Pixels of a slice: one number, or height and width. 512 looks most like a scan, 96 is quick.
        slices: Lowest and highest number of slices of a scan.
        sparse: Mean share of slices without a label.
        noise: Strength of the noise, 1 for the default.
        shift: How far the test patients differ from the others, as those of another hospital: contrast phase, build,
            sizes and places of organs, field of view, sharpness and noise. 0: not at all; 1: plainly.
    """
    return PhantomSource(
        dataset=f"phantom-{modality}",
        classes=as_classes({name: value for value, name in enumerate(CLASS_NAMES)}),
        preprocessing=(CT if modality == "ct" else MR).override(axis=0),
        num_patients=num_patients,
        seed=seed,
        modality=modality,
        size=(size, size) if isinstance(size, int) else (size[0], size[1]),
        slices=(slices[0], slices[1]),
        sparse=sparse,
        noise=noise,
        shift=shift,
    )


def phantom_cases(num_patients: int = 16, seed: int = 0, **options: Any) -> Iterator[Case]:
    """Yield the phantom's cases; the options are those of `phantom_source`."""
    source = phantom_source(num_patients, seed, **options)
    for ref in source.cases():
        yield source.load(ref)


@SOURCES.register("phantom")
def phantom(root: Path) -> Source:
    """Open a folder whose phantom.json holds options of `phantom_source`, such as {"num_patients": 16, "seed": 0}."""
    path = root / _OPTIONS_FILE
    if not path.is_file():
        raise LayoutError(
            f"Expected the phantom's options in {path}, but it is not there. "
            'Write it, for example {"num_patients": 16, "seed": 0}.'
        )
    try:
        return phantom_source(**json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"Expected options of `phantom_source` in {path}, but got {error}.") from error


def make_case(
    patient: Patient,
    rng: np.random.Generator,
    ref: CaseRef,
    shape: tuple[int, int, int],
    first: int,
    last: int,
    noise: float = 1.0,
    planes: int = 3,
) -> Case:
    """Scan a patient.

    Args:
        patient: The patient to scan.
        rng: For the field of view and the noise.
        ref: Names of the case.
        shape: Slices, height, width.
        first: The first slice with a label, where the aorta divides.
        last: The last one, at the dome of the diaphragm.
        noise: Strength of the noise.
        planes: How many planes of a slice's thickness are averaged (partial volume).

    Returns:
        The case, slices first, the patient lying on the back and seen from the feet.
    """
    count, height, width = shape
    step = patient.top / (last - first + 1)
    pixel = float(2 * patient.width * rng.uniform(1.08, 1.22) * (1 + 0.1 * patient.shift) / width)
    columns, rows = (np.linspace(-0.5, 0.5, side) * (side - 1) * pixel for side in (width, height))
    thickness = min(step, 5.0)
    offsets = thickness * ((np.arange(planes) + 0.5) / planes - 0.5)
    image = np.empty((count, height, width))
    label = np.zeros((count, height, width), dtype=np.uint8)
    for number in range(count):
        z = (number - first + 0.5) * step
        drawn = [render_slice(patient, columns, rows, z + offset, pixel) for offset in offsets]
        image[number] = np.mean([plane for plane, _ in drawn], axis=0)
        if first <= number <= last:
            label[number] = drawn[planes // 2][1]
    scan = _scan_ct if patient.modality == "ct" else _scan_mr
    blur, noise = 0.3 * patient.shift, noise * (1 + 0.6 * patient.shift)
    affine = np.zeros((4, 4))
    affine[2, 0], affine[1, 1], affine[0, 2] = step, -pixel, -pixel
    affine[:, 3] = (-columns[0], -rows[0], (0.5 - first) * step, 1.0)
    return replace(ref, group=patient.group).with_voxels(
        scan(image, rng, noise, blur)[None], label, affine, CLASS_NAMES
    )


def _blurred(image: Array, sigma: float) -> Array:
    from scipy.ndimage import gaussian_filter

    blurred: Array = gaussian_filter(image, (0, sigma, sigma), mode="nearest")
    return blurred


def _scan_ct(image: Array, rng: np.random.Generator, noise: float, blur: float) -> Array:
    """Add what a CT scanner adds: blur, and noise that the reconstruction has correlated, fine and coarse."""
    sigma = noise * rng.uniform(13, 24)
    fine, coarse = (smooth(rng, image.shape, (0, width, width)) for width in (0.6, 2.5))
    return _blurred(image, 0.5 + blur) + sigma * (fine + 0.35 * coarse)


def _scan_mr(image: Array, rng: np.random.Generator, noise: float, blur: float) -> Array:
    """Add what an MR scanner adds: blur, the coils' uneven sensitivity, and noise in two channels."""
    image = _blurred(image, 0.55 + blur)
    count, height, width = image.shape
    z, y, x = np.meshgrid(*(np.linspace(-1, 1, side) for side in (count, height, width)), indexing="ij", sparse=True)
    a = rng.normal(0, 0.22, 6)
    bias = np.exp(a[0] * x + a[1] * y + 0.5 * a[2] * z + a[3] * (x * x - 0.3) + a[4] * (y * y - 0.3) + a[5] * x * y)
    sigma = noise * rng.uniform(16, 34)
    real = image * bias + sigma * rng.standard_normal(image.shape)
    return np.asarray(np.hypot(real, sigma * rng.standard_normal(image.shape)))
