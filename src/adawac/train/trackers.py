"""Numbers of each epoch to CSV, TensorBoard, W&B or MLflow, through Fabric's loggers, besides the run folder."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from adawac.errors import MissingDependencyError

log = logging.getLogger(__name__)


class Trackers:
    """Trackers by name. One that fails is given up with a warning: no epoch is lost for it.

    Args:
        names: Some of csv, tensorboard, wandb, mlflow.
        folder: The run folder; local files go to `trackers/` in it.
        settings: The run's configuration, as plain data.
        session: How often the run was started; files of an earlier time are left as they are.
    """

    def __init__(self, names: Sequence[str], folder: Path, settings: Mapping[str, Any], session: int):
        self._open = {name: _LOGGERS[name](folder / "trackers", folder.name, f"start-{session}") for name in names}
        self._each("log_hyperparams", dict(_flatten(settings)))

    def log(self, epoch: int, metrics: Mapping[str, Any]) -> None:
        """Report the numbers of an epoch."""
        numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
        self._each("log_metrics", numbers, epoch)
        self._each("save")

    def close(self, finished: bool) -> None:
        """Say how the run ended."""
        self._each("finalize", "success" if finished else "failed")

    def _each(self, call: str, *arguments: Any) -> None:
        for name, tracker in list(self._open.items()):
            try:
                getattr(tracker, call)(*arguments)
            except NotImplementedError:  # CSV has no place for settings
                pass
            except Exception as error:
                del self._open[name]
                log.warning("The tracker %s failed, training goes on without it: %s", name, error)


def check_trackers(names: Sequence[str]) -> None:
    """Raise unless what the trackers need is installed."""
    for name in names:
        lacking = [module for module in _NEEDS[name] if find_spec(module) is None]
        if lacking:
            raise MissingDependencyError(
                f"Expected what the tracker {name!r} needs to be installed, but {', '.join(lacking)} is not. "
                f"Run `pip install {' '.join(lacking)}`, or take it out of `track`."
            )


def _csv(place: Path, run: str, version: str) -> Any:
    from lightning_fabric.loggers.csv_logs import CSVLogger

    return CSVLogger(place, "csv", version, flush_logs_every_n_steps=1)


def _tensorboard(place: Path, run: str, version: str) -> Any:
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

    return TensorBoardLogger(place, "tensorboard", version, default_hp_metric=False)


def _wandb(place: Path, run: str, version: str) -> Any:
    from lightning.pytorch.loggers import WandbLogger

    place.mkdir(parents=True, exist_ok=True)
    return WandbLogger(name=run, save_dir=place, project="adawac", id=None)


def _mlflow(place: Path, run: str, version: str) -> Any:
    from lightning.pytorch.loggers import MLFlowLogger

    place.mkdir(parents=True, exist_ok=True)
    where = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(place / 'mlflow.db').absolute()}"
    return MLFlowLogger(experiment_name="adawac", run_name=run, tracking_uri=where)


_NEEDS = {
    "csv": (),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb", "lightning"),
    "mlflow": ("mlflow", "sqlalchemy", "lightning"),
}
_LOGGERS: Mapping[str, Callable[[Path, str, str], Any]] = {
    "csv": _csv,
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}


def _flatten(settings: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    """Return the settings by dotted path, as trackers' tables want them."""
    found: list[tuple[str, Any]] = []
    for name, value in settings.items():
        path = f"{above}{name}"
        found += _flatten(value, f"{path}.") if isinstance(value, Mapping) and value else [(path, str(value))]
    return found
