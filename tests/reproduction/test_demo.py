"""`adawac demo` and `adawac bench`, small: the same code with fewer and smaller cases."""

import json
from pathlib import Path

import pytest

from adawac.cli import run
from adawac.reproduction import demo
from adawac.runs import Run


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(demo, "_CASES", 6)
    monkeypatch.setattr(demo, "_SIZE", 32)


def test_the_demo_trains_scores_and_reports(small, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["demo", "--epochs", "1"]) == 0
    out = capsys.readouterr().out
    runs = sorted(path.parent for path in Path("demo").glob("*/run.json"))
    assert [folder.name.split("-")[0] for folder in runs] == ["adawac", "baseline", "pair"]
    assert all(Run(folder).status == "finished" and Run(folder).evaluations for folder in runs)
    assert Path("demo/report.html").read_text(encoding="utf-8").startswith("<!")
    assert "demo/report.html" in out
    written = {folder: (folder / "run.json").read_bytes() for folder in runs}

    assert run(["demo", "--epochs", "1", "--json"]) == 0  # finds everything done
    found = json.loads(capsys.readouterr().out)
    assert list(found["dice"]) == list(demo.DEMO_METHODS)
    assert all(0 <= dice <= 1 for dice in found["dice"].values())
    assert {folder: (folder / "run.json").read_bytes() for folder in runs} == written


def test_the_demos_runs_differ_in_the_method_alone():
    first, other = (demo.settings(Path("store"), method, 1, 5) for method in ("baseline", "adawac"))
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
