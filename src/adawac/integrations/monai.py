"""MONAI: two views of dictionary items, and what its engines need to train with a criterion of adawac.

A loop of your own needs `TwoViewsd` alone; `EngineLoss` and `RunFolder` are for `SupervisedTrainer` (and need ignite).
"""

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import get_worker_info

from adawac.algorithm import Criterion
from adawac.data.cases import SampleTable
from adawac.errors import ConfigError, DataError, MissingDependencyError, ShapeError
from adawac.features import EncoderTap
from adawac.runs.recorder import RunRecorder

try:
    from monai.transforms.transform import Randomizable, Transform
    from monai.utils.misc import MAX_SEED, get_seed
except ImportError:
    raise MissingDependencyError("Expected MONAI, but it is not installed. Run: pip install 'adawac[monai]'.") from None

if TYPE_CHECKING:
    from ignite.engine import Engine

__all__ = ["EngineLoss", "RunFolder", "TwoViewsd"]


class TwoViewsd(Randomizable, Transform):
    """Applies random dictionary transforms twice: `{"images": (x1, x2), "labels": (y1, y2), "index": row}`.

    Put it last in a `Compose`, after what is deterministic; caching data sets cache up to here. MONAI's collate makes
    batches of its items that go straight into the criterion. Each view has a seed of its own, drawn from this
    transform's state and from the worker's seed, so no worker repeats another's views, whichever loader it belongs to;
    `set_random_state` and `set_determinism` fix them as usual.

    Args:
        transform: The random transforms, one or a `Compose`: `image` and `label` in, the same out.
        image: The image's key.
        label: The label map's key: one channel of class indices.
        index: The key of the sample's row in the training set.
    """

    def __init__(
        self, transform: Callable[[Any], Any], *, image: str = "image", label: str = "label", index: str = "index"
    ):
        if isinstance(transform, type) or not callable(transform):
            raise ConfigError(
                f"Expected a random transform, but got {transform!r}. Give one that is made, or several as one: "
                "TwoViewsd(Compose([RandFlipd(…), …]))."
            )
        self.transform, self.image, self.label, self.index = transform, image, label, index
        self.set_random_state(seed=get_seed())

    def randomize(self, data: Any = None) -> None:
        """Give the transforms their next seed."""
        worker = get_worker_info()
        drawn = int(self.R.randint(MAX_SEED, dtype="uint32"))  # the same in every worker that is not seeded
        if hasattr(self.transform, "set_random_state"):
            self.transform.set_random_state(seed=(drawn + (0 if worker is None else worker.seed)) % MAX_SEED)

    def __call__(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return two views of an item."""
        row = self._row(data)
        views = [self._view(copy.deepcopy(data)), self._view(data)]  # transforms may write into what they get
        return {
            "images": tuple(_plain(view[self.image]).float() for view in views),
            "labels": tuple(_classes(_plain(view[self.label]), self.label) for view in views),
            "index": row,
        }

    def _row(self, data: Mapping[str, Any]) -> int:
        for name in (self.image, self.label):
            if name not in data:
                raise DataError(
                    f"Expected {name!r} in every item, but got one with {', '.join(map(repr, data))}. Give your keys: "
                    'TwoViewsd(…, image="scan", label="mask").'
                )
        try:
            return operator.index(data[self.index])
        except (KeyError, TypeError):
            value = f"{data[self.index]!r}" if self.index in data else f"an item with {', '.join(map(repr, data))}"
            raise DataError(
                f"Expected the sample's row under {self.index!r}, a whole number, but got {value}. "
                f'Number the training data: [{{**item, "{self.index}": row}} for row, item in enumerate(data)].'
            ) from None

    def _view(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        self.randomize()
        view = self.transform(data)
        if not isinstance(view, Mapping):
            raise ShapeError(
                f"Expected one item from the random transforms, but got a {type(view).__name__}. Put transforms that "
                "crop several samples out of one before TwoViewsd: both views are to show the same tissue."
            )
        return view


def _plain(value: Any) -> Tensor:
    """Return a tensor without what MONAI knows of it, which no criterion needs and every worker would have to send."""
    return value.as_tensor() if hasattr(value, "as_tensor") else torch.as_tensor(value)


def _classes(label: Tensor, name: str) -> Tensor:
    """Return a label map (1, *S) as class indices (*S)."""
    if label.ndim < 3 or label.shape[0] != 1:
        raise ShapeError(
            f"Expected {name!r} with one channel of class indices, (1, *size), but got {tuple(label.shape)}. "
            "Use EnsureChannelFirstd, and leave AsDiscreted(to_onehot=…) to metrics."
        )
    classes = label[0].long()
    if label.is_floating_point() and not torch.equal(classes.to(label.dtype), label[0]):
        raise ShapeError(
            f"Expected class indices in {name!r}, but a view has values between them. Give spatial transforms "
            'mode=("bilinear", "nearest"), a lazy Compose overrides={"label": {"mode": "nearest"}}, and intensity '
            "transforms the image alone."
        )
    return classes


class EngineLoss(nn.Module):
    """The criterion as a `SupervisedTrainer` wants it: give it as `loss_function`, and its `prepare_batch`, too.

    Args:
        criterion: The criterion; save it with the network, its weights are in its state dict.
        tap: The tap on the network's encoder; None for methods that compare no latents.
    """

    def __init__(self, criterion: Criterion, tap: EncoderTap | None):
        super().__init__()
        if criterion.uses_teacher:
            raise ConfigError(
                "Expected a method without an averaged network, which MONAI's engine does not have, but got "
                f"{type(criterion).__name__}. Choose another of adawac.METHODS, or train it in a loop of your own."
            )
        if tap is None and criterion.uses_latents:
            raise ConfigError(
                f"Expected an EncoderTap for {type(criterion).__name__}, which compares latents, but got none. "
                "Give EncoderTap(network, name)."
            )
        self.criterion, self.tap = criterion, tap
        self._index: Tensor | None = None
        self._labelled: Tensor | None = None

    def prepare_batch(
        self,
        batch: Mapping[str, Any],
        device: str | torch.device | None = None,
        non_blocking: bool = False,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:
        """Return images (2B, C, *S) and labels (2B, 1, *S), all first views, then all second ones.

        A key `labelled` of the batch, (B,), says which samples have a label; without it the label maps do.
        """
        if missing := [name for name in ("images", "labels", "index") if name not in batch]:
            raise DataError(
                f"Expected batches of two views, but {', '.join(map(repr, missing))} is not among "
                f"{', '.join(map(repr, batch))}. Put TwoViewsd at the end of the training data's transforms."
            )
        images, labels = (torch.cat(tuple(batch[name])) for name in ("images", "labels"))
        self._index = batch["index"].to(device, non_blocking=non_blocking)
        self._labelled = batch["labelled"].to(device, non_blocking=non_blocking) if "labelled" in batch else None
        return (
            images.to(device, non_blocking=non_blocking, **options),
            labels.to(device, non_blocking=non_blocking)[:, None],
        )

    def forward(self, logits: Tensor | Sequence[Tensor], labels: Tensor) -> Tensor:
        """Return the loss of the batch that was prepared last; this also moves the weights.

        Deep supervision comes as a list, or stacked, (2B, levels, K, *S), as `DynUNet` has it.
        """
        if self._index is None:
            raise ConfigError(
                "Expected a batch that this object prepared, but got another. "
                "Give SupervisedTrainer(prepare_batch=loss.prepare_batch, loss_function=loss)."
            )
        index, self._index = self._index, None
        if isinstance(logits, Tensor) and logits.dim() == labels.dim() + 1:
            logits = logits.unbind(1)
        features = None if self.tap is None else self.tap.pop()
        loss: Tensor = self.criterion(logits, labels[:, 0], features, index, labelled=self._labelled).loss
        return loss


class RunFolder:
    """A handler that records CE, Dice, ACR and beta of every sample and epoch in a run folder.

    `adawac figure`, `report` and `watch` then work on it. An engine that goes on from a loaded state goes on with the
    folder, whether a `CheckpointLoader` is attached before this handler or after it. What the engine has in
    `state.metrics` is kept, too.

    Args:
        out: The run folder, new or empty.
        criterion: The criterion that is trained with.
        samples: The table of the training set, or the name of the case that each sample belongs to, by row.
        class_names: Name of each class, background first.
        summary: What a list of runs shows of this one: `{"model": "UNet"}`.
        hold_epochs: Keep all weights where they are for so many epochs, until the network has settled.
    """

    def __init__(
        self,
        out: Path | str,
        criterion: Criterion,
        *,
        samples: SampleTable | Sequence[str] | None = None,
        class_names: Sequence[str] | None = None,
        summary: Mapping[str, Any] | None = None,
        hold_epochs: int = 0,
    ):
        self.out, self.criterion = Path(out), criterion
        self.options: dict[str, Any] = {
            "samples": samples,
            "class_names": class_names,
            "summary": summary,
            "hold_epochs": hold_epochs,
        }
        self._recorder: RunRecorder | None = None

    def attach(self, engine: "Engine") -> None:
        """Follow an engine, as MONAI's handlers do."""
        from ignite.engine import Events

        engine.add_event_handler(Events.STARTED, self._start)
        engine.add_event_handler(Events.EPOCH_STARTED, self._start_epoch)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._end_epoch)
        engine.add_event_handler(Events.COMPLETED, self._finish)
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._fail)

    def _start(self, engine: "Engine") -> None:
        if not (self.out / "run.json").is_file():  # else which epoch comes next is known once all handlers have started
            self._open(engine, 0)

    def _start_epoch(self, engine: "Engine") -> None:
        done = engine.state.epoch - 1
        recorder = self._recorder or self._open(engine, done)
        recorder.done = done  # also where the folder is a new one

    def _open(self, engine: "Engine", done: int) -> RunRecorder:
        self._recorder = RunRecorder(
            self.out,
            self.criterion,
            epochs=engine.state.max_epochs,
            resume=done or None,
            loop="monai",
            **self.options,
        )
        return self._recorder

    def _end_epoch(self, engine: "Engine") -> None:
        if self._recorder is not None:
            metrics = {name: value for name, value in engine.state.metrics.items() if isinstance(value, int | float)}
            self._recorder.end_epoch(engine.state.epoch, metrics)

    def _finish(self, engine: "Engine") -> None:
        if self._recorder is None and engine.state.epoch:  # there was nothing left to train
            self._open(engine, engine.state.epoch)
        self._close("finished")

    def _fail(self, engine: "Engine", error: BaseException) -> None:
        self._close("interrupted")
        raise error  # else the engine would take it as handled

    def _close(self, status: Literal["finished", "interrupted"]) -> None:
        if self._recorder is not None:
            self._recorder.close(status)
        self._recorder = None  # the engine may run again
