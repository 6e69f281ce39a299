"""Where training runs: one process or several, here or on many machines, through Lightning's Fabric."""

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from multiprocessing import active_children, parent_process
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_utilities.core import rank_zero
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from adawac import errors
from adawac.config import HardwareConfig, TrainConfig, override
from adawac.data.parallel import max_ranks
from adawac.errors import AdawacError, ConfigError, RunError


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Fabric's log lines about ranks that joined and precisions to choose."""
    packages = ("lightning_fabric", "lightning.fabric")
    loggers = [logging.getLogger(f"{package}.utilities.distributed") for package in packages]
    loggers.append(rank_zero.log)  # that of whichever part of Lightning was imported last
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


_PRECISIONS: Mapping[str, Any] = {"fp32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def settled(config: TrainConfig) -> TrainConfig:
    """Return the configuration with what this machine decides: the precision, where it is `auto`.

    What is settled stands in the run folder, so that a run goes on as it began, wherever that is.
    """
    if config.hardware.precision != "auto":
        return config
    on_gpu = config.hardware.accelerator in ("auto", "cuda") and torch.cuda.is_available()
    half = on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
    return override(config, {"hardware.precision": "bf16" if half else "fp32"})


def build_fabric(config: TrainConfig) -> Fabric:
    """Return what knows the devices, after setting torch's switches for precision and determinism."""
    hardware = settled(config).hardware
    if hardware.accelerator == "cuda" and not torch.cuda.is_available():
        raise ConfigError("Expected a GPU for hardware.accelerator=cuda, but torch sees none. Choose cpu or auto.")
    if hardware.accelerator == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("Expected Apple's GPU for hardware.accelerator=mps, but torch sees none. Choose cpu or auto.")
    on_gpu = hardware.accelerator in ("auto", "cuda") and torch.cuda.is_available()
    if not on_gpu and (hardware.precision in ("fp16", "tf32") or hardware.sync_batchnorm):
        asked = "hardware.sync_batchnorm" if hardware.sync_batchnorm else f"hardware.precision={hardware.precision}"
        raise ConfigError(f"Expected a GPU for {asked}, but torch sees none. Leave it out.")
    hardware = _started(hardware)
    if hardware.nodes > 1 and not {"MASTER_ADDR", "SLURM_JOB_ID"} & os.environ.keys():
        raise ConfigError(
            f"Expected to be started on each of {hardware.nodes} machines by torchrun, which says where the first one "
            "is (MASTER_ADDR), but nobody does. Start it that way, or leave hardware.nodes out."
        )
    hardware.check_devices(torch.cuda.device_count() if on_gpu else max_ranks())
    devices, nodes = hardware.devices, hardware.nodes
    torch.set_float32_matmul_precision("high" if hardware.precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = hardware.precision == "tf32"
    if hardware.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to be deterministic
    torch.use_deterministic_algorithms(hardware.deterministic)
    torch.backends.cudnn.benchmark = not hardware.deterministic
    with quiet():
        return Fabric(
            accelerator="cuda" if on_gpu else hardware.accelerator.replace("auto", "cpu"),
            devices=devices,
            num_nodes=nodes,
            strategy=_strategy(on_gpu, devices, nodes),
            precision=_PRECISIONS[hardware.precision],
        )


def _strategy(on_gpu: bool, devices: int, nodes: int) -> str:
    """Return how Fabric makes its ranks: as forks, but CUDA would not survive one, and Windows has none.

    There it starts this program again, which must then be the one that was called: a process of a grid or of Ray is
    not, so that it spawns them.
    """
    if devices * nodes == 1:
        return "auto"
    if "RANK" in os.environ or nodes > 1:
        return "ddp"
    if not on_gpu and hasattr(os, "fork"):
        return "ddp_fork"
    called = parent_process() is None and Path(sys.argv[0]).name != "default_worker.py"  # Ray's program
    return "ddp" if called else "ddp_spawn"


def _started(hardware: HardwareConfig) -> HardwareConfig:
    """Return the settings with the devices and machines that torchrun started, if it did."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return hardware
    return replace(hardware, devices=int(os.environ["LOCAL_WORLD_SIZE"]), nodes=int(os.environ["GROUP_WORLD_SIZE"]))


def launch(fabric: Fabric, train: Callable[..., None], *arguments: Any) -> None:
    """Call `train(fabric, *arguments)` on every rank, and raise here what stopped it there."""
    if fabric.world_size == 1:
        train(fabric, *arguments)
        return
    # This process only waits: it leaves Ctrl-C to those that train, and passes SIGTERM on to them.
    with handling({signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: _pass_on}), quiet():
        try:
            # Bound before: Fabric goes through arguments in search of tensors, and stumbles over a configuration.
            problem = fabric.launch(partial(_guarded, train=train, arguments=arguments))
        except ProcessExitedException as error:
            raise lost_rank(str(error)) from error
        except ProcessRaisedException as error:
            raise _error_of_rank(str(error).strip().splitlines()) from error
    if problem is not None:
        raise problem


def _guarded(fabric: Fabric, *, train: Callable[..., None], arguments: Sequence[Any]) -> BaseException | None:
    """Train; return what went wrong, since a process could only pass on its text."""
    if signal.getsignal(signal.SIGTERM) is _pass_on:  # this one trains, and does not wait for others
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        train(fabric, *arguments)
    except (AdawacError, KeyboardInterrupt) as error:
        if fabric.global_rank and isinstance(error, AdawacError):
            raise  # only the first rank's answer is heard, and that one knows of a lost rank alone
        return error
    except RuntimeError as error:
        words = ("gloo", "Connection", "NCCL", "peer")  # of errors about another rank
        if isinstance(error, dist.DistError) or any(word in str(error) for word in words):
            return lost_rank(str(error))
        raise
    return None


def _error_of_rank(traceback: Sequence[str]) -> AdawacError:
    """Return the error that a rank's traceback ends with if it is one of ours, or else that the rank is lost."""
    start = max((number for number, line in enumerate(traceback) if re.match(r"adawac\.[\w.]+: ", line)), default=None)
    if start is None:
        return lost_rank(traceback[-1])
    name, _, message = "\n".join(traceback[start:]).partition(": ")
    kind = getattr(errors, name.rpartition(".")[2], ConfigError)
    return cast("AdawacError", kind(message))


def lost_rank(why: str) -> RunError:
    """Return the message for a rank that is gone."""
    return RunError(
        f"Expected every rank to stay alive, but one was lost ({why.strip().splitlines()[0][:200]}). Go on from the "
        "last checkpoint with --resume, on as many devices as there are."
    )


def agree(fabric: Fabric, flag: bool) -> bool:
    """Return on every rank whether the flag is up on any of them."""
    if fabric.world_size == 1:
        return flag
    return bool(fabric.all_reduce(torch.tensor(float(flag), device=fabric.device), reduce_op="sum"))


def gather(fabric: Fabric, value: Any) -> list[Any]:
    """Return every rank's value; every rank calls it."""
    if fabric.world_size == 1:
        return [value]
    values = [None] * fabric.world_size
    dist.all_gather_object(values, value)
    return values


@contextmanager
def handling(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Handle signals, which reach the main thread alone, but not SIGTERM where another program handles it already."""
    former: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            if number == signal.SIGINT or signal.getsignal(number) is signal.SIG_DFL:
                former[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _pass_on(number: int, frame: FrameType | None) -> None:
    """Let all ranks save: a container that is stopped tells its first process alone.

    As Ctrl-C: a cluster may have sent them SIGTERM already, and a second one would stop them at once.
    """
    for rank in active_children():
        with suppress(ProcessLookupError, TypeError):  # it has ended, or not begun
            os.kill(rank.pid, signal.SIGINT)  # type: ignore[arg-type]
