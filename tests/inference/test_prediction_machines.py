"""Many scans at once: shares, processes and clusters give what one process gives, and go on where they stopped."""

import csv
import json
import os
import pickle
import shutil
import time

import numpy as np
import pytest
import torch

import adawac
from adawac.cli import run as command
from adawac.errors import ConfigError
from adawac.inference.confidence import REVIEW
from adawac.inference.prediction import predict
from tests.inference.made_runs import make_run, noise, save, trained_on
from tests.ray_cluster import ray_only, remove_when


@pytest.fixture
def scans(tmp_path):
    for number in range(5):
        save(tmp_path / "scans" / f"{number}.nii.gz", noise(seed=number))
    return tmp_path / "scans"


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", "tests.networks.threshold_network:texture")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def times(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.nii.gz")}


def reviewed(folder):
    with (folder / REVIEW).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_shares_together_are_the_whole(tmp_path, run, scans):
    options = {"device": "cpu", "uncertainty": True, "probabilities": True}
    whole = predict(run, scans, tmp_path / "whole", **options)
    shares = [predict(run, scans, tmp_path / "shares", shard=f"{number}/3", **options) for number in (2, 1, 3)]
    assert [[entry.scan.name for entry in share] for share in shares] == [["1", "4"], ["0", "3"], ["2"]]
    assert contents(tmp_path / "shares") == contents(tmp_path / "whole")
    assert [row["scan"] for row in reviewed(tmp_path / "shares")] == [
        row["scan"] for row in sorted(reviewed(tmp_path / "whole"), key=lambda row: (row["expected_dice"], row["scan"]))
    ]
    assert len(whole) == 5


def test_more_shares_than_scans(tmp_path, run, scans):
    assert predict(run, scans, tmp_path / "out", shard="6/6", device="cpu") == []


def test_another_process_loads_the_networks_itself(tmp_path, run, scans, monkeypatch):
    """What is sent to it holds no weights, and gives the same."""
    predict(run, scans, tmp_path / "one", device="cpu")
    sent = []

    def elsewhere(function, items, **_):
        sent.append(pickle.dumps(function))
        unpacked = pickle.loads(sent[0])
        return ((item, unpacked(item)) for item in items)

    monkeypatch.setattr("adawac.inference.prediction.run_jobs", elsewhere)
    threads = torch.get_num_threads()
    predict(run, scans, tmp_path / "two", device="cpu", workers=2)
    torch.set_num_threads(threads)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert len(sent[0]) < 3000


@pytest.mark.slow
def test_processes_write_what_one_process_writes(tmp_path, run, scans):
    predict(run, scans, tmp_path / "one", device="cpu")
    (scans / "bad.nii.gz").write_bytes(b"no scan")
    done = predict(run, scans, tmp_path / "two", device="cpu", workers=2, progress=False)
    assert [entry.scan.name for entry in done if entry.error] == ["bad"]
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def test_what_is_finished_is_kept_and_the_rest_is_done(tmp_path, run, scans):
    out = tmp_path / "out"
    options = {"device": "cpu", "uncertainty": True}
    predict(run, scans, out, **options)
    expected, before = contents(out), times(out)
    (out / "1.json").unlink()  # killed before the sidecar, which is written last
    (out / "2_entropy.nii.gz").unlink()
    os.utime(scans / "3.nii.gz", ns=(time.time_ns(),) * 2)  # the scan was replaced
    done = predict(run, scans, out, resume=True, **options)
    assert [entry.kept for entry in done] == [True, False, False, False, True]
    assert contents(out) == expected
    assert {name for name, at in times(out).items() if at == before[name]} == {
        f"{k}{part}" for k in (0, 4) for part in (".nii.gz", "_entropy.nii.gz")
    }
    assert done[0].uncertainty.facts() == json.loads((out / "0.json").read_text())["uncertainty"]


def test_label_maps_of_another_network_or_option_are_not_taken(tmp_path, run, scans):
    out = tmp_path / "out"
    predict(run, scans, out, device="cpu")
    before = contents(out)
    for options in ({"tta": True}, {"values": "index"}, {"largest_component": True}):
        done = predict(run, scans, out, device="cpu", resume=True, **options)
        assert all("label maps of the same networks and options" in entry.error for entry in done), options
    shutil.rmtree(run)
    make_run(run, "tests.networks.threshold_network:texture", checkpoints=("first", "last"))  # other weights of a name
    (first, *_) = predict(run, scans, out, device="cpu", resume=True)
    assert "something else of its networks" in first.error
    assert contents(out) == before


def test_uncertainty_leaves_no_maps_in_memory(tmp_path, run, scans):
    (done,) = predict(run, scans / "0.nii.gz", tmp_path / "out", device="cpu", uncertainty=True)
    assert done.uncertainty.entropy is None
    assert done.uncertainty.volumes


@pytest.mark.parametrize("name", ["predict", "score", "prepare", "crossval"])
def test_a_bad_shard_is_one_message_and_nothing_is_written(tmp_path, run, scans, small_store, name, capsys):
    out = tmp_path / "out"
    words = {
        "predict": [run, scans, "--out", out],
        "score": [scans, scans, "--parts", out],
        "prepare": ["nifti", scans, out],
        "crossval": [small_store, "--folds", "2", "--test", "fold", "--out", out],
    }[name]
    assert command([name, *map(str, words), "--shard", "9/8"]) == 2
    err = capsys.readouterr().err
    assert "Expected a shard as K/N with K from 1 to N, such as 2/8, but got '9/8'." in err
    assert err.count("\n") == 1
    assert not out.exists()


def test_shards_and_workers_are_options_of_the_command(tmp_path, run, scans, capsys):
    words = ["predict", str(run), str(scans), "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert command([*words, "--shard", "1/2"]) == 0
    assert "3 of 3 scans segmented, into" in capsys.readouterr().out
    assert command([*words, "--resume", "--workers", "1", "--json"]) == 0
    assert [entry["kept"] for entry in json.loads(capsys.readouterr().out)] == [True, False, True, False, True]
    assert command([*words, "--resume"]) == 0
    assert "5 of 5 scans segmented, 5 of them before, into" in capsys.readouterr().out


def test_the_local_engine_has_no_address(tmp_path, run, scans):
    with pytest.raises(ConfigError, match="no address for the local engine"):
        predict(run, scans, tmp_path / "out", device="cpu", address="auto")


@pytest.mark.slow
@ray_only
def test_a_cluster_that_loses_a_machine_gives_the_same_store_label_maps_and_scores(tmp_path, two_machines, monkeypatch):
    from adawac.data.phantom.phantom_files import write_nifti_layout

    cluster, second = two_machines
    on_ray = {"engine": "ray", "address": cluster.address, "progress": False}
    monkeypatch.chdir(tmp_path)  # relative paths mean the same on every machine
    write_nifti_layout(tmp_path / "scans", 16, 0)
    store = adawac.prepare("nifti", "scans", "store", **on_ray)
    here = adawac.prepare("nifti", "scans", "here", workers=1, progress=False)
    assert (store.path / "table.csv").read_bytes() == (here.path / "table.csv").read_bytes()
    for case in here.cases:
        np.testing.assert_array_equal(store.stack(case)[0], here.stack(case)[0])

    run = trained_on(here, tmp_path / "run", model="tests.networks.threshold_network:slow")
    adawac.predict(run, "scans/imagesTr", "local", device="cpu")
    before = {}

    def some_are_done():
        before.update({path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.json")})
        return len(before) >= 4

    with remove_when(cluster, second, some_are_done) as removed:
        done = adawac.predict(run, "scans/imagesTr", "out", device="cpu", **on_ray)
    assert removed.is_set()
    assert [entry.error for entry in done] == [""] * 16
    assert contents(tmp_path / "out") == contents(tmp_path / "local")
    assert {path: path.stat().st_mtime_ns for path in before} == before  # what had ended was not done again
    again = adawac.predict(run, "scans/imagesTr", "out", device="cpu", **on_ray)
    assert all("exists" in entry.error for entry in again)

    there, near = (adawac.score("scans/labelsTr", folder, **how) for folder, how in (("out", on_ray), ("local", {})))
    assert repr(there.evaluations[0].scores) == repr(near.evaluations[0].scores)
