"""Transformer blocks of timm that move less memory than the originals; each class is one but for its forward."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from adawac.models.base import library
from adawac.models.fused.base import hooked
from adawac.models.fused.heads import split_heads
from adawac.models.fused.tokens import (
    Branch,
    add,
    add_and_normalise,
    can_gelu,
    can_normalise,
    gelu_and_drop,
    linear,
    normalised,
    seeds,
)

__all__ = ["TRANSFORMERS", "TransformerBlock", "transformed"]

_timm_layers: Any = library("timm.layers", "timm")
_timm_attention: Any = library("timm.models.vision_transformer", "timm")


class LayerNorm(nn.LayerNorm):
    """torch's layer norm of tokens."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised tokens."""
        return normalised(input, self) if can_normalise(input, self) else super().forward(input)


class Attention(_timm_attention.Attention):  # type: ignore[misc]
    """timm's attention, whose gradients of query, key and value are put together in one pass."""

    def forward(self, x: Tensor, *masks: Any, **options: Any) -> Tensor:
        """Return what the tokens attend to."""
        if masks or options or not self.fits(x):
            return super().forward(x, *masks, **options)  # type: ignore[no-any-return]
        y: Tensor = self.proj_drop(self.proj(self._attended(x)))
        return y

    def branch(self, x: Tensor) -> Branch:
        """Return the same for an addition, which also does the dropout."""
        if not self.fits(x) or not _drops(self.proj_drop):
            return Branch(self(x))
        return Branch(*linear(self.proj, self._attended(x)), _rate(self.proj_drop))

    def fits(self, x: Tensor) -> bool:
        """Tell whether the kernels can take these tokens."""
        return self.fused_attn and can_gelu(x)

    def _attended(self, x: Tensor) -> Tensor:
        packed, bias = linear(self.qkv, x)
        query, key, value = split_heads(packed, self.num_heads, bias)
        dropout = self.attn_drop.p if self.training else 0.0
        found = F.scaled_dot_product_attention(self.q_norm(query), self.k_norm(key), value, dropout_p=dropout)
        return found.transpose(1, 2).flatten(2)


class Mlp(_timm_layers.Mlp):  # type: ignore[misc]
    """timm's two linear layers, with GELU and dropout between them in one."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens."""
        y: Tensor = self.drop2(self.fc2(self._hidden(x)))
        return y

    def branch(self, x: Tensor) -> Branch:
        """Return the same for an addition, which also does the dropout."""
        if not _drops(self.drop2):
            return Branch(self(x))
        rate = _rate(self.drop2)
        first, second = seeds(2, x.device) if rate else (None, None)
        return Branch(*linear(self.fc2, self._hidden(x, first)), rate, second)

    def _hidden(self, x: Tensor, seed: Tensor | None = None) -> Tensor:
        if hooked(self.act) or not _drops(self.drop1) or not can_gelu(x):
            y: Tensor = self.drop1(self.act(self.fc1(x)))
            return y
        x, bias = linear(self.fc1, x)
        return gelu_and_drop(x, _rate(self.drop1), seed, bias)


class TransformerBlock(_timm_attention.Block):  # type: ignore[misc]
    """timm's transformer block: each norm is computed together with the addition before it."""

    def forward(self, x: Tensor, *masks: Any, **options: Any) -> Tensor:
        """Return the tokens."""
        if masks or options or not self.fits(x):
            return super().forward(x, *masks, **options)  # type: ignore[no-any-return]
        return transformed(x, [self])

    def fits(self, x: Tensor) -> bool:
        """Tell whether the kernels can take these tokens."""
        return all(can_normalise(x, norm) and not hooked(norm) for norm in (self.norm1, self.norm2))


def transformed(x: Tensor, blocks: Iterable[Any]) -> Tensor:
    """Return what transformer blocks make of the tokens; what one of them adds last, the next one's norm adds."""
    branch: Branch | None = None
    for block in blocks:
        x, normal = add_and_normalise(x, branch, block.norm1)
        x, normal = add_and_normalise(x, _branch(block.attn, normal), block.norm2)
        branch = _branch(block.mlp, normal)
    return x if branch is None else add(x, branch)


def _branch(module: nn.Module, x: Tensor) -> Branch:
    if isinstance(module, Attention | Mlp) and not hooked(module):
        return module.branch(x)
    return Branch(module(x))


def _drops(drop: nn.Module) -> bool:
    """Tell whether a module does nothing but drop, if that, and nobody listens to it."""
    return type(drop) in (nn.Dropout, nn.Identity) and not hooked(drop)


def _rate(drop: nn.Module) -> float:
    return drop.p if isinstance(drop, nn.Dropout) and drop.training else 0.0


def _bare(block: Any) -> bool:
    """Tell whether nothing stands between a branch and its addition."""
    return all(type(getattr(block, name)) is nn.Identity for name in ("ls1", "ls2", "drop_path1", "drop_path2"))


def _exact_gelu(block: Any) -> bool:
    return type(block.act) is nn.GELU and block.act.approximate == "none" and type(block.norm) is nn.Identity


def _wide(norm: Any) -> bool:
    """Tell whether a token has work for a whole program."""
    return bool(norm.normalized_shape[-1] >= 256)


def _unscaled(block: Any) -> bool:
    return type(getattr(block, "norm", nn.Identity())) is nn.Identity


# What takes which class's place.
TRANSFORMERS: Mapping[type, tuple[type, Callable[[Any], bool]]] = {
    nn.LayerNorm: (LayerNorm, _wide),
    _timm_attention.Attention: (Attention, _unscaled),
    _timm_attention.Block: (TransformerBlock, _bare),
    _timm_layers.Mlp: (Mlp, _exact_gelu),
}
