"""What is better known before a run begins than after it: that its epochs end with a step on very few samples."""

import logging

from adawac.data.loading import batch_limits

__all__ = ["warn_of_short_end"]

log = logging.getLogger(__name__)

_ENOUGH = 8  # samples, whatever the size of a batch
_SHARE = 3  # a batch of at least one in three of the others' samples is not much noisier than they are


def warn_of_short_end(num_samples: int, batch_size: int, world: int = 1, accumulate: int = 1) -> None:
    """Warn if the step that every epoch ends with, and so the run, has very few samples next to the others.

    The gradient of a few slices, which may all be empty, has the same learning rate as that of a whole batch, and
    nothing comes after it to mend what it did.

    Args:
        num_samples: Samples of an epoch.
        batch_size: Samples in a global batch.
        world: Ranks that share each batch.
        accumulate: Batches that make a step; the last one counts for itself only where it is alone in its step.
    """
    steps, last = _end(num_samples, batch_size, world)
    alone = (steps - 1) % accumulate == 0
    if alone and last < _ENOUGH and last * _SHARE < batch_size:
        better = _nearest(num_samples, batch_size, world)
        log.warning(
            "The last of the %d batches of an epoch has %d of %d samples, and the run ends on it: a step on so few "
            "may throw the network off. With data.batch_size=%d the last batch has %d.",
            steps,
            last,
            batch_size,
            better,
            _end(num_samples, better, world)[1],
        )


def _end(num_samples: int, batch_size: int, world: int) -> tuple[int, int]:
    """Return the number of batches of an epoch and the size of the last."""
    limits = batch_limits(num_samples, batch_size, world)
    return len(limits) - 1, limits[-1] - limits[-2]


def _nearest(num_samples: int, batch_size: int, world: int) -> int:
    """Return the nearest batch size whose last batch is at least half as large; of two the smaller, which fits.

    There is one: a batch of one sample for each rank leaves none over.
    """
    sizes = sorted(range(world, min(2 * batch_size, num_samples) + 1), key=lambda size: abs(size - batch_size))
    return next(size for size in sizes if 2 * _end(num_samples, size, world)[1] >= size)
