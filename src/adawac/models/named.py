"""The networks that have a name of their own."""

from typing import Any

from adawac.models.base import MODELS, Built, Size
from adawac.models.families import smp_network
from adawac.models.transunet import TransUNet

__all__ = ["MODELS"]


@MODELS.register("unet")
def unet(num_classes: int, in_channels: int, image_size: Size, **options: Any) -> Built:
    """The paper's UNet, with a ResNet-34 as encoder: short for smp:Unet/resnet34."""
    return smp_network("Unet/resnet34", num_classes, in_channels, image_size, **options)


@MODELS.register("transunet")
def transunet(num_classes: int, in_channels: int, image_size: Size, **options: Any) -> Built:
    """The paper's TransUNet, R50-ViT-B/16."""
    return _built(TransUNet(num_classes, in_channels, image_size, **options), "R50+ViT-B_16.npz")


@MODELS.register("transunet-vit")
def transunet_vit(num_classes: int, in_channels: int, image_size: Size, **options: Any) -> Built:
    """TransUNet on ViT-B/16 alone: no CNN, no skip connections."""
    return _built(TransUNet(num_classes, in_channels, image_size, cnn=False, **options), "ViT-B_16.npz")


@MODELS.register("transunet-small")
def transunet_small(num_classes: int, in_channels: int, image_size: Size, **options: Any) -> Built:
    """TransUNet for a laptop: narrower and shallower throughout."""
    small: dict[str, Any] = {
        "embed_dim": 192,
        "depth": 4,
        "num_heads": 3,
        "layers": (1, 2, 3),
        "width": 0.5,
        "bridge": 128,
        "decoder_channels": (96, 64, 32, 16),
    }
    return _built(TransUNet(num_classes, in_channels, image_size, **small | options), "")


def _built(network: TransUNet, imagenet: str) -> Built:
    return Built(network=network, tap="encoder", encoder="encoder", imagenet=imagenet)
