"""Whether our Triton kernels run on a device."""

import logging
import os
from collections.abc import Callable

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


def _check_version() -> None:
    import triton  # type: ignore[import-untyped]

    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 3):  # an older one cannot compile our convolutions
        raise RuntimeError(f"Expected Triton 3.3 or newer, but got {triton.__version__}. Install a newer torch.")


def succeeds(what: str, device: torch.device, trial: Callable[[], None]) -> bool:
    """Tell whether a trial of kernels goes well there: Triton needs a GPU that it knows, and a C compiler."""
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
            _check_version()
            trial()
    except Exception as error:  # Triton raises whatever its compiler, the driver or the system do
        log.warning(
            "%s run on torch's own kernels, which are slower: Triton's do not work on %s (%s: %s).",
            what,
            device,
            type(error).__name__,
            next(iter(str(error).splitlines()), ""),
        )
        return False
    return True
