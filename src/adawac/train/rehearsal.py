"""Kernels compiled before the first step, all at the same time.

Triton compiles a kernel when it is first called, one after the other: half a minute for a network on a slow processor.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from adawac.gpu import on_trial

__all__ = ["rehearsal"]


@contextmanager
def rehearsal(device: torch.device) -> Iterator[None]:
    """Compile kernels where they would run, and wait for the end of it; what is computed meanwhile means nothing.

    Each kernel has a thread, in which its variants follow one another. Only those on trial run.
    """
    from triton.runtime.jit import JITFunction  # type: ignore[import-untyped]

    run = JITFunction.run
    threads: dict[Any, ThreadPoolExecutor] = {}

    def compiled(kernel: Any, *arguments: Any, warmup: bool, **options: Any) -> Any:
        if on_trial():
            return run(kernel, *arguments, warmup=warmup, **options)
        thread = threads.setdefault(kernel, ThreadPoolExecutor(1))
        return thread.submit(_on_device, device, run, kernel, *arguments, warmup=True, **options)

    JITFunction.run = compiled
    try:
        yield
    finally:
        JITFunction.run = run
        for thread in threads.values():
            thread.shutdown()


def _on_device(device: torch.device, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    with torch.cuda.device(device):
        call(*arguments, **options)
