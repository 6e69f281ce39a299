"""Random numbers that belong to a sample: a counter-based hash instead of a generator with a state.

A number is a function of the words it is asked for with, such as (seed, epoch, sample, view): the same on the CPU and
on a GPU, whatever batch, worker or rank a sample comes to, and without a host synchronisation.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

__all__ = ["Word", "random_bits", "random_order", "sample_keys"]

Word = int | Tensor
_STEP = 0x9E3779B97F4A7C15  # 2⁶⁴ over the golden ratio: consecutive words land far apart


def random_bits(sample: Int[Tensor, "..."], *words: Word) -> Int[Tensor, "..."]:
    """Return 64 random bits for each sample, a function of it and of `words` alone; they broadcast against it."""
    for word in words:
        step = (
            _signed((word + 1) * _STEP) if isinstance(word, int) else (word + 1) * _signed(_STEP)
        )  # + 1: 0 counts too
        sample = _mix(sample + step)
    return sample


def _mix(state: Tensor) -> Tensor:
    """Return SplitMix64's output function of int64 words, whose products wrap around."""
    for right, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ ((state >> right) & ((1 << (64 - right)) - 1))) * _signed(factor)
    return state ^ ((state >> 31) & ((1 << 33) - 1))


def _signed(word: int) -> int:
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word


def sample_keys(ids: Iterable[str]) -> Int[Tensor, " n"]:
    """Return an integer for each stable id: randomness that follows it stays the same when rows move."""
    digests = b"".join(hashlib.blake2b(one.encode(), digest_size=8).digest() for one in ids)
    return torch.from_numpy(np.frombuffer(digests, dtype="<i8").astype(np.int64))


def random_order(seed: int, epoch: int, sample: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Return the rows in the random order of an epoch, a function of (seed, epoch) and of which samples there are."""
    return random_bits(sample, seed, epoch, -2).argsort(stable=True)
