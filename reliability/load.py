"""Large inputs: up to a million samples, 200 classes, 20 channels. Time and memory of each command, size by size.

    python -m reliability.load FOLDER [--cases 100 1000 10000] [--only cases classes channels scan scans]

Scans are tiny (100 slices of 8×8), so that what is measured is what each sample costs beyond its pixels. Every command
is the real one, in a process of its own; memory is the largest of its processes. Writes
reliability/results/load.json, which `python -m reliability.render` puts into docs/reliability.md. Lines that are not
measured again keep their numbers.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.result_files import ROOT, commit
from reliability.trials import RESULTS

SLICES, SIDE = 100, 8
NETWORK = {
    "model.name": "tests.networks.small_network:small",
    "data.batch_size": 1000,
    "hardware.accelerator": "cpu",
    "epochs": 1,
}
"""A network of 1,554 parameters: what is measured is the rest."""


def make_scans(folder: Path, cases: int, classes: int = 2, channels: int = 1, slices: int = SLICES) -> None:
    """Write scans of noise as nnU-Net's raw data, half of whose slices carry no label."""
    import nibabel as nib

    images, labels = folder / "imagesTr", folder / "labelsTr"
    images.mkdir(parents=True)
    labels.mkdir()
    rng = np.random.default_rng(0)
    for number in range(cases):
        truth = rng.integers(0, classes, (SIDE, SIDE, slices), dtype=np.uint8)
        truth[:, :, : slices // 2] = 0
        nib.save(nib.Nifti1Image(truth, np.eye(4)), labels / f"case_{number:05d}.nii")
        for channel in range(channels):
            image = truth * 3 + rng.integers(0, 50, truth.shape, dtype=np.uint8)
            nib.save(nib.Nifti1Image(image, np.eye(4)), images / f"case_{number:05d}_{channel:04d}.nii")
    description = {
        "channel_names": {str(channel): f"channel {channel}" for channel in range(channels)},
        "labels": {"background": 0, **{f"class {label}": label for label in range(1, classes)}},
        "numTraining": cases,
        "file_ending": ".nii",
    }
    (folder / "dataset.json").write_text(json.dumps(description))


def measure(line: list[str]) -> dict[str, float]:
    """Run a command; return its seconds, those of processors that it took, and the GiB of its largest process."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    started = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "adawac", *line], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(line)} ended with {process.returncode}: {said}")
    processor = usage.ru_utime + usage.ru_stime
    return {"seconds": time.monotonic() - started, "processor": processor, "gib": usage.ru_maxrss / 2**20}


def measured(folder: Path, cases: int, classes: int = 2, channels: int = 1) -> Iterator[dict[str, object]]:
    """Take a data set of a size through every command; yield what is measured so far after each."""
    shutil.rmtree(folder, ignore_errors=True)
    scans, store, run = (folder / name for name in ("scans", "store", "run"))
    make_scans(scans, cases, classes, channels)
    settings = [f"--set={path}={json.dumps(value)}" for path, value in NETWORK.items()]
    line = ["train", str(store), "--split", "fold:0/10", "--out", str(run), f"--set=data.image_size={SIDE}", *settings]
    commands = {
        "prepare": ["prepare", "nifti", str(scans), str(store)],
        "diagnose": ["diagnose", str(store)],
        "train": line,
        "evaluate": ["evaluate", str(run), "--device", "cpu", "--split-part", "val"],
        "report": ["report", str(run), "--out", str(folder / "report.html")],
    }
    size = {"cases": cases, "samples": cases * SLICES, "classes": classes, "channels": channels}
    numbers: dict[str, dict[str, float]] = {}
    for name, command in commands.items():
        numbers[name] = measure(command)
        print(*size.values(), name, numbers[name], flush=True)
        yield {**size, "commands": numbers, "commit": commit()}
    shutil.rmtree(folder)


def make_long_scan(folder: Path, slices: int, side: int) -> Path:
    """Write a CT of noise."""
    import nibabel as nib

    folder.mkdir(parents=True)
    voxels = np.random.default_rng(0).integers(-1000, 1000, (side, side, slices), dtype=np.int16)
    nib.save(nib.Nifti1Image(voxels, np.diag([1.0, 1, 1, 1])), folder / "long.nii")
    return folder / "long.nii"


def trained(folder: Path, side: int = 64) -> Path:
    """Return a run of a network that was trained for a moment, in an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    store, run = folder / "store", folder / "run"
    make_scans(folder / "scans", 4)
    settings = [f"--set={path}={json.dumps(value)}" for path, value in NETWORK.items()]
    measure(["prepare", "nifti", str(folder / "scans"), str(store)])
    measure(
        [
            "train",
            str(store),
            "--split",
            "fold:0/4",
            "--out",
            str(run),
            *settings,
            f"--set=data.image_size={side}",
            "--set=data.batch_size=100",
        ]
    )
    return run


def many_segmented(folder: Path, scans: int) -> dict[str, object]:
    """Segment many small scans in one call, then call again: it finds all of them done."""
    run = trained(folder, SIDE)
    make_scans(folder / "many", scans, slices=4)
    line = ["predict", str(run), str(folder / "many" / "imagesTr"), "--out", str(folder / "out"), "--device", "cpu"]
    numbers = {"predict": measure(line), "again": measure([*line, "--resume"])}
    shutil.rmtree(folder)
    return {"scans": scans, "commands": numbers, "commit": commit()}


def segmented(folder: Path, slices: int, side: int) -> dict[str, object]:
    """Segment a long scan."""
    run = trained(folder)
    scan = make_long_scan(folder / "long", slices, side)
    numbers = measure(["predict", str(run), str(scan), "--out", str(folder / "out"), "--device", "cpu"])
    shutil.rmtree(folder)
    return {"slices": slices, "side": side, **numbers, "commit": commit()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, nargs="*", default=[100, 1000, 10000])
    parser.add_argument("--only", nargs="*", default=["cases", "classes", "channels", "scan", "scans"])
    parser.add_argument("--scans", type=int, nargs="*", default=[100, 1000, 10000], help="How many small ones.")
    parser.add_argument("--side", type=int, default=512, help="Height and width of the long scan.")
    options = parser.parse_args()
    sizes = {
        "cases": [{"cases": cases} for cases in options.cases],
        "classes": [{"cases": 100, "classes": classes} for classes in (2, 20, 200)],
        "channels": [{"cases": 100, "channels": channels} for channels in (1, 5, 20)],
    }
    path, folder = RESULTS / "load.json", options.folder.absolute() / "load"
    results = json.loads(path.read_text()) if path.is_file() else {}

    def save(kind: str, row: dict[str, object], names: Sequence[str]) -> None:
        """Put a row in the place of the one of the same size."""
        rows = results.setdefault(kind, {"rows": []})["rows"]
        rows[:] = [other for other in rows if any(other[name] != row[name] for name in names)] + [row]
        rows.sort(key=lambda row: [row[name] for name in names])
        results[kind]["cores"] = os.cpu_count()
        path.write_text(json.dumps(results, indent=2) + "\n")

    for kind in options.only:
        for size in sizes.get(kind, ()):
            for row in measured(folder, **size):
                save(kind, row, ("cases", "classes", "channels"))
        if kind == "scan":
            for slices in (150, 1500):
                save(kind, segmented(folder, slices, options.side), ("slices", "side"))
        if kind == "scans":
            for scans in options.scans:
                save(kind, many_segmented(folder, scans), ("scans",))


if __name__ == "__main__":
    main()
