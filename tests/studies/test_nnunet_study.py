"""The study of nnU-Net's trainers: raw data, what is collected, the page; and all of it on the phantom."""

import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from adawac.data.phantom import phantom_source
from studies.nnunet import compare, render
from studies.nnunet.raw_data import write_raw_data


def test_raw_data_is_nnunets_and_split_as_the_source_says(tmp_path):
    source = phantom_source(8, size=(20, 24), slices=(4, 5))
    split = write_raw_data(source, tmp_path)
    refs = {ref.id: ref for ref in source.cases()}
    assert sorted(split["train"] + split["val"]) == sorted(refs)
    assert all((refs[case].split == "train") == (case in split["train"]) for case in refs)
    description = json.loads((tmp_path / "dataset.json").read_text())
    assert (description["numTraining"], description["labels"]["background"]) == (8, 0)
    case = source.load(refs[split["val"][0]])
    label = nib.load(tmp_path / "labelsTr" / f"{case.id}.nii.gz")
    slices = np.moveaxis(case.label, source.preprocessing.axis, -1)
    np.testing.assert_array_equal(np.asarray(label.dataobj), slices)
    image = nib.load(tmp_path / "imagesTr" / f"{case.id}_0000.nii.gz")
    np.testing.assert_allclose(image.get_fdata(), np.moveaxis(case.image[0], source.preprocessing.axis, -1))
    assert image.header.get_zooms()[2] == pytest.approx(case.spacing[source.preprocessing.axis])


def finished(out: Path, row: str, seed: int, dice: float, milliseconds: float) -> None:
    folder = compare.run_folder(out, row, seed)
    (folder / "validation").mkdir(parents=True)
    cases = [{"prediction_file": "x/a.nii.gz", "metrics": {"1": {"Dice": dice}, "2": {"Dice": float("nan")}}}]
    summary = {"foreground_mean": {"Dice": dice}, "metric_per_case": cases}
    (folder / "validation" / "summary.json").write_text(json.dumps(summary))
    epochs = [(0, 9.0), (1, 7.0), (1, milliseconds / 1000)]  # epoch 1 was begun twice
    lines = [{"epoch": epoch, "seconds": 2 * second, "steps": [second] * 2} for epoch, second in epochs]
    (folder / "seconds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = ["a,0,0,0.2,-1", "a,1,0.1,0.9,2", "a,2,0,0.5,0", "a,3,0.2,0.4,-0.5", "a,4,,0.5,0"]
    (folder / "beta.csv").write_text("\n".join(["case,slice,foreground,beta,log_odds", *rows]))


def test_what_is_finished_is_collected_and_shown(tmp_path):
    finished(tmp_path, "stock-double", 1, 0.7, 20.0)
    for seed, dice in ((1, 0.8), (2, 0.9)):
        finished(tmp_path, "adawac", seed, dice, 22.0)
    rows = compare.collect_rows(tmp_path)
    assert {row: list(runs) for row, runs in rows.items()} == {"stock-double": ["1"], "adawac": ["1", "2"]}
    run = rows["adawac"]["1"]
    assert (run["step_ms"], run["epoch_s"]) == (pytest.approx(22), pytest.approx(0.044))
    assert (run["auc"], run["seen"]) == (0.75, 0.75)  # 2 > -1, 2 > 0, -0.5 > -1; three of four slices were seen
    assert (run["beta_sparse"], run["beta_dense"]) == (pytest.approx(0.35), pytest.approx(0.65))
    assert run["dice_of_cases"] == {"a": 0.8}
    assert "auc" not in rows["stock-double"]["1"]

    assert render.block(tmp_path) == "*Not measured yet.*"
    about = {"configuration": "2d", "device": "a GPU", "epochs": 2, "iterations": 2, "commit": "abc"}
    (tmp_path / "heart.json").write_text(json.dumps({**about, "rows": rows}))
    text = render.block(tmp_path)
    assert "| nnUNetTrainerAdaWAC | 85.0 | 80.0, 90.0 | 22.0 | 0.0 | 0.35 | 0.65 | 0.75 |" in text
    assert "takes 1.10 times" in text
    page = render.rendered("x\n<!-- nnunet-study -->\nold\n<!-- end -->\ny\n")
    assert page.startswith("x\n<!-- nnunet-study -->\n")
    assert "old" not in page


@pytest.mark.slow
def test_the_study_runs_on_the_phantom(tmp_path, monkeypatch):
    pytest.importorskip("nnunetv2")
    monkeypatch.setattr(compare, "RESULTS", tmp_path / "results")
    for name, value in {"n_proc_DA": "1", "def_n_proc": "1", "compile": "f"}.items():
        monkeypatch.setenv(f"nnUNet_{name}", value)
    words = [
        str(tmp_path / "out"),
        "--device",
        "cpu",
        "--workers",
        "1",
        "--epochs",
        "2",
        "--iterations",
        "3",
        "--validations",
        "1",
    ]
    compare.main([*words, "--rows", "stock-double", "--seconds", "1"])  # begins, and is stopped
    assert not compare.collect_rows(tmp_path / "out")
    compare.main([*words, "--rows", "stock-double", "adawac"])
    result = json.loads((tmp_path / "results" / "phantom.json").read_text())
    assert set(result["rows"]) == {"stock-double", "adawac"}
    assert 0 <= result["rows"]["adawac"]["1"]["auc"] <= 1
    split = json.loads((tmp_path / "out/preprocessed" / compare.DATASET / "splits_final.json").read_text())
    assert set(result["rows"]["adawac"]["1"]["dice_of_cases"]) == set(split[0]["val"])
    assert "nnUNetTrainerAdaWAC" in render.block(tmp_path / "results")
