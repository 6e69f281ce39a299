"""Nothing looks outside this machine unless it is asked to: no downloads, no version checks, no usage statistics."""

import ipaddress
import socket

import pytest

from adawac.cli import run
from adawac.data.phantom.phantom_files import write_nifti_layout


@pytest.fixture
def attempts(monkeypatch):
    """What was looked up or connected to outside this machine; each attempt fails, too."""
    outside = []

    def check(host, *_):
        name = host.decode() if isinstance(host, bytes) else host
        try:
            local = name in (None, "", "localhost") or ipaddress.ip_address(name).is_loopback
        except ValueError:
            local = False
        if not local:
            outside.append(name)
            raise OSError(f"{name} is outside this machine")

    def connection(method):
        def connect(connected, address):
            if connected.family != socket.AF_UNIX:
                check(*address)
            return method(connected, address)

        return connect

    def lookup(function):
        def look(host, *arguments, **options):
            check(host)
            return function(host, *arguments, **options)

        return look

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, connection(getattr(socket.socket, name)))
    for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex"):
        monkeypatch.setattr(socket, name, lookup(getattr(socket, name)))
    return outside


def test_the_fixture_notices_who_looks_outside(attempts):
    with pytest.raises(OSError, match="outside"):
        socket.create_connection(("adawac.invalid", 443), timeout=1)
    with socket.socket() as connection, pytest.raises(OSError, match="outside"):
        connection.connect(("192.0.2.1", 443))
    assert attempts == ["adawac.invalid", "192.0.2.1"]


def test_from_scans_to_a_report_nothing_looks_outside(attempts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scans = write_nifti_layout("scans", 6, size=32, slices=(4, 5))
    changes = ["--set", "data.image_size=[32,32]", "--set", "data.batch_size=8", "--set", "hardware.accelerator=cpu"]
    model = ["--model", "smp:Unet/resnet18", "--split", "stratified", "--epochs", "1"]
    for words in (
        ["prepare", "nifti", str(scans), "store", "--workers", "1"],
        ["diagnose", "store", "--workers", "1"],
        ["train", "store", *model, "--out", "run", *changes],
        ["evaluate", "run", "--workers", "0"],
        ["predict", "run", "scans/imagesTr/0000-000_0000.nii.gz", "--out", "labels"],
        ["export", "run", "--out", "model"],
        ["export", "run", "--hub", "hub", "--license", "mit"],
        ["export", "run", "--format", "monai-bundle", "--license", "mit", "--out", "bundle"],
        ["report", "run", "--out", "report.html"],
    ):
        assert run(words) == 0, words
    assert attempts == []
