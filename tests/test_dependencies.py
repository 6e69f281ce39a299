"""pyproject.toml asks for the libraries that the code imports, and `make test-oldest` installs the oldest of them."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from adawac.runs.environment import PACKAGES
from tests.places import REPOSITORY

# It installs neither tools that no user runs nor nnU-Net nor Ray; their bounds are untested.
LEFT_OUT = {"dev", "nnunet", "ray"}
# What others import for us, or bring along.
INDIRECT = {
    "einops": "MONAI's transformers",
    "onnx": "torch's exporter",
    "onnxscript": "torch's exporter",
    "tensorboard": "Fabric's logger",
}
BROUGHT = {
    "huggingface-hub": "timm",
    "lightning-utilities": "lightning-fabric",
    "pytorch-lightning": "who has it instead of lightning",
    "triton": "torch, where it has one",
    "typing-extensions": "torch",
}
TOOLS = {"test", "dev"}
IMPORTERS = {"library", "import_module"}


@cache
def project() -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements(without: set[str]) -> list[str]:
    """What the package asks for, with all extras but some."""
    extras = project()["optional-dependencies"]
    return project()["dependencies"] + [line for name in extras.keys() - without for line in extras[name]]


def names(lines: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in lines}


def imports(tree: ast.Module) -> Iterator[str]:
    """All top-level modules that a file imports, also by our own lazy function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in IMPORTERS
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.args[0].value


@cache
def imported() -> set[str]:
    """The distributions of the libraries that our code imports."""
    files = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "src").rglob("*.py")]
    modules = {name.partition(".")[0] for text in files for name in imports(ast.parse(text))}
    modules -= {"adawac", *sys.stdlib_module_names}
    homes = packages_distributions()
    distributions = {canonicalize_name(home) for module in modules for home in homes.get(module, [module])}
    return {"pytorch-ignite" if name == "ignite" else name for name in distributions}


def test_a_bug_report_names_all_of_them():
    assert names(requirements(TOOLS)) <= {canonicalize_name(name) for name in PACKAGES}


def test_every_library_that_the_code_imports_is_asked_for():
    assert imported() - names(requirements(TOOLS)) <= BROUGHT.keys()


@pytest.mark.parametrize("part", ["dependencies", *sorted(project()["optional-dependencies"].keys() - TOOLS)])
def test_nothing_is_asked_for_that_no_code_imports(part: str):
    extras = project()["optional-dependencies"]
    asked = names(extras[part] if part in extras else project()["dependencies"])
    assert asked - INDIRECT.keys() <= imported()


def versions(lines: list[str], operator: str) -> dict[str, set[Version]]:
    """What follows the operator, for every library; an empty set for one without it."""
    bounds: dict[str, set[Version]] = {}
    for requirement in map(Requirement, lines):
        matching = {Version(part.version) for part in requirement.specifier if part.operator == operator}
        bounds.setdefault(canonicalize_name(requirement.name), set()).update(matching)
    return bounds


def test_the_oldest_libraries_are_those_that_are_promised():
    lines = (REPOSITORY / "tests/oldest.txt").read_text(encoding="utf-8").splitlines()
    oldest = [line for line in lines if not line.startswith("#")]
    assert versions(oldest, "==") == versions(requirements(LEFT_OUT), ">=")
