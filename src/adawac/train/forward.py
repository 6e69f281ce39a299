"""Both views through the network: together, one after the other, or the second one through the encoder alone."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from adawac.features import EncoderTap

Forward = Literal["joint", "separate", "encoder", "encoder-detached"]


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
