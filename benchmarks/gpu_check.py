"""On a machine with a GPU: are the numbers right there, and how fast is it? All that docs/performance.md says of GPUs.

    python -m benchmarks.gpu_check STORE                           # everything: some 28 minutes on an H200
    python -m benchmarks.gpu_check STORE --seconds 500 --out DIR   # as much as there is time for; again goes on with it

STORE is ACDC, prepared. Each part is a script of its own, whose results lie beside this one's. `gpu-check.json` says
for each part how long it took, how it ended, and at which commit. A part that has been measured at the present commit
is not run again, so that the whole can be done piece by piece. Without git, name the commit in BENCHMARK_COMMIT.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from benchmarks.result_files import RESULTS, ROOT, commit

NAME = "gpu-check.json"


def parts(store: Path, out: Path, scratch: Path) -> dict[str, tuple[int, list[str]]]:
    """Return the seconds that each part takes on an H200, and its command."""
    script = lambda name, *rest: [sys.executable, "-m", f"benchmarks.{name}", *map(str, rest)]  # noqa: E731
    training = lambda model, *measured: script("training", store, *measured, "--model", model, "--out", out)  # noqa: E731
    shares = lambda model: script("kernel_shares", store, "--model", model, "--out", out)  # noqa: E731
    together = ["-n", "6"] if find_spec("xdist") else []  # most of their time is Triton's compiling
    options = ["-q", "-m", "gpu", "-p", "no:cacheprovider", "-p", "no:benchmark"]
    tests = [sys.executable, "-m", "pytest", *options, *together, str(ROOT / "tests")]
    network = [scratch / "unet", "--store", store, "--epochs", 30]
    return {
        "tests": (150, tests),
        "start-unet": (50, training("unet", "start")),
        "start-transunet": (80, training("transunet", "start")),
        "training-unet": (240, training("unet", "kernels", "ladder", "cost", "batch", "size", "rows")),
        "training-transunet": (600, training("transunet", "kernels", "ladder", "cost", "batch")),
        **{f"kernel-shares-{model}": (seconds, shares(model)) for model, seconds in (("unet", 70), ("transunet", 120))},
        "criterion": (25, script("criterion", "--device", "cuda", "--out", out)),
        "pixels": (40, script("pixels", "--out", out / "pixels-cuda.json")),
        "norms": (60, script("norms", "--out", out / "norms-cuda.json")),
        "transunet": (60, script("transunet", "--out", out / "transunet-cuda.json")),
        "evaluation": (80, script("evaluation", *network, "--out", out / "evaluation.json")),
        "compiled-unet": (90, training("unet", "compiled")),
        "compiled-transunet": (360, training("transunet", "compiled")),
    }


def run(command: list[str], limit: float) -> int:
    """Run a part; return its exit status, 124 where it took too long."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    try:
        return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, timeout=limit).returncode
    except subprocess.TimeoutExpired:
        return 124


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="how long all of it may take")
    parser.add_argument("--only", nargs="*", help="these parts")
    args = parser.parse_args()
    started = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    known = next((folder / NAME for folder in (args.out, RESULTS) if (folder / NAME).exists()), None)
    done = json.loads(known.read_text())["parts"] if known else {}
    present = commit()
    scratch = tempfile.TemporaryDirectory()  # for a network, which is not a result
    for name, (needed, command) in parts(args.store.absolute(), args.out.absolute(), Path(scratch.name)).items():
        fresh = present is not None and done.get(name, {}).get("commit") == present and done[name]["status"] == 0
        if (args.only and name not in args.only) or fresh:
            continue
        left = args.seconds - (time.monotonic() - started)
        if needed > left:
            print(f"{name}: left out, needs about {needed} s of {left:.0f} s", flush=True)
            continue
        print(f"{name}: about {needed} s", flush=True)
        begun = time.monotonic()
        status = run(command, min(3 * needed, left))
        done[name] = {"commit": present, "status": status, "seconds": round(time.monotonic() - begun, 1)}
        (args.out / NAME).write_text(json.dumps({"parts": done}, indent=2) + "\n")
        print(f"{name}: {done[name]}", flush=True)
    scratch.cleanup()
    return 0 if all(part["status"] == 0 for part in done.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
