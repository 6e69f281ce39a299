"""Kernels on pixels against torch's and cuDNN's own, at the shapes that UNet and TransUNet have with batches of 48.

    python -m benchmarks.pixels [--out FILE]

Each is captured as a CUDA graph, forward and backward together, so that no launches are timed. Writes
benchmarks/results/pixels-cuda.json.
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adawac.kernels.convolutions import Conv2d
from adawac.kernels.pixels import MaxPool2d, enlarge
from adawac.losses import _pixel_sums_by_torch, pixel_sums
from benchmarks.capturing import captured
from benchmarks.result_files import RESULTS, write_result

OUT = RESULTS / "pixels-cuda.json"
IMAGES = 48
LAST = torch.channels_last


def maps(channels: int, size: int) -> Tensor:
    """Return a random channels-last map in bf16."""
    return torch.randn(IMAGES, channels, size, size, device="cuda", dtype=torch.bfloat16).to(memory_format=LAST)


def joined(x: Tensor, skip: Tensor | None, bilinear: bool) -> Tensor:
    """Enlarge and join as torch does."""
    mode = {"mode": "bilinear", "align_corners": True} if bilinear else {"mode": "nearest"}
    up = F.interpolate(x, scale_factor=2, **mode)
    return up if skip is None else torch.cat([up, skip], 1)


def milliseconds(function: Callable[..., Tensor], *inputs: Tensor, rounds: int = 20) -> float:
    """Return the time of a forward and backward pass, captured, in the median of some rounds."""
    for tensor in inputs:
        tensor.requires_grad_()
    gradient = torch.randn_like(function(*inputs))

    def work() -> None:
        torch.autograd.grad(function(*inputs), inputs, gradient)

    replay = captured(work)
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def enlarging() -> dict[str, list[float]]:
    found = {}
    for bilinear, shapes in (
        (False, ((512, 256, 7), (256, 128, 14), (128, 64, 28), (64, 64, 56), (32, 0, 112))),
        (True, ((512, 512, 14), (256, 256, 28), (128, 64, 56), (64, 0, 112))),
    ):
        for channels, skipped, size in shapes:
            inputs = [maps(channels, size), *([maps(skipped, 2 * size)] if skipped else [])]
            kind = "interpolate" if bilinear else "repeat"
            found[f"{kind} {channels} channels to {2 * size}², join {skipped}"] = [
                milliseconds(lambda x, skip=None, b=bilinear: joined(x, skip, b), *inputs),
                milliseconds(lambda x, skip=None, b=bilinear: enlarge(x, skip, bilinear=b), *inputs),
            ]
    return found


def convolving() -> dict[str, list[float]]:
    found = {}
    torch.backends.cudnn.benchmark = True
    for inputs, outputs in ((32, 16), (16, 16), (16, 4)):
        times = []
        for kind in (nn.Conv2d, Conv2d):
            module = kind(inputs, outputs, 3, padding=1, bias=False).cuda().bfloat16().to(memory_format=LAST)
            call = lambda x, w, module=module: torch.func.functional_call(module, {"weight": w}, (x,))  # noqa: E731
            times.append(milliseconds(call, maps(inputs, 224), module.weight.detach().clone()))
        found[f"convolve {inputs} → {outputs} channels at 224²"] = times
    image, times = torch.randn(IMAGES, 1, 224, 224, device="cuda", dtype=torch.bfloat16), []
    for kind in (nn.Conv2d, Conv2d):
        module = kind(1, 64, 7, 2, 3, bias=False).cuda().bfloat16().to(memory_format=LAST)
        call = lambda w, module=module: torch.func.functional_call(module, {"weight": w}, (image,))  # noqa: E731
        times.append(milliseconds(call, module.weight.detach().clone()))
    found["convolve 1 → 64 channels, 7×7, from 224² to 112²"] = times
    return found


def pooling() -> dict[str, list[float]]:
    x = maps(64, 112)
    return {"pool 64 channels at 112²": [milliseconds(kind(3, 2, 1), x) for kind in (nn.MaxPool2d, MaxPool2d)]}


def summing() -> dict[str, list[float]]:
    logits = maps(4, 224).flatten(2)
    labels = torch.randint(0, 4, (IMAGES, 224 * 224), device="cuda")
    stack = lambda sums: torch.cat([sums.ell_ce.unsqueeze(1), *sums[1:3]], 1)  # noqa: E731
    return {
        "sums for CE and Dice, 4 classes at 224²": [
            milliseconds(lambda x: stack(_pixel_sums_by_torch(x, labels, "l1", None)), logits),
            milliseconds(lambda x: stack(pixel_sums(x, labels)), logits),
        ]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    found: dict[str, list[float]] = {}
    for part in (enlarging, pooling, convolving, summing):
        new = part()
        found |= new
        for name, (theirs, ours) in new.items():
            print(f"{name}: {theirs:.3f} → {ours:.3f} ms", flush=True)
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "images": IMAGES, "ms": found}
    write_result(args.out, result)


if __name__ == "__main__":
    main()
