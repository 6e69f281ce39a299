"""AdaWAC inside nnU-Net v2: `nnUNetv2_train … -tr nnUNetTrainerAdaWAC`."""

from pathlib import Path

__all__ = ["trainer_folder"]


def trainer_folder() -> Path:
    """Return the folder in which nnU-Net finds AdaWAC's trainers by name: the value of `nnUNet_extTrainer`."""
    return Path(__file__).parent / "trainers"
