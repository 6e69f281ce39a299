"""A tiny network and data set, and the plain PyTorch loop that integrations are measured against."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import adawac
from adawac.data.views import PairDataset

NUM_SAMPLES = 8


def network() -> nn.Module:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.GroupNorm(2, 4), nn.ReLU())
    decoder = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(4, 3, 3, 1, 1))
    return nn.Sequential(encoder, decoder)


def scans() -> list[tuple[Tensor, Tensor]]:
    """Images and labels; those in even rows carry no label."""
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(1, 8, 8, generator=generator), torch.randint(0, 3, (8, 8), generator=generator) * (row % 2))
        for row in range(NUM_SAMPLES)
    ]


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def plain_loop(
    epochs: int,
    *,
    accumulate: int = 1,
    autocast: torch.dtype = torch.float32,
    hold: int = 0,
    device: str = "cpu",
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Train by hand; return beta, and what each sample went through in every epoch, both on the CPU."""
    model, criterion = wrap(network().to(device)), adawac.AdaWAC(NUM_SAMPLES).to(device)
    tap, optimizer = adawac.EncoderTap(model, "0"), optimizer_of(model)
    scaler = torch.amp.GradScaler(device, enabled=autocast is torch.float16)
    pairs = PairDataset(scans(), seed=1)
    history = []
    for epoch in range(epochs):
        pairs.set_epoch(epoch)
        criterion.train(epoch >= hold)
        seen = {name: torch.full((NUM_SAMPLES,), torch.nan) for name in ("ell_ce", "ell_dice", "reg_ac", "beta")}
        for number, batch in enumerate(DataLoader(pairs, batch_size=4), 1):
            images, labels = (torch.cat(batch[name]).to(device) for name in ("images", "labels"))
            with torch.autocast(device, autocast, enabled=autocast is not torch.float32):
                step = criterion(model(images), labels, tap.pop(), batch["index"].to(device))
            scaler.scale(step.loss / accumulate).backward()
            if number % accumulate == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            for name, values in seen.items():
                values[batch["index"]] = getattr(step, name).float().cpu()
        history.append(seen)
    return criterion.weights.beta.cpu(), history
