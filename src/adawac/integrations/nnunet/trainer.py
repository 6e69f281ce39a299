"""nnU-Net's trainer with AdaWAC's loss: data, network, optimiser, precision and validation stay nnU-Net's."""

# ruff: noqa: N801, N813  (nnU-Net's way to name trainers, and their module)
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from adawac.algorithm import Criterion, Step
from adawac.config.objective_options import Preset
from adawac.data.cases import SampleTable
from adawac.errors import ConfigError, MissingDependencyError, RunError
from adawac.features import EncoderTap
from adawac.files import write_text
from adawac.integrations.nnunet.additions import (
    IGNORED_REGION,
    PreprocessedLabel,
    TwoViews,
    as_list,
    beta_table,
    build_criterion,
    joined,
    patch_name,
    patch_rows,
    regions_as_classes,
    sample_table,
    validation_scores,
)
from adawac.objective import Levels
from adawac.runs import write_scores
from adawac.runs.layout import INFO
from adawac.runs.recorder import RunRecorder

try:
    from nnunetv2.training.dataloading.data_loader import nnUNetDataLoader
    from nnunetv2.training.nnUNetTrainer import nnUNetTrainer as nnunet
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
    from nnunetv2.training.nnUNetTrainer.variants.training_length import nnUNetTrainer_Xepochs as training_length
except ImportError as error:
    raise MissingDependencyError(
        f"Expected 'nnunetv2' to be installed, but importing it failed ({error}). Run: pip install 'adawac[nnunet]'."
    ) from error


class PatchLoader(nnUNetDataLoader):  # type: ignore[misc]
    """nnU-Net's loader, which draws as it does, and whose keys are the `patch_name` of each patch."""

    def get_bbox(self, data_shape: Any, *args: Any, **kwargs: Any) -> Any:
        """Return where the next patch is, and note its middle along the first axis."""
        lower, upper = super().get_bbox(data_shape, *args, **kwargs)
        self._positions.append(int(np.clip((lower[0] + upper[0]) // 2, 0, data_shape[0] - 1)))
        return lower, upper

    def generate_train_batch(self) -> dict[str, Any]:
        """Return nnU-Net's batch with the patches' names as keys."""
        self._positions: list[int] = []
        batch: dict[str, Any] = super().generate_train_batch()
        names = [patch_name(case, number) for case, number in zip(batch["keys"], self._positions, strict=True)]
        return {**batch, "keys": np.array(names)}


class nnUNetTrainerAdaWAC(nnUNetTrainer):  # type: ignore[misc]
    """AdaWAC on nnU-Net's patches, each seen in two views. A sample is a slice in 2D, a training case in 3D.

    Settings are class attributes: derive a class and change them.
    """

    method: str = "adawac"
    """One of `adawac.METHODS`."""
    preset: Preset = "robust"
    """`robust`, in relative units, `paper` or `official`."""
    eta_beta: float | None = None
    """Step size of the weights; None is the preset's."""
    lambda_ac: float | None = None
    """Factor of the consistency; None is the preset's."""
    hold_epochs: int = 0
    """Epochs in which all weights stay at one half, until the network has settled."""
    case_bins: int = 1
    """3D: how many samples a case is divided into, along the first axis; the middle of a patch decides."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Further fields of `adawac.Objective`; they come on top of all others."""
    encoder: str = "encoder"
    """The submodule whose output is compared between the views."""

    criterion: Criterion
    lengths: dict[str, int]  # of the training cases, along the first axis
    rows: dict[str, int]  # of β, by the patch's name
    supervision: tuple[float, ...]  # weights of the network's outputs, from fine to coarse
    tap: EncoderTap
    recorder: RunRecorder | None = None  # of the run folder
    loss: Any  # nnU-Net's own, which stays for validation

    def initialize(self) -> None:
        """Build what nnU-Net builds, then the criterion with a row of β for each sample of the fold."""
        if self.is_cascaded:
            raise ConfigError(
                "Expected a configuration of one stage, but got the second stage of a cascade, "
                f"{self.configuration_name}. Train 2d or 3d_fullres, or this stage with nnU-Net's own trainer."
            )
        super().initialize()
        self.supervision = tuple(float(weight) for weight in getattr(self.loss, "weight_factors", (1.0,)))
        training = self._preprocessed(self.do_split()[0])
        self.lengths = {case: int(label.shape[1]) for case, label, _ in training}
        self.rows = patch_rows(self.lengths, self._bins)
        self.criterion = build_criterion(self.method, max(self.rows.values()) + 1, **self._options()).to(self.device)
        if self.criterion.uses_teacher:
            raise ConfigError(
                "Expected a method without an averaged network, which this trainer does not have, but got "
                f"{self.method}. Choose another of adawac.METHODS, or take `adawac train`."
            )
        self.tap = EncoderTap(self.network, self.encoder)

    @property
    def _bins(self) -> int | None:
        return None if len(self.configuration_manager.patch_size) == 2 else self.case_bins

    @property
    def _ignored(self) -> int | None:
        if self.label_manager.has_regions and self.label_manager.has_ignore_label:
            return IGNORED_REGION
        label: int | None = self.label_manager.ignore_label
        return label

    def _options(self) -> dict[str, Any]:
        """Return the objective's options: the plans' where nnU-Net has a say, then the user's."""
        return {
            "preset": self.preset,
            "regions": self.label_manager.has_regions,
            "dice": "batch" if self.configuration_manager.batch_dice else "sample",
            "denominator": "l1",
            "smooth": 1e-5,  # as nnU-Net has it
            "scale": 1.0,
            "ignore_index": self._ignored,
            "supervision": tuple(filter(None, self.supervision)),  # nnU-Net leaves out the coarsest: weight 0
            "eta_beta": self.eta_beta,
            "lambda_ac": self.lambda_ac,
            **self.options,
        }

    def _preprocessed(self, cases: Iterable[str]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
        """Yield name, label map (1, *S), not read yet, and properties of each case."""
        dataset = self.dataset_class(self.preprocessed_dataset_folder, sorted(map(str, cases)))
        for case in dataset.identifiers:
            _, label, _, properties = dataset.load_case(case)
            yield case, label, properties

    @cached_property
    def samples(self) -> SampleTable:
        """The table of the training set: row i is row i of β."""
        return sample_table(
            (
                PreprocessedLabel(
                    case=case,
                    label=np.asarray(label[0]),
                    first=int(properties["bbox_used_for_cropping"][0][0]),
                    depth=int(properties["shape_after_cropping_and_before_resampling"][0]),
                )
                for case, label, properties in self._preprocessed(self.lengths)
            ),
            self._bins,
            dataset=self.plans_manager.dataset_name,
            axis=self._axis,
            class_names=self._class_names,
        )

    @cached_property
    def _labelled(self) -> Tensor:
        return torch.from_numpy(~self.samples.unlabelled).to(self.device)

    @property
    def _axis(self) -> str:
        """Which axis of the files the slices lie along; nnU-Net reads files with their axes in reverse."""
        turned = "Reorient" in self.plans_manager.image_reader_writer_class.__name__
        return f"{'RAS' if turned else ''}{2 - int(self.plans_manager.transpose_forward[0])}"

    @property
    def _class_names(self) -> list[str]:
        names = {} if self.label_manager.has_regions else {v: k for k, v in self.dataset_json["labels"].items()}
        return [names.get(value, f"label {value}") for value in range(max(self.label_manager.all_labels) + 1)]

    # nnU-Net's is static, but called on the trainer; as a method it wraps that of any trainer that is mixed in.
    def get_training_transforms(self, *args: Any, **kwargs: Any) -> TwoViews:
        """Return nnU-Net's augmentation, drawn twice."""
        return TwoViews(super().get_training_transforms(*args, **kwargs))

    def get_dataloaders(self) -> Any:
        """Return nnU-Net's loaders, which also say where a patch was cut."""
        stock = nnunet.nnUNetDataLoader
        nnunet.nnUNetDataLoader = PatchLoader  # nnU-Net offers no other way to choose the loader
        try:
            return super().get_dataloaders()
        finally:
            nnunet.nnUNetDataLoader = stock

    def on_train_start(self) -> None:
        """Start as nnU-Net does, and open the run folder, or go on with the one that is there."""
        if not self.was_initialized:
            self.initialize()
        folder = self.run_folder
        resumed = self.current_epoch > 0 and (folder / INFO).is_file()  # before another rank has opened it
        super().on_train_start()
        if self.local_rank == 0 and not resumed:
            _set_aside(folder)
        self.recorder = RunRecorder(
            folder,
            self.criterion,
            samples=self.samples,
            epochs=self.num_epochs,
            hold_epochs=self.hold_epochs,
            resume=self.current_epoch if resumed else None,
            loop="nnU-Net",
            summary={"method": self.method, "preset": self.preset, "model": self._model, "fold": self.fold},
            settings=self._settings(),
        )

    @property
    def run_folder(self) -> Path:
        """The run folder, beside what nnU-Net writes."""
        return Path(self.output_folder) / "adawac"

    @property
    def _model(self) -> str:
        return str(self.configuration_manager.network_arch_class_name).rsplit(".", 1)[-1]

    def _settings(self) -> dict[str, Any]:
        """Return what the run folder keeps of nnU-Net's settings."""
        return {
            "trainer": type(self).__name__,
            "dataset": self.plans_manager.dataset_name,
            "plans": self.plans_manager.plans_name,
            "configuration": self.configuration_name,
            "fold": self.fold,
            "patch_size": [int(side) for side in self.configuration_manager.patch_size],
            "batch_size": int(self.configuration_manager.batch_size),
            "iterations_per_epoch": self.num_iterations_per_epoch,
            "initial_lr": self.initial_lr,
        }

    def run_training(self) -> None:
        """Train as nnU-Net does, and note in the run folder how it ended."""
        try:
            super().run_training()
        except BaseException:
            self._close("interrupted")
            raise
        self._close("finished")

    def _close(self, status: Any) -> None:
        if self.recorder is not None:
            self.recorder.close(status)

    def train_step(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Take nnU-Net's step on both views, with AdaWAC's loss in place of its own."""
        index = torch.tensor([self.rows[str(key)] for key in batch["keys"]], device=self.device)
        views = {name: joined(batch[name], self.device) for name in ("data", "target")}
        nnunets, self.loss = self.loss, partial(self._objective, index)
        try:
            result: dict[str, Any] = super().train_step({**batch, **views})
        finally:
            self.loss = nnunets
        return result

    def _objective(self, index: Tensor, output: Levels, target: Levels) -> Tensor:
        levels = zip(as_list(output), as_list(target), self.supervision, strict=True)
        logits, labels = zip(*(self._classes(level, labels) for level, labels, weight in levels if weight), strict=True)
        labelled = None if self._ignored is None else self._labelled[index]  # else padding would be their label
        step: Step = self.criterion(logits, labels, self.tap.pop(), index, labelled=labelled)
        return step.loss - 1  # nnU-Net's Dice loss goes from -1 to 0

    def _classes(self, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and class indices of a level, as the criterion takes them."""
        if self.label_manager.has_regions:
            return regions_as_classes(logits, target, self.label_manager.has_ignore_label)
        return logits, target[:, 0]

    def on_train_epoch_start(self) -> None:
        """Start an epoch as nnU-Net does; the first ones leave the weights where they are."""
        super().on_train_epoch_start()
        if self.recorder is not None:
            self.recorder.done = self.current_epoch

    def on_epoch_end(self) -> None:
        """Record the epoch, log where β stands, and end it as nnU-Net does."""
        if self.recorder is not None:
            logged = {"val_dice": "mean_fg_dice", "val_loss": "val_losses", "lr": "lrs"}
            metrics = {name: float(self.logger.get_value(key, step=-1)) for name, key in logged.items()}
            numbers = self.recorder.end_epoch(self.current_epoch + 1, metrics)
            shown = ("ell_ce", "reg_ac", "beta_sparse", "beta_dense", "beta_auc", "skipped")
            known = [f"{name} {numbers[name]:.4g}" for name in shown if numbers.get(name) is not None]
            self.print_to_log_file("adawac:", ", ".join(known))
        super().on_epoch_end()

    def perform_actual_validation(self, save_probabilities: bool = False) -> None:
        """Validate as nnU-Net does, and keep the scores in the run folder."""
        super().perform_actual_validation(save_probabilities)
        if self.local_rank == 0 and (self.run_folder / INFO).is_file():
            summary = json.loads((Path(self.output_folder) / "validation" / "summary.json").read_text())
            labels, ending = self.dataset_json["labels"], self.dataset_json["file_ending"]
            name, epoch = self.plans_manager.dataset_name, self.current_epoch
            write_scores(
                self.run_folder, "val-nnunet", validation_scores(summary, labels, ending, dataset=name, epoch=epoch)
            )

    def save_checkpoint(self, filename: str) -> None:
        """Save β with all else, and write it to beta.csv beside."""
        # This dictionary is saved and loaded as it is; in it, β is in the same file as the network.
        self.my_init_kwargs["adawac"] = {**self._identity, "criterion": self.criterion.state_dict()}
        super().save_checkpoint(filename)
        if self.local_rank == 0 and not self.disable_checkpointing:
            write_text(Path(self.output_folder) / "beta.csv", beta_table(self.samples, self.criterion.weights))

    @property
    def _identity(self) -> dict[str, Any]:
        """What a checkpoint's rows of β belong to."""
        return {"lengths": self.lengths, "bins": self._bins}

    def load_checkpoint(self, filename_or_checkpoint: Any) -> None:
        """Load β with all else."""
        super().load_checkpoint(filename_or_checkpoint)
        saved = self.my_init_kwargs.get("adawac", {})
        if {name: saved.get(name) for name in self._identity} != self._identity:
            raise RunError(
                f"Expected a checkpoint with the weights of this fold's {len(self.lengths)} training cases, but "
                f"{filename_or_checkpoint} has those of {len(saved.get('lengths', ()))} cases, not the same or of "
                "other sizes. Put back the splits_final.json and the preprocessed data that it was trained with, or "
                "train without --c."
            )
        self.criterion.load_state_dict(saved["criterion"])


def _set_aside(folder: Path) -> None:
    """Move the run folder of an earlier training away: nnU-Net begins anew where --c is not given."""
    if folder.exists():
        number = 1
        while (earlier := folder.with_name(f"{folder.name}-{number}")).exists():
            number += 1
        folder.rename(earlier)


class nnUNetTrainerAdaWACPair(nnUNetTrainerAdaWAC):
    """The fair control: the same two views, both supervised, without weights and consistency."""

    method = "pair"


def _of_length(trainer: type[nnUNetTrainerAdaWAC], epochs: int) -> type[nnUNetTrainerAdaWAC]:
    """Return a trainer of so many epochs, as nnU-Net has them of its own."""
    length = getattr(training_length, f"nnUNetTrainer_{epochs}epochs")
    about = {"__doc__": f"Of {epochs} epochs.", "__module__": __name__}
    return type(f"{trainer.__name__}_{epochs}epochs", (trainer, length), about)


_IN_FULL: tuple[type[nnUNetTrainerAdaWAC], ...] = (nnUNetTrainerAdaWAC, nnUNetTrainerAdaWACPair)
_SHORTER = (_of_length(trainer, epochs) for trainer in _IN_FULL for epochs in (5, 20, 50, 100, 250))
TRAINERS = {trainer.__name__: trainer for trainer in (*_IN_FULL, *_SHORTER)}
"""What `nnUNetv2_train -tr` takes, by name: all of them are names of this module, where worker processes find them."""
globals().update(TRAINERS)
