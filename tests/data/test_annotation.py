"""Ways in for scans that are only partly annotated: missing label maps, lists of slices, ignored values."""

import json

import nibabel as nib
import numpy as np
import pytest

from adawac.cli import run
from adawac.data.cases import IGNORED
from adawac.data.diagnosis import diagnose
from adawac.data.preparation import prepare
from adawac.data.sources import build_source
from adawac.data.store import Store
from adawac.errors import ConfigError, DataError, MissingFileError
from tests.data.scans import make_nnunet, scan, write_nifti


def listed(path, *lines):
    """Write a list of annotated slices."""
    path.write_text("\n".join(["case,slice", *lines]) + "\n")
    return path


@pytest.fixture
def scans(tmp_path):
    """Three scans of six slices; the second has no label map, and the value 2 is an ignored one in the others."""
    root = make_nnunet(tmp_path / "scans", classes=3, labels={"background": 0, "organ": 1})
    (root / "labelsTr" / "case_01.nii.gz").unlink()
    return root


def test_a_round_trip_with_counts_at_every_station(scans, tmp_path, capsys):
    slices = listed(tmp_path / "slices.csv", "case_00,1", "case_00,3", "case_02,all")
    words = ["--unlabelled", "keep", "--labelled-slices", str(slices), "--ignore", "2"]
    report = diagnose(scans, workers=1, unlabelled="keep", labelled_slices=slices, ignore=2)
    assert not report.faults
    assert [case.unlabelled for case in report.cases] == [4, 6, 0]
    assert [case.partly_ignored for case in report.cases] == [2, 0, 4]
    assert run(["prepare", "nifti", str(scans), str(tmp_path / "store"), "--workers", "1", "--json", *words]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["samples"], told["unlabelled"], told["partly_ignored"]) == (18, 10, 6)
    assert told["label_sparse"] == 2  # the first and the last slice of case_02; those of case_00 nobody knows
    store = Store(tmp_path / "store")
    assert store.info["format_version"] == 2
    assert store.table.state.tolist() == [
        *("unlabelled", "partly ignored", "unlabelled", "partly ignored", "unlabelled", "unlabelled"),
        *["unlabelled"] * 6,
        *("labelled", *["partly ignored"] * 4, "labelled"),
    ]
    native = scan(seed=20)[1]
    np.testing.assert_array_equal(store.volume("case_02").label, np.array([0, 1, IGNORED])[native])
    store.export_nifti("case_02", tmp_path / "label.nii.gz")
    np.testing.assert_array_equal(np.asarray(nib.load(tmp_path / "label.nii.gz").dataobj), native)
    again = diagnose(store, workers=1)
    assert [vars(case)["class_voxels"] for case in again.cases] == [case.class_voxels for case in report.cases]
    assert again.summary["slices_by_state"] == report.summary["slices_by_state"]


@pytest.mark.parametrize("way", [None, "refuse"])
def test_a_missing_label_map_is_refused_by_default(scans, tmp_path, way):
    with pytest.raises(DataError, match=r"1 has none .*--skip-unlabelled.*--unlabelled keep"):
        prepare("nifti", scans, tmp_path / "store", workers=1, ignore=2, unlabelled=way)


def test_scans_without_labels_are_kept_or_left_out(scans, tmp_path):
    kept = prepare("nifti", scans, tmp_path / "kept", workers=1, ignore=2, unlabelled="keep")
    assert kept.table.unlabelled.sum() == 6
    assert not (kept.table.label_sparse & (kept.table.case == "case_01")).any()
    left = prepare("nifti", scans, tmp_path / "left", workers=1, ignore=2, unlabelled="skip")
    assert left.cases == ("case_00", "case_02")
    for name in ("case_00", "case_02"):
        np.testing.assert_array_equal(kept.volume(name).label, left.volume(name).label)


def test_some_scans_must_have_labels(scans, tmp_path):
    for path in (scans / "labelsTr").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"none of them has one.*training needs labels"):
        prepare("nifti", scans, tmp_path / "store", workers=1, unlabelled="keep")


def test_options_for_whole_label_maps_leave_no_trace(tmp_path):
    """A store that was prepared before these options existed is the same one now."""
    root = make_nnunet(tmp_path / "scans")
    store = prepare("nifti", root, tmp_path / "store", workers=1)
    assert store.info["source_options"] == {}
    assert store.info["format_version"] == 1


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int64])
@pytest.mark.parametrize("ignore", [9, -1])
def test_an_ignored_value_may_be_any(tmp_path, dtype, ignore):
    if np.iinfo(dtype).min > ignore:
        pytest.skip("the type cannot hold it")
    root = make_nnunet(tmp_path / "scans", cases=1, classes=3)
    native = np.array([0, 1, ignore])[scan()[1]].astype(dtype)
    write_nifti(root / "labelsTr" / "case_00.nii.gz", native)
    source = build_source("nifti", root, classes={"organ": 1}, ignore=ignore)
    np.testing.assert_array_equal(source.load(source.cases()[0]).label, np.array([0, 1, IGNORED])[scan()[1]])
    options = {"images": "imagesTr/*_0000.nii.gz", "labels": "labelsTr/*.nii.gz"}
    assert build_source("nifti", root, ignore=ignore, **options).class_names == ("background", "class 1")
    store = prepare("nifti", root, tmp_path / "store", classes={"organ": 1}, ignore=ignore, workers=1)
    np.testing.assert_array_equal(store.native_label("case_00"), native)


@pytest.mark.parametrize(
    ("options", "axis"),
    [({"axis": 1}, 1), ({"orientation": "PIL"}, 0), ({"orientation": "PIR"}, 0), ({"spacing": (1.5, 0, 2.0)}, 2)],
)
def test_slices_are_those_of_the_file_along_the_slicing_axis(tmp_path, options, axis):
    root = make_nnunet(tmp_path / "scans", cases=1)
    slices = listed(tmp_path / "slices.csv", "case_00,1", "case_00,2")
    store = prepare("nifti", root, tmp_path / "store", labelled_slices=slices, workers=1, **options)
    native, original = store.native_label("case_00"), scan()[1]
    kept = np.zeros(original.shape, bool)
    kept[tuple(slice(1, 3) if k == axis else slice(None) for k in range(3))] = True
    np.testing.assert_array_equal(native, np.where(kept, original, IGNORED))


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        (["case_00,6", "case_02,all"], r"annotated slices from 0 to 5, but got 6 for .*case_00"),
        (["case_00,1", "case_9,1"], r"'case_9' is not there\. Near names: 'case_0"),
        (["case_00,1", "case_01,1", "case_02,1"], r"'case_01' has no label map"),
        (["case_00,1"], r"names none of case_02 \(1 such\).*case_02,all"),
        (["case_00,-1"], r"a slice's number, from 0, or all in .*, but got '-1' for case_00"),
        (["case_00,"], r"but got '' for case_00"),
    ],
)
def test_a_list_that_does_not_fit_says_what_to_do(scans, tmp_path, lines, match):
    slices = listed(tmp_path / "slices.csv", *lines)
    with pytest.raises(DataError, match=match):
        prepare("nifti", scans, tmp_path / "store", workers=1, ignore=2, unlabelled="keep", labelled_slices=slices)


def test_a_list_of_another_kind_is_refused(scans, tmp_path):
    (tmp_path / "other.csv").write_text("patient,group\na,b\n")
    with pytest.raises(DataError, match=r"columns case,slice in .*, but got \['patient', 'group'\]"):
        build_source("nifti", scans, labelled_slices=tmp_path / "other.csv")
    with pytest.raises(MissingFileError, match=r"CSV file with case,slice"):
        build_source("nifti", scans, labelled_slices=tmp_path / "none.csv")


def test_a_label_map_of_ignored_voxels_alone_is_no_label(scans, tmp_path):
    write_nifti(scans / "labelsTr" / "case_01.nii.gz", np.full((12, 10, 6), 2, np.uint8))
    with pytest.raises(DataError, match=r"every voxel is ignored in the label map of .*case_01.*--unlabelled keep"):
        prepare("nifti", scans, tmp_path / "store", workers=1, ignore=2)
    store = prepare("nifti", scans, tmp_path / "store", workers=1, ignore=2, unlabelled="keep")
    assert store.table.state[store.table.case == "case_01"].tolist() == ["unlabelled"] * 6


def test_options_that_contradict_each_other_are_refused(scans):
    with pytest.raises(ConfigError, match="but 1 is 'organ', too"):
        build_source("nifti", scans, ignore=1)
    with pytest.raises(ConfigError, match="one of keep, skip, refuse, but got 'drop'"):
        build_source("nifti", scans, unlabelled="drop")
    with pytest.raises(ConfigError, match="'keep' with skip_unlabelled"):
        build_source("nifti", scans, unlabelled="keep", skip_unlabelled=True)
    with pytest.raises(ConfigError, match="at most 255 classes where pixels are ignored, but got 301"):
        build_source("nifti", scans, ignore=999, classes={f"c{k}": k for k in range(1, 301)})
