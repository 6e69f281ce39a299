"""Sources: every layout becomes the same kind of case."""

import json

import nibabel as nib
import numpy as np
import pytest

from adawac.data.cases import IGNORED
from adawac.data.preprocessing import CT, MR, READY
from adawac.data.sources import SOURCES, as_classes, build_source, detect_source
from adawac.errors import ConfigError, DataError, MissingFileError, UnknownNameError
from adawac.inference.scan_search import find_scans
from tests.data.scans import AFFINES, make_acdc, make_btcv, make_nnunet, make_synapse, scan, write_h5, write_nifti


def load_all(source):
    return {ref.id: source.load(ref) for ref in source.cases()}


def test_the_four_sources_are_registered():
    assert {"acdc", "synapse", "nifti", "dicom"} <= set(SOURCES)
    with pytest.raises(UnknownNameError, match="'synapse'"):
        build_source("synaps", ".")


def test_a_folder_that_is_not_there_and_an_option_that_is_unknown(tmp_path):
    with pytest.raises(MissingFileError, match="nowhere"):
        build_source("nifti", tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="colour"):
        build_source("acdc", tmp_path, colour=3)


# -- ACDC -------------------------------------------------------------------------------------------------------------


def test_acdc_release_has_geometry_groups_and_the_papers_split(tmp_path):
    source = build_source("acdc", make_acdc(tmp_path, patients=(1, 25, 40)))
    refs = source.cases()
    assert [ref.id for ref in refs[:2]] == ["patient001_frame01", "patient001_frame12"]
    assert [ref.split for ref in refs[::2]] == ["test", "val", "train"]
    assert {ref.group for ref in refs} == {"NOR"}
    assert source.preprocessing == MR
    case = source.load(refs[0])
    assert case.image.shape == (1, 10, 12, 5)
    assert case.spacing == (1.5, 1.5, 10.0)
    assert case.class_names == ("background", "RV", "Myo", "LV")


def test_acdc_without_info_takes_the_group_from_the_number(tmp_path):
    patients = (1, 20, 21, 45, 61, 100, 101)
    refs = build_source("acdc", make_acdc(tmp_path, patients, info=False)).cases()
    assert [ref.group for ref in refs[::2]] == ["DCM", "DCM", "HCM", "MINF", "NOR", "RV", None]
    assert [ref.split for ref in refs[::2]] == ["test", "test", "val", "train", "train", "train", ""]


def test_acdc_slices_and_volumes_give_the_same_case(tmp_path):
    image, label = scan((6, 7, 8), 4)
    image = image.astype(np.float32)
    write_h5(tmp_path / "v" / "ACDC_training_volumes" / "patient031_frame01.h5", image, label)
    for k in range(6):
        write_h5(tmp_path / "s" / "ACDC_training_slices" / f"patient031_frame01_slice_{k}.h5", image[k], label[k])
    (volume,), (slices,) = (load_all(build_source("acdc", tmp_path / part)).values() for part in "vs")
    np.testing.assert_array_equal(volume.image, slices.image)
    np.testing.assert_array_equal(volume.label, label)
    np.testing.assert_array_equal(slices.label, label)
    assert volume.affine is None
    assert build_source("acdc", tmp_path / "s").preprocessing == READY


def test_a_gap_in_the_slices_is_refused(tmp_path):
    image, label = scan((3, 7, 8), 4)
    for k in (0, 1, 3):
        write_h5(tmp_path / "ACDC_training_slices" / f"patient031_frame01_slice_{k}.h5", image[0], label[0])
    with pytest.raises(DataError, match=r"\[2\] are missing"):
        build_source("acdc", tmp_path)


# -- Synapse ----------------------------------------------------------------------------------------------------------


def test_btcv_maps_thirteen_organs_to_eight(tmp_path):
    label = np.arange(14, dtype=np.uint8).reshape(14, 1, 1)
    write_nifti(tmp_path / "img" / "img0001.nii.gz", np.zeros((14, 1, 1), np.int16))
    write_nifti(tmp_path / "label" / "label0001.nii.gz", label)
    source = build_source("synapse", tmp_path)
    (case,) = load_all(source).values()
    # spleen, right and left kidney, gallbladder, –, liver, stomach, aorta, –, –, pancreas, –, –
    assert case.label.ravel().tolist() == [0, 7, 4, 3, 2, 0, 5, 8, 1, 0, 0, 6, 0, 0]
    assert case.class_names[1:4] == ("aorta", "gallbladder", "left kidney")
    assert source.preprocessing == CT
    assert source.preprocessing.window == (-125.0, 275.0)


def test_btcv_scan_without_a_label_is_named(tmp_path):
    make_btcv(tmp_path)
    (tmp_path / "label" / "label0007.nii.gz").unlink()
    with pytest.raises(DataError, match=r"label0007\.nii\.gz for .*img0007"):
        build_source("synapse", tmp_path)


def test_synapse_layouts_have_the_papers_split(tmp_path):
    for source in (
        build_source("synapse", make_synapse(tmp_path / "transunet")),
        build_source("synapse", make_btcv(tmp_path / "btcv")),
    ):
        refs = source.cases()
        assert [ref.split for ref in refs].count("train") == 18
        assert [ref.id for ref in refs if ref.split == "test"][:3] == ["case0001", "case0002", "case0003"]


# -- NIfTI ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AFFINES)
def test_nnunet_keeps_the_files_voxels_and_affine(tmp_path, name):
    source = build_source("nifti", make_nnunet(tmp_path, cases=1, affine=AFFINES[name]))
    (case,) = load_all(source).values()
    image, label = scan()
    np.testing.assert_array_equal(case.image[0], image.astype(np.float32))
    np.testing.assert_array_equal(case.label, label)
    np.testing.assert_array_equal(case.affine, AFFINES[name])
    np.testing.assert_allclose(case.spacing, nib.affines.voxel_sizes(AFFINES[name]))
    assert case.dataset == "Small"


def test_nnunet_channels_test_scans_and_patients(tmp_path):
    root = make_nnunet(tmp_path, cases=2, channels=2, names=["anna_pre", "anna_post"])
    write_nifti(root / "imagesTs" / "bert_pre_0000.nii.gz", scan()[0])
    write_nifti(root / "imagesTs" / "bert_pre_0001.nii.gz", scan()[0])
    (root / "groups.csv").write_text("patient,group\nanna,A\nbert,B\n")
    source = build_source("nifti", root, patient=r"^([a-z]+)_", groups=root / "groups.csv")
    cases = load_all(source)
    assert {case.patient for case in cases.values()} == {"anna", "bert"}
    assert {ref.id: (ref.split, ref.group) for ref in source.cases()} == {
        "anna_post": ("train", "A"),
        "anna_pre": ("train", "A"),
        "bert_pre": ("test", "B"),
    }
    assert cases["anna_pre"].image.shape == (2, 12, 10, 6)
    assert cases["bert_pre"].label is None


def test_nnunet_v1_names_values_the_other_way_round(tmp_path):
    root = make_nnunet(tmp_path, labels={"0": "background", "1": "liver", "2": "tumour"})
    assert build_source("nifti", root).class_names == ("background", "liver", "tumour")


def test_nnunet_regions_ask_for_classes(tmp_path):
    root = make_nnunet(tmp_path, labels={"background": 0, "whole": [1, 2], "core": [2]})
    with pytest.raises(DataError, match="regions"):
        build_source("nifti", root)
    assert build_source("nifti", root, classes={"edge": 1, "core": 2}).class_names == ("background", "edge", "core")


def test_nnunet_ignore_label_is_ignored_unless_classes_have_it(tmp_path):
    root = make_nnunet(tmp_path, labels={"background": 0, "organ": 1, "ignore": 2})
    source = build_source("nifti", root)
    assert source.class_names == ("background", "organ")
    label = source.load(source.cases()[0]).label
    np.testing.assert_array_equal(label, np.array([0, 1, IGNORED])[scan()[1]])
    with pytest.raises(DataError, match=r"Expected a number as ignore in .*dataset\.json, but got \[2\]"):
        build_source("nifti", make_nnunet(tmp_path / "list", labels={"background": 0, "organ": 1, "ignore": [2]}))
    source = build_source("nifti", root, classes={"background": (0, 2), "organ": 1})
    assert source.load(source.cases()[0]).label.max() == 1


def test_decathlon_with_four_dimensional_images(tmp_path):
    image = np.random.default_rng(0).integers(0, 900, (5, 6, 4, 2)).astype(np.int16)
    write_nifti(tmp_path / "imagesTr" / "brain_1.nii.gz", image)
    write_nifti(tmp_path / "labelsTr" / "brain_1.nii.gz", np.ones((5, 6, 4), np.uint8))
    write_nifti(tmp_path / "imagesTs" / "brain_2.nii.gz", image)
    (tmp_path / "imagesTr" / "._brain_1.nii.gz").write_bytes(b"")
    description = {
        "name": "BRATS",
        "modality": {"0": "FLAIR", "1": "T1w"},
        "labels": {"0": "background", "1": "edema"},
        "training": [{"image": "./imagesTr/brain_1.nii.gz", "label": "./labelsTr/brain_1.nii.gz"}],
        "test": ["./imagesTs/brain_2.nii.gz"],
    }
    (tmp_path / "dataset.json").write_text(json.dumps(description))
    source = build_source("nifti", tmp_path)
    cases = load_all(source)
    assert source.channels == ("FLAIR", "T1w")
    np.testing.assert_array_equal(cases["brain_1"].image, np.moveaxis(image, 3, 0))
    assert cases["brain_2"].label is None
    description["training"][0]["image"] = "../elsewhere.nii.gz"
    (tmp_path / "dataset.json").write_text(json.dumps(description))
    with pytest.raises(DataError, match="elsewhere"):
        build_source("nifti", tmp_path)


def test_ct_in_dataset_json_decides_the_window(tmp_path):
    root = make_nnunet(tmp_path)
    assert build_source("nifti", root).preprocessing == MR
    assert build_source("nifti", root, modality="CT").preprocessing == CT
    description = json.loads((root / "dataset.json").read_text())
    (root / "dataset.json").write_text(json.dumps({**description, "channel_names": {"0": "CT"}}))
    assert build_source("nifti", root).preprocessing == CT


def test_patterns_pair_files_and_find_the_values(tmp_path):
    for case in ("ada", "bo"):
        image, label = scan()
        for channel in ("t1", "t2"):
            write_nifti(tmp_path / case / f"{channel}.nii.gz", image)
        write_nifti(tmp_path / case / "seg.nii", label * 4)
    source = build_source("nifti", tmp_path, images=["*/t1.nii.gz", "*/t2.nii.gz"], labels="*/seg.nii", dataset="mine")
    cases = load_all(source)
    assert sorted(cases) == ["ada", "bo"]
    assert source.classes == {"background": (0,), "class 4": (4,), "class 8": (8,)}
    assert cases["ada"].image.shape[0] == 2
    np.testing.assert_array_equal(cases["bo"].label, scan()[1])


def test_patterns_in_one_folder_do_not_take_labels_for_images(tmp_path):
    for case in ("a1", "a2"):
        write_nifti(tmp_path / f"{case}.nii.gz", scan()[0])
        write_nifti(tmp_path / f"{case}_seg.nii.gz", scan()[1])
    source = build_source("nifti", tmp_path, images="*.nii.gz", labels="*_seg.nii.gz", classes={"a": 1, "b": 2})
    assert [ref.id for ref in source.cases()] == ["a1", "a2"]


@pytest.mark.parametrize(
    ("image", "label", "case"),
    [
        ("images/CASE", "labels/CASE", "anna_1"),
        ("Images/CASE", "Masks/CASE", "anna_1"),
        ("image/CASE", "label/CASE_seg", "anna_1"),
        ("imgs/CASE_image", "segmentations/CASE-mask", "anna_1"),
        ("images/CASE_0000", "labels/CASE", "anna_1"),
        ("imagesTr/CASE_0000", "labelsTr/CASE", "anna_1"),
    ],
)
def test_folders_of_images_and_labels_need_no_patterns(tmp_path, image, label, case):
    for name in ("anna_1", "anna_2"):
        image_file = write_nifti(tmp_path / f"{image.replace('CASE', name)}.nii.gz", scan()[0])
        label_file = write_nifti(tmp_path / f"{label.replace('CASE', name)}.nii.gz", scan()[1] * 3)
    source = detect_source(tmp_path)
    assert [ref.id for ref in source.cases()] == ["anna_1", "anna_2"]
    assert source.cases()[1].files == (image_file, label_file)
    assert source.classes == {"background": (0,), "class 3": (3,), "class 6": (6,)}
    assert [file for scan in find_scans([tmp_path]) for file in scan.files] == [ref.images[0] for ref in source.cases()]
    label_file.unlink()
    assert [ref.id for ref in detect_source(tmp_path).lacking_labels()] == ["anna_2"]


def test_folders_of_several_channels_need_no_patterns(tmp_path):
    for channel in range(2):
        write_nifti(tmp_path / "images" / f"anna_{channel:04d}.nii.gz", scan(seed=channel)[0])
    write_nifti(tmp_path / "labels" / "anna.nii.gz", scan()[1])
    (case,) = load_all(detect_source(tmp_path)).values()
    assert case.image.shape[0] == 2


def test_folders_that_could_mean_several_things_are_not_guessed(tmp_path):
    for name in ("images/a", "labels/a", "masks/a"):
        write_nifti(tmp_path / f"{name}.nii.gz", scan()[1])
    with pytest.raises(DataError, match="Give the patterns"):
        build_source("nifti", tmp_path)
    (tmp_path / "masks" / "a.nii.gz").rename(tmp_path / "labels" / "other.nii.gz")
    (tmp_path / "masks").rmdir()
    (tmp_path / "labels" / "a.nii.gz").unlink()
    with pytest.raises(DataError, match="Give the patterns"):
        build_source("nifti", tmp_path)


def test_patterns_that_find_nothing_are_named(tmp_path):
    write_nifti(tmp_path / "a.nii.gz", scan()[0])
    with pytest.raises(DataError, match=r"'x\*\.nii'"):
        build_source("nifti", tmp_path, images="x*.nii", labels="y*.nii")
    source = build_source("nifti", tmp_path, images="*.nii.gz", labels="labels/*.nii.gz")
    assert [ref.id for ref in source.lacking_labels()] == ["a"]
    with pytest.raises(ConfigError, match="both"):
        build_source("nifti", tmp_path, images="*.nii.gz")
    with pytest.raises(ConfigError, match="at least one"):
        build_source("nifti", tmp_path, images="a.nii.gz", labels="*.nii")


def test_patterns_name_cases_after_folders_at_any_depth_and_single_letters(tmp_path):
    for name in ("x/ada", "x/y/bo", "x/y/bo [2]"):
        write_nifti(tmp_path / name / "t1.nii.gz", scan()[0])
        write_nifti(tmp_path / name / "gt.nii.gz", scan()[1])
    source = build_source("nifti", tmp_path, images="**/t1.nii.gz", labels="**/gt.nii.gz")
    assert [ref.id for ref in source.cases()] == ["x_ada", "x_y_bo", "x_y_bo [2]"]
    assert all(ref.labels for ref in source.cases())
    source = build_source("nifti", tmp_path, images="x/ad?/*1.nii.gz", labels="x/ad?/*t.nii.gz")
    assert [ref.id for ref in source.cases()] == ["a_t"]
    source = build_source("nifti", tmp_path, images="x/y/* [2]/t1.nii.gz", labels="x/y/* [2]/gt.nii.gz")
    assert [ref.id for ref in source.cases()] == ["bo"]


def test_brackets_are_a_set_of_characters_unless_files_are_called_so(tmp_path):
    for name in ("p01", "p02", "px3"):
        write_nifti(tmp_path / f"{name}.nii.gz", scan()[0])
        write_nifti(tmp_path / f"{name}_gt.nii.gz", scan()[1])
    source = build_source("nifti", tmp_path, images="p0[0-9].nii.gz", labels="p0[0-9]_gt.nii.gz")
    assert [(ref.id, len(ref.labels)) for ref in source.cases()] == [("1", 1), ("2", 1)]
    source = build_source("nifti", tmp_path, images="p[!0]*.nii.gz", labels="p[!0]*_gt.nii.gz")
    assert [(ref.id, len(ref.labels)) for ref in source.cases()] == [("x_3", 1)]


def test_spaces_around_what_a_wildcard_stands_for_are_left_out(tmp_path):
    write_nifti(tmp_path / "Pat 01" / "t1.nii.gz", scan()[0])
    write_nifti(tmp_path / "Pat 01" / "gt.nii.gz", scan()[1])
    source = build_source("nifti", tmp_path, images="Pat*/t1.nii.gz", labels="Pat*/gt.nii.gz")
    assert [ref.id for ref in source.cases()] == ["01"]
    assert source.cases()[0].labels


@pytest.mark.parametrize("pattern", ["/scans/*.nii.gz", "../*.nii.gz"])
def test_patterns_stay_below_the_folder(tmp_path, pattern):
    with pytest.raises(ConfigError, match="Leave the folder out"):
        build_source("nifti", tmp_path, images=pattern, labels="*_gt.nii.gz")


def test_folders_and_files_that_may_not_be_read_are_named(tmp_path, monkeypatch):
    for name in ("a", "b"):
        write_nifti(tmp_path / name / "t1.nii.gz", scan()[0])
        write_nifti(tmp_path / name / "gt.nii.gz", scan()[1])
    options = {"images": "*/t1.nii.gz", "labels": "*/gt.nii.gz", "classes": {"x": (1, 2)}}
    monkeypatch.setattr("os.access", lambda path, mode: path.name != "b")
    with pytest.raises(DataError, match=r"b may not be read\. Change its permissions"):
        build_source("nifti", tmp_path, **options)
    monkeypatch.setattr("os.access", lambda path, mode: path.name != "gt.nii.gz")
    source = build_source("nifti", tmp_path, **options)
    with pytest.raises(DataError, match=r"a/gt\.nii\.gz may not be read"):
        source.load(source.cases()[0])


def test_another_modality_than_ct_and_mr_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="CT or MR"):
        build_source("nifti", make_nnunet(tmp_path, cases=1), modality="PET")


def test_a_list_without_labels_and_one_that_is_damaged(tmp_path):
    write_nifti(tmp_path / "imagesTr" / "a.nii.gz", scan()[0])
    description = {"training": [{"image": "./imagesTr/a.nii.gz"}], "labels": {"0": "background", "1": "organ"}}
    (tmp_path / "dataset.json").write_text(json.dumps(description))
    assert [ref.id for ref in build_source("nifti", tmp_path).lacking_labels()] == ["a"]
    (tmp_path / "dataset.json").write_text(json.dumps({"training": ["a.nii.gz"]}))
    with pytest.raises(DataError, match=r"Fix dataset\.json"):
        build_source("nifti", tmp_path)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("modality", "CT"),
        ("channel_names", ["CT"]),
        ("channel_names", {"x": "CT"}),
        ("labels", ["organ"]),
        ("training", 5),
        ("training", [{"image": 5}]),
        ("test", None),
    ],
)
def test_a_dataset_json_written_by_hand_is_checked(tmp_path, part, value):
    root = make_nnunet(tmp_path, cases=1)
    description = json.loads((root / "dataset.json").read_text())
    (root / "dataset.json").write_text(json.dumps(description | {part: value}))
    with pytest.raises(DataError, match=r"dataset\.json.*(Fix|to be like)"):
        build_source("nifti", root)


def test_classes_can_be_merged_and_dropped(tmp_path):
    root = make_nnunet(tmp_path, cases=1, classes=5)
    source = build_source("nifti", root, classes={"background": (0, 4), "both": (1, 3), "two": 2})
    (case,) = load_all(source).values()
    np.testing.assert_array_equal(case.label, np.array([0, 1, 2, 1, 0])[scan(classes=5)[1]])


def test_a_value_belongs_to_one_class():
    assert as_classes({"a": 2}) == {"background": (0,), "a": (2,)}
    assert as_classes({"a": 2, "rest": (0, 1)}) == {"rest": (0, 1), "a": (2,)}
    with pytest.raises(ConfigError, match="under one class"):
        as_classes({"a": 2, "b": (2, 3)})


def test_whole_numbers_stored_as_floats_are_labels(tmp_path):
    root = make_nnunet(tmp_path, cases=1)
    write_nifti(root / "labelsTr" / "case_00.nii.gz", scan()[1].astype(np.float32))
    (case,) = load_all(build_source("nifti", root)).values()
    assert case.label.dtype == np.uint8
    np.testing.assert_array_equal(case.label, scan()[1])


def test_the_source_of_a_folder_is_recognised(tmp_path):
    assert detect_source(make_acdc(tmp_path / "a")).dataset == "acdc"
    assert detect_source(make_btcv(tmp_path / "s")).dataset == "synapse"
    assert detect_source(make_nnunet(tmp_path / "n")).dataset == "Small"
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no source finds any"):
        detect_source(tmp_path / "empty")
    write_nifti(tmp_path / "other" / "a" / "ct.nii.gz", scan()[0])
    with pytest.raises(DataError, match=r"NIfTI files, such as a/ct\.nii\.gz: .*--images"):
        detect_source(tmp_path / "other")
    with pytest.raises(DataError, match=r"^Expected images that match"):  # of the one source that takes patterns
        detect_source(tmp_path / "other", images="*/mr.nii.gz", labels="*/gt.nii.gz")
    with pytest.raises(MissingFileError) as caught:
        detect_source(tmp_path / "absent")
    assert str(caught.value).count("absent") == 1
