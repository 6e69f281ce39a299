"""The runs on ACDC: the driver trains, skips and collects; the page says what was collected."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import adawac
from adawac.config import TrainConfig, load, to_dict
from adawac.config.settings import recipe_path
from adawac.data.phantom.scanner import phantom_source
from adawac.data.preparation import prepare
from adawac.data.recommendation import how_to_set
from adawac.runs import Run
from tests.places import REPOSITORY

BENCHMARKS = REPOSITORY / "benchmarks"
LIST = """
set:
  epochs: 2
  checkpoint_every: 2
  data.image_size: [32, 32]
  data.batch_size: 16
  model.name: smp:Unet/resnet18
  model.options: {encoder_depth: 3, decoder_channels: [16, 8, 8]}
  method.preset: official
  method.options: {eta_beta: 8.0, lambda_ac: 2.0}
  optim.lr: 0.05
  hardware.accelerator: cpu
  hardware.precision: fp32
rates: {smp:Unet/resnet18: {1: 100, 2: 50}, nonsense: {1: 100, 2: 50}}
overhead: 10
short: [[small, base, ada], [never run, endless, ada]]
weights: {From scratch: {ada: Small network, base: Has none}, Not run: {half: Half}}
groups:
  first:
    title: Does it help?
    text: We ask.
    blocks:
      - title: Small networks
        seeds: [1]
        rows:
          base: {label: baseline, set: {method.name: baseline}}
          endless: {label: much too long, set: {method.name: baseline, epochs: 1000000}}
          broken: {label: no such network, set: {model.name: nonsense}}
          ada: {label: AdaWAC, set: {method.name: adawac}}
        published:
          ada: {label: "a paper's", mean: 90, RV: 91, LV: 89}
          broken: {label: never run, mean: 1, RV: 1, LV: 1}
        compare: [[ada, base]]
  second:
    title: And elsewhere?
    text: Who knows.
    blocks:
      - title: Half of it
        part: val
        seeds: [1, 2]
        set: {data.subset: half-slice}
        beside: {base: "baseline, all"}
        rows:
          half: {label: half, set: {method.name: baseline}}
"""


@pytest.fixture(scope="module")
def acdc():
    sys.path.insert(0, str(BENCHMARKS))
    import acdc

    return acdc


@pytest.fixture(scope="module")
def runlist(acdc):
    import acdc_list

    return acdc_list


@pytest.fixture(scope="module")
def page(acdc):
    import results_page

    return results_page


@pytest.fixture
def listing(acdc, tmp_path):
    (tmp_path / "list.yaml").write_text(LIST)
    return acdc.read_list(tmp_path / "list.yaml")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("acdc") / "store"
    prepare(phantom_source(6, 0, size=32), None, folder, progress=False)
    return folder


def interrupted(*_):
    raise KeyboardInterrupt


class TestDriver:
    @pytest.fixture
    def drive(self, acdc, listing, store, tmp_path, capsys):
        def drive(command, *more, seconds=600):
            files = ["--list", str(tmp_path / "list.yaml"), "--results", str(tmp_path / "acdc.json")]
            files += ["--overview", str(tmp_path / "overview.png")]
            timed = [str(store), str(tmp_path / "runs"), "--seconds", str(seconds)]
            code = acdc.main([*files, command, *(timed if command == "train" else [str(tmp_path / "runs")]), *more])
            return code, capsys.readouterr().out

        return drive

    def test_trains_what_fits_and_collects_it(self, runlist, drive, listing, tmp_path):
        code, out = drive("train", "--only", "first")
        lines = [line.split(": ", 1) for line in out.splitlines()]
        assert [name for name, _ in lines] == ["base-seed1", "endless-seed1", "broken-seed1", "ada-seed1"]
        assert "left out" in lines[1][1]
        assert lines[2][1].startswith("failed, Expected the name of a model")
        assert all("slices/s, adawac DSC" in lines[place][1] for place in (0, 3))
        assert code == 1  # one of them failed; the others did not mind

        runs = tmp_path / "runs"
        assert sorted(path.name for path in runs.iterdir()) == ["ada-seed1", "base-seed1"]
        assert not list(runs.glob("*/checkpoints"))
        before = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
        _, out = drive("train", "--only", "ada-*", "base-*")
        assert out == ""  # their folders are complete
        assert {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()} == before

        assert drive("collect")[0] == 0
        assert (tmp_path / "overview.png").read_bytes().startswith(b"\x89PNG")
        base, ada = json.loads((tmp_path / "acdc.json").read_text())["runs"]
        assert (base["name"], base["row"], base["group"], base["seed"]) == ("base-seed1", "base", "first", 1)
        assert (base["views"], ada["views"], ada["epochs"], ada["part"]) == (1, 2, 2, "test")
        assert ada["settings"] == runlist.settings(to_dict(listing.runs[3].config(None)))
        assert ada["train_seconds"] > 0
        scores = Run(runs / "ada-seed1").scores("test-strict-last")
        by_class = {one.class_name: [] for one in scores}
        for one in scores:
            if one.metric == "dice":
                by_class[one.class_name].append(one.value)
        means = {name: np.mean(values) for name, values in by_class.items()}
        for convention in ("adawac", "strict"):
            dice = ada["scores"][convention]["dice"]
            assert dice == pytest.approx({**means, "mean": np.mean(list(means.values()))}, rel=1e-4, abs=1e-9)
        assert base["separation"] is None  # its weights are all 1
        assert 0 <= ada["separation"]["beta_auc"] <= 1
        assert set(ada["separation"]["beta_by_group"]) <= {"slim", "average", "heavy"}
        assert (ada["ends"]["batch"], ada["ends"]["last_batch"]) == (16, ada["samples"] % 16)

        shutil.rmtree(runs)
        assert drive("train", "--only", "ada-*")[1] == ""  # its result stands

    def test_goes_on_where_it_was_stopped(self, drive, tmp_path):
        assert drive("train", "--only", "base-*", "--keep-checkpoints")[0] == 0
        [folder] = (tmp_path / "runs").iterdir()
        assert (folder / "checkpoints" / "last.safetensors").is_file()
        trained, scores = (folder / "run.json").read_bytes(), sorted((folder / "scores").iterdir())
        scores[-1].unlink()  # as if killed between two evaluations
        code, out = drive("train", "--only", "base-*", "--keep-checkpoints")
        assert (code, out.count("base-seed1")) == (0, 1)
        assert (folder / "run.json").read_bytes() == trained  # evaluated, not trained again
        assert sorted((folder / "scores").iterdir()) == scores

        info = json.loads(trained)
        shutil.rmtree(folder / "scores")
        (folder / "run.json").write_text(json.dumps({**info, "status": "running"}))  # as if killed while training
        assert drive("train", "--only", "base-*")[0] == 0
        assert Run(folder).status == "finished"
        assert len(Run(folder).evaluations) == 2
        assert Run(folder).epoch == 2

    def test_scores_the_seeds_of_a_row_together(self, drive, store, tmp_path):
        import ensemble

        hardly_trained = LIST.replace("lr: 0.05", "lr: 0.0000001")  # so it finds all classes everywhere
        (tmp_path / "list.yaml").write_text(hardly_trained)
        assert drive("train", "--only", "base-*", "--keep-checkpoints")[0] == 0
        out = tmp_path / "ensemble.json"
        ensemble.main(
            [str(store), str(tmp_path / "runs"), "base", "--list", str(tmp_path / "list.yaml"), "--out", str(out)]
        )
        row = json.loads(out.read_text())["rows"]["base"]
        [alone] = adawac.evaluate(tmp_path / "runs" / "base-seed1", tta=True, spacing="voxel", gallery=0, workers=0)
        assert (row["seeds"], row["cases"]) == ([1], len({one.case for one in alone.scores}))
        for metric, factor in (("dice", 100), ("hd95", 1)):
            means = {one.class_name: factor * one.mean for one in alone.summaries[metric]}
            assert row["scores"]["as predicted"][metric] == pytest.approx(means)
        assert row["scores"]["as predicted"]["dice"]["mean"] > 0
        assert row["scores"]["largest parts"] != row["scores"]["as predicted"]

    def test_scores_with_the_statistics_of_all_samples(self, drive, store, tmp_path):
        import norm_statistics

        hardly_trained = LIST.replace("lr: 0.05", "lr: 0.0000001")  # so it finds all classes everywhere
        (tmp_path / "list.yaml").write_text(hardly_trained)
        assert drive("train", "--only", "base-*", "--keep-checkpoints")[0] == 0
        out = tmp_path / "statistics.json"
        norm_statistics.main([str(store), str(tmp_path / "runs" / "base-seed1"), "--out", str(out)])
        [found] = json.loads(out.read_text())["runs"]
        [alone] = adawac.evaluate(tmp_path / "runs" / "base-seed1", spacing="voxel", gallery=0, workers=0)
        means = {one.class_name: 100 * one.mean for one in alone.summaries["dice"]}
        assert found["own"]["dice"] == pytest.approx(means)
        assert found["of all samples"] != found["own"]
        assert found["moved"] > 0

    def test_leaves_alone_what_another_process_works_on(self, acdc, drive, tmp_path):
        claimed = tmp_path / "runs" / acdc.CLAIMS / "base-seed1"
        claimed.mkdir(parents=True)
        lock = acdc.FolderLock(claimed)
        code, out = drive("train", "--shared", "2", "--only", "base-*", "ada-*")
        lock.release()
        assert code == 0
        assert [line.split(":")[0] for line in out.splitlines()] == ["ada-seed1"]
        drive("collect")
        [entry] = json.loads((tmp_path / "acdc.json").read_text())["runs"]
        assert entry["shared"]
        assert drive("train", "--shared", "2", "--only", "base-*")[1].startswith("base-seed1")  # it is free now

    def test_several_processes_share_the_list(self, acdc, drive, tmp_path, monkeypatch):
        monkeypatch.setenv("PYTHONPATH", str(Path(adawac.__file__).parents[1]))
        assert drive("train", "--processes", "2", "--only", "base-*")[0] == 0  # one of them finds it taken
        drive("collect")
        [entry] = json.loads((tmp_path / "acdc.json").read_text())["runs"]
        assert (entry["name"], entry["shared"]) == ("base-seed1", True)
        assert acdc.in_processes(["no such command"], 2) == 2  # what goes wrong in them is passed on

    def test_is_saved_when_time_is_up_and_goes_on_in_parts(self, acdc, drive, tmp_path, monkeypatch):
        monkeypatch.setattr(acdc, "SPARE", 0)
        (tmp_path / "list.yaml").write_text(LIST.replace("overhead: 10", "overhead: 0.1"))
        folder, done = tmp_path / "runs" / "endless-seed1", []
        assert drive("train", "--only", "endless-*", seconds=3)[1].startswith("endless-seed1: left out")
        for _ in range(2):
            code, out = drive("train", "--in-parts", "--only", "endless-*", "base-*", seconds=3)
            assert (code, out) == (130, "stopped: what was begun is saved, the same command goes on\n")
            assert Run(folder).status == "interrupted"
            state = Run(folder).checkpoint().state
            done.append((state["epoch"], state["step"]))
        assert (0, 0) < done[0] < done[1]

    def test_a_signal_saves_even_where_a_shell_keeps_it_from_its_background(self, acdc, listing, store, tmp_path):
        listed = LIST.replace("checkpoint_every: 2", "checkpoint_every: 1000000")  # nothing but the signal saves
        (tmp_path / "list.yaml").write_text(listed.replace("overhead: 10", "overhead: 0.1"))
        files = ["--list", tmp_path / "list.yaml", "--results", tmp_path / "acdc.json"]
        words = [BENCHMARKS / "acdc.py", *files, "train", store, tmp_path / "runs", "--seconds", "600", "--in-parts"]
        process = subprocess.Popen(
            [sys.executable, *map(str, words), "--only", "endless-*"],
            env=os.environ | {"PYTHONPATH": str(Path(adawac.__file__).parents[1])},
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        )
        timing = tmp_path / "runs" / "endless-seed1" / "timing.jsonl"
        while process.poll() is None and not timing.is_file():
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate()
        assert (process.returncode, out.splitlines()[-1][:7]) == (130, "stopped")
        assert Run(timing.parent).checkpoint().state["epoch"] >= 1

    def test_what_a_kill_left_of_a_line_is_no_obstacle(self, acdc, drive, tmp_path):
        timing = tmp_path / "runs" / "base-seed1" / "timing.jsonl"
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(acdc, "_evaluate", interrupted)
            assert drive("train", "--only", "base-*")[0] == 130
        with timing.open("a") as file:
            file.write('{"epoch": 3, "seco')
        info = json.loads((timing.parent / "run.json").read_text())
        (timing.parent / "run.json").write_text(json.dumps({**info, "status": "running"}))
        (tmp_path / "list.yaml").write_text(LIST.replace("epochs: 2", "epochs: 3"))
        assert drive("train", "--only", "base-*")[0] == 0
        assert [json.loads(line)["epoch"] for line in timing.read_text().splitlines()] == [1, 2, 3]
        assert drive("collect")[0] == 0

    def test_one_bad_folder_does_not_keep_the_others_from_being_collected(self, drive, tmp_path):
        assert drive("train", "--only", "base-*", "ada-*")[0] == 0
        (tmp_path / "runs" / "base-seed1" / "history.bin").unlink()
        code, out = drive("collect")
        assert code == 0
        assert out.startswith("base-seed1: left out, ")
        assert [one["name"] for one in json.loads((tmp_path / "acdc.json").read_text())["runs"]] == ["ada-seed1"]

    def test_starts_nothing_without_time(self, drive, tmp_path):
        code, out = drive("train", "--only", "base-*", seconds=25)
        assert code == 0
        assert "left out" in out
        assert not (tmp_path / "runs").exists()

    def test_a_candidate_is_scored_on_the_validation_cases(self, drive, acdc, listing, store, tmp_path):
        lists = tmp_path / "lists"
        lists.mkdir()
        patients = sorted(set(acdc.Store(store).table.patient.tolist()))
        for name, members in {"train": patients[:4], "val": patients[4:5], "test": patients[5:]}.items():
            (lists / f"{name}.txt").write_text("\n".join(members))
        text = LIST.replace("set: {data.subset: half-slice}", f"set: {{data.split: {lists}}}")
        (tmp_path / "list.yaml").write_text(text)
        assert drive("train", "--only", "half-seed1")[0] == 0
        assert drive("collect")[0] == 0
        [entry] = json.loads((tmp_path / "acdc.json").read_text())["runs"]
        assert (entry["part"], list(entry["patients"])) == ("val", patients[4:5])
        assert entry["settings"]["data.split"] == "lists"

    def test_estimates_by_what_was_measured(self, acdc, listing):
        budget = acdc.Budget(listing, 0)
        base, ada = (listing.runs[place].config(None) for place in (0, 3))
        assert budget.needed(base, 1000) == 10 + 1000 / 100
        assert budget.needed(ada, 1000) == 10 + 1000 / 50
        budget.learn(base, 1000, rate=200.0, seconds=8.0)
        assert budget.needed(base, 1000) == 3 + 1000 / 200
        assert budget.needed(ada, 1000) == 3 + 1000 / 50  # two views were not measured


class TestNumbers:
    def test_an_epoch_done_again_counts_once(self, acdc, tmp_path):
        rates = [(1, 9.0, 1.0), (2, 5.0, 10.0), (3, 5.0, 30.0), (2, 1.0, 20.0), (3, 2.0, 40.0), (4, 3.0, 50.0)]
        lines = [json.dumps({"epoch": e, "seconds": s, "slices_per_second": r}) for e, s, r in rates]
        (tmp_path / "timing.jsonl").write_text("\n".join([*lines, ""]))
        assert acdc.read_timing(tmp_path) == (9.0 + 1.0 + 2.0 + 3.0, 45.0)

    def test_the_share_of_variance_between_groups(self, acdc):
        from acdc_entries import between_share

        groups = np.array(["a", "a", "b", "b"])
        assert between_share(np.array([1.0, 1.0, 5.0, 5.0]), groups) == pytest.approx(1)
        assert between_share(np.array([0.0, 2.0, 0.0, 2.0]), groups) == pytest.approx(0)
        assert between_share(np.array([0.0, 2.0, 4.0, 6.0]), groups) == pytest.approx(16 / 20)
        assert between_share(np.ones(4), groups) is None


def test_how_the_losses_of_two_kinds_of_samples_compare(acdc):
    from acdc_entries import _ratio

    values, sparse = np.array([1.0, 3.0, 4.0, 6.0]), np.array([True, True, False, False])
    assert _ratio(values, sparse) == pytest.approx(0.4)
    assert _ratio(values, ~sparse) == pytest.approx(2.5)
    assert _ratio(values, sparse | True) is None
    assert _ratio(values, sparse & False) is None


class TestList:
    def test_every_run_can_be_configured(self, runlist):
        listing = runlist.read_list()
        for run in listing.runs:
            config = run.config(None)
            assert listing.rates[config.model.name][runlist.num_views(config)] > 0
        rows = {run.row for run in listing.runs}
        shown = [row for group in listing.groups for block in group.blocks for row in block.labels]
        assert set(shown) == rows
        for block in (block for group in listing.groups for block in group.blocks):
            assert {row for pair in block.compare for row in pair} <= set(block.labels)

    def test_it_begins_with_three_methods_seed_by_seed(self, acdc):
        names = [run.name for run in acdc.read_list().chosen(["main"])][:9]
        methods = ("baseline", "pair", "adawac")
        assert names == [f"unet-{method}-seed{seed}" for seed in (1, 2, 3) for method in methods]

    def test_runs_are_chosen_in_the_order_of_the_patterns(self, acdc):
        chosen = acdc.read_list().chosen(["best-*", "lite0-pair-*", "lite0-*-seed3"])
        names = [run.name for run in chosen]
        assert len(names) == len(set(names))
        kinds = [name.split("-")[0] for name in names]
        assert kinds == sorted(kinds)  # first the best ones, although they come last in the list
        assert names.index("lite0-pair-seed3") < names.index("lite0-baseline-seed3")

    def test_a_row_may_have_seeds_of_its_own(self, acdc, tmp_path):
        half = "half: {label: half"
        (tmp_path / "list.yaml").write_text(LIST.replace(half, f"{half}, seeds: [3]").replace("[1, 2]", "[7]"))
        assert [run.name for run in acdc.read_list(tmp_path / "list.yaml").chosen(["second"])] == ["half-seed3"]

    def test_a_name_twice_is_refused(self, acdc, tmp_path):
        (tmp_path / "list.yaml").write_text(LIST.replace("half: {label", "base: {label"))
        with pytest.raises(ValueError, match=r"these twice: base-seed1"):
            acdc.read_list(tmp_path / "list.yaml")

    def test_the_tenth_of_the_patients(self):
        from adawac.data.sources.acdc import group_by_number, paper_split

        folder = BENCHMARKS / "acdc_ten_percent"
        lists = {path.stem: path.read_text().splitlines()[1:] for path in folder.iterdir()}
        assert {side: len(names) for side, names in lists.items()} == {"train": 7, "val": 10, "test": 20}
        assert all(paper_split(name) == side for side, names in lists.items() for name in names)
        assert [group_by_number(name) for name in lists["train"]] == ["HCM", "MINF", "MINF", "NOR", "NOR", "RV", "RV"]

    def test_results_are_those_of_the_list(self, acdc, runlist):
        planned = {run.name: run for run in acdc.read_list().runs}
        for entry in acdc.read_results():
            if entry["name"] in planned:
                run = planned[entry["name"]]
                assert entry["settings"] == runlist.settings(to_dict(run.config(None))), f"{run.name}: run it again"
                assert (entry["group"], entry["part"]) == (run.group, run.part)


def test_our_recipe_is_what_was_chosen(runlist):
    [chosen] = [run for run in runlist.read_list().runs if run.name == "long-unet-paper-seed1"]
    recipe = runlist.settings(to_dict(load(TrainConfig, recipe_path("strong"))))
    measured = runlist.settings(to_dict(chosen.config(None)))
    assert {path: value for path, value in measured.items() if path not in ("seed", "hardware.precision")} == recipe


def test_seeds_together_stand_in_a_table(acdc):
    import render

    scores = {"dice": {"mean": 88.04, "RV": 87.0, "LV": 89.1}, "hd95": {"mean": 2.26, "RV": 3.0, "LV": 1.5}}
    rows = {"final-paper": {"seeds": [2, 3], "cases": 40, "scores": {"as predicted": scores}}}
    assert render.ensemble({"rows": rows}).splitlines() == [
        "| DSC, % | all classes | RV | LV | HD95, voxel |",
        "| --- | --- | --- | --- | --- |",
        "| AdaWAC with its defaults, 2 seeds, as predicted | 88.0 | 87.0 | 89.1 | 2.3 |",
    ]


def test_what_diagnose_says_of_acdc_was_measured(acdc):
    entries = acdc.read_results()
    dice = {one["name"]: 100 * one["scores"]["adawac"]["dice"]["mean"] for one in entries}
    defaults = how_to_set(1000)["basis"][0]
    grid = [dice[name] for name in dice if name.startswith("unet-eta") and name.endswith("seed1")]
    grid.append(dice["unet-adawac-seed1"])
    assert f"DSC of {dice['unet-paper-seed1']:.1f} was {max(grid) - dice['unet-paper-seed1']:.1f} points" in defaults
    assert min(grid) == dice["unet-eta8-lambda8-seed1"]
    assert f"lost up to {max(grid) - min(grid):.0f}" in defaults
    lost, cell = (
        max(dice[f"{row}-seed1"] - dice[f"{row}-seed{seed}"] for seed in (2, 3))
        for row in ("unet-paper", "unet-eta1-lambda0.5")
    )
    assert f"they lost {lost:.1f} at most, while one of the grid's best cells lost {cell:.1f}" in defaults


def test_what_diagnose_says_of_few_slices_was_measured(acdc, runlist):
    dice = {one["name"]: 100 * one["scores"]["adawac"]["dice"]["mean"] for one in acdc.read_results()}
    samples = {one["row"]: one["samples"] for one in acdc.read_results()}
    few = how_to_set(10)
    gains, losses = (
        [dice[f"ten-percent-{row}-seed{seed}"] - dice[f"ten-percent-baseline-seed{seed}"] for seed in (1, 2, 3)]
        for row in ("hold", "paper-hold")
    )
    by_seed = ", ".join(f"{one:+.1f}" for one in gains)
    assert f"{samples['ten-percent-hold']} slices of ACDC" in few["basis"][0]
    assert f"{sum(gains) / 3:.1f} points above the baseline (three seeds: {by_seed})" in few["basis"][0]
    assert f"{-sum(losses) / 3:.1f} below it" in few["basis"][0]
    [run] = [run for run in runlist.read_list().runs if run.name == "ten-percent-hold-seed1"]
    planned = run.config(None).method
    assert few["settings"] == {
        "method.preset": planned.preset,
        **{f"method.options.{name}": value for name, value in planned.options.items()},
        "method.hold_epochs": planned.hold_epochs,
    }


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
    def lines(self, acdc, listing):
        from results_figure import _lines

        return lambda entries: [list(_lines(group, entries)) for group in listing.groups]

    def test_has_a_line_for_each_row_and_none_for_candidates(self, lines):
        entries = [entry("ada", 2, 0.84, (2, 2)), entry("ada", 1, 0.8, (1, 1)), entry("base", 1, 0.7, (4, 4))]
        first, second = lines([*entries, entry("half", 1, 0.9, (1, 1), group="second")])
        assert [line.label for line in first[1:]] == ["baseline", "AdaWAC"]
        assert first[0].scores == {}
        assert first[2].scores == pytest.approx({1: 80, 2: 84})
        assert [line.method for line in first] == ["", "baseline", "adawac"]
        assert second == []

    def test_holds_rows_against_the_first_by_the_seeds_that_all_have(self, acdc, lines):
        from matplotlib.figure import Figure
        from results_figure import _draw

        first, _ = lines([entry("base", 1, 0.7, (4, 4)), entry("base", 2, 0.6, (4, 4)), entry("ada", 1, 0.8, (1, 1))])
        axes = Figure().subplots()
        _draw(axes, first)
        assert axes.get_lines()[0].get_xdata() == pytest.approx([70, 70])

    def test_chance_does_not_look_like_a_result(self, acdc, lines):
        from matplotlib.figure import Figure
        from results_figure import _draw

        for dice, span in ((0.701, (66.05, 74.05)), (0.9, (69.2, 90.8))):
            first, _ = lines([entry("base", 1, 0.7, (4, 4)), entry("ada", 1, dice, (1, 1))])
            axes = Figure().subplots()
            _draw(axes, first)
            assert axes.get_xlim() == pytest.approx(span)

    def test_draws_nothing_before_the_first_run(self, acdc, listing, tmp_path):
        from results_figure import draw_overview

        draw_overview(listing, [], tmp_path / "none.png")
        assert not (tmp_path / "none.png").exists()


class TestPage:
    def test_shows_means_deviations_and_differences(self, page, listing):
        patients = [{"one": 0.5, "two": 0.7}, {"one": 0.6, "two": 0.9}]
        entries = [
            entry("ada", 2, 0.84, (2.0, 30.0), patients=patients[1]),
            entry("ada", 1, 0.80, (1.0, 10.0), patients=patients[1]),
            entry("ada", 3, 0.82, (3.0, 20.0), patients=patients[1]),
            entry("base", 1, 0.70, (4.0, 4.0), patients=patients[0]),
            entry("base", 2, 0.72, (4.0, 4.0), patients=patients[0]),
        ]
        found = page.blocks(listing, entries, [])
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

    def test_the_first_pages_show_what_both_rows_of_a_line_have(self, page, listing):
        entries = [entry("ada", seed, dice, (1.0, 1.0)) for seed, dice in ((1, 0.8), (2, 0.9), (3, 0.1))]
        entries += [entry("base", seed, 0.7, (1.0, 1.0)) for seed in (1, 2)]
        lines = page.blocks(listing, entries, [])["acdc-short"].splitlines()
        assert lines[2:] == ["| small | 2 | 70.0 ± 0.0 | 85.0 ± 7.1 | +15.0 ± 7.1 |"]
        assert page.blocks(listing, [], [])["acdc-short"] == ""

    def test_rows_with_the_same_seeds_have_no_column_for_them(self, page, listing):
        found = page.blocks(listing, [entry(row, 1, 0.8, (1.0, 1.0)) for row in ("ada", "base")], [])
        assert "| DSC, % (seeds) | all classes | RV |" in found["acdc-first"]

    def test_a_group_without_runs_is_named_and_has_no_section(self, page, listing):
        found = page.blocks(listing, [entry("base", 1, 0.7, (4.0, 4.0))], [])
        assert found["acdc-second"] == ""
        assert found["acdc-missing"] == "Not run yet: Does it help? (3 of 4 runs); And elsewhere? (2 of 2 runs)."
        assert "1 run and 2 minutes" in found["acdc-total"]
        assert "A machine, torch 2.0, adawac 0.1" in found["acdc-total"]
        assert "| baseline (1) | 70.0 | 60.0 | 80.0 | 100 |" in found["acdc-first"]
        assert found["acdc-separation"] == ""

    def test_rows_of_other_blocks_stand_beside(self, page, listing):
        entries = [entry("base", 1, 0.7, (4.0, 4.0)), entry("half", 1, 0.6, (4.0, None), group="second")]
        text = page.blocks(listing, entries, [])["acdc-second"]
        assert text.index("| baseline, all (1) | 70.0 ") < text.index("| half (1) | 60.0 ")
        assert "`data.subset=half-slice`" in text
        assert "| half, `strict` | – | – | – | 2 |" in text

    def test_shows_what_the_weights_follow(self, page, listing, tmp_path):
        numbers = dict.fromkeys(page._MEASURES, 0.25)
        separation = [{**numbers, "beta_auc": auc, "beta_by_group": {"NOR": auc, "RV": 0.5}} for auc in (0.5, 0.7)]
        entries = [
            entry("ada", seed, 0.8, (1.0, 1.0), separation=one) for seed, one in zip((1, 2), separation, strict=True)
        ]
        (tmp_path / "there.png").touch()
        pictures = [page.Picture("ada", "weights", tmp_path / f"{name}.png", "β") for name in ("there", "absent")]
        text = page.blocks(listing, [*entries, entry("base", 1, 0.7, (4.0, 4.0))], pictures)["acdc-separation"]
        assert "### From scratch\n\n| after the last epoch | Small network |\n" in text
        assert "### Not run" not in text
        assert "| AUC of β: label-dense above label-sparse | 0.60 ± 0.14 |" in text
        assert "| mean β, NOR | 0.60 ± 0.14 |" in text
        assert "| label-sparse slices | 30 of 1000 |" in text
        assert "(assets/there.png)" in text
        assert "absent.png" not in text

    def test_nothing_run_says_so(self, page, listing):
        found = page.blocks(listing, [], [])
        assert found["acdc-total"].startswith("No runs yet")
        assert not any(found[name] for name in ("acdc-first", "acdc-second", "acdc-separation"))

    def test_every_block_has_its_place(self, page, acdc):
        results, first, index = (
            (REPOSITORY / name).read_text() for name in ("docs/results.md", "README.md", "docs/index.md")
        )
        for name in page.blocks(acdc.read_list(), []):
            for text in (first, index) if name == "acdc-short" else (results,):
                assert text.count(f"<!-- {name} -->") == 1


class TestGap:
    @pytest.fixture
    def gap(self, acdc):
        import gap

        return gap

    def test_a_grid_as_fine_as_the_images_loses_nothing(self, gap, tmp_path, monkeypatch):
        from adawac.data.store import Store

        prepare(phantom_source(2, 0, size=48, slices=(4, 6), sparse=0), None, tmp_path / "store", progress=False)
        store = Store(tmp_path / "store")
        cases = list(store.table.cases)
        monkeypatch.setattr(gap, "SIZE", store.stack(cases[0])[1].shape[1:])
        assert set(gap.through_the_grid(store, cases).values()) == {100.0}
        monkeypatch.setattr(gap, "SIZE", (12, 12))
        assert 0 < gap.through_the_grid(store, cases)["mean"] < 99

    def test_patients_count_once_with_the_mean_of_their_seeds(self, gap, monkeypatch):
        seeds = [{"a": 0.9, "b": 0.2, "c": 0.4, "d": 0.7}, {"a": 0.7, "b": 0.6, "c": 0.4, "d": 0.7}]
        entries = [{"row": "ours", "patients": one} for one in seeds] + [{"row": "other", "patients": {}}]
        monkeypatch.setattr(gap, "read_results", lambda: entries)
        found = gap.by_patient("ours")
        assert (found["seeds"], found["all"], found["others"]) == pytest.approx((2, 57.5, 75))
        assert found["lowest"] == pytest.approx({"b": 40, "c": 40})

    def test_the_page_has_the_present_runs(self, gap):
        written = json.loads((gap.RESULTS.parent / "gap.json").read_text())["patients"]
        assert written == {row: gap.by_patient(row) for row in gap.ROWS}


class TestBrightScans:
    @pytest.fixture
    def bright_scans(self, acdc):
        import bright_scans

        return bright_scans

    def test_a_patient_is_as_bright_as_its_labelled_voxels(self, bright_scans, store):
        from adawac.data.store import Store

        opened = Store(store)
        found = bright_scans.brightness(opened)
        tests = opened.table.take(opened.table.split == "test")
        assert set(found) == set(tests.patient.tolist())
        [case, *others] = sorted(set(tests.case[tests.patient == (first := sorted(found)[0])].tolist()))
        assert not others
        images, labels = (np.asarray(one) for one in opened.stack(case))
        inside = [image[0][label > 0] for image, label in zip(images, labels, strict=True)]
        assert found[first] == pytest.approx(float(np.concatenate(inside).mean()), rel=1e-5)

    def test_a_run_far_below_the_others_is_named_with_who_it_fails_on(self, bright_scans, tmp_path):
        (tmp_path / "list.yaml").write_text(
            LIST.replace(
                "        seeds: [1]\n        rows:\n          base",
                "        seeds: [1, 2]\n        rows:\n          base",
            )
        )
        bright = {"dark": 0.1, "grey": 0.2, "white": 0.9}
        rising, falling = (dict(zip(bright, values, strict=True)) for values in ((0.7, 0.8, 0.9), (0.9, 0.8, 0.3)))
        entries = [
            entry("base", 1, 0.8, (1, 1), patients=rising),
            entry("ada", 1, 0.8, (1, 1), patients=rising),
            entry("ada", 2, 0.7, (1, 1), patients=falling),
            entry("ada", 3, 0.1, (1, 1), patients=falling),  # not on the list
            entry("broken", 1, 0.8, (1, 1), patients={"dark": 0.5}),  # other patients
        ]
        found = bright_scans.describe(entries, bright, tmp_path / "list.yaml")
        assert found["brightest"] == "white"
        assert [(one["consistency"], one["runs"], one["lowest"], one["highest"]) for one in found["kinds"]] == [
            (False, 1, pytest.approx(1), pytest.approx(1)),
            (True, 2, pytest.approx(-1), pytest.approx(1)),
        ]
        [second] = found["far"]
        assert (second["name"], second["spearman"], second["brightest"]) == ("ada-seed2", pytest.approx(-1), 30)
        assert (second["dice"], second["others"]) == pytest.approx((70, 80))

    def test_the_page_has_the_present_runs(self, bright_scans, acdc):
        written = json.loads((bright_scans.RESULTS.parent / bright_scans.NAME).read_text())
        found = bright_scans.describe(acdc.read_results(), written["brightness"])
        assert {name: written[name] for name in found} == found

    def test_the_picture_has_a_mark_for_each_patient_of_the_runs_that_fail(
        self, bright_scans, acdc, tmp_path, monkeypatch
    ):
        written = json.loads((bright_scans.RESULTS.parent / bright_scans.NAME).read_text())
        drawn = []
        monkeypatch.setattr(bright_scans, "save_small", lambda picture, path: drawn.append(picture))
        bright_scans.draw(acdc.read_results(), written)
        [axes] = drawn[0].figure.axes
        lines = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
        failing = [one for one in written["far"] if one["spearman"] < 0]
        assert set(lines) >= {one["name"] for one in failing}
        for one in failing:  # the brightest patient is the last one
            assert (len(lines[one["name"]]), lines[one["name"]][-1]) == (20, pytest.approx(one["brightest"]))
