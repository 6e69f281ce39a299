"""All that a run needs to go on as if nothing had happened, as tensors and JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from adawac.algorithm import Criterion
from adawac.data.cases import carry_over
from adawac.errors import RunError
from adawac.train.fabric import Precision

__all__ = ["TrainingState"]


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """What training changes.

    Attributes:
        network: The network.
        criterion: The method, with beta.
        optimizer: The optimiser.
        ids: The sample that each row of beta belongs to.
        averaged: The averaged weights, if any.
        precision: What scales the loss of fp16 training, if anything does.
        rank: Whose random generators these are.
    """

    network: nn.Module
    criterion: Criterion
    optimizer: Optimizer
    ids: list[str]
    averaged: AveragedModel | None = None
    precision: Precision | None = None
    rank: int = 0

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor under a name of its own."""
        found = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        found |= {f"criterion.{name}": value for name, value in self.criterion.state_dict().items()}
        if self.averaged is not None:
            found |= {f"averaged.{name}": value for name, value in self.averaged.state_dict().items()}
        for place, values in self.optimizer.state_dict()["state"].items():
            found |= {
                f"optimizer.{place}.{name}": torch.as_tensor(one) for name, one in values.items() if one is not None
            }
        for name, parameter in self.network.named_parameters():
            if parameter.grad is not None:  # batches that were added up, but not yet stepped with
                found[f"gradient.{name}"] = parameter.grad
        return found | self.random()

    def random(self) -> dict[str, Tensor]:
        """Return the state of this rank's random generators."""
        found = {"random.cpu": torch.get_rng_state()}
        if torch.cuda.is_initialized():
            found["random.cuda"] = torch.cuda.get_rng_state()
        return found

    def plain(self) -> dict[str, Any]:
        """Return what is not a tensor."""
        return {"ids": self.ids, "precision": {} if self.precision is None else self.precision.state_dict()}

    def restore(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Take over what `tensors` and `plain` gave; beta goes by sample id, new samples start at one half."""
        averaged = _below(tensors, "averaged")
        if self.averaged is not None and not averaged:
            raise RunError(
                "Expected averaged weights in the checkpoint, since optim.ema_decay is set, but it has none. Resume "
                "with optim.ema_decay=0, as the run began."
            )
        try:
            self.network.load_state_dict(_below(tensors, "network"))
            if self.averaged is not None:
                self.averaged.load_state_dict(averaged)
        except RuntimeError as error:
            why = " ".join(str(error).split())  # it names every tensor, of which there may be hundreds
            raise RunError(
                f"Expected a checkpoint of this network, but got another one: {why[:300]}{'…' * (len(why) > 300)} "
                "Resume with the run's own configuration."
            ) from error
        self._restore_weights(_below(tensors, "criterion"), plain["ids"])
        self._restore_optimizer(_below(tensors, "optimizer"))
        gradients = _below(tensors, "gradient")
        for name, parameter in self.network.named_parameters():
            parameter.grad = _like(gradients[name], parameter) if name in gradients else None
        if self.precision is not None and plain["precision"]:
            self.precision.load_state_dict(dict(plain["precision"]))
        self._restore_random(tensors)

    def _restore_random(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over this rank's generators; a rank that was not there before goes on with its own."""
        own = f".{self.rank}" if self.rank else ""
        if f"random.cpu{own}" in tensors:
            torch.set_rng_state(tensors[f"random.cpu{own}"].cpu())
        if f"random.cuda{own}" in tensors and torch.cuda.is_initialized():
            torch.cuda.set_rng_state(tensors[f"random.cuda{own}"].cpu())

    def _restore_weights(self, state: dict[str, Tensor], ids: list[str]) -> None:
        old = state["weights.log_odds"].cpu().numpy()
        state["weights.log_odds"] = torch.from_numpy(carry_over(old, ids, self.ids, new=0.0))
        self.criterion.load_state_dict(state)

    @torch.no_grad()
    def _restore_optimizer(self, found: Mapping[str, Tensor]) -> None:
        parameters = [one for group in self.optimizer.param_groups for one in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in found.items():
            place, _, key = name.partition(".")
            state.setdefault(int(place), {})[key] = _like(value, parameters[int(place)])
        kept = "exp_avg" if "betas" in self.optimizer.defaults else "momentum_buffer"  # AdamW's, or SGD's
        if state and not any(kept in values for values in state.values()):
            raise RunError(
                f"Expected a checkpoint of the optimiser that is asked for, which keeps {kept}, but it has "
                f"{', '.join(state[min(state)])}. Resume with the optim.optimizer that the run began with."
            )
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})


def _like(value: Tensor, parameter: nn.Parameter) -> Tensor:
    """Return a value in its parameter's memory layout, which files do not keep and fused optimisers insist on."""
    return torch.empty_like(parameter).copy_(value) if value.shape == parameter.shape else value


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{prefix}."): one for name, one in tensors.items() if name.startswith(f"{prefix}.")}
