"""Suspected label errors: what is found, how it is ranked, and the list that a labeller works through."""

import csv

import numpy as np
import pytest
from PIL import Image

from adawac.errors import RunError
from adawac.evaluation.out_of_fold import Doubts, predict_out_of_fold
from adawac.report import collect
from adawac.report.label_errors import (
    LIST,
    average_precision,
    doubt_map,
    find_label_errors,
    mean_excess,
    measure_ranking,
    read_label_errors,
    score_label,
    write_label_errors,
)
from tests.networks.lookup_network import DrawnCase, make_run, make_store

SIZE = 16


def shapes(slices=6):
    """Return labels in which an organ and a lesion lie in all slices but the first two."""
    label = np.zeros((slices, SIZE, SIZE), dtype=np.uint8)
    label[2:, 2:8, 2:8] = 1
    label[2:, 10:14, 10:14] = 2
    return label


def read(path):
    """The rows of a list, as they stand."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def examined(tmp_path_factory):
    """A patient whose network is right everywhere, with a slice that was emptied and one whose classes were swapped."""
    folder = tmp_path_factory.mktemp("labels")
    truth = shapes()
    label = truth.copy()
    label[3] = 0
    label[4] = np.array([0, 2, 1])[truth[4]]
    cases = {
        "=sum": DrawnCase(prediction=truth, label=label, patient="p", split="val"),
        "other": DrawnCase(prediction=truth, label=truth, patient="q", split="train"),
    }
    store = make_store(folder / "store", cases)
    run = make_run(folder / "run", store, size=(SIZE, SIZE))
    predict_out_of_fold(run, folder / "kept")
    folders = {"=sum": folder / "kept"}
    return store, run, folders, find_label_errors(store, run, folders)


def test_planted_errors_are_found_first_and_described(examined):
    _, _, _, suspects = examined
    assert sorted(suspect.slice for suspect in suspects[:2]) == [3, 4]
    emptied = next(suspect for suspect in suspects if suspect.slice == 3)
    assert emptied.why == (
        "The network sees organ where the label says background (36 px) and lesion where the label says background "
        "(16 px)."
    )
    assert emptied.pixels == 52
    swapped = next(suspect for suspect in suspects if suspect.slice == 4)
    assert "lesion where the label says organ" not in emptied.why
    assert "organ where the label says lesion" in swapped.why
    assert all(0 < suspect.score < 1 for suspect in suspects)
    # This patient was not trained on by the run: there is nothing of that to tell.
    assert np.isnan([emptied.train_ce, emptied.beta]).all()


def test_samples_whose_label_the_network_shares_are_no_suspects(examined):
    _, _, _, suspects = examined
    assert len(suspects) == 2


def test_evidence_counts_by_the_length_of_the_border():
    assert score_label(0.2, 0.2, 0, 400) > score_label(0.2, 0.2, 40, 400) > score_label(0.1, 0.2, 40, 400)
    assert score_label(0.2, np.nan, 40, 400) == score_label(0.2, 0.2, 40, 400)
    assert score_label(0.2, 0.3, 40, 400) > score_label(0.2, 0.2, 40, 400)  # it could not be learned, either
    assert score_label(np.nan, np.nan, 0, 400) == 0.0
    # Twice as fine a grid has four times the pixels and twice the border.
    assert score_label(0.2, 0.2, 80, 1600) > score_label(0.2, 0.2, 40, 400)


def test_the_excess_is_the_log_of_how_much_likelier_the_prediction_is():
    certainty = np.array([[[255, 204], [128, 255]]], dtype=np.uint8)
    confidence = np.array([[[255, 51], [128, 0]]], dtype=np.uint8)
    doubts = Doubts(prediction=np.zeros((1, 2, 2), dtype=np.uint8), confidence=confidence, certainty=certainty)
    assert mean_excess(doubts, 0) == pytest.approx((np.log(4) + np.log(255 / 0.5)) / 4)


def test_only_plain_contradictions_are_drawn():
    certainty = np.full((1, 2, 2), 200, dtype=np.uint8)  # a quarter is 64
    confidence = np.array([[[200, 140], [72, 0]]], dtype=np.uint8)
    doubts = Doubts(prediction=np.zeros((1, 2, 2), dtype=np.uint8), confidence=confidence, certainty=certainty)
    np.testing.assert_allclose(doubt_map(doubts, 0), [[0, 0], [128 / 255, 200 / 255]])


def test_the_list_keeps_verdicts_and_is_safe_in_a_spreadsheet(examined, tmp_path):
    store, _, folders, suspects = examined
    written = write_label_errors(tmp_path / LIST, store, suspects, folders, pictures=1)
    assert [path.name for path in written] == [LIST, "label-errors"]
    rows = read(tmp_path / LIST)
    assert [row["case"] for row in rows] == ["'=sum", "'=sum"]
    assert [bool(row["picture"]) for row in rows] == [True, False]
    with Image.open(tmp_path / rows[0]["picture"]) as picture:
        assert suspects[0].why in picture.info["Title"]
    again = read_label_errors(tmp_path / LIST)
    assert [suspect.id for suspect in again] == [suspect.id for suspect in suspects]
    assert [suspect.score for suspect in again] == pytest.approx([suspect.score for suspect in suspects], rel=1e-3)
    text = (tmp_path / LIST).read_text(encoding="utf-8-sig")
    (tmp_path / LIST).write_text(text.replace("=sum-003.png,,", "=sum-003.png,wrong,empty"), encoding="utf-8-sig")
    write_label_errors(tmp_path / LIST, store, suspects[:1], folders, pictures=0)
    assert "wrong,empty" in (tmp_path / LIST).read_text(encoding="utf-8-sig")
    # What was judged is kept even where it is a suspect no longer.
    write_label_errors(tmp_path / LIST, store, [], folders, pictures=0)
    [row] = read(tmp_path / LIST)
    assert (row["rank"], row["id"], row["verdict"], row["note"]) == ("", suspects[0].id, "wrong", "empty")
    assert not list((tmp_path / "label-errors").glob("*.png"))
    assert read_label_errors(tmp_path / "none.csv") == []


def test_a_spreadsheet_may_have_saved_the_list_with_semicolons(examined, tmp_path):
    store, _, folders, suspects = examined
    write_label_errors(tmp_path / LIST, store, suspects, folders, pictures=0)
    rows = read(tmp_path / LIST)
    rows[1] |= {"verdict": "wrong; surely", "note": "x"}
    with (tmp_path / LIST).open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=";")
        writer.writeheader()
        writer.writerows(rows)
    write_label_errors(tmp_path / LIST, store, suspects, folders, pictures=0)
    assert read(tmp_path / LIST) == rows
    for damage in (b"rank,verdict\n1,wrong\n", "Prüfung".encode("cp1252")):
        (tmp_path / LIST).write_bytes(damage)
        with pytest.raises(RunError, match="Save it as CSV in UTF-8, or move it away"):
            write_label_errors(tmp_path / LIST, store, suspects, folders, pictures=0)
        assert (tmp_path / LIST).read_bytes() == damage


def test_a_report_takes_the_list_in_place_of_what_one_run_knows(examined, tmp_path):
    store, run, folders, suspects = examined
    # The run was trained on the other patient: of its list, samples that it does not have are left out.
    write_label_errors(run.folder / LIST, store, suspects, folders, pictures=0)
    try:
        [described] = collect([run.folder]).data["runs"]
    finally:
        (run.folder / LIST).unlink()
    assert described["suspects"] == []
    assert "never saw the patient" in described["suspects_remark"]


def test_average_precision_is_that_of_a_plain_loop():
    rng = np.random.default_rng(0)
    ranked = [str(number) for number in range(40)]
    wrong = set(rng.choice(ranked, 9, replace=False).tolist()) | {"never listed"}
    precisions = [
        sum(sample in wrong for sample in ranked[:place]) / place
        for place, name in enumerate(ranked, start=1)
        if name in wrong
    ]
    assert average_precision(ranked, wrong) == pytest.approx(sum(precisions) / len(wrong))
    assert np.isnan(average_precision(ranked, []))
    assert measure_ranking([], wrong)["average_precision"] == 0  # no label is suspected
    measured = measure_ranking(ranked, wrong, (10, 100))
    assert [top["count"] for top in measured["first"]] == [10]
    hits = sum(sample in wrong for sample in ranked[:10])
    assert measured["first"][0] == {"count": 10, "precision": hits / 10, "recall": hits / 10}
