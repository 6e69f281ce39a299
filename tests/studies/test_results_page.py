"""The study on ACDC: its grid, what is kept of runs, and what the page makes of it. All numbers here are made up."""

import json
import shutil

import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure

import adawac
from adawac.config import TrainConfig, load, to_dict
from adawac.config.settings import recipe_path
from adawac.data.phantom.scanner import phantom_source
from adawac.data.preparation import prepare
from adawac.data.sources.acdc import group_by_number, paper_split
from adawac.data.store import Store
from adawac.reproduction import reproduce
from adawac.reproduction.collected_results import decisive_settings, read_entries
from studies.acdc import bright_scans, ensemble, gap, norm_statistics
from studies.acdc.collect import collect_runs, mean_intensity
from studies.acdc.entries import _ratio, between_share
from studies.acdc.layout import FOLDER, find_runs, read_layout
from studies.acdc.overview import _draw, _lines, draw_overview
from studies.acdc.page import _MEASURES, Picture, blocks
from studies.acdc.recommendations import recommendations
from studies.acdc.render import PAGES, rendered
from studies.acdc.render import ensemble as ensemble_block

GRID = {
    "title": "Small networks",
    "results": "results.json",
    "convention": "adawac",
    "more_conventions": ["strict"],
    "columns": {"DSC": {"metric": "dice"}},
    "settings": {
        "epochs": 2,
        "data.image_size": [32, 32],
        "data.batch_size": 16,
        "model.name": "smp:Unet/resnet18",
        "model.options": {"encoder_depth": 3, "decoder_channels": [16, 8, 8]},
        "method.preset": "official",
        "method.options": {"eta_beta": 8.0, "lambda_ac": 2.0},
        "optim.lr": 1e-7,  # hardly trained: so it finds all classes everywhere
        "hardware.accelerator": "cpu",
        "hardware.precision": "fp32",
    },
    "seeds": [1],
    "runs": {
        "base": {"set": {"method.name": "baseline"}},
        "endless": {"set": {"method.name": "baseline", "epochs": 1000000}},
        "broken": {"set": {"model.name": "nonsense"}},
        "ada": {"set": {"method.name": "adawac"}},
        "half": {"seeds": [1, 2], "score": "val", "set": {"method.name": "baseline", "data.subset": "half-slice"}},
    },
}
PAGE = {
    "short": [["small", "base", "ada"], ["never run", "endless", "ada"]],
    "weights": {"From scratch": {"ada": "Small network", "base": "Has none"}, "Not run": {"half": "Half"}},
    "groups": {
        "first": {
            "title": "Does it help?",
            "text": "We ask.",
            "blocks": [
                {
                    "title": "Small networks",
                    "rows": {
                        "base": "baseline",
                        "endless": "much too long",
                        "broken": "no such network",
                        "ada": "AdaWAC",
                    },
                    "published": {
                        "ada": {"label": "a paper's", "mean": 90, "RV": 91, "LV": 89},
                        "broken": {"label": "never run", "mean": 1, "RV": 1, "LV": 1},
                    },
                    "compare": [["ada", "base"]],
                }
            ],
        },
        "second": {
            "title": "And elsewhere?",
            "text": "Who knows.",
            "blocks": [
                {
                    "title": "Half of it",
                    "settings": {"data.subset": "half-slice"},
                    "beside": {"base": "baseline, all"},
                    "rows": {"half": "half"},
                }
            ],
        },
    },
}


def write_study(folder, **changes):
    (folder / "grid.yaml").write_text(yaml.safe_dump({**GRID, **changes}, sort_keys=False))
    (folder / "page.yaml").write_text(yaml.safe_dump(PAGE, sort_keys=False))
    return read_layout(folder / "grid.yaml", folder / "page.yaml")


@pytest.fixture
def layout(tmp_path):
    return write_study(tmp_path)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("acdc") / "store"
    prepare(phantom_source(6, 0, size=32), None, folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory, store):
    """A study of which two runs have been trained and scored."""
    folder = tmp_path_factory.mktemp("study")
    grid = write_study(folder).grid
    found = reproduce(folder / "grid.yaml", folder / "out", data=store, only=["base", "ada"])
    assert not found.failures
    return folder, grid


class TestRuns:
    def test_are_collected_with_what_their_weights_follow(self, trained, store, tmp_path):
        folder, _ = trained
        grid = write_study(tmp_path).grid
        assert collect_runs(grid, [folder / "out"], mean_intensity(Store(store))) == ["base-seed1", "ada-seed1"]
        base, ada = read_entries(grid.results)
        assert (base["name"], base["row"], base["seed"]) == ("base-seed1", "base", 1)
        assert (base["views"], ada["views"], ada["epochs"], ada["part"]) == (1, 2, 2, "test")
        [row] = [row for row in grid.rows() if row.name == "ada"]
        assert ada["settings"] == {**decisive_settings(to_dict(row.config)), "seed": 1}
        run = find_runs(grid, [folder / "out"])["ada-seed1"]
        scores = run.scores("test-strict-last")
        by_class = {score.class_name: [] for score in scores}
        for score in scores:
            if score.metric == "dice":
                by_class[score.class_name].append(score.value)
        means = {name: np.mean(values) for name, values in by_class.items()}
        for convention in ("adawac", "strict"):
            dice = ada["scores"][convention]["dice"]
            assert dice == pytest.approx({**means, "mean": np.mean(list(means.values()))}, rel=1e-4, abs=1e-9)
        assert base["separation"] is None  # its weights are all 1
        assert 0 <= ada["separation"]["beta_auc"] <= 1
        assert -1 <= ada["separation"]["spearman_brightness"] <= 1
        assert set(ada["separation"]["beta_by_group"]) <= {"slim", "average", "heavy"}
        assert (ada["ends"]["batch"], ada["ends"]["last_batch"]) == (16, ada["samples"] % 16)

    def test_a_bad_folder_does_not_keep_the_others_from_being_collected(self, trained, tmp_path, caplog):
        folder, _ = trained
        shutil.copytree(folder / "out" / "runs", tmp_path / "copied")
        grid = write_study(tmp_path).grid
        bad = find_runs(grid, [tmp_path / "copied"])["base-seed1"].folder
        (bad / "history.bin").unlink()
        assert collect_runs(grid, [tmp_path / "copied"]) == ["ada-seed1"]
        assert f"{bad} is left out" in caplog.text

    def test_the_seeds_of_a_row_are_scored_together(self, trained, store, tmp_path):
        folder, grid = trained
        out = tmp_path / "ensemble.json"
        ensemble.main([str(store), str(folder), "base", "--grid", str(folder / "grid.yaml"), "--out", str(out)])
        row = json.loads(out.read_text())["rows"]["base"]
        run = find_runs(grid, [folder])["base-seed1"]
        [alone] = adawac.evaluate(run, tta=True, spacing="voxel", gallery=0, workers=0)
        assert (row["seeds"], row["cases"]) == ([1], len({score.case for score in alone.scores}))
        for metric, factor in (("dice", 100), ("hd95", 1)):
            means = {summary.class_name: factor * summary.mean for summary in alone.summaries[metric]}
            assert row["scores"]["as predicted"][metric] == pytest.approx(means)
        assert row["scores"]["as predicted"]["dice"]["mean"] > 0
        assert row["scores"]["largest parts"] != row["scores"]["as predicted"]

    def test_are_scored_with_the_statistics_of_all_samples(self, trained, store, tmp_path):
        folder, grid = trained
        out = tmp_path / "statistics.json"
        words = [str(store), str(folder), "base-seed1", "--grid", str(folder / "grid.yaml"), "--out", str(out)]
        norm_statistics.main(words)
        [found] = json.loads(out.read_text())["runs"]
        run = find_runs(grid, [folder])["base-seed1"]
        [alone] = adawac.evaluate(run, spacing="voxel", gallery=0, workers=0)
        means = {summary.class_name: 100 * summary.mean for summary in alone.summaries["dice"]}
        assert found["name"] == "base-seed1"
        assert found["own"]["dice"] == pytest.approx(means)
        assert found["of all samples"] != found["own"]
        assert found["moved"] > 0


class TestNumbers:
    def test_the_share_of_variance_between_groups(self):
        groups = np.array(["a", "a", "b", "b"])
        assert between_share(np.array([1.0, 1.0, 5.0, 5.0]), groups) == pytest.approx(1)
        assert between_share(np.array([0.0, 2.0, 0.0, 2.0]), groups) == pytest.approx(0)
        assert between_share(np.array([0.0, 2.0, 4.0, 6.0]), groups) == pytest.approx(16 / 20)
        assert between_share(np.ones(4), groups) is None

    def test_how_the_losses_of_two_kinds_of_samples_compare(self):
        values, sparse = np.array([1.0, 3.0, 4.0, 6.0]), np.array([True, True, False, False])
        assert _ratio(values, sparse) == pytest.approx(0.4)
        assert _ratio(values, ~sparse) == pytest.approx(2.5)
        assert _ratio(values, sparse | True) is None
        assert _ratio(values, sparse & False) is None


class TestGrid:
    """The study's own files."""

    def test_every_row_is_shown_and_every_name_on_the_page_is_a_row(self):
        layout = read_layout()
        rows = {row.name for row in layout.grid.rows()}
        blocks_ = [block for group in layout.groups for block in group.blocks]
        assert {row for block in blocks_ for row in block.labels} == rows
        assert {row for block in blocks_ for row in block.rows} == rows
        assert {row for _, *pair in layout.short for row in pair} <= rows
        assert {row for labels in layout.weights.values() for row in labels} <= rows
        for block in blocks_:
            assert {row for pair in block.compare for row in pair} <= set(block.labels)

    def test_the_tenth_of_the_patients(self):
        lists = {path.stem: path.read_text().splitlines()[1:] for path in (FOLDER / "acdc_ten_percent").iterdir()}
        assert {side: len(names) for side, names in lists.items()} == {"train": 7, "val": 10, "test": 20}
        assert all(paper_split(name) == side for side, names in lists.items() for name in names)
        assert [group_by_number(name) for name in lists["train"]] == ["HCM", "MINF", "MINF", "NOR", "NOR", "RV", "RV"]
        splits = {row.name: row.config.data.split for row in read_layout().grid.rows()}
        assert splits["ten-percent-hold"] == str(FOLDER / "acdc_ten_percent")

    def test_our_recipe_is_what_was_chosen(self):
        [chosen] = [row for row in read_layout().grid.rows() if row.name == "long-unet-paper"]
        recipe = decisive_settings(to_dict(load(TrainConfig, recipe_path("strong"))))
        measured = decisive_settings(to_dict(chosen.config))
        assert {path: value for path, value in measured.items() if path != "hardware.precision"} == recipe


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_pages_are_what_the_results_render_to(path):
    page = path.read_text()
    assert rendered(page, read_layout()) == page, "run `python -m studies.acdc.render`"


def test_seeds_together_stand_in_a_table():
    scores = {"dice": {"mean": 88.04, "RV": 87.0, "LV": 89.1}, "hd95": {"mean": 2.26, "RV": 3.0, "LV": 1.5}}
    rows = {"ada": {"seeds": [2, 3], "cases": 40, "scores": {"as predicted": scores}}}
    assert ensemble_block({"rows": rows}, {"ada": "AdaWAC"}).splitlines() == [
        "| DSC, % | all classes | RV | LV | HD95, voxel |",
        "| --- | --- | --- | --- | --- |",
        "| AdaWAC, 2 seeds, as predicted | 88.0 | 87.0 | 89.1 | 2.3 |",
    ]


def test_recommendations_are_settings_of_the_grid_with_the_gains_of_its_runs():
    grid = read_layout().grid
    base = {"unet-baseline": 0.8, "ten-percent-baseline": 0.6, "lite0-baseline": 0.85, "final-long-baseline": 0.9}
    above = {
        **{"ten-percent-hold": 0.65, "ten-percent-paper-hold": 0.55, "unet-paper": 0.87, "unet-acr-only": 0.86},
        **{"unet-adawac": 0.85, "unet-eta8-lambda8": 0.7, "lite0-paper": 0.84, "final-long-paper": 0.9},
    }
    entries = [entry(row, seed, dice, (1, 1)) for row, dice in (base | above).items() for seed in (1, 2)]
    entries += [entry("unet-eta1-lambda0.5", seed, dice, (1, 1)) for seed, dice in ((1, 0.88), (2, 0.6))]
    found = recommendations(grid, entries)
    few, usual = found["few_slices"], found["usual"]
    assert few["settings"] == {
        "method.preset": "official",
        "method.options.eta_beta": 8.0,
        "method.options.lambda_ac": 2.0,
        "method.hold_epochs": 10,
    }
    assert (few["evidence"]["these"]["gains"], few["evidence"]["defaults"]["mean"]) == ([5.0, 5.0], -5.0)
    assert usual["evidence"]["best_cell"] == {"row": "unet-eta1-lambda0.5", "ahead": 1.0}
    assert usual["evidence"]["worst_cell"] == {"row": "unet-eta8-lambda8", "lambda_ac": 8.0, "behind_best": 18.0}
    assert usual["evidence"]["repeated_cell"]["lost_by_other_seeds"] == 28.0
    assert found["consistency_alone"]["acr_only"]["mean"] == 6.0
    assert found["no_gain"]["pretrained"]["mean"] == -1.0


def entry(row, seed, dice, distances, *, group="first", patients=None, separation=None):
    """Return an entry of made-up numbers; the first distance is by `adawac`, the second by `strict`."""
    hd95 = dict(zip(("adawac", "strict"), distances, strict=True))
    return {
        "name": f"{row}-seed{seed}",
        "group": group,
        "row": row,
        "seed": seed,
        "settings": {} if row == "ada" else {"method.name": "baseline"},
        "epochs": 100,
        "samples": 1000,
        "views": 2 if row == "ada" else 1,
        "label_sparse": 30,
        "device": "A machine",
        "torch": "2.0",
        "adawac": "0.1",
        "train_seconds": 90.0,
        "slices_per_second": 1111.0,
        "scores": {
            convention: {
                "unit": "voxel",
                "dice": {"RV": dice - 0.1, "LV": dice + 0.1, "mean": dice},
                "hd95": {"RV": value, "LV": value, "mean": value},
                "missed": 2,
            }
            for convention, value in hd95.items()
        },
        "patients": patients or {},
        "separation": separation,
    }


class TestOverview:
    @pytest.fixture
    def lines(self, layout):
        return lambda entries: [list(_lines(group, entries)) for group in layout.groups]

    def test_has_a_line_for_each_row_and_none_for_candidates(self, lines):
        entries = [entry("ada", 2, 0.84, (2, 2)), entry("ada", 1, 0.8, (1, 1)), entry("base", 1, 0.7, (4, 4))]
        first, second = lines([*entries, entry("half", 1, 0.9, (1, 1), group="second")])
        assert [line.label for line in first[1:]] == ["baseline", "AdaWAC"]
        assert first[0].scores == {}
        assert first[2].scores == pytest.approx({1: 80, 2: 84})
        assert [line.method for line in first] == ["", "baseline", "adawac"]
        assert second == []

    def test_holds_rows_against_the_first_by_the_seeds_that_all_have(self, lines):
        first, _ = lines([entry("base", 1, 0.7, (4, 4)), entry("base", 2, 0.6, (4, 4)), entry("ada", 1, 0.8, (1, 1))])
        axes = Figure().subplots()
        _draw(axes, first)
        assert axes.get_lines()[0].get_xdata() == pytest.approx([70, 70])

    def test_chance_does_not_look_like_a_result(self, lines):
        for dice, span in ((0.701, (66.05, 74.05)), (0.9, (69.2, 90.8))):
            first, _ = lines([entry("base", 1, 0.7, (4, 4)), entry("ada", 1, dice, (1, 1))])
            axes = Figure().subplots()
            _draw(axes, first)
            assert axes.get_xlim() == pytest.approx(span)

    def test_draws_nothing_before_the_first_run(self, layout, tmp_path):
        draw_overview(layout, [], tmp_path / "none.png")
        assert not (tmp_path / "none.png").exists()


class TestPage:
    def test_shows_means_deviations_and_differences(self, layout):
        patients = [{"one": 0.5, "two": 0.7}, {"one": 0.6, "two": 0.9}]
        entries = [
            entry("ada", 2, 0.84, (2.0, 30.0), patients=patients[1]),
            entry("ada", 1, 0.80, (1.0, 10.0), patients=patients[1]),
            entry("ada", 3, 0.82, (3.0, 20.0), patients=patients[1]),
            entry("base", 1, 0.70, (4.0, 4.0), patients=patients[0]),
            entry("base", 2, 0.72, (4.0, 4.0), patients=patients[0]),
        ]
        found = blocks(layout, entries, [])
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found["acdc-first"].splitlines()]
        assert ["DSC, % (seeds)", "seed 1, 2 alone", "all classes", "RV", "LV", "thousand images trained on"] in rows
        assert ["AdaWAC (3)", "82.0 ± 2.8", "82.0 ± 2.0", "72.0 ± 2.0", "92.0 ± 2.0", "200 ± 0"] in rows
        assert ["baseline (2)", "71.0 ± 1.4", "71.0 ± 1.4", "61.0 ± 1.4", "81.0 ± 1.4", "100 ± 0"] in rows
        start = rows.index(["HD95, voxel", "all classes", "RV", "LV", "missed, by seed"])
        assert [row[:2] for row in rows[start + 2 : start + 5]] == [
            ["baseline, both", "4.0 ± 0.0"],
            ["AdaWAC, `adawac`", "2.0 ± 1.0"],
            ["AdaWAC, `strict`", "20.0 ± 10.0"],
        ]
        # Seeds 1 and 2, which both have; over patients +10 and +20.
        [difference] = [row for row in rows if row[0] == "AdaWAC − baseline"]
        assert difference == ["AdaWAC − baseline", "2", "+11.0 ± 1.4", "+10.0, +12.0", "+10.0 to +20.0", "0.5"]
        assert "much too long" not in found["acdc-first"]
        # A row without a run is not held against anything.
        published = rows.index(["DSC, %, beside what was published", "all classes", "RV", "LV"])
        assert rows[published + 2 : published + 5] == [
            ["a paper's", "90.0", "91.0", "89.0"],
            ["AdaWAC − these", "-8.0 ± 2.0", "-19.0 ± 2.0", "+3.0 ± 2.0"],
            [""],
        ]

    def test_the_first_pages_show_what_both_rows_of_a_line_have(self, layout):
        entries = [entry("ada", seed, dice, (1.0, 1.0)) for seed, dice in ((1, 0.8), (2, 0.9), (3, 0.1))]
        entries += [entry("base", seed, 0.7, (1.0, 1.0)) for seed in (1, 2)]
        lines = blocks(layout, entries, [])["acdc-short"].splitlines()
        assert lines[2:] == ["| small | 2 | 70.0 ± 0.0 | 85.0 ± 7.1 | +15.0 ± 7.1 |"]
        assert blocks(layout, [], [])["acdc-short"] == ""

    def test_rows_with_the_same_seeds_have_no_column_for_them(self, layout):
        found = blocks(layout, [entry(row, 1, 0.8, (1.0, 1.0)) for row in ("ada", "base")], [])
        assert "| DSC, % (seeds) | all classes | RV |" in found["acdc-first"]

    def test_a_group_without_runs_is_named_and_has_no_section(self, layout):
        found = blocks(layout, [entry("base", 1, 0.7, (4.0, 4.0))], [])
        assert found["acdc-second"] == ""
        assert found["acdc-missing"] == "Not run yet: Does it help? (3 of 4 runs); And elsewhere? (2 of 2 runs)."
        assert "1 run and 2 minutes" in found["acdc-total"]
        assert "A machine, torch 2.0, adawac 0.1" in found["acdc-total"]
        assert "| baseline (1) | 70.0 | 60.0 | 80.0 | 100 |" in found["acdc-first"]
        assert found["acdc-separation"] == ""

    def test_rows_of_other_blocks_stand_beside(self, layout):
        entries = [entry("base", 1, 0.7, (4.0, 4.0)), entry("half", 1, 0.6, (4.0, None), group="second")]
        text = blocks(layout, entries, [])["acdc-second"]
        assert text.index("| baseline, all (1) | 70.0 ") < text.index("| half (1) | 60.0 ")
        assert "`data.subset=half-slice`" in text
        assert "| half, `strict` | – | – | – | 2 |" in text

    def test_shows_what_the_weights_follow(self, layout, tmp_path):
        numbers = dict.fromkeys(_MEASURES, 0.25)
        separation = [{**numbers, "beta_auc": auc, "beta_by_group": {"NOR": auc, "RV": 0.5}} for auc in (0.5, 0.7)]
        entries = [
            entry("ada", seed, 0.8, (1.0, 1.0), separation=numbers)
            for seed, numbers in zip((1, 2), separation, strict=True)
        ]
        (tmp_path / "there.png").touch()
        pictures = [Picture("ada", "weights", tmp_path / f"{name}.png", "β") for name in ("there", "absent")]
        text = blocks(layout, [*entries, entry("base", 1, 0.7, (4.0, 4.0))], pictures)["acdc-separation"]
        assert "### From scratch\n\n| after the last epoch | Small network |\n" in text
        assert "### Not run" not in text
        assert "| AUC of β: label-dense above label-sparse | 0.60 ± 0.14 |" in text
        assert "| mean β, NOR | 0.60 ± 0.14 |" in text
        assert "| label-sparse slices | 30 of 1000 |" in text
        assert "(assets/there.png)" in text
        assert "absent.png" not in text

    def test_nothing_run_says_so(self, layout):
        found = blocks(layout, [], [])
        assert found["acdc-total"].startswith("No runs yet")
        assert not any(found[name] for name in ("acdc-first", "acdc-second", "acdc-separation"))


class TestGap:
    def test_a_grid_as_fine_as_the_images_loses_nothing(self, tmp_path, monkeypatch):
        prepare(phantom_source(2, 0, size=48, slices=(4, 6), sparse=0), None, tmp_path / "store", progress=False)
        store = Store(tmp_path / "store")
        cases = list(store.table.cases)
        monkeypatch.setattr(gap, "SIZE", store.stack(cases[0])[1].shape[1:])
        assert set(gap.through_the_grid(store, cases).values()) == {100.0}
        monkeypatch.setattr(gap, "SIZE", (12, 12))
        assert 0 < gap.through_the_grid(store, cases)["mean"] < 99

    def test_patients_count_once_with_the_mean_of_their_seeds(self):
        seeds = [{"a": 0.9, "b": 0.2, "c": 0.4, "d": 0.7}, {"a": 0.7, "b": 0.6, "c": 0.4, "d": 0.7}]
        entries = [{"row": "ours", "patients": patients} for patients in seeds] + [{"row": "other", "patients": {}}]
        found = gap.by_patient("ours", entries)
        assert (found["seeds"], found["all"], found["others"]) == pytest.approx((2, 57.5, 75))
        assert found["lowest"] == pytest.approx({"b": 40, "c": 40})


class TestBrightScans:
    def test_a_patient_is_as_bright_as_its_labelled_voxels(self, store):
        opened = Store(store)
        found = bright_scans.brightness(opened)
        tests = opened.table.take(opened.table.split == "test")
        assert set(found) == set(tests.patient.tolist())
        [case, *others] = sorted(set(tests.case[tests.patient == (first := sorted(found)[0])].tolist()))
        assert not others
        images, labels = (np.asarray(stack) for stack in opened.stack(case))
        inside = [image[0][label > 0] for image, label in zip(images, labels, strict=True)]
        assert found[first] == pytest.approx(float(np.concatenate(inside).mean()), rel=1e-5)

    def test_a_run_far_below_the_others_is_named_with_who_it_fails_on(self, tmp_path, monkeypatch):
        runs = {**GRID["runs"], "ada": {**GRID["runs"]["ada"], "seeds": [1, 2]}}
        grid = write_study(tmp_path, runs=runs).grid
        bright = {"dark": 0.1, "grey": 0.2, "white": 0.9}
        rising, falling = (dict(zip(bright, values, strict=True)) for values in ((0.7, 0.8, 0.9), (0.9, 0.8, 0.3)))
        entries = [
            entry("base", 1, 0.8, (1, 1), patients=rising),
            entry("ada", 1, 0.8, (1, 1), patients=rising),
            entry("ada", 2, 0.7, (1, 1), patients=falling),
            entry("ada", 3, 0.1, (1, 1), patients=falling),  # not on the list
            entry("broken", 1, 0.8, (1, 1), patients={"dark": 0.5}),  # other patients
        ]
        found = bright_scans.describe(entries, bright, grid)
        assert found["brightest"] == "white"
        assert [(kind["consistency"], kind["runs"], kind["lowest"], kind["highest"]) for kind in found["kinds"]] == [
            (False, 1, pytest.approx(1), pytest.approx(1)),
            (True, 2, pytest.approx(-1), pytest.approx(1)),
        ]
        drawn = []
        monkeypatch.setattr(bright_scans, "save_small", lambda picture, path: drawn.append(picture))
        bright_scans.draw(entries, {"brightness": bright, **found}, grid)
        lines = {line.get_label(): line.get_ydata() for line in drawn[0].figure.axes[0].get_lines()}
        assert lines["ada-seed2"] == pytest.approx([90, 80, 30])  # the brightest patient is the last one
        [second] = found["far"]
        assert (second["name"], second["spearman"], second["brightest"]) == ("ada-seed2", pytest.approx(-1), 30)
        assert (second["dice"], second["others"]) == pytest.approx((70, 80))
