"""The store of a grid: another data set's is refused, and what is not the paper's data says so."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from adawac.cli import run as command
from adawac.data.cases import SampleTable, sample_id
from adawac.data.phantom.phantom_files import SYNAPSE_TRAINING
from adawac.data.store import Store
from adawac.errors import DataError
from adawac.reproduction import grid_names, load_grid
from adawac.reproduction.grid_data import check_scorable, checked_store, describe_store, is_papers_data, phantom_mark
from tests.reproduction.grid_files import write_grid


@pytest.mark.parametrize("name", grid_names())
def test_a_grid_of_the_paper_takes_its_own_data_set_only(name, small_store):
    _, grid = load_grid(name)
    if grid.dataset == "synapse":  # the phantom has its organs
        with pytest.raises(DataError, match=r"of synapse, but .* says that it is phantom-ct.*adawac prepare synapse"):
            checked_store(small_store, grid)
        assert checked_store(small_store, grid, phantom=True).path == small_store
    else:
        with pytest.raises(DataError, match=r"has no 'RV'.*Prepare the data set acdc"):
            checked_store(small_store, grid)


def test_a_grid_of_ones_own_takes_any_store_that_has_its_columns(tmp_path, small_store):
    _, grid = load_grid(write_grid(tmp_path / "grid.yaml", dataset="acdc"))
    assert checked_store(small_store, grid).path == small_store
    _, grid = load_grid(write_grid(tmp_path / "grid.yaml", columns={"LV": {"metric": "dice", "class": "LV"}}, paper={}))
    with pytest.raises(DataError, match="has no 'LV'"):
        checked_store(small_store, grid)


def synapse_table(training, dataset="synapse") -> SampleTable:
    """The samples of a store of Synapse with these training cases, and the paper's test cases of one slice each."""
    cases = {f"case{number:04d}": counts for number, counts in training.items()} | {
        f"test{k}": (1, 0, 0) for k in range(12)
    }
    rows = [(case, k, first <= k <= last) for case, (count, first, last) in cases.items() for k in range(count)]
    case, number, dense = (np.array(column) for column in zip(*rows, strict=True))
    return SampleTable(
        id=np.array([sample_id(dataset, case, case, "0", k) for case, k, _ in rows]),
        patient=case,
        case=case,
        slice=number,
        axis=np.full(len(rows), "0"),
        unit=np.full(len(rows), "slice"),
        split=np.where(np.char.startswith(case, "test"), "test", "train"),
        group=np.full(len(rows), ""),
        position=number,
        shape=np.tile([4, 4], (len(rows), 1)),
        fraction=np.where(dense[:, None], [0.5, 0.5], [1.0, 0.0]),
        class_names=("background", "liver"),
    )


def store_of(training, dataset="synapse"):
    return SimpleNamespace(table=synapse_table(training, dataset), dataset=dataset, info={"source": "SynapseSlices"})


def test_another_data_set_with_the_same_classes_is_named():
    _, grid = load_grid("table-2")
    other = store_of(SYNAPSE_TRAINING, dataset="AMOS")
    assert not is_papers_data(other, grid, grid.rows())
    found = describe_store(other, grid, grid.rows(last={"data.split": "fold:0/2"}))
    assert found == (
        "The store says that it is AMOS and not synapse: ours are numbers of AMOS, which those of the paper are not."
    )
    assert describe_store(other, grid, grid.rows()).startswith(f"{found} Data: 2211 training slices")


def test_the_papers_data_is_recognised():
    _, grid = load_grid("table-2")
    whole = store_of(SYNAPSE_TRAINING)
    assert is_papers_data(whole, grid, grid.rows())
    assert phantom_mark(whole, grid) == ""
    expected = "2211 training slices of 18 cases, 1280 of them label-dense; 12 test cases"
    assert describe_store(whole, grid, grid.rows()) == f"Data: {expected}, as in the paper."
    part = store_of({5: SYNAPSE_TRAINING[5]})
    assert not is_papers_data(part, grid, grid.rows())
    found = describe_store(part, grid, grid.rows())
    assert found.startswith("Data: 117 training slices of 1 cases, 94 of them label-dense; 12 test cases.")
    assert found.endswith(f"The paper had {expected}.")


def test_test_cases_without_a_label_do_not_count():
    _, grid = load_grid("table-2")
    whole = store_of(SYNAPSE_TRAINING)
    bare = np.isin(whole.table.case, ["test0", "test7"])[:, None]
    whole.table = replace(whole.table, fraction=np.where(bare, np.nan, whole.table.fraction))
    assert not is_papers_data(whole, grid, grid.rows())
    assert "; 10 test cases. The paper had 2211 " in describe_store(whole, grid, grid.rows())


def test_the_papers_subsets_are_recognised():
    _, grid = load_grid("table-1")
    whole = store_of(SYNAPSE_TRAINING, dataset="Synapse")
    assert is_papers_data(whole, grid, grid.rows())
    sizes = "half-slice 1111, half-vol 1088, half-sparse 1118"
    assert describe_store(whole, grid, grid.rows()).endswith(f"Slices of the subsets: {sizes}, as in the paper.")
    # As many slices, but counted from 1: other ones are even, and fewer are in the first half.
    whole.table = replace(whole.table, slice=whole.table.slice + 1)
    assert not is_papers_data(whole, grid, grid.rows())
    told = describe_store(whole, grid, grid.rows())
    assert "12 test cases, as in the paper. Slices of the subsets: half-slice 1100, half-vol 1088, " in told
    assert told.endswith(f"The paper had {sizes}.")
    _, other = load_grid("table-3")  # of ACDC the paper has no subsets
    assert "subsets" not in describe_store(whole, other, other.rows(last={"data.subset": "half-vol"}))


def test_a_grid_of_ones_own_is_not_held_against_the_paper(tmp_path, small_store):
    _, grid = load_grid(write_grid(tmp_path / "grid.yaml"))
    assert "The paper had" not in describe_store(Store(small_store), grid, grid.rows())
    rows = grid.rows(last={"data.split": "fold:0/2"})  # who trains is another question for every split
    assert describe_store(Store(small_store), grid, rows) == ""


def test_a_store_that_cannot_be_scored_is_refused_before_any_run(tmp_path, small_store, capsys):
    store = shutil.copytree(small_store, tmp_path / "store")
    table = store / "table.csv"
    table.write_text(table.read_text(encoding="utf-8").replace(",test,", ",train,"), encoding="utf-8")
    grid = write_grid(tmp_path / "grid.yaml")
    words = ["reproduce", str(grid), "--data", str(store), "--out", str(tmp_path / "out")]
    assert command(words) == 2
    told = capsys.readouterr().err
    assert "Expected labelled test cases in the split 'paper'" in told
    assert "but there are none: no run could be scored" in told
    assert "started" not in told
    assert not (tmp_path / "out" / "logs").exists()
    # Another split that has them, as the message says.
    first, *others = dict.fromkeys(Store(store).table.patient.tolist())
    (tmp_path / "test.txt").write_text(first, encoding="utf-8")
    (tmp_path / "train.txt").write_text("\n".join(others), encoding="utf-8")
    assert command([*words, "--set", f"data.split={tmp_path}"]) == 0


@pytest.mark.parametrize(("part", "needed"), [("train", "trained"), ("val", "validated"), ("test", "scored")])
def test_parts_without_a_label_are_refused(part, needed):
    _, grid = load_grid("table-3")
    table = synapse_table(SYNAPSE_TRAINING)
    split = np.where(table.case == "case0005", "val", table.split)
    store = SimpleNamespace(table=table.with_split(split), path="store", preprocessing=SimpleNamespace(unit="slice"))
    configs = [(row.config, "test") for row in grid.rows()]
    check_scorable(store, configs)
    bare = np.where((split == part)[:, None], np.nan, table.fraction)
    store.table = replace(store.table, fraction=bare)
    with pytest.raises(
        DataError, match=rf"labelled {part} cases .* none of its \d+ has a label: no run could be {needed}"
    ):
        check_scorable(store, configs)
    # Where nothing is validated, nobody asks for such cases.
    _, grid = load_grid("table-1")
    configs = [(row.config, "test") for row in grid.rows()]
    if part == "val":
        check_scorable(store, configs)
        with pytest.raises(DataError, match=r"labelled val cases .* could be scored"):
            check_scorable(store, [(config, "val") for config, _ in configs])
    else:
        with pytest.raises(DataError):
            check_scorable(store, configs)


def test_whole_volumes_are_refused():
    store = SimpleNamespace(path="store", preprocessing=SimpleNamespace(unit="volume"))
    with pytest.raises(DataError, match="Expected a store of slices"):
        check_scorable(store, [])
