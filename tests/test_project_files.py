"""What lies beside the code agrees with it: workflows, Dockerfile, Makefile, CITATION.cff, the changelog, templates.

`make lint-forge` checks what each of these files may contain at all.
"""

import re
import tomllib
from typing import Any

import pytest
import yaml

import adawac
from adawac.cli import app
from tests.places import REPOSITORY

WORKFLOWS = sorted((REPOSITORY / ".github/workflows").glob("*.yml"))
PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def text(name: str) -> str:
    path = REPOSITORY / name
    if not path.exists():
        pytest.skip(f"this is no checkout: it has no {name}")
    return path.read_text(encoding="utf-8")


def steps() -> list[dict[str, Any]]:
    jobs = [job for path in WORKFLOWS for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()]
    return [step for job in jobs for step in job["steps"]]


def test_every_action_is_pinned_to_one_commit():
    used = {step["uses"] for step in steps() if "uses" in step}
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action in used), used
    assert len(used) == len({action.partition("@")[0] for action in used})


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "README.md", "docs/index.md", ".github/pull_request_template.md"])
def test_every_target_that_is_named_exists(page: str):
    makefile = text("Makefile")
    targets = set(re.findall(r"^([a-z-]+):.*##", makefile, re.MULTILINE))
    assert targets <= set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())
    quoted = re.findall(r"(?:`|^)make (?:[A-Z]+=\S+ )*([a-z -]+?)(?:`|\s{2,}|\s*#|$)", text(page), re.MULTILINE)
    named = {target for words in quoted for target in words.split()}
    assert named
    assert named <= targets, named - targets


def test_workflows_make_what_the_makefile_has():
    targets = set(re.findall(r"^([a-z-]+):.*##", text("Makefile"), re.MULTILINE))
    lines = [line for step in steps() for line in step.get("run", "").splitlines() if line.startswith("make ")]
    assert {"test-oldest", "lint-forge", "docs"} <= set(" ".join(lines).split()) - {"make"} <= targets


@pytest.mark.parametrize("name", [".github/workflows/tests.yml", "Dockerfile", "Makefile"])
def test_every_extra_that_is_installed_exists(name: str):
    listed = re.findall(r"\.\[([a-z,]+)\]|^EXTRAS := (.*)$| EXTRAS=(\S+)", text(name), re.MULTILINE)
    extras = {extra for groups in listed for group in groups for extra in group.split(",") if extra}
    assert extras
    assert extras <= PROJECT["optional-dependencies"].keys()


def test_the_versions_of_python_are_those_that_are_tested():
    matrix = yaml.safe_load(text(".github/workflows/tests.yml"))["jobs"]["quick"]["strategy"]["matrix"]["python"]
    classifiers = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert classifiers == matrix[: len(classifiers)]  # a newer one may be tried before it is promised
    assert PROJECT["requires-python"] == f">={matrix[0]}"


def test_citation_and_changelog_have_the_version():
    citation = yaml.safe_load(text("CITATION.cff"))
    assert citation["version"] == adawac.__version__
    assert citation["license"] == PROJECT["license"]
    headings = re.findall(r"^## (\S+)", text("CHANGELOG.md"), re.MULTILINE)
    assert adawac.__version__ in headings[:2]


def test_a_bug_report_asks_for_a_command_that_exists():
    form = yaml.safe_load(text(".github/ISSUE_TEMPLATE/bug.yml"))
    asked = " ".join(field["attributes"].get("description", "") for field in form["body"])
    commands = re.findall(r"`adawac ([a-z][a-z-]*)[ `]", asked)
    assert commands == ["version"]
    assert set(commands) <= set(app)
