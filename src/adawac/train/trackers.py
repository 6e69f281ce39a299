"""Numbers of each epoch to CSV, TensorBoard, W&B or MLflow, through Fabric's loggers, besides the run folder."""

import logging
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Self

from adawac.config import TrainConfig, to_dict
from adawac.config.values import flatten
from adawac.errors import MissingDependencyError
from adawac.runs import RunWriter

log = logging.getLogger(__name__)

_NEEDS = {
    "csv": (),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb", "lightning"),
    "mlflow": ("mlflow", "sqlalchemy", "lightning"),
}


class Trackers:
    """Trackers by name. One that fails is given up with a warning: no epoch is lost for it.

    Args:
        run: The run: local files go to `trackers/` in its folder, apart from those of its earlier starts. None, on all
            ranks but the first, tracks nothing.
        config: Which trackers, and what they are told of the run.
    """

    def __init__(self, run: RunWriter | None, config: TrainConfig):
        self._open = {name: _build(name, run) for name in config.track} if run is not None else {}
        self._each("log_hyperparams", {path: str(value) for path, value in flatten(to_dict(config))})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Say how the run ended."""
        self._each("finalize", "success" if error is None else "failed")

    def log(self, epoch: int, metrics: Mapping[str, Any]) -> None:
        """Report the numbers of an epoch."""
        numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
        self._each("log_metrics", numbers, epoch)
        self._each("save")

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
        if lacking := [module for module in _NEEDS[name] if find_spec(module) is None]:
            raise MissingDependencyError(
                f"Expected what the tracker {name!r} needs to be installed, but {', '.join(lacking)} is not. "
                f"Run `pip install {' '.join(lacking)}`, or take it out of `track`."
            )


def _build(name: str, run: RunWriter) -> Any:
    folder, version = run.folder / "trackers", f"start-{run.session}"
    if name == "csv":
        from lightning_fabric.loggers.csv_logs import CSVLogger

        return CSVLogger(folder, name, version, flush_logs_every_n_steps=1)
    if name == "tensorboard":
        from lightning_fabric.loggers.tensorboard import TensorBoardLogger

        return TensorBoardLogger(folder, name, version, default_hp_metric=False)
    folder.mkdir(parents=True, exist_ok=True)
    if name == "wandb":
        from lightning.pytorch.loggers import WandbLogger

        return WandbLogger(name=run.folder.name, save_dir=folder, project="adawac", id=None)
    from lightning.pytorch.loggers import MLFlowLogger

    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / 'mlflow.db').absolute()}"
    return MLFlowLogger(experiment_name="adawac", run_name=run.folder.name, tracking_uri=uri)
