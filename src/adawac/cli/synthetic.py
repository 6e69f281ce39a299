"""Drawn losses through the real weights: what `adawac demo` shows until there is training to show."""

from typing import Any

from adawac.errors import ConfigError

__all__ = ["separate"]


def separate(
    *, epochs: int = 30, seed: int = 0, num_samples: int = 200, batch: int = 24, eta_beta: float = 1.0
) -> dict[str, Any]:
    """Draw losses of label-sparse and label-dense samples, and let the weights of Algorithm 1 follow them.

    Args:
        epochs: Passes over the samples.
        seed: Draws the samples, their losses and their order.
        num_samples: n; every other sample is label-sparse.
        batch: Samples in a step.
        eta_beta: Step size of the weights.

    Returns:
        The mean of `beta`, `ell_ce` and `reg_ac` after each epoch for each group, and the share of samples whose weight
        ends on its group's side of one half.
    """
    import torch

    from adawac.algorithm import SampleWeights

    if epochs < 1:
        raise ConfigError(f"Expected at least 1 epoch, but got {epochs}. Raise --epochs.")
    generator = torch.Generator().manual_seed(seed)

    def draw(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(num_samples, generator=generator)

    dense = torch.arange(num_samples) % 2 == 1
    start = draw(1.2, 1.8)
    floor = torch.where(dense, draw(0.3, 0.6), 0.01)  # organs' borders stay hard
    pace = torch.where(dense, draw(5, 10), draw(0.5, 1.5))
    weights = SampleWeights(num_samples)
    groups: dict[str, dict[str, list[float]]] = {name: {} for name in ("label_sparse", "label_dense")}
    for epoch in range(epochs):
        noise = torch.randn(2, num_samples, generator=generator).mul(0.15).exp()
        ell_ce = (floor + (start - floor) * (-epoch / pace).exp()) * noise[0]
        reg_ac = 0.2 * noise[1]
        for index in torch.split(torch.randperm(num_samples, generator=generator), batch):
            weights.ascend(index, ell_ce[index], reg_ac[index], eta_beta)
        for name, members in (("label_sparse", ~dense), ("label_dense", dense)):
            for field, values in (("beta", weights.beta), ("ell_ce", ell_ce), ("reg_ac", reg_ac)):
                groups[name].setdefault(field, []).append(float(values[members].mean()))
    separated = float(((weights.beta > 0.5) == dense).float().mean())
    return {"samples": num_samples, "eta_beta": eta_beta, "network_trained": False, "separated": separated, **groups}
