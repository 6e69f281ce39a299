"""The documentation says what was measured."""

import sys

from tests.places import REPOSITORY


def test_pages_quote_the_measured_numbers():
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    import render

    for path in render.PAGES:
        page = path.read_text()
        assert render.rendered(page) == page, f"{path}: run `python benchmarks/render.py`"
        assert page.count("<!-- end -->") == page.count("<!--") / 2 >= 1
