"""TransUNet: a ResNet-50 and a Vision Transformer encode, a cascaded upsampler decodes (Chen et al., 2021).

The blocks are timm's, with fused attention. Three choices are for speed alone: activations lie channels-last in memory;
norms keep autocast's precision (torch would copy to float32 and back; their statistics are float32 in either case);
upsampling is two matrix products, whose backward, unlike that of torch's kernel, adds nothing atomically and is thus
deterministic as well.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adawac.errors import ConfigError, ShapeError
from adawac.lazy import library

PATCH = 16  # the encoder's stride, with and without the CNN


class TransUNet(nn.Module):
    """Logits (B, K, H, W) from images (B, C, H, W); `encoder` gives a list of feature maps, the latent last.

    Args:
        num_classes: K, background included.
        in_channels: C; one channel is repeated to three, as in the original.
        image_size: height and width, both divisible by 16.
        cnn: put the ResNet before the transformer; without it patches of 16×16 pixels are embedded (ViT-B/16).
        embed_dim: width of the tokens.
        depth: number of transformer blocks.
        num_heads: attention heads of a block.
        mlp_ratio: hidden width of a block's MLP, in multiples of `embed_dim`.
        dropout: rate after the position embedding and in the MLPs.
        layers: bottlenecks in each of the CNN's three stages.
        width: the CNN's width, in multiples of ResNet-50's.
        bridge: channels between encoder and decoder.
        decoder_channels: channels of the four decoder blocks.
        n_skip: how many skip connections, deepest first, 0 to 3; by default all that there are.
        faithful: keep what the original does at the border: it pools without padding, so that the map at 1/4 lacks a
            row and a column, which its skip connection fills with zeros. Square images only. Nothing else differs.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 1,
        image_size: tuple[int, int] = (224, 224),
        *,
        cnn: bool = True,
        embed_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        mlp_ratio: float = 4.0,
        dropout: float = 0.1,
        layers: Sequence[int] = (3, 4, 9),
        width: float = 1.0,
        bridge: int = 512,
        decoder_channels: Sequence[int] = (256, 128, 64, 16),
        n_skip: int | None = None,
        faithful: bool = False,
    ):
        super().__init__()
        n_skip = (3 if cnn else 0) if n_skip is None else n_skip
        _check_options(image_size, cnn, embed_dim, num_heads, layers, decoder_channels, n_skip)
        self.num_classes = num_classes
        self.encoder = Encoder(
            in_channels, image_size, layers if cnn else None, width, embed_dim, depth, num_heads, mlp_ratio, dropout
        )
        self.decoder = Decoder(self.encoder.channels, self.encoder.grid, bridge, decoder_channels, n_skip)
        self.segmentation_head = nn.Conv2d(decoder_channels[-1], num_classes, 3, padding=1)
        self.faithful = faithful

    @property
    def faithful(self) -> bool:
        """Whether the original's border is kept; may be switched at any time, the parameters are the same."""
        return not self.encoder.pool.ceil_mode

    @faithful.setter
    def faithful(self, faithful: bool) -> None:
        height, width = self.encoder.image_size
        if faithful and height != width:
            raise ConfigError(
                f"Expected a square image size for a faithful TransUNet, as in the original, but got {height}×{width}. "
                "Set faithful=False, which differs at the border only."
            )
        self.encoder.pool.ceil_mode = not faithful

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.segmentation_head(self.decoder(self.encoder(images)))
        return logits


class Encoder(nn.Module):
    """Feature maps at 1/2, 1/4 and 1/8 of the image (none without a CNN) and, last, the tokens as a map at 1/16."""

    def __init__(
        self,
        in_channels: int,
        image_size: tuple[int, int],
        layers: Sequence[int] | None,
        width: float,
        embed_dim: int,
        depth: int,
        num_heads: int,
        mlp_ratio: float,
        dropout: float,
    ):
        super().__init__()
        self.in_channels, self.image_size = in_channels, image_size
        self.grid = (image_size[0] // PATCH, image_size[1] // PATCH)
        colours = 3 if in_channels == 1 else in_channels
        self.cnn: Any = None if layers is None else _resnet(colours, layers, width)
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        maps: list[int] = [] if self.cnn is None else [info["num_chs"] for info in self.cnn.feature_info]
        self.channels = [*maps[:-1], embed_dim]  # the CNN's last map becomes tokens
        patch = 1 if self.cnn is not None else PATCH
        self.patch_embed = nn.Conv2d(maps[-1] if maps else colours, embed_dim, patch, stride=patch)
        self.pos_embed = nn.Parameter(torch.empty(1, self.grid[0] * self.grid[1], embed_dim))
        self.pos_drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(
            *(_transformer_block(embed_dim, num_heads, mlp_ratio, dropout) for _ in range(depth))
        )
        norms: list[Any] = [part for part in self.modules() if hasattr(part, "_fast_norm")]
        for norm in norms:
            norm._fast_norm = True  # timm's switch, by which they keep autocast's precision
        self.norm = nn.LayerNorm(embed_dim, eps=1e-6)  # in float32 under autocast: the consistency term reads it
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        for module in self.blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the feature maps, the latent last."""
        expected = (self.in_channels, *self.image_size)
        if images.dim() != 4 or images.shape[1:] != expected:
            raise ShapeError(
                f"Expected images (B, {', '.join(map(str, expected))}), but got {tuple(images.shape)}. Resize them, or "
                "build the network with another image_size or in_channels."
            )
        x = self.coloured(images)
        skips: list[Tensor] = []
        if self.cnn is not None:
            x, skips = self._convolve(x)
        tokens = self.patch_embed(x).flatten(2).transpose(1, 2)
        tokens = self.norm(self.blocks(self.pos_drop(tokens + self.pos_embed)))
        return [*skips, tokens.transpose(1, 2).unflatten(2, self.grid)]

    def coloured(self, images: Tensor) -> Tensor:
        """Return the images channels-last, with one channel repeated to three."""
        x = images.expand(-1, 3, -1, -1) if self.in_channels == 1 else images
        return x.contiguous(memory_format=torch.channels_last)

    def _convolve(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the CNN's last map and those before it."""
        skips = [self.cnn.stem.norm(self.cnn.stem.conv(x))]
        x = self.pool(skips[0])
        for stage in self.cnn.stages:
            x = stage(x)
            skips.append(x)
        if not self.pool.ceil_mode:  # as in the original, which leaves the last row and column out
            skips[1] = F.pad(skips[1], (0, 1, 0, 1))
        return x, skips[:-1]


class Decoder(nn.Module):
    """The cascaded upsampler: four times twice the size, with skip connections from the encoder."""

    def __init__(
        self, channels: Sequence[int], grid: tuple[int, int], bridge: int, outputs: Sequence[int], n_skip: int
    ):
        super().__init__()
        *maps, latent = channels
        self.n_skip = n_skip
        skips = [*reversed(maps)][:n_skip] + [0] * (len(outputs) - n_skip)
        sizes = [(grid[0] << step, grid[1] << step) for step in range(len(outputs))]
        self.bridge = _convolution(latent, bridge)
        self.blocks = nn.ModuleList(
            DecoderBlock(before + skip, after, size)
            for before, skip, after, size in zip([bridge, *outputs], skips, outputs, sizes, strict=False)
        )

    def forward(self, features: list[Tensor]) -> Tensor:
        """Return the last feature map, in the image's size."""
        *maps, latent = features
        skips = [*reversed(maps)][: self.n_skip]
        x: Tensor = self.bridge(latent)
        for step, block in enumerate(self.blocks):
            x = block(x, skips[step] if step < self.n_skip else None)
        return x


class DecoderBlock(nn.Module):
    """Upsampling, concatenation of the skip, two convolutions."""

    def __init__(self, inputs: int, outputs: int, size: tuple[int, int]):
        super().__init__()
        self.enlarge = Enlarge(size)
        self.conv1 = _convolution(inputs, outputs)
        self.conv2 = _convolution(outputs, outputs)

    def forward(self, x: Tensor, skip: Tensor | None) -> Tensor:
        """Return a map of twice the size."""
        enlarged: Tensor = self.conv2(self.conv1(self.joined(x, skip)))
        return enlarged

    def joined(self, x: Tensor, skip: Tensor | None) -> Tensor:
        """Return x in twice its size, with the skip connection."""
        x = self.enlarge(x)
        if skip is None:
            return x
        # In x's layout: from mixed ones torch.cat would make one that the convolutions convert back.
        return torch.cat([x, skip.contiguous(memory_format=torch.channels_last)], 1)


class Enlarge(nn.Module):
    """Bilinear upsampling to twice the size with aligned corners, as one matrix product for each axis."""

    rows: Tensor
    columns: Tensor

    def __init__(self, size: tuple[int, int]):
        super().__init__()
        self.register_buffer("rows", _linear_interpolation(size[0]), persistent=False)
        self.register_buffer("columns", _linear_interpolation(size[1]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C, 2h, 2w) from (B, C, h, w), both channels-last in memory."""
        x = x.permute(0, 2, 3, 1)
        x = self.columns.to(x.dtype) @ x
        x = (self.rows.to(x.dtype) @ x.flatten(2)).unflatten(2, x.shape[2:])
        return x.permute(0, 3, 1, 2)


def _linear_interpolation(size: int) -> Tensor:
    """Return the (2n, n) matrix of linear interpolation with aligned corners."""
    identity = torch.eye(size, dtype=torch.float64).unsqueeze(0)
    return F.interpolate(identity, 2 * size, mode="linear", align_corners=True)[0].T.float().contiguous()


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


def _resnet(in_channels: int, layers: Sequence[int], width: float) -> Any:
    """Return ResNet-50's stem and first three stages, weight-standardised, with group norms."""
    timm = library("timm.layers", "timm")
    cnn = library("timm.models.resnetv2", "timm").ResNetV2(
        layers,
        num_classes=0,
        global_pool="",
        in_chans=in_channels,
        preact=False,
        width_factor=width,
        conv_layer=partial(timm.StdConv2d, eps=1e-5),
        norm_layer=partial(timm.GroupNormAct, num_groups=32, eps=1e-6),
    )
    for stage in cnn.stages:
        shortcut = stage.blocks[0].downsample
        channels = shortcut.norm.num_channels
        shortcut.norm = timm.GroupNormAct(channels, num_groups=channels, eps=1e-5, apply_act=False)  # a group each
    return cnn


def _transformer_block(embed_dim: int, num_heads: int, mlp_ratio: float, dropout: float) -> Any:
    timm = library("timm.layers", "timm")
    block = library("timm.models.vision_transformer", "timm").Block(
        dim=embed_dim,
        num_heads=num_heads,
        mlp_ratio=mlp_ratio,
        qkv_bias=True,
        proj_drop=dropout,
        norm_layer=partial(timm.LayerNorm, eps=1e-6),
    )
    block.attn.proj_drop = nn.Identity()  # the original drops in the MLP only
    return block


def _check_options(
    image_size: tuple[int, int],
    cnn: bool,
    embed_dim: int,
    num_heads: int,
    layers: Sequence[int],
    decoder_channels: Sequence[int],
    n_skip: int,
) -> None:
    if min(image_size) < PATCH or any(side % PATCH for side in image_size):
        raise ConfigError(
            f"Expected an image size divisible by {PATCH} for TransUNet, but got {image_size[0]}×{image_size[1]}. "
            f"Choose the nearest multiple, such as {max(PATCH, round(image_size[0] / PATCH) * PATCH)}."
        )
    if not 0 <= n_skip <= (3 if cnn else 0):
        most = "0 to 3" if cnn else "0: without the CNN there are none"
        raise ConfigError(f"Expected n_skip from {most}, but got {n_skip}. Choose another number.")
    if embed_dim % num_heads:
        raise ConfigError(
            f"Expected embed_dim divisible by num_heads, but got {embed_dim} and {num_heads}. Change one of them."
        )
    if len(decoder_channels) != 4 or len(layers) != 3:
        raise ConfigError(
            "Expected four decoder_channels and three layers, "
            f"but got {tuple(decoder_channels)} and {tuple(layers)}. Give one number each."
        )
