"""On a machine with a GPU: are the numbers right there, and how fast is it? All that docs/performance.md says of GPUs.

    python benchmarks/gpu_check.py STORE                           # everything: some 25 minutes on an H200
    python benchmarks/gpu_check.py STORE --seconds 500 --out DIR   # as much as there is time for; again goes on with it

STORE is ACDC, prepared. Each part is a script of its own, whose results lie beside this one's. `gpu-check.json` says
for each part how long it took, how it ended, and which source it measured: the hash of everything that a training step
(or a start) consists of, without comments and imports. A part that stands there with the present hash is not run again,
so that the whole can be done piece by piece; `tests/test_docs.py` fails when a part was measured with other source than
there is.
"""

import argparse
import ast
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
NAME = "gpu-check.json"
# What a step consists of, from the views to the optimiser.
STEP = [
    *(f"train/{one}.py" for one in ("step", "capture", "casting", "forward", "record", "optim")),
    *(f"{one}.py" for one in ("algorithm", "losses", "objective", "pixel_sums", "pixel_kernels", "methods")),
    "models/fused",
    "models/transunet.py",
    *(f"data/{one}.py" for one in ("views", "resample", "warp_kernels", "randomness")),
]
# And what happens before the first one.
START = [
    *STEP,
    *(f"train/{one}.py" for one in ("setup", "ranks")),
]


def parts(store: Path, out: Path, scratch: Path) -> dict[str, tuple[int, list[str]]]:
    """Return the seconds that each part takes on an H200, and its command."""
    script = lambda name, *rest: [sys.executable, str(ROOT / "benchmarks" / name), *map(str, rest)]  # noqa: E731
    training = lambda model, *measured: script("training.py", store, *measured, "--model", model, "--out", out)  # noqa: E731
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
        "criterion": (25, script("criterion.py", "--device", "cuda", "--out", out)),
        "pixels": (40, script("pixels.py", "--out", out / "pixels-cuda.json")),
        "norms": (60, script("norms.py", "--out", out / "norms-cuda.json")),
        "transunet": (60, script("transunet.py", "--out", out / "transunet-cuda.json")),
        "evaluation": (80, script("evaluation.py", *network, "--out", out / "evaluation.json")),
        "compiled-unet": (90, training("unet", "compiled")),
        "compiled-transunet": (360, training("transunet", "compiled")),
    }


def source_hash(part: str = "training") -> str:
    """Return the hash of what a part measures; comments, docstrings, imports and blank lines do not count."""
    digest = hashlib.sha256()
    for path in _files(START if part.startswith("start") else STEP):
        digest.update(path.relative_to(ROOT).as_posix().encode())
        text = path.read_text()
        digest.update(("\n".join(_code(text)) if path.suffix == ".py" else text).encode())
    return digest.hexdigest()[:16]


def _files(names: list[str]) -> Iterator[Path]:
    for name in names:
        path = ROOT / "src" / "adawac" / name
        yield from sorted(path.glob("*.py")) if path.is_dir() else [path]


def _code(source: str) -> Iterator[str]:
    """Yield the lines that do something. As text: how Python prints a tree changes from version to version."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if _says_nothing(node):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    yield from (line.rstrip() for line in lines if line.strip())


def _says_nothing(node: ast.AST) -> TypeGuard[ast.stmt]:
    """Tell whether a statement is a docstring or an import."""
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return text or isinstance(node, ast.Import | ast.ImportFrom)


def stale(results: Path = RESULTS) -> list[str]:
    """Return the parts that were measured with other source than there is now."""
    path = results / NAME
    found = json.loads(path.read_text())["parts"] if path.exists() else {}
    return [name for name, one in found.items() if one["source"] != source_hash(name)]


def run(command: list[str], limit: float) -> int:
    """Run a part; return its exit status, 124 where it took too long."""
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
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
    known = next((one / NAME for one in (args.out, RESULTS) if (one / NAME).exists()), None)
    done = json.loads(known.read_text())["parts"] if known else {}
    scratch = tempfile.TemporaryDirectory()  # for a network, which is no result
    for name, (needed, command) in parts(args.store.absolute(), args.out.absolute(), Path(scratch.name)).items():
        source = source_hash(name)
        fresh = name in done and done[name]["source"] == source and done[name]["status"] == 0
        if (args.only and name not in args.only) or fresh:
            continue
        left = args.seconds - (time.monotonic() - started)
        if needed > left:
            print(f"{name}: left out, needs about {needed} s of {left:.0f} s", flush=True)
            continue
        print(f"{name}: about {needed} s", flush=True)
        begun = time.monotonic()
        status = run(command, min(3 * needed, left))
        done[name] = {"source": source, "status": status, "seconds": round(time.monotonic() - begun, 1)}
        (args.out / NAME).write_text(json.dumps({"parts": done}, indent=2) + "\n")
        print(f"{name}: {done[name]}", flush=True)
    scratch.cleanup()
    return 0 if all(one["status"] == 0 for one in done.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
