"""Nothing that identifies a patient leaves the scans' headers: from scans to a report, whatever is written or said."""

import gzip
import logging
import zipfile

import nibabel as nib
import numpy as np
import pytest

pytest.importorskip("pydicom")
import pydicom

from adawac.cli import run
from adawac.data.sources.dicom_series import read_series
from tests.inference.series import SECRET, write_series

CASES = "abcdef"
NETWORK = ["--model", "smp:Unet/tu-mobilenetv3_small_050", "--set", "model.options.encoder_depth=3"]
NETWORK += ["--set", "model.options.decoder_channels=[8,8,8]", "--set", "data.image_size=[32,32]"]
NETWORK += ["--set", "data.batch_size=8", "--set", "hardware.accelerator=cpu", "--epochs", "1"]
WRITTEN = {"report.html", "store.json", "config.yaml", "model.json", "metadata.json", "README.md"}
WRITTEN |= {"review.csv", "scores.json", "cases.csv", "scores.csv", "weights.png"}


def contents(folder):
    """Yield every file below a folder, and what is compressed in it."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path, path.read_bytes()
            if path.suffix == ".gz":
                yield path / "inside", gzip.decompress(path.read_bytes())
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    yield from ((path / name, archive.read(name)) for name in archive.namelist())


def drawn():
    """Yield the image and the label map of each case."""
    rng = np.random.default_rng(0)
    for name in CASES:
        label = np.zeros((32, 32, 4), np.uint8)
        label[8:20, 8:20, 1:3] = 1
        yield name, rng.integers(0, 99, label.shape, np.int16) + np.int16(300) * label, label


def save(path, array, affine):
    """Write a NIfTI file whose header names the patient, wherever it has room for text."""
    image = nib.Nifti1Image(array, affine, dtype=array.dtype)
    for field in ("descrip", "db_name", "aux_file", "intent_name"):
        image.header[field] = SECRET
    image.header.extensions.append(nib.nifti1.Nifti1Extension("comment", SECRET.encode()))
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(image, path)


def dicom(folder):
    """Write series with label maps beside them, and the truth as predictions are called; return what is secret."""
    secrets = set()
    for name, image, label in drawn():
        paths = write_series(folder / "in" / name / "ct", image)
        for path in (folder / "in" / name / "seg.nii.gz", folder / "truth" / f"{name}_ct.nii.gz"):
            save(path, label, read_series(paths)[1])
        header = pydicom.dcmread(paths[0])
        secrets |= {header.SeriesInstanceUID, header.StudyInstanceUID, header.FrameOfReferenceUID}
    return secrets


def nifti(folder):
    """Write folders of images and labels, and the truth as predictions are called."""
    for name, image, label in drawn():
        save(folder / "in" / "images" / f"{name}.nii.gz", image, np.eye(4))
        for path in (folder / "in" / "labels" / f"{name}.nii.gz", folder / "truth" / f"{name}.nii.gz"):
            save(path, label, np.eye(4))
    return set()


@pytest.mark.parametrize(("source", "write", "scans"), [("dicom", dicom, "in"), ("nifti", nifti, "in/images")])
def test_from_scans_to_a_report_no_patient_is_named(tmp_path, monkeypatch, caplog, capsys, source, write, scans):
    monkeypatch.chdir(tmp_path)
    uids = write(tmp_path)
    shared = ["--license", "apache-2.0"]
    commands = [
        ["prepare", source, "in", "out/store", "--workers", "1"],
        ["diagnose", "in", "--workers", "1", "--json"],
        ["train", "out/store", "--split", "stratified", "--out", "out/run", *NETWORK],
        ["evaluate", "out/run", "--workers", "0", "--out", "out/scores.json"],
        ["calibrate", "out/run"],
        ["predict", "out/run", scans, "--out", "out/labels", "--device", "cpu", "--probabilities", "--uncertainty"],
        ["score", "truth", "out/labels", "--workers", "0", "--out", "out/scores.csv"],
        ["score", "truth", "out/labels", "--workers", "0", "--cases", "out/cases.csv", "--parts", "out/parts"],
        ["export", "out/run", "--out", "out/model"],
        ["export", "out/run", "--format", "monai-bundle", "--out", "out/bundle", *shared],
        ["export", "out/run", "--hub", "out/hub", *shared],
        ["figure", "out/run", "weights", "--out", "out/weights.png"],
        ["report", "out/run", "--out", "out/report.html"],
    ]
    if source == "dicom":
        pytest.importorskip("highdicom")
        commands += [
            ["predict", "out/run", "in", "--out", "out/seg", "--device", "cpu", "--format", "seg"],
            ["crossval", "out/store", "--folds", "2", "--out", "out/folds", *NETWORK],  # it reads the store alone
        ]
    with caplog.at_level(logging.DEBUG):
        for words in commands:
            assert run(["--debug", *words]) == 0, words
    said = capsys.readouterr()
    written = dict(contents(tmp_path / "out"))
    assert {path.name for path in written} >= WRITTEN | ({"label-errors.csv"} if source == "dicom" else set())
    for secret in (SECRET, "19500101", *uids):
        assert secret not in said.out + said.err + caplog.text
        named = [path for path, content in written.items() if secret.encode() in content]
        assert [path for path in named if secret not in uids or path.suffix != ".dcm"] == []  # a SEG names its series
