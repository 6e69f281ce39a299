"""Where training runs: one process or several, here or on many machines, through Lightning's Fabric."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import active_children, parent_process
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_utilities.core import rank_zero
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from adawac.config import TrainConfig, override
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
    on_gpu = config.hardware.accelerator != "cpu" and torch.cuda.is_available()
    half = on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
    return override(config, {"hardware.precision": "bf16" if half else "fp32"})


def build_fabric(config: TrainConfig) -> Fabric:
    """Return what knows the devices, after setting torch's switches for precision and determinism."""
    hardware = settled(config).hardware
    if hardware.accelerator == "cuda" and not torch.cuda.is_available():
        raise ConfigError("Expected a GPU for hardware.accelerator=cuda, but torch sees none. Choose cpu or auto.")
    on_gpu = hardware.accelerator != "cpu" and torch.cuda.is_available()
    if not on_gpu and (hardware.precision in ("fp16", "tf32") or hardware.sync_batchnorm):
        asked = "hardware.sync_batchnorm" if hardware.sync_batchnorm else f"hardware.precision={hardware.precision}"
        raise ConfigError(f"Expected a GPU for {asked}, but torch sees none. Leave it out on a CPU.")
    devices, nodes = _asked(config)
    if on_gpu and devices > torch.cuda.device_count():
        raise ConfigError(
            f"Expected at most {torch.cuda.device_count()} devices, as many as torch sees here, but got {devices}. "
            "Lower hardware.devices."
        )
    torch.set_float32_matmul_precision("high" if hardware.precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = hardware.precision == "tf32"
    if hardware.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to be deterministic
    torch.use_deterministic_algorithms(hardware.deterministic)
    torch.backends.cudnn.benchmark = not hardware.deterministic
    with quiet():
        return Fabric(
            accelerator="cuda" if on_gpu else "cpu",
            devices=devices,
            num_nodes=nodes,
            strategy=_strategy(on_gpu, devices, nodes),
            precision=_PRECISIONS[hardware.precision],
        )


def _strategy(on_gpu: bool, devices: int, nodes: int) -> str:
    """Return how Fabric makes its ranks: as forks, but CUDA would not survive one.

    On GPUs it starts this program again, which must then be the one that was called: a process of a grid or of Ray is
    not, so that it spawns them.
    """
    if devices * nodes == 1:
        return "auto"
    if "RANK" in os.environ or nodes > 1:
        return "ddp"
    if not on_gpu:
        return "ddp_fork"
    called = parent_process() is None and Path(sys.argv[0]).name != "default_worker.py"  # Ray's program
    return "ddp" if called else "ddp_spawn"


def _asked(config: TrainConfig) -> tuple[int, int]:
    """Return the devices on each machine and the machines: what torchrun started, or else what is configured."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["GROUP_WORLD_SIZE"])
    return config.hardware.devices, config.hardware.nodes


def launch(fabric: Fabric, train: Callable[..., None], *arguments: Any) -> None:
    """Call `train(fabric, *arguments)` on every rank, and raise here what stopped it there."""
    if fabric.world_size == 1:
        train(fabric, *arguments)
        return
    with _children_take_interrupts(), quiet():
        try:
            # Bound before: Fabric goes through arguments in search of tensors, and stumbles over a configuration.
            problem = fabric.launch(partial(_guarded, train=train, arguments=arguments))
        except ProcessExitedException as error:
            raise lost_rank(str(error)) from error
        except ProcessRaisedException as error:
            raise lost_rank(str(error).strip().splitlines()[-1]) from error  # the last line of its traceback
    if problem is not None:
        raise problem


def _guarded(fabric: Fabric, *, train: Callable[..., None], arguments: Sequence[Any]) -> BaseException | None:
    """Train; return what went wrong, since a process could only pass on its text."""
    if signal.getsignal(signal.SIGTERM) is _pass_on:  # this one trains, and does not wait for others
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        train(fabric, *arguments)
    except (AdawacError, KeyboardInterrupt) as error:
        return error
    except RuntimeError as error:
        if _is_about_a_rank(error):
            return lost_rank(str(error))
        raise
    return None


def lost_rank(why: str) -> RunError:
    """Return the message for a rank that is gone."""
    return RunError(
        f"Expected every rank to stay alive, but one was lost ({why.strip().splitlines()[0][:200]}). Go on from the "
        "last checkpoint with --resume, on as many devices as there are."
    )


def _is_about_a_rank(error: RuntimeError) -> bool:
    text = str(error)
    return isinstance(error, dist.DistError) or any(word in text for word in ("gloo", "Connection", "NCCL", "peer"))


def agree(fabric: Fabric, flag: bool) -> bool:
    """Return on every rank whether the flag is up on any of them."""
    if fabric.world_size == 1:
        return flag
    return bool(fabric.all_reduce(torch.tensor(float(flag), device=fabric.device), reduce_op="sum"))


@contextmanager
def _children_take_interrupts() -> Iterator[None]:
    """Leave Ctrl-C to the processes that train, and pass SIGTERM on to them: this one only waits."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # else another program handles it
        former[signal.SIGTERM] = signal.signal(signal.SIGTERM, _pass_on)
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
