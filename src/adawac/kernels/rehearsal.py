"""Kernels compiled together, before they first run.

Triton compiles a kernel when it is first called, one after the other: half a minute for a network on a slow processor.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

# What becomes of a kernel that is called, the innermost context last: a mode that compiles it, or None, and it runs.
_modes: list[Any] = []


@contextmanager
def rehearsal(device: torch.device) -> Iterator[None]:
    """Compile and load kernels where they would run, and wait; what is computed meanwhile means nothing.

    Every variant of a kernel has a thread of its own, as far as there are processors. One that cannot be compiled says
    so where it runs.

    Args:
        device: Where they are going to run.
    """
    # Triton has tuples since 3.3. With an older one convolutions cannot be compiled, which no trial would find out.
    from triton.language import tuple as _  # type: ignore[import-untyped]  # noqa: F401

    try:
        from triton.runtime._async_compile import AsyncCompileMode  # type: ignore[import-untyped]
    except ImportError:  # an older Triton: kernels are compiled one by one, as they run
        yield
        return
    with _Threads(initializer=_look_at, initargs=(device,)) as threads:
        mode = AsyncCompileMode(threads, ignore_errors=True)
        try:
            with _calls(mode):
                yield
        finally:
            for kernel in mode.future_kernels.values():
                kernel.result(ignore_errors=True)


@contextmanager
def performance() -> Iterator[None]:
    """Let kernels run, within a rehearsal as well."""
    with _calls(None):
        yield


class _Threads(ThreadPoolExecutor):
    """Load what is compiled: for that some versions of Triton call a C compiler, which takes as long again."""

    def submit(self, compiled: Callable[[], Any], /) -> Future[Any]:  # type: ignore[override]
        def ready() -> Any:
            kernel = compiled()
            _ = kernel.run
            return kernel

        return super().submit(ready)


def _look_at(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)


@contextmanager
def _calls(mode: Any) -> Iterator[None]:
    """Let the mode decide over kernels that are called, in whichever thread: the passes back have one of their own."""
    from triton.runtime.jit import JITFunction  # type: ignore[import-untyped]

    run = JITFunction.run

    def decided(kernel: Any, *arguments: Any, warmup: bool, **options: Any) -> Any:
        if _modes[-1] is None:
            return run(kernel, *arguments, warmup=warmup, **options)
        return _compile(_modes[-1], run, kernel, *arguments, **options)

    if not _modes:
        JITFunction.run = decided
    _modes.append(mode)
    try:
        yield
    finally:
        _modes.pop()
        if not _modes:
            JITFunction.run = run


def _compile(mode: Any, run: Any, *arguments: Any, **options: Any) -> Any:
    from triton.runtime._async_compile import active_mode

    token = active_mode.set(mode)
    try:
        return run(*arguments, warmup=True, **options)
    finally:
        active_mode.reset(token)
