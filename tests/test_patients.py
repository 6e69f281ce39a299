"""Nothing that identifies a patient leaves the DICOM files: from scans to a report, whatever is written or said."""

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


def contents(folder):
    """Yield every file below a folder, and what is compressed in it."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path, path.read_bytes()
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    yield from ((path / name, archive.read(name)) for name in archive.namelist())


def test_from_scans_to_a_report_no_patient_is_named(tmp_path, monkeypatch, caplog, capsys):
    monkeypatch.chdir(tmp_path)
    rng, uids = np.random.default_rng(0), set()
    for name in "abcdef":
        label = np.zeros((32, 32, 4), np.uint8)
        label[8:20, 8:20, 1:3] = 1
        paths = write_series(
            tmp_path / "in" / name / "ct", rng.integers(0, 99, label.shape, np.int16) + np.int16(300) * label
        )
        nib.save(nib.Nifti1Image(label, read_series(paths)[1]), tmp_path / "in" / name / "seg.nii.gz")
        header = pydicom.dcmread(paths[0])
        uids |= {header.SeriesInstanceUID, header.StudyInstanceUID, header.FrameOfReferenceUID}
    changes = ["--set", "data.image_size=[32,32]", "--set", "data.batch_size=8", "--set", "hardware.accelerator=cpu"]
    model = ["--model", "smp:Unet/resnet18", "--split", "stratified", "--epochs", "1"]
    with caplog.at_level(logging.DEBUG):
        for words in (
            ["prepare", "dicom", "in", "out/store", "--workers", "1"],
            ["diagnose", "in", "--workers", "1", "--json"],
            ["train", "out/store", *model, "--out", "out/run", *changes],
            ["evaluate", "out/run", "--workers", "0"],
            ["predict", "out/run", "in", "--out", "out/labels", "--device", "cpu"],
            ["export", "out/run", "--out", "out/model"],
            ["report", "out/run", "--out", "out/report.html"],
        ):
            assert run(["--debug", *words]) == 0, words
    said = capsys.readouterr()
    written = dict(contents(tmp_path / "out"))
    assert {"report.html", "store.json", "config.yaml", "model.json"} <= {path.name for path in written}
    for secret in (SECRET, "19500101", *uids):
        assert secret not in said.out + said.err + caplog.text
        assert [path for path, content in written.items() if secret.encode() in content] == []
