"""`curves`, `weights` and `separation`: what stands in the drawn objects is what stands in the history."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgba

from adawac.config import TrainConfig
from adawac.errors import RunError
from adawac.figures import Style, compose
from adawac.figures.separation import MEASURES, measures, quartiles
from adawac.figures.weights import arrange, block_means
from adawac.runs import Run, RunWriter, example_run


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return example_run(tmp_path_factory.mktemp("runs") / "adawac", epochs=8, slices=10)


@pytest.fixture(scope="module")
def baseline(tmp_path_factory) -> Run:
    return example_run(tmp_path_factory.mktemp("runs") / "baseline", method="baseline", epochs=8, slices=10)


def titles(figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes]


def words(axes) -> str:
    return " ".join(" ".join(text.get_text().split()) for text in axes.texts)


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


# curves


def test_curves_show_the_slices_asked_for_by_rising_foreground(run: Run) -> None:
    figure = compose("curves", run, case="case02", slices=[9, 0, 6]).figure
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [title.split(":")[0] for title in titles(figure)[:3]] == ["slice 0", "slice 6", "slice 9"]
    assert titles(figure)[0] == "slice 0: no foreground"
    for axes, number in zip(shown, (0, 6, 9), strict=True):
        row = int(np.flatnonzero((run.samples.case == "case02") & (run.samples.slice == number))[0])
        acr, ce = axes.lines
        for line, field in ((ce, "ell_ce"), (acr, "reg_ac")):
            np.testing.assert_array_equal(line.get_xdata(), run.history.epochs)
            np.testing.assert_array_equal(line.get_ydata(), run.history[field][:, row])
        assert (to_hex(ce.get_color()), to_hex(acr.get_color())) == (Style().ce.lower(), Style().acr.lower())
        assert ce.get_linestyle() != acr.get_linestyle()  # told apart without colour, too
    assert legend(figure) == ["augmentation consistency (ACR)", "cross-entropy (CE)"]


def test_curves_choose_a_case_and_slices_from_empty_to_dense(run: Run) -> None:
    picture = compose("curves", run)
    foreground = 1 - run.samples.fraction[:, 0]
    densest = run.samples.case[foreground.argmax()]
    assert densest in picture.title
    assert len(picture.figure.axes) == 4
    assert titles(picture.figure)[0].endswith("no foreground")
    shares = foreground[run.samples.case == densest]
    assert titles(picture.figure)[-1].endswith(f": {100 * shares.max():.2g} % foreground")


def test_curves_never_cut_a_loss_off_at_the_top(run: Run) -> None:
    for scale in ("log", "linear"):
        figure = compose("curves", run, scale=scale).figure
        highest = max(np.max(line.get_ydata()) for axes in figure.axes for line in axes.lines)
        assert all(axes.get_ylim()[1] >= highest for axes in figure.axes)
        assert figure.axes[0].get_yscale() == scale


def test_curves_of_a_method_without_consistency_show_cross_entropy_alone(baseline: Run) -> None:
    figure = compose("curves", baseline).figure
    assert all(len(axes.lines) == 1 for axes in figure.axes)
    assert legend(figure) == ["cross-entropy (CE)"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"case": "case20"}, "Expected a case of .*but got 'case20'. Near names: 'case03'"),
        ({"case": "case01", "slices": [3, 77]}, "case 'case01' has no 77. It has 0 to 9"),
        ({"scale": "cubic"}, "Expected a log or linear scale, but got 'cubic'"),
    ],
)
def test_curves_refuse_unknown_cases_and_slices(run: Run, options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compose("curves", run, **options)


# weights


def test_weights_are_the_history_ordered_by_case_and_slice(run: Run) -> None:
    figure = compose("weights", run).figure
    table = run.samples
    order = sorted(range(len(table)), key=lambda row: (table.cases.index(table.case[row]), table.slice[row]))
    maps = [axes for axes in figure.axes if axes.images]
    assert titles(figure)[:3] == ["cross-entropy (CE)", "weight of cross-entropy (β)", "augmentation consistency (ACR)"]
    for axes, field in zip(maps, ("ell_ce", "beta", "reg_ac"), strict=True):
        image = axes.images[0]
        np.testing.assert_array_equal(image.get_array(), run.history[field][:, order])
        assert image.get_extent() == [0, len(table), 0.5, 8.5]
    low, high = maps[1].images[0].get_clim()
    assert (low, high) == (0, 1)  # so that the pale middle of the map is ½
    assert maps[0].images[0].get_clim() == maps[2].images[0].get_clim()  # CE and ACR on one scale


def test_weights_mark_cases_black_and_limits_of_foreground_purple(run: Run) -> None:
    figure = compose("weights", run).figure
    table = run.samples
    expected = {"case boundary": {10.0, 20.0}, "limit of foreground": set()}
    for start in (0, 10, 20):
        sparse = table.label_sparse[start : start + 10]
        expected["limit of foreground"] |= {float(start + k) for k in range(1, 10) if sparse[k] != sparse[k - 1]}
    assert expected["limit of foreground"]
    colours = {"case boundary": "#000000", "limit of foreground": "#A000C8"}
    for axes in (axes for axes in figure.axes if axes.images):
        drawn = {lines.get_label(): lines for lines in axes.collections}
        assert drawn.keys() == expected.keys()
        for label, lines in drawn.items():
            assert {segment[0][0] for segment in lines.get_segments()} == expected[label]
            np.testing.assert_array_equal(lines.get_color()[0], to_rgba(colours[label]))
    assert legend(figure) == list(expected)
    assert [to_hex(line.get_color()).upper() for line in figure.legends[0].get_lines()] == list(colours.values())


def test_samples_are_put_in_order_even_if_the_table_is_not(run: Run) -> None:
    shuffled = np.random.default_rng(0).permutation(len(run.samples))
    table = run.samples.take(shuffled)
    arrangement = arrange(table)
    assert arrangement.cases == table.cases
    for start, end, case in zip(
        arrangement.starts, [*arrangement.starts[1:], len(table)], arrangement.cases, strict=True
    ):
        assert set(table.case[arrangement.order[start:end]]) == {case}
        assert table.slice[arrangement.order[start:end]].tolist() == list(range(10))


def test_more_samples_than_pixels_become_means_and_the_figure_says_so(tmp_path) -> None:
    many = example_run(tmp_path / "many", cases=[f"patient{k:03d}" for k in range(110)], slices=10, epochs=3, size=8)
    figure = compose("weights", many).figure
    beta = many.history["beta"]
    maps = [axes for axes in figure.axes if axes.images]
    np.testing.assert_allclose(maps[1].images[0].get_array(), (beta[:, ::2] + beta[:, 1::2]) / 2, rtol=1e-6)
    ruler = figure.axes[3]  # lines across the maps would hide them
    assert "a column is the mean of 2 samples" in ruler.get_xlabel()
    assert [len(lines.get_segments()) for lines in ruler.collections] == [110, 109]
    assert not maps[0].collections
    assert ruler.get_xlim() == (0, 1100)


def test_means_of_blocks_leave_out_what_was_not_seen() -> None:
    values = np.array([[1.0, 3.0, np.nan, 5.0, 8.0], [np.nan, np.nan, np.nan, np.nan, 2.0]], dtype=np.float32)
    means, steps = block_means(values, (3, 2))
    assert steps == (1, 2)
    np.testing.assert_array_equal(means, [[2, 5, 8], [np.nan, np.nan, 2]])
    means, steps = block_means(values, (5, 1))
    assert steps == (2, 1)
    np.testing.assert_array_equal(means, [[1, 3, np.nan, 5, 5]])


def test_a_sample_that_was_not_seen_is_grey_and_in_the_legend(run: Run, tmp_path) -> None:
    with RunWriter(tmp_path / "grown", TrainConfig(epochs=2)) as writer:
        rows = writer.write_samples(run.samples)
        for epoch, seen in ((1, rows[:20]), (2, rows)):
            ones = np.linspace(0.1, 1, len(seen))
            writer.log_history(epoch, seen, ell_ce=ones, ell_dice=ones, reg_ac=ones, beta=ones)
    figure = compose("weights", tmp_path / "grown").figure
    image = figure.axes[0].images[0]
    assert image.get_array().mask.sum() == len(run.samples) - 20
    assert legend(figure)[-1] == "not seen"
    assert to_hex(image.get_cmap()(np.ma.masked)) == to_hex(figure.legends[0].get_patches()[0].get_facecolor())


def test_weights_of_a_method_without_them_say_so_in_their_place(baseline: Run) -> None:
    figure = compose("weights", baseline).figure
    assert len([axes for axes in figure.axes if axes.images]) == 1
    assert words(figure.axes[1]) == "β was not recorded."
    assert words(figure.axes[2]) == "ACR was not recorded."


# separation


def test_separation_draws_medians_and_quartiles_of_both_groups(run: Run) -> None:
    figure = compose("separation", run).figure
    sparse, beta, style = run.samples.label_sparse, run.history["beta"], Style()
    half, *lines = figure.axes[0].lines
    assert set(half.get_ydata()) == {0.5}
    for line, members, colour in zip(lines, (sparse, ~sparse), (style.sparse, style.dense), strict=True):
        np.testing.assert_allclose(line.get_ydata(), np.median(beta[:, members], axis=1), rtol=1e-6)
        assert to_hex(line.get_color()).upper() == colour
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    last = band[band[:, 0] == 8, 1]
    np.testing.assert_allclose([last.min(), last.max()], np.percentile(beta[-1, sparse], [25, 75]), rtol=1e-5)


def test_separation_counts_pairs_shares_and_spreads(run: Run) -> None:
    figure = compose("separation", run).figure
    sparse = run.samples.label_sparse
    ce, acr, beta = (run.history[name].astype(float) for name in ("ell_ce", "reg_ac", "beta"))
    high, low = beta[:, ~sparse, None], beta[:, None, sparse]
    auc = ((high > low) + 0.5 * (high == low)).mean((1, 2))
    drawn = [[line.get_ydata() for line in axes.lines] for axes in figure.axes]
    np.testing.assert_allclose(drawn[1][1], auc, rtol=1e-6)
    np.testing.assert_allclose(drawn[2][0], (ce < acr)[:, sparse].mean(1), rtol=1e-6)
    np.testing.assert_allclose(drawn[2][1], (ce > acr)[:, ~sparse].mean(1), rtol=1e-6)
    np.testing.assert_allclose(drawn[3][0], acr.std(1) / acr.mean(1), rtol=1e-5)
    np.testing.assert_allclose(drawn[3][1], ce.std(1) / ce.mean(1), rtol=1e-5)
    assert legend(figure)[2:] == ["CE", "ACR"]


def test_what_training_logged_is_taken_and_only_if_all_of_it_is_there(run: Run, tmp_path) -> None:
    shutil.copytree(run.folder, tmp_path / "logged")
    lines = [f'{{"epoch": {epoch}, ' + ", ".join(f'"{name}": 0.25' for name in MEASURES) + "}" for epoch in range(1, 9)]
    (tmp_path / "logged" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert measures(Run(tmp_path / "logged"))["beta_auc"].tolist() == [0.25] * 8
    (tmp_path / "logged" / "metrics.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    np.testing.assert_array_equal(measures(Run(tmp_path / "logged"))["beta_auc"], measures(run)["beta_auc"])


def test_several_runs_have_a_column_each_and_say_what_they_lack(run: Run, baseline: Run) -> None:
    figure = compose("separation", [run, baseline], width="text").figure
    assert len(figure.axes) == 8
    assert titles(figure)[:2] == ["adawac", "baseline"]
    assert words(figure.axes[1]) == words(figure.axes[3]) == "β was not recorded."
    ceilings = [axes.get_ylim()[1] for axes in figure.axes[6:]]
    assert ceilings[0] == ceilings[1] >= max(measures(drawn)["spread_ce"].max() for drawn in (run, baseline))


def test_a_data_set_with_one_kind_of_slices_has_nothing_to_tell_apart(run: Run, tmp_path) -> None:
    dense = replace(run.samples, fraction=np.full_like(run.samples.fraction, 1 / 3))
    with RunWriter(tmp_path / "dense", TrainConfig(epochs=2)) as writer:
        rows = writer.write_samples(dense)
        for epoch in (1, 2):
            values = np.linspace(0.1, 1, len(rows)) / epoch
            writer.log_history(epoch, rows, ell_ce=values, ell_dice=values, reg_ac=values / 2, beta=values)
    figure = compose("separation", tmp_path / "dense").figure
    assert words(figure.axes[1]) == "There are no label-sparse samples to tell apart."
    np.testing.assert_array_equal(quartiles(np.full((2, 3), np.nan)), np.full((3, 2), np.nan))


# what is missing


@pytest.mark.parametrize("name", ["curves", "weights", "separation"])
def test_a_run_without_history_is_refused_by_the_name_of_the_part(run: Run, tmp_path, name: str) -> None:
    shutil.copytree(run.folder, tmp_path / "bare")
    (tmp_path / "bare" / "history.bin").unlink()
    with pytest.raises(RunError, match=r"Expected samples.csv, history.bin in .*history.bin: it is not there"):
        compose(name, tmp_path / "bare")


@pytest.mark.parametrize("name", ["curves", "weights", "separation"])
def test_a_run_that_was_interrupted_gives_what_it_has_and_says_how_far_it_came(tmp_path, name: str) -> None:
    stopped = example_run(tmp_path / "stopped", epochs=2, slices=6, status="interrupted")
    picture = compose(name, stopped)
    assert "interrupted, epoch 1 of 2" in " ".join(picture.figure.get_suptitle().split())
    assert "interrupted" not in picture.title
    (stopped.folder / "config.yaml").unlink()
    (stopped.folder / "data.json").unlink()
    compose(name, stopped.folder)


@pytest.mark.parametrize("name", ["curves", "weights", "separation"])
def test_the_title_and_the_log_say_that_a_history_is_damaged(tmp_path, caplog, name):
    folder = example_run(tmp_path / "run", epochs=8, slices=10).folder
    whole = (folder / "history.bin").read_bytes()
    (folder / "history.bin").write_bytes(whole[: len(whole) // 2])
    figure = compose(name, folder).figure
    assert "history.bin is damaged" in " ".join(figure.get_suptitle().split())
    assert "history.bin" in caplog.text
