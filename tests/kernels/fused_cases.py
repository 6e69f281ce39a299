"""Norms to compare with torch's, on any device; run as a script, it computes them all in Triton's interpreter.

    TRITON_INTERPRET=1 python -m tests.kernels.fused_cases RESULTS

The interpreter must be chosen before Triton is imported, so it has a process of its own.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

EPS, MOMENTUM = 1e-3, 0.3


@dataclass(frozen=True)
class Case:
    """A norm; groups=0 is a batch norm. `programs` is how many share a reduction, `offset` the input's mean."""

    shape: tuple[int, int, int, int]
    groups: int
    relu: bool = False
    residual: bool = False
    dtype: torch.dtype = torch.float32
    programs: int = 264
    offset: float = 0.0

    def __str__(self):
        size = "×".join(map(str, self.shape))
        flags = "".join(f" {name}" for name in ("relu", "residual") if getattr(self, name))
        kind = f"group norm {self.groups}" if self.groups else "batch norm"
        rest = f" programs={self.programs}" * (self.programs < 264) + f" offset={self.offset}" * bool(self.offset)
        return f"{kind} {size} {str(self.dtype)[6:]}{flags}{rest}"


HOW = [(False, False), (True, False), (True, True), (False, True)]
CASES = [
    *(Case((2, 6, 5, 7), groups, *how) for groups in (0, 3) for how in HOW),
    *(
        Case((2, 6, 5, 7), groups, *how, dtype)
        for groups in (0, 2)
        for how in HOW[1:3]
        for dtype in (torch.bfloat16, torch.float16)
    ),
    *(Case((2, 70, 3, 5), groups, True) for groups in (0, 1, 7, 70)),  # two blocks of columns, the second not full
    Case((1, 13, 1, 1), 1, True),  # one row
    Case((2, 6, 1, 1), 2),
    Case((2, 5, 1, 1), 0),  # two rows are the least that a batch norm takes
    Case((3, 1, 4, 4), 1, True),  # one channel
    Case((3, 1, 4, 4), 0, True),
    Case((2, 8, 1, 13), 1),  # a prime number of rows
    Case((2, 3, 33, 37), 3, True, True),  # two chunks for each sample
    Case((4, 16, 17, 19), 0, True, True),  # six chunks
    Case((4, 16, 17, 19), 0, True, True, programs=2),  # several tiles to a chunk, the last not full
    Case((4, 64, 9, 11), 32, True, True, programs=2),
    Case((4, 64, 9, 11), 0, offset=1000.0),  # the sum of squares minus the square of the sum would be noise here
    Case((2, 8, 9, 11), 2, offset=1000.0),
    *(Case((2, 128, 3, 5), groups, True, groups > 8) for groups in (2, 4, 8, 16, 32, 64, 128)),  # 64 columns to 1
    Case((2, 200, 3, 5), 1, True),  # a group of more columns than a block has elsewhere
    Case((70, 64, 2, 2), 32, True),  # more samples than rows of a tile
]


def inputs(case, device="cpu"):
    """Input, weight, bias, residual, running statistics and the output's gradient, the same every time.

    The gradient is zero where the ReLU's input almost is: there rounding decides, and either side is right.
    """
    generator = torch.Generator().manual_seed(hash(case.shape) % 1000 + case.groups)
    draw = lambda *size: torch.randn(size, generator=generator).to(device)  # noqa: E731
    maps = [(draw(*case.shape) + offset).to(case.dtype) for offset in (case.offset, 0.0, 0.0)]
    x, residual, gradient = (tensor.contiguous(memory_format=torch.channels_last) for tensor in maps)
    channels = case.shape[1]
    weight, bias, running = draw(channels), draw(channels), (draw(channels), draw(channels).abs())
    z = before_relu(case, *(tensor.double() for tensor in (x, weight, bias, residual)), (None, None))
    gradient = torch.where(z.abs() < 1e-3, 0, gradient) if case.relu else gradient
    return x, weight, bias, residual, running, gradient


def before_relu(case, x, weight, bias, residual, running):
    if case.groups:
        y = F.group_norm(x, case.groups, weight, bias, EPS)
    else:
        y = F.batch_norm(x, *running, weight, bias, True, MOMENTUM, EPS)
    return y + residual if case.residual else y


def expected(case, device="cpu"):
    """What torch gives, in float64: output, gradients of input, weight, bias and residual, running statistics."""
    x, weight, bias, residual, running, gradient = inputs(case, device)
    x, weight, bias, residual, gradient = (tensor.double() for tensor in (x, weight, bias, residual, gradient))
    running = [tensor.double() for tensor in running]
    for tensor in (x, weight, bias, residual):
        tensor.requires_grad_()
    y = before_relu(case, x, weight, bias, residual, running)
    y = F.relu(y) if case.relu else y
    wanted = (x, weight, bias, *([residual] if case.residual else []))
    results = [y.detach(), *torch.autograd.grad(y, wanted, gradient), *([] if case.groups else running)]
    return [tensor.cpu() for tensor in results]


def computed(case, device="cpu"):
    """What our kernels give, in the same order; the number of batches comes last."""
    from adawac.kernels import norms
    from adawac.kernels.norms import normalise

    norms.PROGRAMS = case.programs
    norms._plan.cache_clear()
    x, weight, bias, residual, (mean, var), gradient = inputs(case, device)
    batches = torch.tensor(5, device=device)
    for tensor in (x, weight, bias, residual):
        tensor.requires_grad_()
    options = {"residual": residual if case.residual else None, "relu": case.relu}
    if case.groups:
        y = normalise(x, weight, bias, samples=len(x), groups=case.groups, eps=EPS, **options)
    else:
        follow = norms.Running(mean, var, batches, MOMENTUM)
        y = normalise(x, weight, bias, samples=1, groups=x.shape[1], eps=EPS, running=follow, **options)
    wanted = (x, weight, bias, *([residual] if case.residual else []))
    results = [y.detach(), *torch.autograd.grad(y, wanted, gradient), *([] if case.groups else [mean, var, batches])]
    norms.PROGRAMS = 264
    norms._plan.cache_clear()
    return [tensor.cpu() for tensor in results]


def blocks():
    """Small blocks of every kind that is fused, by name."""
    from adawac.lazy import quietly

    with quietly():
        from segmentation_models_pytorch.base.modules import Conv2dReLU
        from timm.layers import GroupNormAct
        from timm.models import resnet as timm
        from timm.models import resnetv2 as timm_v2
        from torchvision.models import resnet as torchvision

    torch.manual_seed(0)
    down = lambda outputs: nn.Sequential(nn.Conv2d(8, outputs, 1, 2, bias=False), nn.BatchNorm2d(outputs))  # noqa: E731
    norm = lambda channels, **options: GroupNormAct(channels, num_groups=4, **options)  # noqa: E731
    return {
        "sequential": nn.Sequential(nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.GroupNorm(2, 6)),
        "smp Conv2dReLU": Conv2dReLU(8, 6, 3),
        "torchvision BasicBlock": torchvision.BasicBlock(8, 8),
        "torchvision BasicBlock, stride": torchvision.BasicBlock(8, 6, 2, down(6)),
        "torchvision Bottleneck": torchvision.Bottleneck(8, 4, 2, down(16)),
        "timm BasicBlock": timm.BasicBlock(8, 6, 2, down(6)),
        "timm Bottleneck": timm.Bottleneck(8, 2),
        "timm v2 Bottleneck": timm_v2.Bottleneck(8, 16, stride=2, norm_layer=norm, proj_layer=timm_v2.DownsampleConv),
    }


def pass_through(block):
    """Output, gradients and buffers after a training step's forward and backward."""
    block = block.to(memory_format=torch.channels_last).train()
    x = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(1)).to(memory_format=torch.channels_last)
    x.requires_grad_()
    y = block(x)
    gradient = torch.randn(y.shape, generator=torch.Generator().manual_seed(2))
    gradients = torch.autograd.grad(y, (x, *block.parameters()), gradient)
    return [y.detach(), *gradients, *block.buffers()]


def main():
    """Compute everything and save it; count what the kernels were asked for."""
    from adawac.kernels import fuse
    from adawac.kernels import norms as module

    torch.set_num_threads(1)
    results = {"cases": {str(case): computed(case) for case in CASES}, "blocks": {}, "calls": {}}
    assert module.works(torch.device("cpu"))
    original = module._Normalise.apply
    for name, block in blocks().items():
        calls = []

        def counted(x, weight, bias, residual, samples, groups, eps, relu, running, calls=calls):
            calls.append((relu, residual is not None))
            return original(x, weight, bias, residual, samples, groups, eps, relu, running)

        module._Normalise.apply = counted
        fuse(block)
        results["blocks"][name], results["calls"][name] = pass_through(block), calls
    results["counters"] = list(module._COUNTERS.values())
    torch.save(results, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
