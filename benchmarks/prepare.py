"""Preparing ACDC in volumes per second, and a random slice from the store against gzip h5 and npz files.

    python -m benchmarks.prepare --acdc FOLDER

FOLDER is ACDC in TransUNet's layout; without it the same is measured on noise of ACDC's usual size, and the result says
so. It is written to benchmarks/results/prepare.json. Every number is the median over `--repeats` runs in this one
process, files warm in the page cache.
"""

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from adawac.data.preparation import prepare
from adawac.data.store import Samples
from benchmarks.result_files import RESULTS, show_result


def make_noise(root: Path, cases: int = 40, shape: tuple[int, int, int] = (10, 256, 216)) -> Path:
    """Write noise in ACDC's layout."""
    folder = root / "ACDC_training_volumes"
    folder.mkdir(parents=True)
    for patient in range(31, 31 + cases // 2):
        for frame in (1, 12):
            generator = np.random.default_rng(100 * patient + frame)
            image = (generator.integers(0, 256, shape) / 255).astype(np.float32)
            label = np.zeros(shape, np.uint8)
            label[:, 100:140, 90:130] = generator.integers(0, 4, (shape[0], 40, 40))
            with h5py.File(folder / f"patient{patient:03d}_frame{frame:02d}.h5", "w") as file:
                file.create_dataset("image", data=image, compression="gzip", compression_opts=1)
                file.create_dataset("label", data=label, compression="gzip", compression_opts=1)
    return root


def median_seconds(work: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure_prepare(source: Path, scratch: Path, workers: int, repeats: int) -> dict[str, float]:
    """Prepare from scratch, process start included."""
    numbers = iter(range(repeats))
    cases = 0

    def work() -> None:
        nonlocal cases
        cases = len(
            prepare("acdc", source, scratch / f"{workers}-{next(numbers)}", workers=workers, progress=False).cases
        )

    seconds = median_seconds(work, repeats)
    return {"workers": workers, "volumes": cases, "seconds": seconds, "volumes_per_second": cases / seconds}


def write_slices(samples: Samples, folder: Path) -> dict[str, list[Path]]:
    """Write every sample as one file of each kind."""
    files: dict[str, list[Path]] = {"gzip h5": [], "compressed npz": [], "plain npz": []}
    for row in range(len(samples)):
        image, label = samples[row]
        paths = {kind: folder / f"{row}.{kind.replace(' ', '.')}" for kind in files}
        with h5py.File(paths["gzip h5"], "w") as file:
            file.create_dataset("image", data=image[0], compression="gzip", compression_opts=1)
            file.create_dataset("label", data=label, compression="gzip", compression_opts=1)
        np.savez_compressed(paths["compressed npz"], image=image[0], label=label)
        np.savez(paths["plain npz"], image=image[0], label=label)
        for kind, path in paths.items():
            files[kind].append(path)
    return files


def read_h5(path: Path) -> tuple[Any, Any]:
    with h5py.File(path, "r") as file:
        return file["image"][:], file["label"][:]


def read_npz(path: Path) -> tuple[Any, Any]:
    with np.load(path, allow_pickle=False) as file:
        return file["image"], file["label"]


def measure_reads(samples: Samples, scratch: Path, repeats: int) -> dict[str, float]:
    """Read every slice once, in random order, into memory of its own; microseconds per slice."""
    order = np.random.default_rng(0).permutation(len(samples)).tolist()
    files = write_slices(samples, scratch)

    def from_store() -> None:
        for row in order:
            image, label = samples[row]
            image.copy(), label.copy()

    def from_files(read: Callable[[Path], Any], paths: Sequence[Path]) -> Callable[[], None]:
        def work() -> None:
            for row in order:
                read(paths[row])

        return work

    works = {"store": from_store} | {
        kind: from_files(read_h5 if "h5" in kind else read_npz, paths) for kind, paths in files.items()
    }
    for work in works.values():
        work()  # warms the page cache
    return {kind: 1e6 * median_seconds(work, repeats) / len(samples) for kind, work in works.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--acdc", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS / "prepare.json")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        source = arguments.acdc or make_noise(scratch / "noise")
        prepared = [measure_prepare(source, scratch, workers, arguments.repeats) for workers in (1, 2)]
        samples = prepare("acdc", source, scratch / "2-0", progress=False).samples("train")
        (scratch / "slices").mkdir()
        reads = measure_reads(samples, scratch / "slices", arguments.repeats)
    result = {
        "data": "ACDC" if arguments.acdc else "noise of ACDC's size",
        "machine": {"processors": os.cpu_count(), "system": platform.system(), "python": platform.python_version()},
        "prepare": prepared,
        "slices": len(samples),
        "microseconds_per_slice": reads,
        "store_is_faster_by": {kind: reads[kind] / reads["store"] for kind in reads if kind != "store"},
    }
    show_result(result, arguments.out)


if __name__ == "__main__":
    main()
