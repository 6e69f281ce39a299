"""What AdaWAC's criterion costs beside a plain cross-entropy + Dice on the same tensors, forward and backward.

    python -m benchmarks.criterion [--device cpu|cuda] [--rounds 9]

Tensors: logits 48×9×224×224 float32 (24 samples, two views), latents 48×512×7×7. On the CPU with one thread. All
variants run in turn, round by round, so that a busy machine slows all of them; the table holds medians.
On a GPU also as a captured CUDA graph, which is how training runs it: there the host's launches do not count.
Writes benchmarks/results/criterion-<device>.json.
"""

import argparse
import platform
import statistics
import time
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

import adawac
from benchmarks.capturing import captured
from benchmarks.result_files import RESULTS, show_result

ROWS, CLASSES, SIDE = 48, 9, 224


def plain(logits, labels):
    """The loss of a plain training loop: torch's cross-entropy, and Dice from a softmax and one-hot labels."""
    p, q = logits.softmax(1), F.one_hot(labels, CLASSES).movedim(-1, 1).to(logits.dtype)
    dice = 1 - ((2 * (p * q).sum((2, 3)) + 1e-5) / (p.sum((2, 3)) + q.sum((2, 3)) + 1e-5)).mean()
    return F.cross_entropy(logits, labels) + dice


def variants(labels, device):
    """Name → function of (logits, latents) that returns a loss."""
    index = torch.arange(ROWS // 2, device=device)
    found = {"plain torch": lambda logits, _: plain(logits, labels)}
    try:
        from monai.losses import DiceCELoss

        monai = DiceCELoss(to_onehot_y=True, softmax=True)
        found["MONAI DiceCELoss"] = lambda logits, _: monai(logits, labels.unsqueeze(1))
    except ImportError:
        pass
    for method, preset in (("baseline", "paper"), ("pair", "official"), ("adawac", "paper"), ("adawac", "official")):
        criterion = adawac.build_method(method, 2211, preset).to(device)
        found[f"{method}, {preset}"] = lambda logits, latents, c=criterion: c(logits, labels, latents, index).loss
    return found


def timed(function, wait) -> float:
    wait()
    start = time.perf_counter()
    function()
    wait()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(options.device)
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, CLASSES, SIDE, SIDE, generator=generator).to(device).requires_grad_()
    latents = torch.randn(ROWS, 512, 7, 7, generator=generator).to(device).requires_grad_()
    labels = torch.randint(0, CLASSES, (ROWS, SIDE, SIDE), generator=generator).to(device)
    losses = variants(labels, device)  # stays alive: a captured graph only knows the addresses of what it uses

    def step(loss):
        logits.grad = latents.grad = None
        loss(logits, latents).backward()

    functions = {name: partial(step, loss) for name, loss in losses.items()}
    if device.type == "cuda":
        functions |= {f"{name}, captured": captured(function) for name, function in functions.items()}
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(options.rounds + 1):
        for name, function in functions.items():
            seconds[name].append(timed(function, wait))
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}  # the first round warms up
    anchors = {name: "plain torch, captured" if "captured" in name else "plain torch" for name in medians}
    result = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()} CPU, one thread",
        "torch": torch.__version__,
        "rounds": options.rounds,
        "milliseconds": {name: round(1000 * value, 3) for name, value in medians.items()},
        "against_plain": {name: round(value / medians[anchors[name]], 3) for name, value in medians.items()},
    }
    show_result(result, options.out / f"criterion-{device.type}.json")


if __name__ == "__main__":
    main()
