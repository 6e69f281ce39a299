"""The latent of any network, read by a forward hook on one of its submodules."""

import dataclasses
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from types import TracebackType
from typing import Any, Generic, Self, cast, overload

import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from adawac.errors import TapError, UnknownNameError, check_known

# More than any step needs: pop is never called, and every latent keeps its graph in memory.
_LIMIT = 256
# Class and register tokens, as many as any vision transformer has; of small grids more would not be noticed.
_EXTRA_TOKENS = 16

# What `pop` returns: a tensor for a submodule's name, a list for several.
Popped = TypeVar("Popped", default=Tensor)


class EncoderTap(Generic[Popped]):
    """Keeps what a submodule returns while gradients are on, until `pop` takes it.

    Attach it before the first call of a compiled model: a hook that comes later is never seen.

    Args:
        model: Any network; wrappers (DDP, Fabric, a compiled model) are looked through.
        name: The submodule, as in `model.named_modules()`; or several with their coefficients in the consistency,
            `{"encoder.layer4": 1.0, "encoder.layer3": 0.5}`.
        output: What to take where a submodule returns several tensors: a position, a key or an attribute, or a path of
            these, `"feature_maps.3"`. By default, and where it leads to several, the deepest feature map: of the
            tensors with the most axes the last one, attention aside.
        grid: The shape of the token grid, for submodules that return (B, N, C): latents become (B, C, *grid), leading
            tokens that are not of the grid (class, registers) are dropped.

    Attributes:
        coefficients: The coefficient of each submodule, by its name.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 2, 1))
        >>> tap = EncoderTap(model, "1")
        >>> tap
        EncoderTap(Sequential: '1')
        >>> logits = model(torch.zeros(6, 1, 9, 9))
        >>> tap.pop().shape
        torch.Size([6, 4, 4, 4])

        Several submodules, each with its coefficient:

        >>> tap = EncoderTap(model, {"1": 1.0, "0": 0.5})
        >>> logits = model(torch.zeros(6, 1, 9, 9))
        >>> [(coefficient, latent.shape[1]) for coefficient, latent in tap.pop()]
        [(1.0, 4), (0.5, 4)]
    """

    @overload
    def __init__(
        self: "EncoderTap[Tensor]",
        model: nn.Module,
        name: str,
        *,
        output: int | str | None = None,
        grid: Sequence[int] | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: "EncoderTap[list[tuple[float, Tensor]]]",
        model: nn.Module,
        name: Mapping[str, float],
        *,
        output: int | str | None = None,
        grid: Sequence[int] | None = None,
    ) -> None: ...

    def __init__(
        self,
        model: nn.Module,
        name: str | Mapping[str, float],
        *,
        output: int | str | None = None,
        grid: Sequence[int] | None = None,
    ) -> None:
        self.coefficients = _coefficients(name)
        self._single = isinstance(name, str)
        network = _unwrap(model)
        self._network = type(network).__name__
        modules = {key: _submodule(network, key) for key in self.coefficients}  # all of them, or no hook is left behind
        self._hooks = {key: _Hook(output, _grid(grid)) for key in modules}
        self._handles = [modules[key].register_forward_hook(hook) for key, hook in self._hooks.items()]
        self._activate()

    def __repr__(self) -> str:
        name, hook = next(iter(self._hooks.items()))
        settings = [repr(name if self._single else self.coefficients)]
        settings += [f"{key}={getattr(hook, key)!r}" for key in ("output", "grid") if getattr(hook, key) is not None]
        return f"EncoderTap({self._network}: {', '.join(settings)})"

    def pop(self) -> Popped:
        """Return what fired since the last pop, one forward after another along the batch, and forget it.

        Returns:
            The latents (2B, …) of both views, or for several submodules a list of (coefficient, latents): what the
            criterion takes as `features`.
        """
        latents = [(self.coefficients[name], hook.pop(name)) for name, hook in self._hooks.items()]
        return cast("Popped", latents[0][1] if self._single else latents)

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

    def __init__(self, output: int | str | None, grid: tuple[int, ...] | None):
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
            try:
                latent = output if self.output is None else _entry(output, self.output)
            except (AttributeError, LookupError):
                latent = None
            latents = _tensors(latent)
            most = max([0, *[entry.dim() for entry in latents]])
            latents = [entry for entry in latents if entry.dim() == most]
            latent = latents[-1] if latents else None
        if latent is None:
            expected = "" if self.output is None else f" at output={self.output!r}"
            raise TapError(
                f"Expected the tapped submodule to return a tensor, or several with one{expected}, but got "
                f"{_describe(output)}. Choose the entry with output=, or another submodule."
            )
        return latent if self.grid is None else _as_map(latent, self.grid)

    def __getstate__(self) -> dict[str, Any]:
        # Latents cannot be copied: they have a graph.
        return {**self.__dict__, "latents": [], "active": False, "reached": None}


def _in_backward() -> bool:
    """Tell whether a backward pass is running: then a forward is a recomputation, whose latent is known already."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def _entry(output: Any, path: int | str) -> Any:
    """Return what lies at a path of positions, keys and attributes: `"feature_maps.3"`."""
    if isinstance(output, Mapping) and path in output:  # also a key with dots
        return output[path]
    step, _, rest = str(path).partition(".")
    if isinstance(output, Mapping) and step in output:
        entry = output[step]
    elif isinstance(output, (Mapping, Sequence)) and step.lstrip("-").isdecimal():
        entry = list(output.values() if isinstance(output, Mapping) else output)[int(step)]
    else:
        entry = getattr(output, step)
    return _entry(entry, rest) if rest else entry


def _tensors(output: Any) -> list[Tensor]:
    """Return the tensors of an output, in its order, without those that are called attention."""
    if isinstance(output, Tensor):
        return [output]
    # In this order, and without `list | tuple`: torch 2.6 compiles nothing else.
    if output is None or isinstance(output, (list, tuple)):
        entries = list(output or ())
    elif isinstance(output, Mapping) or dataclasses.is_dataclass(output):
        named = output if isinstance(output, Mapping) else vars(output)
        entries = [entry for name, entry in named.items() if "attention" not in str(name)]
    else:
        entries = []
    return [tensor for entry in entries for tensor in _tensors(entry)]


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
    modules: dict[str, nn.Module] = {name: module for name, module in network.named_modules() if name}
    check_known(name, modules, f"the name of a submodule of {type(network).__name__}", count=6)
    return modules[name]


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a mapping with the keys {list(value)}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a {type(value).__name__} of {len(value)}"
    if dataclasses.is_dataclass(value):
        return f"a {type(value).__name__} with {', '.join(vars(value))}"
    return f"a {type(value).__name__}"
