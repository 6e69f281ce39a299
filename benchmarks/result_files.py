"""Results as JSON files, each with the commit at which it was measured."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def commit() -> str | None:
    """Return the commit of the checkout, with a + where files differ from it; BENCHMARK_COMMIT stands in for git."""
    if named := os.environ.get("BENCHMARK_COMMIT"):
        return named
    git = ["git", "-C", str(ROOT)]
    try:
        short = subprocess.run([*git, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "src"]).returncode
    except (OSError, subprocess.CalledProcessError):
        return None
    return short.stdout.strip() + ("+" if changed else "")


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write a result, with the present commit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"commit": commit(), **result}, indent=2) + "\n")


def show_result(result: dict[str, Any], path: Path | None) -> None:
    """Print a result, and write it where there is a path."""
    print(json.dumps(result, indent=2))
    if path is not None:
        write_result(path, result)
