"""`make test-oldest` installs the oldest libraries that are promised: those of pyproject.toml's lower bounds."""

import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.places import REPOSITORY

# It installs neither tools that no user runs nor nnU-Net nor Ray; their bounds are untested.
LEFT_OUT = {"dev", "nnunet", "ray"}


def versions(requirements: list[str], operator: str) -> dict[str, set[Version]]:
    """What follows the operator, for every library; an empty set for one without it."""
    bounds: dict[str, set[Version]] = {}
    for requirement in map(Requirement, requirements):
        matching = {Version(part.version) for part in requirement.specifier if part.operator == operator}
        bounds.setdefault(canonicalize_name(requirement.name), set()).update(matching)
    return bounds


def test_the_oldest_libraries_are_those_that_are_promised():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    promised = project["dependencies"] + [line for name in extras.keys() - LEFT_OUT for line in extras[name]]
    lines = (REPOSITORY / "tests/oldest.txt").read_text(encoding="utf-8").splitlines()
    oldest = [line for line in lines if not line.startswith("#")]
    assert versions(oldest, "==") == versions(promised, ">=")
