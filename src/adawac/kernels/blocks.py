"""Blocks of torch, torchvision, timm and smp that move less memory than the originals."""

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adawac.kernels.convolutions import (
    Conv2d,
    can_convolve_gray,
    can_standardise,
    convolve_gray,
    gray,
    is_standardised,
    standardised,
)
from adawac.kernels.norms import BatchNorm2d, FusedNorm, GroupNorm, activated, hooked
from adawac.kernels.pixels import MaxPool2d, can_enlarge, enlarge
from adawac.kernels.tokens import (
    Branch,
    add,
    add_and_normalise,
    can_gelu,
    can_normalise,
    gelu_and_drop,
    linear,
    seeds,
    split_heads,
)
from adawac.lazy import library
from adawac.models import transunet

_timm_layers: Any = library("timm.layers", "timm")
_timm_attention: Any = library("timm.models.vision_transformer", "timm")


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
        attended = F.scaled_dot_product_attention(self.q_norm(query), self.k_norm(key), value, dropout_p=dropout)
        return attended.transpose(1, 2).flatten(2)


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
    """Tell whether a module is plain dropout or nothing, without hooks."""
    return type(drop) in (nn.Dropout, nn.Identity) and not hooked(drop)


def _rate(drop: nn.Module) -> float:
    return drop.p if isinstance(drop, nn.Dropout) and drop.training else 0.0


def _without(block: Any, *parts: str) -> bool:
    """Tell whether a block lacks these parts, or has in their places what does nothing."""
    return all(type(getattr(block, part, None)) in (type(None), nn.Identity) for part in parts)


def _bare(block: Any) -> bool:
    """Tell whether nothing comes between a branch and its addition."""
    return _without(block, "ls1", "ls2", "drop_path1", "drop_path2")


def _exact_gelu(block: Any) -> bool:
    return type(block.act) is nn.GELU and block.act.approximate == "none" and _without(block, "norm")


def _unscaled(block: Any) -> bool:
    return _without(block, "norm")


# What takes which class's place.
TRANSFORMERS: Mapping[type, tuple[type, Callable[[Any], bool]]] = {
    _timm_attention.Attention: (Attention, _unscaled),
    _timm_attention.Block: (TransformerBlock, _bare),
    _timm_layers.Mlp: (Mlp, _exact_gelu),
}

_torchvision: Any = library("torchvision.models.resnet", "torchvision")
_timm: Any = library("timm.models.resnet", "timm")
_timm_v2: Any = library("timm.models.resnetv2", "timm")
_smp_modules: Any = library("segmentation_models_pytorch.base.modules", "segmentation-models-pytorch")
_smp_unet: Any = library("segmentation_models_pytorch.decoders.unet.decoder", "segmentation-models-pytorch")
_smp_resnet: Any = library("segmentation_models_pytorch.encoders.resnet", "segmentation-models-pytorch")


class GroupNormAct(GroupNorm, _timm_layers.GroupNormAct):  # type: ignore[misc]
    """timm's group norm with an activation of its own."""

    drop: nn.Module
    act: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        """Return the activated norm."""
        if not self.fits(x) or type(self.drop) is not nn.Identity:
            return _timm_layers.GroupNormAct.forward(self, x)  # type: ignore[no-any-return]
        relu = type(self.act) is nn.ReLU and not hooked(self.act)
        y = self.fused(x, relu=relu)
        return y if relu else self.act(y)


class StdConv2d(_timm_layers.StdConv2d):  # type: ignore[misc]
    """timm's convolution whose weights are standardised, and at the same time cast: before a pass, or here."""

    def standard(self, dtype: torch.dtype | None = None) -> Tensor | None:
        """Return the standardised weight, or None if torch has to compute it."""
        return standardised(self.weight, self.eps, dtype) if can_standardise(self.weight) else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolved input."""
        weight = self.weight if is_standardised(self.weight) else self.standard()
        if weight is None:
            return super().forward(x)  # type: ignore[no-any-return]
        if can_convolve_gray(single := gray(x), self):
            return convolve_gray(single, weight.sum(1, keepdim=True), self.bias, self.stride[0], self.padding[0])
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Sequential(nn.Sequential):
    """torch's sequence of modules."""

    def forward(self, input: Tensor) -> Tensor:
        """Pass the input through all modules; a norm and the ReLU after it are one, as are transformer blocks."""
        modules = list(self)
        if all(isinstance(block, TransformerBlock) and not hooked(block) and block.fits(input) for block in modules):
            return transformed(input, modules)
        while modules:
            module = modules.pop(0)
            input = activated(module, input, modules.pop(0)) if _pair(module, *modules[:1]) else module(input)
        return input


class Conv2dReLU(Sequential, _smp_modules.Conv2dReLU):  # type: ignore[misc]
    """smp's convolution, norm and activation."""


class ResNetEncoder(_smp_resnet.ResNetEncoder):  # type: ignore[misc]
    """smp's encoder on torchvision's ResNets."""

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the image and the feature maps, deepest last."""
        features = [x]
        if self._depth >= 1:
            features.append(activated(self.bn1, self.conv1(x), self.relu))
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4)[: max(self._depth - 1, 0)]:
            features.append(layer(self.maxpool(features[-1]) if layer is self.layer1 else features[-1]))
        return features


class _ResidualBlock(nn.Module):
    """A ResNet's block of two or three convolutions, each with a norm and an activation, before torch's own class."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        block: Any = self
        out, last = x, 3 if hasattr(block, "conv3") else 2
        for number in range(1, last + 1):
            act = block.relu if hasattr(block, "relu") else getattr(block, f"act{number}")
            out = getattr(block, f"conv{number}")(out)
            out = activated(getattr(block, f"bn{number}"), out, act, _shortcut(block, x) if number == last else None)
        return out


class TorchvisionBasicBlock(_ResidualBlock, _torchvision.BasicBlock):  # type: ignore[misc]
    """torchvision's block of two convolutions."""


class TorchvisionBottleneck(_ResidualBlock, _torchvision.Bottleneck):  # type: ignore[misc]
    """torchvision's block of three convolutions."""


class TimmBasicBlock(_ResidualBlock, _timm.BasicBlock):  # type: ignore[misc]
    """timm's block of two convolutions."""


class TimmBottleneck(_ResidualBlock, _timm.Bottleneck):  # type: ignore[misc]
    """timm's block of three convolutions."""


class TimmBottleneckV2(_timm_v2.Bottleneck):  # type: ignore[misc]
    """timm's block of three convolutions whose norms have activations of their own: TransUNet's."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        shortcut = _shortcut(self, x)
        out = self.norm1(self.conv1(x))
        out = self.norm2(self.conv2(out))
        return activated(self.norm3, self.conv3(out), self.act3, shortcut)


class UnetDecoderBlock(_smp_unet.UnetDecoderBlock):  # type: ignore[misc]
    """A decoder block of smp's U-Net."""

    def forward(
        self, feature_map: Tensor, target_height: int, target_width: int, skip_connection: Tensor | None = None
    ) -> Tensor:
        """Return a map of the target's size."""
        if not can_enlarge(feature_map, (target_height, target_width), skip_connection):
            return super().forward(feature_map, target_height, target_width, skip_connection)  # type: ignore[no-any-return]
        x = enlarge(feature_map, skip_connection)
        x = x if skip_connection is None else self.attention1(x)
        y: Tensor = self.attention2(self.conv2(self.conv1(x)))
        return y


class TransUNetEncoder(transunet.Encoder):
    """TransUNet's encoder, whose first convolution can do with one channel where three are the same."""

    def coloured(self, images: Tensor) -> Tensor:
        """Return the images with one channel repeated to three: in memory only where they must be."""
        repeated = self.cnn is not None and self.in_channels == 1 and can_convolve_gray(images, self.cnn.stem.conv)
        return images.expand(-1, 3, -1, -1) if repeated else super().coloured(images)


class TransUNetDecoderBlock(transunet.DecoderBlock):
    """A decoder block of TransUNet."""

    def joined(self, x: Tensor, skip: Tensor | None) -> Tensor:
        """Return x in twice its size, with the skip connection."""
        size = [2 * side for side in x.shape[2:]]
        if hooked(self.enlarge) or not can_enlarge(x, size, skip):
            return super().joined(x, skip)
        return enlarge(x, skip, bilinear=True)


def _shortcut(block: Any, x: Tensor) -> Tensor:
    shortcut: Tensor = x if block.downsample is None else block.downsample(x)
    return shortcut


def _always(block: Any) -> bool:
    return True


def _plain(block: Any) -> bool:
    """Tell whether a block of timm's ResNets has no part between a norm and its ReLU."""
    return _without(block, "drop_block", "aa", "se", "drop_path")


def _repeats(block: Any) -> bool:
    return bool(block.interpolation_mode == "nearest")


def _plain_v2(block: Any) -> bool:
    return (
        isinstance(block.norm3, GroupNormAct) and _without(block.norm3, "drop", "act") and _without(block, "drop_path")
    )


def _pair(module: nn.Module, after: nn.Module | None = None) -> bool:
    return isinstance(module, FusedNorm) and type(after) is nn.ReLU


def _has_pair(block: Any) -> bool:
    return any(_pair(*neighbours) for neighbours in pairwise(block))


def _gains(block: Any) -> bool:
    return _has_pair(block) or (len(block) > 0 and all(isinstance(inner, _timm_attention.Block) for inner in block))


# What takes which class's place: norms first, as the blocks are recognised by them.
NORMS: Mapping[type, type] = {
    nn.GroupNorm: GroupNorm,
    nn.BatchNorm2d: BatchNorm2d,
    _timm_layers.GroupNormAct: GroupNormAct,
}
BLOCKS: Mapping[type, tuple[type, Callable[[Any], bool]]] = {
    nn.Conv2d: (Conv2d, _always),
    nn.MaxPool2d: (MaxPool2d, _always),
    nn.Sequential: (Sequential, _gains),
    _smp_modules.Conv2dReLU: (Conv2dReLU, _has_pair),
    _smp_resnet.ResNetEncoder: (ResNetEncoder, _always),
    _torchvision.BasicBlock: (TorchvisionBasicBlock, _always),
    _torchvision.Bottleneck: (TorchvisionBottleneck, _always),
    _timm.BasicBlock: (TimmBasicBlock, _plain),
    _timm.Bottleneck: (TimmBottleneck, _plain),
    _timm_v2.Bottleneck: (TimmBottleneckV2, _plain_v2),
    _smp_unet.UnetDecoderBlock: (UnetDecoderBlock, _repeats),
    _timm_layers.StdConv2d: (StdConv2d, _always),
    **TRANSFORMERS,
    transunet.Encoder: (TransUNetEncoder, _always),
    transunet.DecoderBlock: (TransUNetDecoderBlock, _always),
}
