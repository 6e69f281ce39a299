"""One training step: a function of tensors on the device, called eagerly or replayed as a CUDA graph."""

import gc
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from adawac.algorithm import Step
from adawac.config import OptimConfig
from adawac.data.loader import Batch
from adawac.features import EncoderTap
from adawac.kernels.convolutions import CastWeights

if TYPE_CHECKING:
    from adawac.train.setup import Trainer

log = logging.getLogger(__name__)

Forward = Literal["joint", "separate", "encoder", "encoder-detached"]


class TrainStep:
    """Takes batches forward and backward, and after every `accumulate` of them a step of the optimiser.

    A recorder's hook on the criterion belongs to the step: make it before.
    """

    def __init__(self, trainer: "Trainer"):
        self.trainer, self.optim = trainer, trainer.config.optim
        self.steps = len(trainer.loader)
        self.eager = why_eager(trainer)
        self._captured = Captured(self._learn, self._forget) if self.eager is None else None
        hardware = trainer.config.hardware
        fused = self.eager is None and hardware.fused and not hardware.compile
        at_once = fused and hardware.precision == "bf16"
        self._weights = CastWeights(trainer.views, torch.bfloat16) if at_once else None

    @property
    def reason(self) -> str | None:
        """Why steps run eagerly; None where they are replayed, or still warm up for it."""
        return self.eager if self._captured is None else self._captured.reason

    def inputs(self, epoch: int, start: int) -> Iterator[Any]:
        """Yield what the steps of an epoch take: rows of samples that lie in the device's memory, else batches."""
        loader = self.trainer.loader
        return loader.epoch(epoch, start) if loader.resident is None else loader.indices(epoch, start)

    def __call__(self, rows: Tensor | Batch, epoch: int, number: int) -> None:
        """Take step `number` (from 0) of an epoch, with what `inputs` yields: rows of samples, or a batch."""
        if isinstance(rows, dict):
            rows = {name: value for name, value in rows.items() if name != "global_size"}  # type: ignore[assignment]
        set_learning_rate(self.trainer.optimizer, self.rate(epoch, number))
        if self._captured is None:
            self._learn(rows, epoch, number)
        else:
            device = self.trainer.fabric.device
            self._captured(rows, torch.full((), epoch, device=device))
        if self.trainer.averaged is not None and self._complete(number):
            self.trainer.averaged.update_parameters(self.trainer.network)

    def rate(self, epoch: int, number: int) -> float:
        """Return the learning rate of a step of an epoch."""
        an_epoch = -(-self.steps // self.optim.accumulate)
        at = (epoch - 1) * an_epoch + number // self.optim.accumulate
        total = self.trainer.config.epochs * an_epoch
        return learning_rate(self.optim, at, total, round(self.optim.warmup_epochs * an_epoch))

    def _learn(self, rows: Any, epoch: Tensor | int, number: int = 0) -> None:
        """Everything that happens on the device. `number` matters where a step takes several batches: not captured."""
        batch = self.batch(rows, epoch)
        out = self.criterion(batch, *self.forward(batch))
        size = self.optim.accumulate
        together = min(size, self.steps - number // size * size)  # batches of this one's step
        self.trainer.fabric.backward(out.loss / together)
        if self._complete(number):
            self.descend()

    def batch(self, rows: Any, epoch: Tensor | int) -> Mapping[str, Any]:
        """Return the batch: views of resident samples are made here, streamed ones come with them."""
        resident = self.trainer.loader.resident
        return rows if resident is None else {**resident(rows, epoch), "index": rows}

    def forward(self, batch: Mapping[str, Any]) -> Any:
        """Return logits and latents."""
        views = self.trainer.views
        if self._weights is not None:
            try:
                # Fabric knows the network by two names, of which the second would not be given back its own weights.
                return torch.func.functional_call(views, self._weights(), tuple(batch["images"]), tie_weights=False)
            except RuntimeError as error:  # of a network that switches autocast off in between
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                log.info("Weights are cast one by one: %s", str(error).splitlines()[0])
                self._forget()
                self._weights = None
        return views(*batch["images"])

    def criterion(self, batch: Mapping[str, Any], logits: Any, latents: Any) -> Step:
        """Return the loss with the samples' values; beta moves."""
        supervised = len(logits if isinstance(logits, Tensor) else logits[0]) // len(batch["index"])
        labels, views = torch.cat(batch["labels"][:supervised]), torch.cat(batch["views"])
        out: Step = self.trainer.criterion(logits, labels, latents, batch["index"], views)
        return out

    def descend(self) -> None:
        """Move the network's weights."""
        trainer = self.trainer
        if self.optim.clip_norm is not None:
            # A gradient that is not finite shows in the next loss, which names its step.
            trainer.fabric.clip_gradients(
                trainer.views, trainer.optimizer, max_norm=self.optim.clip_norm, error_if_nonfinite=False
            )
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()

    def _complete(self, number: int) -> bool:
        """Tell whether the optimiser steps after this batch."""
        return (number + 1) % self.optim.accumulate == 0 or number + 1 == self.steps

    def _forget(self) -> None:
        """Drop gradients, which a graph keeps for itself, and latents of a forward that was not finished."""
        self.trainer.optimizer.zero_grad()
        tap = self.trainer.views.module.tap
        if tap is not None:
            tap.clear()


def why_eager(trainer: "Trainer") -> str | None:
    """Return why a step cannot be replayed as a CUDA graph; None where it can."""
    config = trainer.config
    reasons = {
        "the device is no GPU": trainer.fabric.device.type != "cuda",
        "hardware.capture=never": config.hardware.capture == "never",
        "fp16 scales the loss by what the host decides (bf16 needs no scaling)": config.hardware.precision == "fp16",
        "optim.accumulate adds up batches": config.optim.accumulate > 1,
        "several ranks exchange sizes through the host": trainer.fabric.world_size > 1,
        "method.options.validate looks at values": trainer.criterion.objective.validate,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def learning_rate(config: OptimConfig, step: int, steps: int, warmup: int) -> float:
    """Return the learning rate of the optimiser's step `step` (from 0): warm-up from 0, the schedule, then its end."""
    if step < warmup:
        return config.lr * (step + 1) / (warmup + 1)
    done = min(1.0, (step - warmup) / max(1, steps - warmup))  # `adawac bench` may go on after the last step
    factors: dict[str, float] = {
        "constant": 1.0,
        "poly": math.pow(1 - done, config.power),
        "cosine": (1 + math.cos(math.pi * done)) / 2,
    }
    return config.lr * factors[config.schedule]


def set_learning_rate(optimizer: Optimizer, value: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


class _RepeatAsIs(TorchFunctionMode):
    """Repeats pixels (`interpolate` to the nearest) in the precision that they have.

    Autocast turns them into fp32 first, and with them all that they are concatenated with: three passes over the
    largest feature maps of a U-Net, for values that come out the same.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.interpolate and kwargs.get("mode", "nearest") == "nearest":
            with torch.autocast(args[0].device.type, enabled=False):
                return func(*args, **kwargs)
        return func(*args, **kwargs)


class Views(nn.Module):
    """A network as a training step calls it: views in, logits and latents out. This is what DDP wraps.

    Args:
        network: The network.
        tap: The submodule whose output is the latent; None where none is compared.
        mode: `joint` concatenates the views (one pass, BatchNorm sees both); `separate` passes one after the other;
            `encoder` supervises the first view and takes the second only as far as its latent; `encoder-detached` does
            so without a gradient, so that the first view's latent is drawn to the second's.
        teacher: The averaged network of a method that compares predictions instead; its parameters are none of these.
    """

    def __init__(self, network: nn.Module, tap: str | None, mode: Forward, teacher: nn.Module | None = None):
        super().__init__()
        self.network, self.mode = network, mode
        self._teacher = () if teacher is None else (teacher,)  # a tuple: DDP is to know nothing of it
        self.tap = None if tap is None else EncoderTap(network, tap)

    def forward(self, *views: Tensor) -> tuple[Tensor | Sequence[Tensor], Tensor | None]:
        """Return the logits of the supervised views, and the latents, or predictions, that are compared."""
        views = tuple(_channels_last(view) for view in views)
        casts = torch.is_autocast_enabled(views[0].device.type) and not torch.compiler.is_compiling()
        with _RepeatAsIs() if casts else nullcontext():
            return self._pass(views)

    def _pass(self, views: Sequence[Tensor]) -> tuple[Tensor | Sequence[Tensor], Tensor | None]:
        for teacher in self._teacher:
            logits = self.network(views[0])
            with torch.no_grad():
                taught = teacher(views[1])
            return logits, torch.cat([x if isinstance(x, Tensor) else x[0] for x in (logits, taught)])
        if self.tap is None or len(views) == 1:
            logits = self._supervised(views)
            if self.tap is not None:
                self.tap.clear()
            return logits, None
        if self.mode in ("encoder", "encoder-detached"):
            logits = self.network(views[0])
            with torch.set_grad_enabled(self.mode == "encoder"):
                self.tap.encode(self.network, views[1])
        else:
            logits = self._supervised(views)
        return logits, self.tap.pop()

    def _supervised(self, views: Sequence[Tensor]) -> Tensor | Sequence[Tensor]:
        if self.mode == "joint":
            return self.network(torch.cat(list(views)))  # type: ignore[no-any-return]
        outputs = [self.network(view) for view in views[: None if self.mode == "separate" else 1]]
        if isinstance(outputs[0], Tensor):
            return torch.cat(outputs)
        return [torch.cat(level) for level in zip(*outputs, strict=True)]  # deep supervision


def _channels_last(images: Tensor) -> Tensor:
    """Return images of one channel, which lie in memory either way, with the strides of the way that convolutions want.

    From the others cuDNN concludes that it has to turn the gradients of the first convolution around.
    """
    if images.is_cuda and images.dim() == 4 and images.shape[1] == 1:
        return images.squeeze(1).unsqueeze(-1).permute(0, 3, 1, 2)
    return images


class Captured:
    """Calls a function eagerly at first, which is its warm-up, and replays it as a CUDA graph from then on.

    Every call counts: none is made only to warm up or to capture, so that state moves as it would eagerly.

    Args:
        function: Works on tensors of the device alone, and leaves its result in tensors that outlive the call.
        forget: Called before and after capturing: drops what eager calls left behind and a graph must not hold.
        warmup: Eager calls for each shape, in which libraries choose their algorithms and buffers come into being.

    Attributes:
        reason: Why it cannot be captured, once that has shown; it is called eagerly then.
    """

    def __init__(self, function: Callable[..., None], forget: Callable[[], None], warmup: int = 2):
        self.function, self.forget, self.warmup = function, forget, warmup
        self.reason: str | None = None
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()
        self._calls: dict[Any, int] = {}
        self._graphs: dict[Any, tuple[torch.cuda.CUDAGraph, list[Tensor]]] = {}

    def __call__(self, *arguments: Any) -> None:
        """Call the function with tensors, or lists, tuples and mappings of them."""
        tensors, structure = tree_flatten(arguments)
        key = (str(structure), *((tensor.shape, tensor.dtype) for tensor in tensors))
        if key in self._graphs:
            graph, inputs = self._graphs[key]
            torch._foreach_copy_(inputs, tensors)
            graph.replay()
        elif self.reason is not None:
            self.function(*arguments)
        elif self._calls.setdefault(key, 0) < self.warmup:
            self._calls[key] += 1
            self._on_the_side(arguments)
        else:
            self._capture(key, tensors, structure)
            self(*arguments)

    def _on_the_side(self, arguments: Any) -> None:
        """Call eagerly on the stream that is captured later: some libraries keep a workspace for each stream."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self.function(*arguments)
        torch.cuda.current_stream().wait_stream(self._stream)
        tree_map_only(Tensor, lambda tensor: tensor.record_stream(self._stream), arguments)

    def _capture(self, key: Any, tensors: list[Tensor], structure: Any) -> None:
        inputs = [tensor.clone() for tensor in tensors]
        self.forget()
        gc.collect()
        torch.cuda.empty_cache()  # what eager calls needed is not shared with the graph
        graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        random = generator.clone_state()
        try:
            # Other threads may go on to talk to the device, as one that pins memory does.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                self.function(*tree_unflatten(inputs, structure))
        except RuntimeError as error:  # also the base class of torch's own errors
            if isinstance(error, torch.OutOfMemoryError):
                raise
            self.reason = str(error).splitlines()[0]
            generator.graphsafe_set_state(random)  # the generator would wait for the end of the capture for ever
        else:
            self._graphs[key] = graph, inputs
        finally:
            self.forget()
