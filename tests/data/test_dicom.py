"""DICOM: geometry and intensities as SimpleITK reads them, SEG onto its series, nothing of the patient kept."""

import logging
import re

import nibabel as nib
import numpy as np
import pytest

from adawac.data.diagnosis import diagnose
from adawac.data.preparation import prepare
from adawac.data.preprocessing import CT, MR
from adawac.data.sources import build_source
from adawac.data.sources.dicom_series import read_series
from adawac.errors import DataError
from adawac.inference.scan_search import find_scans
from tests.data.scans import rotation, write_nifti

pydicom = pytest.importorskip("pydicom")
from tests.inference.series import SECRET, write_series  # noqa: E402

AXIAL = np.eye(3)
GEOMETRIES = {
    "axial": AXIAL,
    "sagittal": np.array([[0, 0, 1.0], [1.0, 0, 0], [0, 1.0, 0]]),
    "oblique": rotation(17, 0) @ rotation(-8, 1) @ rotation(31, 2),
}


def write_seg(path, series, label, names):
    """Write (column, row, slice) as a multi-frame DICOM SEG that leaves empty frames out."""
    hd = pytest.importorskip("highdicom")
    from pydicom.sr.codedict import codes

    sources = [pydicom.dcmread(path) for path in series]
    description = [
        hd.seg.SegmentDescription(
            segment_number=number,
            segment_label=name,
            segmented_property_category=codes.SCT.Organ,
            segmented_property_type=codes.SCT.Liver,
            algorithm_type=hd.seg.SegmentAlgorithmTypeValues.MANUAL,
        )
        for number, name in enumerate(names, start=1)
    ]
    seg = hd.seg.Segmentation(
        source_images=sources,
        pixel_array=np.ascontiguousarray(label.transpose(2, 1, 0)),
        segmentation_type=hd.seg.SegmentationTypeValues.BINARY,
        segment_descriptions=description,
        series_instance_uid=hd.UID(),
        series_number=9,
        sop_instance_uid=hd.UID(),
        instance_number=1,
        manufacturer="x",
        manufacturer_model_name="x",
        software_versions="1",
        device_serial_number="1",
        omit_empty_frames=True,
    )
    seg.save_as(path)


def volume(shape=(7, 6, 5), seed=0):
    generator = np.random.default_rng(seed)
    label = np.zeros(shape, np.uint8)
    label[1:4, 2:5, 1:3] = 1
    label[4:6, 1:3, 2:4] = 2
    return generator.integers(-1000, 2000, shape).astype(np.int16), label


def sitk_volume(folder):
    """(column, row, slice) and the affine in RAS, by SimpleITK."""
    sitk = pytest.importorskip("SimpleITK")
    names = sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(folder))
    image = sitk.ReadImage(names)
    affine = np.eye(4)
    directions = np.array(image.GetDirection()).reshape(3, 3)
    affine[:3, :3], affine[:3, 3] = directions * np.array(image.GetSpacing()), image.GetOrigin()
    return sitk.GetArrayFromImage(image).transpose(2, 1, 0), np.diag([-1.0, -1, 1, 1]) @ affine


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("reverse", [False, True])
def test_series_as_simpleitk_reads_it(tmp_path, geometry, reverse):
    stored, _ = volume()
    names = [f"{(5 - k) if reverse else k}.dcm" for k in range(5)]
    directions = GEOMETRIES[geometry]
    paths = write_series(tmp_path, stored, directions, slope=1.5, intercept=-1024.0, names=names)
    image, affine = read_series(sorted(paths))
    expected, expected_affine = sitk_volume(tmp_path)
    np.testing.assert_allclose(image, expected, atol=1e-3)
    np.testing.assert_allclose(affine, expected_affine, atol=1e-5)
    np.testing.assert_allclose(image, stored * 1.5 - 1024, atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(affine[:3, :3], axis=0), (0.7, 0.9, 2.5), rtol=1e-6)


def test_slices_stored_from_the_top_down_are_turned_round(tmp_path):
    stored, _ = volume()
    down = np.diag([1.0, 1.0, -1.0])  # the position decreases along the normal of the rows and columns
    image, affine = read_series(write_series(tmp_path, stored, down))
    np.testing.assert_array_equal(image, stored[:, :, ::-1])
    np.testing.assert_allclose(affine[:3, 2], (0, 0, 2.5), atol=1e-6)
    expected, expected_affine = sitk_volume(tmp_path)
    np.testing.assert_allclose(image, expected, atol=1e-3)
    np.testing.assert_allclose(affine, expected_affine, atol=1e-5)


def test_a_tilted_gantry_becomes_a_sheared_affine(tmp_path):
    stored, _ = volume()
    image, affine = read_series(write_series(tmp_path, stored, tilt=0.5))
    np.testing.assert_array_equal(image, stored)
    np.testing.assert_allclose(affine[:3, 2], (0, -0.5, 2.5), atol=1e-6)


def test_one_slice_has_its_thickness(tmp_path):
    stored, _ = volume((4, 3, 1))
    image, affine = read_series(write_series(tmp_path, stored))
    assert image.shape == (4, 3, 1)
    np.testing.assert_allclose(np.linalg.norm(affine[:3, 2]), 2.5)


def test_an_enhanced_multi_frame_image_is_one_volume(tmp_path):
    pytest.importorskip("highdicom")
    from pydicom.dataset import Dataset
    from pydicom.uid import EnhancedMRImageStorage

    stored, _ = volume()
    single = write_series(tmp_path, stored, GEOMETRIES["oblique"], slope=2.0, intercept=-3.0)
    expected, affine = read_series(single)
    ds = pydicom.dcmread(single[0])
    ds.SOPClassUID = ds.file_meta.MediaStorageSOPClassUID = EnhancedMRImageStorage
    ds.NumberOfFrames = 5
    ds.PixelData = b"".join(pydicom.dcmread(path).PixelData for path in single)
    shared, orientation, measures, rescale = Dataset(), Dataset(), Dataset(), Dataset()
    orientation.ImageOrientationPatient = ds.ImageOrientationPatient
    measures.PixelSpacing, measures.SliceThickness = ds.PixelSpacing, ds.SliceThickness
    rescale.RescaleSlope, rescale.RescaleIntercept, rescale.RescaleType = 2.0, -3.0, "US"
    shared.PlaneOrientationSequence, shared.PixelMeasuresSequence = [orientation], [measures]
    shared.PixelValueTransformationSequence = [rescale]
    ds.SharedFunctionalGroupsSequence = [shared]
    frames = []
    for path in single:
        frame, position = Dataset(), Dataset()
        position.ImagePositionPatient = pydicom.dcmread(path).ImagePositionPatient
        frame.PlanePositionSequence = [position]
        frames.append(frame)
    ds.PerFrameFunctionalGroupsSequence = frames
    for name in ("RescaleSlope", "RescaleIntercept", "ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing"):
        delattr(ds, name)
    ds.save_as(tmp_path / "enhanced.dcm")
    image, read_affine = read_series([tmp_path / "enhanced.dcm"])
    np.testing.assert_allclose(image, expected)
    np.testing.assert_allclose(read_affine, affine, atol=1e-5)


def test_a_missing_slice_is_refused_and_the_gap_named(tmp_path):
    paths = write_series(tmp_path, volume()[0])
    paths.pop(2).unlink()
    with pytest.raises(DataError, match=r"2\.5 mm apart, but .*0001\.dcm and .*0003\.dcm are 5 mm.*missing"):
        read_series(paths)


def test_a_slice_twice_is_refused(tmp_path):
    paths = write_series(tmp_path / "a", volume()[0])
    (tmp_path / "a" / "copy.dcm").write_bytes(paths[1].read_bytes())
    with pytest.raises(DataError, match=r"0001\.dcm and .*copy\.dcm lie at the same"):
        read_series([*paths, tmp_path / "a" / "copy.dcm"])


def test_a_slice_of_another_scan_is_refused(tmp_path):
    paths = write_series(tmp_path / "a", volume()[0])
    other = write_series(tmp_path / "b", volume((5, 6, 1))[0], origin=(-31.5, 12.0, 52.5))
    with pytest.raises(DataError, match=r"Columns .*in .*b/0000\.dcm"):
        read_series([*paths, *other])


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_multi_frame_seg_lands_on_its_series(tmp_path, geometry):
    stored, label = volume()
    paths = write_series(tmp_path / "anna" / "ct", stored, GEOMETRIES[geometry])
    write_seg(tmp_path / "anna" / "seg.dcm", paths, label, ["liver", "spleen"])
    source = build_source("dicom", tmp_path)
    (ref,) = source.cases()
    case = source.load(ref)
    assert case.class_names == ("background", "liver", "spleen")
    assert (ref.patient, ref.id) == ("anna", "anna_ct")
    np.testing.assert_array_equal(case.label, label)
    np.testing.assert_array_equal(case.image[0], stored)
    assert source.preprocessing == CT


def test_segments_are_matched_by_name_over_several_files(tmp_path):
    stored, label = volume()
    for patient, names in (("anna", ["liver", "spleen"]), ("bert", ["spleen", "liver"])):
        paths = write_series(tmp_path / patient / "mr", stored, modality="MR", patient=f"{patient}^")
        write_seg(tmp_path / patient / "seg.dcm", paths, label, names)
    source = build_source("dicom", tmp_path)
    anna, bert = (source.load(ref).label for ref in source.cases())
    np.testing.assert_array_equal(anna, label)
    np.testing.assert_array_equal(bert, np.array([0, 2, 1])[label])
    assert source.preprocessing == MR
    by_number = build_source("dicom", tmp_path, classes={"one": 1, "two": 2})
    np.testing.assert_array_equal(by_number.load(by_number.cases()[1]).label, label)


def test_a_seg_on_another_grid_is_refused(tmp_path):
    stored, label = volume()
    paths = write_series(tmp_path / "anna" / "ct", stored)
    other = write_series(
        tmp_path / "other", stored, spacing=(0.5, 0.5, 2.0), uid=pydicom.dcmread(paths[0]).SeriesInstanceUID
    )
    write_seg(tmp_path / "anna" / "seg.dcm", other, label, ["liver", "spleen"])
    for path in other:
        path.unlink()
    source = build_source("dicom", tmp_path)
    with pytest.raises(DataError, match=r"seg\.dcm cannot be used"):
        source.load(source.cases()[0])


def test_nifti_labels_in_any_voxel_order(tmp_path):
    stored, label = volume()
    folder = tmp_path / "anna"
    _, affine = read_series(write_series(folder, stored, GEOMETRIES["oblique"]))
    turned = nib.Nifti1Image(label, affine).as_reoriented([[1, -1], [0, 1], [2, -1]])
    nib.save(turned, folder / "seg.nii.gz")
    source = build_source("dicom", tmp_path, classes={"liver": 1, "spleen": 2})
    np.testing.assert_array_equal(source.load(source.cases()[0]).label, label)
    (folder / "seg.nii.gz").rename(tmp_path / "label_anna.nii.gz")
    source = build_source("dicom", tmp_path, labels="label_*.nii.gz")
    np.testing.assert_array_equal(source.load(source.cases()[0]).label, label)


@pytest.mark.parametrize(
    ("series", "label", "options"),
    [
        ("PATIENT/ct", "PATIENT/seg.nii.gz", {}),
        ("PATIENT/ct", "PATIENT/ct/seg.nii", {}),
        ("PATIENT", "PATIENT.nii.gz", {}),
        ("PATIENT", "seg_PATIENT.nii.gz", {}),
        ("PATIENT/ct", "labels/PATIENT.nii.gz", {"labels": "labels/*.nii.gz"}),
        ("PATIENT/ct", "labels/PATIENT_ct.nii.gz", {"labels": "labels/*.nii.gz"}),
        ("PATIENT/ct", "PATIENT/seg.nii.gz", {"labels": "*/seg.nii.gz"}),
        ("day 1/PATIENT/ct", "masks/PATIENT.nii.gz", {"labels": "masks/*.nii.gz"}),
        ("day 1/PATIENT/ct", "day 1/PATIENT/seg.nii.gz", {"labels": "**/seg.nii.gz"}),
    ],
)
def test_nifti_labels_beside_a_series_inside_and_by_pattern(tmp_path, series, label, options):
    """The same files are no scans: `predict` and `view` take the series alone."""
    for seed, patient in enumerate(("A1", "A10")):
        folder = tmp_path / series.replace("PATIENT", patient)
        _, affine = read_series(write_series(folder, volume(seed=seed)[0], patient=patient))
        write_nifti(tmp_path / label.replace("PATIENT", patient), volume()[1] * (seed + 1), affine)
    source = build_source("dicom", tmp_path, **options)
    for ref in source.cases():
        value = np.array(list(source.classes.values()))[source.load(ref).label][..., 0]
        np.testing.assert_array_equal(value, volume()[1] * (2 if "A10" in ref.id else 1))
    assert [scan.kind for scan in find_scans([tmp_path])] == ["dicom", "dicom"]
    assert [scan.path for scan in find_scans([folder])] == [folder]


def test_a_label_map_beside_two_series_is_that_of_the_one_it_names(tmp_path):
    for name in ("ct", "pet"):
        write_series(tmp_path / "anna" / name, volume()[0])
    _, affine = read_series(sorted((tmp_path / "anna" / "ct").iterdir()))
    label = write_nifti(tmp_path / "anna" / "organs_ct.nii.gz", volume()[1], affine)
    assert [ref.labels for ref in build_source("dicom", tmp_path, unlabelled="keep").cases()] == [(label,), ()]
    label.rename(label.with_name("organs.nii.gz"))
    with pytest.raises(DataError, match=r"none of them has one .*anna/ct/"):
        prepare("dicom", tmp_path, tmp_path / "store", workers=1)


def test_a_series_without_a_label_and_one_with_two(tmp_path):
    write_series(tmp_path / "anna", volume()[0])
    with pytest.raises(DataError, match=r"none of them has one .*SEG.*anna/"):
        prepare("dicom", tmp_path, tmp_path / "store", workers=1)
    with pytest.raises(DataError, match="none of them has one"):
        build_source("dicom", tmp_path, skip_unlabelled=True)
    write_series(tmp_path / "bert", volume()[0], patient="B")
    write_nifti(tmp_path / "bert" / "seg.nii.gz", volume()[1])
    source = build_source("dicom", tmp_path)
    anna, bert = source.cases()
    assert source.load(anna).label is None
    assert bert.labels
    with pytest.raises(DataError, match=r"1 has none.*anna/.*--skip-unlabelled"):
        prepare("dicom", tmp_path, tmp_path / "store", workers=1)
    assert [ref.id for ref in build_source("dicom", tmp_path, skip_unlabelled=True).cases()] == ["bert"]
    for name in "ab":
        write_nifti(tmp_path / "anna" / f"{name}.nii.gz", volume()[1])
    with pytest.raises(DataError, match=r"a\.nii\.gz and .*b\.nii\.gz"):
        build_source("dicom", tmp_path)


def test_series_that_are_only_partly_annotated(tmp_path):
    label = volume()[1]
    for name in ("anna", "bert"):
        files = write_series(tmp_path / "scans" / name, volume()[0], patient=name)
    write_nifti(tmp_path / "scans" / "bert" / "seg.nii.gz", label, read_series(files)[1])
    (tmp_path / "slices.csv").write_text("case,slice\nbert,0\nbert,2\n")
    options = {"ignore": 2, "unlabelled": "keep", "labelled_slices": tmp_path / "slices.csv"}
    store = prepare("dicom", tmp_path / "scans", tmp_path / "store", workers=1, **options)
    assert store.class_names == ("background", *(f"class {k}" for k in np.unique(label) if k not in (0, 2)))
    table = store.table
    assert table.state[table.case == "anna"].tolist() == ["unlabelled"] * 5
    states = table.state[table.case == "bert"].tolist()
    assert [state == "unlabelled" for state in states] == [False, True, False, True, True]
    source = build_source("dicom", tmp_path / "scans", ignore=2)
    bert = next(ref for ref in source.cases() if ref.id == "bert")
    native = source.load(bert).label
    assert 0 < (native == 255).sum() == (label == 2).sum()


def test_contours_are_said_not_to_be_labels(tmp_path):
    from pydicom import dcmread

    files = write_series(tmp_path / "anna" / "ct", volume()[0])
    with pytest.raises(DataError) as caught:
        prepare("dicom", tmp_path, tmp_path / "store", workers=1)
    assert "RTSTRUCT" not in str(caught.value)
    contours = dcmread(files[0])
    contours.Modality, contours.SeriesInstanceUID = "RTSTRUCT", "1.2.3"
    contours.save_as(tmp_path / "anna" / "rs.dcm")
    with pytest.raises(DataError, match=r"RTSTRUCT files here, are not read: convert them to SEG or NIfTI"):
        prepare("dicom", tmp_path, tmp_path / "store", workers=1)


def test_several_series_in_one_folder_are_told_apart(tmp_path):
    for number in range(2):
        write_series(tmp_path / "anna", volume(seed=number)[0], names=[f"{number}_{k}.dcm" for k in range(5)])
    first, second = (ref.id for ref in build_source("dicom", tmp_path).cases())
    assert first != second
    assert first.startswith("anna_")
    assert second.startswith("anna_")


@pytest.mark.parametrize("damage", [lambda content: b"not dicom", lambda content: content[:400]])
def test_an_unreadable_file_is_named_with_its_case_and_the_others_are_looked_at(tmp_path, caplog, damage):
    for name in ("anna", "bert"):
        paths = write_series(tmp_path / "in" / name, volume()[0], patient=name)
        write_nifti(tmp_path / "in" / name / "seg.nii.gz", volume()[1], read_series(paths)[1])
    paths[-1].write_bytes(damage(paths[-1].read_bytes()))  # the last slice: no gap would tell
    report = diagnose(tmp_path / "in", workers=1)
    assert [case.id for case in report.cases] == ["anna"]
    (fault,) = report.faults
    assert re.search(r"bert/0004\.dcm cannot be read", fault)
    with pytest.raises(DataError, match=r"bert/0004\.dcm cannot be read"):
        prepare("dicom", tmp_path / "in", tmp_path / "out", workers=1)
    for path in paths[:-1]:
        path.unlink()
    (tmp_path / "in" / "bert" / "seg.nii.gz").unlink()
    assert not diagnose(tmp_path / "in", workers=1).faults
    assert re.search(r"1 files .*bert/0004\.dcm cannot be read", caplog.text)


def test_what_is_no_scan_is_passed_over_with_a_count(tmp_path, caplog):
    """Treatment plans come with their images, and a disc with its table of contents, whatever that is called."""
    from pydicom.uid import MediaStorageDirectoryStorage

    paths = write_series(tmp_path / "anna", volume()[0])
    write_nifti(tmp_path / "anna" / "seg.nii.gz", volume()[1], read_series(paths)[1])
    for name, modality in (("rs.dcm", "RTSTRUCT"), ("rd.dcm", "RTDOSE"), ("rs2", "RTSTRUCT"), ("dir.dcm", None)):
        other = pydicom.dcmread(paths[0])
        del other.SeriesInstanceUID
        if modality:
            other.Modality = modality
        else:
            del other.Modality
            other.file_meta.MediaStorageSOPClassUID = MediaStorageDirectoryStorage
        other.save_as(tmp_path / "anna" / name)
    (tmp_path / "DICOMDIR").write_bytes((tmp_path / "anna" / "dir.dcm").read_bytes())
    (tmp_path / "readme.txt").write_text("hello")
    report = diagnose(tmp_path, workers=1)
    assert (len(report.cases), report.faults) == (1, ())
    assert "6 files that are no scans" in caplog.text
    assert "2 DICOMDIR, 2 RTSTRUCT, 1 RTDOSE, 1 other" in caplog.text
    assert [(scan.path, scan.problem) for scan in find_scans([tmp_path])] == [(tmp_path / "anna", "")]


def test_labels_of_no_series_are_named(tmp_path):
    for name in ("anna", "bert"):
        paths = write_series(tmp_path / name / "ct", volume()[0], patient=name)
        write_nifti(tmp_path / "labels" / f"{name}.nii.gz", volume()[1], read_series(paths)[1])
    for path in paths:
        path.unlink()
    for options in ({}, {"labels": "labels/*.nii.gz"}):
        source = build_source("dicom", tmp_path, **options)
        assert source.unused_labels[-1] == tmp_path / "labels" / "bert.nii.gz"
        assert len(source.unused_labels) == (1 if options else 2)


def test_truncated_pixels_are_named(tmp_path):
    paths = write_series(tmp_path / "anna", volume()[0])
    paths[3].write_bytes(paths[3].read_bytes()[:-40])
    with pytest.raises(DataError, match=r"0003\.dcm"):
        read_series(paths)


def test_a_file_that_is_cut_off_in_its_header_is_named(tmp_path):
    path = write_series(tmp_path / "anna", volume()[0])[3]
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b"\x20\0\x32\0DS")])  # where its position would be
    with pytest.raises(DataError, match=r"0003\.dcm has none"):
        read_series([path])


def test_one_patient_in_two_folders_is_pointed_out_without_the_name(tmp_path, caplog):
    for folder in ("scan1", "scan2"):
        write_nifti(tmp_path / folder / "seg.nii.gz", volume()[1])
        write_series(tmp_path / folder, volume()[0])
    with caplog.at_level(logging.WARNING):
        build_source("dicom", tmp_path)
    assert "The identifiers of 1 of 1 patients occur in several folders" in caplog.text
    assert SECRET not in caplog.text


def test_nothing_of_the_patient_reaches_the_store(tmp_path):
    stored, label = volume()
    for name in ("anna", "bert"):
        paths = write_series(tmp_path / "in" / name / "ct", stored, patient=SECRET)
        write_seg(tmp_path / "in" / name / "seg.dcm", paths, label, ["liver", "spleen"])
    uids = [str(pydicom.dcmread(paths[0])[tag].value) for tag in ("SeriesInstanceUID", "StudyInstanceUID")]
    store = prepare("dicom", tmp_path / "in", tmp_path / "out", workers=1)
    store.export_nifti("anna_ct", tmp_path / "out" / "anna.nii")
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for secret in (SECRET, "19500101", *uids):
                assert secret.encode() not in content, path
    np.testing.assert_array_equal(np.asarray(nib.load(tmp_path / "out" / "anna.nii").dataobj), label)
