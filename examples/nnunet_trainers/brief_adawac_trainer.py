"""A trainer of nnU-Net with AdaWAC for a few short epochs: see `with_nnunet.py`, which starts it."""

import os

from adawac.integrations.nnunet.trainer import nnUNetTrainerAdaWAC


class nnUNetTrainerAdaWACBrief(nnUNetTrainerAdaWAC):  # noqa: N801  (nnU-Net's way to name trainers)
    """Epochs of ten iterations, where nnU-Net has 250."""

    def initialize(self) -> None:
        """Shorten the training before anything is made for it."""
        self.num_epochs = int(os.environ["BRIEF_EPOCHS"])
        self.num_iterations_per_epoch = 10
        self.num_val_iterations_per_epoch = 1
        super().initialize()
