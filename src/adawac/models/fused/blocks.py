"""Blocks of torch, torchvision, timm and smp in which a ReLU follows a norm, with both in one call.

Each class is the original but for its forward, so that a network's blocks can take it on as they are.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from adawac.models.base import library
from adawac.models.fused.base import FusedNorm, activated, hooked
from adawac.models.fused.batch_norm import BatchNorm2d
from adawac.models.fused.group_norm import GroupNorm

__all__ = ["BLOCKS", "NORMS"]

_torchvision: Any = library("torchvision.models.resnet", "torchvision")
_timm: Any = library("timm.models.resnet", "timm")
_timm_v2: Any = library("timm.models.resnetv2", "timm")
_timm_layers: Any = library("timm.layers", "timm")
_smp_modules: Any = library("segmentation_models_pytorch.base.modules", "segmentation-models-pytorch")
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


class Sequential(nn.Sequential):
    """torch's sequence of modules."""

    def forward(self, input: Tensor) -> Tensor:
        """Pass the input through all modules; a norm and the ReLU after it are one."""
        modules = list(self)
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


def _shortcut(block: Any, x: Tensor) -> Tensor:
    shortcut: Tensor = x if block.downsample is None else block.downsample(x)
    return shortcut


def _always(block: Any) -> bool:
    return True


def _plain(block: Any) -> bool:
    """Tell whether a block of timm's ResNets has none of the parts that may stand between a norm and its ReLU."""
    parts = (getattr(block, name, None) for name in ("drop_block", "aa", "se", "drop_path"))
    return all(part is None or type(part) is nn.Identity for part in parts)


def _plain_v2(block: Any) -> bool:
    ends_bare = all(type(getattr(block.norm3, name, None)) is nn.Identity for name in ("drop", "act"))
    return ends_bare and type(block.drop_path) is nn.Identity


def _pair(module: nn.Module, after: nn.Module | None = None) -> bool:
    return isinstance(module, FusedNorm) and type(after) is nn.ReLU


def _has_pair(block: Any) -> bool:
    return any(_pair(*neighbours) for neighbours in pairwise(block))


# What takes which class's place: norms first, as the blocks are recognised by them.
NORMS: Mapping[type, type] = {
    nn.GroupNorm: GroupNorm,
    nn.BatchNorm2d: BatchNorm2d,
    _timm_layers.GroupNormAct: GroupNormAct,
}
BLOCKS: Mapping[type, tuple[type, Callable[[Any], bool]]] = {
    nn.Sequential: (Sequential, _has_pair),
    _smp_modules.Conv2dReLU: (Conv2dReLU, _has_pair),
    _smp_resnet.ResNetEncoder: (ResNetEncoder, _always),
    _torchvision.BasicBlock: (TorchvisionBasicBlock, _always),
    _torchvision.Bottleneck: (TorchvisionBottleneck, _always),
    _timm.BasicBlock: (TimmBasicBlock, _plain),
    _timm.Bottleneck: (TimmBottleneck, _plain),
    _timm_v2.Bottleneck: (TimmBottleneckV2, _plain_v2),
}
