"""`adawac.evaluate`: fixed predictions in, known scores out, however it is computed."""

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from nibabel.orientations import apply_orientation, axcodes2ornt, ornt_transform

import adawac
from adawac.errors import ConfigError, DataError, RunError, UnknownNameError
from adawac.evaluation import evaluate
from adawac.evaluation.case_scores import Rules, score_case
from adawac.evaluation.evaluation_record import SliceScores
from adawac.evaluation.scorers import Scorers, default_workers
from adawac.evaluation.tables import to_tables
from adawac.inference.predictor import Predictor
from adawac.metrics import dice, score_volume
from adawac.runs import Run, save_checkpoint
from adawac.runs.layout import strict
from tests.evaluation.drawn_cases import outcome_cases, random_cases, training_cases
from tests.networks.lookup_network import DrawnCase, Lookup, make_run, make_store
from tests.places import REPOSITORY

DIAGONAL = math.sqrt(3**2 + 8**2 + 8**2)
MM = math.sqrt((3 * 2.0) ** 2 + 8**2 + 8**2)

# The organ's score in the cases found, missed, invented-a, invented-b, absent; the lesion is always found.
GOLDEN = {
    "adawac": {"dice": [0.8, 0, 0, 0, 1], "hd95": [1, 0, 0, 0, 0]},
    "transunet": {"dice": [0.8, 0, 1, 1, 0], "hd95": [1, 0, 0, 0, 0]},
    "strict": {"dice": [0.8, 0, 0, 0, 1], "hd95": [1, MM, MM, MM, 0]},
    "nan": {"dice": [0.8] + 4 * [math.nan], "hd95": [1.0] + 4 * [math.nan]},
}
ORDER = ["found", "missed", "invented-a", "invented-b", "absent"]


@pytest.fixture
def varied_run(varied, tmp_path):
    return make_run(tmp_path / "run", varied, size=(9, 9))


def values(evaluation, metric, label=1):
    by_case = {
        score.case: score.value for score in evaluation.scores if score.metric == metric and score.label == label
    }
    return [by_case[case] for case in ORDER]


@pytest.mark.parametrize("convention", GOLDEN)
def test_golden_scores_of_every_rule(outcome_run, convention):
    (evaluation,) = evaluate(outcome_run, convention=convention, workers=0, gallery=0)
    for metric, expected in GOLDEN[convention].items():
        np.testing.assert_allclose(values(evaluation, metric), expected, atol=1e-12)
        np.testing.assert_allclose(values(evaluation, metric, label=2), 5 * [metric == "dice"])
    assert evaluation.unit == ("mm" if convention in ("strict", "nan") else "voxel")
    for outcome, expected in (("missed", [0, 1, 0, 0, 0]), ("invented", [0, 0, 1, 1, 0]), ("absent", [0, 0, 0, 0, 1])):
        assert values(evaluation, outcome) == expected
    summary = evaluation.summaries["dice"][0]
    assert (summary.missed, summary.invented, summary.absent) == (1, 2, 1)
    assert summary.skipped == (4 if convention == "nan" else 0)
    assert evaluation.name == f"test-{convention}-last"
    assert Run(outcome_run.folder).evaluations == [evaluation.name]


def test_scores_in_the_run_are_those_returned(outcome_run):
    (evaluation,) = evaluate(str(outcome_run.folder), workers=0, gallery=0)
    kept = Run(outcome_run.folder).scores("test-strict-last")
    assert len(kept) == 5 * 2 * (5 + 3 + 5 + 3)  # cases, classes, metrics and outcomes and counts and slice metrics
    for written, other in zip(kept, evaluation.scores, strict=True):
        assert written == other or (math.isnan(written.value) and math.isnan(other.value))
    assert {score.group for score in kept} == {"ill", "well"}
    assert {(score.checkpoint, score.split, score.convention) for score in kept} == {("last", "test", "strict")}


def test_scores_older_than_the_weights_are_outdated(outcome_run):
    folder = outcome_run.folder
    evaluate(folder, workers=0)
    assert Run(folder).outdated == {}
    saved = Run(folder).checkpoint("last")
    then = saved.state["epoch"]
    save_checkpoint(folder / "checkpoints" / "last.safetensors", saved.tensors, {**saved.state, "epoch": then + 5})
    outdated = Run(folder).outdated
    assert set(outdated) == {"scores/test-strict-last.csv", "gallery/test-last.npz", "gallery/train-last.npz"}
    assert set(outdated.values()) == {f"of epoch {then}, but checkpoint last is of epoch {then + 5} by now"}
    evaluate(folder, workers=0)
    assert Run(folder).outdated == {}


def test_distances_in_voxels_are_in_the_name(outcome_run):
    (evaluation,) = evaluate(outcome_run, spacing="voxel", workers=0, gallery=0)
    assert values(evaluation, "hd95")[1] == pytest.approx(DIAGONAL)
    assert evaluation.name == "test-strict-last-voxel"
    (paper,) = evaluate(outcome_run, convention="adawac", spacing="mm", workers=0, gallery=0)
    assert paper.name == "test-adawac-last-mm"


def test_all_metrics_are_those_of_score_volume(varied, varied_run):
    names = ("dice", "hd95", "assd", "surface_dice", "hd95_max_directed")
    (evaluation,) = evaluate(
        varied_run, metrics=[*names[:3], "surface-dice", names[4]], tolerance=2.0, workers=0, gallery=0
    )
    assert evaluation.metrics == names
    mean = evaluation.summaries["dice"][-1].mean
    assert f"{len(random_cases())} cases of {varied.dataset}, mean dice {mean:.3g}, mean hd95 " in repr(evaluation)
    assert len(repr(evaluation)) < 200
    evaluation = {(score.case, score.label, score.metric): score.value for score in evaluation.scores}
    for case in random_cases():
        prediction = predicted(varied, case, (9, 9))
        info = varied.case_info(case)
        for row in score_volume(prediction, varied.stack(case)[1], 3, info.spacing, tolerance=2.0):
            for name in names:
                assert evaluation[case, row.label, name] == pytest.approx(getattr(row, name), abs=1e-12)


def predicted(store, case, size):
    (labels,) = Predictor([Lookup(store.num_classes)], size).predict([store.stack(case)[0]])
    return labels


@pytest.mark.parametrize(("workers", "batch_size"), [(1, 7), (2, 3), (2, None), (0, 1)])
def test_processes_and_batches_change_nothing(varied_run, workers, batch_size):
    (expected,) = evaluate(varied_run, workers=0, gallery=0)
    (evaluation,) = evaluate(varied_run, workers=workers, batch_size=batch_size, gallery=0)
    assert repr(evaluation.scores) == repr(expected.scores)  # to the last bit, NaN too
    for name in ("id", "pred", "truth", "both", "sparse"):
        np.testing.assert_array_equal(getattr(evaluation.slices, name), getattr(expected.slices, name))


def test_flipped_images_do_not_change_a_network_that_looks_at_single_pixels(varied_run):
    (plain,) = evaluate(varied_run, workers=0, gallery=0)
    (flipped,) = evaluate(varied_run, workers=0, gallery=0, tta=True)
    assert flipped.name == f"{plain.name}-tta"
    assert repr(flipped.scores) == repr(plain.scores)


def test_label_sparse_and_label_dense_slices_are_scored_apart(outcome_run):
    (evaluation,) = evaluate(outcome_run, workers=0, gallery=0)
    organ, lesion, both = evaluation.slice_summaries
    assert (organ.sparse_slices, organ.sparse_found) == (5, 1)  # invented-a, on one of five label-sparse slices
    assert organ.sparse_area == pytest.approx(3 / 5)
    assert organ.dense_slices == 3  # found, missed, invented-b
    assert organ.dense_dice == pytest.approx((0.8 + 0 + 0) / 3)
    assert organ.dense_std == pytest.approx(np.std([0.8, 0, 0], ddof=1))
    assert (lesion.dense_slices, lesion.dense_dice, lesion.sparse_found) == (10, 1.0, 0)
    assert both.dense_slices == 10
    assert both.dense_dice == pytest.approx((7 * 1 + (0.8 + 1) / 2 + 2 * (0 + 1) / 2) / 10)
    kept = {(score.case, score.label, score.metric): score.value for score in evaluation.scores}
    assert kept["invented-a", 1, "sparse_found"] == 1.0
    assert kept["invented-a", 1, "sparse_area"] == 3.0
    assert kept["found", 1, "dense_dice"] == pytest.approx(0.8)
    assert math.isnan(kept["absent", 1, "dense_dice"])


def test_empty_cases_raise_false_alarms_or_none(tmp_path):
    drawn, empty = outcome_cases(), np.zeros((3, 8, 8), dtype=np.uint8)
    alarm = np.where(np.arange(8) < 2, 1, empty).astype(np.uint8)
    for name, prediction in {"clear": empty, "alarm": alarm}.items():
        drawn[name] = DrawnCase(prediction=prediction, label=empty, patient=name, group="well")
    run = make_run(tmp_path / "run", make_store(tmp_path / "store", drawn | training_cases()))
    (evaluation,) = evaluate(run, workers=0, gallery=0)
    organ, lesion, either = evaluation.to_dict()["detections"]
    assert (organ["hits"], organ["misses"], organ["false_alarms"], organ["clear"]) == (1, 1, 3, 2)
    assert (lesion["sensitivity"], lesion["specificity"]) == (1.0, 1.0)
    assert (either["sensitivity"], either["false_alarms"], either["clear"]) == (1.0, 1, 1)
    table = next(table for table in to_tables([evaluation]) if table.title.endswith(": detection by case"))
    assert table.rows[0] == ("organ", "1 of 2 (50.0 %)", "3 of 5 (60.0 %)", "50.0", "40.0")
    notes = to_tables([evaluation], full=False)[0].notes[1]
    assert "Empty cases: false alarms in 1 of 2 (50.0 %); of the others, nothing found in 0 of 5 (0.0 %)." in notes


def test_the_gallery_has_no_empty_cases_in_which_nothing_was_found(tmp_path):
    drawn, empty = training_cases(), np.zeros((1, 8, 8), dtype=np.uint8)
    spot = np.where(np.arange(8) < 2, 1, empty).astype(np.uint8)
    kinds = {"clear": (empty, empty), "alarm": (spot, empty), "found": (spot, spot), "missed": (empty, spot)}
    for name, (prediction, label) in kinds.items():
        for number in range(4):
            drawn[f"{name}{number}"] = DrawnCase(prediction=prediction, label=label, patient=f"{name}{number}")
    run = make_run(tmp_path / "run", make_store(tmp_path / "store", drawn))
    evaluate(run, workers=0)
    shown = {sample.split("/")[2].rstrip("0123") for sample in run.gallery("test-last")}
    assert shown == {"alarm", "found", "missed"}
    assert len(run.gallery("test-last")) == 12


def test_without_empty_cases_nothing_is_said_of_detection(outcome_run):
    (evaluation,) = evaluate(outcome_run, workers=0, gallery=0)
    assert not evaluation.has_empty_cases
    assert not any("detection" in table.title for table in to_tables([evaluation]))
    assert "Empty cases" not in to_tables([evaluation], full=False)[0].notes[1]


def test_falsely_found_areas_are_in_square_millimetres(tmp_path):
    drawn = outcome_cases() | training_cases()
    wide = {name: DrawnCase(**{**vars(case), "spacing": (2.0, 1.5, 0.8)}) for name, case in drawn.items()}
    run = make_run(tmp_path / "run", make_store(tmp_path / "store", wide))
    for spacing, pixel in (("mm", 1.5 * 0.8), ("voxel", 1.0)):
        (evaluation,) = evaluate(run, spacing=spacing, workers=0, gallery=0)
        assert evaluation.slice_summaries[0].sparse_area == pytest.approx(3 / 5 * pixel)
        table = next(table for table in to_tables([evaluation]) if table.title.endswith(": slices"))
        assert table.header[-1] == f"mean area, {'mm²' if spacing == 'mm' else 'pixels'}"


def test_a_single_pixel_is_found_falsely():
    counts = np.array([[0, 1], [0, 0], [0, 3]])
    slices = SliceScores(
        id=np.array(["a/0", "a/1", "a/2"]),
        case=np.array(["a", "a", "a"]),
        sparse=np.array([True, True, False]),
        pred=counts,
        truth=counts * [[0], [0], [1]],
        both=counts * [[0], [0], [1]],
        area=np.array([0.5, 4.0, 1.0]),
        class_names=("background", "organ"),
    )
    for summary in slices.summarise():
        assert (summary.sparse_slices, summary.sparse_found, summary.sparse_area) == (2, 1, 0.25)
    assert slices.values(1) == {"dense_dice": 1.0, "sparse_found": 0.5, "sparse_area": 0.25}


def test_distances_in_tables_have_three_digits(outcome_run):
    (evaluation,) = evaluate(outcome_run, workers=0, gallery=0)
    table = next(table for table in to_tables([evaluation]) if "HD95" in table.title)
    assert table.rows[0][-1] == f"{MM:.1f} missed"


def test_slice_dice_is_that_of_masks(varied, varied_run):
    (evaluation,) = evaluate(varied_run, workers=0, gallery=0)
    assert (evaluation.num_cases, evaluation.num_patients) == (5, 3)
    assert [row[:3] for row in to_tables([evaluation])[-1].rows] == [("a", "3", "2"), ("b", "2", "1")]  # by group
    index = 0
    for case in random_cases():
        prediction, label = predicted(varied, case, (9, 9)), varied.stack(case)[1]
        for predicted_slice, other in zip(prediction, label, strict=True):
            for number in (1, 2):
                assert evaluation.slices.dice[index, number] == pytest.approx(
                    dice(predicted_slice == number, other == number), nan_ok=True
                )
            index += 1


def test_distances_are_measured_on_the_native_grid(tmp_path):
    drawn = random_cases(3) | training_cases()
    store = make_store(tmp_path / "store", drawn, spacing=(0.0, 1.6, 1.6), orientation="RAS")
    run = make_run(tmp_path / "run", store, size=(9, 9))
    (evaluation,) = evaluate(run, workers=1, gallery=0)
    for case in random_cases(3):
        predictions = predicted(store, case, (9, 9))
        native = store.native_label(case, store.preprocessing.join(predictions))
        assert native.shape == drawn[case].label.shape != store.case_info(case).shape
        for row in score_volume(native, drawn[case].label, 3, (2.0, 1.0, 1.0)):
            kept = {
                score.metric: score.value
                for score in evaluation.scores
                if (score.case, score.label) == (case, row.label)
            }
            assert (kept["dice"], kept["hd95"]) == pytest.approx((row.dice, row.hd95))


def test_galleries(outcomes, outcome_run):
    evaluate(outcome_run, workers=0, gallery=5)
    run = Run(outcome_run.folder)
    assert run.galleries == ["test-last", "train-last"]
    test, train = run.gallery("test-last"), run.gallery("train-last")
    assert len(test) == len(train) == 5
    first = test[next(iter(test))]
    worst = outcome_cases()["invented-a"]  # of the two with the lowest Dice, the first by name
    assert first.id.startswith("drawn/p-invented-a/invented-a/")
    number = int(first.id.rsplit("/", 1)[1])
    np.testing.assert_array_equal(first.prediction, worst.prediction[number])
    np.testing.assert_array_equal(first.label, worst.label[number])
    assert first.image.dtype == np.uint8
    assert first.spacing == (1.0, 1.0)
    # β rises along the table: the first label-dense slice has the smallest, the last label-sparse the highest CE.
    table = run.samples
    assert next(iter(train)) == table.id[~table.label_sparse][0]
    assert list(train)[1] == table.id[table.label_sparse][-1]
    assert {sample.rsplit("/", 3)[0] for sample in train} == {"drawn/t0", "drawn/t1"}


@pytest.mark.parametrize(
    ("axes", "upright"),
    [("SPL", "SPL"), ("SLP", "SPL"), ("IRA", "IPL"), ("ALI", "AIL"), ("PSR", "PIL"), ("RAS", "RIP"), ("LIP", "LIP")],
)
def test_slices_of_a_gallery_stand_upright_with_the_patients_right_on_the_left(tmp_path, axes, upright):
    label = np.random.default_rng(0).integers(0, 3, (2, 8, 6)).astype(np.uint8)
    drawn = {"a": DrawnCase(prediction=2 - label, label=label, patient="a", axes=axes, spacing=(3.0, 1.0, 2.0))}
    run = make_run(tmp_path / "run", make_store(tmp_path / "store", drawn | training_cases()), size=(8, 6))
    evaluate(run, workers=0, gallery=4)
    turn = ornt_transform(axcodes2ornt(axes), axcodes2ornt(upright))
    assert turn[0].tolist() == [0, 1]  # slices keep their numbers
    gallery = Run(tmp_path / "run").gallery("test-last")
    for sample, shown in gallery.items():
        expected = apply_orientation(label, turn)[int(sample.rsplit("/", 1)[1])]
        np.testing.assert_array_equal(shown.label, expected)
        np.testing.assert_array_equal(shown.prediction, 2 - expected)
        shades = np.unique(shown.image, return_inverse=True)[1].reshape(shown.image.shape)  # NumPy 1 flattens them
        np.testing.assert_array_equal(shades, shown.prediction)
        assert shown.spacing == ((1.0, 2.0) if turn[1][0] == 1 else (2.0, 1.0))
    assert gallery


def test_the_worst_slice_is_in_the_gallery_and_falsely_found_ones_too(outcome_run):
    (evaluation,) = evaluate(outcome_run, workers=0, gallery=100)
    ids = set(Run(outcome_run.folder).gallery("test-last"))
    assert {"drawn/p-missed/missed/0/1", "drawn/p-invented-a/invented-a/0/0"} <= ids
    assert len(Run(outcome_run.folder).gallery("train-last")) == 12  # all there are
    assert evaluation.slices.id.tolist()[0] == "drawn/p-found/found/0/0"


def test_a_run_without_weights_of_samples_has_a_gallery_too(outcomes, tmp_path):
    run = make_run(tmp_path / "run", outcomes, method="baseline")
    evaluate(run, workers=0, gallery=4)
    assert len(Run(tmp_path / "run").gallery("train-last")) == 4


def test_parts_and_checkpoints(outcomes, tmp_path):
    run = make_run(tmp_path / "run", outcomes, checkpoints=("last", "best"))
    (evaluation,) = evaluate(run, part="train", checkpoint="best", workers=0, gallery=3)
    assert evaluation.name == "train-strict-best"
    assert evaluation.num_cases == 2
    assert evaluation.summaries["dice"][-1].mean == 1.0
    assert evaluation.groups == {}  # both are of one
    assert Run(tmp_path / "run").galleries == ["train-best"]


def test_groups(outcome_run):
    (evaluation,) = evaluate(outcome_run, workers=0, gallery=0)
    assert set(evaluation.groups) == {"ill", "well"}
    assert evaluation.groups["ill"]["dice"].mean == pytest.approx(0.5)
    assert evaluation.groups["well"]["dice"].num_cases == 3


def test_json_has_null_for_what_is_no_number():
    assert strict({"a": (math.inf, -math.inf, math.nan, 1.5), "b": Path("c")}) == {
        "a": [None, None, None, 1.5],
        "b": "c",
    }


def test_cases_without_a_label_are_left_out(tmp_path, caplog):
    blank = np.zeros((2, 8, 8), dtype=np.uint8)
    drawn = outcome_cases() | training_cases()
    drawn["unknown"] = DrawnCase(prediction=blank, label=None, patient="u")
    run = make_run(tmp_path / "run", make_store(tmp_path / "store", drawn))
    (evaluation,) = evaluate(run, workers=0, gallery=0)
    assert evaluation.num_cases == 5
    assert "1 of 6 test cases have no label" in caplog.text


def test_a_part_without_any_label_is_refused_with_the_others(tmp_path):
    blank = np.zeros((2, 8, 8), dtype=np.uint8)
    drawn = training_cases() | {"unknown": DrawnCase(prediction=blank, label=None, patient="u")}
    run = make_run(tmp_path / "run", make_store(tmp_path / "store", drawn))
    with pytest.raises(DataError, match=r"none has a label.*\(`part`: train\); or train with --split stratified"):
        evaluate(run, workers=0, gallery=0)


def test_data_without_geometry_is_measured_in_voxels(tmp_path):
    drawn = outcome_cases() | training_cases()
    lost = {name: DrawnCase(**{**vars(case), "spacing": None}) for name, case in drawn.items()}
    run = make_run(tmp_path / "run", make_store(tmp_path / "store", lost))
    (evaluation,) = evaluate(run, workers=0, gallery=0)
    assert evaluation.unit == "voxel"
    assert values(evaluation, "hd95")[1] == pytest.approx(DIAGONAL)
    with pytest.raises(DataError, match="have lost it"):
        evaluate(run, spacing="mm", workers=0)


def test_a_patient_that_was_trained_on_is_refused(tmp_path):
    store = make_store(tmp_path / "store", outcome_cases() | training_cases())
    run = make_run(tmp_path / "run", store)
    drawn = outcome_cases() | training_cases()
    drawn["more"] = DrawnCase(**{**vars(drawn.pop("train-0")), "split": "test"})
    other = make_store(tmp_path / "other", drawn)
    with pytest.raises(DataError, match="drawn/t0 and 0 others"):
        evaluate(run, data=other.path, workers=0)
    assert Run(tmp_path / "run").evaluations == []


def test_another_store_than_the_runs_own(outcomes, outcome_run, tmp_path, caplog):
    moved = make_store(tmp_path / "elsewhere", outcome_cases() | training_cases())
    (evaluation,) = evaluate(outcome_run, data=moved.path, workers=0, gallery=0)
    assert evaluation.num_cases == 5
    assert caplog.text == ""
    scaled = make_store(tmp_path / "scaled", outcome_cases() | training_cases(), normalisation="min-max")
    evaluate(outcome_run, data=scaled.path, workers=0, gallery=0)
    assert "normalisation min-max instead of none" in caplog.text


def test_wrong_arguments(outcome_run):
    for options, error, words in (
        ({"metrics": ["dyce"]}, UnknownNameError, "'dice'"),
        ({"metrics": []}, ConfigError, "got none"),
        ({"part": "tset"}, ConfigError, "'tset'"),
        ({"convention": "strikt"}, UnknownNameError, "'strict'"),
        ({"device": "cuda:99"}, ConfigError, "Use auto"),
        ({"checkpoint": "bets"}, RunError, "'last'"),
    ):
        with pytest.raises(error, match=words):
            evaluate(outcome_run, workers=0, **options)
    with pytest.raises(ConfigError, match="at least one"):
        evaluate([])


# -- processes --------------------------------------------------------------------------------------------------------


def test_small_data_needs_no_processes():
    assert default_workers(1_000_000) == 0
    assert 1 <= default_workers(10**9) <= 8


def test_workers_do_without_torch():
    code = (
        "import sys; from adawac.evaluation.scorers import main; main(); "
        "print('torch' in sys.modules, 'scipy.spatial' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], input="", capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "True"]


def test_a_script_needs_no_guard_and_no_working_folder(outcome_run, tmp_path):
    """Modules of the working folder do not get in the way either."""
    (tmp_path / "numpy.py").write_text("raise RuntimeError('the wrong one')")
    script = tmp_path / "scripts" / "script.py"
    script.parent.mkdir()
    script.write_text(
        "import sys\n"
        f"sys.path.append({str(REPOSITORY)!r})\n"
        "from adawac.evaluation import evaluate\n"
        f"(found,) = evaluate({str(outcome_run.folder)!r}, workers=1, gallery=0, convention='adawac')\n"
        "print(found.summaries['dice'][0].mean)\n"
    )
    out = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(adawac.__file__).parents[1])},
    )
    assert float(out.stdout) == pytest.approx(0.36)


def test_a_worker_that_dies_is_reported(outcomes):
    with Scorers(1) as scorers:
        os.kill(scorers._processes[0].pid, signal.SIGKILL)
        future = scorers.submit(score_case, outcomes.path, "found", np.zeros((3, 8, 8), np.uint8), Rules())
        with pytest.raises(RunError, match=r"fewer `workers`"):
            future.result()


def test_errors_in_a_worker_are_reported(outcomes):
    with Scorers(1) as scorers:
        unknown = scorers.submit(score_case, outcomes.path, "nobody", np.zeros((3, 8, 8), np.uint8), Rules())
        with pytest.raises(DataError, match="'nobody'"):
            unknown.result()
        no_array = scorers.submit(score_case, outcomes.path, "found", None, Rules())
        with pytest.raises(RuntimeError, match=r"in score_case of .*store, found"):
            no_array.result()
        fine = scorers.submit(score_case, outcomes.path, "found", outcome_cases()["found"].prediction, Rules())
        assert (
            fine.result().rows == score_case(outcomes.path, "found", outcome_cases()["found"].prediction, Rules()).rows
        )


def test_more_cases_than_workers_can_take(outcomes):
    """The main process helps; none is lost, none is mixed up."""
    cases = outcome_cases()
    with Scorers(2) as scorers:
        asked = [
            (name, scorers.submit(score_case, outcomes.path, name, cases[name].prediction, Rules()))
            for name in ORDER * 6
        ]
        for name, future in asked:
            assert future.result().rows == score_case(outcomes.path, name, cases[name].prediction, Rules()).rows
