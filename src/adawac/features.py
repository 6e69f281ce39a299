"""The latent of any network, read by a forward hook on one of its submodules."""

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from adawac.errors import TapError, UnknownNameError, near

# More than any step needs: pop is never called, and every latent keeps its graph in memory.
_LIMIT = 256
# Class and register tokens, as many as any vision transformer has; of small grids more would not be noticed.
_EXTRA_TOKENS = 16


class EncoderTap:
    """Keeps what a submodule returns while gradients are on, until `pop` takes it.

    Args:
        model: any network; wrappers (DDP, Fabric, a compiled model) are looked through.
        name: the submodule, as in `model.named_modules()`; or several with their coefficients in the consistency,
            `{"encoder.layer4": 1.0, "encoder.layer3": 0.5}`.
        output: which one to take where a submodule returns several: a position (the last by default, which is the
            deepest feature map of every encoder in use) or a key.
        grid: the shape of the token grid, for submodules that return (B, N, C): latents become (B, C, *grid), leading
            tokens that are not of the grid (class, registers) are dropped.

    Attach it before the first call of a compiled model: a hook that comes later is never seen.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 2, 1))
        >>> tap = EncoderTap(model, "1")
        >>> logits = model(torch.zeros(6, 1, 9, 9))
        >>> tap.pop().shape
        torch.Size([6, 4, 4, 4])
    """

    def __init__(
        self,
        model: nn.Module,
        name: str | Mapping[str, float],
        *,
        output: int | str = -1,
        grid: Sequence[int] | None = None,
    ):
        self.coefficients = _coefficients(name)
        self._single = isinstance(name, str)
        network = _unwrap(model)
        modules = {key: _submodule(network, key) for key in self.coefficients}  # all of them, or no hook is left behind
        self._hooks = {key: _Hook(output, _grid(grid)) for key in modules}
        self._handles = [modules[key].register_forward_hook(hook) for key, hook in self._hooks.items()]
        self._activate()

    def pop(self) -> Any:
        """Return what fired since the last pop, one forward after another along the batch.

        That is a tensor, or for several submodules a list of (coefficient, tensor), which the criterion takes.
        """
        latents = [(self.coefficients[name], hook.pop(name)) for name, hook in self._hooks.items()]
        return latents[0][1] if self._single else latents

    def encode(self, network: nn.Module, *inputs: Any) -> None:
        """Run a network up to the tapped submodules, for their latents; the rest is not computed.

        Under `torch.no_grad()` these come without a gradient.

        Args:
            network: What the tap sits on, or a wrapper of it.
            inputs: Its arguments.
        """
        waiting = set(self._hooks.values())
        for hook in waiting:
            hook.reached = lambda hook=hook: _leave(waiting, hook)
        try:
            network(*inputs)
        except _ReachedError:
            pass
        finally:
            for hook in self._hooks.values():
                hook.reached = None

    def clear(self) -> None:
        """Forget what fired."""
        for hook in self._hooks.values():
            hook.latents.clear()

    def remove(self) -> None:
        """Take the hooks off the network."""
        self.clear()
        for handle in self._handles:
            handle.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._activate()

    def _activate(self) -> None:
        for hook in self._hooks.values():
            hook.active = True
            weakref.finalize(self, hook.rest).atexit = False


class _ReachedError(Exception):
    """Ends a forward pass that has given all its latents."""


def _leave(waiting: "set[_Hook]", hook: "_Hook") -> None:
    waiting.discard(hook)
    if not waiting:
        raise _ReachedError


class _Hook:
    """The forward hook. A copy of the network carries a copy of it, which stays idle unless its tap was copied, too."""

    def __init__(self, output: int | str, grid: tuple[int, ...] | None):
        self.output = output
        self.grid = grid
        self.latents: list[Tensor] = []
        self.reached: Callable[[], None] | None = None  # what to do after firing, where nothing more is wanted
        self.active = False  # until a tap owns it, and no longer than that tap lives

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        wanted = torch.is_grad_enabled() or self.reached is not None  # `encode` wants it without one, too
        if not self.active or not wanted or _in_backward():
            return
        if len(self.latents) >= _LIMIT:
            self.latents.clear()
            raise TapError(
                f"Expected tap.pop() after each step, but {_LIMIT} forwards went by without it. Call pop() in the "
                "training loop, run inference under torch.no_grad(), or remove() the tap."
            )
        self.latents.append(self._latent(output))
        if self.reached is not None:
            self.reached()

    def pop(self, name: str) -> Tensor:
        """Return what was recorded and forget it; `name` is for the message."""
        if not self.latents:
            raise TapError(
                f"Expected a forward pass through {name!r} since the last pop, but saw none. Call the model first, "
                "with gradients on; attach the tap before a compiled model's first call; with activation checkpointing "
                "use use_reentrant=False; name a submodule that is called as such, not by a method of its own "
                "(encoder.forward_features)."
            )
        latents, self.latents = self.latents, []
        return torch.cat(latents) if len(latents) > 1 else latents[0]

    def rest(self) -> None:
        """Record nothing any more."""
        self.active = False
        self.latents = []

    def _latent(self, output: Any) -> Tensor:
        latent = output
        if not isinstance(output, Tensor):
            by_position = isinstance(output, Mapping) and not isinstance(self.output, str)
            entries: Any = list(output.values()) if by_position else output
            try:
                latent = entries[self.output]
            except (TypeError, KeyError, IndexError):
                latent = None
        if not isinstance(latent, Tensor):
            raise TapError(
                "Expected the tapped submodule to return a tensor, or a list or mapping with a tensor at output="
                f"{self.output!r}, but got {_describe(output)}. Choose the entry with output=, or another submodule."
            )
        return latent if self.grid is None else _as_map(latent, self.grid)

    def __getstate__(self) -> dict[str, Any]:
        # Latents cannot be copied: they have a graph.
        return {**self.__dict__, "latents": [], "active": False, "reached": None}


def _in_backward() -> bool:
    """Tell whether a backward pass is running: then a forward is a recomputation, whose latent is known already."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def _grid(grid: Any) -> tuple[int, ...] | None:
    """Return the token grid's shape, or None where latents stay as they are."""
    if grid is None:
        return None
    if (
        not isinstance(grid, Sequence)
        or not grid
        or not all(isinstance(side, Integral) and int(side) > 0 for side in grid)
    ):
        raise TapError(
            f"Expected grid to be the sides of the token grid, but got {grid!r}. Give whole numbers, such as (14, 14)."
        )
    return tuple(int(side) for side in grid)


def _as_map(tokens: Tensor, grid: tuple[int, ...]) -> Tensor:
    positions = math.prod(grid)
    spare = max(2 * max(grid), _EXTRA_TOKENS)  # a grid whose sides are too short by one leaves more than this over
    if tokens.dim() != 3 or not positions <= tokens.shape[1] <= positions + spare:
        raise TapError(
            f"Expected tokens (B, N ≥ {positions}, C) for the grid {grid}, with few others before them, but got "
            f"{_describe(tokens)}. Give the grid that the encoder works on, or none for feature maps."
        )
    return tokens[:, -positions:].transpose(1, 2).reshape(len(tokens), -1, *grid)


def _unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside DDP, Fabric and `torch.compile` wrappers."""
    if not isinstance(model, nn.Module):
        raise TapError(
            f"Expected a network (torch.nn.Module) to tap, but got {_describe(model)}. Give the network first, then "
            "its submodule's name: adawac.EncoderTap(model, 'encoder')."
        )
    for attribute in ("_orig_mod", "_original_module"):
        if isinstance(inner := model._modules.get(attribute), nn.Module):
            return _unwrap(inner)
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        return _unwrap(model.module)
    return model


def _coefficients(name: Any) -> dict[str, float]:
    """Return each submodule's coefficient in the consistency."""
    coefficients = {name: 1.0} if isinstance(name, str) else name
    numbers = isinstance(coefficients, Mapping) and all(isinstance(value, Real) for value in coefficients.values())
    if not numbers or not coefficients:
        raise UnknownNameError(
            "Expected the name of a submodule, or several with their coefficients, but got "
            f"{_describe(name)}. Give names as in model.named_modules(): 'encoder', or "
            "{'encoder.layer4': 1.0, 'encoder.layer3': 0.5}."
        )
    return dict(coefficients)


def _submodule(network: nn.Module, name: str) -> nn.Module:
    modules: dict[str, nn.Module] = dict(network.named_modules())
    if not name or name not in modules:
        raise UnknownNameError(
            f"Expected the name of a submodule of {type(network).__name__}, but got {name!r}. Near names: "
            f"{near(name, filter(None, modules), 6)}."
        )
    return modules[name]


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a mapping with the keys {list(value)}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
