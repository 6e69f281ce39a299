"""Kernels on pixels to compare with torch's functions; run as a script, it computes them in Triton's interpreter.

    TRITON_INTERPRET=1 python -m tests.kernels.kernel_cases RESULTS

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
        from adawac.kernels.pixels import can_enlarge
        from adawac.kernels.pixels import enlarge as function

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
        from adawac.kernels.pixels import MaxPool2d

        module = MaxPool2d(3, 2, padding, ceil_mode=ceil_mode)
        assert module.fits(x)
        y = module(x)
    else:
        y = F.max_pool2d(x.double(), 3, 2, padding, ceil_mode=ceil_mode)
    gradient = draw(*y.shape, seed=1, dtype=dtype, device=device)
    return [y, *torch.autograd.grad(y, [x], gradient.to(y.dtype))]


def convolve(device, ours, images, inputs, outputs, height, width, bias, dtype=HALF):
    from adawac.kernels import convolutions

    module = convolutions.Conv2d(inputs, outputs, 3, padding=1, bias=bias).to(device)
    for seed, parameter in enumerate(module.parameters()):
        parameter.data = draw(*parameter.shape, seed=seed + 5, device=device).to(dtype).float() / 4
    x = draw(images, inputs, height, width, dtype=dtype, device=device).to(memory_format=LAST).requires_grad_()
    if ours:
        convolutions.PIXELS, convolutions.INPUTS, convolutions.OUTPUTS = 1, 128, 64  # all that the kernels can
        assert module.fits(x)
        y = module(x)
    else:
        b = module.bias.double() if bias else None
        y = F.conv2d(x.double(), module.weight.double(), b, padding=1)
    gradient = draw(*y.shape, seed=1, dtype=dtype, device=device)
    return [y, *torch.autograd.grad(y, [x, *module.parameters()], gradient.to(y.dtype))]


def stem(device, ours, images, outputs, height, width, bias, kernel=7, stride=2, padding=3, dtype=HALF):
    from adawac.kernels import convolutions
    from adawac.kernels import convolutions as kernels

    module = convolutions.Conv2d(1, outputs, kernel, stride, padding, bias=bias).to(device)
    for seed, parameter in enumerate(module.parameters()):
        parameter.data = draw(*parameter.shape, seed=seed + 5, device=device).to(HALF).float() / 4
    x = draw(images, 1, height, width, device=device).to(HALF).to(dtype)
    with torch.autocast(device, HALF, enabled=ours and dtype != HALF):
        if ours:
            kernels.PIXELS = 1
            assert kernels.can_convolve_gray(x, module)
            y = module(x)
            assert y.dtype == HALF
            assert y.is_contiguous(memory_format=LAST)
        else:
            b = module.bias.double() if bias else None
            y = F.conv2d(x.double(), module.weight.double(), b, stride, padding)
    gradient = draw(*y.shape, seed=1, dtype=HALF, device=device)
    return [y, *torch.autograd.grad(y, [*module.parameters()], gradient.to(y.dtype))]


def sums(device, ours, images, classes, pixels, last, squared, ignore, dtype=torch.float32):
    from adawac import losses
    from adawac.kernels.pixels import can_sum

    logits = draw(images, pixels, classes, dtype=dtype, device=device).transpose(1, 2)
    logits = (logits if last else logits.contiguous()).detach().requires_grad_()
    labels = torch.randint(0, classes, (images, pixels), generator=torch.Generator().manual_seed(3)).to(device)
    if ignore is not None:
        labels[:, ::3] = ignore
        labels[-1] = ignore  # nothing is left of this one
    denominator = "squared" if squared else "l1"
    if ours:
        assert can_sum(logits, labels)
        sums = losses.pixel_sums(logits, labels, denominator=denominator, ignore_index=ignore)
    else:
        sums = losses._pixel_sums_by_torch(logits.double(), labels, denominator, ignore)
    loss = (sums.ell_ce * torch.arange(1, images + 1, device=device)).sum() + losses.dice_of(*sums[1:], 1e-5).sum()
    return [*sums, *torch.autograd.grad(loss, [logits])]


def warp(device, ours, channels, sizes, size, kind):
    from adawac.data import resample
    from adawac.kernels.pixels import can_warp

    generator = torch.Generator().manual_seed(4)
    maps = torch.randn((len(sizes), 2, 3), generator=generator) / 2
    if kind == "turns":  # these only permute pixels: bit for bit
        maps[:, :, :2] = torch.tensor([[[1, 0], [0, 1]], [[0, -1], [1, 0]], [[-1, 0], [0, 1]]])
        maps[:, :, 2] = 0
    images = [draw(channels, *shape, seed=seed).numpy() for seed, shape in enumerate(sizes)]
    labels = [torch.randint(0, 9, (1, *shape), generator=generator).byte().numpy() for shape in sizes]
    images, labels = (resample.Ragged.from_arrays(arrays).to(device) for arrays in (images, labels))
    maps = maps.to(device)
    if ours:
        assert can_warp(images.buffer, labels.buffer, images.shapes, maps, channels)
        return resample.warp(images, labels, maps, size)
    return [tensor.double() for tensor in resample._warp(images, labels, maps.double(), size, "bilinear")]


def biased(value, bias):
    """Return a value that a bias was added to before, as the autograd of torch needs it."""
    return value.double() + bias.double() - bias.double().detach()


def normalise(device, ours, images, tokens, channels, added, passed, dtype=torch.float32):
    from adawac.kernels import tokens as module

    norm = torch.nn.LayerNorm(channels, eps=1e-3).to(device)
    for seed, parameter in enumerate(norm.parameters()):
        parameter.data = draw(channels, seed=seed + 5, device=device)
    x = draw(images, tokens, channels, device=device).add(3).requires_grad_()
    branch = draw(images, tokens, channels, seed=1, dtype=dtype, device=device).requires_grad_() if added else None
    bias = draw(channels, seed=9, dtype=dtype, device=device).requires_grad_()
    if ours:
        assert module.can_normalise(x, norm)
        total, y = module.add_and_normalise(x, module.Branch(branch, bias) if added else None, norm)
    else:
        total = x.double() + biased(branch, bias) if added else x.double()
        y = F.layer_norm(total, (channels,), norm.weight.double(), norm.bias.double(), norm.eps)
    gradients = [draw(*y.shape, seed=seed, device=device).to(y.dtype) for seed in (2, 3)]
    outputs = [(total, gradients[0]), (y, gradients[1])] if passed else [(y, gradients[1])]
    wanted = [x, *([branch, bias] if added else []), *norm.parameters()]
    return [
        total,
        y,
        *torch.autograd.grad([tensor for tensor, _ in outputs], wanted, [tensor for _, tensor in outputs]),
    ]


def addition(device, ours, tokens, channels, dtype=torch.float32):
    from adawac.kernels import tokens as module

    x = draw(tokens, channels, device=device).requires_grad_()
    branch = draw(tokens, channels, seed=2, dtype=dtype, device=device).requires_grad_()
    bias = draw(channels, seed=3, dtype=dtype, device=device).requires_grad_()
    y = module.add(x, module.Branch(branch, bias)) if ours else x + biased(branch, bias)
    return [y, *torch.autograd.grad(y, [x, branch, bias], draw(*y.shape, seed=1, device=device).to(y.dtype))]


def gelu(device, ours, tokens, channels, dtype=torch.float32):
    x = (draw(tokens, channels, dtype=dtype, device=device) * 3).requires_grad_()
    bias = draw(channels, seed=1, dtype=dtype, device=device).requires_grad_()
    if ours:
        from adawac.kernels.tokens import gelu_and_drop

        y = gelu_and_drop(x, 0.0, bias=bias)
    else:
        y = F.gelu(biased(x, bias))
    gradient = draw(*y.shape, seed=2, dtype=dtype, device=device)
    return [y, *torch.autograd.grad(y, [x, bias], gradient.to(y.dtype))]


def heads(device, ours, images, tokens, number, width, order, dtype=torch.float32):
    from adawac.kernels.tokens import split_heads

    x = draw(images, tokens, 3 * number * width, dtype=dtype, device=device).requires_grad_()
    bias = draw(3 * number * width, seed=1, dtype=dtype, device=device).requires_grad_()
    if ours:
        heads_of = split_heads(x, number, bias)
    else:
        heads_of = biased(x, bias).unflatten(-1, (3, number, width)).permute(2, 0, 3, 1, 4).unbind()
    gradients = [draw(*heads_of[0].shape, seed=seed, dtype=dtype, device=device) for seed in (2, 3, 4)]
    if order == "tokens first":  # as attention leaves them in memory
        gradients = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in gradients]
    if order == "mixed":
        gradients[1] = gradients[1].transpose(2, 3).contiguous().transpose(2, 3)
    return [
        *heads_of,
        *torch.autograd.grad(heads_of, [x, bias], [tensor.to(heads_of[0].dtype) for tensor in gradients]),
    ]


def standardise(device, ours, outputs, inputs, size, dtype=torch.float32):
    from adawac.kernels import convolutions

    weight = draw(outputs, inputs, size, size, device=device).add(5).to(memory_format=LAST).requires_grad_()
    if ours:
        assert convolutions.can_standardise(weight)
        with torch.autocast(torch.device(device).type, dtype, enabled=dtype != torch.float32):
            y = convolutions.standardised(weight, 1e-3)
        assert y.is_contiguous(memory_format=LAST)
        assert y.dtype == dtype
    else:
        rows = weight.double().reshape(1, outputs, -1)
        y = F.batch_norm(rows, None, None, training=True, eps=1e-3).reshape_as(weight)  # as timm does it
    return [y, *torch.autograd.grad(y, [weight], draw(*y.shape, seed=1, dtype=dtype, device=device).to(y.dtype))]


def transformer(device, ours, depth, hooked, dtype=torch.float32):
    from timm.models.vision_transformer import Block

    from adawac.kernels import blocks as module
    from adawac.kernels import fuse, tokens

    torch.manual_seed(0)
    network = torch.nn.Sequential(*(Block(24, 3, 2.0, qkv_bias=True) for _ in range(depth))).to(device)
    seen, additions = [], []
    if hooked:
        network.get_submodule(hooked).register_forward_hook(lambda module, inputs, output: seen.append(output))
    x = draw(2, 7, 24, dtype=dtype, device=device).requires_grad_()
    if ours:
        fuse(network)
        network(x)
        module.add = lambda *arguments: additions.append(arguments) or tokens.add(*arguments)
        seen.clear()
    else:
        network, x = network.double(), x.detach().double().requires_grad_()
    y = network(x)
    module.add = tokens.add
    assert len(additions) == (0 if not ours else depth if hooked == "0" else 1)  # the others are part of a norm
    assert len(seen) == bool(hooked)
    gradient = draw(*y.shape, seed=2, device=device).to(y.dtype)
    return [y, *seen, *torch.autograd.grad(y, [x, *network.parameters()], gradient)]


CASES = {
    "layer norm": (normalise, 2, 5, 48, False, False),
    "layer norm of what passes by": (normalise, 1, 700, 8, False, True),
    "add and layer norm": (normalise, 2, 5, 70, True, True),
    "add half precision and layer norm": (normalise, 1, 7, 16, True, True, HALF),
    "add": (addition, 7, 16),
    "add half precision, many tokens": (addition, 1100, 5, HALF),
    "gelu": (gelu, 5, 1000),
    "gelu, many tokens": (gelu, 2300, 300),
    "gelu in half precision": (gelu, 11, 40, HALF),
    "heads": (heads, 2, 5, 3, 8, "heads first"),
    "heads, tokens first": (heads, 3, 11, 2, 150, "tokens first"),
    "heads, mixed": (heads, 1, 3, 2, 5, "mixed"),
    "heads in half precision": (heads, 2, 19, 2, 16, "tokens first", HALF),
    "standardise": (standardise, 5, 6, 3),
    "standardise one pixel, cast": (standardise, 3, 200, 1, HALF),
    "standardise long rows": (standardise, 2, 1024, 3),
    "transformer": (transformer, 2, ""),
    "transformer with a hook on a block": (transformer, 2, "0"),
    "transformer with a hook on a linear layer": (transformer, 2, "1.mlp.fc1"),
    "transformer with a hook on attention": (transformer, 1, "0.attn"),
    "transformer with a hook on what is added last": (transformer, 2, "1.mlp"),
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
    "convolve several parts of the rows": (convolve, 3, 4, 16, 61, 5, True),
    "convolve a row, and more channels than one tile has": (convolve, 2, 70, 20, 1, 9, True),
    "convolve a column": (convolve, 2, 3, 1, 130, 1, False),
    "stem": (stem, 2, 64, 16, 22, False),
    "stem, odd sizes": (stem, 3, 20, 33, 47, True),
    "stem of a float32 image under autocast": (stem, 1, 64, 70, 80, False, 7, 2, 3, torch.float32),
    "stem of another size": (stem, 2, 5, 9, 12, True, 3, 1, 1),
    "stem without padding": (stem, 1, 16, 12, 13, False, 5, 3, 0),
    "sums": (sums, 2, 4, 37, False, False, None),
    "sums, channels last": (sums, 3, 9, 300, True, False, None),
    "sums of squares": (sums, 2, 9, 300, False, True, None),
    "sums, some ignored": (sums, 3, 4, 1000, True, False, 255),
    "sums of squares, some ignored": (sums, 3, 5, 700, False, True, 2),
    "sums in half precision": (sums, 2, 14, 5000, True, False, None, HALF),
}


def computed(name, device="cpu", ours=True):
    function, *arguments = CASES[name]
    return [tensor.detach().cpu() for tensor in function(device, ours, *arguments)]


def dropouts(tokens=100, channels=200, rate=0.3):
    """Each function that drops: what it gives, what another step and what the same seed gives, and the gradients."""
    from adawac.kernels.tokens import Branch, add, add_and_normalise, gelu_and_drop

    zeros, norm = torch.zeros(tokens, channels), torch.nn.LayerNorm(channels)
    functions = {
        "gelu": lambda x, bias: gelu_and_drop(x, rate, bias=bias),
        "add": lambda x, bias: add(zeros, Branch(x, bias, rate)),
        "add and layer norm": lambda x, bias: add_and_normalise(zeros, Branch(x, bias, rate), norm)[0],
    }
    return {name: dropout(function, draw(tokens, channels).abs() + 0.1) for name, function in functions.items()}


def dropout(function, x):
    x, bias = x.requires_grad_(), torch.zeros(x.shape[-1], requires_grad=True)
    outputs = []
    for seed in (0, None, 0):
        if seed is not None:
            torch.manual_seed(seed)
        outputs.append(function(x, bias))
    gradients = torch.autograd.grad(outputs[0].sum(), [x, bias])
    names = ("x", "y", "again", "same", "gradient", "bias")
    return dict(zip(names, [x.detach(), *(tensor.detach() for tensor in outputs), *gradients], strict=True))


def main():
    torch.set_num_threads(1)
    torch.save({**{name: computed(name) for name in CASES}, "dropout": dropouts()}, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
