"""Folders are searched all the way down, links followed, and nothing is found twice."""

import os

import pytest

from adawac.data.diagnosis import diagnose
from adawac.data.preparation import prepare
from adawac.data.sources import build_source
from adawac.data.sources.file_search import files_below, find, glob_cases, walk
from adawac.errors import ConfigError, DataError
from tests.data.scans import make_acdc, make_nnunet, scan, write_nifti


def touch(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def link(path, to):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(to)
    return path


def names(paths, root):
    return [path.relative_to(root).as_posix() for path in paths]


@pytest.fixture
def tree(tmp_path):
    """A folder with a real scan, links to a folder elsewhere, to a sibling, to itself and to what holds it."""
    root = tmp_path / "scans"
    touch(root / "anna" / "ct.nii.gz")
    touch(tmp_path / "elsewhere" / "deep" / "ct.nii.gz")
    link(root / "again", to=root / "anna")
    link(root / "bert", to=tmp_path / "elsewhere")
    link(root / "anna" / "loop", to=root)
    link(tmp_path / "elsewhere" / "back", to=root / "anna")
    link(root / "up", to=tmp_path)
    return root


def test_links_are_followed_once_and_never_round_in_circles(tree):
    assert names(files_below(tree), tree) == ["anna/ct.nii.gz", "bert/deep/ct.nii.gz"]
    assert len(list(walk(tree))) == 4  # scans, anna, elsewhere, deep


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("**/ct.nii.gz", ["anna/ct.nii.gz", "bert/deep/ct.nii.gz"]),
        ("**/**/*.nii.gz", ["anna/ct.nii.gz", "bert/deep/ct.nii.gz"]),
        ("**/*/ct.nii.gz", ["anna/ct.nii.gz", "bert/deep/ct.nii.gz"]),
        ("again/**/ct.nii.gz", ["again/ct.nii.gz"]),  # by the name that was asked for
        ("*/ct.nii.gz", ["again/ct.nii.gz", "anna/ct.nii.gz"]),  # without ** a link is a folder like another
        ("?nna/ct**", ["anna/ct.nii.gz"]),
        ("[ab]???/ct.nii.gz", ["anna/ct.nii.gz"]),
        ("anna/mr.nii.gz", []),
    ],
)
def test_patterns_find_nothing_twice(tree, pattern, found):
    assert names(find(tree, pattern), tree) == found


def test_a_folder_is_listed_once_however_many_parts_a_pattern_has(tree, monkeypatch):
    listed = []
    scandir = os.scandir
    monkeypatch.setattr("os.scandir", lambda folder: listed.append(folder) or scandir(folder))
    assert find(tree, "**/ct.nii.gz")
    assert len(listed) == len(set(listed)) == 4


def test_cases_below_two_stars_are_named_by_their_folders(tree):
    assert list(glob_cases(tree, "**/ct.nii.gz")) == ["anna", "bert_deep"]
    assert list(glob_cases(tree / "anna", "**")) == ["ct"]


def test_the_ending_is_no_part_of_a_case_whether_packed_or_not(tmp_path):
    for name in ("anna/ct.nii", "bert/ct.nii.gz", "bert/ct.nii.gz.part"):
        touch(tmp_path / name)
    assert list(glob_cases(tmp_path, "*/ct.nii*")) == ["anna", "bert"]
    assert list(glob_cases(tmp_path, "*/*.nii*")) == ["anna_ct", "bert_ct"]
    with pytest.raises(ConfigError, match=r"at least one \*, but got 'ct\.nii\*'"):
        glob_cases(tmp_path / "anna", "ct.nii*")


def test_what_is_hidden_or_would_block_a_reader_is_no_file(tmp_path):
    touch(tmp_path / ".snapshot" / "ct.nii.gz")
    touch(tmp_path / ".ct.nii.gz")
    os.mkfifo(tmp_path / "pipe.nii.gz")
    link(tmp_path / "linked.nii.gz", to=tmp_path / "pipe.nii.gz")
    gone = link(tmp_path / "gone.nii.gz", to=tmp_path / "nothing")
    circle = link(tmp_path / "circle.nii.gz", to=tmp_path / "circle.nii.gz")
    assert files_below(tmp_path) == [circle, gone]  # links to nothing are named when they are read, not passed over


def test_scans_in_linked_folders_are_prepared_and_looked_at(tmp_path):
    for name in ("anna", "bert"):
        write_nifti(tmp_path / "disk" / name / "ct.nii.gz", scan(seed=len(name))[0])
        write_nifti(tmp_path / "disk" / name / "gt.nii.gz", scan(seed=len(name))[1])
    link(tmp_path / "scans" / "cohort", to=tmp_path / "disk")
    options = {"images": "**/ct.nii.gz", "labels": "**/gt.nii.gz", "classes": {"x": (1, 2)}, "workers": 1}
    store = prepare("nifti", tmp_path / "scans", tmp_path / "store", **options)
    assert store.cases == ("cohort_anna", "cohort_bert")
    report = diagnose(tmp_path / "scans", **options)
    assert [case.id for case in report.cases] == ["cohort_anna", "cohort_bert"]


def test_acdc_and_btcv_in_linked_folders_are_found(tmp_path):
    make_acdc(tmp_path / "disk", patients=[31, 32])
    link(tmp_path / "scans" / "training", to=tmp_path / "disk")
    assert len(build_source("acdc", tmp_path / "scans").cases()) == 4
    write_nifti(tmp_path / "raw" / "img" / "img0001.nii.gz", scan()[0])
    write_nifti(tmp_path / "raw" / "label" / "label0001.nii.gz", scan()[1])
    link(tmp_path / "btcv" / "Training", to=tmp_path / "raw")
    assert [ref.id for ref in build_source("synapse", tmp_path / "btcv").cases()] == ["case0001"]


def test_a_decathlon_folder_may_hold_links_but_list_nothing_outside(tmp_path):
    root = make_nnunet(tmp_path / "in", cases=1)
    (root / "imagesTr").rename(tmp_path / "disk")
    link(root / "imagesTr", to=tmp_path / "disk")
    listed = '{"labels": {"0": "background", "1": "a", "2": "b"}, "training": [{"image": "%s", "label": "%s"}]}'
    inside = listed % ("./imagesTr/case_00_0000.nii.gz", "./labelsTr/case_00.nii.gz")
    (root / "dataset.json").write_text(inside)
    assert prepare("nifti", root, tmp_path / "out", workers=1).cases == ("case_00_0000",)
    (root / "dataset.json").write_text(listed % ("../disk/case_00_0000.nii.gz", "labelsTr/case_00.nii.gz"))
    with pytest.raises(DataError, match="Expected files below"):
        build_source("nifti", root)


def test_folders_and_links_to_nothing_are_not_called_missing(tmp_path):
    root = make_nnunet(tmp_path / "in", cases=1)
    image = root / "imagesTr" / "case_00_0000.nii.gz"
    image.rename(tmp_path / "elsewhere.nii.gz")
    image.mkdir()
    assert f"{image} is a folder" in diagnose(root, workers=1).faults[0]
    image.rmdir()
    link(image, to=tmp_path / "gone")
    assert f"{image} leads nowhere" in diagnose(root, workers=1).faults[0]


def test_a_dicom_slice_that_is_a_link_to_nothing_is_named(tmp_path):
    pytest.importorskip("pydicom")
    link(tmp_path / "in" / "IM0001", to=tmp_path / "gone")
    with pytest.raises(DataError, match="IM0001 cannot be read"):
        build_source("dicom", tmp_path / "in")
