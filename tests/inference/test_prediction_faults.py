"""Bad input: one message each, that says what to do; the other scans are still done."""

import os
import re
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from adawac.errors import AdawacError, ConfigError, MissingFileError
from adawac.inference import label_files, volumes
from adawac.inference.prediction import predict
from tests.data.scans import flip_bit
from tests.inference.made_runs import make_run, noise, save, thresholded


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


def truncated(folder):
    path = save(folder / "bad.nii.gz", noise())
    path.write_bytes(path.read_bytes()[:-300])
    return path


def cut_short(folder):
    path = save(folder / "bad.nii", noise())
    path.write_bytes(path.read_bytes()[:-300])
    return path


def written(name, content=b"hello"):
    def write(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        return folder / name

    return write


def with_nan(folder):
    image = noise().astype(np.float32)
    image[3, 4, 5], image[1, 1, 1] = np.nan, np.inf
    return save(folder / "bad.nii.gz", image)


def labels_by_header(folder):
    path = save(folder / "bad.nii.gz", noise())
    image = nib.load(path)
    image.header.set_intent("label")
    nib.save(nib.Nifti1Image(np.asarray(image.dataobj), None, image.header), path)
    return path


def labels_by_content(folder):
    return save(folder / "bad.nii.gz", np.array([0, 7, 3, 4], np.uint8)[noise() % 4])


def coloured(folder):
    path = folder / "bad.nii.gz"
    folder.mkdir(parents=True, exist_ok=True)
    kind = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])
    nib.save(nib.Nifti1Image(np.zeros((4, 4, 4), kind), np.eye(4)), path)
    return path


def singular(folder):
    path = save(folder / "bad.nii", noise(), codes=(0, 1))
    data = bytearray(path.read_bytes())
    data[280:328] = bytes(48)  # srow_x, srow_y, srow_z
    path.write_bytes(data)
    return path


FAULTS = {
    "truncated, compressed": (truncated, "cannot be read .* It may be truncated: copy or download it again"),
    "truncated": (cut_short, "cannot be read .* It may be truncated"),
    "flipped bit": (lambda folder: flip_bit(save(folder / "bad.nii.gz", noise())), "CRC check failed"),
    "no NIfTI": (written("bad.nii.gz"), "Expected a NIfTI file, but it cannot be read"),
    "empty file": (written("bad.nii", b""), "Expected a NIfTI file, but it cannot be read"),
    "no scan": (written("bad.txt"), r"NIfTI file \(.nii, .nii.gz\) or a DICOM image, but it is neither"),
    "NaN": (with_nan, "got 2 NaN or infinite voxels"),
    "4D": (lambda folder: save(folder / "bad.nii.gz", noise((4, 4, 3, 5))), r"3D scan, but got shape \(4, 4, 3, 5\)"),
    "2D": (lambda folder: save(folder / "bad.nii.gz", noise((4, 4))), r"single slice as a volume of \(4, 4, 1\)"),
    "label map by its header": (labels_by_header, "header says that it is a label map"),
    "label map by its values": (labels_by_content, "looks like a label map"),
    "colours": (coloured, "Expected numbers, but got voxels of type"),
    "no place in space": (singular, "invertible affine"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_bad_scan_among_others(tmp_path, run, fault, caplog):
    make, message = FAULTS[fault]
    bad = make(tmp_path / "in")
    good = [save(tmp_path / "in" / f"{name}.nii.gz", noise(seed=seed)) for seed, name in enumerate("ax")]
    done = predict(run, [*good, bad], tmp_path / "out", values="index", device="cpu")
    by_path = {prediction.scan.path: prediction for prediction in done}
    for seed, path in enumerate(good):
        labels = np.asarray(nib.load(by_path[path].labels).dataobj)
        np.testing.assert_array_equal(labels, thresholded(noise(seed=seed)))
    failed = by_path[bad]
    assert failed.labels is None
    assert failed.files == ()
    assert re.search(message, failed.error), failed.error
    assert "\n" not in failed.error
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.json", "a.nii.gz", "x.json", "x.nii.gz"]
    assert f"{bad} was not segmented" in caplog.text


def test_another_number_of_channels(tmp_path, run):
    two = make_run(tmp_path / "two", channels=("t1", "t2"))
    scan = save(tmp_path / "scan.nii.gz", noise())
    (done,) = predict(two, scan, tmp_path / "out", device="cpu")
    assert "Expected 2 channels (t1, t2), but got 1" in done.error
    fourth = save(tmp_path / "fourth.nii.gz", noise((12, 10, 6, 2)))
    (done,) = predict(run, fourth, tmp_path / "out", device="cpu")
    assert "Expected a 3D scan, but got shape (12, 10, 6, 2)" in done.error
    for number, shape in enumerate([(12, 10, 6), (12, 10, 5)]):
        save(tmp_path / "pair" / f"a_{number:04d}.nii.gz", noise(shape))
    (done,) = predict(two, tmp_path / "pair", tmp_path / "out", device="cpu")
    assert "a_0001.nii.gz" in done.error


def test_dicom_for_two_channels_and_broken_dicom(tmp_path, run):
    pytest.importorskip("pydicom")
    from tests.inference.series import write_series

    two = make_run(tmp_path / "two", channels=("t1", "t2"))
    files = write_series(tmp_path / "ct", noise())
    (done,) = predict(two, tmp_path / "ct", tmp_path / "out", device="cpu")
    assert "Expected 2 channels (t1, t2), but got 1" in done.error
    files[2].write_bytes(files[2].read_bytes()[:-50])
    (done,) = predict(run, tmp_path / "ct", tmp_path / "out", device="cpu")
    assert "0002.dcm" in done.error
    files[2].write_bytes(b"no dicom")
    broken, series = sorted(
        predict(run, tmp_path / "ct", tmp_path / "out", device="cpu"), key=lambda prediction: len(prediction.scan.files)
    )
    assert "Expected a DICOM file, but it cannot be read" in broken.error
    assert "a slice is missing" in series.error


def test_label_maps_are_not_overwritten(tmp_path, run):
    scans = [save(tmp_path / "in" / f"{name}.nii.gz", noise(seed=seed)) for seed, name in enumerate("ab")]
    (first,) = predict(run, scans[0], tmp_path / "out", device="cpu")
    first.labels.write_bytes(b"mine")
    again, other = predict(run, scans, tmp_path / "out", device="cpu")
    assert "a.nii.gz exists. Give `overwrite=True`, or another `out`." in again.error
    assert first.labels.read_bytes() == b"mine"
    assert other.error == ""
    again, _ = predict(run, scans, tmp_path / "out", overwrite=True, device="cpu")
    assert again.error == ""
    assert nib.load(first.labels).shape == (12, 10, 6)


def test_a_scan_is_never_overwritten(tmp_path, run):
    scan = save(tmp_path / "in" / "a.nii.gz", noise())
    before = scan.read_bytes()
    with pytest.raises(ConfigError, match=r"a\.nii\.gz is a scan itself"):
        predict(run, scan, tmp_path / "in", overwrite=True, device="cpu")
    assert scan.read_bytes() == before


def test_no_two_files_of_one_name(tmp_path, run):
    scans = [save(tmp_path / "in" / f"{name}.nii.gz", noise()) for name in ("a", "a_probabilities")]
    with pytest.raises(ConfigError, match=r"a_probabilities\.nii\.gz would be written twice"):
        predict(run, scans, tmp_path / "out", probabilities=True, device="cpu")
    assert [prediction.error for prediction in predict(run, scans, tmp_path / "out", device="cpu")] == ["", ""]


def test_an_output_that_is_no_folder(tmp_path, run):
    scan = save(tmp_path / "a.nii.gz", noise())
    (tmp_path / "file").write_text("mine")
    with pytest.raises(
        ConfigError, match=r"folder for label maps that can be written to, but .*file cannot be \(it is a file\)"
    ):
        predict(run, scan, tmp_path / "file", device="cpu")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_without_permission(tmp_path, run):
    scan = save(tmp_path / "a.nii.gz", noise())
    (tmp_path / "out").mkdir(mode=0o500)
    with pytest.raises(ConfigError, match="Permission denied"):
        predict(run, scan, tmp_path / "out", device="cpu")


def test_a_full_disk(tmp_path, run, monkeypatch):
    scan = save(tmp_path / "a.nii.gz", noise())

    class Full:
        def write(self, _):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    monkeypatch.setattr(volumes.tempfile, "TemporaryFile", lambda dir: Full())
    monkeypatch.setattr("adawac.inference.prediction._check_folder", lambda out, *_: Path(out).mkdir())
    monkeypatch.setattr(Full, "__enter__", lambda self: self, raising=False)
    monkeypatch.setattr(Full, "__exit__", lambda *_: None, raising=False)
    (done,) = predict(run, scan, tmp_path / "out", device="cpu")
    assert "No space left on device. Make room where the label maps go." in done.error
    assert re.search(r"Expected [\d.]+ kB of disk for the scan", done.error)


def test_a_label_map_that_cannot_be_written(tmp_path, run, monkeypatch):
    scans = [save(tmp_path / "in" / f"{name}.nii.gz", noise()) for name in "ab"]
    write = label_files.write_labels

    def fail(path, *rest):
        if path.name == "a.nii.gz":
            raise OSError(28, "No space left on device")
        write(path, *rest)

    monkeypatch.setattr(label_files, "write_labels", fail)
    first, second = predict(run, scans, tmp_path / "out", device="cpu")
    assert "but got: No space left on device" in first.error
    assert second.error == ""


def test_a_network_that_diverged(tmp_path):
    scan = save(tmp_path / "a.nii.gz", noise())
    run = make_run(tmp_path / "run", "tests.networks.threshold_network:broken")
    (done,) = predict(run, scan, tmp_path / "out", device="cpu")
    assert "Expected finite numbers from the network" in done.error


def test_wrong_arguments_stop_at_once(tmp_path, run):
    scan = save(tmp_path / "a.nii.gz", noise())
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="batch_size=0"):
        predict(run, scan, out, batch_size=0)
    with pytest.raises(ConfigError, match="device that torch can use, but got 'tpu'"):
        predict(run, scan, out, device="tpu")
    with pytest.raises(MissingFileError, match=r"nothing has neither run\.json nor model\.json"):
        predict(tmp_path / "nothing", scan, out, device="cpu")
    with pytest.raises(AdawacError, match="Near names: 'last'"):
        predict(run, scan, out, checkpoint="lst", device="cpu")
    with pytest.raises(MissingFileError, match=r"absent\.nii\.gz matches nothing"):
        predict(run, [scan, tmp_path / "absent.nii.gz"], out, device="cpu")
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(AdawacError, match="checkpoints: there is none"):
        predict(run, scan, out, device="cpu")
    assert not out.exists()


def test_a_scan_that_may_not_be_read_is_not_called_truncated(tmp_path, run, monkeypatch):
    scan = written("closed.nii.gz")(tmp_path / "scans")
    monkeypatch.setattr(volumes.os, "access", lambda path, mode: Path(path) != scan)
    (done,) = predict(run, scan, tmp_path / "out")
    assert done.error == "Expected a NIfTI file, but it may not be read. Change its permissions."


def test_a_folder_that_may_not_be_read_is_named_and_the_others_are_done(tmp_path, run, monkeypatch):
    save(tmp_path / "scans" / "a" / "scan.nii.gz", noise())
    closed = tmp_path / "scans" / "b"
    closed.mkdir()
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != closed)
    done = predict(run, tmp_path / "scans", tmp_path / "out")
    assert {prediction.scan.path.name: prediction.error for prediction in done} == {
        "scan.nii.gz": "",
        "b": "Expected a folder of scans, but it may not be read. Change its permissions.",
    }
