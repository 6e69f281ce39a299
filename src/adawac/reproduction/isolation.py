"""Keeps jobs of one process apart: a run must not depend on what ran before it."""

import contextlib
import gc
import logging
import os
import random
import sys
import warnings
from collections.abc import Iterator
from typing import Any

__all__ = ["as_if_new"]


@contextlib.contextmanager
def as_if_new(seed: int) -> Iterator[None]:
    """Begin with generators that are a function of the seed; in the end put back what a run changes, and free memory.

    Args:
        seed: Of Python's, NumPy's and torch's global generators. A run draws from its own ones, but others' networks
            may not.
    """
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    environment, switches, levels = dict(os.environ), _torch_switches(), _log_levels()
    try:
        with warnings.catch_warnings():
            yield
    finally:
        if dict(os.environ) != environment:
            os.environ.clear()
            os.environ.update(environment)
        _set_torch_switches(switches)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        _free_memory()


def _torch_switches() -> dict[str, Any]:
    import torch

    return {
        "dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "benchmark": torch.backends.cudnn.benchmark,
        "tf32": torch.backends.cudnn.allow_tf32,
    }


def _set_torch_switches(switches: dict[str, Any]) -> None:
    import torch

    torch.set_default_dtype(switches["dtype"])
    if torch.get_num_threads() != switches["threads"]:
        torch.set_num_threads(switches["threads"])
    torch.set_float32_matmul_precision(switches["precision"])
    torch.use_deterministic_algorithms(switches["deterministic"])
    torch.backends.cudnn.benchmark = switches["benchmark"]
    torch.backends.cudnn.allow_tf32 = switches["tf32"]


def _log_levels() -> dict[str, int]:
    loggers = logging.root.manager.loggerDict.items()
    return {name: one.level for name, one in loggers if isinstance(one, logging.Logger)}


def _free_memory() -> None:
    """Give back what the last run held; networks and their hooks are cycles, which wait for the garbage collector."""
    import torch

    gc.collect()
    if "torch._dynamo" in sys.modules:  # it keeps what it has compiled
        torch._dynamo.reset()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
