"""Our Triton kernels: whether they run on a device, and how they are launched there."""

import logging
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # then kernels run on CPU tensors, slowly: for tests
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def plain(x: Tensor) -> bool:
    """Tell whether a tensor is one that kernels read: on a GPU, and no fake, distributed or annotated one."""
    return (
        not torch.compiler.is_compiling()  # the compiler fuses torch's functions itself
        and type(x) in (Tensor, torch.nn.Parameter)
        and (x.is_cuda or INTERPRETED)
        and x.dtype in DTYPES
    )


def launch(module: str, kernel: str, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Run a kernel of one of this package's modules on its arguments' device; Triton is imported for the first."""
    compiled = getattr(import_module(f"adawac.kernels.{module}"), kernel)
    with torch.cuda.device_of(next(argument for argument in arguments if isinstance(argument, Tensor))):
        compiled[grid](*arguments, **constants)


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the type to compute in: autocast's where that is on, or else the tensor's own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def power_of_two(number: int) -> int:
    """Return the least power of two that is not less than a number."""
    return 1 << (number - 1).bit_length()


def _check_version() -> None:
    import triton  # type: ignore[import-untyped]

    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 3):  # an older one cannot compile our convolutions
        raise RuntimeError(f"Expected Triton 3.3 or newer, but got {triton.__version__}. Install a newer torch.")


def succeeds(device: torch.device, trial: Callable[[], None]) -> bool:
    """Tell whether a trial of kernels goes well there: Triton needs a GPU that it knows, and a C compiler."""
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
            _check_version()
            trial()
    except Exception as error:  # Triton raises whatever its compiler, the driver or the system do
        log.warning(
            "Everything runs on torch's own kernels, which are slower: Triton's do not work on %s (%s: %s).",
            device,
            type(error).__name__,
            next(iter(str(error).splitlines()), ""),
        )
        return False
    return True
