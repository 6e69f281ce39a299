"""Kernels compiled ahead, while the libraries that a training needs are still being imported.

Triton compiles a kernel when it is first called, and a network calls dozens. For the networks that most people train
they are known beforehand: `kernel_calls.json` lists them, made by `benchmarks/kernel_calls.py`. A process of its own,
which needs nothing but Triton, calls the compiler for each, in as many processes as there are processors; what it
leaves in Triton's cache the training finds there, and before its first step it waits until all of them are there: many
processes are faster at it than its own threads. A kernel that is not on the list is compiled when it is first called,
as ever, and one that need not be on it has cost a moment of an idle processor.
"""

import ctypes
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adawac.config import TrainConfig

__all__ = ["CALLS", "Compiler", "begin", "compile_calls", "known_calls", "wait"]

CALLS = Path(__file__).with_name("kernel_calls.json")
_MAJOR, _MINOR = 75, 76  # CUDA's numbers for the two parts of a GPU's compute capability

AT_MOST = 16  # processes that compile
PATIENCE = 60.0  # seconds after which a training compiles by itself what it still needs

_begun: list[subprocess.Popen[bytes]] = []  # they end by themselves


def begin(config: "TrainConfig") -> bool:
    """Let the GPU wake up and kernels be compiled beside everything else; return whether there is a GPU's driver.

    It gains most before torch is imported.
    """
    hardware, rank = config.hardware, os.environ.get("LOCAL_RANK")
    if hardware.accelerator == "cpu" or rank not in (None, "0") or (driver := _driver()) is None:
        return False
    if hardware.devices == hardware.nodes == 1 and rank is None:
        threading.Thread(target=_wake, args=(driver,), daemon=True).start()
    ours = hardware.fused and not hardware.compile and hardware.precision in ("auto", "bf16")
    if ours and find_spec("triton") is not None and known_calls(config.model.name):
        _begun.append(_process(config.model.name))
    return True


def wait() -> None:
    """Wait for the kernels whose compilation was begun; it goes on beside everything else if it takes too long."""
    while _begun:
        with suppress(subprocess.TimeoutExpired):
            _begun.pop().wait(PATIENCE)


def _process(model: str) -> subprocess.Popen[bytes]:
    """Begin to compile a network's kernels, in silence, and in a session of its own: Ctrl-C is not meant for it."""
    nothing, command = subprocess.DEVNULL, [sys.executable, "-P", "-m", __name__, model]
    return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)


def known_calls(model: str) -> list[dict[str, Any]]:
    """Return how a step of this network calls its kernels, each variant once; nothing for networks of other names."""
    found: list[dict[str, Any]] = json.loads(CALLS.read_text()).get(model, [])
    return found


def compile_calls(calls: Sequence[Mapping[str, Any]], capability: int, processes: int | None = None) -> None:
    """Compile what calls of kernels need, into Triton's cache, in forks of this process.

    Args:
        calls: Module, name, arguments and options of each; a tensor is the name of its type, and "unaligned" if it is.
        capability: The GPU's compute capability, such as 90.
        processes: How many; by default all processors but the one that is left to whoever wants the kernels, and no
            more than a network has use for: each takes 70 MB.
    """
    from multiprocessing import get_context

    _stand_in(calls)
    from triton.runtime import driver  # type: ignore[import-untyped]

    driver.set_active(Compiler(capability))
    processes = processes or min(max(1, len(os.sched_getaffinity(0)) - 1), AT_MOST)
    with tempfile.TemporaryDirectory() as claims, get_context("fork").Pool(processes) as pool:
        tools = pool.apply_async(_build_tools)
        pool.map(partial(_compile, Path(claims)), calls, chunksize=1)
        tools.wait()


class Compiler:
    """As much of a driver as Triton's compiler asks for."""

    def __init__(self, capability: int):
        from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]

        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> Any:
        """Return what is compiled for."""
        return self.target

    def get_current_device(self) -> int:
        """Return the first GPU."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Return the default stream."""
        return 0

    @cached_property
    def utils(self) -> Any:
        """Return Triton's own tools, which are compiled when they are first asked for."""
        from triton.backends.nvidia.driver import CudaUtils  # type: ignore[import-untyped]

        return CudaUtils()


class _Argument:
    """A tensor as the compiler sees it: a type, and where it begins, at a multiple of 16 bytes or not."""

    def __init__(self, described: str):
        dtype, *unaligned = described.split()
        self.dtype, self.address = f"torch.{dtype}", len(unaligned)

    def data_ptr(self) -> int:
        return self.address


def _stand_in(calls: Sequence[Mapping[str, Any]]) -> None:
    """Let kernels be imported without what lies around them. Triton asks torch for a type, but it takes seconds."""
    sys.modules["torch"] = torch = ModuleType("torch")
    torch.Tensor = type("Tensor", (), {})  # type: ignore[attr-defined]
    root = Path(__file__).parents[1]
    for call in calls:
        parts = call["module"].split(".")
        for end in range(2, len(parts)):
            package = ModuleType(".".join(parts[:end]))
            package.__path__ = [str(root.joinpath(*parts[1:end]))]
            sys.modules.setdefault(package.__name__, package)


def _compiled(call: Mapping[str, Any]) -> Any:
    given = [_Argument(one) if isinstance(one, str) else one for one in call["arguments"]]
    kernel = getattr(import_module(call["module"]), call["kernel"])
    return kernel.run(*given, grid=(1,), warmup=True, **call["options"])


def _compile(claims: Path, call: Mapping[str, Any]) -> None:
    """Compile a kernel and build what calls it: for that some versions of Triton need a C compiler.

    That takes as long as the kernel itself, and is done once for all kernels of a signature.

    Args:
        claims: A folder in which all processes note what they have taken on.
        call: Of the kernel.
    """
    from triton.backends.nvidia.driver import CudaLauncher

    with suppress(Exception):  # whatever it is, the training will say so when it calls the kernel
        kernel = _compiled(call)
        types = ["pointer" if str(one).startswith("*") else one for one in kernel.src.signature.values()]
        if _is_first(claims, types):
            CudaLauncher(kernel.src, kernel.metadata)


def _is_first(claims: Path, what: Sequence[Any]) -> bool:
    """Tell whether no other process has taken this on."""
    try:
        (claims / hashlib.sha256(repr(what).encode()).hexdigest()).mkdir()
    except FileExistsError:
        return False
    return True


def _build_tools() -> None:
    from triton.runtime import driver

    with suppress(Exception):
        _ = driver.active.utils


def _driver() -> ctypes.CDLL | None:
    """Return CUDA's driver; None where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _first_gpu(driver: ctypes.CDLL) -> ctypes.c_int | None:
    device = ctypes.c_int()
    there = driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0
    return device if there else None


def _wake(driver: ctypes.CDLL) -> None:
    """Make the first GPU's context, which is the one that torch will use."""
    device = _first_gpu(driver)
    if device is not None:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), device)


def _capability(driver: ctypes.CDLL) -> int | None:
    """Return the first GPU's compute capability; None where there is no GPU."""
    device, found = _first_gpu(driver), []
    if device is None:
        return None
    for number in (_MAJOR, _MINOR):
        value = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(value), number, device) != 0:
            return None
        found.append(value.value)
    return 10 * found[0] + found[1]


def _main(model: str) -> None:
    driver = _driver()
    capability = None if driver is None else _capability(driver)
    if capability is not None:
        os.nice(5)  # whoever wants the kernels goes first
        compile_calls(known_calls(model), capability)


if __name__ == "__main__":
    _main(sys.argv[1])
