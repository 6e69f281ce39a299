"""A network that a core trains in moments, and its factory for `adawac.models.build`."""

from torch import nn


class Small(nn.Module):
    """An encoder and a decoder with GroupNorm and dropout."""

    def __init__(self, num_classes: int, in_channels: int, width: int = 16):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(in_channels, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, width, 3, 2, 1), nn.ReLU()
        )
        self.dropout = nn.Dropout(0.1)
        self.decoder = nn.Sequential(
            nn.Upsample(scale_factor=4, mode="bilinear"), nn.Conv2d(width, num_classes, 3, 1, 1)
        )

    def forward(self, x):
        return self.decoder(self.dropout(self.encoder(x)))


def small(num_classes, in_channels, image_size, dropout=0.1, width=16):
    """By the name `tests.networks.small_network:small`."""
    network = Small(num_classes, in_channels, width)
    network.dropout.p = dropout
    return network, "encoder"
