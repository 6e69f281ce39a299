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
from adawac.models.fused.base import FusedNorm, activated, hooked
from adawac.models.fused.batch_norm import BatchNorm2d
from adawac.models.fused.conv import Conv2d
from adawac.models.fused.enlarge import can_enlarge, enlarge
from adawac.models.fused.group_norm import GroupNorm
from adawac.models.fused.pool import MaxPool2d
from adawac.models.fused.tokens import add_and_normalise, can_gelu, can_normalise, gelu_and_drop

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
    """timm's convolution whose weights are standardised, by torch's layer norm, which leaves them channels-last."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolved input."""
        weight: Tensor = self.weight
        if not _on_gpu(weight) or not weight.is_contiguous(memory_format=torch.channels_last):
            return super().forward(x)  # type: ignore[no-any-return]
        rows = weight.permute(0, 2, 3, 1)
        standard = F.layer_norm(rows, rows.shape[1:], eps=self.eps).permute(0, 3, 1, 2)
        return F.conv2d(x, standard, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Attention(_timm_attention.Attention):  # type: ignore[misc]
    """timm's attention, whose gradients of query, key and value are put together in one copy instead of two."""

    def forward(self, x: Tensor, *masks: Any, **options: Any) -> Tensor:
        """Return what the tokens attend to."""
        if masks or options or not self.fused_attn or not _on_gpu(x):
            return super().forward(x, *masks, **options)  # type: ignore[no-any-return]
        heads = [one.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1)]
        query, key, value = self.q_norm(heads[0]), self.k_norm(heads[1]), heads[2]
        dropout = self.attn_drop.p if self.training else 0.0
        found = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout).transpose(1, 2).flatten(2)
        y: Tensor = self.proj_drop(self.proj(found))
        return y


class TransformerBlock(_timm_attention.Block):  # type: ignore[misc]
    """timm's transformer block: each norm is computed together with the addition before it."""

    def forward(self, x: Tensor, *masks: Any, **options: Any) -> Tensor:
        """Return the tokens."""
        listened = masks or options or hooked(self.norm1) or hooked(self.norm2)
        if listened or not (can_normalise(x, self.norm1) and can_normalise(x, self.norm2)):
            return super().forward(x, *masks, **options)  # type: ignore[no-any-return]
        x, normal = add_and_normalise(x, None, self.norm1)
        x, normal = add_and_normalise(x, self.attn(normal), self.norm2)
        y: Tensor = x + self.mlp(normal)
        return y


class Mlp(_timm_layers.Mlp):  # type: ignore[misc]
    """timm's two linear layers, with GELU and dropout between them in one."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens."""
        x = self.fc1(x)
        if hooked(self.act) or hooked(self.drop1) or not can_gelu(x):
            x = self.drop1(self.act(x))
        else:
            x = gelu_and_drop(x, self.drop1.p if self.training else 0.0)
        y: Tensor = self.drop2(self.fc2(x))
        return y


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


class TransUNetDecoderBlock(transunet.DecoderBlock):
    """A decoder block of TransUNet."""

    def joined(self, x: Tensor, skip: Tensor | None) -> Tensor:
        """Return x in twice its size, with the skip connection."""
        size = [2 * side for side in x.shape[2:]]
        if hooked(self.enlarge) or not can_enlarge(x, size, skip):
            return super().joined(x, skip)
        return enlarge(x, skip, bilinear=True)


def _on_gpu(x: Tensor) -> bool:
    return x.is_cuda and not torch.compiler.is_compiling()  # the compiler sees the originals


def _shortcut(block: Any, x: Tensor) -> Tensor:
    shortcut: Tensor = x if block.downsample is None else block.downsample(x)
    return shortcut


def _always(block: Any) -> bool:
    return True


def _plain(block: Any) -> bool:
    """Tell whether a block of timm's ResNets has none of the parts that may stand between a norm and its ReLU."""
    parts = (getattr(block, name, None) for name in ("drop_block", "aa", "se", "drop_path"))
    return all(part is None or type(part) is nn.Identity for part in parts)


def _bare(block: Any) -> bool:
    """Tell whether nothing stands between a branch and its addition."""
    return all(type(getattr(block, name)) is nn.Identity for name in ("ls1", "ls2", "drop_path1", "drop_path2"))


def _exact_gelu(block: Any) -> bool:
    plain = type(block.act) is nn.GELU and block.act.approximate == "none" and type(block.norm) is nn.Identity
    return plain and type(block.drop1) is nn.Dropout


def _unscaled(block: Any) -> bool:
    return type(getattr(block, "norm", nn.Identity())) is nn.Identity


def _repeats(block: Any) -> bool:
    return bool(block.interpolation_mode == "nearest")


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
    nn.Conv2d: (Conv2d, _always),
    nn.MaxPool2d: (MaxPool2d, _always),
    nn.Sequential: (Sequential, _has_pair),
    _smp_modules.Conv2dReLU: (Conv2dReLU, _has_pair),
    _smp_resnet.ResNetEncoder: (ResNetEncoder, _always),
    _torchvision.BasicBlock: (TorchvisionBasicBlock, _always),
    _torchvision.Bottleneck: (TorchvisionBottleneck, _always),
    _timm.BasicBlock: (TimmBasicBlock, _plain),
    _timm.Bottleneck: (TimmBottleneck, _plain),
    _timm_v2.Bottleneck: (TimmBottleneckV2, _plain_v2),
    _smp_unet.UnetDecoderBlock: (UnetDecoderBlock, _repeats),
    _timm_layers.StdConv2d: (StdConv2d, _always),
    _timm_attention.Attention: (Attention, _unscaled),
    _timm_attention.Block: (TransformerBlock, _bare),
    _timm_layers.Mlp: (Mlp, _exact_gelu),
    transunet.DecoderBlock: (TransUNetDecoderBlock, _always),
}
