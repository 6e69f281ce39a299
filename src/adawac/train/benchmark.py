"""What training costs on the machine at hand: slices/s, memory, and where the time of a step goes."""

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from adawac.config import TrainConfig
from adawac.errors import ConfigError
from adawac.runs.recorder import EpochRecord
from adawac.train.setup import Trainer, set_up
from adawac.train.step import TrainStep


def measure(
    config: TrainConfig, *, steps: int = 20, warmup: int = 4, watch: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Train for some steps and return what they cost.

    Args:
        config: What to train; nothing is written.
        steps: Steps that are timed, after some that are not.
        warmup: Steps before that.
        watch: Called after each step with the number of steps done and their total.

    Returns:
        slices_per_second and step_ms (median), peak_gib (of the GPU, or of this process; None where the system, such as
        Windows, does not count it), seconds_to_first_step, and
        under parts_ms the time of each part of a step, measured one after another with the device waited for.
    """
    if steps < 1:
        raise ConfigError(f"Expected at least 1 step to measure, but got {steps}. Raise --steps.")
    if (config.hardware.devices, config.hardware.nodes) != (1, 1):
        raise ConfigError(
            f"Expected one device to measure, but got hardware.devices={config.hardware.devices} and "
            f"hardware.nodes={config.hardware.nodes}. Leave both at 1: `adawac train` prints slices/s for several."
        )
    rounds = min(steps, 10)
    total = warmup + steps + rounds
    tell = watch or (lambda done, total: None)
    started = time.perf_counter()
    trainer = set_up(config)
    EpochRecord(trainer.criterion)  # a part of every step
    step = TrainStep(trainer)
    on_gpu = trainer.fabric.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    inputs = _endless(step, config.data.batch_size)
    seconds: list[float] = []
    first = 0.0
    for done in range(1, warmup + steps + 1):
        batch, epoch = next(inputs)
        seconds.append(_timed(trainer, partial(step, batch, epoch, 0)))
        first = first or time.perf_counter() - started
        tell(done, total)
    typical = statistics.median(seconds[warmup:])
    peak = torch.cuda.max_memory_allocated() if on_gpu else _peak_resident()
    return {
        "device": torch.cuda.get_device_name() if on_gpu else f"CPU, {torch.get_num_threads()} threads",
        "model": config.model.name,
        "method": config.method.name,
        "forward": config.forward,
        "precision": trainer.config.hardware.precision,
        "image_size": list(config.data.image_size),
        "batch_size": config.data.batch_size,
        "captured": step.reason is None,
        "eager_because": step.reason,
        "slices_per_second": config.data.batch_size / typical,
        "step_ms": 1000 * typical,
        "peak_gib": peak and peak / 2**30,
        "seconds_to_first_step": first,
        "parts_ms": _parts(step, inputs, rounds, lambda done: tell(warmup + steps + done, total)),
    }


def _peak_resident() -> int | None:
    """Return the most memory that this process had at a time, in bytes."""
    try:
        import resource
    except ModuleNotFoundError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _parts(
    step: TrainStep, inputs: Iterator[tuple[Any, int]], rounds: int, tell: Callable[[int], None]
) -> dict[str, float]:
    """Return the median milliseconds of each part, kernel by kernel."""
    seconds: dict[str, list[float]] = {name: [] for name in ("views", "forward", "criterion", "backward", "optimiser")}

    def timed(name: str, part: Callable[..., Any], *arguments: Any) -> Any:
        results: list[Any] = []
        seconds[name].append(_timed(step.trainer, lambda: results.append(part(*arguments))))
        return results[0]

    for done in range(1, rounds + 1):
        batch = timed("views", step.batch, *next(inputs))
        out = timed("criterion", step.criterion, batch, *timed("forward", step.forward, batch))
        timed("backward", step.trainer.fabric.backward, out.loss)
        timed("optimiser", step.descend)
        tell(done)
    return {name: 1000 * statistics.median(times) for name, times in seconds.items()}


def _endless(step: TrainStep, size: int) -> Iterator[tuple[Any, int]]:
    """Yield whole batches endlessly, epoch after epoch."""
    for epoch in range(1, 1 << 30):
        for batch in step.inputs(epoch, 0):
            index = batch["index"] if isinstance(batch, dict) else batch
            if len(index) == size:
                yield batch, epoch


def _timed(trainer: Trainer, work: Callable[[], Any]) -> float:
    on_gpu = trainer.fabric.device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - started
