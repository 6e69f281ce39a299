"""DICOM series in; NIfTI and DICOM SEG out, where SimpleITK and highdicom find the series."""

import json

import nibabel as nib
import numpy as np
import pytest

from tests.inference.made_runs import NAMES, make_run, noise, rotation, thresholded

pytest.importorskip("pydicom")
from adawac.data.sources.dicom_series import read_series
from adawac.errors import ConfigError
from adawac.inference import volumes
from adawac.inference.prediction import predict
from adawac.inference.scan_search import find_scans
from tests.inference.series import SECRET, write_series

OBLIQUE = rotation(17, 0) @ rotation(-8, 1) @ rotation(31, 2)
DOWN = np.diag([1.0, 1.0, -1.0])


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", values=((0,), (1,), (2,)))


def sitk_series(folder):
    """Voxels by (column, row, slice) and the grid, as SimpleITK has them."""
    sitk = pytest.importorskip("SimpleITK")
    image = sitk.ReadImage(sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(folder)))
    return sitk.GetArrayFromImage(image).transpose(2, 1, 0), grid_of(image)


def grid_of(image):
    return np.array([*image.GetOrigin(), *image.GetSpacing(), *image.GetDirection()])


@pytest.mark.parametrize(
    "options",
    [{}, {"directions": OBLIQUE, "backwards": True}, {"directions": DOWN}, {"directions": OBLIQUE, "rle": True}],
    ids=["axial", "oblique, named backwards", "top down", "oblique, RLE"],
)
def test_the_label_map_overlays_its_series(tmp_path, run, options):
    sitk = pytest.importorskip("SimpleITK")
    stored = noise()
    files = write_series(tmp_path / "ct", stored, **options)
    (done,) = predict(run, tmp_path / "ct", tmp_path / "out", device="cpu")
    assert done.error == ""
    assert done.labels == tmp_path / "out" / "ct.nii.gz"
    voxels, grid = sitk_series(tmp_path / "ct")
    labels = sitk.ReadImage(str(done.labels))
    np.testing.assert_array_equal(sitk.GetArrayFromImage(labels).transpose(2, 1, 0), thresholded(voxels))
    np.testing.assert_allclose(grid_of(labels), grid, atol=1e-4)
    image, affine = read_series(files)
    np.testing.assert_array_equal(np.asarray(nib.load(done.labels).dataobj), thresholded(image))
    np.testing.assert_allclose(nib.load(done.labels).affine, affine, atol=1e-4)
    assert all(SECRET.encode() not in path.read_bytes() for path in done.files)


@pytest.mark.parametrize("slices", [1, 2, 3])
def test_series_are_read_block_by_block(tmp_path, monkeypatch, slices):
    stored = noise((12, 10, 7))
    files = write_series(tmp_path / "ct", stored, OBLIQUE, backwards=True)
    monkeypatch.setattr(volumes, "BLOCK_VOXELS", slices * 120)
    (scan,) = find_scans([tmp_path / "ct"])
    volume = volumes.open_scan(scan, ["image"])
    image, affine = read_series(files)
    np.testing.assert_array_equal(np.concatenate(list(volume.blocks())), image.transpose(2, 0, 1))
    np.testing.assert_allclose(volume.affine, affine, atol=1e-12)


@pytest.mark.parametrize("missing", [1, 3, 5])
def test_a_missing_slice_is_found_in_whatever_block_it_is(tmp_path, monkeypatch, run, missing):
    files = write_series(tmp_path / "ct", noise((12, 10, 7)))
    files[missing].unlink()
    monkeypatch.setattr(volumes, "BLOCK_VOXELS", 2 * 120)
    (done,) = predict(run, tmp_path / "ct", tmp_path / "out", device="cpu")
    assert "a slice is missing" in done.error


def test_a_slice_missing_between_two_blocks_of_a_long_series_is_found(tmp_path, monkeypatch, run):
    """There the mean distance of the slices hardly changes."""
    files = write_series(tmp_path / "ct", noise((12, 10, 31)))
    files[16].unlink()
    monkeypatch.setattr(volumes, "BLOCK_VOXELS", 2 * 120)
    (done,) = predict(run, tmp_path / "ct", tmp_path / "out", device="cpu")
    assert "a slice is missing" in done.error


def test_a_tilted_gantry_has_a_sheared_affine_and_no_quaternion(tmp_path, run):
    write_series(tmp_path / "ct", noise(), tilt=0.5)
    (done,) = predict(run, tmp_path / "ct", tmp_path / "out", device="cpu")
    header = nib.load(done.labels).header
    assert (int(header["qform_code"]), int(header["sform_code"])) == (0, 1)
    np.testing.assert_allclose(nib.load(done.labels).affine[:3, 2], (0, -0.5, 2.5), atol=1e-6)


@pytest.mark.parametrize("directions", [np.eye(3), OBLIQUE, DOWN], ids=["axial", "oblique", "top down"])
def test_seg_as_highdicom_reads_it(tmp_path, run, directions):
    hd = pytest.importorskip("highdicom")
    stored = noise()
    stored[:, :, 2] = 0  # a slice without a segment
    files = write_series(tmp_path / "ct", stored, directions)
    (done,) = predict(run, tmp_path / "ct", tmp_path / "out", format="seg", device="cpu")
    assert done.error == ""
    seg = hd.seg.segread(done.labels)
    assert [segment.SegmentLabel for segment in seg.SegmentSequence] == list(NAMES[1:])
    meanings = [segment.SegmentedPropertyTypeCodeSequence[0].CodeMeaning for segment in seg.SegmentSequence]
    assert meanings == ["Liver", "Kidney"]
    image, affine = read_series(files)
    ours = np.diag([-1.0, -1, 1, 1]) @ affine[:, [2, 1, 0, 3]]
    grid = hd.VolumeGeometry(
        ours, image.shape[::-1], coordinate_system="PATIENT", frame_of_reference_uid=seg.FrameOfReferenceUID
    )
    volume = seg.get_volume(combine_segments=True, allow_missing_positions=True).match_geometry(grid)
    np.testing.assert_array_equal(volume.array.transpose(2, 1, 0), thresholded(image))
    sources = {image.ReferencedSOPInstanceUID for image in seg.ReferencedSeriesSequence[0].ReferencedInstanceSequence}
    assert len(sources) == stored.shape[2]


def test_no_warning_names_the_patient(tmp_path, run, recwarn):
    write_series(tmp_path / "ct", noise(), patient="ANON17")  # one word: highdicom doubts that it is a name
    (done,) = predict(run, tmp_path / "ct", tmp_path / "out", format="seg", device="cpu")
    assert done.error == ""
    assert not recwarn.list


def test_a_seg_is_what_training_reads(tmp_path, run):
    from adawac.data.sources import build_source

    stored = noise()
    write_series(tmp_path / "in" / "anna" / "ct", stored)
    predict(run, tmp_path / "in" / "anna" / "ct", tmp_path / "in" / "anna", format="seg", device="cpu")
    (tmp_path / "in" / "anna" / "ct.json").unlink()
    source = build_source("dicom", tmp_path / "in")
    assert set(source.class_names) == set(NAMES)
    label = source.load(source.cases()[0]).label
    indices = np.array([source.class_names.index(name) for name in NAMES])
    np.testing.assert_array_equal(label, indices[thresholded(stored)])


def test_seg_wants_dicom_and_nifti_probabilities(tmp_path, run):
    from tests.inference.made_runs import save

    scan = save(tmp_path / "scan.nii.gz", noise())
    with pytest.raises(ConfigError, match=r"DICOM series for the format seg, but .*scan\.nii\.gz is NIfTI"):
        predict(run, scan, tmp_path / "out", format="seg", device="cpu")
    write_series(tmp_path / "ct", noise())
    with pytest.raises(ConfigError, match="NIfTI for probabilities"):
        predict(run, tmp_path / "ct", tmp_path / "out", format="seg", probabilities=True, device="cpu")


def test_a_scan_without_any_segment_is_an_empty_seg(tmp_path, run, caplog):
    hd = pytest.importorskip("highdicom")
    stored = np.zeros((12, 10, 4), np.int16)
    stored[0, 0, 0] = 5
    write_series(tmp_path / "ct", stored - 100)
    (done,) = predict(run, tmp_path / "ct", tmp_path / "out", format="seg", device="cpu")
    assert done.error == ""
    assert not hd.seg.segread(done.labels).pixel_array.any()
    assert caplog.text == ""


def test_series_are_told_apart(tmp_path):
    write_series(tmp_path / "a" / "ct", noise())
    write_series(tmp_path / "b" / "ct", noise(seed=1))
    series = write_series(tmp_path / "both", noise(seed=2))
    for path in series:
        path.rename(path.with_name(f"first{path.name}"))
    write_series(tmp_path / "both", noise(seed=3))
    assert [scan.name for scan in find_scans([tmp_path / "a", tmp_path / "b"])] == ["a_ct", "b_ct"]
    names = [scan.name for scan in find_scans([tmp_path / "both"])]
    assert len(set(names)) == 2
    assert all(name.startswith("both_") for name in names)
    by_file = find_scans([tmp_path / "a" / "ct" / "*.dcm"])
    assert [(scan.name, len(scan.files)) for scan in by_file] == [("ct", 6)]


@pytest.mark.parametrize(("modality", "doubtful"), [("CT", False), ("MR", True), (None, False)])
def test_a_series_of_another_modality_than_the_training_is_doubted(tmp_path, run, modality, doubtful):
    write_series(tmp_path / "ct", noise())
    data = json.loads((run / "data.json").read_text())
    (run / "data.json").write_text(json.dumps(data | ({"modality": modality} if modality else {})))
    (done,) = predict(run, tmp_path / "ct", tmp_path / "out", device="cpu")
    assert done.error == ""
    assert ("trained on MR" in done.doubt) is doubtful


@pytest.mark.parametrize("kept", ["meta", "modality"])
def test_a_seg_of_a_deidentified_series_that_lost_its_class(tmp_path, run, kept):
    hd, pydicom = pytest.importorskip("highdicom"), pytest.importorskip("pydicom")
    for path in write_series(tmp_path / "ct", noise()):
        header = pydicom.dcmread(path)
        header.SOPClassUID = ""
        if kept != "meta":
            header.file_meta.MediaStorageSOPClassUID = ""
        header.save_as(path)
    (done,) = predict(run, tmp_path / "ct", tmp_path / "out", format="seg", device="cpu")
    assert done.error == ""
    assert hd.seg.segread(done.labels).pixel_array.any()


@pytest.mark.parametrize("name", ["SOPInstanceUID", "StudyInstanceUID", "FrameOfReferenceUID"])
@pytest.mark.parametrize("gone", [True, False])
def test_what_a_series_lacks_for_a_seg_is_named_before_it_is_segmented(tmp_path, run, name, gone):
    pydicom = pytest.importorskip("pydicom")
    files = write_series(tmp_path / "ct", noise())
    header = pydicom.dcmread(files[2])
    setattr(header, name, "")
    if gone:
        delattr(header, name)
    header.save_as(files[2])
    slices = []
    watch = lambda scan, done, count: slices.append(done)  # noqa: E731
    (done,) = predict(run, tmp_path / "ct", tmp_path / "out", format="seg", device="cpu", watch=watch)
    assert name in done.error
    assert str(files[2]) in done.error
    assert slices == []
