"""The documentation names what exists."""

import importlib.util
import pkgutil
import re

import pytest

from tests.places import REPOSITORY

PAGES = [*sorted((REPOSITORY / "docs").rglob("*.md")), REPOSITORY / "README.md"]
NEEDS = {"adawac.integrations.nnunet.trainer": "nnunetv2"}


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
