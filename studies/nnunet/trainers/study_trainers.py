"""The trainers of the study, where nnU-Net finds them: short, seeded, and with a clock.

`ADAWAC_STUDY` has their settings as JSON: seed, epochs, iterations and validations of an epoch.
"""

# ruff: noqa: N801  (nnU-Net's way to name trainers)
import json
import os
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from adawac.integrations.nnunet.trainer import nnUNetTrainerAdaWAC, nnUNetTrainerAdaWACPair


class TimedTraining:
    """Notes how long the epochs and steps of a training take; a step ends when its loss is on the host."""

    def __init__(self, plans, configuration, fold, dataset_json, device=torch.device("cuda")):  # noqa: B008
        super().__init__(plans, configuration, fold, dataset_json, device)
        settings = json.loads(os.environ["ADAWAC_STUDY"])
        torch.manual_seed(settings["seed"])
        np.random.seed(settings["seed"])
        self.num_epochs = settings["epochs"]
        self.num_iterations_per_epoch = settings["iterations"]
        self.num_val_iterations_per_epoch = settings["validations"]
        self.save_every = 5

    def on_train_epoch_start(self):
        super().on_train_epoch_start()
        self.steps, self.begin = [], perf_counter()

    def train_step(self, batch):
        begin = perf_counter()
        result = super().train_step(batch)
        self.steps.append(perf_counter() - begin)
        return result

    def on_train_epoch_end(self, train_outputs):
        super().on_train_epoch_end(train_outputs)
        line = {"epoch": self.current_epoch, "seconds": perf_counter() - self.begin, "steps": self.steps}
        with (Path(self.output_folder) / "seconds.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


class nnUNetTrainerStudyStock(TimedTraining, nnUNetTrainer):
    """nnU-Net's own."""


class nnUNetTrainerStudyPair(TimedTraining, nnUNetTrainerAdaWACPair):
    """Two views, both supervised."""


class nnUNetTrainerStudyAdaWAC(TimedTraining, nnUNetTrainerAdaWAC):
    """AdaWAC, with its defaults."""
