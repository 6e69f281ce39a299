"""Type checkers see a user's mistakes, and nothing else, in a script that uses every public name."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

import adawac
from tests.places import REPOSITORY

SCRIPT = REPOSITORY / "tests" / "typed_script.py"
LINES = SCRIPT.read_text(encoding="utf-8").splitlines()
WRONG = {number for number, line in enumerate(LINES, start=1) if line.endswith("# expect error")}


def test_the_script_uses_every_public_name():
    attributes = {node.attr for node in ast.walk(ast.parse("\n".join(LINES))) if isinstance(node, ast.Attribute)}
    assert set(adawac.__all__) <= attributes
    assert len(WRONG) > 10


def run(*command):
    environment = os.environ | {"MYPYPATH": str(REPOSITORY / "src")}
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=600).stdout


@pytest.mark.slow
def test_mypy_refuses_what_is_wrong_and_nothing_else(tmp_path):
    pytest.importorskip("mypy")
    options = ["--strict", "--config-file=", "--follow-imports=silent", "--untyped-calls-exclude=torch"]
    out = run(sys.executable, "-m", "mypy", *options, f"--cache-dir={tmp_path}", "tests/typed_script.py")
    assert {int(line) for line in re.findall(r"typed_script\.py:(\d+): error", out)} == WRONG, out


@pytest.mark.slow
def test_pyright_refuses_what_is_wrong_and_nothing_else():
    pyright = shutil.which("pyright")
    if pyright is None:
        pytest.skip("pyright is not installed")
    out = run(pyright, "--outputjson", "--pythonpath", sys.executable, "tests/typed_script.py")
    errors = json.loads(out)["generalDiagnostics"]
    assert {error["range"]["start"]["line"] + 1 for error in errors} == WRONG, out
