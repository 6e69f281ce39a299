"""Networks whose label maps are known without them: a pixel's class depends on its intensity alone."""

import time

import torch
from torch import nn


class Threshold(nn.Module):
    """Gives each pixel the class whose centre is nearest; centres are spread over [0, 1]."""

    def __init__(self, num_classes, slope):
        super().__init__()
        self.encoder = nn.Identity()
        self.register_buffer("centres", torch.linspace(0, 1, num_classes).view(-1, 1, 1))
        self.register_buffer("slope", torch.tensor(float(slope)))

    def forward(self, x):
        return -self.slope * (self.encoder(x).mean(1, keepdim=True) - self.centres) ** 2


def threshold(num_classes, in_channels, image_size, slope=50.0):
    """By the name `tests.networks.threshold_network:threshold`."""
    return Threshold(num_classes, slope), "encoder"


class Ramp(nn.Module):
    """A convolution, and classes that follow one another across the image: flips change what it gives."""

    def __init__(self, num_classes, in_channels):
        super().__init__()
        self.encoder = nn.Conv2d(in_channels, num_classes, 3, padding=1)

    def forward(self, x):
        ramp = torch.linspace(-2, 2, x.shape[3]) + torch.linspace(-1, 1, x.shape[2])[:, None]
        logits = self.encoder(x)
        return logits + torch.linspace(-1, 1, logits.shape[1]).view(-1, 1, 1) * ramp


def ramp(num_classes, in_channels, image_size):
    """By the name `tests.networks.threshold_network:ramp`."""
    return Ramp(num_classes, in_channels), "encoder"


class Slow(Threshold):
    """Takes its time, as a large network on a large scan does."""

    def forward(self, x):
        time.sleep(0.3)
        return super().forward(x)


def slow(num_classes, in_channels, image_size):
    """By the name `tests.networks.threshold_network:slow`."""
    return Slow(num_classes, 50.0), "encoder"


class Broken(Threshold):
    """Gives NaN."""

    def forward(self, x):
        return super().forward(x) * float("nan")


def broken(num_classes, in_channels, image_size):
    """By the name `tests.networks.threshold_network:broken`."""
    return Broken(num_classes, 1.0), "encoder"


class Texture(nn.Module):
    """Two convolutions whose classes follow the texture: rounding and flips change what it gives."""

    def __init__(self, num_classes, in_channels):
        super().__init__()
        self.encoder = nn.Conv2d(in_channels, 16, 3, padding=1)
        self.decoder = nn.Conv2d(16, num_classes, 3, padding=1)

    def forward(self, x):
        logits = self.decoder(self.encoder(x).relu())
        return logits - logits.mean((2, 3), keepdim=True)  # so that every class is somewhere the largest


def texture(num_classes, in_channels, image_size):
    """By the name `tests.networks.threshold_network:texture`."""
    return Texture(num_classes, in_channels), "encoder"
