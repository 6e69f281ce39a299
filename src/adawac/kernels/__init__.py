"""Triton kernels for networks, losses and views on a GPU. Nothing else imports Triton."""

from torch import nn

from adawac.kernels.norms import works


def fuse(network: nn.Module) -> int:
    """Let a network use the kernels of this package, and return how many of its norms do.

    Batch and group norms, and the blocks that this package knows, take on another class; parameters, names, hooks
    and state dict stay as they are, and numbers change by rounding only. Each call decides by its input: kernels for
    channels-last activations on a GPU (batch norms: in training), torch's own functions for anything else. Where
    Triton does not work on the network's GPU, nothing is done.
    """
    from adawac.kernels.blocks import BLOCKS, NORMS

    devices = {parameter.device for parameter in network.parameters() if parameter.is_cuda}
    if not all(works(device) for device in devices):
        return 0
    modules = list(network.modules())
    norms = [module for module in modules if type(module) in NORMS]
    for norm in norms:
        norm.__class__ = NORMS[type(norm)]
    for block in modules:
        fused, possible = BLOCKS.get(type(block), (None, None))
        if fused is not None and possible is not None and possible(block):
            block.__class__ = fused
    return len(norms)
