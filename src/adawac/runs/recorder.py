"""A run folder of any training loop: a hook on the criterion sees every step, so the loop stays as it is."""

# ruff: noqa: RUF009  (`setting` and `section` are `dataclasses.field` with a help text)
import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from adawac.algorithm import AdaWAC, Criterion, Step
from adawac.config import Config, section, setting
from adawac.config.values import plain as in_yaml
from adawac.data.cases import SampleTable, sample_id
from adawac.distributed import world_size
from adawac.errors import AdawacError, ConfigError, DataError
from adawac.methods import METHODS
from adawac.runs import FIELDS, RunWriter
from adawac.runs.epoch_statistics import summarise, warn_of_rush

_DATASET = "samples"


def describe_samples(
    fraction: npt.NDArray[np.floating],
    shape: Sequence[int],
    *,
    cases: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
) -> SampleTable:
    """Return a table of samples, for a training set that was not prepared by `adawac prepare`.

    Args:
        fraction: (n, K) share of each class in each sample, background first.
        shape: Height and width, or depth, height and width, of a sample.
        cases: The case that each sample belongs to, (n,); its slices are numbered as they come. One case by default.
        class_names: Name of each class, background first.
    """
    n, num_classes = fraction.shape
    cases = ["training set"] * n if cases is None else [str(one) for one in cases]
    names = class_names or ["background", *(f"class {label}" for label in range(1, num_classes))]
    for what, given, expected in (("case for each sample", cases, n), ("name for each class", names, num_classes)):
        if len(given) != expected:
            raise DataError(f"Expected a {what}, {expected} in all, but got {len(given)}. Give as many.")
    number = np.array(_numbers(cases), dtype=np.int64)
    column = np.array(cases)
    return SampleTable(
        id=np.array([sample_id(_DATASET, case, case, "0", one) for case, one in zip(cases, number, strict=True)]),
        patient=column,
        case=column,
        slice=number,
        axis=np.full(n, "0"),
        unit=np.full(n, "slice" if len(shape) == 2 else "volume"),
        split=np.full(n, "train"),
        group=np.full(n, ""),
        position=number,
        shape=np.tile(np.array(shape, dtype=np.int64), (n, 1)),
        fraction=np.asarray(fraction, dtype=np.float64),
        class_names=tuple(names),
    )


def _numbers(cases: Sequence[str]) -> list[int]:
    """Return the how-manieth sample of its case each one is."""
    seen: Counter[str] = Counter()
    numbers = []
    for case in cases:
        numbers.append(seen[case])
        seen[case] += 1
    return numbers


_CALL = inspect.signature(Criterion.forward)


@dataclass(frozen=True, kw_only=True)
class MethodSettings(Config):
    """How cross-entropy was weighed against consistency."""

    name: str = setting("adawac", "The method's name, one of `adawac.METHODS`.")
    options: dict[str, Any] = setting({}, "Its options, all of them.")
    hold_epochs: int = setting(0, "Epochs in which all weights stayed at one half.", least=0)


@dataclass(frozen=True, kw_only=True)
class LoopConfig(Config):
    """What is known of a training that is not adawac's own; `adawac train` cannot repeat it."""

    loop: str = setting("pytorch", "Whose training loop it was.")
    method: MethodSettings = section(MethodSettings, "How cross-entropy was weighed against consistency.")
    settings: dict[str, Any] = setting({}, "What the training loop's owner noted.")


class RunRecorder:
    """Records CE, Dice, ACR and beta of every sample and epoch, and writes them as a run folder.

    `adawac figure`, `report` and `watch` then work on it. A forward hook on the criterion does the recording, in
    training mode alone; values stay on the device until an epoch ends. With several ranks each of them has a recorder,
    and the first one writes.

    Args:
        out: The run folder: new or empty, or with `resume` that of an earlier run.
        criterion: The criterion that is trained with.
        samples: The table of the training set, or the name of the case that each sample belongs to, by row (its slices
            are numbered as they come). Without a table, samples get the share of each class that their first two views
            show.
        class_names: Name of each class, background first; not needed with a table.
        epochs: How many epochs there will be.
        hold_epochs: Keep all weights where they are for so many epochs, until the network has settled.
        resume: Go on with the run that is there, after this epoch; None begins a new one.
        loop: Whose training loop it is.
        summary: What a list of runs shows of this one, besides the method: `{"model": "UNet", "seed": 1}`.
        settings: Anything worth keeping, as plain data: hyper-parameters, for example.

    A copy of the criterion (`copy.deepcopy`, pickle) is not recorded: the run is that of the original.

    Attributes:
        done: How many epochs are over: weights are held while that is less than `hold_epochs`.
    """

    def __init__(
        self,
        out: Path | str,
        criterion: Criterion,
        *,
        samples: SampleTable | Sequence[str] | None = None,
        class_names: Sequence[str] | None = None,
        epochs: int | None = None,
        hold_epochs: int = 0,
        resume: int | None = None,
        loop: str = "pytorch",
        summary: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ):
        if not isinstance(criterion, Criterion):
            raise ConfigError(
                f"Expected the criterion that is trained with, but got {type(criterion).__name__}. "
                "Give what adawac.AdaWAC(…) or adawac.build_method(…) returned."
            )
        if hold_epochs < 0 or (epochs is not None and hold_epochs >= epochs):
            raise ConfigError(
                f"Expected hold_epochs between 0 and the number of epochs, but got {hold_epochs} of "
                f"{'any number' if epochs is None else epochs}. Lower it, or the weights never move."
            )
        self.criterion, self.samples, self.class_names = criterion, samples, class_names
        self.hold_epochs, self.done = hold_epochs, resume or 0
        self._held = False  # in the step that is being computed
        log_odds = criterion.weights.log_odds
        if samples is not None and len(samples) != len(log_odds):
            raise DataError(
                f"Expected a row for each of the criterion's {len(log_odds)} samples, but got {len(samples)}. "
                "Give the table, or the cases, of the training set alone."
            )
        self._values = torch.full((len(FIELDS), len(log_odds)), torch.nan, device=log_odds.device)
        self._shares: Tensor | None = None  # (K, n), once the number of classes is known
        self._shape: tuple[int, ...] = ()
        self._known = 0  # samples that the run's table has
        self._sparse = np.zeros(len(log_odds), dtype=np.bool_)
        self._places = np.full(len(log_odds), -1)  # each sample's row in the run
        self._loss, self._steps = torch.zeros((), device=log_odds.device), 0
        about = {"method": _method_name(criterion), **(summary or {})}
        config = LoopConfig(
            loop=loop,
            method=MethodSettings(name=about["method"], options=asdict(criterion.objective), hold_epochs=hold_epochs),
            settings=plain(settings or {}),
        )
        self._writer = _open(out, config, epochs, about, resume)
        if isinstance(samples, SampleTable):
            self._introduce(samples, np.arange(len(samples)))
        self._hooks = (
            criterion.register_forward_pre_hook(_Watch(self._hold)),
            criterion.register_forward_hook(_Watch(self._let_move), always_call=True),
            criterion.register_forward_hook(_Watch(self._note), with_kwargs=True),
        )

    def _hold(self, criterion: Criterion, args: tuple[Any, ...]) -> None:
        """Keep the weights from moving in this step, whatever the loop does with the criterion's mode."""
        self._held = criterion.training and self.done < self.hold_epochs
        if self._held:
            criterion.eval()

    def _let_move(self, criterion: Criterion, *call: Any) -> None:
        if self._held:
            criterion.train()
            self._held = False

    @torch.no_grad()
    def _note(self, criterion: Criterion, args: tuple[Any, ...], kwargs: dict[str, Any], step: Step) -> None:
        if not criterion.training:
            return
        call = _CALL.bind(criterion, *args, **kwargs).arguments
        index = call["index"]
        self._values, self._loss = (one.to(step.loss.device) for one in (self._values, self._loss))  # it may have moved
        self._values[:, index] = torch.stack([getattr(step, name).to(self._values.dtype) for name in FIELDS])
        self._loss += step.loss.detach()
        self._steps += 1
        if self._known < len(self._sparse):
            logits, labels = (one if isinstance(one, Tensor) else one[0] for one in (call["logits"], call["labels"]))
            self._look(index, labels, logits.shape[1])

    def _look(self, index: Tensor, labels: Tensor, num_classes: int) -> None:
        """Note the share of each class in samples that were not seen before: the mean of their views."""
        if self._shares is None:
            self._shares = self._values.new_full((num_classes, self._values.shape[1]), torch.nan)
            self._shape = tuple(labels.shape[1:])
        views = labels.reshape(-1, len(index), labels[0].numel())
        found = torch.stack([(views == label).float().mean((0, 2)) for label in range(num_classes)])
        old = self._shares[:, index]
        self._shares[:, index] = torch.where(old.isnan(), found, old)

    def end_epoch(self, epoch: int, metrics: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Write an epoch, and return its numbers: mean loss, CE, ACR and beta, and how well beta separates.

        Every rank calls it. An epoch without a step is not written.

        Args:
            epoch: The first is 1.
            metrics: More numbers of this epoch to keep, such as a validation's.
        """
        if epoch < 1:
            raise ConfigError(f"Expected the first epoch to be 1, but got {epoch}. Call end_epoch(epoch + 1).")
        self.done = epoch
        values = _of_all_ranks(self._values).cpu().numpy()
        seen = np.flatnonzero(~np.isnan(values).all(0))
        if not len(seen):
            return {}
        self._meet()
        fields = dict(zip(FIELDS, values[:, seen], strict=True))
        numbers = {"loss": float(self._loss) / max(1, self._steps), **summarise(fields, self._sparse[seen])}
        if self._writer is not None:
            if epoch == self.hold_epochs + 1 and isinstance(self.criterion, AdaWAC):
                warn_of_rush(fields, epoch, "hold_epochs=3", "eta_beta")
            self._writer.log_history(epoch, self._places[seen], **fields)
            self._writer.log_metrics(epoch, {**(metrics or {}), **numbers})
        self.reset()
        return numbers

    def _meet(self) -> None:
        """Let the run's table grow by the samples that this epoch showed for the first time."""
        if self._known == len(self._sparse) or self._shares is None:
            return
        self._shares = _of_all_ranks(self._shares)
        fraction = self._shares.T.cpu().numpy()
        rows = np.flatnonzero(~np.isnan(fraction).all(1))
        if len(rows) > self._known:
            cases = None if isinstance(self.samples, SampleTable) else self.samples
            table = describe_samples(fraction, self._shape, cases=cases, class_names=self.class_names)
            self._introduce(table.take(rows), rows)

    def _introduce(self, table: SampleTable, rows: npt.NDArray[np.int64]) -> None:
        """Write what is known of samples; `rows` are theirs in beta."""
        self._known = len(rows)
        self._sparse[rows] = table.label_sparse
        if self._writer is not None:
            self._writer.write_data({"class_names": list(table.class_names), "unit": str(table.unit[0])})
            self._places[rows] = self._writer.write_samples(table)

    def reset(self) -> None:
        """Forget what the epoch recorded so far."""
        self._values.fill_(torch.nan)
        self._loss.zero_()
        self._steps = 0

    def state_dict(self) -> dict[str, Any]:
        """Return what an epoch recorded so far, for a checkpoint within it."""
        return {
            "values": self._values,
            "shares": self._shares,
            "shape": self._shape,
            "loss": self._loss,
            "steps": self._steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._values.copy_(state["values"])
        self._shares = None if state["shares"] is None else state["shares"].to(self._values.device)
        self._shape, self._steps = tuple(state["shape"]), state["steps"]
        self._loss.copy_(state["loss"])

    def close(self, status: Literal["finished", "interrupted"] = "finished") -> None:
        """Note how the run ended and take the hooks off; the first call counts."""
        self._let_go()
        if self._writer is not None:
            self._writer.close(status)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_go()
        if self._writer is not None:
            self._writer.__exit__(kind, error, trace)

    def _let_go(self) -> None:
        for hook in self._hooks:
            hook.remove()


class _Watch:
    """A hook on the criterion. A copy of the criterion carries a copy of it, which sees nothing."""

    def __init__(self, note: Callable[..., None]):
        self.note: Callable[..., None] | None = note

    def __call__(self, *call: Any) -> None:
        if self.note is not None:
            self.note(*call)

    def __getstate__(self) -> dict[str, Any]:
        return {"note": None}  # the recorder has files open


def plain(value: Any) -> Any:
    """Return a setting as a YAML file holds it: scalars of NumPy and torch as Python's, paths as a run has them."""
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.ndim == 0):
        return value.item()
    return in_yaml(value)


def _open(
    out: Path | str, config: LoopConfig, epochs: int | None, summary: Mapping[str, Any], resume: int | None
) -> RunWriter | None:
    """Open the folder on the first rank; if that fails, raise on all of them, or the others would wait for ever."""
    writer, problem = None, None
    if world_size() == 1 or dist.get_rank() == 0:
        try:
            writer = RunWriter(out, config, epochs=epochs, summary=summary, resume=resume is not None)
            if resume is not None:
                writer.rewind(resume)
        except AdawacError as error:
            problem = error
    problems = [problem]
    if world_size() > 1:
        dist.broadcast_object_list(problems)
    if problems[0] is not None:
        raise problems[0]
    return writer


def _of_all_ranks(values: Tensor) -> Tensor:
    """Return what any rank knows; NaN where none does."""
    if world_size() == 1:
        return values
    values = values.nan_to_num(nan=-torch.inf)
    dist.all_reduce(values, dist.ReduceOp.MAX)
    return values.masked_fill(values == -torch.inf, torch.nan)


def _method_name(criterion: Criterion) -> str:
    """Return the name that a criterion's method has in `METHODS`, or else its class's."""
    names = []
    for name in METHODS:
        with suppress(AdawacError):  # somebody's plug-in that cannot be imported
            method: Any = METHODS[name]
            if type(criterion) is (method.func if isinstance(method, partial) else method):
                names.append(name)
    return names[-1 if criterion.uses_latents else 0] if names else type(criterion).__name__  # plain, then "+acr"
