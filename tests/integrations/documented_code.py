"""The Python of a page of the documentation, as its readers would run it."""

import re

from tests.places import REPOSITORY


def code_of(page: str) -> str:
    """Return all Python blocks of a page one after another; indented ones are fragments."""
    text = (REPOSITORY / "docs" / "how-to" / page).read_text()
    return "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
