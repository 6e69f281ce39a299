"""Every table and figure of the paper as a quick grid on both engines, in one folder, so that they share their runs."""

import json
from pathlib import Path

import pytest
from PIL import Image

from adawac.cli import run as command
from adawac.reproduction import grid_names, load_grid
from adawac.reproduction.grid_data import MARK
from adawac.runs import list_runs

TABLES = [name for name in grid_names() if name.startswith("table")]
# What comes out is of no matter here. Tiny: a network of two layers instead of the quick grids' own.
FEWER = ["--set", "epochs=4"]
TINY = ["--set", "epochs=1", "--set", "model.name=tests.networks.small_network:small"]
TINY += [f"--set=model.options.{name}=null" for name in ("encoder_depth", "decoder_channels")]


# Ray's own code leaves sockets and files to the garbage collector, and uses what Python deprecates.
@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.filterwarnings("ignore"))])
def engine(request):
    """Options that choose the engine; a Ray cluster serves all grids, so that its processes are started once."""
    if request.param == "ray":
        ray = pytest.importorskip("ray")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield ["--engine", "ray"]
        ray.shutdown()
    else:
        yield ["--jobs", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, engine):
    return tmp_path_factory.mktemp("quick")


def test_a_full_disk_is_said_with_the_folder(tmp_path, monkeypatch, capsys):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("adawac.reproduction.grid_data.write_synapse_layout", fail)
    assert command(["reproduce", TABLES[0], "--quick", "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"adawac: Expected to write the phantom to {tmp_path / 'out'}")
    assert "No space left on device" in err


def run_quick(name, folder, capsys, options):
    """Run a quick grid, check what it says of itself, and return that."""
    assert command(["reproduce", name, "--quick", "--out", str(folder), "--json", *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["quick"]
    assert told["warning"] == MARK
    assert [row["labels"] for row in told["rows"]] == [row.labels for row in load_grid(name)[1].rows()]
    assert [run.status for run in list_runs(folder / "runs") if run.status != "finished"] == []
    return told


def check_table(name, told):
    assert sorted(Path(file).suffix for file in told["files"]) == [".html", ".json", ".md", ".tex"]
    # The abdomen of the phantom has none of the heart's classes: these cells are missing, all others are there.
    absent = 3 * len(told["rows"]) if load_grid(name)[1].dataset == "acdc" else 0
    assert told["missing"] == absent


# Each run starts Python and torch: a table of each data set is enough for every day.
DAILY = ("table-3", "table-8")


@pytest.mark.parametrize(
    "name", [name if name in DAILY else pytest.param(name, marks=pytest.mark.slow) for name in TABLES]
)
def test_a_tiny_grid(folder, engine, name, capsys):
    check_table(name, run_quick(name, folder, capsys, [*engine, *TINY]))


@pytest.mark.slow
@pytest.mark.parametrize("name", grid_names())
def test_a_quick_grid(folder, engine, name, capsys):
    told = run_quick(name, folder, capsys, [*engine, *FEWER])
    if name in TABLES:
        check_table(name, told)
        return
    picture, document = map(Path, told["files"])
    assert document.read_bytes().startswith(b"%PDF")
    with Image.open(picture) as opened:
        assert opened.info["Description"].startswith(MARK)
