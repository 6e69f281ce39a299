"""A browser, and pages of the viewer in it. The DICOM series of the prediction's tests are looked at, too."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adawac.inference.label_files import class_table, write_sidecar
from tests.browser import chromium
from tests.viewer.viewed_scans import block, make_scan, save
from tests.viewer.viewer_page import OPTIONS, Reader


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium(OPTIONS) as opened:
        page = opened.new_page()
        if not page.evaluate("!!document.createElement('canvas').getContext('webgl2')"):
            pytest.skip("this Chromium has no WebGL2")
        page.close()
        yield opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scan with a bright block, its label with a name, and a label map that misses a part of it."""
    folder = tmp_path_factory.mktemp("viewed")
    make_scan(folder / "scan.nii.gz")
    save(folder / "truth.nii.gz", block(2))
    write_sidecar(folder / "truth.json", {"classes": class_table(["background", "heart", "lung"], [0, 1, 2])})
    part = block(2)
    part[:6] = 0
    save(folder / "prediction.nii.gz", part)
    return folder


@pytest.fixture(scope="module")
def shared(browser: Any, folder: Path) -> Iterator[Reader]:
    opened = Reader(browser, folder / "scan.nii.gz", [folder / "truth.nii.gz"])
    yield opened
    opened.close()


@pytest.fixture
def reader(shared: Reader) -> Iterator[Reader]:
    """One page for many tests, as it was when it was opened."""
    shared.reset()
    yield shared
    complaints, shared.complaints = shared.complaints, []
    assert complaints == []
