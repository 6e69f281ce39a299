"""Clean-up of label maps."""

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["keep_largest_components"]

_PART = 1 << 24  # voxels that are counted at a time: counting casts to 64 bits


def keep_largest_components(labels: npt.NDArray[np.integer[Any]]) -> int:
    """Keep the largest connected part of each class, in place; all other parts become background.

    Voxels are connected through their faces. Of parts of one size the first in the array's order stays. Each class is
    looked at within its bounding box, which bounds the memory.

    Returns:
        How many voxels became background.
    """
    from scipy.ndimage import find_objects, label

    removed = 0
    for index, box in enumerate(find_objects(labels), start=1):
        if box is None:  # the class does not occur
            continue
        part = labels[box]
        mask = part == index
        components, count = label(mask, output=np.int32)
        if count < 2:
            continue
        sizes = np.zeros(count + 1, dtype=np.int64)
        flat = components.reshape(-1)
        for start in range(0, flat.size, _PART):
            sizes += np.bincount(flat[start : start + _PART], minlength=count + 1)
        sizes[0] = 0
        lost = mask & (components != np.argmax(sizes))
        removed += int(np.count_nonzero(lost))
        part[lost] = 0
    return removed
