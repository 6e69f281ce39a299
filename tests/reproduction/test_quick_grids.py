"""Every table and figure of the paper as a quick grid on both engines, in one folder, so that they share their runs."""

import json
from pathlib import Path

import pytest
from PIL import Image

from adawac.cli import run as command
from adawac.data.parallel import same_sigterm
from adawac.reproduction import grid_names, load_grid
from adawac.reproduction.grid_data import MARK
from adawac.runs import list_runs

TABLES = [name for name in grid_names() if name.startswith("table")]
# What comes out is of no matter here. Tiny: a network of two layers instead of the quick grids' own.
FEWER = ["--set", "epochs=4"]
TINY = ["--set", "epochs=1", "--set", "model.name=tests.networks.small_network:small"]
TINY += [f"--set=model.options.{name}=null" for name in ("encoder_depth", "decoder_channels")]


@pytest.fixture(scope="module")
def engine(request):
    """Options that choose the engine; a Ray cluster serves all grids, so that its processes are started once."""
    if request.param == "ray":
        ray = pytest.importorskip("ray")
        with same_sigterm():
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


# Each run of Ray starts Python and torch: a table of each data set, and one of them there, is enough for every day.
DAILY = {("local", "table-3"), ("local", "table-8"), ("ray", "table-3")}


def on_both_engines(names, daily=frozenset()):
    """Every grid on both engines; Ray's own code leaves files to the garbage collector, and uses what is deprecated."""

    def marks(engine, name):
        slow = [] if (engine, name) in daily else [pytest.mark.slow]
        return slow + ([pytest.mark.filterwarnings("ignore")] if engine == "ray" else [])

    grids = [pytest.param(engine, name, marks=marks(engine, name)) for engine in ("local", "ray") for name in names]
    return pytest.mark.parametrize(("engine", "name"), grids, indirect=["engine"], scope="module")


@on_both_engines(TABLES, DAILY)
def test_a_tiny_grid(folder, engine, name, capsys):
    check_table(name, run_quick(name, folder, capsys, [*engine, *TINY]))


@on_both_engines(grid_names())
def test_a_quick_grid(folder, engine, name, capsys):
    told = run_quick(name, folder, capsys, [*engine, *FEWER])
    if name in TABLES:
        check_table(name, told)
        return
    picture, document = map(Path, told["files"])
    assert document.read_bytes().startswith(b"%PDF")
    with Image.open(picture) as opened:
        assert opened.info["Description"].startswith(MARK)
