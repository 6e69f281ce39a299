"""The loader's speed and memory, from memory and streamed, on a store that is larger than its budget. Prints JSON.

    python -m benchmarks.loading [--megabytes N] [--workers N] [--device cuda] [--out FILE]

Memory is that of this process and its workers, the pages of the store's files that they hold included; pages that
several share count once. On a GPU the views of a resident batch are measured as a captured CUDA graph too.
"""

import argparse
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from adawac.data.cases import Case, CaseRef
from adawac.data.loader import Loader
from adawac.data.preparation import prepare
from adawac.data.preprocessing import Preprocessing
from adawac.data.sources import Source
from benchmarks.result_files import show_result

SIDE, SLICES, SIZE = 512, 40, (224, 224)


@dataclass(frozen=True, kw_only=True)
class Noise(Source):
    """Scans of noise, as many as asked for."""

    count: int

    def cases(self):
        return [CaseRef(dataset="noise", patient=f"p{k}", id=f"p{k}", split="train") for k in range(self.count)]

    def load(self, ref):
        rng = np.random.default_rng(int(ref.id[1:]))
        image = rng.random((1, SLICES, SIDE, SIDE), dtype=np.float32)
        label = rng.integers(0, 9, (SLICES, SIDE, SIDE)).astype(np.uint8)
        who = {"dataset": ref.dataset, "patient": ref.patient, "id": ref.id}
        return Case(**who, image=image, label=label, spacing=(1.0,) * 3, class_names=tuple(self.classes))


def make_store(folder, megabytes):
    case = SLICES * SIDE * SIDE * 5 / 1e6
    source = Noise(
        dataset="noise",
        classes={"background": (0,), **{f"class {k}": (k,) for k in range(1, 9)}},
        preprocessing=Preprocessing(axis=0, normalisation="none"),
        count=max(1, round(megabytes / case)),
    )
    return prepare(source, None, folder, workers=1)


def memory(pid):
    """Return the megabytes that a process and its children hold."""
    total = 0
    for process in (pid, *children(pid)):
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return round(total / 1e3)


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def measure(loader, epochs, device):
    """Return slices per second, and the largest memory of each epoch."""
    seen, largest = 0, []
    next(loader.epoch(epochs))  # workers start, tables are made
    wait(device)
    start = time.perf_counter()
    for epoch in range(epochs):
        found = [0]
        for step, batch in enumerate(loader.epoch(epoch)):
            seen += len(batch["index"])
            if step % 8 == 0:
                found.append(memory(os.getpid()))
        largest.append(max(found))
    wait(device)
    return {"slices_per_s": round(seen / (time.perf_counter() - start)), "memory_mb": largest}


def measure_graph(loader, batch_size, steps=200):
    """Return slices per second when the views of a batch are one replay of a CUDA graph."""
    index, epoch = torch.arange(batch_size, device="cuda"), torch.zeros((), dtype=torch.int64, device="cuda")
    loader.resident(index, epoch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = loader.resident(index, epoch)
    epoch.fill_(3)
    graph.replay()
    plain = loader.resident(index, 3)
    equal = all(torch.equal(a, b) for name in plain for a, b in zip(captured[name], plain[name], strict=True))
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        graph.replay()
    torch.cuda.synchronize()
    return {"slices_per_s": round(steps * batch_size / (time.perf_counter() - start)), "equal_to_eager": equal}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        samples = make_store(Path(folder) / "store", args.megabytes).samples("train")
        result = {
            "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
            "store_mb": round(sum(image.nbytes + label.nbytes for image, label in samples) / 1e6),
            "slices": len(samples),
            "views_per_slice": 2,
            "workers": args.workers,
            "memory_before_mb": memory(os.getpid()),
        }
        streamed = Loader(samples, SIZE, budget=0, workers=args.workers, device=args.device)
        result["streamed"] = measure(streamed, args.epochs, args.device)
        del streamed  # its workers end
        resident = Loader(samples, SIZE, budget=1.0, device=args.device)
        result["resident"] = measure(resident, args.epochs, args.device)
        if args.device == "cuda":
            result["captured"] = measure_graph(resident, 24)
    show_result(result, args.out)


if __name__ == "__main__":
    main()
