"""`adawac demo` and `adawac bench`, small: the same code with fewer and smaller cases."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from adawac.cli import run
from adawac.errors import DataError
from adawac.reproduction import demo
from adawac.runs import Run
from adawac.train import TrainingProgress


@pytest.fixture
def small(monkeypatch):
    phantom = {**demo.DEMO.phantom, "num_patients": 6, "size": (32, 32), "slices": (8, 10)}
    monkeypatch.setattr(demo, "DEMO", replace(demo.DEMO, phantom=phantom))


def test_the_demo_trains_scores_and_reports(small, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["demo", "--epochs", "1"]) == 0
    out = capsys.readouterr().out
    runs = sorted(path.parent for path in Path("demo").glob("*/run.json"))
    assert [folder.name.split("-")[0] for folder in runs] == ["adawac", "baseline", "pair"]
    assert all(Run(folder).status == "finished" and Run(folder).evaluations for folder in runs)
    assert Path("demo/report.html").read_text(encoding="utf-8").startswith("<!")
    assert "demo/report.html" in out
    assert "β ended near 0" in out
    assert "adawac diagnose" in out
    parts = [line.split()[0] for line in out.splitlines() if line.startswith(("Drawing", "Training", "Scoring"))]
    assert parts == ["Drawing", "Training", "Training", "Training", "Scoring"]
    written = {folder: (folder / "run.json").read_bytes() for folder in runs}

    assert run(["demo", "--epochs", "1", "--json"]) == 0  # finds everything done
    found = json.loads(capsys.readouterr().out)
    assert list(found["dice"]) == list(demo.DEMO_METHODS)
    for method, dice in found["dice"].items():
        assert 0 <= dice <= 1
        assert dice == pytest.approx(np.mean(list(found["classes"][method].values())))
    assert {folder: (folder / "run.json").read_bytes() for folder in runs} == written


def test_the_demo_of_pictures_counts_what_was_missed_and_falsely_found(tmp_path, monkeypatch, capsys):
    phantom = {**demo.PICTURES_DEMO.phantom, "num_pictures": 32, "size": (32, 32), "empty": 0.5}
    monkeypatch.setattr(demo, "PICTURES_DEMO", replace(demo.PICTURES_DEMO, phantom=phantom))
    monkeypatch.chdir(tmp_path)
    assert run(["demo", "--pictures", "--epochs", "1"]) == 0
    out = capsys.readouterr().out
    assert "with a defect, nothing found" in out
    assert "Mean DSC on the slices with foreground" in out
    assert run(["demo", "--pictures", "--epochs", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for method in demo.DEMO_METHODS:
        counts = found["detections"][method]
        assert counts["hits"] + counts["misses"] == counts["false_alarms"] + counts["clear"] == 4
        trained = Run(found["runs"][method])
        assert trained.task.in_colour
        assert all(shown.colours is not None for shown in trained.gallery("test-last").values())
    page = Path("demo-pictures/report.html").read_text(encoding="utf-8")
    assert "/9j/" in page  # JPEG: pictures in colour
    assert '"case_specificity"' in page


def test_an_interrupted_demo_goes_on_where_it_was(small, tmp_path):
    class Interrupting(TrainingProgress):
        def start(self, config, run, steps):
            self.method = config.method.name

        def step(self, epoch, step):
            if self.method == "pair" and step == 2:
                raise KeyboardInterrupt

    settings = replace(demo.DEMO, epochs=1)
    with pytest.raises(KeyboardInterrupt):
        demo.demonstrate(tmp_path, demo=settings, watch=Interrupting(), note=lambda *_: None)
    baseline, pair = (Run(tmp_path / f"{method}-seed1-epochs1") for method in ("baseline", "pair"))
    assert (baseline.status, pair.status) == ("finished", "interrupted")
    written = (baseline.folder / "run.json").read_bytes()
    parts = []
    found = demo.demonstrate(tmp_path, demo=settings, note=lambda text, start, stop: parts.append((start, stop)))
    assert Run(pair.folder).status == "finished"
    assert (baseline.folder / "run.json").read_bytes() == written
    assert found["outcome"].startswith("adawac: β ended near 0")
    assert parts[0][0] == 0
    assert parts[-1][1] == 1
    assert all(before[1] == pytest.approx(after[0]) for before, after in pairwise(parts))

    with pytest.raises(DataError, match="differ"):  # the folder has another demonstration's patients
        demo.demonstrate(tmp_path, demo=replace(settings, phantom={**settings.phantom, "shift": 1.0}), note=print)


def test_the_demos_runs_differ_in_the_method_and_how_it_takes_its_second_view():
    first, pair, other = (demo.settings(Path("store"), method, 1) for method in demo.DEMO_METHODS)
    assert pair.forward == "joint"  # through the encoder alone, its second view would not be supervised
    assert other.forward == demo.DEMO.forward["adawac"]
    assert first.summary.items() - other.summary.items() == {("method", "baseline")}
    assert (first.data, first.optim, first.model, first.epochs, first.seed) == (
        other.data,
        other.optim,
        other.model,
        other.epochs,
        other.seed,
    )


def test_the_demo_needs_an_epoch(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["demo", "--epochs", "0"]) == 2
    assert "Expected at least 1 epoch, but got 0" in capsys.readouterr().err


def test_bench_says_what_a_step_costs(capsys, monkeypatch, small_phantom):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the streams for terminals
    words = ["bench", "--model", "smp:Unet/resnet18", "--image-size", "32", "--batch-size", "6", "--steps", "2"]
    assert run([*words, "--json", "--set", "hardware.accelerator=cpu"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert "steps" in err  # minutes on a CPU, so there is a bar
    assert list(found["parts_ms"]) == ["views", "forward", "criterion", "backward", "optimiser"]
    assert min(found["parts_ms"].values()) > 0
    assert found["slices_per_second"] == pytest.approx(6000 / found["step_ms"])
    assert found["peak_gib"] > 0.05
    assert found["eager_because"] == "the device is no GPU"
    assert run([*words[:-1], "0"]) == 2
    assert "Expected at least 1 step" in capsys.readouterr().err
    assert run([*words, "--split", "nowhere"]) == 2
    assert "'nowhere'" in capsys.readouterr().err
    assert run([*words, "--set", "hardware.devices=2"]) == 2
    assert "Expected one device to measure, but got hardware.devices=2" in capsys.readouterr().err
