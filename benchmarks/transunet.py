"""Forward and backward of our TransUNet against a straightforward implementation, in one run.

    python -m benchmarks.transunet [--device cuda] [--batch 48] [--rounds 20]
    python -m benchmarks.transunet --device cpu --batch 1 --quick        # a tiny network: does the script run?

The straightforward one is below: attention as matmul, softmax, matmul; weight standardisation, norms and upsampling as
the architecture is written down. Both have the same weights, and their outputs are compared first. Measured under bf16
autocast in training mode: the median time eagerly and as a captured CUDA graph, the peak memory, the largest kernels;
then single operations, which say what these kernels are bound by. The roofline is the counted arithmetic at the rate of
an 8192³ bf16 matrix product, and a copy's rate for what moves memory. Writes benchmarks/results/transunet-cuda.json.
"""

import argparse
import platform
import statistics
import time
from collections import Counter
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from adawac.models import build, to_transunet
from adawac.models.transunet import Enlarge
from benchmarks.capturing import captured
from benchmarks.result_files import RESULTS, show_result

CLASSES = 9
QUICK = {"embed_dim": 48, "depth": 2, "num_heads": 4, "layers": (1, 2, 1), "width": 0.5}


# -- the straightforward implementation, with the parameter names of the original's checkpoints ------------------------


class PlainConv(nn.Conv2d):
    """A convolution whose kernels have mean 0 and variance 1."""

    def forward(self, x):
        variance, mean = torch.var_mean(self.weight, (1, 2, 3), keepdim=True, unbiased=False)
        return F.conv2d(x, (self.weight - mean) / torch.sqrt(variance + 1e-5), None, self.stride, self.padding)


class PlainUnit(nn.Module):
    def __init__(self, inputs, width, stride, first):
        super().__init__()
        self.conv1, self.gn1 = PlainConv(inputs, width, 1, bias=False), nn.GroupNorm(32, width, 1e-6)
        self.conv2, self.gn2 = PlainConv(width, width, 3, stride, 1, bias=False), nn.GroupNorm(32, width, 1e-6)
        self.conv3, self.gn3 = PlainConv(width, 4 * width, 1, bias=False), nn.GroupNorm(32, 4 * width, 1e-6)
        if first:
            self.downsample = PlainConv(inputs, 4 * width, 1, stride, bias=False)
            self.gn_proj = nn.GroupNorm(4 * width, 4 * width)
        self.first = first

    def forward(self, x):
        shortcut = self.gn_proj(self.downsample(x)) if self.first else x
        x = F.relu(self.gn1(self.conv1(x)))
        x = F.relu(self.gn2(self.conv2(x)))
        return F.relu(self.gn3(self.conv3(x)) + shortcut)


class PlainAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.heads = heads

    def forward(self, x):
        split = lambda y: y.unflatten(2, (self.heads, -1)).transpose(1, 2)  # noqa: E731
        query, key, value = split(self.query(x)), split(self.key(x)), split(self.value(x))
        scores = query @ key.transpose(2, 3) / query.shape[-1] ** 0.5
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class PlainBlock(nn.Module):
    def __init__(self, dim, heads, hidden):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.LayerNorm(dim, 1e-6), nn.LayerNorm(dim, 1e-6)
        self.attn = PlainAttention(dim, heads)
        self.ffn = nn.ModuleDict({"fc1": nn.Linear(dim, hidden), "fc2": nn.Linear(hidden, dim)})
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        x = x + self.attn(self.attention_norm(x))
        hidden = self.dropout(F.gelu(self.ffn["fc1"](self.ffn_norm(x))))
        return x + self.dropout(self.ffn["fc2"](hidden))


class PlainUp(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1, self.conv2 = plain_conv(inputs, outputs), plain_conv(outputs, outputs)

    def forward(self, x, skip):
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
        return self.conv2(self.conv1(x if skip is None else torch.cat([x, skip], 1)))


def plain_conv(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class PlainTransUNet(nn.Module):
    """TransUNet, written down without a thought for speed."""

    def __init__(self, image_size, embed_dim=768, depth=12, num_heads=12, layers=(3, 4, 9), width=1.0):
        super().__init__()
        stem, grid = int(64 * width), image_size // 16
        body, inputs = nn.ModuleDict(), stem
        for stage, units in enumerate(layers):
            channels = stem * 2**stage
            body[f"block{stage + 1}"] = nn.ModuleDict(
                {
                    f"unit{unit + 1}": PlainUnit(
                        inputs if unit == 0 else 4 * channels, channels, 2 if stage and unit == 0 else 1, unit == 0
                    )
                    for unit in range(units)
                }
            )
            inputs = 4 * channels
        root = nn.ModuleDict({"conv": PlainConv(3, stem, 7, 2, 3, bias=False), "gn": nn.GroupNorm(32, stem, 1e-6)})
        embeddings = nn.ModuleDict(
            {
                "hybrid_model": nn.ModuleDict({"root": root, "body": body}),
                "patch_embeddings": nn.Conv2d(inputs, embed_dim, 1),
            }
        )
        embeddings.register_parameter("position_embeddings", nn.Parameter(torch.zeros(1, grid * grid, embed_dim)))
        blocks = nn.ModuleList(PlainBlock(embed_dim, num_heads, 4 * embed_dim) for _ in range(depth))
        encoder = nn.ModuleDict({"layer": blocks, "encoder_norm": nn.LayerNorm(embed_dim, 1e-6)})
        self.transformer = nn.ModuleDict({"embeddings": embeddings, "encoder": encoder})
        skips, outputs = [inputs // 2, inputs // 4, stem, 0], (256, 128, 64, 16)
        ups = [PlainUp(a + s, b) for a, s, b in zip((512, *outputs), skips, outputs, strict=False)]
        self.decoder = nn.ModuleDict({"conv_more": plain_conv(embed_dim, 512), "blocks": nn.ModuleList(ups)})
        self.segmentation_head = nn.Sequential(nn.Conv2d(16, CLASSES, 3, padding=1))
        self.dropout, self.grid = nn.Dropout(0.1), grid

    def forward(self, x):
        cnn, embeddings = self.transformer["embeddings"]["hybrid_model"], self.transformer["embeddings"]
        x = F.relu(cnn["root"]["gn"](cnn["root"]["conv"](x.repeat(1, 3, 1, 1))))
        skips = [x]
        x = F.max_pool2d(x, 3, 2)
        for stage in cnn["body"].values():
            for unit in stage.values():
                x = unit(x)
            skips.append(x)
        skips[1] = F.pad(skips[1], (0, 1, 0, 1))
        x = embeddings["patch_embeddings"](x).flatten(2).transpose(1, 2) + embeddings.position_embeddings
        x = self.dropout(x)
        for block in self.transformer["encoder"]["layer"]:
            x = block(x)
        x = self.transformer["encoder"]["encoder_norm"](x)
        x = self.decoder["conv_more"](x.transpose(1, 2).unflatten(2, (self.grid, self.grid)).contiguous())
        for up, skip in zip(self.decoder["blocks"], (skips[2], skips[1], skips[0], None), strict=True):
            x = up(x, skip)
        return self.segmentation_head(x)


# -- measuring ---------------------------------------------------------------------------------------------------------


class Bench:
    """One device: how to wait for it, time it and capture on it."""

    def __init__(self, device, rounds):
        self.device, self.rounds = torch.device(device), rounds
        self.cuda = self.device.type == "cuda"

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()

    def milliseconds(self, function, rounds=None):
        """The median time of a function, after it was called three times."""
        times = []
        for _ in range(3 + (rounds or self.rounds)):
            self.wait()
            start = time.perf_counter()
            function()
            self.wait()
            times.append(1000 * (time.perf_counter() - start))
        return statistics.median(times[3:])

    def step(self, network, images, gradient):
        """Forward and backward under bf16 autocast."""

        def run():
            for parameter in network.parameters():
                parameter.grad = None
            with torch.autocast(self.device.type, torch.bfloat16):
                logits = network(images)
            logits.backward(gradient.to(logits.dtype))

        return run


def compare(plain, ours, images):
    """The largest difference of the logits in float32 and evaluation mode, and their largest value."""
    ours.faithful = True
    with torch.no_grad():
        theirs, mine = plain.eval()(images), ours.eval()(images)
    plain.train(), ours.train()
    ours.faithful = False
    return {"difference": float((theirs - mine).abs().max()), "largest_logit": float(theirs.abs().max())}


def largest_kernels(bench, step, count=5):
    """The kernels that take most of a step's device time, and all of it by kind."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if bench.cuda else [])
    repeats = 3 if bench.cuda else 1
    step()
    bench.wait()
    with profile(activities=activities) as profiler:
        for _ in range(repeats):
            step()
        bench.wait()
    times, calls = Counter(), Counter()
    for event in profiler.key_averages():
        on_device = event.device_type == torch.autograd.DeviceType.CUDA
        if on_device == bench.cuda and not event.key.startswith("ProfilerStep"):
            spent = event.self_device_time_total if bench.cuda else event.self_cpu_time_total
            times[event.key] += spent / 1000 / repeats
            calls[event.key] += event.count // repeats
    total = sum(times.values())
    kinds = Counter()
    for name, spent in times.items():
        kinds[kind(name)] += spent
    return {
        "device_ms": round(total, 2),
        "largest": [
            {"kernel": name[:160], "ms": round(spent, 3), "share": round(spent / total, 3), "calls": calls[name]}
            for name, spent in times.most_common(count)
        ],
        "by_kind": {name: round(spent, 2) for name, spent in kinds.most_common()},
    }


KINDS = {  # the first that occurs in a kernel's name
    "attention": ("flash", "fmha", "softmax"),
    "upsampling": ("upsample", "interpolate"),
    "norm": ("norm", "moments", "welford", "bn_"),
    "layout conversion": ("nchwtonhwc", "nhwctonchw"),
    "convolution": ("conv", "wgrad", "dgrad", "implicit", "fprop", "cudnn"),
    "matrix product": ("gemm", "cutlass", "nvjet", "cublas", "addmm", "bmm", "::mm"),
    "pooling": ("pool",),
    "dropout": ("dropout",),
    "copies and casts": ("copy", "memcpy", "memset", "cat", "fill"),
    "reductions": ("reduce",),
}


def kind(name):
    lower = name.lower()
    kinds = (kind for kind, words in KINDS.items() if any(word in lower for word in words))
    return next(kinds, "elementwise and other")


def operations(bench, batch, quick):
    """Single operations at TransUNet's shapes, forward and backward in bf16: milliseconds of each way to do them."""
    side, dtype = (16, torch.bfloat16) if quick else (112, torch.bfloat16)
    channels = 64

    def timed(function, shape, channels_last=False):
        x = torch.randn(shape, device=bench.device, dtype=dtype)
        x = (x.contiguous(memory_format=torch.channels_last) if channels_last else x).requires_grad_()
        y = function(x)
        gradient = torch.ones_like(y)

        def run():
            x.grad = None
            function(x).backward(gradient)

        return round(bench.milliseconds(run, 5 if quick else 20), 3)

    enlarge = Enlarge((side, side)).to(bench.device)
    weight, bias = (torch.ones(channels, device=bench.device, dtype=dtype) for _ in range(2))
    shape, tokens = (batch, channels, side, side), (batch, 12, 4 if quick else 196, 64)
    up = lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)  # noqa: E731
    norm = lambda x: F.relu(F.group_norm(x, 32, weight, bias, 1e-6))  # noqa: E731
    norm_32 = lambda x: F.relu(F.group_norm(x.float(), 32, weight.float(), bias.float(), 1e-6)).to(dtype)  # noqa: E731
    plain_attention = lambda x: ((x @ x.transpose(2, 3) / 8).float().softmax(-1).to(dtype)) @ x  # noqa: E731
    return {
        f"upsampling {shape}": {
            "torch": timed(up, shape),
            "torch, channels-last": timed(up, shape, True),
            "matrix products, channels-last (ours)": timed(enlarge, shape, True),
        },
        f"group norm and ReLU {shape}": {
            "torch under autocast (float32)": timed(norm_32, shape),
            "bf16 (ours)": timed(norm, shape),
            "bf16, channels-last": timed(norm, shape, True),
        },
        f"attention {tokens}": {
            "matmul, softmax, matmul": timed(plain_attention, tokens),
            "fused (ours)": timed(lambda x: F.scaled_dot_product_attention(x, x, x), tokens),
        },
    }


def measure(bench, network, images, gradient, arithmetic, rate):
    """All numbers of one network."""
    step = bench.step(network, images, gradient)
    if bench.cuda:
        torch.cuda.reset_peak_memory_stats()
    found = {"eager_ms": round(bench.milliseconds(step), 2)}
    if bench.cuda:
        found["peak_GiB"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    found["profile"] = largest_kernels(bench, step)
    if bench.cuda:
        found["captured_ms"] = round(bench.milliseconds(captured(step)), 2)
    best = min(value for name, value in found.items() if name in ("eager_ms", "captured_ms"))
    found["TFLOP/s"] = round(arithmetic / best / 1e9, 2)
    found["share_of_matrix_rate"] = round(found["TFLOP/s"] / rate, 3)
    for parameter in network.parameters():
        parameter.grad = None
    return found


def count_arithmetic(image_size, options):
    """Floating-point operations of forward and backward of one image, counted in the straightforward network."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        PlainTransUNet(image_size, **options)(torch.zeros(1, 1, image_size, image_size)).sum().backward()
    return counter.get_total_flops()


def rates(bench, quick):
    """The device's matrix rate in TFLOP/s, and its memory's in TB/s."""
    size = 256 if quick else 8192
    a, b = (torch.randn(size, size, device=bench.device, dtype=torch.bfloat16) for _ in range(2))
    matrix = 2 * size**3 / bench.milliseconds(lambda: a @ b) / 1e9
    block = torch.zeros(2**20 if quick else 2**30, device=bench.device, dtype=torch.uint8)
    target = torch.empty_like(block)
    return matrix, 2 * block.numel() / bench.milliseconds(lambda: target.copy_(block)) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="a tiny network and few rounds, to try the script")
    parser.add_argument("--out", type=Path, help="by default benchmarks/results/transunet-cuda.json, on a GPU only")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    bench = Bench(options.device, 2 if options.quick else options.rounds)
    if not bench.cuda:
        torch.set_num_threads(1)
    side, width = (64, QUICK) if options.quick else (224, {})
    images = torch.randn(options.batch, 1, side, side, device=bench.device)
    gradient = torch.randn(options.batch, CLASSES, side, side, device=bench.device) / side**2

    matrix, memory = rates(bench, options.quick)
    arithmetic = count_arithmetic(side, width)
    plain = PlainTransUNet(side, **width)
    ours, _ = build("transunet", CLASSES, image_size=side, seed=0, **width)
    plain.load_state_dict(to_transunet(ours.state_dict()))
    same = compare(plain, ours, images[:1].cpu())  # on the CPU, in plain float32
    plain, ours = plain.to(bench.device), ours.to(bench.device)
    result = {
        "device": torch.cuda.get_device_name() if bench.cuda else f"{platform.machine()} CPU",
        "torch": torch.__version__,
        "batch": options.batch,
        "image_size": side,
        "GFLOP_per_image": round(arithmetic / 1e9, 1),
        "matrix_TFLOP/s": round(matrix, 1),
        "memory_TB/s": round(memory, 2),
        "roofline_ms": round(options.batch * arithmetic / matrix / 1e9, 2),
        "same_network": same,
    }
    work = options.batch * arithmetic
    result["plain"] = measure(bench, plain, images, gradient, work, matrix)
    del plain
    result["adawac"] = measure(bench, ours, images, gradient, work, matrix)
    ours = ours.to(memory_format=torch.channels_last)
    result["adawac, weights channels-last"] = measure(bench, ours, images, gradient, work, matrix)
    del ours
    result["speedup"] = {
        how: round(result["plain"][how] / min(result[name][how] for name in result if name.startswith("adawac")), 2)
        for how in ("eager_ms", "captured_ms")
        if how in result["plain"]
    }
    result["operations_ms"] = operations(bench, options.batch, options.quick)
    kept = bench.cuda and not options.quick
    show_result(result, options.out or (RESULTS / "transunet-cuda.json" if kept else None))


if __name__ == "__main__":
    main()
