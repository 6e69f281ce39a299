"""PyTorch Lightning: a callback that keeps a run folder of any LightningModule which trains with a criterion of adawac.

The five lines themselves need no integration: the criterion is a module of yours, its weights are in your checkpoints.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils._pytree import tree_leaves

from adawac.algorithm import Criterion
from adawac.config.values import plain
from adawac.data.cases import SampleTable
from adawac.errors import ConfigError, MissingDependencyError
from adawac.runs.recorder import RunRecorder

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        try:
            from pytorch_lightning import Callback
        except ImportError:
            raise MissingDependencyError(
                "Expected PyTorch Lightning, but neither `lightning` nor `pytorch_lightning` is installed. "
                "Run: pip install lightning."
            ) from None

__all__ = ["RunFolder"]

#: What is logged of every epoch, beside what the folder keeps.
LOGGED = ("beta", "beta_sparse", "beta_dense", "beta_auc", "separated_sparse", "separated_dense")


class RunFolder(Callback):
    """Records CE, Dice, ACR and beta of every sample and epoch in a run folder, for `adawac figure`, `report`, `watch`.

    It finds the criterion in the LightningModule and reads it by a forward hook, so `training_step` may return what it
    likes. It logs how well beta separates (`beta_auc`, …), which a `ModelCheckpoint` may monitor; keeps what
    validations logged, too; and tells a `PairDataset` the epoch. `trainer.fit(ckpt_path=…)` goes on with the folder,
    `fast_dev_run` leaves none.

    Args:
        out: The run folder, new or empty.
        samples: The table of the training set, or the name of the case that each sample belongs to, by row.
        class_names: Name of each class, background first.
        criterion: The criterion's name in the LightningModule, if there are several.
        hold_epochs: Keep all weights where they are for so many epochs, until the network has settled.
    """

    def __init__(
        self,
        out: Path | str,
        *,
        samples: SampleTable | Sequence[str] | None = None,
        class_names: Sequence[str] | None = None,
        criterion: str | None = None,
        hold_epochs: int = 0,
    ):
        self.out, self.samples, self.class_names, self.criterion = Path(out), samples, class_names, criterion
        self.hold_epochs = hold_epochs
        self._recorder: RunRecorder | None = None
        self._epoch = -1  # whose values the recorder has
        self._validated: dict[str, float] = {}
        self._restored: dict[str, Any] | None = None

    def on_train_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Open the folder; after a checkpoint was loaded, go on with the one that is there."""
        self._recorder = None
        if trainer.fast_dev_run:  # type: ignore[attr-defined]  # Lightning adds it later
            return
        self._recorder = self._open(trainer, pl_module)
        self._recorder.done = trainer.current_epoch  # also where the folder is a new one
        if self._restored is not None:
            self._epoch = self._restored["epoch"]
            self._recorder.load_state_dict(self._restored["record"])
            self._restored = None
        self.on_train_epoch_start(trainer, pl_module)  # Lightning does not call it where an epoch is resumed

    def _open(self, trainer: "Trainer", pl_module: "LightningModule") -> RunRecorder:
        again = trainer.current_epoch > 0 or trainer.global_step > 0
        hparams = {name: value for name, value in plain(pl_module.hparams).items() if _can_be_kept(value)}
        return RunRecorder(
            self.out,
            self._find_criterion(pl_module),
            samples=self.samples,
            class_names=self.class_names,
            epochs=trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None,
            hold_epochs=self.hold_epochs,
            resume=trainer.current_epoch if again and (self.out / "run.json").is_file() else None,
            loop="lightning",
            summary={"model": type(pl_module).__name__},
            settings=hparams,
        )

    def _find_criterion(self, pl_module: "LightningModule") -> Criterion:
        criteria = {
            name: module
            for name, module in pl_module.named_modules()
            if isinstance(module, Criterion) and self.criterion in (None, name)
        }
        if len(criteria) != 1:
            raise ConfigError(
                f"Expected one criterion of adawac in {type(pl_module).__name__}, but got "
                f"{', '.join(criteria) or 'none'}. Set one in its __init__, self.criterion = adawac.AdaWAC(…), where "
                "checkpoints find its weights; of several, name the one to record by criterion=."
            )
        return next(iter(criteria.values()))

    def on_train_epoch_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Begin an epoch."""
        epoch = trainer.current_epoch
        for dataset in _datasets(trainer.train_dataloader):
            dataset.set_epoch(epoch)
        if self._recorder is not None and epoch != self._epoch:
            self._recorder.reset()
            self._epoch = epoch

    def on_train_epoch_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Write the epoch, and log how well beta separates."""
        if self._recorder is None:
            return
        optimizer = trainer.optimizers[0] if trainer.optimizers else None
        rate = {} if optimizer is None else {"lr": optimizer.param_groups[0]["lr"]}
        numbers = self._recorder.end_epoch(trainer.current_epoch + 1, self._validated | rate)
        self._validated = {}
        shown = {name: float(numbers[name]) for name in LOGGED if numbers.get(name) is not None}
        pl_module.log_dict(shown, sync_dist=trainer.world_size > 1)

    def on_validation_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Keep the numbers of a validation for the folder: later they could be old ones."""
        if not trainer.sanity_checking:
            self._validated = {name: float(value) for name, value in trainer.callback_metrics.items()}

    def on_train_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Note that the run is finished."""
        if self._recorder is not None:
            self._recorder.close("finished")

    def on_exception(self, trainer: "Trainer", pl_module: "LightningModule", exception: BaseException) -> None:
        """Note that the run was interrupted."""
        if self._recorder is not None:
            self._recorder.close("interrupted")

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the record of an epoch that is not over."""
        return {} if self._recorder is None else {"epoch": self._epoch, "record": self._recorder.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep it until training starts."""
        self._restored = state_dict or None


def _datasets(loaders: Any) -> Iterator[Any]:
    """Yield the data sets of one or several loaders that want to know the epoch, also inside subsets."""
    for loader in tree_leaves(loaders):
        dataset = getattr(loader, "dataset", None)
        while dataset is not None:
            if callable(getattr(dataset, "set_epoch", None)):
                yield dataset
            dataset = getattr(dataset, "dataset", None)


def _can_be_kept(value: Any) -> bool:
    """Tell whether a hyper-parameter can stand in a YAML file and come back equal."""
    if isinstance(value, Mapping | list):
        return all(map(_can_be_kept, value.values() if isinstance(value, Mapping) else value))
    return value is None or (type(value) in (bool, int, float, str) and value == value)  # NaN is not
