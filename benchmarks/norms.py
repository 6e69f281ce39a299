"""Norms on our kernels against torch's: each layer of UNet-R34 and TransUNet, then the networks as a whole.

    python -m benchmarks.norms [--batch 48] [--rounds 20]
    python -m benchmarks.norms --sweep                                     # other block sizes, on a few layers
    TRITON_INTERPRET=1 python -m benchmarks.norms --device cpu --quick     # tiny: does the script run?

Forward and backward in bf16 on channels-last activations, captured as a CUDA graph, the median over rounds. Torch's
norm is followed by its addition and ReLU where the layer is; its group norm also by the conversion to channels-last,
without which the next convolution would convert. GB/s counts what our kernels move, for both: they read the input
twice and write the output; then read input and gradient twice and write the input's gradient; a residual is read, its
gradient written, and with it the output read for the ReLU. Errors are relative to torch in float32. Writes
benchmarks/results/norms-cuda.json.
"""

import argparse
import itertools
import statistics
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from adawac.kernels import fuse, norms
from adawac.kernels.norms import BatchNorm2d, GroupNorm, normalise
from adawac.models import build
from benchmarks.capturing import captured
from benchmarks.result_files import RESULTS, write_result

NETWORKS = ("unet", "transunet")
QUICK = {"unet": {}, "transunet": {"embed_dim": 48, "depth": 1, "num_heads": 4, "layers": (1, 1, 1), "width": 0.5}}
SWEEP = {"TILE": (2048, 4096, 8192), "WARPS": (4, 8), "PROGRAMS": (528, 1024, 2048), "STRETCH": (1, 2, 4)}


@dataclass(frozen=True)
class Layer:
    """A norm and what follows it; groups=0 is a batch norm."""

    shape: tuple[int, int, int, int]
    groups: int
    relu: bool
    residual: bool

    def __str__(self):
        kind = f"group norm {self.groups}" if self.groups else "batch norm"
        return f"{kind} {'×'.join(map(str, self.shape))}{' +residual' * self.residual}{' relu' * self.relu}"

    @property
    def bytes(self):
        passes = 8 + self.residual * (3 if self.relu else 1)
        return 2 * passes * torch.Size(self.shape).numel()


class Bench:
    def __init__(self, device, rounds):
        self.device, self.rounds, self.cuda = torch.device(device), rounds, device.startswith("cuda")

    def milliseconds(self, step):
        """The median time of a step, captured where that is possible."""
        run = captured(step) if self.cuda else step
        times = []
        for _ in range(self.rounds + 2 * self.cuda):
            self.wait()
            begin = time.perf_counter()
            if self.cuda:
                first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                first.record()
                run()
                last.record()
                self.wait()
                times.append(first.elapsed_time(last))
            else:
                run()
                times.append(1000 * (time.perf_counter() - begin))
        return statistics.median(times[2 * self.cuda :])

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()


def layers_of(network, images):
    """How often each kind of norm occurs in a forward pass."""
    found = Counter()
    originals = {norm: norm.fused for norm in (BatchNorm2d, GroupNorm)}

    def recorded(self, x, residual=None, relu=False):
        found[Layer(tuple(x.shape), getattr(self, "num_groups", 0), relu, residual is not None)] += 1
        return originals[BatchNorm2d if isinstance(self, BatchNorm2d) else GroupNorm](self, x, residual, relu)

    for norm in originals:
        norm.fused = recorded
    with torch.no_grad(), torch.autocast(images.device.type, torch.bfloat16):
        network(images)
    for norm, original in originals.items():
        norm.fused = original
    return found


def steps(layer, device):
    """Forward and backward of a layer, by torch in a type of choice, and by us."""
    draw = lambda *size: torch.randn(size, device=device, dtype=torch.bfloat16)  # noqa: E731
    maps = [draw(*layer.shape).contiguous(memory_format=torch.channels_last) for _ in range(3)]
    x, residual, gradient = maps
    channels = layer.shape[1]
    weight, bias = (torch.randn(channels, device=device, requires_grad=True) for _ in range(2))
    running = norms.Running(
        *(torch.ones(channels, device=device) for _ in range(2)), torch.tensor(0, device=device), 0.1
    )
    x.requires_grad_(), residual.requires_grad_()
    wanted = (x, weight, bias, *([residual] if layer.residual else []))

    def by_torch(dtype=torch.bfloat16):
        if layer.groups:
            y = F.group_norm(x.to(dtype), layer.groups, weight.to(dtype), bias.to(dtype), 1e-6)
            y = y.contiguous(memory_format=torch.channels_last)
        else:
            running.batches.add_(1)
            y = F.batch_norm(x.to(dtype), running.mean, running.var, weight, bias, True, 0.1, 1e-5)
        y = y + residual.to(dtype) if layer.residual else y
        y = F.relu(y, inplace=True) if layer.relu else y
        return [y, *torch.autograd.grad(y, wanted, gradient.to(dtype))]

    def by_us():
        options = {"residual": residual if layer.residual else None, "relu": layer.relu}
        if layer.groups:
            y = normalise(x, weight, bias, samples=len(x), groups=layer.groups, eps=1e-6, **options)
        else:
            y = normalise(x, weight, bias, samples=1, groups=x.shape[1], eps=1e-5, running=running, **options)
        return [y, *torch.autograd.grad(y, wanted, gradient)]

    return by_torch, by_us


def error(found, reference):
    """The largest relative error of output and gradients."""
    pairs = zip(found, reference, strict=True)
    return max(((a.float() - b.float()).norm() / b.float().norm()).item() for a, b in pairs)


def measure_layer(bench, layer):
    by_torch, by_us = steps(layer, bench.device)
    reference = by_torch(torch.float32)
    errors = {"torch_error": error(by_torch(), reference), "ours_error": error(by_us(), reference)}
    del reference
    torch_ms, ours_ms = bench.milliseconds(by_torch), bench.milliseconds(by_us)
    return {
        "torch_ms": round(torch_ms, 4),
        "ours_ms": round(ours_ms, 4),
        "torch_GB/s": round(layer.bytes / torch_ms / 1e6),
        "ours_GB/s": round(layer.bytes / ours_ms / 1e6),
        **{name: round(value, 5) for name, value in errors.items()},
    }


def network_step(network, images, gradient):
    def step():
        with torch.autocast(images.device.type, torch.bfloat16):
            logits = network(images)
        torch.autograd.grad(logits, list(network.parameters()), gradient.to(logits.dtype))

    return step


def measure_network(bench, name, size, batch, options):
    """A network's step with torch's norms and with ours, and each of its norms."""
    images = torch.randn(batch, 1, size, size, device=bench.device)
    gradient = torch.randn(batch, 9, size, size, device=bench.device).contiguous(memory_format=torch.channels_last)
    network, _ = build(name, 9, image_size=size, seed=0, **options)
    network = network.to(bench.device).to(memory_format=torch.channels_last).train()
    step = network_step(network, images, gradient)
    found = {"torch_ms": round(bench.milliseconds(step), 3)}
    print(f"{name}: {found['torch_ms']} ms with torch's norms", flush=True)
    found["norms"] = fuse(network)
    begin = time.perf_counter()
    step()
    bench.wait()
    found["first_step_s"] = round(time.perf_counter() - begin, 2)  # Triton compiles, unless its cache has the kernels
    found["ours_ms"] = round(bench.milliseconds(step), 3)
    print(f"{name}: {found['ours_ms']} ms with ours; the first step took {found['first_step_s']} s", flush=True)
    counts = layers_of(network, images)
    del network, step
    found["layers"] = {}
    for layer, count in counts.items():
        row = found["layers"][str(layer)] = {"count": count, **measure_layer(bench, layer)}
        print(f"  {count:2} {layer!s:58} {row}", flush=True)
    for who in ("torch", "ours"):
        rows = found["layers"].values()
        found[f"norms_{who}_ms"] = round(sum(row["count"] * row[f"{who}_ms"] for row in rows), 3)
    print(f"{name}: norms {found['norms_torch_ms']} ms with torch, {found['norms_ours_ms']} ms with ours", flush=True)
    return found


def sweep(bench, batch):
    """Milliseconds of a few layers with other block sizes, one changed at a time, tiles and warps together."""
    layers = [
        Layer((batch, 64, 112, 112), 0, True, False),
        Layer((batch, 16, 224, 224), 0, True, False),
        Layer((batch, 64, 56, 56), 0, True, True),
        Layer((batch, 256, 14, 14), 0, True, True),
        Layer((batch, 64, 112, 112), 32, True, False),
        Layer((batch, 256, 56, 56), 32, True, True),
    ]
    defaults = {name: getattr(norms, name) for name in SWEEP}
    tried = [
        dict(zip(("TILE", "WARPS"), pair, strict=True)) for pair in itertools.product(SWEEP["TILE"], SWEEP["WARPS"])
    ]
    tried += [{name: value} for name in ("PROGRAMS", "STRETCH") for value in SWEEP[name] if value != defaults[name]]
    rows = []
    for changed in tried:
        for name, value in {**defaults, **changed}.items():
            setattr(norms, name, value)
        norms._plan.cache_clear()
        times = [round(bench.milliseconds(steps(layer, bench.device)[1]), 4) for layer in layers]
        rows.append({**changed, "sum_ms": round(sum(times), 4), "ms": dict(zip(map(str, layers), times, strict=True))})
        print(changed, rows[-1]["sum_ms"], times, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sweep", action="store_true", help="try other block sizes instead")
    parser.add_argument("--quick", action="store_true", help="tiny networks and one round, to try the script")
    parser.add_argument("--out", type=Path, help="by default benchmarks/results/norms-cuda.json, on a GPU only")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    bench = Bench(options.device, 1 if options.quick else options.rounds)
    if not bench.cuda:
        torch.set_num_threads(1)
    batch, size = (2, 32) if options.quick else (options.batch, 224)
    begin = time.perf_counter()
    result = {"device": torch.cuda.get_device_name() if bench.cuda else "CPU", "torch": torch.__version__}
    result |= {"batch": batch, "image_size": size}
    if options.sweep:
        result["sweep"] = sweep(bench, batch)
    else:
        for name in NETWORKS:
            result[name] = measure_network(bench, name, size, batch, QUICK[name] if options.quick else {})
    result["seconds"] = round(time.perf_counter() - begin, 1)
    print(f"{result['seconds']} s in all")
    kept = bench.cuda and not options.quick
    path = options.out or (RESULTS / f"norms{'-sweep' * options.sweep}-cuda.json" if kept else None)
    if path is not None:
        write_result(path, result)


if __name__ == "__main__":
    main()
