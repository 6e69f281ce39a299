"""Every table and figure of the paper as a quick grid, in one folder, so that they share their runs."""

import json
from pathlib import Path

import pytest
from PIL import Image

from adawac.cli import run as command
from adawac.reproduction import grid_names, load_grid
from adawac.reproduction.quick import MARK
from adawac.runs import list_runs

FEWER = ["--set", "epochs=4"]  # what comes out is of no matter here


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("quick")


@pytest.mark.slow
@pytest.mark.parametrize("name", grid_names())
def test_a_quick_grid(folder, name, capsys):
    assert command(["reproduce", name, "--quick", "--out", str(folder), "--jobs", "2", "--json", *FEWER]) == 0
    told = json.loads(capsys.readouterr().out)
    _, grid = load_grid(name)
    assert told["quick"]
    assert told["warning"] == MARK
    assert [row["labels"] for row in told["rows"]] == [row.labels for row in grid.rows()]
    if grid.drawings:
        picture, document = map(Path, told["files"])
        assert document.read_bytes().startswith(b"%PDF")
        with Image.open(picture) as opened:
            assert opened.info["Description"].startswith(MARK)
        return
    assert len(told["files"]) == 4
    # The abdomen of the phantom has none of the heart's classes: these cells are missing, all others are there.
    absent = 3 * len(told["rows"]) if grid.dataset == "acdc" else 0
    assert told["missing"] == absent
    assert all(run.status == "finished" for run in list_runs(folder / "runs"))
