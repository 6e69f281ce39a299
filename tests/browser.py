"""Chromium for the tests of pages, and a page that notes what it should not do."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def chromium(options: Sequence[str]) -> Iterator[Any]:
    """Start the machine's Chromium, or skip."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("there is no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    options = ["--no-sandbox", "--disable-background-networking", *options]
    with playwright.sync_playwright() as tool:
        opened = tool.chromium.launch(executable_path=path, args=options)
        yield opened
        opened.close()


class WatchedPage:
    """A page in a context of its own; a request to another place, and any message in the console, is noted."""

    def __init__(self, browser: Any, url: str, size: tuple[int, int], **options: Any):
        width, height = size
        settings = {"viewport": {"width": width, "height": height}, "color_scheme": "light", **options}
        self.url, self.complaints = url, list[str]()
        self.context = browser.new_context(**settings)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self._check(request.url))
        self.page.goto(url)
        self.page.wait_for_selector("html[data-ready]", state="attached")

    def _check(self, url: str) -> None:
        if not url.startswith((self.url, "data:", "blob:")):
            self.complaints.append(f"a request for {url}")
