"""`adawac.prepare`, `adawac.diagnose`, `adawac.Store` and `adawac.PairDataset`, as a Python user calls them."""

import numpy as np
import pytest

import adawac
from adawac.data.phantom import phantom_source
from adawac.data.sources import build_source
from adawac.errors import ConfigError, DataError
from tests.data.scans import make_nnunet


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_prepare_store_and_diagnose_take_text_and_paths(tmp_path, kind):
    root = make_nnunet(tmp_path / "scans", cases=2)
    made = adawac.prepare("nifti", kind(root), kind(tmp_path / "store"), workers=1)
    store = adawac.Store(kind(tmp_path / "store"))
    assert store.cases == made.cases == ("case_00", "case_01")
    for data in (kind(root), kind(tmp_path / "store")):
        report = adawac.diagnose(data, workers=1)
        assert report.path == str(data)
        assert [case.id for case in report.cases] == ["case_00", "case_01"]


def test_prepare_and_diagnose_take_a_source_and_a_store(tmp_path):
    root = make_nnunet(tmp_path / "scans", cases=2)
    source = build_source("nifti", root)
    store = adawac.prepare(source, dest=tmp_path / "store", workers=1)
    reports = [adawac.diagnose(data, workers=1) for data in (source, root, store, store.path)]
    assert reports[0] == reports[1]
    assert reports[2] == reports[3]
    assert reports[0].summary["xi"] == reports[2].summary["xi"] == (~store.table.label_sparse).mean()


def test_what_does_not_go_together_is_refused_before_anything_is_written(tmp_path):
    source = phantom_source(1, size=16, slices=(4, 4))
    with pytest.raises(DataError, match="folder with the scans for source nifti, but got none"):
        adawac.prepare("nifti", dest=tmp_path / "store")
    with pytest.raises(ConfigError, match=r"folder for the store, but got none.*prepare\(source, scans, store\)"):
        adawac.prepare(source)
    with pytest.raises(ConfigError, match=r"got src as well.*dest=FOLDER"):
        adawac.prepare(source, tmp_path, tmp_path / "store")
    with pytest.raises(ConfigError, match=r"got classes, patient as well\. Leave them out"):
        adawac.prepare(source, dest=tmp_path / "store", classes={"liver": 1}, patient="(.)")
    with pytest.raises(ConfigError, match="folder of scans for source, but got a PhantomSource"):
        adawac.diagnose(source, "nifti")
    assert not list(tmp_path.iterdir())


def test_pair_dataset_reads_a_stores_samples(tmp_path):
    store = adawac.prepare(phantom_source(2, size=16, slices=(4, 4)), dest=tmp_path / "store", workers=1)
    samples = store.samples("train")
    pairs = adawac.PairDataset(samples, size=12, seed=3)
    assert len(pairs) == len(samples)
    item = pairs[5]
    assert item["index"] == 5
    assert [view.shape for view in item["images"]] == [(1, 12, 12)] * 2
    assert set(np.unique(item["labels"][0])) <= set(np.unique(samples[5][1])) | {0}


def test_what_a_data_set_of_pairs_is_shown_as():
    scans = [(np.zeros((1, 8, 8)), np.zeros((8, 8)))] * 3
    assert repr(adawac.PairDataset(scans)) == "PairDataset(3 samples of list, seed=0)"
    pairs = adawac.PairDataset(scans, size=4, ignore_index=255, config=adawac.ViewConfig(noise=0.1))
    assert repr(pairs) == (
        "PairDataset(3 samples of list, size=4, seed=0, ignore_index=255, config=ViewConfig(noise=0.1))"
    )
