"""`adawac predict`, as a user types it."""

import json
import shlex

import nibabel as nib
import numpy as np
import pytest

from adawac.cli import run
from adawac.data.preprocessing import READY
from tests.inference.made_runs import make_run, noise, save, thresholded


@pytest.fixture
def words(tmp_path):
    model = make_run(tmp_path / "run", checkpoints=("last", "best"))
    for seed, name in enumerate("ab"):
        save(tmp_path / "my scans" / f"{name}.nii.gz", noise(seed=seed))
    return ["predict", str(model), str(tmp_path / "my scans"), "--out", str(tmp_path / "out"), "--device", "cpu"]


def test_predict_says_what_it_did_and_how_to_look_at_it(words, tmp_path, capsys):
    assert run(words) == 0
    out, err = capsys.readouterr()
    first, look = out.splitlines()
    assert first == f"2 of 2 scans segmented, into {tmp_path / 'out'}"
    command = shlex.split(look.removeprefix("Look at it: "))
    assert command[:2] == ["adawac", "view"]
    assert command[2:] == [str(tmp_path / "my scans" / "a.nii.gz"), "--labels", str(tmp_path / "out" / "a.nii.gz")]
    assert err == ""


def test_a_series_is_shown_by_its_folder_unless_that_has_another(words, tmp_path, capsys):
    pytest.importorskip("pydicom")
    from tests.inference.series import write_series

    words[2] = str(tmp_path / "my series")
    write_series(tmp_path / "my series" / "ct", noise())
    assert run(words) == 0
    shown = [str(tmp_path / "my series" / "ct"), "--labels", str(tmp_path / "out" / "ct.nii.gz")]
    assert capsys.readouterr().out.endswith(f"Look at it: {shlex.join(['adawac', 'view', *shown])}\n")
    for path in write_series(tmp_path / "other", noise()):
        path.rename(tmp_path / "my series" / "ct" / f"other-{path.name}")
    assert run([*words[:-3], str(tmp_path / "two"), *words[-2:]]) == 0
    assert "Look at it" not in capsys.readouterr().out


def test_a_doubtful_label_map_is_named_and_kept(words, tmp_path, capsys):
    words[1] = str(make_run(tmp_path / "scaled", preprocessing=READY))
    assert run(words) == 0
    out, err = capsys.readouterr()
    assert "2 of 2 scans segmented" in out
    assert err.count("likely wrong") == err.count("\n") == 2
    assert run([*words, "--overwrite", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "likely wrong" in json.loads(out)[0]["doubt"]


def test_a_quoted_pattern_and_every_option(words, tmp_path, capsys):
    words[2] = str(tmp_path / "my*" / "*.nii.gz")
    words += ["--ensemble", f"{words[1]}/checkpoints/best.safetensors", "--checkpoint", "last"]
    words += ["--values", "index", "--tta", "--probabilities", "--largest-component", "--batch-size", "4", "--json"]
    words += ["--precision", "bf16"]
    assert run(words) == 0
    out, err = capsys.readouterr()
    assert err == ""
    done = json.loads(out)
    assert [row["error"] for row in done] == [None, None]
    assert [len(row["files"]) for row in done] == [3, 3]
    assert nib.load(done[0]["files"][2]).shape == (12, 10, 6, 3)
    sidecar = json.loads((tmp_path / "out" / "a.json").read_text())
    assert [network["checkpoint"] for network in sidecar["networks"]] == ["last", "best"]
    assert (sidecar["precision"], sidecar["tta"]) == ("bf16", True)


def test_a_bad_scan_is_named_at_the_end_and_the_exit_code_is_1(words, tmp_path, capsys):
    bad = tmp_path / "my scans" / "bad.nii.gz"
    bad.write_bytes(b"no scan")
    assert run(words) == 1
    out, err = capsys.readouterr()
    assert "2 of 3 scans segmented" in out
    assert err.startswith(f"adawac: {bad} was not segmented. Expected a NIfTI file, but it cannot be read")
    assert err.count("\n") == 1
    labels = np.asarray(nib.load(tmp_path / "out" / "b.nii.gz").dataobj)
    np.testing.assert_array_equal(labels, np.array([0, 7, 3])[thresholded(noise(seed=1))])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: "nothing"}, "Expected a run or a model folder, but nothing is not there"),
        ({2: "nothing.nii.gz"}, "nothing.nii.gz matches nothing"),
        ({6: "tpu"}, "device that torch can use"),
    ],
)
def test_wrong_words_are_exit_code_2(words, change, message, capsys):
    for position, word in change.items():
        words[position] = word
    assert run(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_a_second_time_refuses_and_overwrite_does_it(words, capsys):
    assert run(words) == 0
    assert run(words) == 1
    out, err = capsys.readouterr()
    assert "0 of 2 scans segmented" in out
    assert err.count("Give --overwrite, or another --out.") == 2
    assert run([*words, "--overwrite"]) == 0


def test_debug_shows_the_traceback_of_a_scan_that_failed(words, tmp_path, capsys):
    (tmp_path / "my scans" / "bad.nii.gz").write_bytes(b"no scan")
    for _ in range(2):  # nothing of the first is left
        assert run([*words, "--overwrite", "--debug"]) == 1
        err = capsys.readouterr().err
        assert err.count("Traceback") >= 1
        assert "in _load_nifti" in err
        assert run([*words, "--overwrite"]) == 1
        assert "Traceback" not in capsys.readouterr().err
