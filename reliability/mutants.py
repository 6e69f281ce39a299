"""Mutation testing of the library's files and of the metrics: which changed lines do their tests not notice?

    pip install cosmic-ray
    python -m reliability.mutants FOLDER [--most 40] [--seed 0] [--only losses metrics/masks]

Cosmic Ray's operators change numbers, arithmetic, comparisons, conditions, loops and decorators. A mutant has one such
change, drawn for each place of the code (annotations are none), in a copy of `src`; of each file, as many places as
--most says are drawn. The tests that follow run in a process of their own until one fails: then the mutant is killed.
So it is if they take ten times as long as usual. Mutants that are equivalent, as `reliability/equivalent.json` explains
one by one, survive rightly. Writes reliability/results/mutants.json, which `python -m reliability.render` puts into
docs/reliability.md.
"""

import argparse
import ast
import contextlib
import difflib
import importlib
import json
import os
import resource
import shutil
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.result_files import ROOT, commit
from reliability.trials import RESULTS

EQUIVALENT = Path(__file__).parent / "equivalent.json"
LIBRARY = ("losses", "algorithm", "methods", "features", "objective", "checks", "golden", "partly_labelled")
FILES = {
    **{f"{name}.py": LIBRARY for name in ("algorithm", "objective", "methods", "losses", "features")},
    "metrics/masks.py": ("metrics",),
    "metrics/surfaces.py": ("metrics",),
}
"""By file of src/adawac: the tests, of which those of the same name run first."""
IMPORTED = ("torch", "torch.distributed", "scipy.ndimage", "hypothesis", "beartype", "jaxtyping", "monai.losses")
IMPORTED += ("monai.metrics", "medpy.metric", "segmentation_models_pytorch", "torch.utils.checkpoint", "matplotlib")
"""What tests import besides adawac, before they are forked from here."""
OPTIONS = ("-q", "-x", "-p", "no:cacheprovider", "-k", "not compile", "-W", "ignore::pytest.PytestAssertRewriteWarning")


@dataclass(frozen=True)
class Mutant:
    """A file with one change.

    Attributes:
        line: Where.
        change: The line before and after.
        source: The file's new content.
    """

    line: int
    change: str
    source: str


Place = tuple[tuple[int, int], tuple[int, int]]
"""Line and column where something begins and ends."""


def places(source: str) -> dict[Place, list[tuple[Any, int]]]:
    """Return the places of a file that operators can change: which operators, and their how manieth place it is."""
    from cosmic_ray.ast import get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    tree, ignored = get_ast(source), list(_annotations(source))
    changes: dict[Place, list[tuple[Any, int]]] = {}
    for operator in (get_operator(name)() for name in sorted(operator_names()) if "Variable" not in name):
        for count, place in enumerate(_places(operator, tree)):
            if not any(first <= place[0] and place[1] <= last for first, last in ignored):
                changes.setdefault(place, []).append((operator, count))
    return changes


def mutants(source: str, changes: dict[Place, list[tuple[Any, int]]], random: Random) -> Iterator[Mutant]:
    """Yield a mutant for each place of a file, in random order."""
    from cosmic_ray.mutating import mutate_code

    for place in random.sample(sorted(changes), len(changes)):
        changed = mutate_code(source, *random.choice(changes[place]))
        if changed is not None and _is_python(changed):  # * and ** of arguments are operators to Cosmic Ray
            yield Mutant(place[0][0], _change(source, changed), changed)


def _places(operator: Any, node: Any) -> Iterator[Place]:
    """Yield where an operator can change something, in the order that it counts them in."""
    yield from operator.mutation_positions(node)
    for child in getattr(node, "children", ()):
        yield from _places(operator, child)


def _is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _annotations(source: str) -> Iterator[Place]:
    for node in ast.walk(ast.parse(source)):
        for name in ("annotation", "returns"):
            part = getattr(node, name, None)
            if part is not None:
                yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)


def _change(source: str, changed: str) -> str:
    lines = list(difflib.unified_diff(source.splitlines(), changed.splitlines(), n=0, lineterm=""))[2:]
    before, after = (" ".join(line[1:].strip() for line in lines if line[0] == sign).strip() for sign in "-+")
    return f"{before} → {after or 'nothing'}"


# -- one mutant --------------------------------------------------------------------------------------------------------


def tested(folder: Path, file: str, seconds: int | None) -> tuple[int, float]:
    """Run a file's tests on the copy in a folder; return the exit code, and the processor's seconds that they took."""
    pid = os.fork()
    if not pid:
        _run_tests(folder, file, seconds)
    _, status, usage = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime


def _run_tests(folder: Path, file: str, seconds: int | None) -> None:
    code: Any = 1
    try:
        if seconds is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        with (folder / "log.txt").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        sys.path.insert(0, str(folder / "src"))
        os.environ["PYTHONPATH"] = f"{folder / 'src'}:{ROOT}"
        os.chdir(ROOT)
        import pytest

        code = int(pytest.main([*OPTIONS, f"--basetemp={folder / 'tmp'}", *_tests(file)]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _tests(file: str) -> list[str]:
    name = Path(file).stem
    tests = sorted(FILES[file], key=lambda tests: tests != name)
    return [f"tests/{tests}" if tests == "metrics" else f"tests/test_{tests}.py" for tests in tests]


# -- all of them -------------------------------------------------------------------------------------------------------


def try_file(folder: Path, file: str, most: int, seed: int) -> dict[str, Any]:
    """Try mutants of a file; return how many there are, were tried and killed, and which survived."""
    path, original = folder / "src" / "adawac" / file, (ROOT / "src" / "adawac" / file).read_text()
    path.write_text(original)
    code, usual = tested(folder, file, None)
    assert code == 0, (folder / "log.txt").read_text()
    changes, survivors, tried = places(original), [], 0
    started = time.monotonic()
    for mutant in islice(mutants(original, changes, Random(f"{seed} {file}")), most):
        path.write_text(mutant.source)
        code, _ = tested(folder, file, int(10 * usual))
        if code == 0:
            survivors.append({"line": mutant.line, "change": mutant.change})
            print(f"{file}:{mutant.line} survives: {mutant.change}", flush=True)
        tried += 1
        if tried % 10 == 0:
            print(f"{file}: {tried} tried, {time.monotonic() - started:.0f} s", flush=True)
    path.write_text(original)
    return {"places": len(changes), "tried": tried, "survivors": survivors, "commit": commit()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int, default=40, help="mutants of each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=FILES, default=list(FILES))
    options = parser.parse_args()
    folder = options.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True  # two mutants may be as large and as old as each other
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != ROOT / "src"]
    for module in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    assert "adawac" not in sys.modules
    path = RESULTS / "mutants.json"
    for file in options.only:
        row = try_file(folder, file, options.most, options.seed)
        results = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps({**results, file: row}, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
