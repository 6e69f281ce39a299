"""Blocks of torch, torchvision, timm and smp that move less memory than the originals.

A norm also does the ReLU that follows it, a map is enlarged into the skip connection's place, and weights and attention
keep the layout that the next function wants. Each class is the original but for its forward, so that a network's blocks
can take it on as they are.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adawac.models import transunet
from adawac.models.base import library
from adawac.models.fused import aside
from adawac.models.fused.base import FusedNorm, activated, hooked
from adawac.models.fused.batch_norm import BatchNorm2d
from adawac.models.fused.conv import Conv2d
from adawac.models.fused.enlarge import can_enlarge, enlarge
from adawac.models.fused.group_norm import GroupNorm
from adawac.models.fused.pool import MaxPool2d
from adawac.models.fused.stem import can_convolve_gray, convolve_gray, gray
from adawac.models.fused.transformer import TRANSFORMERS, TransformerBlock, transformed
from adawac.models.fused.weights import can_standardise, is_standardised, standardised

__all__ = ["BLOCKS", "NORMS"]

_torchvision: Any = library("torchvision.models.resnet", "torchvision")
_timm: Any = library("timm.models.resnet", "timm")
_timm_v2: Any = library("timm.models.resnetv2", "timm")
_timm_layers: Any = library("timm.layers", "timm")
_timm_attention: Any = library("timm.models.vision_transformer", "timm")
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
        uses = aside.used(weight)
        if can_convolve_gray(one := gray(x), self):
            return convolve_gray(one, weight.sum(1, keepdim=True), self.bias, self.stride[0], self.padding[0])
        if uses is not None:
            return aside.convolve(x, weight, self, uses)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Sequential(nn.Sequential):
    """torch's sequence of modules."""

    def forward(self, input: Tensor) -> Tensor:
        """Pass the input through all modules; a norm and the ReLU after it are one, as are transformer blocks."""
        modules = list(self)
        if all(isinstance(one, TransformerBlock) and not hooked(one) and one.fits(input) for one in modules):
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


class TorchvisionBasicBlock(_torchvision.BasicBlock):  # type: ignore[misc]
    """torchvision's block of two convolutions."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        out = activated(self.bn1, self.conv1(x), self.relu)
        out = self.conv2(out)
        return activated(self.bn2, out, self.relu, _shortcut(self, x))


class TorchvisionBottleneck(_torchvision.Bottleneck):  # type: ignore[misc]
    """torchvision's block of three convolutions."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        out = activated(self.bn1, self.conv1(x), self.relu)
        out = activated(self.bn2, self.conv2(out), self.relu)
        out = self.conv3(out)
        return activated(self.bn3, out, self.relu, _shortcut(self, x))


class TimmBasicBlock(_timm.BasicBlock):  # type: ignore[misc]
    """timm's block of two convolutions."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        out = activated(self.bn1, self.conv1(x), self.act1)
        out = self.conv2(out)
        return activated(self.bn2, out, self.act2, _shortcut(self, x))


class TimmBottleneck(_timm.Bottleneck):  # type: ignore[misc]
    """timm's block of three convolutions."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        out = activated(self.bn1, self.conv1(x), self.act1)
        out = activated(self.bn2, self.conv2(out), self.act2)
        out = self.conv3(out)
        return activated(self.bn3, out, self.act3, _shortcut(self, x))


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
    """Tell whether a block of timm's ResNets has none of the parts that may stand between a norm and its ReLU."""
    parts = (getattr(block, name, None) for name in ("drop_block", "aa", "se", "drop_path"))
    return all(part is None or type(part) is nn.Identity for part in parts)


def _repeats(block: Any) -> bool:
    return bool(block.interpolation_mode == "nearest")


def _plain_v2(block: Any) -> bool:
    ends_bare = all(type(getattr(block.norm3, name, None)) is nn.Identity for name in ("drop", "act"))
    return ends_bare and type(block.drop_path) is nn.Identity


def _pair(module: nn.Module, after: nn.Module | None = None) -> bool:
    return isinstance(module, FusedNorm) and type(after) is nn.ReLU


def _has_pair(block: Any) -> bool:
    return any(_pair(*neighbours) for neighbours in pairwise(block))


def _gains(block: Any) -> bool:
    return _has_pair(block) or (len(block) > 0 and all(isinstance(one, _timm_attention.Block) for one in block))


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
