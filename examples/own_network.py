"""A network of one's own, trained by adawac: a function that returns the network and the layer that is compared.

Run it:  python examples/own_network.py  (ten epochs; another number may follow)

The command line takes it by the same name, where Python finds this file:
PYTHONPATH=examples adawac train STORE --model own_network:small_unet --set model.options.width=24 --out RUN
"""

import sys
import tempfile

import torch
from torch import nn

import adawac
from adawac.config import DataConfig, MethodConfig, ModelConfig, OptimConfig, TrainConfig
from adawac.data.phantom import phantom_source

EPOCHS = int(sys.argv[1]) if sys.argv[1:] else 10


def block(channels: int, width: int) -> nn.Sequential:
    """Return two convolutions."""
    first = [nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU()]
    return nn.Sequential(*first, nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU())


class SmallUNet(nn.Module):
    """Three levels, and a skip connection between each two."""

    def __init__(self, num_classes: int, in_channels: int, width: int):
        super().__init__()
        self.level1, self.level2 = block(in_channels, width), block(width, 2 * width)
        self.bottleneck = block(2 * width, 4 * width)
        self.decoder2, self.decoder1 = block(6 * width, 2 * width), block(3 * width, width)
        self.pool, self.up, self.head = nn.MaxPool2d(2), nn.Upsample(scale_factor=2), nn.Conv2d(width, num_classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of each pixel."""
        fine = self.level1(x)
        middle = self.level2(self.pool(fine))
        latent = self.bottleneck(self.pool(middle))
        middle = self.decoder2(torch.cat([self.up(latent), middle], 1))
        return self.head(self.decoder1(torch.cat([self.up(middle), fine], 1)))


def small_unet(num_classes: int, in_channels: int, width: int = 16):
    """Return the network, and the name of the submodule whose output is compared between two views."""
    return SmallUNet(num_classes, in_channels, width), "bottleneck"


if __name__ == "__main__":
    folder = tempfile.mkdtemp(prefix="adawac-network-")
    store = adawac.prepare(phantom_source(13, size=32, slices=(16, 16), sparse=0.5), dest=f"{folder}/store", workers=1)
    config = TrainConfig(
        data=DataConfig(store=store.path, image_size=(32, 32), batch_size=8),
        model=ModelConfig(name="own_network:small_unet", options={"width": 24}),
        method=MethodConfig(name="adawac", preset="robust", hold_epochs=EPOCHS // 4),
        optim=OptimConfig(optimizer="adamw", lr=3e-3),
        epochs=EPOCHS,
    )
    run = adawac.fit(config, f"{folder}/run")
    for epoch in run.metrics:
        sparse, dense = epoch["beta_sparse"], epoch["beta_dense"]
        print(f"epoch {epoch['epoch']:2}: β label-sparse {sparse:.2f}, label-dense {dense:.2f}")
    (evaluation,) = adawac.evaluate(run, metrics=["dice"])
    print(evaluation)  # its `summaries` have each class
