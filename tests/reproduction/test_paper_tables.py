"""The arithmetic of the tables against NumPy, the order of methods, and hostile names in every format."""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adawac.reproduction import load_grid
from adawac.reproduction.comparison_files import to_dict, to_html, to_tables, write_comparison
from adawac.reproduction.grid_data import MARK
from adawac.reproduction.grids import Column
from adawac.reproduction.jobs import make_jobs
from adawac.reproduction.paper_tables import compare, run_value, seed_spread
from adawac.runs import RunWriter, Score, write_scores
from tests.reproduction.grid_files import write_grid

CLASSES = ("liver", "spleen", "aorta")


def scores_of(values, unit="") -> list[Score]:
    """Return Dice scores of an array (cases, classes), and HD95 of ten times that, in a unit."""
    return [
        Score(
            patient=str(case),
            case=str(case),
            label=label + 1,
            class_name=CLASSES[label],
            metric=metric,
            value=value,
            unit=own,
        )
        for (case, label), dice in np.ndenumerate(values)
        for metric, value, own in (("dice", float(dice), ""), ("hd95", 10 * float(dice), unit))
    ]


def test_a_runs_numbers_are_means_over_cases_then_classes():
    values = np.random.default_rng(0).uniform(size=(5, 3))
    values[2, 1] = np.nan  # what a convention leaves out
    scores = scores_of(values)
    mean = np.nanmean(values, axis=0)
    assert run_value(scores, Column(name="DSC", metric="dice")) == pytest.approx(100 * mean.mean())
    assert run_value(scores, Column(name="HD95", metric="hd95")) == pytest.approx(10 * mean.mean())
    assert run_value(scores, Column(name="S", metric="dice", class_name="spleen")) == pytest.approx(100 * mean[1])
    assert math.isnan(run_value(scores, Column(name="X", metric="dice", class_name="heart")))
    assert math.isnan(run_value([], Column(name="DSC", metric="dice")))
    surface = [replace(score, metric="surface_dice") for score in scores if score.metric == "dice"]
    assert run_value(surface, Column(name="NSD", metric="surface_dice")) == pytest.approx(100 * mean.mean())


@given(st.lists(st.floats(0, 100), min_size=2, max_size=6))
def test_the_spread_over_seeds_is_the_samples(values):
    mean, std, count = seed_spread([*values, math.nan])
    assert (mean, std) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert count == len(values)


def test_one_seed_has_no_spread_and_none_no_mean():
    assert seed_spread([3.0])[0] == 3.0
    assert math.isnan(seed_spread([3.0])[1])
    assert seed_spread([math.nan]) == (pytest.approx(math.nan, nan_ok=True), pytest.approx(math.nan, nan_ok=True), 0)


@pytest.fixture
def compared(tmp_path, small_store):
    """Return a function that makes finished runs of a grid with given Dice, and compares them."""

    def build(dice: dict[tuple[str, int], float], unit="", **changes):
        name, grid = load_grid(write_grid(tmp_path / "grid.yaml", **changes))
        planned = make_jobs(grid.rows(), small_store, tmp_path / "out", grid.conventions)
        for row, jobs in planned:
            for job in jobs:
                value = dice.get((row.labels[grid.compared], job.config.seed))
                if value is not None and not job.folder.exists():
                    with RunWriter(job.folder, job.config, epochs=1):
                        pass
                    write_scores(job.folder, job.evaluation, scores_of(np.full((2, 3), value), unit))
        return compare(name, grid, planned)

    return build


def test_cells_have_paper_ours_and_difference(compared):
    dice = {("baseline", 1): 0.70, ("baseline", 2): 0.72, ("adawac", 1): 0.81}
    comparison = compared(dice, seeds=[1, 2])
    baseline, adawac = comparison.lines
    first = baseline.cells[0]
    assert (first.paper.mean, first.paper.std) == (70.5, 1.5)
    assert (first.mean, first.std, first.count) == (
        pytest.approx(71),
        pytest.approx(np.std([70, 72], ddof=1)),
        2,
    )
    assert first.difference == pytest.approx(0.5)
    assert (adawac.cells[0].count, math.isnan(adawac.cells[0].std)) == (1, True)
    assert adawac.cells[2].paper is None
    assert math.isnan(adawac.cells[2].difference)
    rows = to_tables(comparison)[0].rows
    assert rows[0] == ("baseline", "paper", "70.50 ± 1.50", "20.00", "90.00")
    assert rows[1] == ("baseline", "ours", "71.00 ± 1.41", "7.10 ± 0.14", "71.00 ± 1.41")
    assert rows[2] == ("baseline", "difference", "+0.50", "-12.90", "-19.00")
    assert rows[3][-1] == "–"


def test_a_mean_of_some_seeds_says_so_everywhere(compared, tmp_path):
    dice = {
        ("baseline", 1): 0.70,
        ("baseline", 2): 0.72,
        ("baseline", 3): 0.74,
        ("adawac", 1): 0.8,
        ("adawac", 3): 0.82,
    }
    comparison = compared(dice, seeds=[1, 2, 3])
    assert (comparison.partial, comparison.missing) == (3, 0)
    numbers, order = to_tables(comparison)
    assert numbers.rows[1][2] == "72.00 ± 2.00"
    assert numbers.rows[4][2:] == tuple(
        f"{cell} (2 of 3 seeds)" for cell in ("81.00 ± 1.41", "8.10 ± 0.14", "81.00 ± 1.41")
    )
    assert any(note.startswith("3 cells are means of some seeds only") for note in numbers.notes)
    assert order.rows[0][-1] == "yes, with some seeds only of adawac"
    told = to_dict(comparison, failures={})
    assert told["partial"] == 3
    assert [row["cells"][0]["ours"]["seeds"] for row in told["rows"]] == [3, 2]
    assert [row["cells"][0]["ours"]["planned_seeds"] for row in told["rows"]] == [3, 3]
    assert told["orderings"][0]["partial"] == ["adawac"]
    for path in write_comparison(comparison, tmp_path / "t", failures={}):
        if path.suffix != ".json":
            assert path.read_text(encoding="utf-8").count("(2 of 3 seeds)") == 3
    whole = compared({**dice, ("adawac", 2): 0.81}, seeds=[1, 2, 3])
    assert whole.partial == 0
    assert all("seeds)" not in cell for row in to_tables(whole)[0].rows for cell in row)


@pytest.mark.parametrize(("unit", "shown"), [("voxel", "HD95, voxels"), ("mm", "HD95, mm"), ("", "HD95, mm")])
def test_the_unit_of_distances_is_the_one_they_were_measured_in(compared, unit, shown):
    comparison = compared({("baseline", 1): 0.7}, convention="strict", unit=unit)
    numbers, _ = to_tables(comparison)
    assert numbers.header[3] == shown
    assert to_dict(comparison, failures={})["unit"] == (unit or None)


def test_missing_runs_are_missing_cells(compared):
    comparison = compared({("baseline", 1): 0.7})
    assert comparison.missing == 3
    rows = to_tables(comparison)[0].rows
    assert rows[4] == ("adawac", "ours", "missing", "missing", "missing")
    assert any("3 cells are missing" in note for note in to_tables(comparison)[0].notes)
    told = to_dict(comparison, failures={})
    assert told["rows"][1]["cells"][0] == {
        "column": "DSC",
        "paper": {"mean": 80.0, "std": 1.0},
        "ours": None,
        "difference": None,
    }
    assert comparison.orderings[0].agrees is None
    assert comparison.orderings[0].left_out == ("adawac",)


def test_where_no_run_is_done_ours_is_missing_and_not_the_papers(compared):
    _, order = to_tables(compared({}))
    assert order.rows[0] == ("DSC", "–", "missing", "–", "–")


METHODS = ["baseline", "pair", "acr-only", "adawac"]
IN_PAPER = {"baseline": [70, 40, 1], "pair": [71, 30, 1], "acr-only": [72, 20, 1], "adawac": [73, 10, 1]}


@pytest.mark.parametrize(
    ("dice", "tau", "agrees"),
    [
        ([0.1, 0.2, 0.3, 0.4], 1.0, True),
        ([0.4, 0.3, 0.2, 0.1], -1.0, False),
        ([0.1, 0.2, 0.4, 0.3], 2 / 3, False),
        ([0.1, 0.2, 0.3, 0.3], 5 / math.sqrt(30), False),  # a tie is no order: τ-b by hand
        ([0.1, 0.1, 0.1, 0.1], math.nan, False),
    ],
)
def test_the_order_of_methods_is_compared(compared, dice, tau, agrees):
    values = {(method, 1): value for method, value in zip(METHODS, dice, strict=True)}
    comparison = compared(values, axes={"method": METHODS}, paper=IN_PAPER)
    by_dice, by_hd95 = comparison.orderings
    assert by_dice.paper == (("adawac",), ("acr-only",), ("pair",), ("baseline",))
    assert by_dice.kendall_tau == pytest.approx(tau, nan_ok=True)
    assert by_dice.agrees is agrees
    # HD95 is ten times the Dice here, and lower is better: the opposite of the order above.
    assert by_hd95.kendall_tau == pytest.approx(-tau, nan_ok=True)
    assert by_hd95.paper == by_dice.paper
    assert by_hd95.agrees is (tau == -1.0)


def test_a_method_that_the_paper_does_not_have_is_in_neither_order(compared):
    values = {(method, 1): value for method, value in zip(METHODS, (0.1, 0.9, 0.3, 0.4), strict=True)}
    paper = {method: numbers for method, numbers in IN_PAPER.items() if method != "pair"}
    by_dice, _ = compared(values, axes={"method": METHODS}, paper=paper).orderings
    assert by_dice.ours == by_dice.paper == (("adawac",), ("acr-only",), ("baseline",))
    assert (by_dice.agrees, by_dice.kendall_tau, by_dice.left_out) == (True, 1.0, ("pair",))


def test_groups_are_ordered_by_themselves(compared):
    axes = {"subset": ["full", "half-vol"], "method": ["baseline", "adawac"]}
    paper = {
        "full": {"baseline": [1, 1, 1], "adawac": [2, 0, 1]},
        "half-vol": {"baseline": [3, 1, 1], "adawac": [2, 2, 1]},
    }
    comparison = compared({("baseline", 1): 0.2, ("adawac", 1): 0.4}, axes=axes, paper=paper)
    found = {ordering.labels: ordering.agrees for ordering in comparison.orderings if ordering.column == "DSC"}
    assert found == {("full",): True, ("half-vol",): False}


def test_without_a_paper_ours_stand_alone(compared, tmp_path):
    comparison = compared({("baseline", 1): 0.5, ("adawac", 1): 0.6}, paper={})
    numbers, order = to_tables(comparison)
    assert [row[:3] for row in numbers.rows] == [("baseline", "ours", "50.00"), ("adawac", "ours", "60.00")]
    assert order.header == ("by", "ours")
    assert order.rows == [("DSC", "adawac > baseline"), ("HD95", "baseline > adawac")]
    page = to_html([numbers, order], comparison)
    assert page.count("<tbody>") == 3
    assert comparison.orderings[0].agrees is None


def test_a_pages_groups_have_their_names_once_above_three_lines(compared):
    axes = {"subset": ["full", "half-vol"], "method": ["baseline", "adawac"]}
    paper = {subset: {"baseline": [71.5, 1, 1], "adawac": [72.5, 0, 1]} for subset in axes["subset"]}
    comparison = compared({("baseline", 1): 0.2, ("adawac", 1): 0.4}, axes=axes, paper=paper)
    page = to_html(to_tables(comparison), comparison)
    groups = re.findall(r'<th scope="rowgroup" colspan="(\d)"><span>(.*?)</span>', page)
    names = ["full · baseline", "full · adawac", "half-vol · baseline", "half-vol · adawac"]
    assert groups == [("4", name) for name in names]  # above the line's kind and three columns
    assert re.findall(r'<th scope="row">(.*?)</th>', page) == ["paper", "ours", "difference"] * 4
    assert '<tr class="ours"><th scope="row">ours</th><td>40.00</td>' in page


HOSTILE = '<script>alert("x")</script> & 50% of $a_b^c~{d}\\e | `f` <!-- notes -->'


class Collected(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = set(), ""

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        self.text += data


def test_hostile_names_are_escaped_in_every_format(compared, tmp_path):
    axes = {"method": {HOSTILE: "baseline", "x\x1b[31m\ny": "adawac"}}
    paper = {HOSTILE: [1, 2, 3], "x\x1b[31m\ny": [2, 1, 3]}
    columns = {"DSC": {"metric": "dice"}, "H": {"metric": "hd95"}, f"C {HOSTILE}": {"metric": "dice", "class": "liver"}}
    comparison = compared(
        {(HOSTILE, 1): 0.5}, axes=axes, paper=paper, columns=columns, title=HOSTILE, source=HOSTILE, note=HOSTILE
    )
    files = {path.suffix: path for path in write_comparison(comparison, tmp_path / "t", failures={})}
    page = Collected()
    page.feed(files[".html"].read_text(encoding="utf-8"))
    assert "script" not in page.tags
    assert HOSTILE in page.text
    assert "\x1b" not in files[".html"].read_text(encoding="utf-8")
    assert "<script" not in files[".md"].read_text(encoding="utf-8")
    latex = files[".tex"].read_text(encoding="utf-8")
    assert r"50\% of \$a\_b\textasciicircum{}c\textasciitilde{}\{d\}\textbackslash{}e" in latex
    assert json.loads(files[".json"].read_text(encoding="utf-8"))["rows"][0]["labels"] == {"method": HOSTILE}


def test_what_is_quick_says_so_everywhere(compared, tmp_path):
    plain = compared({("baseline", 1): 0.5, ("adawac", 1): 0.6})
    comparison = replace(plain, mark=MARK)
    for path in write_comparison(comparison, tmp_path / "t", failures={}):
        assert path.stem == "grid-quick"
        text = path.read_text(encoding="utf-8")
        assert MARK in text.replace("&#x27;", "'")
    tables = to_tables(comparison)
    assert all("(quick)" in table.title and MARK in table.notes for table in tables)
    assert all("ours" not in row for table in tables for row in table.rows)
    assert MARK not in to_html(to_tables(plain), plain).replace("&#x27;", "'")
