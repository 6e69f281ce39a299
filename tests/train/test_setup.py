"""A warning before a run whose epochs end with a step on very few samples, and the batch size that it names."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adawac.data.loader import batch_limits
from adawac.train import fit
from adawac.train.setup import _nearest, warn_of_short_end
from tests.train.test_engine import Stop


def last_batch(num_samples, size, world=1):
    limits = batch_limits(num_samples, size, world)
    return limits[-1] - limits[-2]


@pytest.mark.parametrize(
    ("num_samples", "size", "world", "accumulate", "said"),
    [
        (1324, 24, 1, 1, ("56 batches", "4 of 24", "data.batch_size=23 the last batch has 13")),  # ACDC
        (1324, 24, 4, 1, ("56 batches", "4 of 24", "data.batch_size=23 the last batch has 13")),
        (1324, 24, 8, 1, None),  # fewer than ranks: they join the batch before
        (1324, 24, 1, 2, None),  # shares its step with a whole batch
        (1324, 24, 1, 5, ("4 of 24",)),  # the 56th batch is alone again
        (24 * 9 + 8, 24, 1, 1, None),
        (24 * 9 + 7, 24, 1, 1, ("7 of 24",)),
        (12 * 9 + 4, 12, 1, 1, None),  # few, but not much fewer than the others
        (12 * 9 + 3, 12, 1, 1, ("3 of 12",)),
        (24 * 9, 24, 1, 1, None),
        (24, 24, 1, 1, None),  # the only batch
        (3, 3, 1, 1, None),
        (25, 24, 1, 1, ("2 batches", "1 of 24", "data.batch_size=25 the last batch has 25")),
        (9, 4, 1, 1, ("1 of 4", "data.batch_size=3 the last batch has 3")),
        (10, 3, 1, 1, None),  # noisy steps all along
        (7, 2, 1, 1, None),
        (7, 1, 1, 1, None),
    ],
)
def test_the_end_of_an_epoch_is_looked_at(caplog, num_samples, size, world, accumulate, said):
    with caplog.at_level(logging.WARNING):
        warn_of_short_end(num_samples, size, world, accumulate)
    assert bool(caplog.text) == bool(said)
    assert all(part in caplog.text for part in said or ())


@given(st.integers(1, 400), st.integers(1, 64), st.integers(1, 4))
def test_the_size_that_is_named_is_one_that_can_be_trained_with_and_ends_well(num_samples, size, world):
    size = min(size, num_samples)
    if world > size:
        return
    better = _nearest(num_samples, size, world)
    assert world <= better <= num_samples
    assert 2 * last_batch(num_samples, better, world) >= better
    nearer = range(size - abs(size - better) + 1, size + abs(size - better))
    nearer = [other for other in nearer if world <= other <= num_samples]
    assert not [other for other in nearer if 2 * last_batch(num_samples, other, world) >= other]


def test_a_run_says_it_once_and_goes_on_in_silence(change, tmp_path, caplog):
    config = change(data__batch_size=47, epochs=2)  # 48 samples
    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt):
        fit(config, tmp_path / "run", watch=Stop(1, 1))
    assert caplog.text.count("The last of the 2 batches of an epoch has 1 of 47 samples") == 1
    assert "data.batch_size=48 the last batch has 48" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        fit(None, tmp_path / "run", resume=True)
        fit(change(), tmp_path / "even")
    assert "batches of an epoch" not in caplog.text


def test_what_is_refused_is_not_advised(change, tmp_path, caplog):
    (tmp_path / "other.txt").touch()
    with caplog.at_level(logging.WARNING), pytest.raises(ValueError, match="Expected an empty folder"):
        fit(change(data__batch_size=47), tmp_path)
    assert "batches of an epoch" not in caplog.text
