"""`adawac prepare` and `adawac diagnose`, as a user types them."""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from adawac.cli import run
from adawac.cli.data_commands import SourceOptions
from adawac.data.store import Store
from adawac.errors import ConfigError
from tests.data.scans import make_nnunet, scan, write_nifti


def test_a_narrow_terminal_cuts_nothing(tmp_path, capsys, monkeypatch):
    make_nnunet(tmp_path / "scans", cases=1, names=["a-long-name-of-a-case"])
    monkeypatch.setenv("COLUMNS", "40")
    assert run(["diagnose", str(tmp_path / "scans"), "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert "…" not in out
    assert "adawac prepare SOURCE SCANS STORE" in " ".join(out.split())
    lines = out.splitlines()
    table = lines[next(row for row, line in enumerate(lines) if line.startswith("Training cases")) :]
    table = table[: next(row for row, line in enumerate(table) if line.startswith(("Fix:", "Check:", "Hint:")))]
    assert max(map(len, table)) <= 40
    firsts = (line.split("  ")[0].strip() for line in table[2:])
    assert "a-long-name-of-a-case" in "".join(firsts)


@pytest.mark.parametrize(("kind", "count"), [("scans", 2), ("pictures", 12)])  # of two pictures none has a defect
def test_phantoms_are_files_that_can_be_diagnosed(tmp_path, capsys, kind, count):
    words = ["--pictures"] if kind == "pictures" else []
    folder = tmp_path / kind
    assert run(["phantom", str(folder), *words, "--number", str(count)]) == 0
    assert f"{count} {kind} with their labels.\nLook at them: adawac diagnose {folder}" in capsys.readouterr().out
    assert run(["diagnose", str(folder), "--workers", "1"]) == 0
    assert f"{count} cases of {count} patients" in capsys.readouterr().out
    files = sorted(folder.rglob("*"))
    assert run(["phantom", str(folder), *words]) == 2
    assert "holds files already. Give another one." in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == files


def test_a_phantom_of_nothing_is_refused(tmp_path, capsys):
    assert run(["phantom", str(tmp_path / "scans"), "--number", "0"]) == 2
    assert "Expected --number of at least 1, but got 0" in capsys.readouterr().err
    assert not (tmp_path / "scans").exists()


def test_prepare_then_diagnose(tmp_path, capsys):
    make_nnunet(tmp_path / "scans", cases=3)
    store = tmp_path / "store"
    assert run(["prepare", "nifti", str(tmp_path / "scans"), str(store), "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert "3 cases, 18 samples" in out
    assert f"adawac diagnose {store}" in out
    assert "No case is marked for testing: give --split stratified" in out  # imagesTr alone: nothing to evaluate
    assert "Classes: organ 1, organ 2.\n" in out
    assert run(["diagnose", str(store), "--workers", "1", "--figure", str(tmp_path / "labels.png")]) == 0
    out = capsys.readouterr().out
    assert "Hint: " in out
    assert f"adawac train {store} " in out
    assert "adawac prepare" not in out
    assert (tmp_path / "labels.png").read_bytes().startswith(b"\x89PNG")
    assert run(["diagnose", str(store), "--workers", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["summary"]["cases"] == 3
    assert report["summary"]["training_slices"] == sum(case["slices"] for case in report["cases"])


def test_prepare_says_that_test_scans_without_labels_score_nothing(tmp_path, capsys):
    root = make_nnunet(tmp_path / "scans", cases=3)
    write_nifti(root / "imagesTs" / "unseen_0000.nii.gz", scan()[0])
    words = ["prepare", "nifti", str(root), str(tmp_path / "store"), "--workers", "1"]
    assert run(words) == 0
    assert "The test scans have no labels to score with: give --split stratified" in capsys.readouterr().out
    write_nifti(root / "labelsTs" / "unseen.nii.gz", scan()[1])
    assert run(words) == 0
    out = capsys.readouterr().out
    assert "--split" not in out
    assert "(test 6, train 18)" in out


def test_prepare_says_which_values_became_classes(tmp_path, capsys):
    image, label = scan()
    write_nifti(tmp_path / "scans" / "a" / "mr.nii.gz", image)
    write_nifti(tmp_path / "scans" / "a" / "seg.nii.gz", label * 100)
    words = ["prepare", "nifti", str(tmp_path / "scans"), str(tmp_path / "store"), "--workers", "1"]
    assert run([*words, "--images", "*/mr.nii.gz", "--labels", "*/seg.nii.gz"]) == 0
    out = capsys.readouterr().out
    assert "1 cases, 6 samples (no split)." in out
    assert "Classes: class 100, class 200. These are the label values that occur; --classes names" in out


def test_prepare_shows_that_it_looks_for_label_values(tmp_path, capsys, monkeypatch):
    image, label = scan()
    write_nifti(tmp_path / "scans" / "a" / "mr.nii.gz", image)
    write_nifti(tmp_path / "scans" / "a" / "seg.nii.gz", label)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    words = ["prepare", "nifti", str(tmp_path / "scans"), str(tmp_path / "store"), "--workers", "1"]
    assert run([*words, "--images", "*/mr.nii.gz", "--labels", "*/seg.nii.gz"]) == 0
    err = capsys.readouterr().err
    assert 0 <= err.find("Looking for label values") < err.find("Preparing scans")


def test_prepare_with_patterns_and_classes(tmp_path, capsys):
    image, label = scan(classes=4)
    for name in ("a", "b"):
        write_nifti(tmp_path / "scans" / name / "ct.nii.gz", image)
        write_nifti(tmp_path / "scans" / name / "organs.nii.gz", label.astype(np.uint8))
    words = ["prepare", "nifti", str(tmp_path / "scans"), str(tmp_path / "store"), "--workers", "1", "--json"]
    words += ["--images", "*/ct.nii.gz", "--labels", "*/organs.nii.gz", "--axis", "2", "--modality", "CT"]
    words += ["--classes", "background=0,3", "liver=1", "spleen=2"]
    assert run(words) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["classes"] == ["background", "liver", "spleen"]
    assert printed["samples_by_split"] == {"none": 12}
    store = Store(tmp_path / "store")
    assert store.preprocessing.window == (-125, 275)
    assert set(np.unique(store.volume(store.cases[0]).label)) <= {0, 1, 2}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prepare", "nifti", "absent", "store"], "absent is not there"),
        (["prepare", "nift", "scans", "store"], "Near names: 'nifti'"),
        (["prepare", "nifti", "scans", "store", "--classes", "liver"], "Write it like liver=1"),
        (["prepare", "acdc", "scans", "store", "--patient", "x"], "Expected options of source acdc"),
        (["prepare", "nifti", "scans", "store", "--spacing", "1", "2"], "--spacing"),
        (["prepare", "nifti", "scans", "store", "--classes", "a=1", "a=2"], "'a' twice"),
        (["prepare", "nifti", "scans", "store", "--classes", "=1"], "Write it like liver=1"),
        (["prepare", "nifti", "scans", "store", "--spacing", "1", "1", "nan"], "three sizes in mm"),
        (["prepare", "nifti", "scans", "store", "--workers", "-1"], "at least one worker"),
        (["diagnose", "absent"], "absent is not there"),
        (["diagnose", "scans", "--figure", "labels.xyz"], "ends in .png, .svg or .pdf"),
        (
            ["diagnose", "scans", "--workers", "1", "--figure", "scans/dataset.json/labels.png"],
            "Expected to write scans/dataset.json/labels.png, but got: ",
        ),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    make_nnunet(tmp_path / "scans", cases=1)
    assert run(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "store").exists()


def test_diagnose_takes_the_patterns_that_prepare_takes(tmp_path, capsys):
    scans, store = tmp_path / "my scans", tmp_path / "my store"
    for name in ("a", "b", "c d"):
        write_nifti(scans / name / "ct.nii.gz", scan(seed=len(name))[0])
        write_nifti(scans / name / "organs.nii.gz", scan()[1])
    (scans / "b" / "organs.nii.gz").unlink()
    words = ["--images", "*/ct.nii.gz", "--labels", "*/organs.nii.gz", "--classes", "liver=1", "vessel=2"]
    assert run(["diagnose", str(scans), "--workers", "1", "--json", *words]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["class_names"] == ["background", "liver", "vessel"]
    assert [case["id"] for case in report["cases"] if case["xi"] is None] == ["b"]
    assert run(["prepare", "nifti", str(scans), str(store), "--workers", "1", *words]) == 2
    assert "b/ct.nii.gz" in capsys.readouterr().err
    assert not store.exists()
    assert run(["prepare", "nifti", str(scans), str(store), "--workers", "1", "--skip-unlabelled", *words]) == 0
    out = capsys.readouterr().out
    assert "2 cases, 12 samples" in out
    assert f"adawac diagnose '{store}'" in out
    assert f"adawac train '{store}' --split fold:0/2 --out RUN" in out  # two patients make no test set, too
    assert run(["diagnose", str(scans), "--workers", "1", "--skip-unlabelled", *words]) == 0


def test_channels_of_a_four_dimensional_file_can_be_named(tmp_path, capsys):
    image = np.stack([scan(seed=k)[0] for k in range(2)], axis=-1)
    write_nifti(tmp_path / "scans" / "a" / "mr.nii.gz", image)
    write_nifti(tmp_path / "scans" / "a" / "gt.nii.gz", scan()[1])
    words = ["prepare", "nifti", str(tmp_path / "scans"), str(tmp_path / "store"), "--workers", "1"]
    words += ["--images", "*/mr.nii.gz", "--labels", "*/gt.nii.gz"]
    assert run(words) == 2
    assert "Expected a 3D image, but got (12, 10, 6, 2)" in capsys.readouterr().err
    assert run([*words, "--channels", "t1", "t2"]) == 0
    assert Store(tmp_path / "store").channels == ("t1", "t2")


def test_diagnose_reports_faults_with_exit_code_1(tmp_path, capsys):
    make_nnunet(tmp_path / "scans", cases=2)
    broken = sorted((tmp_path / "scans" / "labelsTr").glob("*.nii.gz"))[0]
    broken.write_bytes(broken.read_bytes()[:60])
    assert run(["diagnose", str(tmp_path / "scans"), "--workers", "1"]) == 1
    out = capsys.readouterr().out
    assert "Fix: " in out
    assert broken.name in out


def test_both_commands_read_scans_in_the_same_way(tmp_path, monkeypatch):
    """What `diagnose` looked at must be what `prepare` then takes: every option reaches both, as the same value."""
    calls = []

    def record(*_, **options):
        calls.append(options)
        raise ConfigError("Expected no more.")

    monkeypatch.setattr("adawac.data.diagnosis.diagnose", record)
    monkeypatch.setattr("adawac.data.preparation.prepare", record)
    words = ["--images", "ct", "--images", "pet", "--labels", "l", "--classes", "liver=1", "vessel=2,3"]
    words += ["--channels", "ct", "pet", "--patient", "p", "--groups", "g.csv", "--skip-unlabelled"]
    assert run(["diagnose", str(tmp_path), *words]) == run(["prepare", "nifti", str(tmp_path), "store", *words]) == 2
    names = [field.name for field in fields(SourceOptions)]
    first, second = ({name: options[name] for name in names} for options in calls)
    assert (
        first
        == second
        == {
            "images": ["ct", "pet"],
            "labels": "l",
            "classes": {"liver": (1,), "vessel": (2, 3)},
            "channels": ("ct", "pet"),
            "patient": "p",
            "groups": Path("g.csv"),
            "skip_unlabelled": True,
        }
    )
