"""Time `adawac score` beside `nnUNetv2_evaluate_folder` on the same folders, and on a thousand volumes.

    python -m benchmarks.score                       24 drawn CTs, then 1,000 names of them; needs nnunetv2
    python -m benchmarks.score --volumes 8 --many 0  fewer, and no thousand

Both are commands in processes of their own, one after the other, so what they take to start counts. adawac computes
five metrics of which three are distances, slice scores and intervals; nnU-Net counts voxels. The counts must agree.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import nibabel as nib
import numpy as np

from benchmarks.metrics import ABDOMEN, organs
from benchmarks.result_files import RESULTS, show_result

OUT = RESULTS / "score.json"
SHAPE = (120, 256, 256)
AFFINE = np.diag([3.0, 1.5, 1.5, 1.0])


def draw(root, count):
    """Write truth and predictions of so many volumes, and what nnU-Net wants to know."""
    for number in range(count):
        places = [(share, tuple(max(3, radius // 2) for radius in radii)) for share, radii in ABDOMEN]
        for folder, labels in zip(("predictions", "truth"), organs(SHAPE, places, seed=number), strict=True):
            (root / folder).mkdir(exist_ok=True)
            nib.save(nib.Nifti1Image(labels, AFFINE), root / folder / f"case{number:04d}.nii.gz")
    labels = {"background": 0, **{f"organ {k}": k for k in range(1, len(ABDOMEN) + 1)}}
    about = {"labels": labels, "channel_names": {"0": "CT"}, "file_ending": ".nii.gz", "numTraining": count}
    (root / "dataset.json").write_text(json.dumps(about))
    plans = {"image_reader_writer": "SimpleITKIO", "label_manager": "LabelManager", "plans_name": "plans"}
    (root / "plans.json").write_text(json.dumps(plans))


def link(root, source, count):
    """Give the files of a folder so many names, by turns."""
    root.mkdir()
    for folder in ("truth", "predictions"):
        files = sorted((source / folder).iterdir())
        (root / folder).mkdir()
        for number in range(count):
            os.link(files[number % len(files)], root / folder / f"case{number:04d}.nii.gz")


def measured(words):
    """Run a command in a child of its own; return its wall and CPU seconds, and the memory of its largest process."""
    code = "import json, resource, subprocess, sys, time; start = time.perf_counter(); "
    code += "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); took = time.perf_counter() - start; "
    code += "used = resource.getrusage(resource.RUSAGE_CHILDREN); "
    code += "print(json.dumps([took, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))"
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], check=True, stdout=subprocess.PIPE)
    wall, processor, memory = json.loads(done.stdout.splitlines()[-1])
    return {"wall_s": round(wall, 2), "cpu_s": round(processor, 2), "largest_process_mib": round(memory)}


def adawac(root, workers, out):
    words = [sys.executable, "-m", "adawac", "score", root / "truth", root / "predictions"]
    words += ["--dataset-json", root.parent / "drawn" / "dataset.json", "--convention", "nnunet", "--workers", workers]
    return measured([*words, "--out", out, "--cases", out.with_suffix(".csv")])


def nnunet(root, workers, out):
    words = [Path(sys.executable).with_name("nnUNetv2_evaluate_folder"), root / "truth", root / "predictions"]
    words += ["-djfile", root / "dataset.json", "-pfile", root / "plans.json", "-np", workers, "-o", out]
    return measured(words)


def largest_difference(ours, theirs):
    """Return how far the means of Dice over cases differ at most, class by class."""
    summaries = json.loads(ours.read_text())["evaluations"][0]["metrics"]["dice"][:-1]
    means = json.loads(theirs.read_text())["mean"]
    return max(abs(row["mean"] - means[str(row["label"])]["Dice"]) for row in summaries)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--volumes", type=int, default=24)
    parser.add_argument("--many", type=int, default=1000, help="names in the second run; 0 leaves it out")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "drawn").mkdir()
        draw(root / "drawn", args.volumes)
        ours, theirs = root / "ours.json", root / "theirs.json"
        rounds = [
            (adawac(root / "drawn", args.workers, ours), nnunet(root / "drawn", args.workers, theirs))
            for _ in range(args.repeats)
        ]
        best = [min(runs, key=lambda run: run["cpu_s"]) for runs in zip(*rounds, strict=True)]
        result = {
            "machine": f"{platform.machine()} CPU",
            "processors": len(os.sched_getaffinity(0)),
            "processes": args.workers,
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "nnunetv2")},
            "volumes": args.volumes,
            "shape": list(SHAPE),
            "classes": len(ABDOMEN),
            "adawac": best[0],
            "nnunet": best[1],
            "largest_difference_in_dice": largest_difference(ours, theirs),
        }
        if args.many:
            link(root / "many", root / "drawn", args.many)
            result["many"] = {"volumes": args.many, **adawac(root / "many", args.workers, ours)}
    show_result(result, args.out)


if __name__ == "__main__":
    main()
