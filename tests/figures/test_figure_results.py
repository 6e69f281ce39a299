"""`overlays` and `scores`: the slices and numbers of an evaluation, run beside run."""

import logging
import shutil
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex, to_rgb

from adawac.data.task import class_colour
from adawac.errors import ConfigError, RunError
from adawac.figures import compose
from adawac.figures.overlays import painted, slice_dice
from adawac.runs import Run, Score, Slice, example_run, write_gallery, write_scores


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Run]:
    root = tmp_path_factory.mktemp("runs")
    methods = {"baseline": "baseline", "adawac": "adawac", "again": "adawac"}
    return [
        example_run(root / folder, method=method, seed=seed, epochs=2, slices=12, size=32)
        for seed, (folder, method) in enumerate(methods.items())
    ]


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def title(figure) -> str:
    return " ".join(figure.get_suptitle().split())


def copied(run: Run, folder) -> Run:
    shutil.copytree(run.folder, folder)
    return Run(folder)


# overlays


def test_overlays_show_scan_truth_and_every_run(runs: list[Run]) -> None:
    picture = compose("overlays", runs, count=2)
    columns = 5
    grid = np.array(picture.figure.axes).reshape(2, columns)
    assert [axes.get_title(loc="center") for axes in grid[0]] == [
        "scan",
        "ground truth",
        "baseline",
        "adawac, seed 1",
        "adawac, seed 2",
    ]
    first = runs[0].gallery("test")
    ranked = sorted(
        (sample for sample in first if not np.isnan(slice_dice(first[sample]))),
        key=lambda sample: slice_dice(first[sample]),
    )
    colours = {1: class_colour(1), 2: class_colour(2)}
    for panels, sample in zip(grid, ranked, strict=False):
        np.testing.assert_array_equal(panels[0].images[0].get_array(), first[sample].image)
        assert len(panels[0].images) == 1
        np.testing.assert_array_equal(panels[1].images[1].get_array(), painted(first[sample].label, colours))
        for axes, run in zip(panels[2:], runs, strict=True):
            shown_slice = run.gallery("test")[sample]
            np.testing.assert_array_equal(axes.images[1].get_array(), painted(shown_slice.prediction, colours))
            assert axes.texts[0].get_text() == f"DSC {slice_dice(shown_slice):.2f}"
        assert panels[0].get_ylabel() == f"{sample.split('/')[2]}\nslice {sample.split('/')[4]}"
    assert legend(picture.figure) == ["liver", "kidney"]
    shown = [to_hex(patch.get_facecolor()) for patch in picture.figure.legends[0].get_patches()]
    assert shown == [colour.lower() for colour in colours.values()]
    assert title(picture.figure) == "Worst 2 of 3 slices by slice DSC (baseline), gallery test"


def test_a_slice_is_scored_over_the_classes_that_are_there_or_were_found() -> None:
    label = np.array([[1, 1, 0, 0], [0, 0, 0, 0]])
    prediction = np.array([[1, 0, 0, 2], [0, 0, 0, 0]])
    shown = Slice(id="x", image=label, label=label, prediction=prediction)
    assert slice_dice(shown) == pytest.approx((2 / 3 + 0) / 2)
    assert np.isnan(slice_dice(Slice(id="x", image=label, label=0 * label, prediction=0 * label)))
    assert np.isnan(slice_dice(Slice(id="x", image=label, label=label)))


@pytest.mark.parametrize(
    ("pick", "expected", "words"),
    [
        ("worst", ["0", "1"], "Worst 2 of 5 slices by slice DSC"),
        ("best", ["4", "3"], "Best 2 of 5 slices by slice DSC"),
        ("median", ["1", "2"], "Middle 2 of 5 slices by slice DSC"),
    ],
)
def test_slices_are_picked_by_their_score(runs: list[Run], tmp_path, pick: str, expected, words: str) -> None:
    run = copied(runs[0], tmp_path / "run")
    label = np.zeros((6, 6), dtype=np.uint8)
    label[:, :5] = 1
    slices = []
    for number in (3, 0, 4, 2, 1):
        prediction = np.zeros_like(label)
        prediction[:, : number + 1] = 1
        slices.append(Slice(id=f"d/p/c/0/{number}", image=label, label=label, prediction=prediction))
    slices.append(Slice(id="d/p/c/0/9", image=label, label=0 * label, prediction=0 * label))  # has no score
    write_gallery(run.folder, "test-picked", slices)
    figure = compose("overlays", run, pick=pick, count=2, gallery="test-picked").figure
    rows = np.array(figure.axes).reshape(2, 3)[:, 0]
    assert [axes.get_ylabel().split()[-1] for axes in rows] == expected
    assert title(figure).startswith(words)
    everything = compose("overlays", run, pick=pick, count=50, gallery="test-picked").figure
    assert len(everything.axes) == 15
    assert title(everything).startswith("All 5 slices, ")


def test_pixels_have_their_size_in_millimetres_and_the_first_channel_is_shown(runs: list[Run], tmp_path) -> None:
    run = copied(runs[0], tmp_path / "run")
    image = np.random.default_rng(0).normal(size=(3, 8, 12)).astype(np.float32)
    label = np.ones((8, 12), dtype=np.uint8)
    write_gallery(run.folder, "test", [Slice(id="a", image=image, label=label, prediction=label, spacing=(3.0, 1.5))])
    figure = compose("overlays", run).figure
    for axes in figure.axes:
        assert axes.get_aspect() == 2.0
        np.testing.assert_array_equal(axes.images[0].get_array(), image[0])


def test_what_a_gallery_lacks_is_said_in_its_place(runs: list[Run], tmp_path) -> None:
    first, second = copied(runs[0], tmp_path / "mine"), copied(runs[1], tmp_path / "other")
    label = np.ones((4, 4), dtype=np.uint8)
    write_gallery(first.folder, "test", [Slice(id="a", image=label, label=label, prediction=label)])
    write_gallery(second.folder, "test", [Slice(id="b", image=label)])
    figure = compose("overlays", [first, second], ids=["a", "b"]).figure
    said = [" ".join(text.get_text().split()) for axes in figure.axes for text in axes.texts]
    missing = "no prediction in this run's gallery"
    assert said == ["DSC 1.00", missing, "no ground truth", missing, missing]


def test_the_edge_of_a_class_is_opaque_and_its_inside_is_not() -> None:
    classes = np.zeros((7, 7), dtype=np.uint8)
    classes[1:6, 1:6] = 2
    rgba = painted(classes, {2: "#009E73"})
    assert rgba[0, 0, 3] == 0
    assert rgba[1, 1, 3] == rgba[1, 3, 3] == rgba[5, 5, 3] == 1
    assert 0 < rgba[3, 3, 3] < 1
    np.testing.assert_array_equal(rgba[3, 3, :3], to_rgb("#009E73"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ids": ["nowhere"]}, "Expected slices of the gallery of .*but got 'nowhere'. Near names: 'example/case01"),
        ({"ids": ["a"], "pick": "best"}, "Expected either ids or a choice by score"),
        ({"count": 0}, "Expected at least one slice, but got a count of 0"),
        ({"pick": "nicest"}, "Expected worst, best or median, but got 'nicest'"),
        ({"gallery": "tset"}, "Expected the name of gallery, but got 'tset'. Near names: 'test'"),
    ],
)
def test_overlays_refuse_what_cannot_be_shown(runs: list[Run], options, message: str) -> None:
    with pytest.raises((ConfigError, RunError), match=message):
        compose("overlays", runs, **options)


# scores


def write(run: Run, values: dict[tuple[str, str], tuple[float, float]], name: str = "test-strict") -> None:
    """Write (dice, hd95) of one class and case; the case's first letter is the patient."""
    labels = {"Myo": 2, "LV": 3, "RV": 1}
    rows = [
        Score(patient=case[0], case=case, label=labels[part], class_name=part, metric=metric, value=value)
        for (part, case), both in values.items()
        for metric, value in zip(("dice", "hd95"), both, strict=True)
    ]
    write_scores(run.folder, name, rows)


def points(axes) -> list[list[float]]:
    """The values of each group of points, from the top."""
    groups = [points for points in axes.collections if isinstance(points, PathCollection)]
    return [sorted(points.get_offsets()[:, 0].tolist()) for points in groups]


def test_scores_are_points_of_patients_for_each_class_and_run(runs: list[Run], tmp_path) -> None:
    first, second = copied(runs[0], tmp_path / "one"), copied(runs[1], tmp_path / "two")
    write(first, {("LV", "a1"): (0.5, 4), ("LV", "a2"): (0.7, 6), ("LV", "b1"): (0.8, 2), ("RV", "a1"): (0.2, 9)})
    write(second, {("LV", "a1"): (0.9, 1), ("LV", "b1"): (0.7, np.nan), ("RV", "a1"): (0.4, 7)})
    figure = compose("scores", [first, second]).figure
    dice, hd95 = figure.axes
    assert [label.get_text() for label in dice.get_yticklabels()] == ["all classes", "RV", "LV"]
    assert (dice.get_xlabel(), hd95.get_xlabel()) == ("DSC (↑ better)", "HD95 (↓ better)")
    mean_a = (0.5 + 0.7 + 0.2) / 3
    expected = [[mean_a, 0.8], [0.65, 0.7], [0.2], [0.4], [0.6, 0.8], [0.7, 0.9]]
    for values, wanted in zip(points(dice), expected, strict=True):
        assert values == pytest.approx(wanted)
    assert points(hd95)[-1] == [1]  # NaN does not count
    lines = [drawn for drawn in dice.collections if isinstance(drawn, LineCollection)]
    joined = [tuple(point[0] for point in segment) for line in lines for segment in line.get_segments()]
    for who in [(mean_a, 0.65), (0.8, 0.7), (0.2, 0.4), (0.6, 0.9)]:  # the same patient, run beside run
        assert pytest.approx(who) in joined
    assert legend(figure)[:2] == ["baseline", "adawac"]
    colours = [to_hex(line.get_color()) for line in figure.legends[0].get_lines()]
    markers = [line.get_marker() for line in figure.legends[0].get_lines()]
    assert len(set(colours)) == len(set(markers)) == 2


def test_scores_of_two_data_sets_are_not_drawn_as_if_patients_were_the_same(runs: list[Run], tmp_path) -> None:
    first, second = copied(runs[0], tmp_path / "one"), copied(runs[1], tmp_path / "two")
    write_scores(
        second.folder, "test-strict", [replace(score, dataset="there") for score in second.scores("test-strict")]
    )
    with pytest.raises(ConfigError, match=r"one data set, but got example and there\. Draw a figure of each"):
        compose("scores", [first, second])


def test_distances_in_two_units_are_not_drawn_on_one_axis(runs: list[Run], tmp_path) -> None:
    first, second = copied(runs[0], tmp_path / "one"), copied(runs[1], tmp_path / "two")
    scores = [replace(score, unit="voxel") if score.unit else score for score in second.scores("test-strict")]
    write_scores(second.folder, "test-strict", scores)
    with pytest.raises(
        ConfigError, match=r"distances have one unit, but those of .*one are in mm and those of .*two in vo"
    ):
        compose("scores", [first, second])


def test_boxes_reach_from_quartile_to_quartile(runs: list[Run], tmp_path) -> None:
    run = copied(runs[0], tmp_path / "run")
    values = np.linspace(0.1, 0.9, 9)
    write(run, {("LV", f"{letter}1"): (value, 1) for letter, value in zip("abcdefghi", values, strict=True)})
    axes = compose("scores", run).figure.axes[0]
    boxes = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]
    np.testing.assert_allclose(boxes, [np.percentile(values, [25, 75])] * 2)


def test_a_run_without_scores_is_left_out_and_named(runs: list[Run], tmp_path, caplog) -> None:
    bare = copied(runs[0], tmp_path / "bare")
    shutil.rmtree(bare.folder / "scores")
    with caplog.at_level(logging.WARNING):
        figure = compose("scores", [runs[1], bare]).figure
    assert f"adawac evaluate {bare.folder}" in caplog.text
    assert title(figure).endswith("(1 of 2 runs not evaluated)")
    assert legend(figure)[0] == "adawac"


@pytest.mark.parametrize("name", ["scores", "overlays"])
def test_results_of_older_weights_are_drawn_with_a_warning(runs: list[Run], tmp_path, caplog, name: str) -> None:
    run = copied(runs[0], tmp_path / "older")
    shutil.rmtree(run.folder / "gallery")
    gallery = runs[0].gallery("test")
    write_gallery(run.folder, "test", list(gallery.values()), checkpoint="last", epoch=1)
    write_scores(run.folder, "test-strict", [replace(score, epoch=1) for score in run.scores("test-strict")])
    with caplog.at_level(logging.WARNING):
        compose(name, [runs[1], Run(run.folder)])
    (said,) = caplog.messages
    assert "is of epoch 1, but checkpoint last is of epoch 2 by now" in said
    assert said.endswith(f"adawac evaluate {run.folder}")


@pytest.mark.parametrize(("name", "part"), [("scores", "scores"), ("overlays", "gallery")])
def test_runs_that_were_not_evaluated_are_refused_with_the_command_that_helps(
    runs: list[Run], tmp_path, name: str, part: str
) -> None:
    bare = copied(runs[0], tmp_path / "bare")
    shutil.rmtree(bare.folder / part)
    with pytest.raises(
        RunError, match=f"Expected {part} in .*, but got none. Make them: adawac evaluate {bare.folder}"
    ):
        compose(name, bare)


def test_strict_scores_of_test_cases_come_first_unless_another_evaluation_is_named(runs: list[Run], tmp_path) -> None:
    run = copied(runs[0], tmp_path / "run")
    for name in ("test-adawac-last", "test-strict-last", "val-strict-last"):
        write(run, {("LV", "a1"): (0.5, 1)}, name)
    (run.folder / "scores" / "test-strict.csv").unlink()
    assert compose("scores", run).title.endswith("evaluation test-strict-last")
    assert compose("scores", run, evaluation="test-adawac-last").title.endswith("evaluation test-adawac-last")
    with pytest.raises(RunError, match="Expected the name of scores, but got 'test'"):
        compose("scores", run, evaluation="test")
    write_scores(run.folder, "odd", [Score(patient="a", case="a", label=1, class_name="x", metric="assd", value=1.0)])
    with pytest.raises(RunError, match="Expected scores of dice or hd95 in the evaluation 'odd'"):
        compose("scores", run, evaluation="odd")
