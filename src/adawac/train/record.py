"""What the samples of an epoch go through, kept on the device: nothing waits for it until the epoch is over."""

import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from torch import Tensor

from adawac.algorithm import Step
from adawac.runs import FIELDS

__all__ = ["EpochRecord"]


class EpochRecord:
    """CE, Dice, ACR and beta of every sample of an epoch, the sum of the losses, and the first that was not finite.

    Args:
        num_samples: n.
        device: Where training runs.
    """

    def __init__(self, num_samples: int, device: torch.device):
        self.fields = {name: torch.full((num_samples,), torch.nan, device=device) for name in FIELDS}
        self.loss = torch.zeros((), device=device)
        self.bad_step = torch.full((), -1, device=device)

    def reset(self) -> None:
        """Forget the epoch; the tensors stay where they are."""
        for values in self.fields.values():
            values.fill_(torch.nan)
        self.loss.zero_()
        self.bad_step.fill_(-1)

    def add(self, number: Tensor | int, index: Tensor, step: Step) -> None:
        """Note one step; a sample that stands twice keeps the later values."""
        for name, values in self.fields.items():
            values[index] = getattr(step, name).to(values.dtype)
        self.loss += step.loss.detach()
        self.bad_step.copy_(torch.where((self.bad_step < 0) & ~step.loss.isfinite(), number, self.bad_step))

    def gathered(self, fabric: Fabric) -> "EpochRecord":
        """Return the record of all ranks' samples; the loss is the same on each."""
        if fabric.world_size == 1:
            return self
        everyone = copy.copy(self)
        values = torch.stack(list(self.fields.values())).nan_to_num(nan=-torch.inf)
        dist.all_reduce(values, dist.ReduceOp.MAX)  # a rank that has not seen a sample has nothing to say about it
        values.masked_fill_(values == -torch.inf, torch.nan)
        everyone.fields = dict(zip(self.fields, values, strict=True))
        return everyone

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint in the middle of an epoch keeps."""
        return {"record.loss": self.loss, **{f"record.{name}": one for name, one in self.fields.items()}}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `tensors` gave."""
        self.loss.copy_(tensors["record.loss"])
        for name, values in self.fields.items():
            values.copy_(tensors[f"record.{name}"])

    def seen(self) -> tuple[npt.NDArray[np.int64], dict[str, npt.NDArray[Any]]]:
        """Return the rows that were seen, and their values."""
        values = torch.stack(list(self.fields.values())).cpu().numpy()
        rows = np.flatnonzero(~np.isnan(values).all(0))
        return rows, dict(zip(self.fields, values[:, rows], strict=True))
