"""nnU-Net's trainer with AdaWAC's loss: data, network, optimiser, precision and validation stay nnU-Net's."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from adawac.algorithm import Criterion, Step
from adawac.errors import ConfigError, MissingDependencyError, RunError
from adawac.features import EncoderTap
from adawac.files import write_text
from adawac.integrations.nnunet.samples import Levels, TwoViews, as_list, beta_table, case_rows, joined
from adawac.methods import build_method

try:
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
except ImportError as error:
    raise MissingDependencyError(
        f"Expected 'nnunetv2' to be installed, but importing it failed ({error}). Run: pip install 'adawac[nnunet]'."
    ) from error


class nnUNetTrainerAdaWAC(nnUNetTrainer):  # type: ignore[misc]  # noqa: N801  (nnU-Net's way to name trainers)
    """AdaWAC on nnU-Net's patches. A sample is a training case; its patches are seen in two views.

    Settings are class attributes: derive a class and change them.
    """

    method: str = "adawac"
    """One of `adawac.METHODS`."""
    preset: str = "paper"
    """`paper` or `official`."""
    eta_beta: float | None = None
    """Step size of the weights; None is the preset's, 1 for `paper`."""
    lambda_ac: float | None = None
    """Factor of the consistency; None is the preset's, 1 for `paper`."""
    hold_epochs: int = 0
    """Epochs in which all weights stay at one half, until the network has settled."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Further fields of `adawac.Objective`; they come on top of all others."""
    encoder: str = "encoder"
    """The submodule whose output is compared between the views."""

    criterion: Criterion
    rows: dict[str, int]  # of β, by case
    supervision: tuple[float, ...]  # weights of the network's outputs, from fine to coarse
    tap: EncoderTap
    terms: list[Tensor]  # mean CE and ACR of each step of the epoch
    loss: Any  # nnU-Net's own, which stays for validation

    def initialize(self) -> None:
        """Build what nnU-Net builds, then the criterion with a row of β for each training case of the fold."""
        if self.label_manager.has_regions:
            raise ConfigError(
                f"Expected one label a voxel, but {self.plans_manager.dataset_name} is trained by regions, without the "
                "softmax whose cross-entropy AdaWAC weighs. Give single values as labels in dataset.json, or take "
                "nnU-Net's own trainer."
            )
        super().initialize()
        self.supervision = tuple(float(weight) for weight in getattr(self.loss, "weight_factors", (1.0,)))
        training, _ = self.do_split()
        self.rows = case_rows(training)
        self.criterion = build_method(self.method, len(self.rows), self.preset, **self._options()).to(self.device)
        self.tap = EncoderTap(self.network, self.encoder)

    def _options(self) -> dict[str, Any]:
        """Return the objective's options: the plans' where nnU-Net has a say, then the user's."""
        return {
            "dice": "batch" if self.configuration_manager.batch_dice else "sample",
            "smooth": 1e-5,  # as nnU-Net has it
            "ignore_index": self.label_manager.ignore_label,
            "supervision": tuple(filter(None, self.supervision)),  # nnU-Net leaves out the coarsest: weight 0
            "eta_beta": self.eta_beta,
            "lambda_ac": self.lambda_ac,
            **self.options,
        }

    # nnU-Net's is static, but called on the trainer; as a method it wraps that of any trainer that is mixed in.
    def get_training_transforms(self, *args: Any, **kwargs: Any) -> TwoViews:
        """Return nnU-Net's augmentation, drawn twice."""
        return TwoViews(super().get_training_transforms(*args, **kwargs))

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
        logits, labels = zip(*((level, labels[:, 0]) for level, labels, weight in levels if weight), strict=True)
        step: Step = self.criterion(logits, labels, self.tap.pop(), index)
        self.terms.append(torch.stack([step.ell_ce.mean(), step.reg_ac.mean()]))
        return step.loss

    def on_train_epoch_start(self) -> None:
        """Start an epoch as nnU-Net does; the first ones leave the weights where they are."""
        super().on_train_epoch_start()
        self.criterion.held = self.current_epoch < self.hold_epochs
        self.terms = []

    def on_train_epoch_end(self, train_outputs: list[dict[str, Any]]) -> None:
        """Log what nnU-Net logs, what pulls β up and down, and where it stands."""
        super().on_train_epoch_end(train_outputs)
        ell_ce, reg_ac = torch.stack(self.terms).mean(0).tolist()
        self.print_to_log_file(f"cross-entropy {ell_ce:.4f}, consistency {reg_ac:.4f}")
        beta, skipped = self.criterion.weights.beta, int(self.criterion.weights.skipped)
        text = f"beta of {len(beta)} cases: {beta.min():.4f} to {beta.max():.4f}, median {beta.median():.4f}"
        self.print_to_log_file(text + (f"; {skipped} updates were not finite and left out" if skipped else ""))

    def save_checkpoint(self, filename: str) -> None:
        """Save β with all else, and write it to beta.csv beside."""
        # This dictionary is saved and loaded as it is; in it, β is in the same file as the network.
        self.my_init_kwargs["adawac"] = {"cases": list(self.rows), "criterion": self.criterion.state_dict()}
        super().save_checkpoint(filename)
        if self.local_rank == 0 and not self.disable_checkpointing:
            write_text(Path(self.output_folder) / "beta.csv", beta_table(self.rows, self.criterion.weights))

    def load_checkpoint(self, filename_or_checkpoint: Any) -> None:
        """Load β with all else."""
        super().load_checkpoint(filename_or_checkpoint)
        saved = self.my_init_kwargs.get("adawac", {"cases": []})
        if saved["cases"] != list(self.rows):
            raise RunError(
                f"Expected a checkpoint with the weights of this fold's {len(self.rows)} training cases, but "
                f"{filename_or_checkpoint} has those of {len(saved['cases'])} cases, not the same. Put back the "
                "splits_final.json that it was trained with, or train without --c."
            )
        self.criterion.load_state_dict(saved["criterion"])


class nnUNetTrainerAdaWACPair(nnUNetTrainerAdaWAC):  # noqa: N801
    """The fair control: the same two views, both supervised, without weights and consistency."""

    method = "pair"
