"""A table of samples for training loops that have none: who they are, and how much of each class they show."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from adawac.data.cases import SampleTable, sample_id
from adawac.errors import DataError

__all__ = ["describe_samples"]

_DATASET = "samples"


def describe_samples(
    fraction: npt.NDArray[np.floating],
    shape: Sequence[int],
    *,
    cases: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
) -> SampleTable:
    """Return a table of samples, for a training set that was not prepared by `adawac prepare`.

    Args:
        fraction: (n, K) share of each class in each sample, background first.
        shape: Height and width, or depth, height and width, of a sample.
        cases: The case that each sample belongs to, (n,); its slices are numbered as they come. One case by default.
        class_names: Name of each class, background first.
    """
    n, num_classes = fraction.shape
    cases = ["training set"] * n if cases is None else [str(one) for one in cases]
    names = class_names or ["background", *(f"class {label}" for label in range(1, num_classes))]
    for what, given, expected in (("case for each sample", cases, n), ("name for each class", names, num_classes)):
        if len(given) != expected:
            raise DataError(f"Expected a {what}, {expected} in all, but got {len(given)}. Give as many.")
    number = np.array(_numbers(cases), dtype=np.int64)
    column = np.array(cases)
    return SampleTable(
        id=np.array([sample_id(_DATASET, case, case, "0", one) for case, one in zip(cases, number, strict=True)]),
        patient=column,
        case=column,
        slice=number,
        axis=np.full(n, "0"),
        unit=np.full(n, "slice" if len(shape) == 2 else "volume"),
        split=np.full(n, "train"),
        group=np.full(n, ""),
        position=number,
        shape=np.tile(np.array(shape, dtype=np.int64), (n, 1)),
        fraction=np.asarray(fraction, dtype=np.float64),
        class_names=tuple(names),
    )


def _numbers(cases: Sequence[str]) -> list[int]:
    """Return the how-manieth sample of its case each one is."""
    seen: Counter[str] = Counter()
    numbers = []
    for case in cases:
        numbers.append(seen[case])
        seen[case] += 1
    return numbers
