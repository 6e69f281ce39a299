"""The documentation names what exists."""

import importlib.util
import pkgutil
import re

import pytest

import adawac
from tests.places import REPOSITORY

API = sorted((REPOSITORY / "docs" / "reference" / "api").glob("*.md"))
PAGES = [*sorted((REPOSITORY / "docs").rglob("*.md")), REPOSITORY / "README.md"]
NEEDS = {"adawac.integrations.nnunet.trainer": "nnunetv2"}


def test_the_api_reference_has_every_public_name_once():
    named = [
        name for page in API for name in re.findall(r"^::: ([\w.]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(named) == len(set(named))
    public = {name for names in adawac._NAMES.values() for name in names.split()}
    assert public <= {name.removeprefix("adawac.") for name in named}
    overview = API[[page.name for page in API].index("index.md")].read_text(encoding="utf-8")
    assert public <= set(re.findall(r"`(\w+)`", overview))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_name_on_a_page_can_be_imported(page):
    text = page.read_text(encoding="utf-8")
    names = set(re.findall(r"(?<![\w./-])adawac(?:\.[A-Za-z_]\w*)+", text))
    for module, imported in re.findall(r"^from (adawac[\w.]*) import ([\w, ]+)", text, re.MULTILINE):
        names |= {f"{module}.{name.strip()}" for name in imported.split(",")}
    for name in sorted(names):
        needed = [library for module, library in NEEDS.items() if name.startswith(module)]
        if all(importlib.util.find_spec(library) for library in needed):
            assert pkgutil.resolve_name(name) is not None, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_file_of_the_repository_that_a_page_names_is_there(page):
    pattern = r"\b((?:tests|benchmarks|studies|reliability|src|examples)/[\w./-]+\.(?:py|yaml|json|ipynb))"
    for name in re.findall(pattern, page.read_text(encoding="utf-8")):
        assert (REPOSITORY / name).is_file(), name
