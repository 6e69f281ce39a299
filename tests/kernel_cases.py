"""Kernels on pixels to compare with torch's functions; run as a script, it computes them in Triton's interpreter.

    TRITON_INTERPRET=1 python tests/kernel_cases.py RESULTS

The interpreter must be chosen before Triton is imported, so it has a process of its own.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

HALF = torch.float16  # the interpreter multiplies no bf16 matrices
LAST = torch.channels_last


def draw(*size, seed=0, dtype=torch.float32, device="cpu"):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def enlarge(device, ours, images, channels, height, width, skipped, bilinear, dtype=torch.float32):
    x = draw(images, channels, height, width, dtype=dtype, device=device).to(memory_format=LAST).requires_grad_()
    skip = draw(images, skipped, 2 * height, 2 * width, seed=1, dtype=dtype, device=device).to(memory_format=LAST)
    skip = skip.requires_grad_() if skipped else None
    gradient = draw(images, channels + skipped, 2 * height, 2 * width, seed=2, dtype=dtype, device=device)
    if ours:
        from adawac.models.fused.enlarge import can_enlarge
        from adawac.models.fused.enlarge import enlarge as function

        assert can_enlarge(x, (2 * height, 2 * width), skip)
        y = function(x, skip, bilinear=bilinear)
        assert y.is_contiguous(memory_format=LAST)
    else:
        mode = {"mode": "bilinear", "align_corners": True} if bilinear else {"mode": "nearest"}
        up = F.interpolate(x.double(), scale_factor=2, **mode)
        y = up if skip is None else torch.cat([up, skip.double()], 1)
    wanted = [x] if skip is None else [x, skip]
    return [y, *torch.autograd.grad(y, wanted, gradient.to(y.dtype))]


def pool(device, ours, images, channels, height, width, padding, ceil_mode, dtype=torch.float32):
    x = draw(images, channels, height, width, dtype=dtype, device=device).round(decimals=1)  # many are equal
    x = x.to(memory_format=LAST).requires_grad_()
    if ours:
        from adawac.models.fused.pool import MaxPool2d

        module = MaxPool2d(3, 2, padding, ceil_mode=ceil_mode)
        assert module.fits(x)
        y = module(x)
    else:
        y = F.max_pool2d(x.double(), 3, 2, padding, ceil_mode=ceil_mode)
    gradient = draw(*y.shape, seed=1, dtype=dtype, device=device)
    return [y, *torch.autograd.grad(y, [x], gradient.to(y.dtype))]


def convolve(device, ours, images, inputs, outputs, height, width, bias, dtype=HALF):
    from adawac.models.fused import conv

    module = conv.Conv2d(inputs, outputs, 3, padding=1, bias=bias).to(device)
    for seed, parameter in enumerate(module.parameters()):
        parameter.data = draw(*parameter.shape, seed=seed + 5, device=device).to(dtype).float() / 4
    x = draw(images, inputs, height, width, dtype=dtype, device=device).to(memory_format=LAST).requires_grad_()
    if ours:
        conv.PIXELS = 1
        assert module.fits(x)
        y = module(x)
    else:
        b = module.bias.double() if bias else None
        y = F.conv2d(x.double(), module.weight.double(), b, padding=1)
    gradient = draw(*y.shape, seed=1, dtype=dtype, device=device)
    return [y, *torch.autograd.grad(y, [x, *module.parameters()], gradient.to(y.dtype))]


def sums(device, ours, images, classes, pixels, last, squared, ignore, dtype=torch.float32):
    from adawac import losses
    from adawac.pixel_sums import can_sum

    logits = draw(images, pixels, classes, dtype=dtype, device=device).transpose(1, 2)
    logits = (logits if last else logits.contiguous()).detach().requires_grad_()
    labels = torch.randint(0, classes, (images, pixels), generator=torch.Generator().manual_seed(3)).to(device)
    if ignore is not None:
        labels[:, ::3] = ignore
        labels[-1] = ignore  # nothing is left of this one
    denominator = "squared" if squared else "l1"
    if ours:
        assert can_sum(logits, labels)
        found = losses.pixel_sums(logits, labels, denominator=denominator, ignore_index=ignore)
    else:
        found = losses._pixel_sums_by_torch(logits.double(), labels, denominator, ignore)
    loss = (found.ell_ce * torch.arange(1, images + 1, device=device)).sum() + losses.dice_of(*found[1:], 1e-5).sum()
    return [*found, *torch.autograd.grad(loss, [logits])]


def warp(device, ours, channels, sizes, size, kind):
    from adawac.data import resample

    generator = torch.Generator().manual_seed(4)
    maps = torch.randn((len(sizes), 2, 3), generator=generator) / 2
    if kind == "turns":  # these only permute pixels: bit for bit
        maps[:, :, :2] = torch.tensor([[[1, 0], [0, 1]], [[0, -1], [1, 0]], [[-1, 0], [0, 1]]])
        maps[:, :, 2] = 0
    images = [draw(channels, *one, seed=place).numpy() for place, one in enumerate(sizes)]
    labels = [torch.randint(0, 9, (1, *one), generator=generator).byte().numpy() for one in sizes]
    images, labels = (resample.Ragged.from_arrays(one).to(device) for one in (images, labels))
    maps = maps.to(device)
    if ours:
        assert resample._fits(images, labels, maps, "bilinear")
        return resample.warp(images, labels, maps, size)
    return [one.double() for one in resample._warp(images, labels, maps.double(), size, "bilinear")]


def normalise(device, ours, images, tokens, channels, added, passed, dtype=torch.float32):
    from adawac.models.fused import tokens as module

    norm = torch.nn.LayerNorm(channels, eps=1e-3).to(device)
    for seed, parameter in enumerate(norm.parameters()):
        parameter.data = draw(channels, seed=seed + 5, device=device)
    x = draw(images, tokens, channels, device=device).add(3).requires_grad_()
    branch = draw(images, tokens, channels, seed=1, dtype=dtype, device=device).requires_grad_() if added else None
    if ours:
        assert module.can_normalise(x, norm)
        total, y = module.add_and_normalise(x, branch, norm)
    else:
        total = x.double() if branch is None else x.double() + branch.double()
        y = F.layer_norm(total, (channels,), norm.weight.double(), norm.bias.double(), norm.eps)
    gradients = [draw(*y.shape, seed=seed, device=device).to(y.dtype) for seed in (2, 3)]
    outputs = [(total, gradients[0]), (y, gradients[1])] if passed else [(y, gradients[1])]
    wanted = [x, *([branch] if added else []), *norm.parameters()]
    return [total, y, *torch.autograd.grad([one for one, _ in outputs], wanted, [one for _, one in outputs])]


def gelu(device, ours, elements, dtype=torch.float32):
    x = (draw(elements, dtype=dtype, device=device) * 3).requires_grad_()
    if ours:
        from adawac.models.fused.tokens import gelu_and_drop

        y = gelu_and_drop(x, 0.0)
    else:
        y = F.gelu(x.double())
    return [y, *torch.autograd.grad(y, [x], draw(elements, seed=1, dtype=dtype, device=device).to(y.dtype))]


CASES = {
    "layer norm": (normalise, 2, 5, 48, False, False),
    "layer norm of what passes by": (normalise, 1, 700, 8, False, True),
    "add and layer norm": (normalise, 2, 5, 70, True, True),
    "add half precision and layer norm": (normalise, 1, 7, 16, True, True, HALF),
    "gelu": (gelu, 5000),
    "gelu in half precision": (gelu, 2049, HALF),
    "warp": (warp, 1, [(9, 7), (8, 8), (1, 5), (4, 1)], (8, 8), "any"),
    "warp several channels": (warp, 3, [(30, 26), (12, 20)], (33, 21), "any"),
    "warp by quarter turns and flips": (warp, 1, [(8, 8)] * 3, (8, 8), "turns"),
    "repeat": (enlarge, 2, 6, 5, 7, 4, False),
    "repeat without a skip connection": (enlarge, 2, 16, 4, 3, 0, False),
    "repeat, several blocks of channels": (enlarge, 1, 70, 3, 2, 130, False, HALF),
    "interpolate": (enlarge, 2, 6, 5, 7, 4, True),
    "interpolate two pixels": (enlarge, 1, 3, 2, 2, 1, True),
    "interpolate three pixels": (enlarge, 1, 70, 3, 4, 2, True),
    "interpolate without a skip connection": (enlarge, 1, 8, 14, 28, 0, True, HALF),
    "pool": (pool, 2, 6, 8, 8, 1, False),
    "pool without padding": (pool, 2, 70, 9, 7, 0, False),
    "pool, the last window not full": (pool, 2, 6, 8, 10, 0, True),
    "pool, padded, the last window not full": (pool, 1, 3, 9, 8, 1, True, HALF),
    "convolve": (convolve, 2, 16, 16, 9, 11, False),
    "convolve with a bias": (convolve, 2, 16, 4, 9, 11, True),
    "convolve odd numbers of channels": (convolve, 1, 20, 3, 13, 12, True),
    "convolve many pixels": (convolve, 1, 32, 16, 40, 50, False),
    "sums": (sums, 2, 4, 37, False, False, None),
    "sums, channels last": (sums, 3, 9, 300, True, False, None),
    "sums of squares": (sums, 2, 9, 300, False, True, None),
    "sums, some ignored": (sums, 3, 4, 1000, True, False, 255),
    "sums of squares, some ignored": (sums, 3, 5, 700, False, True, 2),
    "sums in half precision": (sums, 2, 14, 5000, True, False, None, HALF),
}


def computed(name, device="cpu", ours=True):
    function, *arguments = CASES[name]
    return [one.detach().cpu() for one in function(device, ours, *arguments)]


def dropout(elements=20000, rate=0.3):
    from adawac.models.fused.tokens import gelu_and_drop

    torch.manual_seed(0)
    x = draw(elements).abs().add(0.1).requires_grad_()
    y, again = gelu_and_drop(x, rate), gelu_and_drop(x, rate)
    (gradient,) = torch.autograd.grad(y.sum(), [x])
    return {"x": x.detach(), "y": y.detach(), "again": again.detach(), "gradient": gradient}


def main():
    torch.set_num_threads(1)
    torch.save({**{name: computed(name) for name in CASES}, "dropout": dropout()}, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
