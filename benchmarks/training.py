"""Training through `adawac.fit` itself, everything included: slices/s, memory, what a step consists of.

    python -m benchmarks.training STORE ladder --model unet        # from eager fp32 to our own kernels
    python -m benchmarks.training STORE compiled --model unet      # and by torch.compile instead
    python -m benchmarks.training STORE cost --model unet          # AdaWAC's forwards against the single-view baseline
    python -m benchmarks.training STORE batch --model unet         # slices/s against the batch
    python -m benchmarks.training STORE size --model unet          # against the size of the input
    python -m benchmarks.training STORE rows                       # step time against the number of rows of beta
    python -m benchmarks.training STORE kernels --model unet       # the largest kernels, and how long the GPU idles
    python -m benchmarks.training STORE start --model unet         # seconds from a new process to its first step

Several parts may be given. AdaWAC, preset `official` (both views supervised), batch 24, 224×224, unless a part says
otherwise. The rate is the median over the epochs after the second, in which kernels are chosen, compiled and captured;
where a step is not captured, it is that of the second. Writes benchmarks/results/training-PART-MODEL.json; the page is
made by benchmarks/render.py.
"""

import argparse
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from adawac.config import TrainConfig, override
from adawac.models import build
from adawac.runs.recorder import EpochRecord
from adawac.train import fit
from adawac.train.setup import set_up
from adawac.train.step import TrainStep
from benchmarks.capturing import captured
from benchmarks.result_files import RESULTS, write_result

# GFLOP of a forward and backward pass over one image at 224×224, multiplications and additions apart.
GFLOP = {"unet": 35.5, "transunet": 175.0}
RELEASED = {"unet": 239, "transunet": 91}  # slices/s of the released code, same GPU, same data
BASE = {
    "method.name": "adawac",
    "method.preset": "official",
    "method.options": {"eta_beta": 8.0, "lambda_ac": 2.0},
    "hardware.precision": "bf16",
    "data.residence": "device",
}
THEIRS = {"hardware.fused": False}
EAGER = {**THEIRS, "hardware.capture": "never"}
LADDER = {
    "eager": {**EAGER, "hardware.precision": "fp32", "data.residence": "stream"},
    "resident": {**EAGER, "hardware.precision": "fp32"},
    "bf16": EAGER,
    "captured": THEIRS,
    "own kernels": {},
}
COMPILED = {"compiled": {"hardware.compile": True}}
COST = {
    "baseline": {"method.name": "baseline"},
    "joint": {},
    "robust": {"method.preset": "robust", "method.options": {}},
    "separate": {"forward": "separate"},
    "encoder": {"forward": "encoder", "method.options": {"eta_beta": 8.0, "lambda_ac": 2.0, "views": "first"}},
    "encoder-detached": {
        "forward": "encoder-detached",
        "method.options": {"eta_beta": 8.0, "lambda_ac": 2.0, "views": "first"},
    },
}


class Clock:
    """Notes when the first step was done, and the rate of every epoch."""

    def __init__(self):
        self.begun, self.first, self.rates = time.perf_counter(), None, []

    def start(self, *_):
        pass

    def step(self, epoch, step):
        if self.first is None:
            torch.cuda.synchronize()
            self.first = time.perf_counter() - self.begun

    def epoch(self, epoch, metrics):
        self.rates.append(metrics["slices_per_second"])


def measure(store: Path, model: str, changes: dict, epochs: int) -> dict:
    """Train for some epochs; return the rate and what else there is to know."""
    skipped = 1 if changes.get("hardware.capture") == "never" else 2
    epochs = 2 if skipped == 1 else epochs
    config = override(
        TrainConfig(),
        {"data.store": store, "model.name": model, "epochs": epochs, "checkpoint_every": epochs, **BASE, **changes},
    )
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch._dynamo.reset()
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        fit(config, Path(folder) / "run", watch=clock)
    rate = statistics.median(clock.rates[skipped:])
    views = 1 if changes.get("method.name") == "baseline" else 2
    return {
        "slices_per_second": rate,
        "step_ms": 1000 * config.data.batch_size / rate,
        "epochs": [round(rate, 1) for rate in clock.rates],
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
        "seconds_to_first_step": clock.first,
        "tflops": rate * views * GFLOP.get(model, math.nan) / 1000 * math.prod(config.data.image_size) / 224**2,
    }


def kernels(store: Path, model: str, changes: dict, steps: int = 10) -> dict:
    """Profile some steps; return the largest kernels and the share of time in which the GPU does nothing."""
    config = override(TrainConfig(), {"data.store": store, "model.name": model, **BASE, **changes})
    trainer = set_up(config)
    EpochRecord(trainer.criterion)
    step = TrainStep(trainer)
    inputs = iter(step.inputs(1, 0))
    for number in range(6):
        step(next(inputs), 1, number)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        for number in range(6, 6 + steps):
            step(next(inputs), 1, number)
        torch.cuda.synchronize()
    events = [e for e in profiled.events() if e.device_type == torch.autograd.DeviceType.CUDA and e.time_range]
    spans = sorted((e.time_range.start, e.time_range.end) for e in events)
    busy, end = 0.0, spans[0][0]
    for start, stop in spans:
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    total = end - spans[0][0]
    times = Counter()
    for e in events:
        times[e.name[:110]] += e.time_range.end - e.time_range.start
    return {
        "idle": 1 - busy / total,
        "step_ms": total / steps / 1000,
        "kernels_a_step": len(events) / steps,
        "largest": [{"name": name, "ms": t / steps / 1000, "share": t / busy} for name, t in times.most_common(12)],
        "reason": step.reason,
    }


def start(store: Path, model: str) -> dict:
    """Time `adawac train` from its start to the first step: where Triton has compiled nothing yet, and once it has."""
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        settings = [f"--set={path}={json.dumps(value)}" for path, value in BASE.items()]
        for name in ("nothing compiled yet", "all compiled"):
            run = Path(scratch) / name.replace(" ", "-")
            script = [sys.executable, str(Path(__file__).with_name("first_step.py"))]
            command = [*script, str(store), "--model", model, "--out", str(run), *settings]
            environment = {**os.environ, "TRITON_CACHE_DIR": str(Path(scratch) / "cache")}
            before = time.time()
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            moments = json.loads(done.stdout.splitlines()[-1])
            found[name] = {"seconds_to_first_step": moments["stepped"] - before, "parts": {}}
            for part, moment in moments.items():
                found[name]["parts"][part], before = moment - before, moment
            print("start", model, name, found[name], flush=True)
    return found


def traffic(model: str, images: int) -> float:
    """Return how many bytes a step has to move at least, in bf16.

    The output of each layer with weights is written once and read by the next one, its gradient as well, and it is
    read again on the way back; weights, gradients and momentum are float32, read and written as SGD does, and cast to
    bf16 and back.
    """
    network, _ = build(model, 4, image_size=224, seed=0)
    outputs = []
    for module in network.modules():
        if list(module.parameters(recurse=False)) and not list(module.children()):
            module.register_forward_hook(lambda module, inputs, output: outputs.append(output.numel()))
    with torch.no_grad():
        network(torch.zeros(1, 1, 224, 224))
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return 2 * 5 * images * sum(outputs) + (6 + 6 + 5 * 4) * parameters


def limits() -> dict:
    """Measure what this GPU gives at best: a large bf16 matrix product, and a copy."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    c = torch.empty_like(b)
    seconds = []
    for work in (lambda: a @ a, lambda: c.copy_(b)):
        work()
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(20):
            work()
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - started) / 20)
    return {"matrix_tflops": 2 * 8192**3 / seconds[0] / 1e12, "copy_gb_per_second": 2 * (1 << 30) / seconds[1] / 1e9}


PARTS = {
    "ladder": LADDER,
    "compiled": COMPILED,
    "cost": COST,
    "batch": {str(size): {"data.batch_size": size} for size in (8, 16, 24, 48, 96, 192, 384)},
    "size": {str(size): {"data.image_size": (size, size)} for size in (224, 320, 384, 512)},
}


def rows(counts=(10**3, 10**4, 10**5, 10**6)) -> dict:
    """Time a captured criterion against the number of samples that it weighs."""
    import adawac

    found = {}
    for count in counts:
        criterion = adawac.build_method("adawac", count, "official", eta_beta=8.0).cuda()
        logits = torch.randn(48, 4, 224, 224, device="cuda", requires_grad=True)
        labels = torch.randint(0, 4, (48, 224, 224), device="cuda")
        latents = torch.randn(48, 512, 7, 7, device="cuda", requires_grad=True)
        index = torch.randperm(count, device="cuda")[:24]
        EpochRecord(criterion)

        def work(criterion=criterion, logits=logits, labels=labels, latents=latents, index=index):
            out = criterion(logits, labels, latents, index)
            out.loss.backward()

        replay = captured(work)
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(100):
            replay()
        torch.cuda.synchronize()
        found[str(count)] = {"criterion_ms": 10 * (time.perf_counter() - started)}
        print(count, found[str(count)], flush=True)
    return found


def measure_part(part: str, args, extra: dict, result: dict) -> None:
    """Measure one part, and write what is known of it after each measurement."""
    target = args.out / f"training-{part}-{args.model}.json"
    found: dict[str, dict] = {}
    if part == "ladder":
        result = {**result, "bytes": traffic(args.model, 2 * TrainConfig().data.batch_size)}
    if part == "rows":
        found = rows()
    elif part == "start":
        found = start(args.store.absolute(), args.model)
    elif part == "kernels":
        found = {"captured": kernels(args.store, args.model, extra)}
        print(json.dumps(found, indent=1), flush=True)
    for name, changes in PARTS.get(part, {}).items():
        if args.only and name not in args.only:
            continue
        try:
            found[name] = measure(args.store, args.model, {**changes, **extra}, args.epochs)
        except Exception as error:
            found[name] = {"error": str(error)[:300]}
        print(part, args.model, name, json.dumps(found[name]), flush=True)
        write_result(target, {**result, "measured": found})
    write_result(target, {**result, "measured": found})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("parts", nargs="+", choices=[*PARTS, "rows", "kernels", "start"])
    parser.add_argument("--model", default="unet")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="of the parts' measurements these alone")
    parser.add_argument("--set", nargs="*", default=[], help="further settings for all measurements: path=value")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    from adawac.config import assignments

    extra = assignments(tuple(args.set))
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "model": args.model}
    result |= {"released": RELEASED.get(args.model), "gflop": GFLOP.get(args.model), "limits": limits()}
    args.out.mkdir(parents=True, exist_ok=True)
    for part in args.parts:
        measure_part(part, args, extra, result)


if __name__ == "__main__":
    main()
