"""Diagnosis: counts that can be checked by hand, every fault named, a hint that follows from the numbers."""

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from adawac.cli import run
from adawac.config import TrainConfig, override
from adawac.config.yaml_text import parse
from adawac.data import diagnosis_report
from adawac.data.diagnosis import diagnose
from adawac.data.diagnosis_report import draw_diagnosis
from adawac.data.preparation import prepare
from adawac.data.splits import resolve_split
from adawac.errors import ConfigError, DataError, MissingFileError
from adawac.objective import resolve
from tests.data.scans import make_btcv, make_nnunet, scan, write_nifti

SHAPE = (12, 10, 6)


def make(root, labels, images=None):
    """Write an nnU-Net folder with these label maps, and noise or `images`."""
    make_nnunet(root, cases=len(labels), shape=SHAPE)
    for k, label in enumerate(labels):
        write_nifti(root / "labelsTr" / f"case_{k:02d}.nii.gz", label)
        if images is not None:
            write_nifti(root / "imagesTr" / f"case_{k:02d}_0000.nii.gz", images[k])
    return root


def boxes(*slices, value=1):
    """A label map with 6 foreground pixels in each of these slices."""
    label = np.zeros(SHAPE, np.uint8)
    label[2:5, 3:5, list(slices)] = value
    return label


def test_every_number_by_hand(tmp_path):
    two = boxes(3, value=2)
    two[0, 0, 3] = 1
    report = diagnose(make(tmp_path, [boxes(1, 2, 3), two, np.zeros(SHAPE, np.uint8)]), workers=1)
    assert [case.xi for case in report.cases] == pytest.approx([3 / 6, 1 / 6, 0])
    assert [case.label_sparse for case in report.cases] == [3, 5, 6]
    assert report.cases[1].class_voxels == (720 - 7, 1, 6)
    assert report.cases[1].class_slices == (6, 1, 1)
    assert report.cases[0].foreground == pytest.approx([0, 0.05, 0.05, 0.05, 0, 0])
    first, second = report.classes
    assert (first.name, second.name) == ("organ 1", "organ 2")
    assert first.voxel_share == pytest.approx(19 / 2160)
    assert first.foreground_share == pytest.approx(19 / 25)
    assert first.slice_share == pytest.approx(4 / 18)
    assert (first.cases, second.cases) == (2, 1)
    summary = report.summary
    assert summary["training_slices"] == 18
    assert summary["training_label_sparse"] == 14
    assert summary["xi"] == pytest.approx(4 / 18)
    assert summary["xi_range"] == pytest.approx((0, 0.5))
    assert summary["class_imbalance"] == pytest.approx(19 / 6)
    assert summary["shape_range"] == [(12, 12), (10, 10), (6, 6)]
    assert summary["spacing_range"] == [(1, 1)] * 3
    assert summary["orientations"] == {"RAS": 3}
    image = scan()[0]
    assert report.cases[0].intensity == pytest.approx(tuple(np.percentile(image, (0, 1, 50, 99, 100))))
    assert report.warnings == ("Case case_02 has a label map without any foreground. Check that it is the right file.",)
    assert report.faults == ()
    assert repr(report) == f"Diagnosis({str(tmp_path)!r}: {report.dataset}, 3 cases, 0 faults, 1 warnings, try adawac)"
    assert json.loads(json.dumps(report.to_dict()))["summary"]["training_slices"] == 18


def test_a_threshold_counts_slices_with_little_foreground(tmp_path):
    root = make(tmp_path, [boxes(1, 2, 3)])
    assert diagnose(root, workers=1).cases[0].label_sparse == 3
    assert diagnose(root, workers=1, threshold=0.05).cases[0].label_sparse == 6
    assert diagnose(root, workers=1, axis=0).cases[0].label_sparse == 9


def test_store_and_source_agree(tmp_path):
    root = make(tmp_path / "in", [boxes(1, 2, 3), boxes(4)])
    prepare("nifti", root, tmp_path / "out", workers=1)
    source, store = diagnose(root, workers=1), diagnose(tmp_path / "out", workers=2)
    assert store.kind == "store"
    assert [case.xi for case in store.cases] == [case.xi for case in source.cases]
    assert store.classes == source.classes
    assert store.summary["intensity_range"] == pytest.approx((0, 1))


def test_faults_are_collected_not_raised(tmp_path):
    root = make(tmp_path, [boxes(1), boxes(1) * 9, boxes(2), boxes(3), boxes(4)])
    write_nifti(root / "labelsTr" / "case_02.nii.gz", np.zeros((12, 10, 5), np.uint8))
    path = root / "imagesTr" / "case_03_0000.nii.gz"
    path.write_bytes(path.read_bytes()[:200])
    report = diagnose(root, workers=1)
    assert [case.id for case in report.cases] == ["case_00", "case_04"]
    assert len(report.faults) == 3
    assert "[9]" in report.faults[0]
    assert "case_02.nii.gz" in report.faults[1]
    assert "case_03_0000.nii.gz" in report.faults[2]


def test_scans_without_labels_are_listed_and_the_others_looked_at(tmp_path):
    root = make(tmp_path, [boxes(1), boxes(1, 2), boxes(2), boxes(3)])
    (root / "labelsTr" / "case_00.nii.gz").unlink()
    (root / "labelsTr" / "case_02.nii.gz").unlink()
    write_nifti(root / "imagesTs" / "unseen_0000.nii.gz", scan((12, 10, 5), seed=99)[0])
    report = diagnose(root, workers=1)
    (fault,) = report.faults
    assert "each of the 4 scans" in fault
    assert "2 have none (looked for labelsTr/CASE.nii.gz): imagesTr/case_00_0000.nii.gz, imagesTr/case_02" in fault
    assert "--skip-unlabelled" in fault
    assert {case.id: case.xi is None for case in report.cases} == {
        "case_00": True, "case_01": False, "case_02": True, "case_03": False, "unseen": True
    }  # fmt: skip
    assert [case.id for case in report.training] == ["case_01", "case_03"]
    # A scan for testing needs no label map: that one is worth a look, not a fault.
    assert [warning for warning in report.warnings if "no label map" in warning] == [
        "1 case has no label map (unseen). It can only be predicted."
    ]
    left = diagnose(root, workers=1, skip_unlabelled=True)
    assert not left.faults
    assert [case.id for case in left.cases] == ["case_01", "case_03", "unseen"]
    assert left.summary["xi"] == report.summary["xi"]


@pytest.mark.parametrize("layout", ["nnunet", "listed", "two folders", "patterns"])
def test_labels_without_a_scan_are_counted_and_named(tmp_path, caplog, layout):
    root = make(tmp_path / "in", [boxes(1), boxes(2), boxes(3)])
    for name in ("case_01", "case_02"):
        (root / "imagesTr" / f"{name}_0000.nii.gz").unlink()
    (root / "dataset.json").unlink()
    options = {"workers": 1}
    if layout == "listed":
        listed = [{"image": "imagesTr/case_00_0000.nii.gz", "label": "labelsTr/case_00.nii.gz"}]
        (root / "dataset.json").write_text(json.dumps({"training": listed}))
    elif layout == "two folders":
        (root / "imagesTr").rename(root / "images")
        (root / "labelsTr").rename(root / "masks")
    elif layout == "patterns":
        options |= {"images": "imagesTr/*_0000.nii.gz", "labels": "labelsTr/*.nii.gz"}
    [warning] = [text for text in diagnose(root, **options).warnings if "2 label maps belong to no scan" in text]
    assert "case_01.nii.gz, " in warning
    assert "case_02.nii.gz. " in warning
    prepare("nifti", root, tmp_path / "out", **options)
    assert warning in caplog.text


def test_labels_without_a_scan_are_named_where_scans_lack_theirs(tmp_path):
    root = make(tmp_path / "in", [boxes(1), boxes(2)])
    (root / "labelsTr" / "case_01.nii.gz").rename(root / "labelsTr" / "case_1.nii.gz")
    (fault,) = diagnose(root, workers=1).faults
    assert "1 label map belongs to no scan: labelsTr/case_1.nii.gz" in fault


def test_a_folder_without_any_label_is_looked_at(tmp_path):
    for name in "abc":
        write_nifti(tmp_path / name / "ct.nii.gz", scan()[0])
    report = diagnose(tmp_path, workers=1, images="*/ct.nii.gz", labels="*/organs.nii.gz")
    assert len(report.cases) == 3
    assert "none of them has one (looked for '*/organs.nii.gz')" in report.faults[0]
    assert report.recommendation.method == "none"
    with pytest.raises(DataError, match="training needs labels"):
        diagnose(tmp_path, workers=1, images="*/ct.nii.gz", labels="*/organs.nii.gz", skip_unlabelled=True)


def test_a_label_that_cannot_be_read_does_not_hide_the_values_of_the_others(tmp_path):
    for name in "abc":
        write_nifti(tmp_path / name / "ct.nii.gz", scan()[0])
        write_nifti(tmp_path / name / "organs.nii.gz", scan()[1])
    broken = tmp_path / "b" / "organs.nii.gz"
    broken.write_bytes(broken.read_bytes()[:60])
    report = diagnose(tmp_path, workers=1, images="*/ct.nii.gz", labels="*/organs.nii.gz")
    assert report.class_names == ("background", "class 1", "class 2")
    assert [case.id for case in report.cases] == ["a", "c"]
    assert len(report.faults) == 1
    assert "b/organs.nii.gz" in report.faults[0]


def test_folders_that_may_be_patients_are_pointed_out(tmp_path):
    for name in ("p1/ct_early", "p1/ct_late", "p2/ct_early", "p3/ct_early"):
        write_nifti(tmp_path / f"{name}.nii.gz", scan(seed=len(name))[0])
        write_nifti(tmp_path / f"{name}_gt.nii.gz", scan()[1])
    patterns = {"images": "*/*.nii.gz", "labels": "*/*_gt.nii.gz", "workers": 1}
    assert any("several scans (p1)" in warning for warning in diagnose(tmp_path, **patterns).warnings)
    assert not any("several scans" in warning for warning in diagnose(tmp_path, patient="^(.+?)_", **patterns).warnings)
    named = diagnose(tmp_path, patient="^(.+?)_", **patterns)
    assert named.summary["patients"] == 3


def test_patients_whose_visits_have_folders_of_their_own_are_pointed_out(tmp_path):
    for seed, name in enumerate(("p1/early", "p1/late", "p2/early", "p3/early")):
        write_nifti(tmp_path / name / "anat" / "ct.nii.gz", scan(seed=seed)[0])
        write_nifti(tmp_path / name / "anat" / "gt.nii.gz", scan()[1])
    patterns = {"images": "*/*/anat/ct.nii.gz", "labels": "*/*/anat/gt.nii.gz", "workers": 1}
    assert any("several scans (p1)" in warning for warning in diagnose(tmp_path, **patterns).warnings)
    assert not any("several scans" in warning for warning in diagnose(tmp_path, patient="^(.+?)_", **patterns).warnings)


def test_folders_that_are_no_patients_are_not_pointed_out(tmp_path):
    for seed, name in enumerate(("a", "b", "p1/c", "p2/visit/d")):  # above the scans' own folder there are none
        write_nifti(tmp_path / f"{name}_ct.nii.gz", scan(seed=seed)[0])
        write_nifti(tmp_path / f"{name}_gt.nii.gz", scan()[1])
    report = diagnose(tmp_path, images="**/*_ct.nii.gz", labels="**/*_gt.nii.gz", workers=1)
    assert not any("several scans" in warning for warning in report.warnings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"axis": 3}, "0, 1 or 2"),
        ({"threshold": 1.5}, "share"),
        ({"workers": 0}, "at least one worker"),
        ({"images": "*.nii.gz", "labels": "*_gt.nii.gz"}, "is a store"),
    ],
)
def test_options_that_cannot_be(tmp_path, options, message):
    store = prepare("nifti", make(tmp_path / "in", [boxes(1)]), tmp_path / "out", workers=1)
    with pytest.raises(ConfigError, match=message):
        diagnose(store.path, **{"workers": 1, **options})


def test_a_store_whose_preparation_was_interrupted_says_so(tmp_path):
    store = prepare("nifti", make(tmp_path / "in", [boxes(1)]), tmp_path / "out", workers=1)
    (store.path / "store.json").unlink()
    with pytest.raises(MissingFileError, match=r"has no store\.json.*again"):
        diagnose(store.path, workers=1)


def test_copies_in_training_and_test_are_found(tmp_path):
    root = make(tmp_path, [boxes(1), boxes(2)])
    (root / "imagesTs").mkdir()
    shutil.copy(root / "imagesTr" / "case_01_0000.nii.gz", root / "imagesTs" / "other_0000.nii.gz")
    report = diagnose(root, workers=1)
    assert len(report.faults) == 1
    assert "case_01 (train) and other (test) share 6 identical slices" in report.faults[0]
    assert "1 case has no label map (other" in report.warnings[0]
    assert report.cases[2].xi is None


def test_a_patient_on_both_sides_is_a_fault(tmp_path):
    root = make(tmp_path, [boxes(1), boxes(2)])
    write_nifti(root / "imagesTs" / "case_07_0000.nii.gz", scan(seed=7)[0])
    report = diagnose(root, workers=1, source="nifti", patient="^(case)_")
    assert "'case' is in test and train" in report.faults[0]


def test_orientations_and_unused_classes_are_warnings(tmp_path):
    root = make(tmp_path, [boxes(1), boxes(2)])
    for part, array in (("imagesTr/case_01_0000", scan()[0]), ("labelsTr/case_01", boxes(2))):
        write_nifti(root / f"{part}.nii.gz", array, np.diag([-1.0, 1, 1, 1]))
    write_nifti(root / "imagesTr" / "case_00_0000.nii.gz", np.full(SHAPE, 7, np.int16))
    warnings = " ".join(diagnose(root, workers=1).warnings)
    assert "Class organ 2 occurs in no case" in warnings
    assert "1 RAS, 1 LAS" in warnings
    assert "case_00 has the same intensity everywhere" in warnings


def test_scans_that_look_like_ct_are_a_warning(tmp_path):
    air = scan()[0]
    air[0, 0, 0] = -1000
    images = [air, air.copy()]
    images[1][0, 0, 1] = -1024
    root = make(tmp_path / "in", [boxes(1), boxes(2)], images)
    assert ["--modality CT" in warning for warning in diagnose(root, workers=1).warnings].count(True) == 1
    assert not any(
        "--window" in warning for warning in diagnose(root, workers=1, source="nifti", modality="CT").warnings
    )
    store = prepare("nifti", root, tmp_path / "store", workers=1, modality="CT")
    assert not any("--window" in warning for warning in diagnose(store.path, workers=1).warnings)


def noise_where(slices):
    image = np.zeros(SHAPE, np.int16)
    image[..., list(slices)] = scan()[0][..., list(slices)]
    return image


def test_the_hint_follows_the_numbers(tmp_path):
    everywhere = boxes(*range(6))
    assert diagnose(make(tmp_path / "a", [everywhere] * 2), workers=1).recommendation.method == "baseline"
    sparse = diagnose(make(tmp_path / "b", [boxes(2, 3), boxes(1, 2, 3)]), workers=1).recommendation
    assert sparse.method == "adawac"
    assert "7 of 12 training slices (58.3%)" in sparse.reason
    assert sparse.settings["method.hold_epochs"] == 10
    assert sparse.settings["method.preset"] == "official"
    assert "only 12 training slices" in sparse.basis[0]
    blank = [noise_where((2, 3))] * 2
    trimmed = diagnose(make(tmp_path / "c", [boxes(2, 3)] * 2, blank), workers=1).recommendation
    assert trimmed.method == "trim-train"
    assert "8 of them show no structure" in trimmed.reason
    empty = diagnose(make(tmp_path / "d", [boxes() * 0]), workers=1).recommendation
    assert empty.method == "none"


def test_the_command_that_is_printed_has_the_settings(tmp_path, capsys):
    root = make(tmp_path / "in", [boxes(2, 3), boxes(1, 2, 3)] * 2)
    store = prepare("nifti", root, tmp_path / "my store", workers=1)
    commands = []
    for data in (root, store.path):
        assert run(["diagnose", str(data), "--workers", "1"]) == 0
        commands += [shlex.split(line) for line in capsys.readouterr().out.splitlines() if "adawac train" in line]
    assert commands[0][:3] == ["adawac", "train", "STORE"]
    assert commands[1][3:] == commands[0][3:]
    assert run([*commands[1][1:], "--print-config"]) == 0
    config = parse(capsys.readouterr().out.encode())
    method = config["method"]
    assert (method["name"], method["preset"], method["hold_epochs"]) == ("adawac", "official", 10)
    assert method["options"] == {"eta_beta": 8.0, "lambda_ac": 2.0}
    assert config["data"]["store"] == str(store.path)
    sides = resolve_split(store.table, config["data"]["split"]).split
    assert set(sides.tolist()) == {"train", "val", "test"}  # imagesTr alone says who trains, but not who tests


def test_only_training_cases_decide(tmp_path):
    report = diagnose(make_btcv(tmp_path), workers=1)
    assert report.summary["training_slices"] == 2211
    assert report.summary["training_label_sparse"] == 931
    assert report.summary["cases_by_split"] == {"test": 12, "train": 18}
    assert report.recommendation.method == "adawac"
    assert "method.hold_epochs" not in report.recommendation.settings  # there are enough of them


def test_where_few_slices_are_label_sparse_the_defaults_are_recommended(tmp_path):
    settings = diagnose(make(tmp_path / "in", [boxes(*range(5))] * 41), workers=1).recommendation.settings
    method = TrainConfig().method
    defaults = resolve(method.preset, method.options)
    assert settings == {
        "method.preset": method.preset,
        "method.options.eta_beta": defaults.eta_beta,
        "method.options.lambda_ac": defaults.lambda_ac,
    }
    assert override(TrainConfig(), settings).method.options == {"eta_beta": 1.0, "lambda_ac": 1.0}


def test_where_many_are_what_gained_on_synapse_is(tmp_path):
    hint = diagnose(make(tmp_path / "in", [boxes(2, 3)] * 41), workers=1).recommendation
    assert hint.settings == {
        "method.preset": "official",
        "method.options.eta_beta": 8.0,
        "method.options.lambda_ac": 2.0,
    }
    assert "Synapse" in hint.basis[0]


def test_the_hint_quotes_what_the_study_wrote(monkeypatch):
    study = json.loads(Path(diagnosis_report.__file__).with_name("recommendations.json").read_text())
    few, usual = study["few_slices"], study["usual"]
    few["evidence"]["these"] |= {"seeds": [1, 2], "gains": [1.0, 5.42], "mean": 3.21}
    few["settings"]["method.hold_epochs"] = 7
    usual["evidence"]["best_cell"]["ahead"] = 0.56
    study["no_gain"]["strong"]["mean"] = -1.23
    monkeypatch.setattr(diagnosis_report, "_study", lambda: study)
    hint = diagnosis_report.how_to_set(few["below"] - 1, 0.5)
    assert hint["settings"]["method.hold_epochs"] == 7
    assert "+3.2 points (2 seeds: +1.0, +5.4) over the baseline" in hint["basis"][0]
    assert "-1.2 points" in hint["basis"][1]
    assert "was 0.6 points below the best" in diagnosis_report.how_to_set(few["below"], 0.05)["basis"][0]
    many = study["many_sparse"]
    many["evidence"]["over_baseline"] |= {"seeds": [4], "gains": [1.5], "mean": 1.5}
    hint = diagnosis_report.how_to_set(few["below"], many["from"])
    assert hint["settings"] == many["settings"]
    assert "+1.5 points (1 seed: +1.5) over the baseline" in hint["basis"][0]


def test_nothing_to_look_at(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no source"):
        diagnose(tmp_path / "empty")


def test_the_figure_draws_what_the_report_says(tmp_path):
    report = diagnose(make(tmp_path / "in", [boxes(1, 2, 3), boxes(4)]), workers=1)
    figure = draw_diagnosis(report)
    per_case, along, classes, density = figure.axes
    assert sorted(bar.get_height() for bar in per_case.patches) == pytest.approx([1 / 6, 3 / 6])
    assert [bar.get_width() for bar in classes.patches] == pytest.approx([100 * 4 / 12, 0, 100, 0])
    assert sum(bar.get_height() for bar in density.patches) == 12
    assert max(along.lines[0].get_ydata()) <= 5
    figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_the_figure_of_unlabelled_scans_can_be_drawn(tmp_path):
    root = make(tmp_path, [boxes(1)])
    shutil.move(root / "imagesTr", root / "imagesTs")
    report = diagnose(root, workers=1)
    assert report.recommendation.method == "none"
    draw_diagnosis(report).savefig(tmp_path / "figure.svg")
