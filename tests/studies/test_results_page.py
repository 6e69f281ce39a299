"""The studies: their grids, what is kept of runs, and what the pages make of it. All numbers here are made up."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

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
from studies import collect, render
from studies import layout as layout_module
from studies.acdc import analyses, bright_scans, ensemble, gap, norm_statistics
from studies.collect import collect_runs, mean_intensity
from studies.entries import _ratio, between_share
from studies.layout import FOLDER, Picture, find_runs, read_grids, read_layout, studies
from studies.overview import _draw, _lines, draw_overview
from studies.page import MEASURES, blocks, expectations, headlines
from studies.recommendations import Study, recommendations

ACDC = FOLDER / "acdc"
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
    "title": "Phantoms",
    "page": "docs/results/phantoms.md",
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


def write_study(folder, page=PAGE, **changes):
    (folder / "grid.yaml").write_text(yaml.safe_dump({**GRID, **changes}, sort_keys=False))
    (folder / "page.yaml").write_text(yaml.safe_dump(page, sort_keys=False))
    return read_layout(folder)


def only_grid(layout):
    [grid] = layout.grids.values()
    return grid


@pytest.fixture
def layout(tmp_path):
    (tmp_path / "study").mkdir()
    return write_study(tmp_path / "study")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("acdc") / "store"
    prepare(phantom_source(6, 0, size=32, slices=(8, 10)), None, folder, progress=False, workers=1)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory, store, forked_jobs):
    """A study of which two runs have been trained and scored."""
    folder = tmp_path_factory.mktemp("study")
    grid = only_grid(write_study(folder))
    found = reproduce(folder / "grid.yaml", folder / "out", data=store, only=["base", "ada"])
    assert not found.failures
    return folder, grid


class TestRuns:
    def test_are_collected_with_what_their_weights_follow(self, trained, store, tmp_path):
        folder, _ = trained
        grid = only_grid(write_study(tmp_path))
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

    def test_collecting_draws_the_overview_and_the_pictures(self, trained, store, tmp_path, monkeypatch):
        folder, _ = trained
        monkeypatch.setattr(layout_module, "ASSETS", tmp_path)
        study = tmp_path / "study"
        study.mkdir()
        pictures = [{"run": "ada-seed1", "figure": "weights", "file": "ada.png", "label": "small"}]
        write_study(study, page={**PAGE, "tables": ["summary"], "pictures": pictures})
        collect.main([str(study), str(folder / "out"), "--store", str(store)])
        assert {path.name for path in tmp_path.glob("*.png")} == {"study-overview.png", "ada.png"}
        texts = blocks(read_layout(study), read_layout(study).entries())
        assert "| AdaWAC | 1 |" in texts["study-first"]
        assert "of Phantoms over the epochs of one AdaWAC run: small]" in texts["study-separation"]

    def test_a_bad_folder_does_not_keep_the_others_from_being_collected(self, trained, tmp_path, caplog):
        folder, _ = trained
        shutil.copytree(folder / "out" / "runs", tmp_path / "copied")
        grid = only_grid(write_study(tmp_path))
        runs = find_runs(grid, [tmp_path / "copied"])
        bad = runs["ada-seed1"].folder
        (bad / "metrics.jsonl").unlink()
        for run in runs.values():
            (run.folder / "history.bin").unlink()  # it is large, and may stay behind where a run is copied from
        assert collect_runs(grid, [tmp_path / "copied"]) == ["base-seed1"]
        (entry,) = read_entries(grid.results)
        assert "ends" not in entry
        assert entry["separation"]["beta_dense"] == 1
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


class TestStudies:
    """The studies' own files."""

    @pytest.mark.parametrize("study", studies(), ids=lambda study: study.name)
    def test_every_row_is_shown_and_every_name_on_the_page_is_a_row(self, study):
        layout = read_layout(study)
        blocks_ = [block for group in layout.groups for block in group.blocks]
        cells = {cell for of_study in layout.matrices.values() for cell in of_study.cells}
        assert {row for block in blocks_ for row in block.rows} | (cells & set(layout.rows)) == set(layout.rows)
        shown = {row for block in blocks_ for row in (*block.labels, *block.paper, *block.published)}
        shown |= {row for _, *pair in (*layout.short, *layout.expect) for row in pair}
        assert shown | {row for labels in layout.weights.values() for row in labels} <= set(layout.rows)
        for block in blocks_:
            assert {row for pair in block.compare for row in pair} <= set(block.labels)

    def test_the_tenth_of_the_patients(self):
        folder = ACDC / "acdc_ten_percent"
        lists = {path.stem: path.read_text().splitlines()[1:] for path in folder.iterdir()}
        assert {side: len(names) for side, names in lists.items()} == {"train": 7, "val": 10, "test": 20}
        assert all(paper_split(name) == side for side, names in lists.items() for name in names)
        assert [group_by_number(name) for name in lists["train"]] == ["HCM", "MINF", "MINF", "NOR", "NOR", "RV", "RV"]
        assert read_layout(ACDC).rows["ten-percent-hold"].config.data.split == str(folder)

    def test_our_recipe_is_what_was_chosen(self):
        chosen = read_layout(ACDC).rows["long-unet-paper"]
        recipe = decisive_settings(to_dict(load(TrainConfig, recipe_path("strong"))))
        measured = decisive_settings(to_dict(chosen.config))
        assert {path: value for path, value in measured.items() if path != "hardware.precision"} == recipe


def test_the_pages_are_what_the_results_render_to():
    layouts = [read_layout(study) for study in studies()]
    made = render.texts(layouts)
    for path in render.pages(layouts):
        text = path.read_text()
        assert render.rendered(text, made) == text, f"{path}: run `python -m studies.render`"
        assert text.count("<!-- end -->") == text.count("<!--") / 2 >= 1


def test_seeds_together_stand_in_a_table(layout):
    scores = {"dice": {"mean": 88.04, "RV": 87.0, "LV": 89.1}, "hd95": {"mean": 2.26, "RV": 3.0, "LV": 1.5}}
    rows = {"ada": {"seeds": [2, 3], "cases": 40, "scores": {"as predicted": scores}}}
    assert analyses.ensemble({"rows": rows}, layout).splitlines() == [
        "| DSC, % | all classes | RV | LV | HD95, voxel |",
        "| --- | --- | --- | --- | --- |",
        "| AdaWAC, 2 seeds, as predicted | 88.0 | 87.0 | 89.1 | 2.3 |",
    ]


def test_recommendations_are_settings_of_the_grid_with_the_gains_of_its_runs():
    grid = only_grid(read_layout(ACDC))
    base = {"unet-baseline": 0.8, "ten-percent-baseline": 0.6, "lite0-baseline": 0.85, "final-long-baseline": 0.9}
    above = {
        **{"ten-percent-hold": 0.65, "ten-percent-paper-hold": 0.55, "unet-paper": 0.87, "unet-acr-only": 0.86},
        **{"unet-adawac": 0.85, "unet-eta8-lambda8": 0.7, "lite0-paper": 0.84, "final-long-paper": 0.9},
    }
    entries = [entry(row, seed, dice, (1, 1)) for row, dice in (base | above).items() for seed in (1, 2)]
    entries += [entry("unet-eta1-lambda0.5", seed, dice, (1, 1)) for seed, dice in ((1, 0.88), (2, 0.6))]
    rows = {"unet-full-baseline": 0.7, "unet-full-pair": 0.69, "unet-full-adawac": 0.74}
    synapse = Study(
        only_grid(read_layout(FOLDER / "synapse")), [entry(row, 1, dice, (1, 1)) for row, dice in rows.items()]
    )
    lgg = Study(grid, [entry(row, 1, dice, (1, 1)) for row, dice in {"baseline": 0.72, "official": 0.71}.items()])
    found = recommendations(Study(grid, entries), synapse, lgg)
    many = found["many_sparse"]
    assert many["settings"] == {
        "method.preset": "official",
        "method.options.eta_beta": 8.0,
        "method.options.lambda_ac": 2.0,
    }
    evidence = many["evidence"]
    assert (evidence["over_baseline"]["gains"], evidence["over_pair"]["mean"]) == ([4.0], 5.0)
    assert (evidence["label_sparse"], evidence["lgg"]["mean"]) == (0.03, -1.0)
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
        found = blocks(layout, entries)
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found["study-first"].splitlines()]
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
        assert not any(row[0].startswith("much too long") for row in rows)
        assert rows[-1] == ["Not run yet: much too long; no such network."]
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
        lines = blocks(layout, entries)["study-short"].splitlines()
        assert lines[2:] == ["| small | 2 | 70.0 ± 0.0 | 85.0 ± 7.1 | +15.0 ± 7.1 |"]
        assert blocks(layout, [])["study-short"] == ""

    def test_rows_with_the_same_seeds_have_no_column_for_them(self, layout):
        found = blocks(layout, [entry(row, 1, 0.8, (1.0, 1.0)) for row in ("ada", "base")])
        assert "| DSC, % (seeds) | all classes | RV |" in found["study-first"]

    def test_a_group_without_runs_is_named_and_has_no_section(self, layout):
        found = blocks(layout, [entry("base", 1, 0.7, (4.0, 4.0))])
        assert found["study-second"] == ""
        assert found["study-missing"] == "Not run yet: Does it help? (3 of 4 runs); And elsewhere? (2 of 2 runs)."
        assert "1 run and 2 minutes" in found["study-total"]
        assert "A machine, torch 2.0, adawac 0.1" in found["study-total"]
        assert "| baseline (1) | 70.0 | 60.0 | 80.0 | 100 |" in found["study-first"]
        assert found["study-separation"] == ""

    def test_rows_of_other_blocks_stand_beside(self, layout):
        entries = [entry("base", 1, 0.7, (4.0, 4.0)), entry("half", 1, 0.6, (4.0, None), group="second")]
        text = blocks(layout, entries)["study-second"]
        assert text.index("| baseline, all (1) | 70.0 ") < text.index("| half (1) | 60.0 ")
        assert "`data.subset=half-slice`" in text
        assert "| half, `strict` | – | – | – | 2 |" in text

    def test_shows_what_the_weights_follow(self, layout, tmp_path):
        numbers = dict.fromkeys(MEASURES, 0.25)
        separation = [{**numbers, "beta_auc": auc, "beta_by_group": {"NOR": auc, "RV": 0.5}} for auc in (0.5, 0.7)]
        entries = [
            entry("ada", seed, 0.8, (1.0, 1.0), separation=numbers)
            for seed, numbers in zip((1, 2), separation, strict=True)
        ]
        (tmp_path / "there.png").touch()
        pictures = [
            Picture(run="ada", figure="weights", path=tmp_path / f"{name}.png", text="β")
            for name in ("there", "absent")
        ]
        layout = replace(layout, page=tmp_path / "pages" / "study.md", pictures=pictures)
        text = blocks(layout, [*entries, entry("base", 1, 0.7, (4.0, 4.0))])["study-separation"]
        assert "### From scratch\n\n| after the last epoch | Small network |\n" in text
        assert "### Not run" not in text
        assert "| AUC of β: label-dense above label-sparse | 0.60 ± 0.14 |" in text
        assert "| mean β, NOR | 0.60 ± 0.14 |" in text
        assert "| label-sparse slices | 30 of 1000 |" in text
        assert "![β](../there.png)" in text
        assert "absent.png" not in text

    def test_a_summary_stands_beside_the_papers_cells(self, tmp_path):
        first = PAGE["groups"]["first"]
        cells = {name: ["table-5", "full", cell] for name, cell in (("base", "baseline"), ("ada", "AdaWAC"))}
        block = {**first["blocks"][0], "tables": ["summary", "differences"], "paper": cells}
        page = {**PAGE, "caveat": "Mind the voxels.", "groups": {"first": {**first, "blocks": [block]}}}
        entries = [
            entry("base", 1, 0.7, (4.0, 40.0)),
            entry("ada", 1, 0.8, (2.0, 2.0)),
            entry("ada", 2, 0.9, (4.0, 2.0)),
        ]
        text = blocks(write_study(tmp_path, page), entries)[f"{tmp_path.name}-first"]
        assert "\n\nWe ask. Mind the voxels.\n\n" in text
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
        header = (
            "scored by `adawac` | seeds | DSC, % | the paper | HD95, voxel | the paper | DSC, `strict` | HD95, `strict`"
        )
        start = rows.index([*header.split(" | "), "missed, by seed"])
        assert rows[start + 2 : start + 4] == [
            ["baseline", "1", "70.0", "74.04 ± 1.52", "4.0", "36.65 ± 0.33", "70.0", "40.0", "2"],
            [
                "AdaWAC",
                "2",
                "85.0 ± 7.1",
                "76.71 ± 0.62",
                "3.0 ± 1.4",
                "30.67 ± 2.85",
                "85.0 ± 7.1",
                "2.0 ± 0.0",
                "2, 2",
            ],
        ]
        entries[0]["scores"]["strict"]["unit"] = "mm"
        assert "| HD95, `strict`, mm or voxel |" in blocks(read_layout(tmp_path), entries)[f"{tmp_path.name}-first"]
        [difference] = [row for row in rows if row[0] == "AdaWAC − baseline"]
        assert (difference[1:4], difference[-1]) == (["1", "+10.0", "+10.0"], "+2.67")

    def test_another_convention_has_a_summary_of_its_own(self, tmp_path):
        first = PAGE["groups"]["first"]
        block = {"title": "Strict", "beside": {"ada": "AdaWAC"}, "tables": ["summary"], "convention": "strict"}
        page = {**PAGE, "groups": {"first": {**first, "blocks": [block]}}}
        text = blocks(write_study(tmp_path, page), [entry("ada", 1, 0.8, (1.0, 9.0))])[f"{tmp_path.name}-first"]
        assert "| scored by `strict` | seeds | DSC, % | HD95, voxel | missed, by seed |" in text
        assert "| AdaWAC | 1 | 80.0 | 9.0 | 2 |" in text

    def test_blocks_together_are_one_table(self, tmp_path):
        tagged = zip("ab", PAGE["groups"].values(), strict=True)
        blocks_ = [{**block, "tag": tag} for tag, group in tagged for block in group["blocks"]]
        group = {"title": "All", "text": "Both.", "together": True, "blocks": blocks_}
        page = {**PAGE, "groups": {"all": group}}
        entries = [entry(row, 1, dice, (1.0, 1.0)) for row, dice in (("base", 0.7), ("ada", 0.8), ("half", 0.6))]
        text = blocks(write_study(tmp_path, page), entries)[f"{tmp_path.name}-all"]
        assert text.count("\n| --- ") == 2
        assert [line.split(" | ")[0] for line in text.splitlines() if ": " in line] == [
            "| a: baseline (1)",
            "| a: AdaWAC (1)",
            "| b: half (1)",
            "| a: AdaWAC − baseline",
        ]

    def test_nothing_run_says_so(self, layout):
        found = blocks(layout, [])
        assert found["study-total"].startswith("No runs yet")
        assert not any(found[name] for name in ("study-first", "study-second", "study-separation"))


class TestSeveralGrids:
    @pytest.fixture
    def layout(self, tmp_path):
        """A study of candidates on two data sets."""
        for name in ("first", "second"):
            grid = {**GRID, "results": f"{name}.json", "seeds": [1, 2]}
            (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(grid, sort_keys=False))
        settings = {"first/": "First", "second/": "Second"}
        candidates = {"base": "baseline", "ada": "AdaWAC", "endless": "endless", "unplanned": "in no grid"}
        page = {
            "title": "Both",
            "page": "both.md",
            "matrices": {"all": {"candidates": candidates, "settings": settings}},
        }
        (tmp_path / "page.yaml").write_text(yaml.safe_dump(page, sort_keys=False))
        return read_layout(tmp_path)

    @staticmethod
    def write(layout, grid, *entries):
        Path(layout.grids[f"{grid}/"].results).write_text(json.dumps({"runs": entries}))

    def table(self, layout):
        lines = blocks(layout, layout.entries())[f"{layout.name}-all"].splitlines()
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]

    def test_candidates_stand_against_settings(self, layout):
        assert self.table(layout) == [["Not run yet: 6 of 6 cells."]]
        missing = blocks(layout, [])[f"{layout.name}-missing"]
        assert missing == "Not run yet: first (10 of 10 runs); second (10 of 10 runs)."
        scores = (("base", 1, 0.7), ("base", 2, 0.6), ("ada", 1, 0.8), ("ada", 2, 0.55))
        self.write(layout, "first", *(entry(row, seed, dice, (1, 1)) for row, seed, dice in scores))
        assert [row[:2] for row in self.table(layout)][-1] == ["Not run yet: 4 of 6 cells."]
        self.write(layout, "second", entry("ada", 1, 0.5, (1, 1)), entry("base", 2, 0.4, (1, 1)))
        header, _, base, ada, _, missing = self.table(layout)
        assert header[1:] == ["First", "Second", "lowest mean of these", "lowest of a seed"]
        assert base == ["baseline", "65.0 ± 7.1", "40.0", "", ""]
        assert ada == ["AdaWAC", "67.5 ± 17.7 (+10.0, -5.0)", "50.0", "+2.5", "-5.0"]
        assert missing == ["Not run yet: 2 of 6 cells."]

    def test_validations_may_be_the_score(self, layout):
        last = {"base": [0.1, 0.2, 0.4], "ada": [0.9, 0.5, 0.7]}
        self.write(layout, "first", *({**entry(row, 1, 0, (1, 1)), "validated": dice} for row, dice in last.items()))
        matrices = {"all": replace(layout.matrices["all"], validations=2)}
        _, _, base, ada, *_ = self.table(replace(layout, matrices=matrices))
        assert (base[1], ada[1]) == ("30.0", "60.0 (+30.0)")

    def test_validations_stand_in_for_test_scores(self, layout, monkeypatch):
        last = {"base": [0.1, 0.2, 0.4], "ada": [0.9, 0.5, 0.7]}
        self.write(layout, "first", *({**entry(row, 1, 0, (1, 1)), "validated": dice} for row, dice in last.items()))
        monkeypatch.setattr("studies.page._ON_FOLDS", ("ada", "endless"))
        defaults = replace(layout, matrices={"candidates": replace(layout.matrices["all"], validations=2)})
        study = replace(layout, name="first", title="First", grids={}, expect=[("small", "base", "ada")])
        said = "test cases not scored yet; on validation cases\n    - AdaWAC: +30.0 (1 seed)"
        page = study.page.parent / "index.md"
        assert expectations([study], page, defaults) == f"- **[First](both.md)**: {said}"
        short = headlines([study], page, defaults)
        assert short.startswith("- **[First](both.md)**, ")
        assert short.endswith("without a label: +30.0 (1 seed), on [validation cases](both.md)")

    def test_a_grid_alone_is_collected(self, trained, tmp_path, layout):
        folder, _ = trained
        collect.main([str(tmp_path / "second.yaml"), str(folder / "out")])
        assert not (tmp_path / "first.json").exists()
        assert [entry["name"] for entry in layout.entries()] == ["second/base-seed1", "second/ada-seed1"]


def test_the_overview_says_what_was_run_and_what_was_not(layout, tmp_path):
    expect = [("small", "base", "ada"), ("never run", "endless", "ada"), ("half", "half", "ada")]
    layout = replace(layout, page=tmp_path / "pages" / "phantoms.md", expect=expect)
    page, defaults = tmp_path / "index.md", read_layout(FOLDER / "defaults")
    assert expectations([layout], page, defaults) == "- **[Phantoms](pages/phantoms.md)**: not run yet"
    entries = [entry("base", 1, 0.7, (1, 1)), entry("ada", 1, 0.8, (1, 1)), entry("ada", 2, 0.1, (1, 1))]
    Path(only_grid(layout).results).write_text(json.dumps({"runs": entries}))
    share = "3 % of the training slices without a label"
    line, part = expectations([layout], page, defaults).split("\n")
    assert line == f"- **[Phantoms](pages/phantoms.md)**, {share}:"
    assert part == "    - small: +10.0 (1 seed)"
    half = [entry("half", 1, 0.7, (1, 1)), entry("ada", 1, 0.8, (1, 1))]  # not the row of all samples
    Path(only_grid(layout).results).write_text(json.dumps({"runs": half}))
    assert expectations([layout], page, defaults) == "- **[Phantoms](pages/phantoms.md)**:\n    - half: +10.0 (1 seed)"
    assert headlines([layout], page, defaults) == "- **[Phantoms](pages/phantoms.md)**: not run yet"


def test_the_first_page_quotes_the_first_comparison_of_each_study(layout, tmp_path):
    layout = replace(
        layout, page=tmp_path / "pages" / "phantoms.md", expect=[("a", "base", "ada"), ("b", "half", "ada")]
    )
    runs = {("base", 1): 0.7, ("base", 2): 0.6, ("ada", 1): 0.8, ("ada", 2): 0.8, ("half", 1): 0.1}
    made = [entry(row, seed, dice, (1, 1)) for (row, seed), dice in runs.items()]
    Path(only_grid(layout).results).write_text(json.dumps({"runs": made}))
    line = headlines([layout], tmp_path / "index.md", read_layout(FOLDER / "defaults"))
    assert line == (
        "- **[Phantoms](pages/phantoms.md)**, 3 % of the training slices without a label: +15.0 ± 7.1 (2 seeds)"
    )


@pytest.mark.parametrize("study", [study for study in studies() if read_grids(study)], ids=lambda study: study.name)
def test_a_study_whose_rows_have_all_been_run_shows_every_section(study):
    layout = read_layout(study)
    dice = {row: 0.5 + number / 1000 for number, row in enumerate(layout.rows)}
    made = [entry(name, seed, dice[name], (1.0, 2.0)) for name, row in layout.rows.items() for seed in row.seeds]
    for run in made:
        run["scores"]["transunet"] = run["scores"]["strict"]
        run["validated"] = [0.4, 0.5]
    texts = blocks(layout, made)
    assert texts[f"{layout.name}-missing"] == "Everything on the list has been run."
    for group in layout.groups:
        text = texts[f"{layout.name}-{group.name}"]
        assert text.startswith(f"## {group.title}\n\n{group.text}")
        assert "Not run yet" not in text
        assert group.together or text.count("\n### ") == len(group.blocks)
    for name in layout.matrices:
        assert texts[f"{layout.name}-{name}"].startswith("| DSC, %")
    assert texts[f"{layout.name}-short"].count("\n") == (1 + len(layout.short) if layout.short else 0)


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
        grid = only_grid(write_study(tmp_path, runs=runs))
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
