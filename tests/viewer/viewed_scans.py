"""Small scans and label maps with a block at a known place, for the viewer's tests."""

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

SHAPE = (30, 24, 18)
# Voxels of 2 × 3 × 4 mm; the first axis runs to the left, the second to the back, as in most CT and MR.
AFFINE = np.array([[-2.0, 0, 0, 25], [0, -3, 0, 40], [0, 0, 4, -30], [0, 0, 0, 1]])
BLOCK = (slice(4, 9), slice(13, 17), slice(8, 11))


def save(path: Path, data: Any, affine: Any = AFFINE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(data, affine), path)
    return path


def make_scan(path: Path) -> Path:
    """A scan that is grey everywhere and bright in the block."""
    data = np.full(SHAPE, 300, np.int16)
    data[:2] = 0
    data[BLOCK] = 1000
    return save(path, data)


def block(value: int = 1, dtype: Any = np.uint8) -> Any:
    data = np.zeros(SHAPE, dtype)
    data[BLOCK] = value
    return data


def world_box(part: tuple[slice, ...] = BLOCK, affine: Any = AFFINE) -> tuple[Any, Any]:
    """The lowest and highest corner of some voxels, with their whole extent, in mm."""
    ends = np.array([[extent.start - 0.5, extent.stop - 0.5] for extent in part])
    corners = np.array(np.meshgrid(*ends, indexing="ij")).reshape(3, -1)
    world = affine[:3, :3] @ corners + affine[:3, 3:]
    return world.min(axis=1), world.max(axis=1)
