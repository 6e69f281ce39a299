"""A run folder of any training loop: a hook on the criterion sees every step, so the loop stays as it is."""

# ruff: noqa: RUF009  (`setting` and `section` are `dataclasses.field` with a help text)
import inspect
import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from adawac.algorithm import AdaWAC, Criterion, Step
from adawac.config import Config, TrainConfig, section, setting
from adawac.config.values import plain
from adawac.data.cases import SampleTable, sample_id
from adawac.distributed import world_size
from adawac.errors import AdawacError, ConfigError, DataError
from adawac.methods import METHODS
from adawac.runs import FIELDS, RunWriter
from adawac.runs.history import summarise, warn_of_rush

log = logging.getLogger(__name__)

_DATASET = "samples"
_NO_LABEL = -1.0  # the share of each class in a sample that was seen, and is unlabelled


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
    cases = ["training set"] * n if cases is None else [str(case) for case in cases]
    names = class_names or ["background", *(f"class {label}" for label in range(1, num_classes))]
    for what, items, expected in (("case for each sample", cases, n), ("name for each class", names, num_classes)):
        if len(items) != expected:
            raise DataError(f"Expected a {what}, {expected} in all, but got {len(items)}. Give as many.")
    counters: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
    number = np.array([next(counters[case]) for case in cases], dtype=np.int64)  # within its case
    column = np.array(cases)
    return SampleTable(
        id=np.array([sample_id(_DATASET, case, case, "0", row) for case, row in zip(cases, number, strict=True)]),
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


_CALL = inspect.signature(Criterion.forward)


class EpochRecord:
    """CE, Dice, ACR and beta of every sample of an epoch, and its losses: a hook on the criterion notes every step.

    Everything stays in the same tensors on the device and nothing waits for it, so that a step can be captured as a
    CUDA graph. Steps in evaluation mode and copies of the criterion (`copy.deepcopy`, pickle) are not recorded.

    Attributes:
        values: (4, n) the `FIELDS` of each sample; NaN where it was not seen.
        loss: () the sum of the steps' losses; with several ranks the same on each.
        steps: () how many steps there were.
        bad_step: () the first step, from 0, whose loss was not finite; -1 if there is none.
    """

    def __init__(self, criterion: Criterion):
        log_odds = criterion.weights.log_odds
        self.values = torch.full((len(FIELDS), len(log_odds)), torch.nan, device=log_odds.device)
        self.loss = torch.zeros((), device=log_odds.device)
        self.steps = torch.zeros((), dtype=torch.int64, device=log_odds.device)
        self.bad_step = torch.full((), -1, device=log_odds.device)
        self._hook = criterion.register_forward_hook(_CriterionHook(self.add), with_kwargs=True)

    @torch.no_grad()
    def add(self, criterion: Criterion, args: tuple[Any, ...], kwargs: dict[str, Any], step: Step) -> None:
        """Note one step; a sample that appears twice keeps the later values."""
        if not criterion.training:
            return
        if self.loss.device != step.loss.device:  # the criterion was moved
            for name in ("values", "loss", "steps", "bad_step"):
                setattr(self, name, getattr(self, name).to(step.loss.device))
        index = _CALL.bind(criterion, *args, **kwargs).arguments["index"]
        for name, values in zip(FIELDS, self.values, strict=True):
            values[index] = getattr(step, name).to(values.dtype)
        self.loss += step.loss.detach()
        self.bad_step.copy_(torch.where((self.bad_step < 0) & ~step.loss.isfinite(), self.steps, self.bad_step))
        self.steps += 1

    def reset(self) -> None:
        """Forget the epoch; the tensors stay where they are."""
        self.values.fill_(torch.nan)
        self.loss.zero_()
        self.steps.zero_()
        self.bad_step.fill_(-1)

    def gathered(self) -> Tensor:
        """Return the values of all ranks' samples. Every rank calls it."""
        return _of_all_ranks(self.values)

    def restore(self, values: Tensor, loss: Tensor, steps: int) -> None:
        """Go on within an epoch."""
        self.values.copy_(values)
        self.loss.copy_(loss)
        self.steps.fill_(steps)

    def remove(self) -> None:
        """Take the hook off."""
        self._hook.remove()


class _CriterionHook:
    """A hook on the criterion. A copy of the criterion carries a copy of it, which does nothing."""

    def __init__(self, note: Callable[..., None]):
        self.note: Callable[..., None] | None = note

    def __call__(self, *call: Any) -> None:
        if self.note is not None:
            self.note(*call)

    def __getstate__(self) -> dict[str, Any]:
        return {"note": None}  # the recorder has files open


def _of_all_ranks(values: Tensor) -> Tensor:
    """Return what any rank knows; NaN where none does."""
    if world_size() == 1:
        return values
    values = values.nan_to_num(nan=-torch.inf)
    dist.all_reduce(values, dist.ReduceOp.MAX)
    return values.masked_fill(values == -torch.inf, torch.nan)


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
    and the first one writes. A copy of the criterion (`copy.deepcopy`, pickle) is not recorded. `adawac train` records
    with it, too.

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
        config: The configuration of `adawac train`, which is kept in place of `loop` and `settings`. With `resume`,
            nothing is written until `rewind` is called, after a checkpoint was loaded.
        data: What else is known of the data set, for `data.json`.

    Attributes:
        record: What the epoch recorded so far.
        writer: What writes the folder; None on all ranks but the first.
        done: How many epochs are over: weights are held while that is less than `hold_epochs`.

    Examples:
        >>> import adawac
        >>> criterion = adawac.AdaWAC(num_samples=2)
        >>> logits = torch.zeros(4, 2, 8, 8)  # two views of two samples
        >>> labels = torch.ones(4, 8, 8, dtype=torch.int64)
        >>> cases = ["patient 1", "patient 2"]
        >>> with RunRecorder("runs/mine", criterion, samples=cases, epochs=1) as recorder:
        ...     step = criterion(logits, labels, torch.ones(4, 5), torch.tensor([0, 1]))
        ...     numbers = recorder.end_epoch(1, {"lr": 0.01})
        >>> round(numbers["beta"], 3)
        0.667
        >>> adawac.Run("runs/mine")
        Run('runs/mine': adawac, finished, epoch 1 of 1)
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
        config: TrainConfig | None = None,
        data: Mapping[str, Any] | None = None,
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
        num_samples = len(criterion.weights.log_odds)
        if samples is not None and len(samples) != num_samples:
            raise DataError(
                f"Expected a row for each of the criterion's {num_samples} samples, but got {len(samples)}. "
                "Give the table, or the cases, of the training set alone."
            )
        self.criterion, self.samples, self.class_names = criterion, samples, class_names
        self.hold_epochs, self._data = hold_epochs, data or {}
        self._advice = ("hold_epochs=3", "eta_beta") if config is None else ()
        self._shares: Tensor | None = None  # (K, n), once the number of classes is known
        self._shape: tuple[int, ...] = ()
        self._warned = False  # of a loss that is not finite
        criterion.warned = True  # since this says it, too, and where
        self._known = 0  # samples that the run's table has
        self._sparse = np.zeros(num_samples, dtype=np.bool_)
        self._unlabelled = np.zeros(num_samples, dtype=np.bool_)
        self._rows = np.full(num_samples, -1)  # each sample's row in the run
        summary = {"method": _method_name(criterion), **(summary or {})}
        loop_config = LoopConfig(
            loop=loop,
            method=MethodSettings(name=summary["method"], options=asdict(criterion.objective), hold_epochs=hold_epochs),
            settings=plain(settings or {}),
        )
        self.writer: RunWriter | None = None
        _on_first_rank(lambda: self._open(out, config or loop_config, epochs, summary, resume is not None))
        if isinstance(samples, SampleTable):
            self._known, self._sparse, self._unlabelled = len(samples), samples.label_sparse, samples.unlabelled
        self.record = EpochRecord(criterion)
        self._look_hook = criterion.register_forward_hook(_CriterionHook(self._look), with_kwargs=True)
        self.done = 0
        if resume is not None and config is None:
            self.rewind(resume)

    def __repr__(self) -> str:
        return f"RunRecorder({self.criterion!r}: {self.done} epochs done)"

    def _open(
        self, out: Path | str, config: Config, epochs: int | None, summary: Mapping[str, Any], resume: bool
    ) -> None:
        self.writer = RunWriter(out, config, epochs=epochs, summary=summary, resume=resume)
        if isinstance(self.samples, SampleTable):
            self._write_samples(self.samples, np.arange(len(self.samples)))

    def rewind(self, epoch: int) -> None:
        """Drop what was written after `epoch`, and go on from there. Every rank calls it."""
        _on_first_rank(lambda: cast("RunWriter", self.writer).rewind(epoch))
        self.done = epoch

    @property
    def done(self) -> int:
        """How many epochs are over."""
        return self._done

    @done.setter
    def done(self, epochs: int) -> None:
        self._done = epochs
        self.criterion.held = epochs < self.hold_epochs

    @torch.no_grad()
    def _look(self, criterion: Criterion, args: tuple[Any, ...], kwargs: dict[str, Any], step: Step) -> None:
        """Note the share of each class in samples that were not seen before: the mean of their views."""
        if not criterion.training or self._known == len(self._sparse):
            return
        call = _CALL.bind(criterion, *args, **kwargs).arguments
        levels = (call["logits"], call["labels"])  # with deep supervision, lists of them, the finest first
        logits, labels = (level if isinstance(level, Tensor) else level[0] for level in levels)
        index, num_classes = call["index"], logits.shape[1]
        if self._shares is None:
            self._shares = self.record.values.new_full((num_classes, len(self._sparse)), torch.nan)
            self._shape = tuple(labels.shape[1:])
        views = labels.reshape(-1, len(index), labels[0].numel())
        shares = torch.stack([(views == label).float().mean((0, 2)) for label in range(num_classes)])
        if (ignored := criterion.objective.ignore_index) is not None:
            shares = shares.masked_fill((views == ignored).all(2).all(0), _NO_LABEL)
        old = self._shares[:, index]
        self._shares[:, index] = torch.where(old.isnan(), shares, old)

    def end_epoch(self, epoch: int, metrics: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Write an epoch, and return its numbers: mean loss, CE, ACR and beta, and how well beta separates.

        Every rank calls it. An epoch without a step is not written.

        Args:
            epoch: The first is 1.
            metrics: More numbers of this epoch to keep, such as a validation's.

        Returns:
            The numbers by name; nothing where there was no step.
        """
        if epoch < 1:
            raise ConfigError(f"Expected the first epoch to be 1, but got {epoch}. Call end_epoch(epoch + 1).")
        self.done = epoch
        values = self.record.gathered().cpu().numpy()  # the host waits for the device here only
        seen = np.flatnonzero(~np.isnan(values).all(0))
        if not len(seen):
            return {}
        self._meet()
        unlabelled = self._unlabelled[seen]
        fields = dict(zip(FIELDS, values[:, seen], strict=True))
        fields["ell_ce"][unlabelled] = fields["ell_dice"][unlabelled] = np.nan
        labelled = {name: column[~unlabelled] for name, column in fields.items()}
        numbers = {
            "loss": float(self.record.loss) / max(1, int(self.record.steps)),
            **summarise(labelled, self._sparse[seen[~unlabelled]]),
            **({"reg_ac_unlabelled": float(fields["reg_ac"][unlabelled].mean())} if unlabelled.any() else {}),
            "skipped": int(self.criterion.weights.skipped),
        }
        if self.writer is not None:
            self._warn_of_nan(epoch)
            if epoch == self.hold_epochs + 1 and isinstance(self.criterion, AdaWAC):
                warn_of_rush(labelled, epoch, *self._advice)
            self.writer.log_history(epoch, self._rows[seen], **fields)
            self.writer.log_metrics(epoch, {**(metrics or {}), **numbers})
        self.record.reset()
        return numbers

    def _warn_of_nan(self, epoch: int) -> None:
        """Say once that a loss was not finite: such a step leaves beta as it is, and nothing else shows it."""
        if (step := int(self.record.bad_step)) < 0 or self._warned:
            return
        self._warned = True
        log.warning(
            "The loss is not finite from epoch %d, step %d on. Weights stay as they are in such steps: %d moves were "
            "left out so far (`skipped` in metrics.jsonl). Look for NaN in images, logits and latents, and lower the "
            "learning rate or clip gradients.",
            epoch,
            step + 1,
            int(self.criterion.weights.skipped),
        )

    def _meet(self) -> None:
        """Let the run's table grow by the samples that this epoch showed for the first time."""
        if self._known == len(self._sparse) or self._shares is None:
            return
        self._shares = _of_all_ranks(self._shares)
        fraction = self._shares.T.cpu().numpy()
        rows = np.flatnonzero(~np.isnan(fraction).all(1))
        fraction = np.where(fraction == _NO_LABEL, np.nan, fraction)
        if len(rows) > self._known:
            cases = None if isinstance(self.samples, SampleTable) else self.samples
            table = describe_samples(fraction, self._shape, cases=cases, class_names=self.class_names)
            table = table.take(rows)
            self._known = len(rows)
            self._sparse[rows], self._unlabelled[rows] = table.label_sparse, table.unlabelled
            self._write_samples(table, rows)

    def _write_samples(self, table: SampleTable, rows: npt.NDArray[np.int64]) -> None:
        """Write what is known of samples; `rows` are theirs in beta."""
        if self.writer is not None:
            known = {"class_names": list(table.class_names), "unit": str(table.unit[0])}
            self.writer.write_data({**known, **self._data})
            self._rows[rows] = self.writer.write_samples(table)

    def reset(self) -> None:
        """Forget what the epoch recorded so far."""
        self.record.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return what an epoch recorded so far, for a checkpoint within it."""
        return {
            "values": self.record.values,
            "shares": self._shares,
            "shape": self._shape,
            "loss": self.record.loss,
            "steps": int(self.record.steps),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.record.restore(state["values"], state["loss"], state["steps"])
        self._shares = None if state["shares"] is None else state["shares"].to(self.record.values.device)
        self._shape = tuple(state["shape"])

    def close(self, status: Literal["finished", "interrupted"] = "finished") -> None:
        """Note how the run ended and take the hooks off; the first call counts."""
        self._let_go()
        if self.writer is not None:
            self.writer.close(status)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._let_go()
        if self.writer is not None:
            self.writer.__exit__(kind, error, trace)

    def _let_go(self) -> None:
        self.criterion.held = False
        self.record.remove()
        self._look_hook.remove()


def _on_first_rank(work: Callable[[], None]) -> None:
    """Do something on the first rank; if it fails, raise on all of them, or the others would wait forever."""
    problem = None
    if world_size() == 1 or dist.get_rank() == 0:
        try:
            work()
        except AdawacError as error:
            problem = error
    problems = [problem]
    if world_size() > 1:
        dist.broadcast_object_list(problems)
    if problems[0] is not None:
        raise problems[0]


def _method_name(criterion: Criterion) -> str:
    """Return the name that a criterion's method has in `METHODS`, or else its class's."""
    names = []
    for name in METHODS:
        with suppress(AdawacError):  # a plug-in that cannot be imported
            method: Any = METHODS[name]
            if type(criterion) is (method.func if isinstance(method, partial) else method):
                names.append(name)
    return names[-1 if criterion.uses_latents else 0] if names else type(criterion).__name__  # plain, then "+acr"
