"""Peak memory and time of `adawac.predict` on a CT of 1000 slices of 512 × 512.

    python -m benchmarks.predict_memory [--slices 1000] [--kinds plain resampled cleaned]

The scan is synthetic (an ellipse with noise) and compressed; the network is the paper's UNet at 224 × 224 with random
weights, on the CPU. Each kind is measured in a process of its own: the peak of its resident memory, and what it is once
everything is imported and the network is loaded. The result is written to benchmarks/results/predict_memory.json.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.result_files import RESULTS, write_result

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "resampled": {"preprocessing": {"spacing": [1.2, 1.2, 1.0], "orientation": "RAS"}},
    "cleaned": {"options": {"largest_component": True}},
    "probabilities": {"options": {"probabilities": True}},
}


def make_scan(path: Path, slices: int, side: int = 512) -> None:
    """Write the scan slice by slice."""
    import gzip

    import nibabel as nib

    header = nib.Nifti1Header()
    header.set_data_dtype(np.int16)
    header.set_data_shape((side, side, slices))
    header.set_xyzt_units("mm")
    header.set_sform(np.diag([-0.8, -0.8, 0.8, 1.0]), 1)
    y, x = np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j]
    body = np.where((x / 0.8) ** 2 + (y / 0.6) ** 2 < 1, 40, -1000).astype(np.int16)
    generator = np.random.default_rng(0)
    with gzip.open(path, "wb", compresslevel=1) as file:
        header.write_to(file)
        for _ in range(slices):
            file.write((body + generator.integers(-8, 8, body.shape, dtype=np.int16)).tobytes())


def make_run(folder: Path, preprocessing: dict[str, Any]) -> None:
    """Write a run with random weights."""
    from adawac.config import DataConfig, TrainConfig
    from adawac.data.preprocessing import CT
    from adawac.models import build
    from adawac.runs import RunWriter

    names = ["background", *(f"organ {k}" for k in range(1, 9))]
    network, _ = build("unet", len(names), seed=0)
    with RunWriter(folder, TrainConfig(epochs=1, data=DataConfig()), epochs=1) as run:
        run.write_data(
            {
                "dataset": "synthetic",
                "class_names": names,
                "channels": ["CT"],
                "label_values": [[k] for k in range(len(names))],
                "preprocessing": CT.to_dict() | preprocessing,
            }
        )
        tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
        run.save_checkpoint("last", tensors, {"epoch": 1})


def gibibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(scan: Path, run: Path, out: Path, options: dict[str, Any]) -> dict[str, float]:
    """Segment the scan in this process."""
    from adawac.inference.prediction import predict
    from adawac.inference.trained import load_trained

    load_trained(run)
    before = gibibytes()
    start = time.perf_counter()
    (done,) = predict(run, scan, out, device="cpu", **options)
    seconds = time.perf_counter() - start
    if done.error:
        raise SystemExit(done.error)
    return {"gib_before": before, "gib_peak": gibibytes(), "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slices", type=int, default=1000)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--out", type=Path, default=RESULTS / "predict_memory.json")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        scan, run, out, options = arguments.measure
        print(json.dumps(measure(Path(scan), Path(run), Path(out), json.loads(options))))
        return
    voxels = 512 * 512 * arguments.slices
    results: dict[str, Any] = {}
    report = {
        "scan": {"shape": [512, 512, arguments.slices], "gib_as_float32": 4 * voxels / 2**30},
        "machine": {"processors": os.cpu_count(), "system": platform.system(), "python": platform.python_version()},
        "results": results,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_scan(folder / "ct.nii.gz", arguments.slices)
        for kind in arguments.kinds:
            make_run(folder / kind, KINDS[kind].get("preprocessing", {}))
            options = json.dumps(KINDS[kind].get("options", {}))
            words = [folder / "ct.nii.gz", folder / kind, folder / f"{kind}-out", options]
            command = [sys.executable, "-m", "benchmarks.predict_memory", "--measure", *map(str, words)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            results[kind] = json.loads(done.stdout.splitlines()[-1])
            write_result(arguments.out, report)
    print(arguments.out.read_text())


if __name__ == "__main__":
    main()
