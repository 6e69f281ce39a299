"""`adawac.score`: label maps of any tool, in numbers that others define; what cannot be scored is named."""

import json
import math
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

import adawac
from adawac.data.parallel import run_jobs
from adawac.data.sources.label_maps import find_label_maps, match_cases, region_scheme
from adawac.errors import ConfigError, DataError, MissingFileError
from adawac.evaluation import compare, folder_scores
from adawac.evaluation.comparison import to_dict
from adawac.metrics import score_volume
from tests.data.scans import AFFINES, write_nifti
from tests.evaluation.label_map_folders import SHAPE, make_folders, maps_of, organs, values_of

METRICS = ("dice", "hd95", "assd", "surface_dice", "hd95_max_directed")


@pytest.fixture
def folders(tmp_path):
    return make_folders(tmp_path)


def score(*arguments, **options):
    return adawac.score(*arguments, **{"workers": 0, "progress": False, **options})


def only(result):
    """The evaluation of the only folder, of which everything was scored."""
    assert result.faults == []
    (evaluation,) = result.evaluations
    return evaluation


def faulty(result):
    return [fault.message for fault in result.faults]


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_every_metric_is_that_of_score_volume(folders):
    truth, good, _ = folders
    evaluation = only(score(truth, good, convention="adawac", spacing="mm", tolerance=2.0))
    numbers = values_of(evaluation)
    predictions = maps_of(good)
    for case, label_map in maps_of(truth).items():
        pred, label = (np.asarray(image.dataobj) for image in (predictions[case], label_map))
        spacing = nib.affines.voxel_sizes(label_map.affine)
        for row in score_volume(pred, label, 3, spacing, "adawac", 2.0):
            for metric in METRICS:
                assert numbers[case, row.label, metric] == pytest.approx(getattr(row, metric), abs=1e-12)
            assert numbers[case, row.label, "true_positives"] == row.both_voxels
            false = row.pred_voxels - row.both_voxels
            assert numbers[case, row.label, "false_positive_volume"] == pytest.approx(false * np.prod(spacing) / 1000)
    assert (evaluation.unit, evaluation.convention, evaluation.num_cases) == ("mm", "adawac", 4)
    assert evaluation.dataset == truth.parent.name
    assert evaluation.slice_summaries[-1].sparse_slices == 4 * 2


@pytest.mark.filterwarnings("ignore::FutureWarning")  # MONAI warns of its own arguments
def test_every_metric_is_that_of_medpy_and_monai(folders):
    binary = pytest.importorskip("medpy.metric").binary
    monai = pytest.importorskip("monai.metrics")
    import torch

    truth, good, _ = folders
    numbers, predictions = values_of(only(score(truth, good))), maps_of(good)
    for case, label_map in maps_of(truth).items():
        spacing = tuple(float(size) for size in nib.affines.voxel_sizes(label_map.affine))
        for label in (1, 2):
            pred, other = (np.asarray(image.dataobj) == label for image in (predictions[case], label_map))
            assert numbers[case, label, "dice"] == pytest.approx(binary.dc(pred, other), abs=1e-12)
            for metric in ("hd95", "assd"):
                expected = getattr(binary, metric)(pred, other, voxelspacing=spacing)
                assert numbers[case, label, metric] == pytest.approx(expected, abs=1e-9)
            tensors = [torch.from_numpy(mask)[None, None] for mask in (pred, other)]
            directed = monai.compute_hausdorff_distance(*tensors, percentile=95, spacing=spacing).item()
            assert numbers[case, label, "hd95_max_directed"] == pytest.approx(directed, rel=1e-5)
            shares = monai.compute_surface_dice(
                *tensors, class_thresholds=[1.0], include_background=True, spacing=spacing, use_subvoxels=False
            )
            assert numbers[case, label, "surface_dice"] == pytest.approx(shares.item(), rel=1e-5)


def nnunet_numbers(pred, truth, values, ignore=None):
    """What nnU-Net's `compute_metrics` says of a label or a region: TP, FP, FN, and Dice, or NaN for neither."""
    counted = np.ones(truth.shape, dtype=bool) if ignore is None else truth != ignore
    pred, truth = np.isin(pred, values) & counted, np.isin(truth, values) & counted
    tp, fp, fn = (pred & truth).sum(), (pred & ~truth).sum(), (~pred & truth).sum()
    return tp, fp, fn, 2 * tp / (2 * tp + fp + fn) if tp + fp + fn else math.nan


def check_nnunet(folders, evaluation, values, ignore=None):
    truth, good, _ = folders
    numbers, predictions = values_of(evaluation), maps_of(good)
    means = {label: [] for label in range(1, len(values) + 1)}
    for case, label_map in maps_of(truth).items():
        pred, label = (np.asarray(image.dataobj) for image in (predictions[case], label_map))
        for number, of_class in enumerate(values, start=1):
            expected = nnunet_numbers(pred, label, of_class, ignore)
            means[number].append(expected[3])
            names = ("true_positives", "false_positives", "false_negatives", "dice")
            np.testing.assert_equal([numbers[case, number, name] for name in names], expected)
    for summary in evaluation.summaries["dice"][:-1]:
        assert summary.mean == pytest.approx(np.nanmean(means[summary.label]), abs=1e-15)


@pytest.fixture
def with_absent_classes(folders):
    """Class 2 is missed in one case, invented in another, and absent in a third."""
    truth, good, _ = folders
    for number, emptied in enumerate([(truth,), (good,), (truth, good)]):
        for folder in emptied:
            path = sorted(folder.iterdir())[number]
            image = nib.load(path)
            label = np.asarray(image.dataobj)
            write_nifti(path, np.where(label == 2, 0, label).astype(np.uint8), image.affine)
    return folders


def write_description(folder, labels):
    description = {"labels": labels, "channel_names": {"0": "MRI"}, "numTraining": 4, "file_ending": ".nii.gz"}
    (folder / "dataset.json").write_text(json.dumps(description))


def test_counts_and_dice_are_nnunets_by_definition(with_absent_classes):
    truth, good, _ = with_absent_classes
    evaluation = only(score(truth, good, convention="nnunet", classes={"organ": 1, "lesion": 2}))
    check_nnunet(with_absent_classes, evaluation, [[1], [2]])
    skipped = evaluation.summaries["dice"][1]
    assert (skipped.missed, skipped.invented, skipped.absent, skipped.skipped) == (1, 1, 1, 1)


def test_regions_and_ignored_voxels_are_nnunets_by_definition(with_absent_classes):
    truth, good, _ = with_absent_classes
    for path in sorted(truth.iterdir())[::2]:
        label = np.asarray(nib.load(path).dataobj).copy()
        label[3:7, :, 2:5] = 3
        write_nifti(path, label, nib.load(path).affine)
    write_description(truth.parent, {"background": 0, "whole": [1, 2], "core": [2], "ignore": 3})
    evaluation = only(score(truth, good, convention="nnunet"))
    assert evaluation.slices.class_names == ("background", "whole", "core")
    check_nnunet(with_absent_classes, evaluation, [[1, 2], [2]], ignore=3)


@pytest.mark.parametrize("regions", [False, True])
def test_numbers_are_those_of_nnunets_summary(with_absent_classes, tmp_path, regions):
    evaluate_predictions = pytest.importorskip("nnunetv2.evaluation.evaluate_predictions")
    from nnunetv2.imageio.simpleitk_reader_writer import SimpleITKIO

    truth, good, _ = with_absent_classes
    labels = {"whole": [1, 2], "core": 2} if regions else {"organ": 1, "lesion": 2}
    write_description(truth, {"background": 0, **labels})
    evaluate_predictions.compute_metrics_on_folder(
        str(truth),
        str(good),
        str(tmp_path / "summary.json"),
        SimpleITKIO(),
        ".nii.gz",
        [(1, 2), 2] if regions else [1, 2],
        num_processes=1,
    )
    summary = evaluate_predictions.load_summary_json(str(tmp_path / "summary.json"))
    evaluation = only(score(truth, good, convention="nnunet"))
    numbers = values_of(evaluation)
    names = {"Dice": "dice", "TP": "true_positives", "FP": "false_positives", "FN": "false_negatives"}
    for entry in summary["metric_per_case"]:
        case = Path(entry["prediction_file"]).name.removesuffix(".nii.gz")
        for label, of_class in enumerate(entry["metrics"].values(), start=1):
            ours = [numbers[case, label, metric] for metric in names.values()]
            np.testing.assert_equal(ours, [of_class[name] for name in names])
    for of_class, ours in zip(summary["mean"].values(), evaluation.summaries["dice"], strict=False):
        assert ours.mean == pytest.approx(of_class["Dice"], abs=1e-15)


def test_processes_change_nothing(folders):
    expected = score(*folders[:1], folders[1:], workers=0)
    result = score(*folders[:1], folders[1:], workers=2)
    for one_process, several in zip(expected.evaluations, result.evaluations, strict=True):
        assert repr(several.scores) == repr(one_process.scores)
        np.testing.assert_array_equal(several.slices.both, one_process.slices.both)


def test_label_maps_are_read_where_they_are_scored(folders, monkeypatch):
    """What waits for a process is names of files, so a thousand cases take no more memory than a few."""
    sent = []

    def run(scorer, jobs, **options):
        sent.extend(jobs)
        return run_jobs(scorer, jobs, **options)

    monkeypatch.setattr("adawac.evaluation.folder_scores.run_jobs", run)
    score(*folders[:2], classes={"a": 1, "b": 2})
    assert len(sent) == 4
    assert max(len(pickle.dumps(job)) for job in sent) < 1000


def test_scoring_loads_no_torch(folders):
    code = (
        "import sys, adawac; result = adawac.score(*sys.argv[1:], workers=0); print(len(result.evaluations[0].scores))"
    )
    code += "; assert 'torch' not in sys.modules"
    words = [sys.executable, "-c", code, *map(str, folders[:2])]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert int(done.stdout) == 4 * 2 * 16


def test_folders_are_compared_by_patient(folders):
    truth, good, worse = folders
    result = score(truth, [good, worse], patient=r"(patient\d)")
    assert [evaluation.label for evaluation in result.evaluations] == ["good", "worse"]
    assert [evaluation.num_patients for evaluation in result.evaluations] == [2, 2]
    rows = {(row.metric, row.label): row for row in compare(result.evaluations)}
    row = rows["dice", None]
    assert (row.first, row.second, row.difference.num_patients) == ("good", "worse", 2)
    means = [evaluation.summaries["dice"][-1].mean for evaluation in result.evaluations]
    assert row.difference.mean == pytest.approx(means[1] - means[0])
    assert row.difference.mean < 0


def test_folders_are_compared_on_the_cases_that_both_have(folders):
    truth, good, worse = folders
    sorted(good.iterdir())[0].unlink()  # one of the two cases of a patient
    result = score(truth, [good, worse], patient=r"(patient\d)")
    numbers = [values_of(evaluation) for evaluation in result.evaluations]
    difference = next(row.difference for row in compare(result.evaluations) if (row.metric, row.label) == ("dice", 1))
    by_case = {key[0]: numbers[1][key] - value for key, value in numbers[0].items() if key[1:] == (1, "dice")}
    expected = [by_case["patient0_frame1"], (by_case["patient1_frame2"] + by_case["patient1_frame3"]) / 2]
    assert difference.mean == pytest.approx(np.mean(expected))
    assert difference.num_patients == 2


def test_groups_come_from_a_file(folders, tmp_path):
    (tmp_path / "groups.csv").write_text("patient,group\npatient0,ill\npatient1,well\n")
    evaluation = only(score(*folders[:2], patient=r"(patient\d)", groups=tmp_path / "groups.csv"))
    assert set(evaluation.groups) == {"ill", "well"}


def test_empty_cases_raise_false_alarms(folders):
    truth, good, _ = folders
    path = sorted(truth.iterdir())[0]
    write_nifti(path, np.zeros(SHAPE, dtype=np.uint8), nib.load(path).affine)
    *_, seen = only(score(truth, good)).detections
    assert (seen.hits, seen.misses, seen.false_alarms, seen.clear) == (3, 0, 1, 0)
    assert (seen.sensitivity, seen.specificity) == (1.0, 0.0)


def test_a_file_beside_a_file(folders):
    truth, good, _ = folders
    first, second = sorted(truth.iterdir())[0], sorted(good.iterdir())[1]
    first_pred = sorted(good.iterdir())[0]
    evaluation = only(score(first, first_pred))
    everything = values_of(only(score(truth, good)))
    assert all(everything[key] == pytest.approx(value, nan_ok=True) for key, value in values_of(evaluation).items())
    with pytest.raises(ConfigError, match="Give its folder"):
        score(truth, second)
    with pytest.raises(MissingFileError, match="Give a file for a file"):
        score(first, good)


# -- formats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["nrrd", "mha", "seg.nrrd"])
def test_formats_of_itk_score_as_nifti(folders, tmp_path, ending):
    sitk = pytest.importorskip("SimpleITK")
    truth, good, _ = folders
    expected = only(score(truth, good))
    other = tmp_path / "other"
    other.mkdir()
    for path in sorted(good.iterdir()):
        sitk.WriteImage(sitk.ReadImage(str(path)), str(other / path.name.replace("nii.gz", ending)))
    evaluation = only(score(truth, other))
    np.testing.assert_equal(values_of(evaluation), values_of(expected))


def test_dicom_seg_scores_as_nifti(tmp_path):
    pytest.importorskip("highdicom")
    from adawac.data.sources.dicom_series import read_series
    from adawac.inference import label_files
    from adawac.inference.scan_search import find_scans
    from adawac.inference.volumes import open_scan
    from tests.inference.series import write_series

    truth, prediction = organs()
    truth[..., :3] = prediction[..., 6:] = 0  # frames without segments are left out of the files
    files = write_series(tmp_path / "ct", np.zeros(SHAPE, dtype=np.int16))
    _, affine = read_series(files)
    volume = open_scan(find_scans([tmp_path / "ct"])[0], ["image"])
    sources = label_files.read_seg_sources(volume)
    for folder, label in (("truth", truth), ("prediction", prediction)):
        write_nifti(tmp_path / f"{folder}-nifti" / "scan.nii.gz", label, affine)
        write_nifti(tmp_path / f"{folder}-turned" / "scan.nii.gz", label[::-1], affine @ flip(0, SHAPE[0]))
        (tmp_path / f"{folder}-seg").mkdir()
        path = tmp_path / f"{folder}-seg" / "scan.dcm"
        label_files.write_seg(path, label, volume, sources, ["background", "liver", "spleen"])
    classes = {"liver": 1, "spleen": 2}

    def numbers(truth_kind, kind):
        evaluation = only(score(tmp_path / f"truth-{truth_kind}", tmp_path / f"prediction-{kind}", classes=classes))
        return {key: value for key, value in values_of(evaluation).items() if key[2] in (*METRICS, "false_positives")}

    expected = numbers("nifti", "nifti")
    for kinds in (("seg", "nifti"), ("nifti", "seg"), ("seg", "seg"), ("turned", "seg")):
        found = numbers(*kinds)
        assert found == {key: pytest.approx(value, abs=1e-4) for key, value in expected.items()}, kinds
    named = only(score(tmp_path / "truth-seg", tmp_path / "prediction-seg"))
    assert named.slices.class_names == ("background", "liver", "spleen")


def flip(axis, side):
    matrix = np.eye(4)
    matrix[axis, axis], matrix[axis, 3] = -1, side - 1
    return matrix


def test_pictures_are_scored_in_pixels(tmp_path):
    for number in range(3):
        truth, prediction = (label[..., 4] for label in organs(number))
        for folder, label in (("truth", truth), ("grey", prediction), ("indexed", prediction)):
            (tmp_path / folder).mkdir(exist_ok=True)
            picture = Image.fromarray(label)
            if folder == "indexed":
                picture.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
            picture.save(tmp_path / folder / f"{number}.png")
    result = score(tmp_path / "truth", [tmp_path / "grey", tmp_path / "indexed"])
    assert result.faults == []
    grey, indexed = result.evaluations
    assert grey.unit == "voxel"
    np.testing.assert_equal(values_of(indexed), values_of(grey))
    truth, prediction = (label[..., 4] for label in organs(1))
    for row in score_volume(prediction, truth, 3):
        for metric in METRICS:
            assert values_of(grey)["1", row.label, metric] == getattr(row, metric)
    with pytest.raises(DataError, match="Measure in voxels"):
        score(tmp_path / "truth", tmp_path / "grey", spacing="mm")


# -- names ------------------------------------------------------------------------------------------------------------


def names_to_paths(*names):
    return {name: [Path(f"{name}.nii.gz")] for name in names}


@pytest.mark.parametrize(
    ("truth", "prediction"),
    [("case_01", "case_01"), ("case_01", "case_01_0000"), ("scan_gt", "scan_pred"), ("a", "A_seg")],
)
def test_names_match_without_what_the_file_is(truth, prediction):
    matches = match_cases([truth], names_to_paths(prediction))
    assert (list(matches.pairs), matches.missing, matches.unknown) == ([truth], [], [])


def test_numbers_of_cases_are_not_channels():
    matches = match_cases(["liver_0000", "liver_0001"], names_to_paths("liver_0001", "liver_0002"))
    assert set(matches.pairs) == {"liver_0001"}
    assert matches.missing == ["liver_0000"]
    assert [path.name for path in matches.unknown] == ["liver_0002.nii.gz"]


def test_folders_of_one_file_each_name_the_case(folders, tmp_path):
    truth, good, _ = folders
    for path in sorted(good.iterdir()):
        name = path.name.removesuffix(".nii.gz")
        nested = tmp_path / "nested" / name / "prediction.nii.gz"
        nested.parent.mkdir(parents=True)
        os.link(path, nested)
    nested_scores = values_of(only(score(truth, tmp_path / "nested")))
    np.testing.assert_equal(nested_scores, values_of(only(score(truth, good))))


def test_what_predict_writes_beside_label_maps_is_no_label_map(folders):
    good = folders[1]
    path = sorted(good.iterdir())[0]
    stem = path.name.removesuffix(".nii.gz")
    write_nifti(good / f"{stem}_probabilities.nii.gz", np.zeros((*SHAPE, 3), dtype=np.float32))
    (good / f"{stem}.json").write_text("{}")
    assert len(find_label_maps(good)) == 4


def test_region_values_become_classes():
    scheme = region_scheme({"whole": (4, 7), "core": (7,)}, ignore=9)
    assert scheme.names == ("background", "whole", "core")
    assert dict(scheme.classes) == {"background": (0,), "value 4": (4,), "value 7": (7,)}
    assert dict(scheme.regions) == {"whole": (1, 2), "core": (2,)}


# -- what cannot be scored --------------------------------------------------------------------------------------------


def rewrite(path, change, affine=None):
    image = nib.load(path)
    write_nifti(path, change(np.asarray(image.dataobj)), image.affine if affine is None else affine)


SPOILED = {
    "shape": (lambda path: rewrite(path, lambda label: label[:-1]), r"Expected the shape \(17, 14, 9\)"),
    "shifted": (
        lambda path: rewrite(path, np.asarray, shifted(nib.load(path).affine)),
        r"moves its corners by up to 2",
    ),
    "flipped": (
        lambda path: rewrite(path, lambda label: label[::-1], nib.load(path).affine @ flip(0, SHAPE[0])),
        r"point to LAS: it is turned or flipped",
    ),
    "float": (lambda path: rewrite(path, lambda label: (label + 0.25).astype(np.float32)), r"whole-numbered labels"),
    "value": (lambda path: rewrite(path, lambda label: np.where(label == 2, 9, label).astype(np.uint8)), r"got \[9\]"),
    "4D": (lambda path: rewrite(path, lambda label: np.stack([label] * 3, axis=-1)), r"Expected a 3D label map"),
    "damaged": (lambda path: path.write_bytes(path.read_bytes()[:-60]), r"cannot be read"),
}


def shifted(affine):
    moved = affine.copy()
    moved[0, 3] += 2.0
    return moved


@pytest.mark.parametrize("kind", SPOILED)
def test_a_prediction_that_cannot_be_scored_is_named_and_the_rest_scored(folders, kind):
    spoil, message = SPOILED[kind]
    truth, good, _ = folders
    expected = values_of(only(score(truth, good)))
    path = sorted(good.iterdir())[1]
    spoil(path)
    result = score(truth, good)
    (fault,) = result.faults
    assert (fault.predictions, fault.case) == ("good", "patient0_frame1")
    assert str(path) in fault.message
    assert re.search(message, fault.message), fault.message
    numbers = values_of(result.evaluations[0])
    assert {case for case, *_ in numbers} == {case for case, *_ in expected} - {fault.case}
    np.testing.assert_equal(numbers, {key: expected[key] for key in numbers})


def test_a_damaged_truth_costs_its_case_alone(folders):
    truth, good, worse = folders
    path = sorted(truth.iterdir())[2]
    path.write_bytes(b"no NIfTI")
    result = score(truth, [good, worse], classes={"a": 1, "b": 2})
    assert [(fault.predictions, fault.case) for fault in result.faults] == [
        ("good", "patient1_frame2"),
        ("worse", "patient1_frame2"),
    ]
    assert [evaluation.num_cases for evaluation in result.evaluations] == [3, 3]


def test_missing_cases_on_either_side_are_one_message_each(folders):
    truth, good, _ = folders
    sorted(good.iterdir())[0].unlink()
    for name in ("b", "c"):
        write_nifti(good / f"{name}.nii.gz", np.zeros(SHAPE, dtype=np.uint8))
    result = score(truth, good)
    missing, unknown = faulty(result)
    assert missing == f"Expected a prediction of each case in {good}, but 1 has none: patient0_frame0."
    assert unknown == f"Expected a truth of each prediction in {good}, but 2 have none: b.nii.gz, c.nii.gz."
    assert result.evaluations[0].num_cases == 3


def test_thousands_of_missing_files_are_one_short_message(folders):
    truth, good, _ = folders
    source = sorted(good.iterdir())[0]
    for number in range(3000):
        os.link(source, good / f"other{number:04d}.nii.gz")
    (message,) = faulty(score(truth, good))
    assert "3000 have none: other0000.nii.gz, " in message
    assert len(message) < 300


def test_two_files_of_one_case_are_ambiguous(folders):
    truth, good, _ = folders
    path = sorted(good.iterdir())[0]
    (good / path.name.removesuffix(".gz")).write_bytes(b"")
    result = score(truth, good)
    assert "Expected one label map of patient0_frame0, but got" in result.faults[0].message
    assert result.evaluations[0].num_cases == 3


def test_a_folder_of_which_nothing_can_be_scored_has_no_evaluation(folders, tmp_path):
    truth, good, worse = folders
    for path in good.iterdir():
        path.write_bytes(b"")
    result = score(truth, [good, worse])
    assert [evaluation.label for evaluation in result.evaluations] == ["worse"]
    assert len(result.faults) == 4


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"convention": "lax"}, KeyError, "name of a convention"),
        ({"metrics": ["dyce"]}, KeyError, "Expected a metric"),
        ({"axis": 3}, ConfigError, "`axis` to be 0, 1 or 2"),
        ({"orientation": "XYZ"}, ConfigError, "`orientation`"),
        ({"workers": -1}, ConfigError, "`workers`"),
        ({"patient": "("}, ConfigError, "regular expression"),
        ({"patient": "nobody"}, DataError, "to find the patient"),
        ({"dataset_json": "none.json"}, MissingFileError, "dataset.json"),
        ({"classes": {"a": 1, "b": 1}}, ConfigError, "each label value under one class"),
        ({"classes": {"a": 1}, "ignore": 1}, ConfigError, "ignored value that is no class"),
    ],
)
def test_wrong_arguments_are_refused(folders, options, error, message):
    with pytest.raises(error, match=message):
        score(*folders[:2], **options)


def test_wrong_folders_are_refused(folders, tmp_path):
    truth, good, _ = folders
    (tmp_path / "empty").mkdir()
    for bad, message in (
        (tmp_path / "none", "is not there"),
        (tmp_path / "empty", "there are none"),
        (truth.parent, "is a data set"),
    ):
        with pytest.raises((MissingFileError, ConfigError), match=message):
            score(bad, good)
    with pytest.raises(ConfigError, match="twice"):
        score(truth, [good, good])
    with pytest.raises(ConfigError, match="got none"):
        score(truth, [])
    for path in list(good.iterdir()):
        path.rename(good / f"other-{path.name}")
    with pytest.raises(DataError, match="Rename them"):
        score(truth, good)


def test_affines_that_agree_but_for_rounding_are_one_grid(folders):
    truth, good, _ = folders
    path = sorted(good.iterdir())[0]
    rewrite(path, np.asarray, AFFINES["anisotropic"] + 1e-4)
    assert score(truth, good).faults == []


# -- several machines -------------------------------------------------------------------------------------------------


def test_shares_together_are_the_whole(folders, tmp_path):
    options = {"classes": {"a": 1, "b": 2}, "convention": "nnunet"}  # infinite distances have to survive
    whole = score(*folders[:1], folders[1:], **options)
    options |= {"parts": tmp_path / "parts"}
    first = score(*folders[:1], folders[1:], shard="1/2", **options)
    assert (first.evaluations, first.faults, first.waiting) == ([], [], 2)
    last = score(*folders[:1], folders[1:], shard="2/2", **options)
    again = score(*folders[:1], folders[1:], **options)
    for result in (last, again):
        assert result.waiting == 0
        assert result.faults == whole.faults
        for mine, other in zip(result.evaluations, whole.evaluations, strict=True):
            assert repr(mine.scores) == repr(other.scores)
            assert to_dict([mine]) == to_dict([other])


def test_scores_that_are_kept_are_not_made_again(folders, tmp_path, monkeypatch):
    truth, good, _ = folders
    options = {"classes": {"a": 1, "b": 2}, "parts": tmp_path / "parts"}
    before = score(truth, good, **options)
    scored = []
    real = folder_scores.score_maps
    monkeypatch.setattr(folder_scores, "score_maps", lambda maps, rules: (scored.append(rules), real(maps, rules))[1])
    assert repr(score(truth, good, **options).evaluations[0].scores) == repr(before.evaluations[0].scores)
    assert scored == []
    changed = next(iter(sorted(good.glob("*.nii.gz"))))
    os.utime(changed, ns=(1, 1))
    score(truth, good, **options)
    assert len(scored) == 1  # of the file that changed
    score(truth, good, **options, tolerance=2.0)
    assert len(scored) == 1 + 4
    # Damaged; not the part of the file as it was before it changed, which nobody reads again.
    max((tmp_path / "parts").iterdir(), key=lambda part: part.stat().st_mtime_ns).write_text("{")
    score(truth, good, **options)
    score(truth, good, **options, tolerance=2.0)
    assert len(scored) == 1 + 4 + 1


def test_another_folders_files_are_other_files_even_if_they_look_alike(folders, tmp_path):
    """As label maps of two tools that came out of archives: the same names, sizes and times."""
    truth, good, worse = (folder.rename(tmp_path / f"plain-{folder.name}") for folder in folders)
    for folder in (truth, good, worse):
        for path in list(folder.glob("*.nii.gz")):
            nib.save(nib.load(path), path.with_suffix(""))
            path.unlink()
            os.utime(path.with_suffix(""), ns=(1, 1))
    options = {"classes": {"a": 1, "b": 2}}
    sizes = [{path.name: path.stat().st_size for path in folder.glob("*.nii")} for folder in (good, worse)]
    assert sizes[0].items() & sizes[1].items()
    score(truth, good, parts=tmp_path / "parts", **options)
    kept, fresh = score(truth, worse, parts=tmp_path / "parts", **options), score(truth, worse, **options)
    assert repr(kept.evaluations[0].scores) == repr(fresh.evaluations[0].scores)


def test_faults_are_kept_as_well(folders, tmp_path):
    truth, good, _ = folders
    next(iter(sorted(good.glob("*.nii.gz")))).write_bytes(b"no scan")
    options = {"classes": {"a": 1, "b": 2}, "parts": tmp_path / "parts"}
    expected = score(truth, good, classes={"a": 1, "b": 2}).faults
    assert expected
    score(truth, good, shard="1/2", **options)
    assert score(truth, good, shard="2/2", **options).faults == expected


def test_shares_need_a_folder(folders):
    with pytest.raises(ConfigError, match="a folder in which all shards keep their scores"):
        score(*folders[:2], shard="1/2")
