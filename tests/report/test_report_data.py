import base64
import gzip
import io
import json
import shutil
import subprocess
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from adawac.data.task import class_colour
from adawac.errors import MissingFileError, RunError
from adawac.figures.style import gradient_colours
from adawac.report import Report, collect
from adawac.report.blobs import MISSING, SIDE, Blobs, draw_area, draw_image, draw_outline, draw_picture, quantise, thin
from adawac.report.contents import rounded
from adawac.runs import (
    Bin,
    Calibration,
    Reliability,
    Run,
    RunWriter,
    Score,
    Slice,
    example_run,
    write_calibration,
    write_gallery,
    write_scores,
)


def decode(codes: np.ndarray, scale: dict[str, Any]) -> np.ndarray:
    """The scale as its docstring states it, and as the page's script reads it."""
    low, high = scale["low"], scale["high"]
    code = codes.astype(np.float64)
    if scale["kind"] == "log":
        values = np.where(codes == 0, 0, low * (high / low) ** ((code - 1) / 65533))
    else:
        values = low + (high - low) * code / 65534
    return np.where(codes == MISSING, np.nan, values)


def field(report: Report, run: int, name: str) -> np.ndarray:
    part = report.data["runs"][run]
    content = gzip.decompress(base64.b64decode(report.blobs[part["atlas"]["fields"][name]["blob"]]))
    shape = len(part["samples"]["id"]), len(part["atlas"]["epochs"])
    return decode(np.frombuffer(content, "<u2").reshape(shape), part["atlas"]["fields"][name])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    example_run(root / "baseline", method="baseline", slices=10)
    example_run(root / "adawac", slices=10)
    example_run(root / "stopped", slices=10, status="interrupted")
    return [root / "baseline", root / "adawac", root / "stopped"]


@pytest.fixture(scope="module")
def report(folders: list[Path]) -> Report:
    return collect(folders)


def test_everything_is_plain_json(report: Report):
    assert json.loads(json.dumps(report.data, allow_nan=False))["runs"][1]["name"] == "adawac"


def test_the_atlas_is_the_history(folders: list[Path], report: Report):
    history = Run(folders[1]).history
    np.testing.assert_allclose(field(report, 1, "beta"), history["beta"].T, atol=1 / 65534)
    for name in ("ell_ce", "reg_ac"):
        np.testing.assert_allclose(field(report, 1, name), history[name].T, rtol=1e-3)
    assert report.data["runs"][1]["atlas"]["epochs"] == list(range(1, 21))
    assert list(report.data["runs"][0]["atlas"]["fields"]) == ["ell_ce"]  # the baseline weighs nothing


def test_samples_and_headline(folders: list[Path], report: Report):
    table, part = Run(folders[1]).samples, report.data["runs"][1]
    assert part["samples"]["id"] == table.id.tolist()
    assert [part["samples"]["cases"][number] for number in part["samples"]["case"]] == table.case.tolist()
    np.testing.assert_allclose(part["samples"]["share"], 1 - table.fraction[:, 0], atol=1e-6)
    assert part["headline"] == {
        "samples": 30,
        "cases": 3,
        "sparse": 15,
        "dense": 15,
        "weighs": "both",
        "sparse_low": 15,
        "dense_high": 15,
    }
    assert report.data["runs"][0]["headline"]["weighs"] == "nothing"
    assert "sparse_low" not in report.data["runs"][0]["headline"]
    assert part["verdict"].startswith("β tells label-dense from label-sparse samples")
    assert report.data["runs"][0]["verdict"] is None
    assert report.data["outcome"].startswith("adawac: β ended near 0 (below 0.2) on ")
    assert "highest first: " in report.data["outcome"]


def test_unlabelled_and_partly_ignored_samples_are_marked(tmp_path: Path):
    example_run(tmp_path / "run", slices=10)
    table = Run(tmp_path / "run").samples
    assert table is not None
    unlabelled, ignored = np.arange(len(table)) % 4 == 1, np.arange(len(table)) % 4 == 2
    fraction = np.where(unlabelled[:, None], np.nan, table.fraction)
    fraction[ignored, 0] -= 0.25
    changed = replace(table, fraction=fraction)
    changed.write_csv(tmp_path / "run" / "samples.csv")
    part = collect([tmp_path / "run"]).data["runs"][0]
    assert [share is None for share in part["samples"]["share"]] == unlabelled.tolist()
    assert part["samples"]["ignored"] == np.flatnonzero(ignored).tolist()
    headline = part["headline"]
    assert (headline["unlabelled"], headline["partly_ignored"]) == (unlabelled.sum(), ignored.sum())
    assert headline["sparse"] + headline["dense"] + headline["unlabelled"] == len(table)
    assert not {suspect["row"] for suspect in part["suspects"]} & set(np.flatnonzero(unlabelled).tolist())


def test_weights_without_consistency_send_nothing_there(tmp_path: Path):
    run = example_run(tmp_path / "run", slices=6, epochs=4)
    fields = {name: run.history[name] for name in ("ell_ce", "beta")}
    (tmp_path / "run" / "history.bin").unlink()
    with RunWriter(tmp_path / "run", resume=True) as writer:
        for index in range(4):
            values = {name: series[index] for name, series in fields.items()}
            writer.log_history(index + 1, np.arange(18), reg_ac=np.zeros(18), **values)
    [part] = collect([tmp_path / "run"]).data["runs"]
    assert part["headline"]["weighs"] == "ce"
    assert "sparse_low" not in part["headline"]
    assert part["verdict"] is None


def test_scores_side_by_side(folders: list[Path], report: Report):
    [dice, hd95] = report.data["scores"]
    assert (dice["metric"], dice["higher_is_better"], dice["runs"]) == ("dice", True, [0, 1])
    assert hd95["higher_is_better"] is False
    assert (dice["unit"], hd95["unit"]) == ("", "mm")
    mean, liver, _ = dice["rows"]
    assert (mean["label"], liver["class_name"]) == (None, "liver")
    for index, folder in enumerate(folders[:2]):
        scores = [score for score in Run(folder).scores("test-strict") if score.metric == "dice"]
        assert mean["cells"][index]["mean"] == pytest.approx(np.mean([score.value for score in scores]), abs=1e-5)
        assert mean["cells"][index]["low"] <= mean["cells"][index]["mean"] <= mean["cells"][index]["high"]
    [difference] = mean["differences"]
    assert difference["mean"] == pytest.approx(mean["cells"][1]["mean"] - mean["cells"][0]["mean"], abs=1e-5)
    assert difference["patients"] == 3


def test_distances_in_two_units_are_not_compared(tmp_path: Path):
    folders = [example_run(tmp_path / name, slices=6, method=name).folder for name in ("one", "two", "three")]
    scores = [replace(score, unit="voxel") if score.unit else score for score in Run(folders[1]).scores("test-strict")]
    with RunWriter(folders[1], resume=True) as writer:
        writer.write_scores("test-strict", scores)
    tables = collect(folders).data["scores"]
    assert [(table["metric"], table["unit"], table["runs"]) for table in tables] == [
        ("dice", "", [0, 1, 2]),
        ("hd95", "mm", [0, 2]),
        ("hd95", "voxel", [1]),
    ]
    assert [len(table["rows"][0]["differences"]) for table in tables] == [2, 1, 0]


def test_evaluations_with_the_same_numbers_share_a_table(tmp_path: Path):
    folders = []
    for name, changed in (("one", 0.0), ("two", 0.25)):
        run = example_run(tmp_path / name, slices=6, method=name)
        folders.append(run.folder)
        scores = run.scores("test-strict")
        with RunWriter(run.folder, resume=True) as writer:
            writer.write_scores("test-other", [replace(score, convention="other") for score in scores])
            far = [
                replace(score, convention="far", value=score.value + changed * (score.metric == "hd95"))
                for score in scores
            ]
            writer.write_scores("test-third", far)
    tables = collect(folders).data["scores"]
    assert [(table["metric"], table["convention"]) for table in tables] == [
        ("dice", "other"),
        ("hd95", "other"),
        ("hd95", "far"),  # one run has other numbers here
    ]
    named = [[other["convention"] for other in table["also"]] for table in tables]
    assert [sorted(conventions) for conventions in named] == [["far", "strict"], ["strict"], []]
    assert {other["evaluation"] for other in tables[0]["also"]} == {"test-strict", "test-third"}
    assert len(collect(folders[:1]).data["scores"]) == 2


def test_data_sets_have_tables_of_their_own(tmp_path: Path):
    """All four runs have patients of the same names, and two have other classes."""
    folders = []
    for name, dataset in (("a", "here"), ("b", "there"), ("c", "here"), ("d", "there")):
        run = example_run(tmp_path / name, slices=6, method=name)
        folders.append(run.folder)
        path = run.folder / "data.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "dataset": dataset}))
        if dataset == "there":
            write_scores(
                run.folder, "test-strict", [replace(score, class_name="x") for score in run.scores("test-strict")]
            )
    dice = [table for table in collect(folders).data["scores"] if table["metric"] == "dice"]
    assert [(table["dataset"], table["runs"]) for table in dice] == [("here", [0, 2]), ("there", [1, 3])]
    assert [{row["class_name"] for row in table["rows"]} & {"x", "liver"} for table in dice] == [{"liver"}, {"x"}]
    assert [len(table["rows"][0]["differences"]) for table in dice] == [1, 1]


def test_a_class_is_compared_with_its_like(tmp_path: Path):
    folders = [example_run(tmp_path / name, slices=6, method=name).folder for name in ("one", "two")]
    scores = [
        replace(score, class_name=f"{score.class_name} of two") for score in Run(folders[1]).scores("test-strict")
    ]
    write_scores(folders[1], "test-strict", scores)
    rows = {row["class_name"]: row for row in collect(folders).data["scores"][0]["rows"]}
    assert [cell is None for cell in rows["liver"]["cells"]] == [False, True]
    assert [cell is None for cell in rows["liver of two"]["cells"]] == [True, False]
    assert rows["liver"]["differences"] == rows["liver of two"]["differences"] == [None]


def test_curves_come_from_the_history_where_they_were_not_logged(folders: list[Path], report: Report):
    run, curves = Run(folders[1]), report.data["runs"][1]["curves"]
    assert curves["epochs"] == list(range(1, 21))
    dense = run.history["beta"][:, ~run.samples.label_sparse].mean(axis=1)
    np.testing.assert_allclose(curves["series"]["beta_dense"], dense, rtol=1e-5)
    assert curves["series"]["beta_auc"][-1] == 1
    assert "beta_auc" not in report.data["runs"][0]["curves"]["series"]


def test_pictures_are_merged_by_sample(folders: list[Path], report: Report):
    names = list(Run(folders[1]).gallery("test"))
    assert [picture["id"] for picture in report.data["pictures"]] == names
    for picture in report.data["pictures"]:
        assert set(picture["predictions"]) == {"0", "1"}
        image = Image.open(io.BytesIO(base64.b64decode(report.blobs[picture["image"]])))
        assert image.size == (64, 64)
    assert collect(folders, pictures=2).data["pictures"] == report.data["pictures"][:2]
    assert collect(folders, pictures=0).data["pictures"] == []


def test_pictures_of_suspects_come_first(tmp_path: Path):
    run = example_run(tmp_path / "run", slices=10)
    ids = run.samples.id
    history = run.history["ell_ce"]
    (tmp_path / "run" / "history.bin").unlink()
    with RunWriter(tmp_path / "run", resume=True) as writer:
        for epoch, row in zip(range(1, 21), history, strict=True):
            row[0] = 5.0  # an empty slice that the network fights
            writer.log_history(epoch, np.arange(30), ell_ce=row)
    image = np.zeros((8, 8), dtype=np.uint8)
    write_gallery(tmp_path / "run", "more", [Slice(id=ids[3], image=image), Slice(id=ids[0], image=image)])
    report = collect([tmp_path / "run"])
    assert [suspect["row"] for suspect in report.data["runs"][0]["suspects"]] == [0]
    assert report.data["pictures"][0]["id"] == ids[0]
    assert report.data["pictures"][0]["predictions"] == {}


def test_missing_parts_are_listed(report: Report):
    parts = {entry["part"]: entry for entry in report.data["runs"][2]["missing"]}
    assert parts["scores"]["why"] == "there is none"
    assert "adawac evaluate" in parts["gallery"]["remedy"]
    assert all(part["normal"] for part in parts.values())  # nobody has evaluated it yet: no reason to worry
    assert report.data["runs"][2]["status"] == "interrupted"
    assert report.data["runs"][1]["missing"] == []


@pytest.mark.parametrize("lost", ["samples.csv", "history.bin", "metrics.jsonl", "config.yaml", "environment.json"])
def test_a_folder_that_lost_a_file_gives_the_rest(tmp_path: Path, lost: str, caplog: pytest.LogCaptureFixture):
    example_run(tmp_path / "run", slices=6)
    (tmp_path / "run" / lost).unlink()
    [part] = collect([tmp_path / "run"]).data["runs"]
    assert {entry["part"]: entry["normal"] for entry in part["missing"]} == {lost: False}
    assert part["missing"][0]["why"] == "it is not there"
    assert f"{lost}: it is not there" in caplog.text
    assert (part["atlas"] is None) == (lost in ("samples.csv", "history.bin"))
    assert bool(part["settings"]) == (lost != "config.yaml")


def test_damaged_results_and_half_written_records(tmp_path: Path):
    example_run(tmp_path / "run", slices=6)
    (tmp_path / "run" / "gallery" / "test.npz").write_bytes(b"PK no gallery")
    (tmp_path / "run" / "scores" / "test-strict.csv").write_text("label\nx\n")
    for name in ("history.bin", "metrics.jsonl"):
        path = tmp_path / "run" / name
        path.write_bytes(path.read_bytes()[:-7])
    report = collect([tmp_path / "run"])
    [part] = report.data["runs"]
    assert len(part["atlas"]["epochs"]) == 19
    assert report.data["pictures"] == report.data["scores"] == []
    whys = " ".join(entry["why"] for entry in part["missing"] if not entry["normal"])
    assert "test.npz" in whys
    assert "test-strict.csv" in whys


def test_a_run_of_an_older_version_with_less_in_it(tmp_path: Path):
    from adawac.runs.history import encode

    example_run(tmp_path / "run", slices=6)
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    del info["format_version"], info["summary"], info["epochs"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(info))
    (tmp_path / "run" / "history.bin").write_bytes(encode(1, {"ell_ce": np.ones(18)}))
    (tmp_path / "run" / "config.yaml").write_text("an_old_setting: 3\n")
    [part] = collect([tmp_path / "run"]).data["runs"]
    assert part["format_version"] == 0
    assert part["settings"] == [["an_old_setting", "3"]]
    assert list(part["atlas"]["fields"]) == ["ell_ce"]
    assert "config.yaml" in {entry["part"] for entry in part["missing"]}


def test_a_run_that_has_just_begun(tmp_path: Path):
    from adawac.config import TrainConfig

    with RunWriter(tmp_path / "run", TrainConfig()):
        [part] = collect([tmp_path / "run"]).data["runs"]
    assert (part["status"], part["atlas"], part["suspects"], part["verdict"]) == ("running", None, [], None)
    assert {entry["part"]: entry["normal"] for entry in part["missing"]}["history.bin"]


def test_advice_and_commands_are_for_the_runs_at_hand(tmp_path: Path):
    folders = [example_run(tmp_path / name, slices=10, method="adawac").folder for name in ("at once", "held")]
    for folder, held in zip(folders, (0, 4), strict=True):
        (folder / "config.yaml").write_text(f"method: {{name: adawac, hold_epochs: {held}}}\n")
        history = Run(folder).history
        fields = {name: history[name] for name in ("ell_ce", "reg_ac", "beta")}
        fields["beta"][:] = np.linspace(0.5, 0.01, len(history))[:, None]
        (folder / "history.bin").unlink()
        with RunWriter(folder, resume=True) as writer:
            for index in range(len(history)):
                values = {name: series[index] for name, series in fields.items()}
                writer.log_history(index + 1, np.arange(30), **values)
    data = collect(folders).data
    remarks = [run["suspects_remark"] for run in data["runs"]]
    assert "Try method.hold_epochs=3, or" in remarks[0]
    assert "Try more than method.hold_epochs=4, or" in remarks[1]
    assert data["command"] == "adawac report 'at once' held --out report.html"
    assert not any("adawac report" in command["command"] for run in data["runs"] for command in run["commands"])


def test_no_run_at_all(tmp_path: Path):
    with pytest.raises(MissingFileError, match=r"no run\.json"):
        collect([tmp_path])
    with pytest.raises(RunError, match="Expected a run folder, but got none"):
        collect([])


def test_names_tell_runs_apart(tmp_path: Path):
    for folder in ("a/run", "b/run", "c"):
        example_run(tmp_path / folder, slices=4, epochs=1)
    report = collect([tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "c"])
    assert [run["name"].split("/")[-2:] for run in report.data["runs"]][:2] == [["a", "run"], ["b", "run"]]
    twice = collect([tmp_path / "c", tmp_path / "c"])
    assert [run["name"] for run in twice.data["runs"]] == ["c (1)", "c (2)"]


def test_home_folder_is_removed_from_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    example_run(tmp_path / "run", slices=4, epochs=1)
    monkeypatch.setenv("HOME", "/home/somebody")
    path = tmp_path / "run" / "config.yaml"
    path.write_text("data:\n  store: /home/somebody/store\n")
    [part] = collect([tmp_path / "run"]).data["runs"]
    assert part["settings"] == [["data.store", "~/store"]]


@given(st.lists(st.floats(0, 1e6, width=32) | st.just(float("nan")), min_size=1, max_size=50))
def test_losses_keep_their_relative_size(values: list[float]):
    array = np.array(values)
    codes, scale = quantise(array, "log")
    back = decode(codes, scale)
    np.testing.assert_array_equal(np.isnan(back), np.isnan(array))
    known = array[~np.isnan(array)]
    np.testing.assert_allclose(back[~np.isnan(array)], known, rtol=1e-3, atol=known.max(initial=0) * 1e-9)


def test_other_numbers_have_a_scale_too():
    for values in (np.array([-2.0, 3.0, np.inf]), np.array([0.0, 0.0]), np.array([np.nan])):
        codes, scale = quantise(values, "log")
        finite = np.isfinite(values)
        np.testing.assert_allclose(decode(codes, scale)[finite], values[finite], atol=1e-4)
        assert (codes[~finite] == MISSING).all()


def test_thinning_keeps_the_ends_and_what_it_must():
    rows, epochs = thin(1324, 360, 500_000)
    assert (len(rows), len(epochs)) == (1324, 360)
    rows, epochs = thin(1000, 1000, 100_000)
    assert len(rows) == 1000
    assert (epochs[0], epochs[-1], len(epochs)) == (0, 999, 100)
    rows, epochs = thin(100_000, 200, 300_000, keep=[17, 99_998])
    assert {0, 17, 99_998, 99_999} <= set(rows.tolist())
    assert len(rows) * len(epochs) < 320_000
    assert [len(kept) for kept in thin(0, 0, 10)] == [0, 0]


def test_large_runs_say_that_they_were_thinned(folders: list[Path], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("adawac.report.contents._CELLS", 300)
    [part] = collect([folders[1]]).data["runs"]
    assert part["thinned"] == {"samples": [15, 30], "epochs": [20, 20]}
    assert len(part["samples"]["id"]) == 15


def test_pictures_keep_their_colours(tmp_path: Path):
    rows, columns = np.mgrid[:40, :60]
    image = np.stack([rows * 6, columns * 4, np.full_like(rows, 90)]).astype(np.uint8)
    blobs = Blobs()
    drawn = draw_picture(Slice(id="a", image=image, in_colour=True), blobs)
    thumbnail = Image.open(io.BytesIO(base64.b64decode(blobs.texts[drawn["image"]])))
    assert (thumbnail.format, thumbnail.mode, thumbnail.size, drawn["channels"]) == ("JPEG", "RGB", (60, 40), 1)
    assert blobs.texts[drawn["image"]].startswith("/9j/")  # by which the page knows it
    assert np.abs(np.asarray(thumbnail).astype(int) - np.moveaxis(image, 0, 2)).mean() < 3
    scan = draw_picture(Slice(id="a", image=image), blobs)
    assert Image.open(io.BytesIO(base64.b64decode(blobs.texts[scan["image"]]))).mode == "L"
    assert scan["channels"] == 3
    shares = Slice(id="a", image=(image / 255).astype(np.float32), in_colour=True)
    np.testing.assert_array_equal(shares.colours, np.moveaxis(image, 0, 2))


def test_detection_of_empty_cases_is_a_table_with_differences(tmp_path: Path):
    truth = {f"c{number}": number < 4 for number in range(10)}
    found = {"first": {"c0", "c1", "c9"}, "second": {"c0", "c1", "c2"}}
    runs = []
    for name, cases in found.items():
        RunWriter(tmp_path / name, epochs=1).close("finished")
        scores = []
        for case, present in truth.items():
            outcome = {(True, False): "missed", (False, True): "invented", (False, False): "absent"}.get(
                (present, case in cases)
            )
            for metric in ("missed", "invented", "absent", "dice"):
                value = float(outcome == metric)
                scores.append(Score(patient=case, case=case, label=1, class_name="stain", metric=metric, value=value))
        write_scores(tmp_path / name, "test-strict", scores)
        runs.append(tmp_path / name)
    tables = {table["metric"]: table for table in collect(runs).data["scores"]}
    (sensitivity,), (specificity,) = (tables[f"case_{name}"]["rows"] for name in ("sensitivity", "specificity"))
    assert [cell["mean"] for cell in sensitivity["cells"]] == [0.5, 0.75]
    assert [cell["mean"] for cell in specificity["cells"]] == [rounded(5 / 6), 1.0]
    assert (sensitivity["cells"][0]["patients"], specificity["cells"][0]["patients"]) == (4, 6)
    assert sensitivity["differences"][0]["mean"] == 0.25
    assert tables["case_sensitivity"]["higher_is_better"]


def test_thumbnails(tmp_path: Path):
    rng = np.random.default_rng(0)
    wide = Image.open(io.BytesIO(draw_image(rng.normal(size=(2, 300, 600)))))
    assert (wide.size, wide.mode) == ((SIDE, SIDE // 2), "L")
    odd = np.full((5, 5), np.nan)
    odd[2, 2] = np.inf
    assert Image.open(io.BytesIO(draw_image(odd))).size == (5, 5)
    labels = np.zeros((7, 9), dtype=np.uint8)
    labels[2:5, 3:6] = 2
    area = Image.open(io.BytesIO(draw_area(labels)))
    np.testing.assert_array_equal(np.asarray(area), labels)  # an index picture: the classes themselves
    colours = np.asarray(area.convert("RGBA"))
    assert colours[0, 0, 3] == 0
    assert f"#{bytes(colours[3, 4, :3].tolist()).hex()}" == class_colour(2).lower()
    outline = np.asarray(Image.open(io.BytesIO(draw_outline(labels))))
    factor = SIDE // 9
    assert outline.shape == (7 * factor, 9 * factor)
    assert outline[2 * factor, 4 * factor] == 2
    assert outline[3 * factor + 5, 4 * factor + 5] == 0  # the inside is empty


def test_maps_and_blobs():
    pale, ends = gradient_colours("diverging")[127], gradient_colours("diverging")
    assert sum(pale) > max(sum(ends[0]), sum(ends[-1]))
    lightness = [0.3 * red + 0.59 * green + 0.11 * blue for red, green, blue in gradient_colours("sequential")]
    assert lightness == sorted(lightness)
    blobs = Blobs()
    assert [blobs.add(b"a"), blobs.add(b"b"), blobs.add(b"a")] == [0, 1, 0]


def test_a_damaged_record_is_named_on_the_page_and_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    folder = example_run(tmp_path / "run", slices=10, epochs=6).folder
    whole = (folder / "history.bin").read_bytes()
    (folder / "history.bin").write_bytes(whole[: len(whole) // 2])
    (part,) = (part for part in collect([folder]).data["runs"][0]["missing"] if part["part"] == "history.bin")
    assert not part["normal"]
    assert "of 6" in part["why"]
    assert "history.bin" in caplog.text
    caplog.clear()
    (folder / "history.bin").write_bytes(b"\0" * len(whole))
    (folder / "samples.csv").write_text("id\n")
    collect([folder])
    assert "history.bin: it is damaged from its beginning on" in caplog.text
    assert "samples.csv: it cannot be read" in caplog.text


def test_whole_numbers_are_never_rounded(tmp_path: Path):
    seed = 12345678901234567890  # more than a double holds
    folder = example_run(tmp_path / "run", slices=10, epochs=2).folder
    info = json.loads((folder / "run.json").read_text())
    info["summary"] |= {"seed": seed, "lr": 0.25}
    (folder / "run.json").write_text(json.dumps(info))
    with RunWriter(folder, resume=True) as run:
        run.log_metrics(2, {"skipped": 1234567})
    part = collect([folder]).data["runs"][0]
    assert part["summary"]["seed"] == str(seed)
    assert part["summary"]["lr"] == 0.25
    assert part["curves"]["series"]["skipped"][-1] == 1234567


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_page_rounds_fractions_and_no_whole_numbers():
    text = (files("adawac.report") / "assets" / "elements.js").read_text(encoding="utf-8")
    values = "[1234, 1234567, -20, 0, 1234.5678, 0.00012345, 1e300, null].map(number)"
    shown = subprocess.run(
        ["node", "-e", f"{text}\nconsole.log(JSON.stringify({values}))"], check=True, capture_output=True
    ).stdout
    assert json.loads(shown) == ["1234", "1234567", "−20", "0", "1230", "1.2e−4", "1.0e+300", "–"]


def test_a_calibrated_run_shows_how_reliable_its_probabilities_are(tmp_path: Path) -> None:
    run = example_run(tmp_path / "run")
    assert collect([run]).data["runs"][0]["calibration"] is None
    bins = (Bin(low=0.6, high=2 / 3, count=100, confidence=0.63, accuracy=0.5),)
    reliability = Reliability(cross_entropy=0.4, ece=0.01, ece_foreground=0.13, bins=bins)
    facts = {"checkpoint": "last", "epoch": 20, "tta": False, "part": "val", "cases": 3, "pixels": 900}
    calibration = Calibration(temperature=1.5, before=reliability, after=reliability, **facts)
    write_calibration(run.folder, calibration)
    assert Run(run.folder).calibration == calibration
    shown = collect([run.folder]).data["runs"][0]["calibration"]
    assert (shown["temperature"], shown["before"]["bins"][0]["accuracy"]) == (1.5, 0.5)
    (run.folder / "calibration.json").write_text('{"temperature": "hot"}')
    part = collect([run.folder]).data["runs"][0]
    assert part["calibration"] is None
    assert any("calibration" in entry["why"] for entry in part["missing"])
