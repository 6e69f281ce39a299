"""What a run must be, and must stay, to go on: whatever would lose its record or make it untrue is refused."""

from pathlib import Path
from typing import Any

from adawac.config import TrainConfig
from adawac.errors import ConfigError, RunError
from adawac.runs import Run, read_state
from adawac.runs.layout import checkpoint_path

__all__ = ["batches_of", "check_batches", "check_resumed"]


def check_resumed(config: TrainConfig, run: Run) -> None:
    """Refuse to go on in a way that would make the run's own description wrong, or cut its record for nothing."""
    if "loop" in run.settings:
        raise RunError(
            f"Expected a run of `adawac train` to go on with, but {run.folder} is of another training loop "
            f"({run.settings['loop']}). Go on with it there, or start a new run."
        )
    _check_last(run)
    # The configuration in the folder may have been edited since; what a list of runs shows has not.
    own = (config if run.config is None else run.config).summary | run.summary
    for what in ("method", "preset"):
        if own[what] != (given := config.summary[what]):
            raise ConfigError(
                f"Expected to go on with the {what} that {run.folder} began with, {own[what]}, but got {given}. Its "
                f"scores would count as those of {given}: start a new run."
            )
    done = max(run.epoch, _begun(run))
    if config.epochs < done:
        raise ConfigError(
            f"Expected at least the {done} epochs that {run.folder} has done or begun, but got epochs={config.epochs}. "
            "Give more, or start a new run."
        )


def _check_last(run: Run) -> None:
    """Refuse a run that was saved and has lost what was saved: it would begin again."""
    if "last" in run.checkpoints or not ("last" in run.info.get("saved", ()) or run.status == "finished"):
        return
    path = checkpoint_path(run.folder, "last")
    best = checkpoint_path(run.folder, "best")
    instead = f" copy {best.name} there to go on from the epoch that validated best," if best.is_file() else ""
    raise RunError(
        f"Expected a checkpoint to go on from, but {path} is gone, and the run would begin again and lose the record "
        f"of its {run.epoch} epochs. Restore it from a copy,{instead} or start a new run in another folder."
    )


def _begun(run: Run) -> int:
    """Return the epoch that the last checkpoint is of, or within; 0 where none can be read, as will be told."""
    try:
        state = read_state(checkpoint_path(run.folder, "last"))
    except (RunError, FileNotFoundError):
        return 0
    return int(state["epoch"]) + bool(state["step"])


def batches_of(config: TrainConfig, steps: int) -> dict[str, int]:
    """Return what decides which samples a step within an epoch gets."""
    return {
        "data.batch_size": config.data.batch_size,
        "seed": config.seed,
        "optim.accumulate": config.optim.accumulate,
        "steps": steps,
    }


def check_batches(folder: Path, state: dict[str, Any], now: dict[str, int]) -> None:
    """Refuse to finish an epoch with other batches than it began with: samples would be left out or come twice."""
    then = state.get("batches", now)
    changed = [name for name in now if then.get(name) != now[name]]
    if changed:
        was, given = (", ".join(f"{name}={one.get(name)}" for name in changed) for one in (then, now))
        raise RunError(
            f"Expected the batches that {folder} was interrupted with, {was}, but got {given} within epoch "
            f"{state['epoch'] + 1}. Go on with the same ones until an epoch is over; they may change between epochs."
        )
