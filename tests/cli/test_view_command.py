"""`adawac view` as it is typed."""

import os
import signal
import subprocess
import sys
import webbrowser
from pathlib import Path
from urllib.request import urlopen

import pytest

import adawac
from adawac.cli import run
from adawac.viewer import Viewer, view
from tests.viewer.viewed_scans import SHAPE, block, make_scan, save


@pytest.fixture
def scan(tmp_path: Path) -> Path:
    return make_scan(tmp_path / "scan.nii.gz")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a browser was to open; the user then presses Ctrl-C."""
    urls: list[str] = []

    def interrupted(self: Viewer) -> None:
        with urlopen(self.url) as page:
            urls.append(page.read().decode())
        raise KeyboardInterrupt

    monkeypatch.setattr(webbrowser, "open", lambda url: urls.append(url) or True)
    monkeypatch.setattr(Viewer, "wait", interrupted)
    return urls


def test_it_opens_the_browser_and_ends_with_ctrl_c(
    scan: Path, tmp_path: Path, opened: list[str], capsys: pytest.CaptureFixture[str]
):
    label = save(tmp_path / "truth.nii.gz", block())
    assert run(["view", str(scan), "--labels", str(label), str(label)]) == 0
    out, err = capsys.readouterr()
    url, page = opened
    assert out.splitlines() == [url, "Only this computer can open it. Press Ctrl-C to end.", "Closed."]
    assert err == ""
    assert "adawac view" in page


def test_without_a_browser(scan: Path, opened: list[str], capsys: pytest.CaptureFixture[str]):
    assert run(["view", str(scan), "--no-browser"]) == 0
    assert [page[:15] for page in opened] == ["<!DOCTYPE html>"]
    assert capsys.readouterr().out.startswith("http://127.0.0.1:")


def test_notes_go_to_stderr(tmp_path: Path, opened: list[str], capsys: pytest.CaptureFixture[str]):
    import numpy as np

    path = save(tmp_path / "cine.nii.gz", np.zeros((*SHAPE, 3), np.int16))
    assert run(["view", str(path)]) == 0
    assert capsys.readouterr().err.startswith("adawac: cine.nii.gz has 3 volumes")


@pytest.mark.parametrize("broken", [False, True])
def test_message_without_a_browser(
    scan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broken: bool
):
    def fail(url: str) -> bool:
        if broken:
            raise webbrowser.Error("could not locate runnable browser")
        return False

    monkeypatch.setattr(webbrowser, "open", fail)
    assert run(["view", str(scan)]) == 2
    err = capsys.readouterr().err
    assert "Expected a browser on this computer, but found none. Run it again with --no-browser" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.nii"], "nowhere.nii does not exist"),
        (["{scan}", "--labels", "nowhere.nii"], "nowhere.nii is not there"),
        (["{scan}", "--port", "70000"], "Expected a port from 0 to 65535, but got 70000."),
        (["{scan}", "--port", "x"], 'unable to convert "x" into int. See `adawac view --help`.'),
        ([], "See `adawac view --help`."),
    ],
)
def test_bad_input_is_one_message(scan: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str):
    assert run(["view", *(word.format(scan=scan) for word in words)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_a_name_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["view", str(tmp_path / "\x1b[31mred.nii")]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_in_python_the_address_is_in_the_log(scan: Path, opened: list[str], caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", logger="adawac.viewer")
    view(scan, browser=False)
    assert caplog.messages[0].startswith("http://127.0.0.1:")
    view(scan)
    assert opened[-2] == caplog.messages[2]


@pytest.mark.skipif(os.name != "posix", reason="sends an interrupt as a terminal does")
def test_a_real_process_ends_with_ctrl_c(scan: Path):
    env = os.environ | {"PYTHONPATH": str(Path(adawac.__file__).parents[1])}
    words = [sys.executable, "-m", "adawac", "view", str(scan), "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with urlopen(f"{url}volumes/0.nii.gz") as answer:
            assert answer.read() == scan.read_bytes()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out.endswith("Closed.\n")
    assert err == ""
